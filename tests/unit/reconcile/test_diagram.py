"""docs/protocol.md shows the machine as it is: after a change of the table, run `python -m reconcile.diagram`."""

from __future__ import annotations

import re
from pathlib import Path

from boreal.model.frames import State
from reconcile.consistency import TRANSITIONS
from reconcile.diagram import diagram, table

PROTOCOL = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"


def test_the_diagram_has_an_arrow_for_each_transition() -> None:
    arrows = re.findall(r"^    (\w+) --> (\w+): ([^:]+)$", diagram(), re.M)
    assert [(State(before), State(after)) for before, after, _ in arrows] == list(TRANSITIONS)


def test_the_table_has_a_row_for_each_transition() -> None:
    assert len(table().splitlines()) == 2 + len(TRANSITIONS)
    assert all(f"| {before.value} | {after.value} | {why} |" in table() for (before, after), why in TRANSITIONS.items())


def test_the_documentation_shows_both_as_they_are() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    assert table() in text, "paste the table that `python -m reconcile.diagram` prints into docs/protocol.md"
    assert diagram() in text, "paste the diagram that `python -m reconcile.diagram` prints into docs/protocol.md"


def test_the_documentation_speaks_of_every_ruling_once_it_is_kept_or_sharpened() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    assert [number for number in range(1, 33) if not re.search(rf"\bR{number}\b", text)] == []
