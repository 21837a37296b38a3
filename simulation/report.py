"""Which seed catches which mutant: docs/mutants.md, made by `python -m simulation.report` and read back by the tests."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from simulation.campaign import run_seed
from simulation.mutants import MUTANTS

TABLE = Path(__file__).parent.parent / "docs" / "mutants.md"
MOST_SEEDS = 1_000
"""A mutant that this many seeds do not catch shows a hole in the scenarios or the checkers."""

_HEAD = """# Mutants

Seeded bugs in the production objects (`simulation/mutants.py`), each with the first seed of the simulator that catches
it, and by which invariant and anomaly (`simulation/invariants.py`). Made by `python -m simulation.report`;
`boreal simulate --seed SEED --seeds 1 --mutant NAME` shows one.

| mutant | what it breaks | seed | invariant | anomaly |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Catch:
    """The first seed that catches a mutant, and by what."""

    mutant: str
    seed: int
    invariant: str
    anomaly: str


def hunt(mutant: str) -> Catch | None:
    """Try seeds from 0 on until one catches the mutant, which it does not do without; None if none does."""
    for seed in range(MOST_SEEDS):
        found = run_seed(seed, mutant).violations
        if found and not run_seed(seed).violations:
            assert not str(found[-1]).startswith(("crash: TypeError", "crash: AttributeError")), f"{mutant}: {found[-1]}"
            return Catch(mutant, seed, found[0].invariant, found[0].name)
    return None


def table(catches: list[Catch]) -> str:
    """The page that lists them."""
    rows = [f"| {c.mutant} | {MUTANTS[c.mutant].prose} | {c.seed} | {c.invariant} | {c.anomaly} |\n" for c in catches]
    return _HEAD + "".join(rows)


def read_table(text: str) -> list[Catch]:
    """What `table` wrote."""
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return [Catch(name, int(seed), invariant, anomaly) for name, _, seed, invariant, anomaly in cells[1:]]


def main() -> int:
    """Hunt every mutant, and write the page; 1 if one got away."""
    caught = []
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for name, catch in zip(MUTANTS, pool.map(hunt, MUTANTS), strict=True):
            caught.append(catch)
            print(f"{name}: {catch}", flush=True)
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table([catch for catch in caught if catch is not None]), encoding="utf-8")
    away = [name for name, catch in zip(MUTANTS, caught, strict=True) if catch is None]
    print(f"{len(MUTANTS) - len(away)} of {len(MUTANTS)} mutants caught{': not ' if away else ''}{', '.join(away)}")
    return 1 if away else 0


if __name__ == "__main__":
    sys.exit(main())
