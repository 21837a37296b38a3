"""The sources of an embedded run: rows of files and generators, logged at a given pace.

Rows are logged when they are due, several times per boundary interval. At every boundary interval, each stream logs a BOUNDARY
at the event time of the replay, with or without new rows. The end of its file is BOUNDARY(+infinity) (R29).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boreal.model.frames import INFINITY, Frame, LogId
from boreal.query.plan import Plan
from embedded.file_sources import Schedule, SourceRows, merge_schedule
from embedded.source_logs import TICKS_PER_BOUNDARY, SourceLogs


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


class PacedSources:
    """All source streams of a run. The driver calls `tick` every `tick_us`; `append` logs a frame."""

    def __init__(self, plan: Plan, rows: dict[str, SourceRows], pace: Pace, append: Callable[[LogId, Frame], None]) -> None:
        self.plan = plan
        self.rows = rows
        self.pace = pace
        self.schedule = merge_schedule(rows)
        self.sent = dict.fromkeys(rows, 0)
        self.ended_at: int | None = None
        self.tick_us = max(plan.boundary_interval_us // TICKS_PER_BOUNDARY, 1)
        self.boundary_at = 0
        self._logs = SourceLogs(plan, append)

    def tick(self, now: int) -> None:
        """Log the rows that are due, then the boundary if it is due. After the end, the boundary is repeated as a heartbeat."""
        count, reached = self.pace.cut(self.schedule, now)
        is_boundary_due = now >= self.boundary_at or (reached >= INFINITY and self.ended_at is None)
        if is_boundary_due:
            self.boundary_at = now + self.plan.boundary_interval_us
        for name, rows in self.rows.items():
            until = self.schedule.rows_within(name, count)
            ended = until == rows.batch.num_rows
            said = (INFINITY if ended else reached) if is_boundary_due else None
            self._logs.log(name, rows.batch.slice(self.sent[name], until - self.sent[name]), said, now)
            self.sent[name] = until
        if reached >= INFINITY and self.ended_at is None:
            self.ended_at = now
