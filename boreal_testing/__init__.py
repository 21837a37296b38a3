"""For the tests of operators that users write: whether a class keeps the contract, and what it makes of some rows.

Touches a Python process, which repeats a run with another seed for hashes. Imports `operators`, which runs such a class in a
query: a copy of that code could not show what the engine will do.
"""

from __future__ import annotations

from boreal_testing.checks import ContractError, check_operator
from boreal_testing.running import run_operator
from boreal_testing.sample_rows import sample_rows

__all__ = ["ContractError", "check_operator", "run_operator", "sample_rows"]
