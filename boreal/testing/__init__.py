"""For the tests of operators of one's own: whether a class keeps the contract, and what it makes of some rows.

May start a Python process, to repeat a run with another seed for hashes; on top of the operators.
"""

from __future__ import annotations

from boreal.testing.checks import ContractError, check_operator
from boreal.testing.running import run_operator
from boreal.testing.sample_rows import sample_rows

__all__ = ["ContractError", "check_operator", "run_operator", "sample_rows"]
