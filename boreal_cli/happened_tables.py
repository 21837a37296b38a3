"""Failures and events on stdout, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNSAID = ("spec", "since_ms", "place", "total")
"""Facts that are long, or that say nothing without others."""


def show_failures(failures: Sequence[Mapping[str, Any]]) -> None:
    console = Console(highlight=False)
    if not failures:
        console.print(Text("there are none that are still known"))
        return
    table = _table("failure", "lasted", "what", "X", "undone", "late")
    for each in failures:
        lasted = Text("goes on", style="yellow") if each["duration_ms"] is None else Text(_seconds(each["duration_ms"]))
        late = "-" if each["late_rows"] is None else str(each["late_rows"])
        cost = _seconds(each["x_ms"]), str(each["rows_undone"]), late
        table.add_row(each["id"], lasted, _lacked(each), *cost)
    console.print(table)


def show_failure(failure: Mapping[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    state = "it goes on" if failure["state"] == "open" else f"it lasted {_seconds(failure['duration_ms'])}"
    x = f"X was {_seconds(failure['x_ms'])}"
    console.print(Text(f"{_moment(failure['detected_ms'])}  {_lacked(failure)}; {state}; {failure['rows_undone']} undone; {x}"))
    parts = _table("part", "from", "time")
    for phase in failure["phases"]:
        parts.add_row(phase["name"], _clock(phase["from_ms"]), "-" if phase["ms"] is None else _seconds(phase["ms"]))
    console.print(parts)
    instances = _table("instance", "lacked", "detected", "healed", "stable again", "correction")
    for each in failure["instances"]:
        lacked = "it was silent" if each["state"] == "FAILURE" else ", ".join(each["missing"])
        times = (_clock(each[name]) for name in ("detected_ms", "healed_ms", "reconciled_ms"))
        redo = "-" if each["redo_s"] is None else _seconds(1_000 * each["redo_s"])
        instances.add_row(each["instance"], lacked, *times, redo)
    console.print(instances)
    for fault in failure["faults"]:
        console.print(Text(f"on purpose: {fault['fault']}, from {_clock(fault['begun_ms'])}"))


def show_events(events: Sequence[Mapping[str, Any]]) -> None:
    """A line for each: facts are too long for a table."""
    console = Console(highlight=False, soft_wrap=True)
    if not events:
        console.print(Text("there are none that are still known"))
    for each in events:
        facts = ", ".join(f"{name} {_plain(value)}" for name, value in each["facts"].items() if _is_said(name, value))
        who = f" by {each['by']}" if each["by"] else ""
        of = f"{each['query']}: " if each["query"] else ""
        said = Text(f"{_moment(each['at_ms'])}  {of}{each['kind'].replace('_', ' ')}{who}")
        console.print(said.append(f"  {facts}", style="dim") if facts else said)


def _is_said(name: str, value: object) -> bool:
    return name not in _UNSAID and value not in (None, [], {})


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " -> ".join(map(_plain, value)) if len(value) == 2 else ", ".join(map(_plain, value))
    return str(value)


def _lacked(failure: Mapping[str, Any]) -> str:
    missing = [f"{name} missing" for name in failure["missing"]]
    return ", ".join(missing + [f"{name} silent" for name in failure["silent"]]) or "-"


def _moment(at_ms: float) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000):%Y-%m-%d %H:%M:%S}"


def _clock(at_ms: float | None) -> str:
    return "-" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1_000):%H:%M:%S}"


def _seconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms / 1_000:.3g} s"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column not in ("what", "lacked"))
    return table
