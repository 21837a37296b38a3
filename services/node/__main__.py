"""`python -m services.node QUERY REPLICA`: runs one replica of a query until it is told to stop."""

from __future__ import annotations

import services.hosting.fast_imports  # noqa: F401
from services.hosting.process import run_part
from services.node.node import Node

if __name__ == "__main__":
    run_part("node", Node)
