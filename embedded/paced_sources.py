"""The sources of an embedded run: rows of files and generators, logged at a given pace.

Rows are logged when they are due, several times per boundary interval. At every boundary interval, each stream logs a BOUNDARY
at the event time of the replay, with or without new rows. The end of its file is BOUNDARY(+infinity) (R29).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin, Start
from boreal.model.partition import split
from boreal.query.plan import Edge, Plan
from embedded.file_sources import Schedule, SourceRows, merge_schedule
from sunion.buckets import bucket_end

ORIGIN = Origin("", 1)
FRAME_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a replay: either a rate or a speed."""

    rate: float | None = None
    """Tuples per second of run time, over all streams together."""
    speed: float | None = None
    """The ratio of event time to run time."""

    def cut(self, schedule: Schedule, now: int) -> tuple[int, int]:
        """The number of rows due at `now`, in microseconds of run time, and the event time that the replay has reached."""
        times = schedule.times
        if not len(times):
            return 0, INFINITY
        if self.speed is not None:
            reached = int(times[0]) + int(now * self.speed)
            count = int(np.searchsorted(times, reached))
        else:
            assert self.rate is not None
            count = min(int(now * self.rate / 1e6) + 1, len(times))
            reached = int(times[count]) if count < len(times) else INFINITY
        return (count, INFINITY) if count == len(times) else (count, reached)


TICKS_PER_BOUNDARY = 5


class PacedSources:
    """All source streams of a run. The driver calls `tick` every `tick_us`; `append` logs a frame."""

    def __init__(self, plan: Plan, rows: dict[str, SourceRows], pace: Pace, append: Callable[[LogId, Frame], None]) -> None:
        self.plan = plan
        self.rows = rows
        self.pace = pace
        self.schedule = merge_schedule(rows)
        self.append = append
        self.sent = dict.fromkeys(rows, 0)
        self.next_ids: dict[LogId, int] = {}
        self.ended_at: int | None = None
        self.tick_us = max(plan.boundary_interval_us // TICKS_PER_BOUNDARY, 1)
        self.boundary_at = 0
        for edge in plan.sources:
            for partition in range(edge.partitions):
                log = LogId(edge.name, "", partition)
                self.next_ids[log] = 0
                append(log, Start(ORIGIN, 0))

    @property
    def is_done(self) -> bool:
        return self.ended_at is not None

    def tick(self, now: int) -> None:
        """Log the rows that are due, then the boundary if it is due. After the end, the boundary is repeated as a heartbeat."""
        count, reached = self.pace.cut(self.schedule, now)
        is_boundary_due = now >= self.boundary_at or (reached >= INFINITY and self.ended_at is None)
        if is_boundary_due:
            self.boundary_at = now + self.plan.boundary_interval_us
        for name, rows in self.rows.items():
            until = self.schedule.rows_within(name, count)
            ended = until == rows.batch.num_rows
            for edge in self.plan.sources:
                if edge.operator == name:
                    self._log_rows(edge, rows, self.sent[name], until, now)
                    if is_boundary_due:
                        self._log_boundary(edge, INFINITY if ended else reached, now)
            self.sent[name] = until
        if reached >= INFINITY and self.ended_at is None:
            self.ended_at = now

    def _log_rows(self, edge: Edge, rows: SourceRows, since: int, until: int, now: int) -> None:
        for first in range(since, until, FRAME_ROWS):
            piece = rows.batch.slice(first, min(FRAME_ROWS, until - first))
            for partition, part in enumerate(split(piece, edge.key, edge.partitions)):
                if not part.num_rows:
                    continue
                log = LogId(edge.name, "", partition)
                t_max = bucket_end(part.column(0)[-1].as_py(), self.plan.bucket_us)
                frame = Data(ORIGIN, 0, self.next_ids[log], part, False, ((INFINITY, now),), t_max)
                self.next_ids[log] += part.num_rows
                self.append(log, frame)

    def _log_boundary(self, edge: Edge, reached: int, now: int) -> None:
        for partition in range(edge.partitions):
            self.append(LogId(edge.name, "", partition), Boundary(ORIGIN, 0, reached, False, now, now))
