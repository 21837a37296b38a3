"""How much random tests draw, and which of many like cases run. Where BOREAL_THOROUGH is set, as by `make thorough`, random
tests draw ten times as much as, or more than, in `make test`; `make soak` runs the cases that this leaves out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

IS_THOROUGH = bool(os.environ.get("BOREAL_THOROUGH"))


def some(count: int, nth: int = 10) -> int:
    """`count` cases of a thorough run, or an `nth` of them."""
    return count if IS_THOROUGH else -(-count // nth)


def every(nth: int, cases: Iterable[Any]) -> list[Any]:
    """For `parametrize`, of cases that show the same property: every `nth` runs in `make test`, the first among them, and the
    others in `make soak`. A tuple is a case of several parameters."""
    found = []
    for number, case in enumerate(cases):
        values = getattr(case, "values", case)  # a case may be a pytest.param
        parts, id_ = (values if isinstance(values, tuple) else (values,)), getattr(case, "id", None)
        found.append(pytest.param(*parts, id=id_, marks=() if number % nth == 0 else pytest.mark.soak))
    return found
