"""`python -m services.node QUERY REPLICA`: runs one replica of a query until it is stopped."""

from __future__ import annotations

import services.hosting.fast_imports  # noqa: F401
from services.hosting.connections import run_query_process
from services.node.node import NodeProcess

if __name__ == "__main__":
    run_query_process("node", NodeProcess)
