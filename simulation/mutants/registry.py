"""Mutants, and the registry of those of each module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Owner = type | ModuleType

Patch = Callable[[Owner, str, Callable[[Any], Any]], None]
"""patch(owner, name, make): replaces `owner.name` by make(the original)."""


@dataclass(frozen=True)
class Mutant:
    """One seeded bug."""

    name: str
    """Its name, which is also that of the function that applies it."""
    prose: str
    """What it breaks, in one sentence."""
    apply: Callable[[Patch], None]
    """Replaces methods by means of a `Patch`."""
    caught_by: str | None = None
    """The test that catches it, 'path::name' from the project's root; None if the simulator does."""


MUTANTS_BY_MODULE: dict[str, list[Mutant]] = {}
"""The mutants by module, in their order there."""


def mutant(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Register a mutant under the function's name; its docstring says what it breaks."""
    return _register(apply, None)


def caught_by(file: str, test: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a mutant that the simulator cannot catch, but a test in a file under tests/unit does."""
    return lambda apply: _register(apply, f"tests/unit/{file}::{test}")


def _register(apply: Callable[[Patch], None], test: str | None) -> Callable[[Patch], None]:
    assert apply.__doc__ is not None
    prose = " ".join(apply.__doc__.split())
    MUTANTS_BY_MODULE.setdefault(apply.__module__, []).append(Mutant(apply.__name__, prose, apply, test))
    return apply
