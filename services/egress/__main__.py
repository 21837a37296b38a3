"""`python -m services.egress QUERY SITE`: runs the egress of a query at one site until it is stopped."""

from __future__ import annotations

import services.hosting.fast_imports  # noqa: F401
from services.egress.egress import EgressProcess
from services.hosting.connections import run_query_process

if __name__ == "__main__":
    run_query_process("egress", EgressProcess)
