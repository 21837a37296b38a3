"""Every seeded bug is caught, by the seed that docs/mutants.md names."""

from __future__ import annotations

import pytest

from boreal.errors import UserError
from simulation.campaign import run_seed
from simulation.mutants import MUTANTS, mutated
from simulation.report import TABLE, Catch, read_table, table

CATCHES = read_table(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("catch", CATCHES, ids=lambda catch: catch.mutant)
def test_the_mutant_is_caught(catch: Catch) -> None:
    assert run_seed(catch.seed, catch.mutant).violations


def test_every_mutant_is_in_the_table() -> None:
    assert [catch.mutant for catch in CATCHES] == list(MUTANTS)
    assert table(CATCHES) == TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_leaves_nothing_behind(name: str) -> None:
    touched: list[tuple[type, str, object]] = []
    MUTANTS[name].apply(lambda owner, attribute, make: touched.append((owner, attribute, owner.__dict__[attribute])))
    with mutated(name):
        assert all(owner.__dict__[attribute] is not original for owner, attribute, original in touched)
    assert all(owner.__dict__[attribute] is original for owner, attribute, original in touched)


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(UserError, match="forget_the_mark"), mutated("forget_the_marks"):
        pass
