"""The source without its clock and its connections: a user's records in; frames, boundaries and dead letters out.

Lateness is judged once, here (R29), by what the stream has promised and by the floor of the record's partition, record by
record in the order of that partition; so the verdict on a record does not depend on how the records are cut into batches.
A late row is a dead letter; or, where the stream asks for it (`late: clamp`), its time is raised to the floor that it missed.

A partition's floor is raised by heartbeat records (header `boundary`), and under the policy `data` by each row, to its
time less `disorder`. What the stream may promise follows from the floors, and from what could be read
(intake.stream_progress).

A row is not believed where its time is more than `ahead` beyond the clock, and beyond the newest that was believed before:
it is a dead letter, and raises nothing. A replay is behind the clock, so there any jump is believed. Rows that are beyond the
clock by less raise the floor to just before the clock: else one producer with a fast clock would make the others' rows late.

A partition that never had a row is left out, since under `data` it would hold back the stream for ever. When its first
one comes, the promise stands: rows older than that are late. Producers that begin to write to a new partition and
want nothing lost use the policies `clock` or `producer`, or a sufficient `disorder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from boreal.model.durations import format_duration
from boreal.model.frames import INFINITY, Anchor, Boundary, Data, Frame, LogId, Origin
from boreal.model.partition import split
from boreal.model.schema import Type
from boreal.query.plan import Edge
from boreal.query.spec import Stream
from formats.columns import convert
from formats.dead_letter import DeadLetterRecord
from formats.record_parsing import ParsedRows, RecordShape, ahead_reason, late_reason, read_records, shown
from intake.place import PartitionPlace, SourcePlace
from intake.stream_progress import Question, StreamProgress
from sunion.buckets import bucket_end
from sunion.tape import BEGINNING

BOUNDARY_HEADER = "boundary"
"""On a heartbeat record: an ISO 8601 time, or `end`."""
END = "end"
POSTED_HEADER = "boreal-posted"
"""On a record that came by way of a source: its number, by which a repetition is known."""
_LONGEST_NUMBER = 20

LONGEST_TEXT = 100_000
"""Of a dead letter's record, in characters: what is longer is cut off, since Kafka would refuse the letter."""
ANCHOR_EVERY = 256
"""The first boundary of a life carries an anchor, and at least one of every so many, so that a restart finds one near the
end of an idle log."""

BEFORE_CLOCK_US = 100_000
"""A row beyond the clock raises the floor to so long before the clock: producers whose clocks are right need that to get
their rows here."""


class UserRecord(Protocol):
    """A record of the user's topic, as Kafka's consumer gives it."""

    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """A header may be there without a value."""
        ...


Records = Mapping[int, Sequence[UserRecord]]
"""By partition of the user's topic, in the order of their offsets."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What some records come to. The letters have to be safe before the first of the frames is logged: the announcement
    counts their records as done. Frames of one log are in order; each log has its announcement first. clamped: how many of
    the rows came late. ahead: how many were not believed."""

    frames: list[tuple[LogId, Frame]]
    letters: list[DeadLetterRecord]
    rows: int
    clamped: int
    ahead: int


@dataclass
class _BatchContents:
    """The records of a batch, told apart. data: to be read, with their partitions. raises: what heartbeats raise their
    partition to, by (offset, time). floors: how far the rows raise it. posted: the last number in each partition. reasons:
    why records are refused, by partition and offset. brought: the partitions with accepted rows or heartbeats, and of the rows
    that raised the floor the oldest and the newest time. newest: that was believed."""

    data: list[tuple[int, UserRecord]] = field(default_factory=list)
    raises: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    posted: dict[int, int] = field(default_factory=dict)
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)
    brought: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    newest: int = BEGINNING
    clamped: int = 0
    ahead: int = 0


class Intake:
    """One life of a source, from `place` on. Records are given in order, each once."""

    def __init__(
        self,
        name: str,
        stream: Stream,
        topic: str,
        edges: Sequence[Edge],
        bucket_us: int,
        origin: Origin,
        place: SourcePlace,
        *,
        delay_threshold_us: int = 3_000_000,
        boundary_interval_us: int = 50_000,
    ) -> None:
        """edges: those that the stream makes; place is ours from now on."""
        self.place = place
        self.progress = StreamProgress(stream, delay_threshold_us, boundary_interval_us)
        self._name = name
        self._stream = stream
        self._topic = topic
        self._shape = RecordShape(stream.time, stream.time_unit, stream.attributes)
        self._logs = [(edge, [LogId(edge.name, "", part) for part in range(edge.partitions)]) for edge in edges]
        self._bucket_us = bucket_us
        self._origin = origin
        self._reach = place.promise
        self._reached_at = 0
        self._unanchored = ANCHOR_EVERY

    @property
    def logs(self) -> list[LogId]:
        """All logs of the stream."""
        return [log for _, logs in self._logs for log in logs]

    @property
    def boundary(self) -> int:
        """What the next boundary will promise."""
        return max(self._reach, self.place.promise)

    def expect(self, partition: int, offset: int) -> None:
        """A partition of the user's topic holds records, from `offset` on, although none was taken yet: until some were,
        nothing is known of how far it is."""
        self.place.partitions.setdefault(partition, PartitionPlace(offset))

    def skip(self, partition: int, offset: int) -> None:
        """The records before an offset are gone, and will not be taken."""
        known = self.place.partitions.get(partition, PartitionPlace())
        self.place.partitions[partition] = replace(known, next_offset=offset)

    def ask(self, now: int) -> Question:
        """What will be meant by an answer to where partitions end now."""
        return self.progress.ask(self.place.partitions, now)

    def answer(self, partition: int, question: Question, now: int) -> None:
        """All records that were written to a partition before the question was asked have been taken."""
        self.progress.answer(partition, self.place.partitions.get(partition), question, now)
        self._look(now)

    def heartbeat(self, now: int) -> list[tuple[LogId, Frame]]:
        """The boundary as it stands, for each log."""
        self.place.promise = self.boundary
        self._unanchored += 1
        anchor = self.place.announce(self._topic, {}) if self._unanchored >= ANCHOR_EVERY else None
        return self._boundaries(anchor, now)

    def take(self, records: Records, now: int) -> Batch:
        """Turn records into one batch: an announcement, then the rows, ordered by time, for each log."""
        self.place.clock = now
        return self.take_again(records, now)

    def take_again(self, records: Records, now: int) -> Batch:
        """The same for the batch that a former life announced, judged by the clock of then."""
        # Sorted: a batch that is done again after a crash comes to the same rows in the same order.
        taken = {partition: found for partition, found in sorted(records.items()) if found}
        for partition, found in taken.items():
            self.expect(partition, found[0].offset)
        self.place.promise = self.boundary
        until = {partition: found[-1].offset + 1 for partition, found in taken.items()}
        frames = self._boundaries(self.place.announce(self._topic, until), now)
        told = self._tell_apart(taken)
        rows = self._judge(told)
        frames += self._log_rows(rows, now)
        for partition, offset in until.items():
            known = self.place.partitions[partition]
            posted = told.posted.get(partition, known.posted)
            self.place.partitions[partition] = PartitionPlace(offset, self._raised(partition, told), posted)
            self.progress.take(partition, now)
        for partition, span in told.brought.items():
            self.progress.bring(partition, now, *(span or ()))
        self.place.newest = max(self.place.newest, told.newest)
        self._look(now)
        return Batch(frames, self._letters(taken, told.reasons), len(rows.times), told.clamped, told.ahead)

    def _look(self, now: int) -> None:
        """See how far the stream may go."""
        reach = self.progress.reach(self.place.partitions)
        if reach > self._reach:
            self._reach, self._reached_at = reach, now

    def _boundaries(self, anchor: Anchor | None, now: int) -> list[tuple[LogId, Frame]]:
        if anchor is not None:
            self._unanchored = 0
        boundary = Boundary(self._origin, 0, self.place.promise, False, self._reached_at or now, now, anchor=anchor)
        return [(log, boundary) for log in self.logs]

    # Reading

    def _tell_apart(self, records: Records) -> _BatchContents:
        told = _BatchContents()
        for partition, found in records.items():
            posted = self.place.partitions[partition].posted
            for record in found:
                if record.headers:
                    headers = dict(record.headers)
                    number = _number(headers.get(POSTED_HEADER))
                    if number is not None:
                        if number <= posted:
                            continue
                        posted = told.posted[partition] = number
                    if BOUNDARY_HEADER in headers:
                        self._take_heartbeat(told, partition, record, headers[BOUNDARY_HEADER])
                        continue
                told.data.append((partition, record))
        return told

    def _take_heartbeat(self, told: _BatchContents, partition: int, record: UserRecord, header: bytes | None) -> None:
        text = (header or b"").decode("utf-8", "backslashreplace").strip()
        try:
            time = INFINITY if text == END else _time(text, self._stream.time_unit)
        except pa.ArrowInvalid:
            told.reasons[partition, record.offset] = f"header {BOUNDARY_HEADER}: {shown(text)} is neither a time nor {END!r}"
            return
        told.raises.setdefault(partition, []).append((record.offset, time))
        told.brought[partition] = None

    def _judge(self, told: _BatchContents) -> ParsedRows:
        """The rows that are whole, believed and in time; notes the reasons of the others, and what raises the floors."""
        values = [record.value for _, record in told.data]
        rows = self._read(values, told)
        numbers = np.fromiter((partition for partition, _ in told.data), np.int64, len(values))
        offsets = np.fromiter((record.offset for _, record in told.data), np.int64, len(values))
        rows = self._believe(rows, numbers, offsets, told)
        numbers, offsets = numbers[rows.places], offsets[rows.places]
        floors = np.full(len(rows.times), BEGINNING)
        for partition in np.unique(numbers).tolist():
            own = numbers == partition
            floors[own] = self._floors(partition, rows.times[own], offsets[own], told)
        late = rows.times < floors
        if self._stream.late == "clamp":
            # After the end there is no time left to be put at.
            raised = late & (floors < INFINITY)
            rows = replace(rows, times=np.where(raised, floors, rows.times))
            late, told.clamped = late & ~raised, int(raised.sum())
        for row in np.flatnonzero(late).tolist():
            told.reasons[int(numbers[row]), int(offsets[row])] = self._why_late(int(rows.times[row]), int(floors[row]))
        return rows.take(np.flatnonzero(~late)) if late.any() else rows

    def _believe(self, rows: ParsedRows, numbers: np.ndarray, offsets: np.ndarray, told: _BatchContents) -> ParsedRows:
        """Without the rows that are too far ahead. numbers, offsets: of all records that `rows` was read from."""
        if not len(rows.times):
            return rows
        believed = np.ones(len(rows.times), dtype=bool)
        numbers, offsets = numbers[rows.places], offsets[rows.places]
        for partition in np.unique(numbers[rows.times > self._believable(self.place.newest)]).tolist():
            own = np.flatnonzero(numbers == partition)
            believed[own] = self._believed(partition, rows.times[own].tolist(), offsets[own].tolist(), told)
        if not believed.all():
            told.ahead = int((~believed).sum())
            rows = rows.take(np.flatnonzero(believed))
        told.newest = int(rows.times.max(initial=BEGINNING))
        return rows

    def _believable(self, newest: int) -> int:
        """The greatest time that is believed where this one is the newest before it."""
        return min(max(self.place.clock, newest) + self._stream.ahead, INFINITY)

    def _believed(self, partition: int, times: list[int], offsets: list[int], told: _BatchContents) -> list[bool]:
        """Which of a partition's rows are believed; notes why the others are not. What its owner has promised is believed."""
        heartbeats = [(offset, time) for offset, time in told.raises.get(partition, ()) if time < INFINITY]
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
                told.reasons[partition, offset] = ahead_reason(beyond_us, "the clock and its stream", self._stream.ahead)
        return believed

    def _read(self, values: list[bytes | None], told: _BatchContents) -> ParsedRows:
        rows = read_records(self._shape, values)
        for place, reason in rows.reasons.items():
            partition, record = told.data[place]
            told.reasons[partition, record.offset] = reason
        return rows

    def _floors(self, partition: int, times: np.ndarray, offsets: np.ndarray, told: _BatchContents) -> np.ndarray:
        """For each row of a partition, the time below which it is late: what stood before its offset."""
        at, to = np.array(told.raises.get(partition, ()), dtype=np.int64).reshape(-1, 2).T
        if self._stream.boundary == "data":
            # A late row raises nothing: the floor is above it. So all may be counted.
            raises = self._raises(times)
            at, to = np.concatenate([at, offsets]), np.concatenate([to, raises])
            order = np.argsort(at, kind="stable")
            at, to = at[order], to[order]
        known = max(self.place.partitions[partition].floor, self.place.promise)
        floors = np.maximum.accumulate(np.concatenate([[known], to]))
        told.floors[partition] = int(floors[-1])
        standing: np.ndarray = floors[np.searchsorted(at, offsets)]
        self._note_brought(partition, times, standing, told)
        return standing

    def _raises(self, times: np.ndarray) -> np.ndarray:
        """How far each row raises its partition's floor."""
        clock, ahead = self.place.clock, self._stream.ahead
        raises: np.ndarray = times - self._stream.disorder
        if (rows_not_held := times > clock).any():
            # What is believed only for the sake of its stream, since the clock itself is behind, still moves it on.
            raises[rows_not_held] = np.maximum(clock - BEFORE_CLOCK_US, times[rows_not_held] - ahead) - self._stream.disorder
        return raises

    def _note_brought(self, partition: int, times: np.ndarray, standing: np.ndarray, told: _BatchContents) -> None:
        """Whether the partition brings rows that are in time, and how old the first is that none before it has passed."""
        if not (times >= standing).any():
            return
        leading = times[times - self._stream.disorder > standing]
        told.brought[partition] = (int(leading.min()), int(leading.max())) if len(leading) else None

    def _raised(self, partition: int, told: _BatchContents) -> int:
        """A partition's floor after the batch."""
        heartbeats = (time for _, time in told.raises.get(partition, ()))
        return max(self.place.partitions[partition].floor, told.floors.get(partition, BEGINNING), *heartbeats, BEGINNING)

    def _why_late(self, time: int, floor: int) -> str:
        if floor >= INFINITY:
            return "late: the stream has ended"
        if self._stream.boundary == "producer":
            return f"late by {format_duration(floor - time)}: a boundary had passed it"
        return late_reason(floor + self._stream.disorder - time, self._stream.disorder)

    def _letters(self, records: Records, reasons: Mapping[tuple[int, int], str]) -> list[DeadLetterRecord]:
        if not reasons:
            return []
        return [
            DeadLetterRecord(
                self._name, self._topic, partition, record.offset, reasons[partition, record.offset], text_of(record.value)
            )
            for partition, found in records.items()
            for record in found
            if (partition, record.offset) in reasons
        ]

    # Writing

    def _log_rows(self, rows: ParsedRows, now: int) -> list[tuple[LogId, Frame]]:
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
                    frames.append((log, Data(self._origin, 0, first_id, part, False, ((INFINITY, now),), t_max)))
        return frames


def rows_not_held(frames: Iterable[tuple[LogId, Frame]], written: Mapping[str, int]) -> list[tuple[LogId, Frame]]:
    """Of a batch that is done again, the rows that each log, by its next id, does not hold yet: all of them or none, since
    a batch has one frame of rows for each log."""
    return [(log, frame) for log, frame in frames if isinstance(frame, Data) and frame.first_id >= written[log.key]]


def _number(header: bytes | None) -> int | None:
    # What is not a number is not ours, and repeats nothing.
    return int(header) if header is not None and header.isdigit() and len(header) <= _LONGEST_NUMBER else None


def _time(text: str, time_unit: str) -> int:
    """A time as the time column may have it. pa.ArrowInvalid if it is none."""
    time = convert(pa.array([text], pa.string()), Type.TIMESTAMP, time_unit).cast(pa.int64())[0].as_py()
    if time is None:
        raise pa.ArrowInvalid("no time")
    return int(time)


def text_of(value: bytes | None) -> str:
    """A record as its dead letter holds it."""
    return (value or b"").decode("utf-8", "backslashreplace")[:LONGEST_TEXT]
