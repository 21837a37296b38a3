"""What the sources of a simulated run log: rows at a pace of event time = run time, with bursts, gaps, nulls, disorder.

Rows of one boundary interval may come in any order of time, as a source with several producers would log them; their
order, and so their ids, is the same however the run is stepped. A feed is cut into intervals; a run logs `stride` of
them at a time, so that a reference run sees the same source logs in other pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pyarrow as pa

from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin, Start
from boreal.model.partition import split
from boreal.model.schema import Schema, Type
from boreal.query.plan import Plan
from sunion.buckets import bucket_end

ORIGIN = Origin("", 1)
EPOCH_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z, near which event time begins."""

_MOST_ROWS = 24


@dataclass(frozen=True)
class Feed:
    """One stream: its rows in the order of the log, and how many of them the first n intervals hold (`counts[n]`)."""

    batch: pa.RecordBatch
    counts: tuple[int, ...]

    @property
    def intervals(self) -> int:
        """The interval after which the stream has ended."""
        return len(self.counts) - 1

    def with_ahead(self, row: int, ahead_us: int) -> Feed:
        """The same, but that one row's time is so much later."""
        times = self.batch.column(0).to_numpy().copy()
        times[row] += ahead_us
        return self._at(times)

    def lasting(self, intervals: int) -> Feed:
        """The same, but that it ends after so many intervals."""
        more = max(intervals - self.intervals, 0)
        return replace(self, counts=(*self.counts[: intervals + 1], *(self.counts[-1:] * more)))

    def without(self, since: int, until: int) -> Feed:
        """The same, but without the rows of a span of time."""
        times = self.batch.column(0).to_numpy()
        keep = (times < since) | (times >= until)
        before = np.concatenate([[0], np.cumsum(keep)])
        return Feed(self.batch.filter(pa.array(keep)), tuple(int(before[count]) for count in self.counts))

    def with_disorder(self, rng: Random, most_us: int) -> Feed:
        """The same, but that each row's time is earlier, by up to so much."""
        times = self.batch.column(0).to_numpy()
        return self._at(times - np.array([rng.randint(0, most_us) for _ in times], dtype=np.int64))

    def _at(self, times: np.ndarray) -> Feed:
        return replace(self, batch=self.batch.set_column(0, self.batch.schema.field(0), pa.array(times)))


@dataclass(frozen=True)
class Shape:
    """What the rows of a stream look like. interval_us: event time that one boundary interval covers; is_strange: whether
    its numbers include those at the edges of their types; grid_us: what most times are multiples of, 0 for any."""

    start_us: int
    interval_us: int
    keys: int
    rate: float
    null_chance: float
    disordered: bool
    is_strange: bool = False
    grid_us: int = 0


def make_feed(rng: Random, schema: Schema, shape: Shape, intervals: int) -> Feed:
    """The rows of one stream that lasts so many intervals."""
    times: list[int] = []
    counts = [0]
    mood, left = shape.rate, 0
    for interval in range(intervals):
        if left == 0:
            mood = rng.choice((shape.rate, shape.rate, shape.rate, 0.0, 6 * shape.rate))
            left = rng.randint(2, 8)
        left -= 1
        wanted = min(int(mood) + (rng.random() < mood % 1), _MOST_ROWS)
        start = shape.start_us + interval * shape.interval_us
        drawn = [start + int(rng.random() * shape.interval_us) for _ in range(wanted)]
        if shape.grid_us:
            drawn = [_snapped(rng, time, start, start + shape.interval_us, shape.grid_us) for time in drawn]
        if len(drawn) > 1 and rng.random() < 0.3:
            drawn[1] = drawn[0]
        times += drawn if shape.disordered else sorted(drawn)
        counts.append(len(times))
    columns = [pa.array(_values(rng, kind, len(times), shape), kind.arrow) for _, kind in schema.columns]
    batch = pa.RecordBatch.from_arrays([pa.array(times, pa.int64()), *columns], schema=schema.arrow)
    return Feed(batch, tuple(counts))


def _snapped(rng: Random, time: int, start: int, end: int, grid_us: int) -> int:
    """On the grid, or a microsecond beside it, if that is still in [start, end)."""
    moved = time // grid_us * grid_us + rng.choice((0, 0, 0, 0, -1, 1))
    return moved if start <= moved < end else time


_STRANGE_REALS = (float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1e308, -1e308, 5e-324)
_STRANGE_INTS = ((1 << 63) - 1, -(1 << 63), (1 << 62) + 3, -(1 << 62), (1 << 53) + 1, 0)
STRANGE_CHANCE = 0.15


def _values(rng: Random, kind: Type, count: int, shape: Shape) -> list[object]:
    values: list[object] = []
    for _ in range(count):
        if rng.random() < shape.null_chance:
            values.append(None)
        elif kind is Type.STRING:
            values.append(f"k{rng.randrange(shape.keys)}")
        elif kind is Type.BOOL:
            values.append(rng.random() < 0.5)
        elif kind is Type.TIMESTAMP:
            # Few, so that keys repeat.
            values.append(shape.start_us + rng.randrange(-2, 4) * 500_000)
        elif shape.is_strange and rng.random() < STRANGE_CHANCE:
            values.append(rng.choice(_STRANGE_INTS if kind is Type.INT else _STRANGE_REALS))
        elif kind is Type.INT:
            values.append(rng.randrange(-2, 9))
        else:
            # Magnitudes far apart, so that a sum in another order has other bits.
            values.append(rng.choice((0.1, 0.3, 1.7, 1e9, -1e-7)) * rng.randrange(1, 60))
    return values


class Feeder:
    """Logs the feeds, `stride` intervals at each tick; call `tick` every boundary interval of run time. lag_us: how far the
    boundaries are behind the rows, as where a stream's `disorder` is waited for. jumps: by stream, the interval after which its
    boundary is at least at a time. A source may be away for a while: its next life begins with START and logs at once what has
    come meanwhile."""


    def __init__(
        self,
        plan: Plan,
        feeds: Mapping[str, Feed],
        start_us: int,
        stride: int,
        lag_us: int = 0,
        jumps: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.plan = plan
        self.feeds = feeds
        self.start_us = start_us
        self.stride = stride
        self.lag_us = lag_us
        self.jumps = jumps or {}
        self.interval = 0
        self.next_ids: dict[LogId, int] = {}
        self.length = max(feed.intervals for feed in feeds.values())
        self.logged = dict.fromkeys(feeds, 0)
        self.incarnations = dict.fromkeys(feeds, 1)
        self.absences: Counter[str] = Counter()

    @property
    def is_done(self) -> bool:
        return min(self.logged.values()) >= self.length

    @property
    def reached_us(self) -> int:
        """The event time that the furthest boundary has reached."""
        return self._reached_us(max(self.logged.values()))

    def _reached_us(self, interval: int) -> int:
        return self.start_us + interval * self.plan.boundary_interval_us - self.lag_us

    def begin(self, append: Callable[[LogId, Frame], None]) -> None:
        for edge in self.plan.sources:
            for partition in range(edge.partitions):
                self.next_ids[LogId(edge.name, "", partition)] = 0
                append(LogId(edge.name, "", partition), Start(ORIGIN, 0))

    def leave(self, stream: str) -> None:
        """The stream's source dies."""
        self.absences[stream] += 1

    def come_back(self, stream: str, append: Callable[[LogId, Frame], None]) -> None:
        """Its next life begins, unless something else keeps it away."""
        self.absences[stream] -= 1
        if self.absences[stream]:
            return
        self.incarnations[stream] += 1
        for log in self._logs_of(stream):
            append(log, Start(self._origin(stream), 0, self.next_ids[log]))

    def write_late(self, stream: str, now: int, append: Callable[[LogId, Frame], None]) -> None:
        """A life that was thought dead writes what nobody may believe: rows under ids that are not its own any more, and a
        boundary far ahead."""
        dead = Origin("", self.incarnations[stream] - 1)
        feed = self.feeds[stream]
        for log in self._logs_of(stream):
            if feed.batch.num_rows:
                append(log, replace(self._data(log, feed.batch.slice(0, 1), now, stream), origin=dead))
                self.next_ids[log] -= 1
            append(log, Boundary(dead, 0, self.reached_us + 10_000_000, False, now, now))

    def _logs_of(self, stream: str) -> list[LogId]:
        edges = [edge for edge in self.plan.sources if edge.operator == stream]
        return [LogId(edge.name, "", partition) for edge in edges for partition in range(edge.partitions)]

    def _origin(self, stream: str) -> Origin:
        return Origin("", self.incarnations[stream])

    def tick(self, now: int, append: Callable[[LogId, Frame], None]) -> None:
        """Log the next rows and a boundary on every stream; after a stream's end the boundary alone, as a heartbeat."""
        self.interval += self.stride
        present = [edge for edge in self.plan.sources if not self.absences[edge.operator]]
        for edge in present:
            feed = self.feeds[edge.operator]
            first, last = (feed.counts[min(at, feed.intervals)] for at in (self.logged[edge.operator], self.interval))
            boundary = INFINITY if self.interval >= feed.intervals else self._reached(edge.operator)
            rows = split(feed.batch.slice(first, last - first), edge.key, edge.partitions)
            for partition, part in enumerate(rows):
                log = LogId(edge.name, "", partition)
                if part.num_rows:
                    append(log, self._data(log, part, now, edge.operator))
                append(log, Boundary(self._origin(edge.operator), 0, boundary, False, now, now))
        for edge in present:
            self.logged[edge.operator] = self.interval

    def _reached(self, stream: str) -> int:
        reached = self._reached_us(self.interval)
        after, least = self.jumps.get(stream, (self.interval, reached))
        return max(reached, least) if self.interval > after else reached

    def _data(self, log: LogId, rows: pa.RecordBatch, now: int, stream: str) -> Data:
        t_max = bucket_end(int(np.max(rows.column(0).to_numpy())), self.plan.bucket_us)
        frame = Data(self._origin(stream), 0, self.next_ids[log], rows, False, ((INFINITY, now),), t_max)
        self.next_ids[log] += rows.num_rows
        return frame
