"""`python -m services.source QUERY STREAM`: runs the source of one stream of a query until it is told to stop."""

from __future__ import annotations

import sys
import threading

from services.process import run_process
from services.settings import load_settings
from services.source.options import SourceOptions
from services.source.source import Source


def main() -> None:
    query, stream = sys.argv[1:]
    name = f"source.{query}.{stream}"

    def serve(stopping: threading.Event) -> int:
        return Source(load_settings(), SourceOptions(), name, query, stream).serve(stopping)

    run_process(name, serve)


if __name__ == "__main__":
    main()
