"""The rows that the sources of a simulated run log: event time runs as fast as run time, with bursts, gaps, nulls, disorder.

Rows of one boundary interval may come in any order of time, as from a source with several producers; their order, and so
their ids, does not depend on the run's steps. A feed is divided into intervals; a run logs `stride` of them at a time, so
that a reference run sees the same source logs in other pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Context, Decimal
from random import Random

import numpy as np
import pyarrow as pa

from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin, Start
from boreal.model.partition import partition_of
from boreal.model.schema import Schema, Type
from boreal.query.plan import Edge, Plan
from intake.calm import CalmPace
from sunion.buckets import bucket_end

ORIGIN = Origin("", 1)
EPOCH_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z, near which event time begins."""

EPOCH_DAY = date(2026, 1, 1)
"""The date of EPOCH_US."""

_MOST_ROWS = 24


@dataclass(frozen=True)
class StreamFeed:
    """The rows of one stream."""

    batch: pa.RecordBatch
    """All rows, in the order of the log."""
    counts: tuple[int, ...]
    """counts[n]: how many rows the first n intervals hold."""

    @property
    def intervals(self) -> int:
        """The number of intervals after which the stream has ended."""
        return len(self.counts) - 1

    def with_ahead(self, row: int, ahead_us: int) -> StreamFeed:
        """The same, with one row's time later by `ahead_us`."""
        times = self.batch.column(0).to_numpy().copy()
        times[row] += ahead_us
        return self._at(times)

    def lasting(self, intervals: int) -> StreamFeed:
        """The same, but it ends after `intervals` intervals."""
        more = max(intervals - self.intervals, 0)
        return replace(self, counts=(*self.counts[: intervals + 1], *(self.counts[-1:] * more)))

    def without(self, since: int, until: int) -> StreamFeed:
        """The same without the rows at times since <= time < until."""
        times = self.batch.column(0).to_numpy()
        keep = (times < since) | (times >= until)
        before = np.concatenate([[0], np.cumsum(keep)])
        return StreamFeed(self.batch.filter(pa.array(keep)), tuple(int(before[count]) for count in self.counts))

    def with_disorder(self, rng: Random, most_us: int) -> StreamFeed:
        """The same, with each row's time earlier by up to `most_us`."""
        times = self.batch.column(0).to_numpy()
        return self._at(times - np.array([rng.randint(0, most_us) for _ in times], dtype=np.int64))

    def _at(self, times: np.ndarray) -> StreamFeed:
        return replace(self, batch=self.batch.set_column(0, self.batch.schema.field(0), pa.array(times)))


@dataclass(frozen=True)
class FeedShape:
    """Parameters of the rows of a stream."""

    start_us: int
    """The event time at which it begins."""
    interval_us: int
    """The event time that one boundary interval covers."""
    keys: int
    """The number of different keys."""
    rate: float
    """The average number of rows of an interval."""
    null_chance: float
    """The share of values that are null."""
    disordered: bool
    """Whether the rows of an interval are out of order."""
    is_strange: bool = False
    """Whether numbers include the limits of their types."""
    grid_us: int = 0
    """Most times are multiples of this; 0: any times."""


def make_feed(rng: Random, schema: Schema, shape: FeedShape, intervals: int) -> StreamFeed:
    """Draw the rows of one stream that lasts `intervals` intervals."""
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
    return StreamFeed(batch, tuple(counts))


def _snapped(rng: Random, time: int, start: int, end: int, grid_us: int) -> int:
    """The time on the grid, or a microsecond beside it, if that is in [start, end)."""
    moved = time // grid_us * grid_us + rng.choice((0, 0, 0, 0, -1, 1))
    return moved if start <= moved < end else time


_STRANGE_REALS = (float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1e308, -1e308, 5e-324)
_STRANGE_INTS = ((1 << 63) - 1, -(1 << 63), (1 << 62) + 3, -(1 << 62), (1 << 53) + 1, 0)
_STRANGE_DATES = (date.min, date.max, date(2024, 2, 29))
STRANGE_CHANCE = 0.15


def _values(rng: Random, kind: Type, count: int, shape: FeedShape) -> list[object]:
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
        elif kind is Type.DATE:
            is_strange = shape.is_strange and rng.random() < STRANGE_CHANCE
            values.append(rng.choice(_STRANGE_DATES) if is_strange else EPOCH_DAY + timedelta(rng.randrange(-1, 3)))
        elif kind.is_decimal:
            most = 10**kind.digits - 1
            is_strange = shape.is_strange and rng.random() < STRANGE_CHANCE
            # Few, so that keys repeat.
            unscaled = rng.choice((most, -most, most // 2, 0)) if is_strange else rng.choice((5, -5, 119)) * rng.randrange(7)
            values.append(Decimal(unscaled).scaleb(-kind.after, Context(prec=kind.digits)))
        elif shape.is_strange and rng.random() < STRANGE_CHANCE:
            values.append(rng.choice(_STRANGE_INTS if kind is Type.INT else _STRANGE_REALS))
        elif kind is Type.INT:
            values.append(rng.randrange(-2, 9))
        else:
            # Very different magnitudes, so that a sum in another order has other bits.
            values.append(rng.choice((0.1, 0.3, 1.7, 1e9, -1e-7)) * rng.randrange(1, 60))
    return values


@dataclass(frozen=True)
class Loaded:
    """A span in which the processes of all sources are loaded: rows gather after each batch."""

    since: int
    """The interval of the feeds at which it begins."""
    until: int
    """The interval at which it ends."""
    degree: int
    """How loaded they are."""

    def rest_us(self, plan: Plan) -> int:
        """For how long rows gather."""
        return plan.rest_us(self.degree, plan.delay_threshold_us)


class SourceFeeder:
    """Logs the feeds, `stride` intervals at each tick; call `tick` every boundary interval of run time.

    lag_us: how far the boundaries are behind the rows, as with a stream's `disorder`. jumps: by stream, (an interval, a time):
    after this interval the boundary is at least at the time. stalls: by stream, two intervals, between which its boundary
    stands still, as while its topic is read and has nothing. loaded: when rows gather. A source may be away for a while: its
    next incarnation begins with START and logs at once the rows of the meantime. A source without rows is calm after a while
    if the plan has calm sources (R24), until a reader wakes it.
    """

    def __init__(
        self,
        plan: Plan,
        feeds: Mapping[str, StreamFeed],
        start_us: int,
        stride: int,
        lag_us: int = 0,
        jumps: Mapping[str, tuple[int, int]] | None = None,
        stalls: Mapping[str, tuple[int, int]] | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        self.plan = plan
        self.feeds = feeds
        self.start_us = start_us
        self.stride = stride
        self.lag_us = lag_us
        self.jumps = jumps or {}
        self.stalls = stalls or {}
        self.loaded = loaded
        self.interval = 0
        self.next_ids: dict[LogId, int] = {}
        self.length = max(feed.intervals for feed in feeds.values())
        split = [edge for edge in plan.sources if edge.partitions > 1]
        self._homes = {edge.name: partition_of(feeds[edge.operator].batch, edge.key, edge.partitions) for edge in split}
        self.logged = dict.fromkeys(feeds, 0)
        self.incarnations = dict.fromkeys(feeds, 1)
        self.absences: Counter[str] = Counter()
        self._paces = {stream: CalmPace(0) for stream in feeds}
        self._written_at = dict.fromkeys(feeds, 0)
        self._rests_until = dict.fromkeys(feeds, 0)
        self._gathered_us = dict.fromkeys(feeds, 0)

    @property
    def is_done(self) -> bool:
        return min(self.logged.values()) >= self.length

    @property
    def reached_us(self) -> int:
        """The highest event time that a boundary has reached."""
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
        """The source's next incarnation begins, unless another fault keeps it away."""
        self.absences[stream] -= 1
        if self.absences[stream]:
            return
        self.incarnations[stream] += 1
        for log in self._logs_of(stream):
            append(log, Start(self._origin(stream), 0, self.next_ids[log]))

    def wake(self, stream: str, now: int) -> None:
        """A reader asks the stream's source for boundaries at the usual pace."""
        self._paces[stream].note_busy(now)

    def write_late(self, stream: str, now: int, append: Callable[[LogId, Frame], None]) -> None:
        """An incarnation that was believed dead writes frames that readers must ignore: rows with ids that its successor uses,
        and a boundary far ahead."""
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
        """Log the next rows and a boundary on every stream; after a stream's end only the boundary, as a heartbeat."""
        self.interval += self.stride
        for stream in self.feeds:
            if self.interval < self._rests_until[stream]:
                self._gathered_us[stream] += self.plan.boundary_interval_us
        present = [edge for edge in self.plan.sources if self._writes(edge.operator)]
        pauses = {stream: self._pause_us(stream, now) for stream in dict.fromkeys(edge.operator for edge in present)}
        for edge in present:
            pause_us = pauses[edge.operator]
            if pause_us is None:
                continue
            feed = self.feeds[edge.operator]
            boundary = INFINITY if self.interval >= feed.intervals else self._reached(edge.operator)
            for partition, part in enumerate(self._parts_of(edge, *self._due(edge.operator))):
                log = LogId(edge.name, "", partition)
                if part.num_rows:
                    append(log, self._data(log, part, now - self._gathered_us[edge.operator], edge.operator))
                append(log, Boundary(self._origin(edge.operator), 0, boundary, False, now, now, pause=pause_us))
        for edge in present:
            self.logged[edge.operator], self._gathered_us[edge.operator] = self.interval, 0

    def _writes(self, stream: str) -> bool:
        """Whether the source of a stream is there, and gathers no rows."""
        return not self.absences[stream] and self.interval >= self._rests_until[stream]

    def _rest_us(self, stream: str) -> int:
        """For how long rows of a stream gather from now on."""
        loaded = self.loaded
        if loaded is None or not loaded.since <= self.interval < loaded.until:
            return 0
        rest_us = loaded.rest_us(self.plan)
        span = rest_us // self.plan.boundary_interval_us * self.stride
        self._rests_until[stream] = (self.interval // span + 1) * span  # all write at one moment
        return rest_us

    def _pause_us(self, stream: str, now: int) -> int | None:
        """What a boundary of a stream says now of how much longer than usual it may be silent; None if it is silent now."""
        pace, (first, last) = self._paces[stream], self._due(stream)
        rest_us = self._rest_us(stream)
        has_ended = self.logged[stream] < self.feeds[stream].intervals <= self.interval
        if last > first or has_ended:
            pace.note_busy(now)
        if pace.pause_us and now - self._written_at[stream] < self.plan.sign_of_life_us + pace.pause_us:
            return None
        self._written_at[stream] = now
        return max(pace.say(now, self.plan.calm_pause_us, self.plan.calm_interval_us), rest_us)

    def _due(self, stream: str) -> tuple[int, int]:
        """From which row of a stream to which one is to be logged now."""
        feed = self.feeds[stream]
        return feed.counts[min(self.logged[stream], feed.intervals)], feed.counts[min(self.interval, feed.intervals)]

    def _parts_of(self, edge: Edge, first: int, last: int) -> list[pa.RecordBatch]:
        """The rows of a stream from one place to another, by partition."""
        rows = self.feeds[edge.operator].batch.slice(first, last - first)
        if edge.partitions == 1:
            return [rows]
        homes = self._homes[edge.name][first:last]
        places = [np.flatnonzero(homes == partition) for partition in range(edge.partitions)]
        return [rows.take(pa.array(chosen)) if len(chosen) else rows.slice(0, 0) for chosen in places]

    def _reached(self, stream: str) -> int:
        since, until = self.stalls.get(stream, (0, 0))
        reached = self._reached_us(min(self.interval, since) if self.interval < until else self.interval)
        after, least = self.jumps.get(stream, (self.interval, reached))
        return max(reached, least) if self.interval > after else reached

    def _data(self, log: LogId, rows: pa.RecordBatch, now: int, stream: str) -> Data:
        t_max = bucket_end(int(rows.column(0).to_numpy().max()), self.plan.bucket_us)
        frame = Data(self._origin(stream), 0, self.next_ids[log], rows, False, ((INFINITY, now),), t_max)
        self.next_ids[log] += rows.num_rows
        return frame
