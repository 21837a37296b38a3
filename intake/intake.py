"""The source without its clock and its connections: a user's records in; frames, boundaries and dead letters out.

Whether a row is late is decided once, here (R29): by the stream's boundary and by the floor of the row's partition, record by
record in the partition's order. So the decision does not depend on how the records are divided into batches. A late row
becomes a dead letter, or its time is raised to the floor if the stream asks for it (`late: clamp`).

Heartbeat records (header `boundary`) raise a partition's floor. With the policy `data`, each row raises it as well, to the
row's time minus `disorder`. The stream's boundary follows from the floors and from what could be read
(intake.stream_progress).

A row is rejected as too far ahead if its time is more than `ahead` beyond the clock and beyond the newest time accepted so
far: it becomes a dead letter and raises nothing. A replay is behind the clock, so any jump there is accepted. Accepted rows
that are beyond the clock raise the floor only to just before the clock. Otherwise one producer with a fast clock would make
the rows of all others late.

A partition that never had a row is ignored, since with `data` it would hold back the stream for ever. When its first row
arrives, the boundary stays: older rows are late. For producers that begin to write to a new partition and must not lose
rows, use the policy `clock` or `producer`, or a sufficient `disorder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.durations import format_duration
from boreal.model.frames import INFINITY, Anchor, Boundary, Data, Frame, LogId, Origin
from boreal.model.partition import split
from boreal.model.schema import TRACEPARENT, Type
from boreal.query.columns import HEADER, TOMBSTONE
from boreal.query.plan import Edge, Plan
from boreal.query.spec import Stream
from formats.arrow_records import MOST_RECORDS, ArrowRecords
from formats.columns import convert
from formats.csv_records import CsvRecords
from formats.dead_letter import DeadLetterRecord
from formats.record_parsing import (
    ParsedRows,
    RecordShape,
    ahead_reason,
    late_reason,
    merged,
    read_all,
    read_each,
    read_records,
    shown,
)
from formats.registry_records import SchemaBook
from intake.place import IntakeRules, PartitionPlace, SourcePlace
from intake.stream_progress import Question, StreamProgress
from intake.user_records import Headers, PartitionRecords, Records, distinct
from sunion.buckets import bucket_end
from sunion.tape import BEGINNING

BOUNDARY_HEADER = "boundary"
"""Header of a heartbeat record: an ISO 8601 time, or `end`."""
END = "end"
"""Value of BOUNDARY_HEADER: the partition gets no more rows."""
POSTED_HEADER = "boreal-posted"
"""Header of a record that was posted through a source: its number, which identifies repetitions."""
_LONGEST_NUMBER = 20

REPLAYED_HEADER = "boreal-replayed"
"""Header of a record that was refused, and is put back for one stream: `QUERY/STREAM/LETTER`. For any other stream that reads
the topic it is a copy of a record that it has seen."""
ANCHOR_EVERY = 256
"""The first boundary of an incarnation has an anchor, and then at least one in this many, so that a restart finds an anchor
near the end of an idle log."""

BEFORE_CLOCK_US = 100_000
"""A row beyond the clock raises the floor to this long before the clock (us): the time that rows of producers with correct
clocks need to arrive."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of some records. The dead letters must be durable before the first frame is logged: the announcement counts
    their records as processed."""

    frames: list[tuple[LogId, Frame]]
    """Frames to append, in order; the first frame of each log is the announcement."""
    letters: list[DeadLetterRecord]
    """The rejected records."""
    rows: int
    """Number of accepted rows."""
    clamped: int
    """Number of accepted rows that were late and got a later time."""
    ahead: int
    """Number of rows that were rejected as too far ahead."""
    coerced: int
    """Number of values that had another JSON type than their column, and were converted; late rows are included."""


RecordForm = CsvRecords | ArrowRecords
"""How the records of a stream are read that are neither JSON nor have schemas in a registry."""


def form_of(stream: Stream) -> RecordForm | None:
    """The form of a stream's records; None for a stream of another format."""
    return CsvRecords.of(stream) or ArrowRecords.of(stream)


def _nothing() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass
class _BatchContents:
    """The records of a batch, sorted by kind, and what they change."""

    values: list[bytes | None] = field(default_factory=list)
    """The values of the records to parse."""
    numbers: np.ndarray = field(default_factory=_nothing)
    """int64: the partition of each of them."""
    offsets: np.ndarray = field(default_factory=_nothing)
    """int64: the offset of each of them."""
    headers: dict[int, Headers] = field(default_factory=dict)
    """The headers of those that have some, by index."""
    keys: list[bytes | None] = field(default_factory=list)
    """The key of each of them; None also where keys were not asked for."""
    stamps_ms: list[int | None] = field(default_factory=list)
    """The same of Kafka's time stamps."""
    raises: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """(offset, event time) of the heartbeats, by partition."""
    floors: dict[int, int] = field(default_factory=dict)
    """Floor after the rows, by partition."""
    posted: dict[int, int] = field(default_factory=dict)
    """Number of the last posted record, by partition."""
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)
    """Why records are rejected, by (partition, offset)."""
    brought: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    """Partitions with accepted rows or heartbeats: (oldest, newest) event time of the rows that raised the floor, or None."""
    newest: int = BEGINNING
    """The newest accepted event time (us)."""
    clamped: int = 0
    """Number of rows that were clamped."""
    ahead: int = 0
    """Number of rows that were rejected as too far ahead."""
    coerced: int = 0
    """Number of values that were converted from another JSON type."""


@dataclass(frozen=True, slots=True)
class SourceStream:
    """A stream of a query, as its source takes it. Durations are in microseconds of run time."""

    name: str
    """The name of the stream."""
    spec: Stream
    """What the query says of it."""
    topic: str
    """The user's topic."""
    edges: tuple[Edge, ...]
    """The edges of the plan that the stream writes."""
    bucket_us: int
    """The length of a bucket, in microseconds of event time."""
    delay_threshold_us: int = 3_000_000
    """X."""
    boundary_interval_us: int = 50_000
    """How often a boundary is written."""
    query: str = ""
    """The query; "" outside of an installation."""

    @staticmethod
    def of(plan: Plan, name: str, spec: Stream, topic: str) -> SourceStream:
        """A stream of this plan."""
        edges = tuple(edge for edge in plan.sources if edge.operator == name)
        intervals = plan.bucket_us, plan.delay_threshold_us, plan.boundary_interval_us
        return SourceStream(name, spec, topic, edges, *intervals, plan.query)


class Intake:
    """One incarnation of a source, from `place` on. Pass each record once, in order."""

    def __init__(
        self,
        stream: SourceStream,
        origin: Origin,
        place: SourcePlace,
        schemas: SchemaBook | None = None,
        form: RecordForm | None = None,
    ) -> None:
        """place: modified from now on. schemas: by which the records were written; None if they have none. It must know those
        of all records that are taken, except of those that the registry does not know. form: how records are read that have no
        schemas; None if they are JSON."""
        self.place = place
        self.progress = StreamProgress(stream.spec, stream.delay_threshold_us, stream.boundary_interval_us)
        self.name = stream.name
        self._replays = replay_mark(stream.query, stream.name)
        self._stream = stream.spec
        self._topic = stream.topic
        self._shape = RecordShape.of(stream.spec)
        self.schemas = schemas
        self._form = form
        clamps, strict, fills = stream.spec.late == "clamp", self._shape.strict, self._shape.fills
        self._own_rules = IntakeRules(stream.spec.ahead, clamps, strict, fills)
        self._logs = [(edge, [LogId(edge.name, "", part) for part in range(edge.partitions)]) for edge in stream.edges]
        self._bucket_us = stream.bucket_us
        self._origin = origin
        self._reach = place.promise
        self._reached_at = 0
        self._unanchored = ANCHOR_EVERY

    @property
    def logs(self) -> list[LogId]:
        """All logs of the stream."""
        return [log for _, logs in self._logs for log in logs]

    @property
    def most_records(self) -> int | None:
        """How many records a batch may have; None: any number."""
        return MOST_RECORDS if isinstance(self._form, ArrowRecords) else None

    @property
    def boundary(self) -> int:
        """The event time of the next boundary."""
        return max(self._reach, self.place.promise)

    @property
    def _rules(self) -> IntakeRules:
        """The rules of the batch that is taken."""
        return self.place.rules or self._own_rules

    def expect(self, partition: int, offset: int) -> None:
        """A partition of the user's topic holds records from `offset` on, although none was taken yet. Until some are taken,
        its floor is unknown."""
        self.place.partitions.setdefault(partition, PartitionPlace(offset))

    def skip(self, partition: int, offset: int) -> None:
        """The records before an offset were deleted, and will not be taken."""
        known = self.place.partitions.get(partition, PartitionPlace())
        self.place.partitions[partition] = replace(known, next_offset=offset)

    def ask(self, now: int) -> Question:
        """A question for the ends of partitions, as of now."""
        return self.progress.ask(self.place.partitions, now)

    def answer(self, partition: int, question: Question, now: int) -> None:
        """All records that were written to a partition before the question have been taken."""
        self.progress.answer(partition, self.place.partitions.get(partition), question, now)
        self._look(now)

    def heartbeat(self, now: int, pause_us: int = 0) -> list[tuple[LogId, Frame]]:
        """The current boundary, for each log. pause_us: as `Boundary.pause`."""
        self.place.promise = self.boundary
        self._unanchored += 1
        anchor = self.place.announce(self._topic, {}) if self._unanchored >= ANCHOR_EVERY else None
        return self._boundaries(anchor, now, pause_us)

    def take(self, records: Records, now: int, unknown: frozenset[int] = frozenset(), waited_us: int = 0) -> Batch:
        """Turn records into one batch: for each log an announcement, then the rows ordered by time. unknown: the ids of
        schemas that the registry does not know. waited_us: for how long the records had waited here for others: X counts this
        time, too."""
        self.place.clock, self.place.rules, self.place.unknown = now, self._own_rules, unknown
        return self.take_again(records, now, waited_us)

    def take_again(self, records: Records, now: int, waited_us: int = 0) -> Batch:
        """As `take`, for the batch that the former incarnation announced; uses the clock and the rules of the announcement:
        some logs may hold its rows already."""
        # Sorted: a batch that is repeated after a crash gives the same rows in the same order.
        taken = {partition: found for partition, found in sorted(records.items()) if len(found)}
        for partition, found in taken.items():
            self.expect(partition, int(found.offsets[0]))
        self.place.promise = self.boundary
        until = {partition: found.end for partition, found in taken.items()}
        frames = self._boundaries(self.place.announce(self._topic, until), now)
        contents = self._sort(taken)
        rows = self._accept(contents)
        frames += self._log_rows(rows, now - waited_us)
        for partition, offset in until.items():
            known = self.place.partitions[partition]
            posted = contents.posted.get(partition, known.posted)
            self.place.partitions[partition] = PartitionPlace(offset, self._raised(partition, contents), posted)
            self.progress.take(partition, now)
        for partition, span in contents.brought.items():
            self.progress.bring(partition, now, *(span or ()))
        self.place.newest = max(self.place.newest, contents.newest)
        self._look(now)
        letters = self._letters(taken, contents.reasons)
        return Batch(frames, letters, len(rows.times), contents.clamped, contents.ahead, contents.coerced)

    def _look(self, now: int) -> None:
        """Compute how far the boundary may advance."""
        reach = self.progress.reach(self.place.partitions)
        if reach > self._reach:
            self._reach, self._reached_at = reach, now

    def _boundaries(self, anchor: Anchor | None, now: int, pause_us: int = 0) -> list[tuple[LogId, Frame]]:
        if anchor is not None:
            self._unanchored = 0
        ingest = self._reached_at or now
        boundary = Boundary(self._origin, 0, self.place.promise, False, ingest, now, anchor=anchor, pause=pause_us)
        return [(log, boundary) for log in self.logs]

    # Reading

    def _sort(self, records: Records) -> _BatchContents:
        contents = _BatchContents()
        numbers, offsets = [_nothing()], [_nothing()]
        for partition, found in records.items():
            # Only headers make a record anything else than a row, so records without headers are not looked at one by one.
            others = self._take_marked(contents, partition, found)
            places = np.delete(np.arange(len(found)), others)
            numbers.append(np.full(len(places), partition, dtype=np.int64))
            offsets.append(found.offsets[places])
            if found.headers:
                first = len(contents.values)
                kept = {place: first + index for index, place in enumerate(places.tolist())}
                contents.headers.update((kept[place], of) for place, of in found.headers.items() if place in kept)
            contents.values += [found.values[place] for place in places.tolist()] if others else found.values
            if self._shape.origins:
                nothing = [None] * len(found)
                keys = nothing if found.keys is None else found.keys
                stamps_ms = nothing if found.stamps_ms is None else found.stamps_ms.tolist()
                contents.keys += [keys[place] for place in places.tolist()]
                contents.stamps_ms += [stamps_ms[place] for place in places.tolist()]
        contents.numbers, contents.offsets = np.concatenate(numbers), np.concatenate(offsets)
        return contents

    def _take_marked(self, contents: _BatchContents, partition: int, found: PartitionRecords) -> list[int]:
        """Take the heartbeats of a partition, and the numbers of posted records. Returns the indices of the records that are
        not to be parsed: heartbeats, posted records that were taken before, and those that are put back for another stream."""
        posted = self.place.partitions[partition].posted
        others: list[int] = []
        for place, of in found.headers.items():
            headers = dict(of)
            if not (headers.get(REPLAYED_HEADER) or self._replays).startswith(self._replays):
                others.append(place)
                continue
            number = _number(headers.get(POSTED_HEADER))
            if number is not None:
                if number <= posted:
                    others.append(place)
                    continue
                posted = contents.posted[partition] = number
            if BOUNDARY_HEADER in headers:
                others.append(place)
                self._take_heartbeat(contents, partition, int(found.offsets[place]), headers[BOUNDARY_HEADER])
        return others

    def _take_heartbeat(self, contents: _BatchContents, partition: int, offset: int, header: bytes | None) -> None:
        text = (header or b"").decode("utf-8", "backslashreplace").strip()
        try:
            time = INFINITY if text == END else _time(text, self._stream.time_unit)
        except pa.ArrowInvalid:
            reason = f"header {BOUNDARY_HEADER}: {shown(text)} is neither a time nor {END!r}"
            contents.reasons[partition, offset] = reason
            return
        contents.raises.setdefault(partition, []).append((offset, time))
        contents.brought[partition] = None

    def _accept(self, contents: _BatchContents) -> ParsedRows:
        """The accepted rows; notes the reasons for the others, and what raises the floors."""
        rows = self._believe(self._read(contents), contents)
        spans = _Spans.of(rows)
        numbers, offsets = contents.numbers[spans.places], contents.offsets[spans.places]
        floors = np.full(len(spans.places), BEGINNING)
        for partition in distinct(numbers):
            own = numbers == partition
            floors[own] = self._floors(partition, spans.take(own), offsets[own], contents)
        late = spans.oldest < floors
        if self._rules.clamps:
            # After the end of the stream there is no later time.
            lowest = spans.of_rows(np.where(floors < INFINITY, floors, BEGINNING))
            raised = rows.times < lowest
            rows = replace(rows, times=np.where(raised, lowest, rows.times))
            late, contents.clamped = late & (floors >= INFINITY), int(raised.sum())
        for at in np.flatnonzero(late).tolist():
            contents.reasons[int(numbers[at]), int(offsets[at])] = self._why_late(int(spans.oldest[at]), int(floors[at]))
        return rows.take(np.flatnonzero(~spans.of_rows(late))) if late.any() else rows

    def _believe(self, rows: ParsedRows, contents: _BatchContents) -> ParsedRows:
        """Remove the rows that are too far ahead."""
        if not len(rows.times):
            return rows
        spans = _Spans.of(rows)
        believed = np.ones(len(spans.places), dtype=bool)
        numbers, offsets = contents.numbers[spans.places], contents.offsets[spans.places]
        for partition in distinct(numbers[spans.newest > self._believable(self.place.newest)]):
            own = np.flatnonzero(numbers == partition)
            believed[own] = self._are_believed(partition, spans.newest[own].tolist(), offsets[own].tolist(), contents)
        if not believed.all():
            kept = spans.of_rows(believed)
            contents.ahead = int((~kept).sum())
            rows = rows.take(np.flatnonzero(kept))
        contents.newest = int(rows.times.max(initial=BEGINNING))
        return rows

    def _believable(self, newest: int) -> int:
        """The latest time that is accepted if `newest` is the newest time before it."""
        return min(max(self.place.clock, newest) + self._rules.ahead, INFINITY)

    def _are_believed(self, partition: int, times: list[int], offsets: list[int], contents: _BatchContents) -> list[bool]:
        """Which records of a partition are not too far ahead; notes the reasons for the others. times: of their newest rows.
        Times up to the partition's floor or heartbeats are always accepted."""
        heartbeats = [(offset, time) for offset, time in contents.raises.get(partition, ()) if time < INFINITY]
        floor = self.place.partitions[partition].floor
        newest = max(self.place.newest, floor if floor < INFINITY else BEGINNING)
        believed = []
        for time, offset in zip(times, offsets, strict=True):
            while heartbeats and heartbeats[0][0] < offset:
                newest = max(newest, heartbeats.pop(0)[1])
            believed.append(time <= self._believable(newest))
            if believed[-1]:
                newest = max(newest, time)
            else:
                beyond_us = time - max(self.place.clock, newest)
                contents.reasons[partition, offset] = ahead_reason(beyond_us, "the clock and its stream", self._rules.ahead)
        return believed

    def _read(self, contents: _BatchContents) -> ParsedRows:
        rows = self._parse(contents)
        contents.coerced = rows.coerced
        for place, reason in rows.reasons.items():
            contents.reasons[int(contents.numbers[place]), int(contents.offsets[place])] = reason
        return self._with_traces(rows, contents) if self._shape.schema.is_traced else rows

    def _parse(self, contents: _BatchContents) -> ParsedRows:
        shape = replace(self._shape, strict=self._rules.strict, fills=self._rules.fills)
        read = self._form.read if self._form is not None else read_records
        if self.schemas is not None:
            read = partial(self.schemas.read, unknown=self.place.unknown)
        if not shape.origins:
            return read(shape, contents.values)
        beside, unreadable = _columns_beside(shape.origins, contents)
        empty = [place for place, value in enumerate(contents.values) if value is None]
        if not empty or TOMBSTONE not in shape.origins.values():
            return read(shape, contents.values, beside).without(unreadable)
        others = np.delete(np.arange(len(contents.values)), empty)
        parts = [(np.array(empty), _tombstones(shape, empty, contents, beside))]
        if len(others):
            values = [contents.values[place] for place in others.tolist()]
            near = {name: column.take(pa.array(others)) for name, column in beside.items()}
            parts.append((others, read(shape, values, near)))
        return merged(shape, parts, {}).without(unreadable)

    def _with_traces(self, rows: ParsedRows, contents: _BatchContents) -> ParsedRows:
        """The trace context of a record's header, where its value has none."""
        at = self._shape.schema.names.index(TRACEPARENT)
        headers = pa.array([_trace_of(contents.headers.get(place, ())) for place in rows.places.tolist()], pa.string())
        values = [*rows.values[:at], pc.coalesce(rows.values[at], headers), *rows.values[at + 1 :]]
        return replace(rows, values=values)

    def _floors(self, partition: int, spans: _Spans, offsets: np.ndarray, contents: _BatchContents) -> np.ndarray:
        """For each record of a partition, the floor before its offset: below it a row is late."""
        at, to = np.array(contents.raises.get(partition, ()), dtype=np.int64).reshape(-1, 2).T
        known = max(self.place.partitions[partition].floor, self.place.promise)
        if self._stream.boundary == "data":
            raises = self._raises(spans.newest)
            if spans.are_wide and not self._rules.clamps:
                raises = _raises_of_taken(known, (at, to), spans, offsets, raises)
            # A late row raises nothing, since the floor is above it. So all rows may be included.
            at, to = np.concatenate([at, offsets]), np.concatenate([to, raises])
            order = np.argsort(at, kind="stable")
            at, to = at[order], to[order]
        floors = np.maximum.accumulate(np.concatenate([[known], to]))
        contents.floors[partition] = int(floors[-1])
        standing: np.ndarray = floors[np.searchsorted(at, offsets)]
        taken = np.ones(len(standing), dtype=bool) if self._rules.clamps else spans.oldest >= standing
        self._note_brought(partition, spans.newest[taken], standing[taken], contents)
        return standing

    def _raises(self, times: np.ndarray) -> np.ndarray:
        """How far each row raises its partition's floor."""
        clock, ahead = self.place.clock, self._rules.ahead
        raises: np.ndarray = times - self._stream.disorder
        if (rows_not_held := times > clock).any():
            # A row far beyond the clock is accepted because its stream is there already, so the clock is behind. It still
            # has to move the stream on.
            raises[rows_not_held] = np.maximum(clock - BEFORE_CLOCK_US, times[rows_not_held] - ahead) - self._stream.disorder
        return raises

    def _note_brought(self, partition: int, times: np.ndarray, standing: np.ndarray, contents: _BatchContents) -> None:
        """Note that a partition has rows in time, and the event times of those that raise its floor."""
        if not (times >= standing).any():
            return
        leading = times[times - self._stream.disorder > standing]
        contents.brought[partition] = (int(leading.min()), int(leading.max())) if len(leading) else None

    def _raised(self, partition: int, contents: _BatchContents) -> int:
        """A partition's floor after the batch."""
        heartbeats = (time for _, time in contents.raises.get(partition, ()))
        return max(self.place.partitions[partition].floor, contents.floors.get(partition, BEGINNING), *heartbeats, BEGINNING)

    def _why_late(self, time: int, floor: int) -> str:
        if floor >= INFINITY:
            return "late: the stream has ended"
        if self._stream.boundary == "producer":
            return f"late by {format_duration(floor - time)}: a boundary had passed it"
        return late_reason(floor + self._stream.disorder - time, self._stream.disorder)

    def _letters(self, records: Records, reasons: Mapping[tuple[int, int], str]) -> list[DeadLetterRecord]:
        return [
            DeadLetterRecord.of(self.name, self._topic, partition, offset, reason, records[partition].value_at(offset))
            for (partition, offset), reason in sorted(reasons.items())
        ]

    # Writing

    def _log_rows(self, rows: ParsedRows, ingest: int) -> list[tuple[LogId, Frame]]:
        if not len(rows.times):
            return []
        schema = self._shape.schema.arrow
        batch = pa.RecordBatch.from_arrays([pa.array(rows.times, pa.int64()), *rows.values], schema=schema)
        if (rows.times[1:] < rows.times[:-1]).any():
            batch = batch.take(pa.array(np.argsort(rows.times, kind="stable")))
        frames: list[tuple[LogId, Frame]] = []
        for edge, logs in self._logs:
            for log, part in zip(logs, split(batch, edge.key, edge.partitions), strict=True):
                if part.num_rows:
                    first_id = self.place.next_ids[log.key]
                    self.place.next_ids[log.key] += part.num_rows
                    t_max = bucket_end(part.column(0)[-1].as_py(), self._bucket_us)
                    frames.append((log, Data(self._origin, 0, first_id, part, False, ((INFINITY, ingest),), t_max)))
        return frames


@dataclass(frozen=True, slots=True)
class _Spans:
    """The records that rows come from, with the event times of each. A record is taken or refused as a whole."""

    places: np.ndarray
    """int64: the index of each record; rising."""
    oldest: np.ndarray
    """int64: the time of its oldest row."""
    newest: np.ndarray
    """int64: that of its newest row."""
    _sizes: np.ndarray | None
    """int64: how many rows it has; None if each has one."""

    @staticmethod
    def of(rows: ParsedRows) -> _Spans:
        """Those of all rows."""
        begins = np.flatnonzero(np.diff(rows.places, prepend=-1))
        if len(begins) == len(rows.places):
            return _Spans(rows.places, rows.times, rows.times, None)
        oldest, newest = np.minimum.reduceat(rows.times, begins), np.maximum.reduceat(rows.times, begins)
        return _Spans(rows.places[begins], oldest, newest, np.diff(begins, append=len(rows.places)))

    @property
    def are_wide(self) -> bool:
        """Whether a record has rows of several times."""
        return self._sizes is not None and bool((self.oldest < self.newest).any())

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """A value of each record for each of its rows."""
        return values if self._sizes is None else np.repeat(values, self._sizes)

    def take(self, kept: np.ndarray) -> _Spans:
        """Only the records with these indices, or of this mask."""
        sizes = None if self._sizes is None else self._sizes[kept]
        return _Spans(self.places[kept], self.oldest[kept], self.newest[kept], sizes)


def _raises_of_taken(
    floor: int, heartbeats: tuple[np.ndarray, np.ndarray], spans: _Spans, offsets: np.ndarray, raises: np.ndarray
) -> np.ndarray:
    """`raises`, where a record that is refused because of its oldest row raises nothing: which is refused depends on those
    before it. heartbeats: their offsets, rising, and times."""
    pending = list(zip(*(column.tolist() for column in heartbeats), strict=True))
    found = raises.copy()
    for number, (offset, oldest) in enumerate(zip(offsets.tolist(), spans.oldest.tolist(), strict=True)):
        while pending and pending[0][0] < offset:
            floor = max(floor, pending.pop(0)[1])
        if oldest < floor:
            found[number] = BEGINNING
        floor = max(floor, int(found[number]))
    return found


def rows_not_held(frames: Iterable[tuple[LogId, Frame]], written: Mapping[str, int]) -> list[tuple[LogId, Frame]]:
    """The DATA frames of a repeated batch that the logs do not hold yet. written: the next id of each log. A log holds all rows
    of a batch or none, since a batch has one DATA frame per log."""
    return [(log, frame) for log, frame in frames if isinstance(frame, Data) and frame.first_id >= written[log.key]]


def _columns_beside(origins: Mapping[str, str], contents: _BatchContents) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """The columns that are no part of the records' values, and why a record has none, by its index."""
    columns: dict[str, pa.Array] = {}
    unreadable: dict[int, str] = {}
    for name, origin in origins.items():
        match origin:
            case "timestamp":
                columns[name] = pa.array(contents.stamps_ms, pa.timestamp("ms"))
            case "partition":
                columns[name] = pa.array(contents.numbers)
            case "offset":
                columns[name] = pa.array(contents.offsets)
            case "tombstone":
                columns[name] = pa.array([value is None for value in contents.values], pa.bool_())
            case _:
                values = contents.keys
                if origin != "key":
                    title = origin.removeprefix(HEADER)
                    values = [dict(contents.headers.get(place, ())).get(title) for place in range(len(contents.values))]
                columns[name] = pa.array(_texts(name, values, unreadable), pa.string())
    return columns, unreadable


def _tombstones(
    shape: RecordShape, empty: Sequence[int], contents: _BatchContents, beside: Mapping[str, pa.Array]
) -> ParsedRows:
    """The rows of the records without values, which are at these places."""
    columns: dict[str, pa.Array] = {name: pa.nulls(len(empty), pa.string()) for name in shape.places}
    if shape.time in columns:
        columns[shape.time] = pa.array([contents.stamps_ms[place] for place in empty], pa.timestamp("ms"))
    columns |= {name: column.take(pa.array(empty)) for name, column in beside.items()}
    return read_all(shape, columns) or read_each(shape, columns)


def _texts(name: str, values: Sequence[bytes | None], unreadable: dict[int, str]) -> list[str | None]:
    texts: list[str | None] = []
    for place, value in enumerate(values):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append(None)
            unreadable.setdefault(place, f"column {name}: {shown(value)} is not UTF-8")
    return texts


def replay_mark(query: str, stream: str, letter: int | str = "") -> bytes:
    """The value of REPLAYED_HEADER."""
    return f"{query}/{stream}/{letter}".encode()


def _number(header: bytes | None) -> int | None:
    # A header that is not a number was not written by a source, so the record is no repetition.
    return int(header) if header is not None and header.isdigit() and len(header) <= _LONGEST_NUMBER else None


def _time(text: str, time_unit: str) -> int:
    """A time in any form that the time column may have, in us. pa.ArrowInvalid if it is not a time."""
    time = convert(pa.array([text], pa.string()), Type.TIMESTAMP, time_unit).cast(pa.int64())[0].as_py()
    if time is None:
        raise pa.ArrowInvalid("no time")
    return int(time)


def _trace_of(headers: Headers) -> str | None:
    """The trace context in a record's headers; None if there is none, or it is no text."""
    found = dict(headers).get(TRACEPARENT)
    try:
        return found.decode() if found else None
    except UnicodeDecodeError:
        return None
