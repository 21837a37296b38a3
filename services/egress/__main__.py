"""`python -m services.egress QUERY SITE`: runs the egress of a query at one site until it is told to stop."""

from __future__ import annotations

import services.hosting.fast_imports  # noqa: F401
from services.egress.egress import Egress
from services.hosting.process import run_part

if __name__ == "__main__":
    run_part("egress", Egress)
