"""Finds the first seed that catches each mutant: one pass over the seeds, for all mutants that no seed has caught yet.

A seed's reference run serves for every mutant, and is made once. A violation counts only if the seed has none without a
mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simulation.campaign import ScenarioJudge
from simulation.families import make_scenario
from simulation.invariants import Violation
from simulation.pool import make_pool

CHUNK = 4
"""Seeds that a process takes at a time: the next chunks leave out the mutants that were caught."""
MISTAKES = ("crash: TypeError", "crash: AttributeError", "crash: NameError")
"""Raised by a mutant that does not fit the code any more, and so is not the bug that it should be."""


@dataclass(frozen=True, slots=True)
class Catch:
    """The first seed that catches a mutant."""

    mutant: str
    """The mutant's name."""
    seed: int
    """The seed."""
    invariant: str
    """The violated invariant, such as "I3"."""
    anomaly: str
    """The name of the anomaly (`simulation.invariants`)."""


def hunt(
    mutants: Sequence[str],
    seeds: int,
    first: int = 0,
    processes: int = 1,
    on_catch: Callable[[Catch], None] | None = None,
) -> dict[str, Catch]:
    """The first of `seeds` seeds from `first` on that catches each of these mutants; those that none catches are left out.
    The result does not depend on `processes`. on_catch is called with each catch."""
    left = list(mutants)
    caught: dict[str, Catch] = {}
    chunks = (range(at, min(at + CHUNK, first + seeds)) for at in range(first, first + seeds, CHUNK))
    for catches in _rounds(left, chunks, processes):
        for catch in sorted(catches, key=lambda catch: catch.seed):
            if catch.mutant in left:
                left.remove(catch.mutant)
                caught[catch.mutant] = catch
                if on_catch is not None:
                    on_catch(catch)
        if not left:
            break
    return {name: caught[name] for name in mutants if name in caught}


def _rounds(left: list[str], chunks: Iterator[range], processes: int) -> Iterator[list[Catch]]:
    """The catches of chunk after chunk among the mutants that are left, with one chunk per process at a time."""
    if processes == 1:
        yield from (_hunt_chunk(chunk, tuple(left)) for chunk in chunks)
        return
    with make_pool(processes) as pool:
        while together := [chunk for _, chunk in zip(range(processes), chunks, strict=False)]:
            found = pool.map(_hunt_chunk, together, [tuple(left)] * len(together))
            yield [catch for catches in found for catch in catches]


def _hunt_chunk(chunk: range, mutants: tuple[str, ...]) -> list[Catch]:
    catches: dict[str, Catch] = {}
    for seed in chunk:
        measure = ScenarioJudge(make_scenario(seed))
        for mutant in mutants:
            if mutant in catches:
                continue
            found = measure.judge(mutant).violations
            if found and not measure.judge().violations:
                catches[mutant] = _catch(mutant, seed, found)
    return list(catches.values())


def _catch(mutant: str, seed: int, found: list[Violation]) -> Catch:
    mistakes = [str(violation) for violation in found if str(violation).startswith(MISTAKES)]
    assert not mistakes, f"{mutant}, seed {seed}: {mistakes[0]}"
    return Catch(mutant, seed, found[0].invariant, found[0].name)
