"""The consistency machine drawn: `python -m reconcile.diagram` prints what docs/protocol.md shows of it."""

from __future__ import annotations

from reconcile.consistency import TRANSITIONS


def table() -> str:
    """The transitions as a Markdown table, in the machine's own order."""
    rows = [f"| {before.value} | {after.value} | {why} |" for (before, after), why in TRANSITIONS.items()]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows])


def diagram() -> str:
    """The same as a Mermaid state diagram. A colon ends a label's head in Mermaid, so labels have none."""
    arrows = [f"    {before.value} --> {after.value}: {_label(why)}" for (before, after), why in TRANSITIONS.items()]
    first, restarted = "STABLE", "RECOVERING"
    starts = [f"    [*] --> {first}: first life", f"    [*] --> {restarted}: a later life"]
    return "\n".join(["```mermaid", "stateDiagram-v2", *starts, *arrows, "```"])


def _label(why: str) -> str:
    return why.replace(":", ",")


if __name__ == "__main__":
    print(f"{table()}\n\n{diagram()}")
