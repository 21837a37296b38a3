"""Seeded bugs: each breaks one rule of the production objects, to show that the simulator, or a test, notices it.
docs/mutants.md lists what catches each: the first seed of the simulator, or a test.

Touches the methods of production objects, which a mutant replaces during one run; the reference run without failures is made
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from boreal.model.errors import UserError
from boreal.query.spec import did_you_mean
from simulation.mutants import (
    clocks,
    egress,
    host,
    operators,
    own,
    path,
    ports,
    recovery,
    remote,
    soutput,
    stagger,
    sunion,
    takeover,
    upstream,
    values,
)
from simulation.mutants.registry import MUTANTS_BY_MODULE, Mutant, Owner, Patch

__all__ = ["MUTANTS", "Mutant", "Patch", "mutated"]

_ROOMS = (
    *(sunion, ports, upstream, path, host, soutput, stagger, recovery, remote, clocks),
    *(operators, values, own, egress, takeover),
)

MUTANTS: dict[str, Mutant] = {mutant.name: mutant for room in _ROOMS for mutant in MUTANTS_BY_MODULE[room.__name__]}


@contextmanager
def mutated(name: str | None, mutants: Mapping[str, Mutant] = MUTANTS) -> Iterator[None]:
    """The production objects with the named bug, None for none; UserError for an unknown name. mutants: all, by name."""
    if name is None:
        yield
        return
    if name not in mutants:
        raise UserError("--mutant", name, "there is no such mutant", did_you_mean(name, mutants))
    undo: list[tuple[Owner, str, Any]] = []

    def patch(owner: Owner, attribute: str, make: Callable[[Any], Any]) -> None:
        original = owner.__dict__[attribute]
        undo.append((owner, attribute, original))
        setattr(owner, attribute, make(original))

    try:
        mutants[name].apply(patch)
        yield
    finally:
        for owner, attribute, original in reversed(undo):
            setattr(owner, attribute, original)
