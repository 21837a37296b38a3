"""Where a source restarts, from what its former incarnations have left in its own logs.

A source has at most one batch in progress: it announces the next one when all of the stream's logs hold the one before. So
the newest announcement in any of the logs tells which batch may be incomplete: some logs may lack the announcement, or some
of its rows. The source repeats that batch from the user's topic, and appends to each log the rows that it lacks, by their
ids. No other state is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from boreal.model.errors import CorruptError
from boreal.model.frames import Boundary
from intake.place import SourcePlace, announcement_rank, read_announcement
from logs.log import Log
from sunion.tape import BEGINNING

_WINDOW = 64


@dataclass(frozen=True, slots=True)
class SourceRestart:
    """Where a source restarts."""

    incarnation: int
    """Highest incarnation in the logs; 0 if the source never ran."""
    place: SourcePlace
    """Position before the batch that may be incomplete."""
    until: dict[int, int]
    """Offset where that batch ends, by partition of the user's topic; empty if there is no batch."""
    written: dict[str, int]
    """Id of the next row, by log 'stream/partition'."""
    promise: int
    """The highest boundary in any of the logs, as event time (us)."""


def source_restart(logs: Sequence[Log], topic: str) -> SourceRestart:
    """Where the source of these logs restarts. logs: all logs of one stream. CorruptError if they hold rows but no anchor."""
    written = {log.id.key: log.next_stable_id for log in logs}
    anchors = [anchor for anchor in (log.last_anchor() for log in logs) if anchor is not None]
    if not anchors and any(written.values()):
        raise CorruptError(f"the logs of {logs[0].id.stream} hold rows but no anchor, so their records are unknown")
    place = SourcePlace(dict(written))
    until: dict[int, int] = {}
    if anchors:
        place, until = read_announcement(max(anchors, key=announcement_rank), topic)
    return SourceRestart(max(log.last_incarnation for log in logs), place, until, written, max(map(_promise, logs)))


def _promise(log: Log) -> int:
    """The last boundary of a log. It may not be the tail: an incarnation may have ended just after its START. A boundary that
    a dead incarnation wrote after the START of the next one promises nothing: no reader has taken it, and rows before it may
    still come (R25)."""
    tail = log.tail()
    if isinstance(tail, Boundary):
        return tail.time
    window = _WINDOW
    while True:
        first = max(log.start, log.end - window)
        times = [frame.time for _, frame in log.read(first, window, skip_revoked=True) if isinstance(frame, Boundary)]
        if times or first == log.start:
            return max(times, default=BEGINNING)
        window *= 4
