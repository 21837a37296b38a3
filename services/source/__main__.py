"""`python -m services.source QUERY STREAM`: runs the source of one stream of a query until it is stopped."""

from __future__ import annotations

import services.hosting.fast_imports  # noqa: F401
from services.hosting.connections import run_query_process
from services.source.options import SourceOptions
from services.source.source import SourceProcess

if __name__ == "__main__":
    run_query_process("source", lambda connections, *named: SourceProcess(connections, SourceOptions(), *named))
