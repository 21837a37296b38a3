"""The sources of a replay: what was recorded is logged again, rows and boundaries, each when its time of arrival has come.

The end of the recording is BOUNDARY(+infinity), as the end of a file is: all windows close.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.frames import INFINITY, Frame, LogId
from boreal.query.plan import Plan
from embedded.recording import RecordedStream, Recording
from embedded.source_logs import TICKS_PER_BOUNDARY, SourceLogs


class RecordedSources:
    """All source streams of a run. The driver calls `tick` every `tick_us`; `append` logs a frame."""

    def __init__(self, plan: Plan, recording: Recording, append: Callable[[LogId, Frame], None]) -> None:
        self.recording = recording
        self.sent = dict.fromkeys(recording.streams, 0)
        """By stream: how many rows have come."""
        self.ended_at: int | None = None
        self.tick_us = max(plan.boundary_interval_us // TICKS_PER_BOUNDARY, 1)
        self._said = dict.fromkeys(recording.streams, 0)
        self._heartbeat_us = plan.boundary_interval_us
        self._heartbeat_at = 0
        self._logs = SourceLogs(plan, append)

    def tick(self, now: int) -> None:
        """Log the rows that have come, and the newest boundary, if one has. After the end, the boundary is repeated as a
        heartbeat."""
        if now >= self.recording.length_us:
            self._end(now)
            return
        for name, stream in self.recording.streams.items():
            said = int(np.searchsorted(stream.said, now, side="right"))
            reached = int(stream.boundaries[said - 1]) if said > self._said[name] else None
            self._said[name] = said
            self._logs.log(name, self._rows(name, stream, now), reached, now)

    def _end(self, now: int) -> None:
        is_due = now >= self._heartbeat_at
        if is_due:
            self._heartbeat_at = now + self._heartbeat_us
        for name, stream in self.recording.streams.items():
            self._logs.log(name, self._rows(name, stream, now), INFINITY if is_due else None, now)
        if self.ended_at is None:
            self.ended_at = now

    def _rows(self, name: str, stream: RecordedStream, now: int) -> pa.RecordBatch:
        """The rows that have come since the last call, ordered by time."""
        since, until = self.sent[name], int(np.searchsorted(stream.arrived, now, side="right"))
        self.sent[name] = until
        rows = stream.batch.slice(since, until - since)
        times = event_times(rows)
        return rows if (times[1:] >= times[:-1]).all() else rows.take(pa.array(np.argsort(times, kind="stable")))
