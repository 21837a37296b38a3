"""How a query is refused: with the problem and the fix, and for a name that is not known, the nearest one that is."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

from pydantic_core import PydanticCustomError


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """A fix for a name that is not among the choices: the nearest one first, then all of them."""
    known = tuple(choices)
    near = get_close_matches(str(name), known, n=1)
    listed = ", ".join(known) if known else "none"
    return f"did you mean {near[0]}? The choices are: {listed}" if near else f"the choices are: {listed}"


def refuse(problem: str, fix: str, *, field: str = "", **value: object) -> NoReturn:
    """Refuse from inside a validator; `field` is relative to the model, `value` replaces what pydantic would report."""
    raise PydanticCustomError("boreal", "{problem}", {"problem": problem, "fix": fix, "field": field, **value})
