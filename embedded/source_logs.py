"""The logs of the sources of an embedded run: rows and boundaries become frames, for the partitions of every reader."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin, Start
from boreal.model.partition import split
from boreal.query.plan import Edge, Plan
from sunion.buckets import bucket_end

ORIGIN = Origin("", 1)
FRAME_ROWS = 65_536
TICKS_PER_BOUNDARY = 5
"""How often rows that are due are looked for within a boundary interval."""


class SourceLogs:
    """The logs of all source streams of a plan. `append` logs a frame."""

    def __init__(self, plan: Plan, append: Callable[[LogId, Frame], None]) -> None:
        self._plan = plan
        self._append = append
        self._next_ids: dict[LogId, int] = {}
        for edge in plan.sources:
            for partition in range(edge.partitions):
                log = LogId(edge.name, "", partition)
                self._next_ids[log] = 0
                append(log, Start(ORIGIN, 0))

    def log(self, stream: str, rows: pa.RecordBatch, reached: int | None, now: int) -> None:
        """Log rows of a stream, ordered by time, that have come now, and then how far it has come, in event time, unless that
        is None."""
        for edge in (edge for edge in self._plan.sources if edge.operator == stream):
            for first in range(0, rows.num_rows, FRAME_ROWS):
                self._log_rows(edge, rows.slice(first, FRAME_ROWS), now)
            if reached is not None:
                for partition in range(edge.partitions):
                    self._append(LogId(edge.name, "", partition), Boundary(ORIGIN, 0, reached, False, now, now))

    def _log_rows(self, edge: Edge, rows: pa.RecordBatch, now: int) -> None:
        for partition, part in enumerate(split(rows, edge.key, edge.partitions)):
            if part.num_rows:
                log = LogId(edge.name, "", partition)
                t_max = bucket_end(part.column(0)[-1].as_py(), self._plan.bucket_us)
                frame = Data(ORIGIN, 0, self._next_ids[log], part, False, ((INFINITY, now),), t_max)
                self._next_ids[log] += part.num_rows
                self._append(log, frame)
