"""A query's output on a stack: its topic at one site, read by all callers together.

A follower keeps the last records in a ring of bounded size. A caller that is behind the ring, or begins at the oldest record,
reads from Kafka with a consumer of its own until it reaches the ring. So a slow caller costs no memory.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError, OffsetOutOfRangeError

from api.installation import OutputEvent, OutputPage, UnavailableError, View
from api.listeners import Listeners
from boreal.model.errors import UserError
from services.kafka.clusters import Cluster
from services.kafka.follower import TopicFollower

RING_RECORDS = 5_000
RING_BYTES = 8 << 20
_POLL_MS = 300
_ID = re.compile(r"(?P<site>[a-z0-9_-]+):(?P<offset>[0-9]{1,18})", re.ASCII)


class OutputTail:
    """The last records of one topic, for all its readers. Close it when none is left."""

    def __init__(self, cluster: Cluster, topic: str, view: View) -> None:
        self.cluster, self.topic, self.view = cluster, topic, view
        self._ring: deque[tuple[int, OutputEvent | None]] = deque()
        self._bytes = 0
        self._incarnation = -1
        self._lock = threading.Lock()
        self._listeners = Listeners()
        self._follower = TopicFollower(cluster, topic, self._take, read_committed=view == "stable", last=RING_RECORDS)

    def close(self) -> None:
        self._follower.close()

    def events(self, start: int, limit: int) -> tuple[list[OutputEvent], int] | None:
        """The records from an offset on, and the offset after them; None if the ring does not reach back to it."""
        with self._lock:
            if not self._ring or start < self._ring[0][0] or start > self._ring[-1][0] + 1:
                return None
            found = [(offset, event) for offset, event in self._ring if offset >= start][:limit]
        return [event for _, event in found if event is not None], found[-1][0] + 1 if found else start

    def listen(self, notify: Callable[[], None]) -> Callable[[], None]:
        """See `OutputReader.on_more`."""
        return self._listeners.add(notify)

    def _take(self, record: ConsumerRecord) -> None:
        """In the thread of the follower."""
        with self._lock:
            if self._ring and record.offset <= self._ring[-1][0]:
                # The topic was created again.
                self._ring.clear()
                self._bytes, self._incarnation = 0, -1
            event, self._incarnation = event_of(record, self.cluster.site, self.view, self._incarnation)
            self._ring.append((record.offset, event))
            self._bytes += len(event.data) if event is not None else 0
            while len(self._ring) > RING_RECORDS or (self._bytes > RING_BYTES and len(self._ring) > 1):
                _, gone = self._ring.popleft()
                self._bytes -= len(gone.data) if gone is not None else 0
        self._listeners.notify()


class StackOutput:
    """See `api.installation.OutputReader`. Only for one thread at a time."""

    def __init__(self, tail: OutputTail, on_close: Callable[[], None]) -> None:
        self._tail = tail
        self._on_close = on_close
        self._partition = TopicPartition(tail.topic, 0)
        self._consumer: KafkaConsumer | None = None
        self._incarnation = -1

    def read(self, after: str | None, limit: int) -> OutputPage:
        start = 0 if after is None else self._offset(after) + 1
        found = self._tail.events(start, limit)
        if found is None:
            return self._read_from_kafka(after, start, limit)
        self._close_consumer()
        events, end = found
        return OutputPage(tuple(events), self._id(end - 1) if end > start else after)

    def newest(self, count: int) -> str | None:
        first, end = self._range()
        return self._id(end - count - 1) if end - count > first else None

    def on_more(self, notify: Callable[[], None]) -> Callable[[], None]:
        return self._tail.listen(notify)

    def close(self) -> None:
        self._close_consumer()
        self._on_close()

    def _read_from_kafka(self, after: str | None, start: int, limit: int) -> OutputPage:
        first, end = self._range()
        gap = None
        if start < first or start > end:
            gap = {"after": after, "first": self._id(first)} if after is not None else None
            start = first
        if start >= end:
            return OutputPage((), after if gap is None else None, gap)
        consumer = self._reached()
        try:
            if consumer.position(self._partition) != start:
                consumer.seek(self._partition, start)
            records = consumer.poll(timeout_ms=_POLL_MS, max_records=limit).get(self._partition, [])
            position = consumer.position(self._partition)
        except OffsetOutOfRangeError:
            records, position = [], start  # It was deleted at this moment; the next read finds what is left.
        except (KafkaError, OSError) as error:
            raise self._unavailable(error) from None
        events = []
        for record in records:
            event, self._incarnation = event_of(record, self._tail.cluster.site, self._tail.view, self._incarnation)
            if event is not None:
                events.append(event)
        return OutputPage(tuple(events), self._id(position - 1) if position > 0 else after, gap)

    def _range(self) -> tuple[int, int]:
        """The offsets of the oldest record, and after the newest."""
        consumer = self._reached()
        try:
            first = consumer.beginning_offsets([self._partition])[self._partition]
            return first, consumer.end_offsets([self._partition])[self._partition]
        except (KafkaError, OSError) as error:
            raise self._unavailable(error) from None

    def _reached(self) -> KafkaConsumer:
        if self._consumer is None:
            try:
                self._consumer = self._tail.cluster.make_consumer(read_committed=self._tail.view == "stable")
                self._consumer.assign([self._partition])
                self._consumer.seek(self._partition, 0)
            except (KafkaError, OSError) as error:
                raise self._unavailable(error) from None
        return self._consumer

    def _close_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False)

    def _unavailable(self, error: Exception) -> UnavailableError:
        return UnavailableError("BOREAL_SITES", None, f"the output cannot be read now: {error}", "ask again soon")

    def _id(self, offset: int) -> str:
        return f"{self._tail.cluster.site}:{offset}"

    def _offset(self, text: str) -> int:
        match = _ID.fullmatch(text)
        if match is None or match["site"] != self._tail.cluster.site:
            fix = f"give the id of an event of this output, such as {self._id(42)}, or leave it out"
            raise UserError("Last-Event-ID", text, "is not the id of an event of this output", fix)
        return int(match["offset"])


def event_of(record: ConsumerRecord, site: str, view: View, incarnation: int) -> tuple[OutputEvent | None, int]:
    """A record as an event, and the newest incarnation of its writer. None for a record of an earlier one: it is void once a
    later one has begun (R25). incarnation: the newest so far."""
    if view == "stable":
        return OutputEvent(f"{site}:{record.offset}", "stable", _line(record.value)), incarnation
    said = int(dict(record.headers)["incarnation"])
    if said < incarnation:
        return None, incarnation
    text = _line(record.value)
    return OutputEvent(f"{site}:{record.offset}", _type_of(text), text), said


def _line(value: Any) -> str:
    return bytes(value).decode()


_TYPE = re.compile(r'"type":\s*"([a-z_]+)"')


def _type_of(text: str) -> str:
    """The type of a record, which is near its beginning: parsing all of it for each caller would cost much."""
    match = _TYPE.search(text)
    assert match is not None, "every record has a type"
    return match[1]
