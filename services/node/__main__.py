"""`python -m services.node QUERY REPLICA`: runs one replica of a query until it is told to stop."""

from __future__ import annotations

import services.lean  # noqa: F401
from services.node.node import Node
from services.process import run_part

if __name__ == "__main__":
    run_part("node", Node)
