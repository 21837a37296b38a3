"""The live view of a run in real time: the state of inputs and replicas, the latest results, and the delay compared with X."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from boreal.query.plan import EGRESS
from boreal_cli.tables import count, milliseconds
from boreal_cli.throttle import FRAME_EVERY_SECONDS, Throttle
from boreal_cli.timeline import STATE_STYLES
from embedded.faults import Fault
from embedded.run import Run
from embedded.session import RunSession

RESULTS = 6
KEPT_CHARACTERS = 8_000
DELAY_WIDTH = 40


@contextmanager
def live_view(session: RunSession) -> Iterator[LiveView]:
    """Show the view on stderr until the run ends. The last frame stays on the screen."""
    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield LiveView(session, live)


class _TailCopy:
    """A file for writing that keeps a copy of the end of its text."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._end = ""

    def write(self, text: str) -> int:
        self._end = (self._end + text[-KEPT_CHARACTERS:])[-KEPT_CHARACTERS:]
        return self._to.write(text)

    def lines(self) -> list[str]:
        """The last complete lines."""
        whole = self._end.split("\n")[1:-1] if len(self._end) == KEPT_CHARACTERS else self._end.split("\n")[:-1]
        return whole


class LiveView:
    """See `boreal_cli.progress.RunView`."""

    def __init__(self, session: RunSession, live: Live) -> None:
        self._session = session
        self._live = live
        self._tail: _TailCopy | None = None
        self._throttle = Throttle.every(FRAME_EVERY_SECONDS)

    def tap(self, changes: TextIO) -> TextIO:
        self._tail = _TailCopy(changes)
        return cast(TextIO, self._tail)

    def watch(self, run: Run) -> None:
        if self._throttle.is_due():
            self._live.update(self.drawn(run), refresh=True)

    def drawn(self, run: Run) -> RenderableType:
        """The view of the present state of the run."""
        parts = (self._inputs(run), _replicas(run), _counts(run), self._results())
        title = f"{run.plan.query}  {run.world.now / 1e6:.1f}s  {run.plan.mode}, {run.plan.policy}"
        return Panel(Group(*parts), title=title, title_align="left")

    def _inputs(self, run: Run) -> Table:
        active = [
            (fault, text)
            for fault, text in zip(self._session.faults, self._session.fault_texts, strict=True)
            if _is_active(fault, run.world.now)
        ]
        table = Table(show_header=False, box=None)
        for name, rows in run.rows.items():
            struck = next((text for fault, text in active if fault.stream == name), None)
            sent, total = run.sources.sent[name], rows.batch.num_rows
            state = Text(struck, style="red") if struck else Text("ended" if sent == total else "flowing", style="green")
            table.add_row("input", name, state, f"{count(sent)} of {count(total)} tuples")
        for fault, text in active:
            if not fault.stream:
                table.add_row("fault", f"{fault.fragment}.{fault.replica}", Text(text, style="red"), "")
        return table

    def _results(self) -> RenderableType:
        shown = []
        for line in reversed(self._tail.lines() if self._tail else []):
            record = json.loads(line)
            if record["type"] in ("stable", "tentative"):
                style = "green" if record["type"] == "stable" else "yellow"
                shown.append(Text(f"{record['type']:<9} {json.dumps(record['data'])}", style=style, no_wrap=True))
            elif record["type"] == "undo":
                shown.append(Text("undo      the tentative results are revoked", style="red"))
            if len(shown) == RESULTS:
                break
        return Group(*reversed(shown))


def _is_active(fault: Fault, now: int) -> bool:
    return fault.at_us <= now and (fault.for_us is None or now < fault.at_us + fault.for_us)


def _replicas(run: Run) -> Table:
    table = Table(show_header=False, box=None)
    for who, state in run.world.states().items():
        if who.fragment != EGRESS:
            name = "FAILURE" if state is None else state.value
            table.add_row("replica", str(who), Text(name, style=STATE_STYLES[name]))
    return table


def _counts(run: Run) -> Table:
    counts, delay = run.client.counts(), run.client.delay_new()
    table = Table(show_header=False, box=None)
    outstanding = counts["n_tentative"] - counts["n_undone"]
    given = f"{count(counts['n_stable'])} stable, {count(outstanding)} tentative now, {count(counts['n_undone'])} undone"
    table.add_row("given", given)
    x_ms = run.plan.delay_threshold_us / 1000
    worst = delay["delay_new_ms_max"] or 0.0
    filled = min(round(DELAY_WIDTH * worst / x_ms), DELAY_WIDTH)
    bar = Text("━" * filled, style="red" if worst > x_ms else "green") + Text("─" * (DELAY_WIDTH - filled), style="dim")
    told = f" worst {milliseconds(delay['delay_new_ms_max'])}, p99 {milliseconds(delay['delay_new_ms_p99'])}, "
    table.add_row("delay", bar + Text(f"{told}X {milliseconds(x_ms)}"))
    return table
