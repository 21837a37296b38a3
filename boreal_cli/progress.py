"""The progress of a run on stderr: a live view or a bar on a terminal, otherwise a line at most every second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from boreal_cli.throttle import FRAME_EVERY_SECONDS, Throttle

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from embedded.run import Run
    from embedded.session import RunSession, Tap, Watch

LINE_EVERY_SECONDS = 1.0


class RunView(Protocol):
    """Shows one run. `watch` is called several times per boundary interval; `tap` wraps the changelog of the client."""

    @property
    def tap(self) -> Tap | None: ...

    def watch(self, run: Run) -> None: ...


class SeriesView(Protocol):
    """Shows several runs, one after the other. `next` begins a run, and returns the function that watches it."""

    def next(self, label: str) -> Watch: ...


@contextmanager
def following(session: RunSession, as_json: bool) -> Iterator[RunView]:
    """The view of one run: the live view, if it runs in real time on a terminal."""
    if as_json or not sys.stderr.isatty():
        yield ProgressLines(session, 1, sys.stderr)
    elif session.clock == "real":
        from boreal_cli.live import live_view

        with live_view(session) as view:
            yield view
    else:
        with _bar() as progress:
            yield ProgressBar(session, 1, progress)


@contextmanager
def counting(session: RunSession, total: int, as_json: bool) -> Iterator[SeriesView]:
    """The view of a series of `total` runs of a session."""
    if as_json or not sys.stderr.isatty():
        yield ProgressLines(session, total, sys.stderr)
    else:
        with _bar() as progress:
            yield ProgressBar(session, total, progress)


def seeds(total: int) -> Callable[[int, Sequence[Mapping[str, Any]]], None]:
    """A function that prints the number of finished seeds, at most every second, and each violation once it is found."""
    throttle = Throttle.every(LINE_EVERY_SECONDS)
    shown = 0

    def show(done: int, violations: Sequence[Mapping[str, Any]]) -> None:
        nonlocal shown
        for found in violations[shown:]:
            print(f"seed {found['seed']}: {found['invariant']}: {found['message']}", file=sys.stderr, flush=True)
        shown = len(violations)
        if throttle.is_due():
            print(f"{done:,} of {total:,} seeds, {shown:,} violations", file=sys.stderr, flush=True)

    return show


class ProgressLines:
    """Prints a line at most every second."""

    tap: Tap | None = None

    def __init__(self, session: RunSession, total: int, to: TextIO) -> None:
        self._rows = session.n_rows
        self._total = total
        self._to = to
        self._label = session.query.name
        self._number = 0
        self._throttle = Throttle.every(LINE_EVERY_SECONDS)

    def next(self, label: str) -> Watch:
        self._number += 1
        self._label = f"{self._number}/{self._total} {label}"
        return self.watch

    def watch(self, run: Run) -> None:
        if self._throttle.is_due():
            print(f"{self._label}: {_sent(run, self._rows):.0%} read, {_told(run)}", file=self._to, flush=True)


class ProgressBar:
    """A bar for the current run."""

    tap: Tap | None = None

    def __init__(self, session: RunSession, total: int, progress: Progress) -> None:
        self._rows = session.n_rows
        self._total = total
        self._progress = progress
        self._number = 0
        self._task: TaskID = progress.add_task(session.query.name, total=1.0, told="")
        self._throttle = Throttle.every(FRAME_EVERY_SECONDS)

    def next(self, label: str) -> Watch:
        self._number += 1
        self._progress.update(self._task, description=f"{self._number}/{self._total} {label}", completed=0)
        return self.watch

    def watch(self, run: Run) -> None:
        if self._throttle.is_due():
            self._progress.update(self._task, completed=_sent(run, self._rows), told=_told(run))


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[told]}"))
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _sent(run: Run, rows: int) -> float:
    return sum(run.sources.sent.values()) / rows if rows else 1.0


def _told(run: Run) -> str:
    counts = run.client.counts()
    given = ", ".join(f"{counts[f'n_{kind}']:,} {kind}" for kind in ("stable", "tentative", "undone"))
    return f"{run.world.now / 1e6:.1f}s of run time, {given}"
