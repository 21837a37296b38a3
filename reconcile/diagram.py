"""The tables and diagrams of the machines of this room: `python -m reconcile.diagram` prints them for docs/protocol.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeVar

from reconcile.consistency import TRANSITIONS
from reconcile.stagger import TURNS, Turn
from reconcile.upstream import MOVES, Move, Rank

AnyState = TypeVar("AnyState", bound=Enum)

CONSISTENCY_STARTS = {"STABLE": "first incarnation", "RECOVERING": "a later incarnation"}
TURN_STARTS = {Turn.RESTING.value: "an incarnation begins"}


def table(transitions: Mapping[tuple[AnyState, AnyState], str]) -> str:
    """Transitions as a Markdown table, in their order."""
    rows = [f"| {before.value} | {after.value} | {why} |" for (before, after), why in transitions.items()]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows])


def diagram(transitions: Mapping[tuple[AnyState, AnyState], str], starts: Mapping[str, str]) -> str:
    """Transitions as a drawing in text, which each page shows without a script.

    starts: the first states, and what leads to each.
    """
    arrows = [(f"({why})", state, "") for state, why in starts.items()]
    arrows += [(before.value, after.value, why) for (before, after), why in transitions.items()]
    return _drawn(arrows)


def moves() -> str:
    """What a reader does, as a Markdown table: the rows are ranks of the visible replica, the columns of the best one."""
    ranks = sorted(Rank)
    head = [f"| visible \\ best | {' | '.join(rank.name for rank in ranks)} |", "|---" * (len(ranks) + 1) + "|"]
    cells = [[MOVES[current, best].name if (current, best) in MOVES else "" for best in ranks] for current in ranks]
    return "\n".join([*head, *(f"| {rank.name} | {' | '.join(row)} |" for rank, row in zip(ranks, cells, strict=True))])


def moves_diagram() -> str:
    """To which replica a reader goes from which, and how, as a drawing in text: by their ranks."""
    ordered = sorted((ranks, move) for ranks, move in MOVES.items() if move is not Move.STAY)
    return _drawn([(current.name, best.name, move.name) for (current, best), move in ordered])


def move_names() -> str:
    """What each move is, as a Markdown list."""
    return "\n".join(f"- {move.name}: {move.value}." for move in dict.fromkeys(MOVES.values()))


def pages() -> tuple[str, ...]:
    """What docs/protocol.md shows, in its order."""
    return (
        table(TRANSITIONS),
        diagram(TRANSITIONS, CONSISTENCY_STARTS),
        moves(),
        moves_diagram(),
        move_names(),
        table(TURNS),
        diagram(TURNS, TURN_STARTS),
    )


def _drawn(arrows: Sequence[tuple[str, str, str]]) -> str:
    """Arrows (from, to, why), those from the same place together, in the order of the places."""
    width = max(len(after) for _, after, _ in arrows)
    lines = []
    for place in dict.fromkeys(before for before, _, _ in arrows):
        leaving = [(after, why) for before, after, why in arrows if before == place]
        lines.append(place)
        for number, (after, why) in enumerate(leaving, start=1):
            corner = "└" if number == len(leaving) else "├"
            lines.append(f"  {corner}──> {after:{width}}  {why}".rstrip())
    return "\n".join(["```text", *lines, "```"])


if __name__ == "__main__":
    print("\n\n".join(pages()))
