"""`python -m services.egress QUERY SITE`: runs the egress of a query at one site until it is told to stop."""

from __future__ import annotations

import sys
import threading

from services.egress.egress import Egress
from services.process import run_process
from services.settings import load_settings


def main() -> None:
    query, site = sys.argv[1:]
    name = f"egress.{query}.{site}"

    def serve(stopping: threading.Event) -> int:
        return Egress(load_settings(), name, query, site).serve(stopping)

    run_process(name, serve)


if __name__ == "__main__":
    main()
