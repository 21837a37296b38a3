"""docs/protocol.md shows the machine as it is: after a change of the table, run `python -m reconcile.diagram`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

from reconcile.consistency import TRANSITIONS
from reconcile.diagram import CONSISTENCY_STARTS, TURN_STARTS, diagram, moves_diagram, pages, table
from reconcile.stagger import TURNS
from reconcile.upstream import MOVES, Move, Rank

Transitions = Mapping[tuple[Enum, Enum], str]
PROTOCOL = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"


def arrows_of(drawing: str) -> list[tuple[str, str, str]]:
    """The arrows (from, to, why) of a drawing in text."""
    arrows: list[tuple[str, str, str]] = []
    place = ""
    for line in drawing.splitlines()[1:-1]:
        if arrow := re.fullmatch(r"  [├└]──> (\w+) *(.*)", line):
            arrows.append((place, arrow[1], arrow[2]))
        else:
            place = line
    return arrows


@pytest.mark.parametrize(
    ("transitions", "starts"), [(TRANSITIONS, CONSISTENCY_STARTS), (TURNS, TURN_STARTS)], ids=["consistency", "turns"]
)
def test_tables_and_diagrams_have_each_transition(transitions: Transitions, starts: Mapping[str, str]) -> None:
    drawn = arrows_of(diagram(transitions, starts))
    first = [(f"({why})", state, "") for state, why in starts.items()]
    rest = [(before.value, after.value, why) for (before, after), why in transitions.items()]
    assert sorted(drawn) == sorted([*first, *rest])
    rows = table(transitions).splitlines()[2:]
    assert rows == [f"| {before.value} | {after.value} | {why} |" for (before, after), why in transitions.items()]


def test_a_reader_knows_what_to_do_whatever_the_ranks() -> None:
    """The best replica is never below the visible one, so these are all the cases."""
    assert set(MOVES) == {(current, best) for current in Rank for best in Rank if current <= best}
    drawn = {(current.name, best.name, move.name) for (current, best), move in MOVES.items() if move is not Move.STAY}
    assert set(arrows_of(moves_diagram())) == drawn


def test_the_documentation_shows_all_as_they_are() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    for page in pages():
        assert page in text, f"paste what `python -m reconcile.diagram` prints into docs/protocol.md: {page}"


def test_the_documentation_speaks_of_every_ruling_once_it_is_kept_or_sharpened() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    assert [number for number in range(1, 33) if not re.search(rf"\bR{number}\b", text)] == []
