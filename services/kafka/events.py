"""The events of an installation: the topic boreal.events, at the home site, with one writer. Events that wait are committed
together. If it is not known whether they were, the next read shows it: either all of them are there, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing

from kafka import KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from deployment.events import RecordedEvent, read_event
from services.kafka.clusters import ANSWERED_WITHIN_MS, Cluster
from services.kafka.fenced_writer import FencedWriter
from services.kafka.reading import read_range
from services.kafka.topics import EVENTS

WRITER = "boreal.events.writer"
_PARTITION = TopicPartition(EVENTS, 0)

_logger = logging.getLogger("boreal.events")


class EventWriter(FencedWriter):
    """Records events, in order, each once. While Kafka is out of reach they wait."""

    def __init__(self, home: Cluster, on_read: Callable[[list[RecordedEvent]], None], on_fenced: Callable[[], None]) -> None:
        """on_read: called once, in the writer's thread, with all events that are there. on_fenced: called if another writer has
        begun; this one records nothing more."""
        self._on_read = on_read
        self._waiting: list[RecordedEvent] = []
        self._next: int | None = None  # the offset of the next record; None before the first read
        self._sent = 0  # how many of those that wait may be committed
        super().__init__(home, EVENTS, WRITER, "monitor", on_fenced, _logger)

    def put(self, events: Sequence[RecordedEvent]) -> None:
        """Record events; returns at once."""
        with self._changed:
            self._waiting += events
            self._changed.notify()

    def _catch_up(self) -> None:
        events = self._read()
        with self._changed:
            if self._sent and events:
                # What was on its way is there: no other has written meanwhile.
                del self._waiting[: self._sent]
            self._sent = 0

    def _read(self) -> list[RecordedEvent]:
        """The events since the last read; those of the first read are handed on."""
        found: list[RecordedEvent] = []
        with closing(self._home.make_consumer(read_committed=True, bootstrap_timeout_ms=ANSWERED_WITHIN_MS)) as consumer:
            consumer.assign([_PARTITION])
            first = consumer.beginning_offsets([_PARTITION])[_PARTITION]
            end = consumer.end_offsets([_PARTITION])[_PARTITION]
            is_first = self._next is None
            start = first if self._next is None else max(self._next, first)
            records = read_range(consumer, _PARTITION, start, end, ANSWERED_WITHIN_MS / 1_000)
            found += [event for record in records if (event := event_of(record)) is not None]
            self._next = end
        if is_first:
            self._on_read(found)
        return found

    def _write(self, producer: KafkaProducer) -> None:
        """Record what waits until the writer is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                events = list(self._waiting)
                self._sent = len(events)
            if not events:
                return
            producer.begin_transaction()
            futures = [producer.send(EVENTS, event.to_json().encode(), key=_key(event), partition=0) for event in events]
            producer.commit_transaction()
            self._next = futures[-1].get(timeout=0).offset + 1
            with self._changed:
                del self._waiting[: len(events)]
                self._sent = 0


def event_of(record: ConsumerRecord) -> RecordedEvent | None:
    """The event in a record; None, with a warning, for one that this version cannot read."""
    try:
        return read_event(record.value)
    except (KeyError, TypeError, ValueError) as error:
        _logger.warning("the event at offset %d cannot be read, and is left out: %r", record.offset, error)
        return None


def _key(event: RecordedEvent) -> bytes | None:
    return event.query.encode() if event.query is not None else None
