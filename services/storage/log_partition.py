"""A log's partition in Kafka: reads it from any offset, and finds rows without an index.

A row is found by binary search over the records' `next_id`, with one fetch per step. A zombie's records may break the order.
So the result is used only if the frame holds the row and no later incarnation began before it; otherwise the log is read
from its start.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError

from boreal.model import codec
from boreal.model.codec import DataHead
from boreal.model.errors import CorruptError, ProtocolError
from boreal.model.frames import Boundary, Frame, LogId, Start
from formats.frame_records import Headers, incarnation_of, next_id_of
from logs.index import Index
from logs.log import TrimmedError
from services.kafka.clusters import Cluster

FETCH_BYTES = 1 << 20
"""Maximum size of a fetch, unless a single frame is larger."""
PATIENCE_S = 10.0
"""How long a read waits for a cluster that does not answer, before it raises KafkaTimeoutError."""
FIRST_WINDOW = 1_024
"""How many records `windows` begins with."""
LOOK_BEHIND = 16
"""Among so many frames before a place are a START, which shows which frames are a zombie's (R25), and a boundary."""
_POLL_MS = 200
_LEAST_FETCH_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of a log."""

    offset: int
    """Offset in the partition."""
    value: bytes
    """The encoded frame."""
    next_id: int
    """The log's next stable id after this record."""
    incarnation: int
    """The incarnation of the log's last START up to this record."""


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """A record that has its place in a log."""

    value: bytes
    """The encoded frame."""
    headers: Headers
    """See `formats.frame_records`."""
    offset: int
    """Offset in the partition."""


class Fence:
    """Recognises the frames of dead incarnations (R25), from any offset where the reading began."""

    def __init__(self, incarnation: int = 0) -> None:
        """incarnation: of the last START before the first frame, as far as it is known."""
        self._incarnation = incarnation

    def admits(self, frame: Frame, log_incarnation: int) -> bool:
        """Whether the next frame is valid. log_incarnation: from its record's headers (formats/frame_records.py)."""
        incarnation, last = frame.origin.incarnation, self._incarnation
        self._incarnation = max(last, incarnation, log_incarnation)
        return incarnation == self._incarnation and not (isinstance(frame, Start) and incarnation == last)


def log_record(record: ConsumerRecord | WrittenRecord) -> LogRecord:
    """A record of a log, as a consumer has read it or this process has written it. CorruptError if its headers are damaged."""
    return LogRecord(record.offset, record.value or b"", next_id_of(record.headers), incarnation_of(record.headers))


def frames_of(records: Sequence[ConsumerRecord | WrittenRecord]) -> list[tuple[LogRecord, Frame]]:
    """Records of a log, each with its frame. CorruptError if one of them is damaged."""
    return [(entry, codec.decode(entry.value)) for entry in map(log_record, records)]


def make_log_consumer(cluster: Cluster, **options: Any) -> KafkaConsumer:
    """A consumer for reading logs: fetches wait only briefly, so they do not delay each other. options: of KafkaConsumer."""
    settings: dict[str, Any] = {
        "fetch_max_wait_ms": 20,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "bootstrap_timeout_ms": int(PATIENCE_S * 1000),
    }
    return cluster.make_consumer(**{**settings, **options})


class FetchSize:
    """Adapts the size of a consumer's fetches to the link. A fetch must complete before its request times out, or it is
    repeated for ever. So after a timeout the next one is half as large, and after a success twice as large. No public method of
    the consumer sets this."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self._narrow_at = math.inf

    def begin(self) -> None:
        """Fetches begin, from another offset."""
        self._narrow_at = time.monotonic() + self._timeout_s

    def suit(self, has_come: bool) -> None:
        """A poll has ended. has_come: whether it has returned records."""
        now = time.monotonic()
        if not has_come and now < self._narrow_at:
            return
        config = self._consumer._fetcher.config
        nbytes = config["max_partition_fetch_bytes"]
        config["max_partition_fetch_bytes"] = min(2 * nbytes, FETCH_BYTES) if has_come else max(nbytes // 2, _LEAST_FETCH_BYTES)
        self._narrow_at = now + self._timeout_s

    @property
    def _timeout_s(self) -> float:
        return float(self._consumer.config["request_timeout_ms"]) / 1_000


class NotRecalledError(Exception):
    """A partition without a consumer lacks a record that is needed."""


class LogPartition:
    """A log's records, read from any offset. Its consumer may be shared with other logs, if they use it in turn.

    All methods but `recall` and `forget` raise KafkaTimeoutError if Kafka does not answer for PATIENCE_S, and CorruptError for
    a record that is not a frame.
    """

    def __init__(self, log: LogId, topic: str, consumer: KafkaConsumer | None = None) -> None:
        """consumer: None: only `reading` gives it one. NotRecalledError is raised where one is needed, and there is none."""
        self.log = log
        self.place = TopicPartition(topic, log.partition)
        self.offset = 0
        """Offset of the record that `poll` reads next, or could not read."""
        self._lent = consumer
        self._lend: Callable[[], KafkaConsumer] | None = None
        self._size: FetchSize  # since the last `seek`
        # The last records, where most searches end: one fetch for all, instead of one per step of the search.
        self._recent: dict[int, LogRecord] = {}

    @contextmanager
    def reading(self, lend: Callable[[], AbstractContextManager[KafkaConsumer]]) -> Iterator[Self]:
        """Read with a consumer that is lent as soon as one is needed, until the end of the context."""
        with ExitStack() as stack:
            self._lend, self._lent = lambda: stack.enter_context(lend()), None
            try:
                yield self
            finally:
                self._lend = self._lent = None

    @property
    def _consumer(self) -> KafkaConsumer:
        if self._lent is None:
            if self._lend is None:
                raise NotRecalledError(f"{self.place} has no consumer")
            self._lent = self._lend()
        return self._lent

    def bounds(self) -> tuple[int, int]:
        """The first retained offset, and the offset of the next record."""
        self._assign()
        milliseconds = int(PATIENCE_S * 1000)
        start = self._consumer.beginning_offsets([self.place], timeout_ms=milliseconds)[self.place]
        end = self._consumer.end_offsets([self.place], timeout_ms=milliseconds)[self.place]
        return int(start), int(end)

    @property
    def known_end(self) -> int:
        """The end of the log as of the last fetch; 0 before the first."""
        return (self._lent.highwater(self.place) or 0) if self._lent is not None else 0

    def recall(self, records: Sequence[LogRecord]) -> None:
        """Take these, which were read before, for what the log holds: they are not read again."""
        self._recent = {record.offset: record for record in records}

    def forget(self) -> None:
        """Read again what was recalled."""
        self._recent = {}

    def pause_before(self, stop: int) -> int | None:
        """What the last record before an offset says, in microseconds (`Boundary.pause`), if it is a stable boundary and
        nothing is left to be corrected. To a reader that has all stable rows it says all that those before it have said. None
        otherwise, or if that is not known.

        All of the last records, which were recalled, are stable boundaries or STARTs then. That is not enough: an instance
        repeats its stable boundary while it has tentative rows out. But it says no pause before all is corrected (R24), and
        sources have nothing to correct.
        """
        try:
            heads = [self.head(self._recent[offset]) for offset in range(stop - LOOK_BEHIND, stop)]
        except KeyError:
            return None
        newest, last = max(record.incarnation for record in self._recent.values()), heads[-1]
        are_firm = all(isinstance(head, Start) or (isinstance(head, Boundary) and not head.tentative) for head in heads)
        if not are_firm or not isinstance(last, Boundary) or last.origin.incarnation < newest:
            return None
        return last.pause if last.pause or not self.log.replica else None

    def offset_since(self, time_ms: int) -> int | None:
        """The first offset whose record was written at `time_ms` of the wall clock or later; None if there is none."""
        found = self._consumer.offsets_for_times({self.place: max(time_ms, 0)}, timeout_ms=int(PATIENCE_S * 1_000))[self.place]
        return None if found is None else int(found.offset)

    def read(self, offset: int, stop: int) -> Iterator[list[LogRecord]]:
        """The records from `offset` to before `stop`, as they arrive. Raises as `poll`."""
        if offset >= stop:
            return
        if offset in self._recent and stop - 1 in self._recent:
            yield [self._recent[place] for place in range(offset, stop)]
            return
        self.seek(offset)
        deadline = time.monotonic() + PATIENCE_S
        while self.offset < stop:
            records = self.poll(stop - self.offset, _POLL_MS)
            if records:
                yield records
                deadline = time.monotonic() + PATIENCE_S
            elif time.monotonic() > deadline:
                raise KafkaTimeoutError(f"{self.place}, offset {self.offset}: no record within {PATIENCE_S:.0f} s")

    def one(self, offset: int) -> LogRecord:
        """The record at an offset."""
        return next(self.read(offset, offset + 1))[0]

    def seek(self, offset: int) -> None:
        """Let `poll` continue from `offset`."""
        self._assign()
        self._consumer.seek(self.place, offset)
        self.offset = offset
        self._size = FetchSize(self._consumer)
        self._size.begin()

    def poll(self, max_records: int, timeout_ms: int) -> list[LogRecord]:
        """The next records that arrive within `timeout_ms`. TrimmedError if the next record is trimmed, ProtocolError if
        `offset` is beyond the end."""
        try:
            found = self._consumer.poll(timeout_ms=timeout_ms, max_records=max_records).get(self.place, [])
        except OffsetOutOfRangeError:
            start, end = self.bounds()
            if self.offset < start:
                raise TrimmedError(self.log, self.offset, start) from None
            raise ProtocolError(f"{self.log} ends at offset {end}, but offset {self.offset} was requested") from None
        self._size.suit(bool(found))
        records: list[LogRecord] = []
        for record in found:
            try:
                records.append(self._record(record))
            except CorruptError:
                if not records:
                    raise
                self._consumer.seek(self.place, self.offset)  # return the good records first; the next poll raises
                break
        return records

    def _record(self, record: ConsumerRecord) -> LogRecord:
        """Decode the headers of the next record, which must be the one at `offset`."""
        if record.offset != self.offset:
            raise self.damage(self.offset, f"is missing; the next record has offset {record.offset}")
        try:
            found = log_record(record)
        except CorruptError as error:
            raise self.damage(record.offset, error) from error
        self.offset += 1
        return found

    def damage(self, offset: int, problem: object) -> CorruptError:
        """The error for a bad record, with its position."""
        return CorruptError(f"{self.place.topic}, partition {self.place.partition}, offset {offset}: {problem}")

    def head(self, record: LogRecord) -> codec.Head:
        """The frame without its rows. All checksums are verified."""
        try:
            codec.verify(record.value)
            return codec.peek(record.value)
        except CorruptError as error:
            self.offset = record.offset
            raise self.damage(record.offset, error) from error

    def frame(self, record: LogRecord) -> Frame:
        """The decoded frame."""
        try:
            return codec.decode(record.value)
        except CorruptError as error:
            self.offset = record.offset
            raise self.damage(record.offset, error) from error

    def _assign(self) -> None:
        if self._consumer.assignment() != {self.place}:
            self._consumer.assign([self.place])

    # Finding rows

    def next_stable_id(self, start: int, stop: int) -> int:
        """The log's next stable id before an offset. start: of the log."""
        return self.one(stop - 1).next_id if stop > start else 0

    def index(self, offset: int, stop: int, start: int) -> tuple[Index, list[int]]:
        """An index of the records from `offset` to before `stop`, and their sizes in bytes. start: of the log."""
        incarnation = self.incarnation_before(offset, start)
        index = Index(self.log, offset)
        sizes: list[int] = []
        for records in self.read(offset, stop):
            for record in records:
                head = self.head(record)
                if not sizes:
                    index = Index(self.log, offset, _next_id_before(record, head), incarnation)
                if not isinstance(head, Start):
                    # The START that fences the first frames may be too far back to have been read.
                    index.incarnation = max(index.incarnation, record.incarnation)
                index.add(head)
                sizes.append(len(record.value))
        return index, sizes

    def incarnation_before(self, offset: int, start: int) -> int:
        """The incarnation of the last START before a record, from the few records before it. One record is not enough, since a
        zombie may have written it; but a zombie never writes many before it is fenced. 0 at the log's start."""
        before = self.read(max(start, offset - LOOK_BEHIND), offset)
        return max((record.incarnation for records in before for record in records), default=0)

    def offset_after(self, stable_id: int, start: int, stop: int, next_stable_id: int) -> int:
        """As `Log.offset_after`, without an index, over the records from `start` to before `stop`. next_stable_id: of the
        log."""
        row = min(stable_id + 1, next_stable_id - 1)
        if row < 0 or start == stop:
            return start
        holder = self._first_beyond(row, start, stop)
        if holder is not None and self._holds(holder, row, start):
            return holder if row == stable_id + 1 else holder + 1
        if holder is None or holder == start or self._skips(holder, row):
            if row == stable_id + 1:
                raise TrimmedError(self.log, (stop if holder is None else holder) - 1, start)
            return start
        index, _ = self.index(start, stop, start)
        return index.offset_after(stable_id)

    def _first_beyond(self, row: int, start: int, stop: int) -> int | None:
        """The offset of the first record whose `next_id` is above `row`; None if there is none. Takes few steps near the end,
        where most searches end."""
        high, step = stop - 1, 1
        if self.one(high).next_id <= row:
            return None
        low = high
        while low > start:
            low = max(start, stop - 1 - step)
            if self.one(low).next_id <= row:
                break
            high, step = low, 2 * step
        else:
            return start
        return bisect_left(range(low + 1, high), True, key=lambda place: self.one(place).next_id > row) + low + 1

    def _holds(self, offset: int, row: int, start: int) -> bool:
        """Whether the frame at `offset` is stable, holds the row, and was written before any later incarnation began."""
        record = self.one(offset)
        head = self.head(record)
        if not isinstance(head, DataHead) or head.tentative or not head.first_id <= row < head.first_id + head.rows:
            return False
        return head.origin.incarnation >= max(self.incarnation_before(offset, start), record.incarnation)

    def _skips(self, offset: int, row: int) -> bool:
        """Whether the writer of the frame at `offset` skipped the row: the record before it, of the same incarnation, does not
        have the row yet."""
        record, before = self.one(offset), self.one(offset - 1)
        head = self.head(record)
        is_later = isinstance(head, DataHead) and not head.tentative and head.first_id > row
        return is_later and before.next_id <= row and before.incarnation == record.incarnation


def _next_id_before(record: LogRecord, head: codec.Head) -> int:
    """A log's next stable id before one of its records."""
    if isinstance(head, DataHead) and not head.tentative and head.first_id + head.rows == record.next_id:
        return head.first_id
    return record.next_id


def windows(first: int, end: int) -> Iterator[int]:
    """Offsets to begin to read at, further and further from the end; the last one is `first`."""
    window = FIRST_WINDOW
    while end - window > first:
        yield end - window
        window *= 4
    yield first
