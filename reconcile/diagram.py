"""The table and the diagram of the consistency machine: `python -m reconcile.diagram` prints them for docs/protocol.md."""

from __future__ import annotations

from reconcile.consistency import TRANSITIONS


def table() -> str:
    """The transitions as a Markdown table, in the order of `TRANSITIONS`."""
    rows = [f"| {before.value} | {after.value} | {why} |" for (before, after), why in TRANSITIONS.items()]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows])


def diagram() -> str:
    """The transitions as a Mermaid state diagram. Labels contain no colon, because Mermaid uses it as a separator."""
    arrows = [f"    {before.value} --> {after.value}: {_label(why)}" for (before, after), why in TRANSITIONS.items()]
    first, restarted = "STABLE", "RECOVERING"
    starts = [f"    [*] --> {first}: first life", f"    [*] --> {restarted}: a later life"]
    return "\n".join(["```mermaid", "stateDiagram-v2", *starts, *arrows, "```"])


def _label(why: str) -> str:
    return why.replace(":", ",")


if __name__ == "__main__":
    print(f"{table()}\n\n{diagram()}")
