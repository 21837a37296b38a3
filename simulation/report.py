"""Writes docs/mutants.md, which lists what catches each mutant; the tests read it. Run `python -m simulation.report`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from simulation.hunt import Catch, hunt
from simulation.mutants import MUTANTS

TABLE = Path(__file__).parent.parent / "docs" / "mutants.md"
MOST_SEEDS = 1_000
"""A mutant that this many seeds do not catch shows a gap in the scenarios or the checkers, or needs a test."""

_HEAD = """# Mutants

Seeded bugs in the production objects (`simulation/mutants`), each with what catches it: the first seed of the simulator,
by this invariant and anomaly (`simulation/invariants.py`), or, where what it breaks cannot be seen there, a test. Made by
`python -m simulation.report`; `boreal simulate --seed SEED --seeds 1 --mutant NAME` shows one.

| mutant | what it breaks | caught by | invariant | anomaly |
|---|---|---|---|---|
"""


def table(catches: Mapping[str, Catch]) -> str:
    """The page: all mutants that are caught, by the seeds of these catches or by the tests that they name."""
    rows = []
    for mutant in MUTANTS.values():
        if mutant.caught_by is not None:
            rows.append(f"| {mutant.name} | {mutant.prose} | `{mutant.caught_by}` | | |\n")
        elif mutant.name in catches:
            catch = catches[mutant.name]
            rows.append(f"| {mutant.name} | {mutant.prose} | seed {catch.seed} | {catch.invariant} | {catch.anomaly} |\n")
    return _HEAD + "".join(rows)


def read_table(text: str) -> dict[str, Catch | None]:
    """The catch of each mutant on a page that `table` wrote; None for a mutant that a test catches."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in lines[1:]]
    return {
        name: Catch(name, int(by.removeprefix("seed ")), invariant, anomaly) if by.startswith("seed ") else None
        for name, _, by, invariant, anomaly in cells
    }


def main() -> int:
    """Hunt every mutant that names no test, and write the page. Returns 1 if one was not caught."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=MOST_SEEDS, help="how many seeds to try")
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("mutants", nargs="*", help="hunt these only, and write no page")
    asked = options.parse_args()
    hunted = asked.mutants or [mutant.name for mutant in MUTANTS.values() if mutant.caught_by is None]
    catches = hunt(hunted, asked.seeds, processes=asked.processes, on_catch=lambda catch: print(catch, flush=True))
    if not asked.mutants:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(table(catches), encoding="utf-8")
    away = [name for name in hunted if name not in catches]
    print(f"{len(catches)} of {len(hunted)} mutants caught{': not ' if away else ''}{', '.join(away)}")
    return 1 if away else 0


if __name__ == "__main__":
    sys.exit(main())
