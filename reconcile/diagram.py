"""The tables and diagrams of the machines of this room: `python -m reconcile.diagram` prints them for docs/protocol.md."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from reconcile.consistency import TRANSITIONS
from reconcile.stagger import TURNS, Turn
from reconcile.upstream import MOVES, Rank

AnyState = TypeVar("AnyState", bound=Enum)

CONSISTENCY_STARTS = {"STABLE": "first incarnation", "RECOVERING": "a later incarnation"}
TURN_STARTS = {Turn.RESTING.value: "an incarnation begins"}


def table(transitions: Mapping[tuple[AnyState, AnyState], str]) -> str:
    """Transitions as a Markdown table, in their order."""
    rows = [f"| {before.value} | {after.value} | {why} |" for (before, after), why in transitions.items()]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows])


def diagram(transitions: Mapping[tuple[AnyState, AnyState], str], starts: Mapping[str, str]) -> str:
    """Transitions as a Mermaid state diagram. Labels contain no colon, because Mermaid uses it as a separator.

    starts: the first states, and what leads to each.
    """
    arrows = [f"    {before.value} --> {after.value}: {_label(why)}" for (before, after), why in transitions.items()]
    first = [f"    [*] --> {state}: {why}" for state, why in starts.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *first, *arrows, "```"])


def moves() -> str:
    """What a reader does, as a Markdown table: the rows are ranks of the visible replica, the columns of the best one."""
    ranks = sorted(Rank)
    head = [f"| visible \\ best | {' | '.join(rank.name for rank in ranks)} |", "|---" * (len(ranks) + 1) + "|"]
    cells = [[MOVES[current, best].name if (current, best) in MOVES else "" for best in ranks] for current in ranks]
    return "\n".join([*head, *(f"| {rank.name} | {' | '.join(row)} |" for rank, row in zip(ranks, cells, strict=True))])


def move_names() -> str:
    """What each move is, as a Markdown list."""
    return "\n".join(f"- {move.name}: {move.value}." for move in dict.fromkeys(MOVES.values()))


def pages() -> tuple[str, ...]:
    """What docs/protocol.md shows, in its order."""
    return (
        table(TRANSITIONS),
        diagram(TRANSITIONS, CONSISTENCY_STARTS),
        moves(),
        move_names(),
        table(TURNS),
        diagram(TURNS, TURN_STARTS),
    )


def _label(why: str) -> str:
    return why.replace(":", ",")


if __name__ == "__main__":
    print("\n\n".join(pages()))
