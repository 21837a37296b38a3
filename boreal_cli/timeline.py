"""The faults and states of a run over time, as lines of text. Each state has its own colour and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from embedded.faults import Fault

STATE_STYLES = {
    "STABLE": "green",
    "UP_FAILURE": "yellow",
    "STABILIZATION": "cyan",
    "RECOVERING": "magenta",
    "FAILURE": "bold red",
}
WIDTH = 48
LABEL_WIDTH = 30
_SHAPES = {"STABLE": "━", "UP_FAILURE": "▒", "RECOVERING": "░", "STABILIZATION": "█", "FAILURE": "×"}
"""In order of priority: if several states share a character of the line, the last of them is shown."""


def timeline(report: Mapping[str, Any], faults: Sequence[Fault], fault_texts: Sequence[str]) -> Table:
    """A table with a line for each fault and for each instance."""
    end_ms = max((span["to_ms"] for span in report["states"]), default=0.0) or 1.0
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    table.add_column(max_width=LABEL_WIDTH)
    table.add_column(min_width=WIDTH, no_wrap=True)
    for fault, text in zip(faults, fault_texts, strict=True):
        heals_us = None if fault.for_us is None else fault.at_us + fault.for_us
        first, last = _cells(fault.at_us / 1000, end_ms if heals_us is None else heals_us / 1000, end_ms)
        line = Text(" " * first + "╳" * (last - first), style="red")
        table.add_row(Text(text), line)
    for name in dict.fromkeys(_instance(span) for span in report["states"]):
        table.add_row(Text(name), _states([span for span in report["states"] if _instance(span) == name], end_ms))
    axis = f"{end_ms / 1000:.1f}s"
    table.add_row("", Text(f"0s{axis:>{WIDTH - 2}}", style="dim"))
    shown = {state: shape for state, shape in _SHAPES.items() if any(span["state"] == state for span in report["states"])}
    table.add_row("", Text.assemble(*((f"{shape} {state}  ", STATE_STYLES[state]) for state, shape in shown.items())))
    return table


def _instance(span: Mapping[str, Any]) -> str:
    return f"{span['fragment']}.{span['replica']}" + (f".{span['shard']}" if span["shard"] else "")


def _states(spans: Sequence[Mapping[str, Any]], end_ms: float) -> Text:
    order = list(_SHAPES)
    cells = [""] * WIDTH
    for span in sorted(spans, key=lambda span: order.index(span["state"])):
        first, last = _cells(span["from_ms"], span["to_ms"], end_ms)
        cells[first:last] = [span["state"]] * (last - first)
    return Text.assemble(*((_SHAPES[state], STATE_STYLES[state]) if state else " " for state in cells))


def _cells(from_ms: float, to_ms: float, end_ms: float) -> tuple[int, int]:
    """The first character of a span and the one after its last; a span has at least one."""
    first = min(int(from_ms / end_ms * WIDTH), WIDTH - 1)
    last = -int(-to_ms / end_ms * WIDTH // 1)
    return first, min(max(last, first + 1), WIDTH)
