"""A log's partition in Kafka, read from any offset, and searched for rows without an index.

A row is found by a binary search over the records' `next_id`, one fetch a step. A zombie's records may break that order,
so what the search finds is believed only if it holds the row and no later life began before it; otherwise the log is
read through from its start.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError

from boreal.model import codec
from boreal.model.codec import DataHead
from boreal.model.errors import CorruptError, ProtocolError
from boreal.model.frames import Frame, LogId, Start
from formats.frame_records import incarnation_of, next_id_of
from logs.index import Index
from logs.log import TrimmedError
from services.kafka.clusters import Cluster

FETCH_BYTES = 1 << 20
"""What one fetch brings, unless a frame alone is larger."""
PATIENCE_S = 10.0
"""How long a question waits for a cluster that does not answer, before it raises KafkaTimeoutError."""
_LOOK_BEHIND = 16
_RECENT = 64
_POLL_MS = 200
_LEAST_FETCH_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of a log: its frame's bytes, and what the log had come to with it."""

    offset: int
    value: bytes
    next_id: int
    incarnation: int


def make_log_consumer(cluster: Cluster, **options: Any) -> KafkaConsumer:
    """A consumer for the reading of logs: no fetch holds up the next one for long."""
    settings: dict[str, Any] = {
        "fetch_max_wait_ms": 20,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "bootstrap_timeout_ms": int(PATIENCE_S * 1000),
    }
    return cluster.make_consumer(**{**settings, **options})


class LogPartition:
    """A log's records, read from any offset through a consumer that may serve other logs in turn.

    Everything raises KafkaTimeoutError when Kafka has not answered for PATIENCE_S, and CorruptError for a record that is
    no frame. offset: of the record that `poll` reads next, or could not read.
    """

    def __init__(self, consumer: KafkaConsumer, log: LogId, topic: str) -> None:
        self.log = log
        self.place = TopicPartition(topic, log.partition)
        self.offset = 0
        self._consumer = consumer
        self._narrow_at = math.inf
        # Of the log's end, where most rows are sought: one fetch for all of it, where a search would take one a step.
        self._recent: dict[int, LogRecord] = {}

    def bounds(self) -> tuple[int, int]:
        """The first retained offset, and the one that the next record will get."""
        self._assign()
        milliseconds = int(PATIENCE_S * 1000)
        start = self._consumer.beginning_offsets([self.place], timeout_ms=milliseconds)[self.place]
        end = self._consumer.end_offsets([self.place], timeout_ms=milliseconds)[self.place]
        return int(start), int(end)

    @property
    def known_end(self) -> int:
        """The end as the last fetch saw it."""
        return self._consumer.highwater(self.place) or 0

    def recall(self, start: int, stop: int) -> None:
        """Read the last records before `stop`, and remember them for what is asked next."""
        self.forget()
        for records in self.read(max(start, stop - _RECENT), stop):
            self._recent.update((record.offset, record) for record in records)

    def forget(self) -> None:
        """Remember nothing any more."""
        self._recent = {}

    def offset_since(self, time_ms: int) -> int | None:
        """The first offset that was written at a time of the wall clock or later; None where all were before."""
        found = self._consumer.offsets_for_times({self.place: max(time_ms, 0)}, timeout_ms=int(PATIENCE_S * 1_000))[self.place]
        return None if found is None else int(found.offset)

    def read(self, offset: int, stop: int) -> Iterator[list[LogRecord]]:
        """The records from `offset` up to `stop`, as they come in. Raises as `poll`."""
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
        return next(self.read(offset, offset + 1))[0]

    def seek(self, offset: int) -> None:
        """`poll` is to go on from there."""
        self._assign()
        self._consumer.seek(self.place, offset)
        self.offset = offset
        self._narrow_at = time.monotonic() + self._timeout_s

    def poll(self, max_records: int, timeout_ms: int) -> list[LogRecord]:
        """What comes next within so long. TrimmedError if it is gone, ProtocolError if we stand beyond the end."""
        try:
            found = self._consumer.poll(timeout_ms=timeout_ms, max_records=max_records).get(self.place, [])
        except OffsetOutOfRangeError:
            start, end = self.bounds()
            if self.offset < start:
                raise TrimmedError(self.log, self.offset, start) from None
            raise ProtocolError(f"{self.log} ends at offset {end}, and was asked for offset {self.offset}") from None
        self._suit_link(bool(found))
        records: list[LogRecord] = []
        for record in found:
            try:
                records.append(self._record(record))
            except CorruptError:
                if not records:
                    raise
                self._consumer.seek(self.place, self.offset)  # what is sound comes first, and the rest with the next poll
                break
        return records

    @property
    def _timeout_s(self) -> float:
        return float(self._consumer.config["request_timeout_ms"]) / 1_000

    def _suit_link(self, has_come: bool) -> None:
        """A fetch has to come through whole before its request times out, or it is asked for again and again: where nothing
        comes for so long the next is half as large, and twice as large after one that came. Nothing public sets that."""
        now = time.monotonic()
        if not has_come and now < self._narrow_at:
            return
        config = self._consumer._fetcher.config
        nbytes = config["max_partition_fetch_bytes"]
        config["max_partition_fetch_bytes"] = min(2 * nbytes, FETCH_BYTES) if has_come else max(nbytes // 2, _LEAST_FETCH_BYTES)
        self._narrow_at = now + self._timeout_s

    def _record(self, record: ConsumerRecord) -> LogRecord:
        """The next record, which has to be the one at `offset`."""
        if record.offset != self.offset:
            raise self.damage(self.offset, f"is missing, {record.offset} follows")
        try:
            found = LogRecord(record.offset, record.value or b"", next_id_of(record.headers), incarnation_of(record.headers))
        except CorruptError as error:
            raise self.damage(record.offset, error) from error
        self.offset += 1
        return found

    def damage(self, offset: int, problem: object) -> CorruptError:
        return CorruptError(f"{self.place.topic}, partition {self.place.partition}, offset {offset}: {problem}")

    def head(self, record: LogRecord) -> codec.Head:
        """The frame without its rows, all bytes checked."""
        try:
            codec.verify(record.value)
            return codec.peek(record.value)
        except CorruptError as error:
            self.offset = record.offset
            raise self.damage(record.offset, error) from error

    def frame(self, record: LogRecord) -> Frame:
        try:
            return codec.decode(record.value)
        except CorruptError as error:
            self.offset = record.offset
            raise self.damage(record.offset, error) from error

    def _assign(self) -> None:
        if self._consumer.assignment() != {self.place}:
            self._consumer.assign([self.place])

    # Finding rows

    def index(self, offset: int, stop: int, start: int) -> tuple[Index, list[int]]:
        """An index of the records from `offset` up to `stop`, and their sizes in bytes. start: the log's."""
        incarnation = self.incarnation_before(offset, start)
        index = Index(self.log, offset)
        sizes: list[int] = []
        for records in self.read(offset, stop):
            for record in records:
                head = self.head(record)
                if not sizes:
                    index = Index(self.log, offset, _next_id_before(record, head), incarnation)
                if not isinstance(head, Start):
                    # What fences the first frames may lie too far back to have been seen.
                    index.incarnation = max(index.incarnation, record.incarnation)
                index.add(head)
                sizes.append(len(record.value))
        return index, sizes

    def incarnation_before(self, offset: int, start: int) -> int:
        """The number of the last START before a record, as the few records before it know it: of a zombie's it takes more
        than one, and it never writes many before it learns that it is one. 0 at the log's start."""
        before = self.read(max(start, offset - _LOOK_BEHIND), offset)
        return max((record.incarnation for records in before for record in records), default=0)

    def offset_after(self, stable_id: int, start: int, stop: int, next_stable_id: int) -> int:
        """As `Log.offset_after`, without an index: of the records from `start` up to `stop`, where the log's next stable
        id is `next_stable_id`."""
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
        """The first record after which the next stable id is above `row`: near the end, where most are sought, in few
        steps."""
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
        """Whether the frame there is stable, holds the row, and was written before any later life began."""
        record = self.one(offset)
        head = self.head(record)
        if not isinstance(head, DataHead) or head.tentative or not head.first_id <= row < head.first_id + head.rows:
            return False
        return head.origin.incarnation >= max(self.incarnation_before(offset, start), record.incarnation)

    def _skips(self, offset: int, row: int) -> bool:
        """Whether the writer of the frame there went on beyond the row: the record before it, of the same life, did not
        have the row yet."""
        record, before = self.one(offset), self.one(offset - 1)
        head = self.head(record)
        is_later = isinstance(head, DataHead) and not head.tentative and head.first_id > row
        return is_later and before.next_id <= row and before.incarnation == record.incarnation


def _next_id_before(record: LogRecord, head: codec.Head) -> int:
    """The next stable id of a log just before one of its records."""
    if isinstance(head, DataHead) and not head.tentative and head.first_id + head.rows == record.next_id:
        return head.first_id
    return record.next_id
