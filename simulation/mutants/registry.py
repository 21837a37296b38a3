"""What a mutant is, how rooms note theirs, and how one is applied for the time of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Owner = type | ModuleType

Patch = Callable[[Owner, str, Callable[[Any], Any]], None]
"""patch(owner, name, make): `owner.name` becomes make(what it was)."""


@dataclass(frozen=True)
class Mutant:
    """One seeded bug. prose: what it breaks, in a sentence. caught_by: the test that catches it, where the simulator cannot:
    'path::name', from the project's root."""

    name: str
    prose: str
    apply: Callable[[Patch], None]
    caught_by: str | None = None


MUTANTS_BY_MODULE: dict[str, list[Mutant]] = {}
"""The mutants of each module, in their order there."""


def mutant(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Note a mutant under the function's name; its docstring says what it breaks."""
    return _note(apply, None)


def caught_by(file: str, test: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Note a mutant that this test of a file under tests/unit catches, where the simulator cannot."""
    return lambda apply: _note(apply, f"tests/unit/{file}::{test}")


def _note(apply: Callable[[Patch], None], test: str | None) -> Callable[[Patch], None]:
    assert apply.__doc__ is not None
    prose = " ".join(apply.__doc__.split())
    MUTANTS_BY_MODULE.setdefault(apply.__module__, []).append(Mutant(apply.__name__, prose, apply, test))
    return apply
