"""Every seeded bug is caught, by what docs/mutants.md names: a seed of the simulator, or a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from boreal.model.errors import UserError
from simulation.campaign import run_seed
from simulation.hunt import MISTAKES, Catch, hunt
from simulation.mutants import MUTANTS, mutated
from simulation.mutants.registry import Owner
from simulation.report import TABLE, read_table, table
from tests.thoroughness import every

ROOT = Path(__file__).parents[2]
ROWS = read_table(TABLE.read_text(encoding="utf-8"))
CATCHES = {name: catch for name, catch in ROWS.items() if catch is not None}
NAMED = [mutant.name for mutant in MUTANTS.values() if mutant.caught_by is not None]


@pytest.mark.parametrize("catch", every(8, CATCHES.values()), ids=lambda catch: catch.mutant)
def test_the_mutant_is_caught(catch: Catch) -> None:
    found = run_seed(catch.seed, catch.mutant).violations
    assert found and not any(str(violation).startswith(MISTAKES) for violation in found)


@pytest.mark.soak
def test_the_named_tests_catch_their_mutants() -> None:
    """Each fails by what it asserts, or by what the production objects do: a mutant that does not fit them any more is none."""
    program = [sys.executable, str(Path(__file__).with_name("named_tests.py")), *NAMED]
    ended = subprocess.run(program, cwd=ROOT, env=_paths(), capture_output=True, text=True, check=True)
    *with_mutants, (_, without) = map(json.loads, ended.stdout.splitlines())
    assert [name for name, found in with_mutants if found is None or not found.startswith("call: ")] == []
    assert [(name, found) for name, found in with_mutants if found.startswith(_MISTAKES)] == []
    assert len(with_mutants) == len(NAMED) and without is None


_MISTAKES = tuple(mistake.replace("crash", "call") for mistake in MISTAKES)


def _paths() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_every_mutant_is_in_the_table() -> None:
    assert list(ROWS) == list(MUTANTS)
    assert table(CATCHES) == TABLE.read_text(encoding="utf-8")


@pytest.mark.soak
def test_a_hunt_finds_the_first_seed_however_many_hunt_together() -> None:
    names = ["order_by_arrival", "forget_the_mark"]
    alone = {name: hunt([name], 8)[name] for name in names}
    assert hunt(names, 8) == hunt(names, 8, processes=2) == alone
    assert hunt(names, 1) == {name: catch for name, catch in alone.items() if catch.seed == 0}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_leaves_nothing_behind(name: str) -> None:
    touched: list[tuple[Owner, str, object]] = []
    MUTANTS[name].apply(lambda owner, attribute, make: touched.append((owner, attribute, owner.__dict__[attribute])))
    with mutated(name):
        assert all(owner.__dict__[attribute] is not original for owner, attribute, original in touched)
    assert all(owner.__dict__[attribute] is original for owner, attribute, original in touched)


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(UserError, match="forget_the_mark"), mutated("forget_the_marks"):
        pass
