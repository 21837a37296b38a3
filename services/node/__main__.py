"""`python -m services.node QUERY REPLICA`: runs one replica of a query until it is told to stop."""

from __future__ import annotations

import sys
import threading

from services.node.node import Node
from services.process import run_process
from services.settings import load_settings


def main() -> None:
    query, replica = sys.argv[1:]
    name = f"node.{query}.{replica}"

    def serve(stopping: threading.Event) -> int:
        return Node(load_settings(), name, query, replica).serve(stopping)

    run_process(name, serve)


if __name__ == "__main__":
    main()
