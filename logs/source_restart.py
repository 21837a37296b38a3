"""What a source finds of its former lives in its own logs.

A source has at most one batch under way: the next is announced when all of the stream's logs hold the one before. So the
furthest announcement in any of the logs says which batch may be incomplete: some logs may lack it, or its rows, or the
last of its rows. That batch is done again, from the user's topic, and each log is given the rows that it does not hold,
by their ids. Nothing else has to be remembered, and no log has to wait for another to find its end.
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
    """incarnation: the highest so far, 0 if this is the first life. place: before the batch that may be incomplete; until:
    where that ends, by partition of the user's topic (none: no batch). written: each log's next id. promise: the highest
    boundary in any of the logs."""

    incarnation: int
    place: SourcePlace
    until: dict[int, int]
    written: dict[str, int]
    promise: int


def source_restart(logs: Sequence[Log], topic: str) -> SourceRestart:
    """What the logs of one stream say of the lives before this one. CorruptError: they cannot be a source's."""
    written = {log.id.key: log.next_stable_id for log in logs}
    anchors = [anchor for anchor in (log.last_anchor() for log in logs) if anchor is not None]
    if not anchors and any(written.values()):
        raise CorruptError(f"the logs of {logs[0].id.stream} hold rows, and nothing says which records these were")
    place = SourcePlace(dict(written))
    until: dict[int, int] = {}
    if anchors:
        place, until = read_announcement(max(anchors, key=announcement_rank), topic)
    return SourceRestart(max(log.last_incarnation for log in logs), place, until, written, max(map(_promise, logs)))


def _promise(log: Log) -> int:
    """The last boundary of a log, which need not be its tail: a life may have ended just after its START."""
    tail = log.tail()
    if isinstance(tail, Boundary):
        return tail.time
    window = _WINDOW
    while True:
        first = max(log.start, log.end - window)
        times = [frame.time for _, frame in log.read(first, window) if isinstance(frame, Boundary)]
        if times or first == log.start:
            return max(times, default=BEGINNING)
        window *= 4
