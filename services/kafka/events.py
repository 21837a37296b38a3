"""The events of an installation: the topic boreal.events, at the home site, with one writer.

1. A writer begins: Kafka aborts what an earlier one has not committed, and refuses it from then on.
2. All that is there is read, and handed on: only then it is known what remains to be recorded.
3. Events that wait are committed together. If it is not known whether they were, the writer starts again, and reads what is
   new: either all of them are there, or none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from kafka import KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError

from deployment.events import RecordedEvent, read_event
from services.kafka.clusters import Cluster, close_producer, is_fenced, log_retry
from services.kafka.topics import EVENTS

WRITER = "boreal.events.writer"
ANSWERED_WITHIN_MS = 10_000
_RETRY_S = 0.5
_PARTITION = TopicPartition(EVENTS, 0)

_logger = logging.getLogger("boreal.events")


class EventWriter:
    """Records events, in order, each once. While Kafka is out of reach they wait."""

    def __init__(self, home: Cluster, on_read: Callable[[list[RecordedEvent]], None], on_fenced: Callable[[], None]) -> None:
        """on_read: called once, in the writer's thread, with all events that are there. on_fenced: called if another writer has
        begun; this one records nothing more."""
        self._home = home
        self._on_read = on_read
        self._on_fenced = on_fenced
        self._waiting: list[RecordedEvent] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._next: int | None = None  # the offset of the next record; None before the first read
        self._sent = 0  # how many of those that wait may be committed
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def put(self, events: Sequence[RecordedEvent]) -> None:
        """Record events; returns at once."""
        with self._changed:
            self._waiting += events
            self._changed.notify()

    def close(self) -> None:
        """Stop when what waits is recorded, or after two seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while True:
            try:
                producer = self._begin()
                try:
                    return self._write(producer)
                finally:
                    close_producer(producer, 1)
            except (KafkaError, OSError) as error:
                if is_fenced(error):
                    _logger.error("%s has another writer: a later monitor has begun", EVENTS)
                    return self._on_fenced()
                log_retry(_logger, f"{EVENTS} cannot be written", error)
            with self._changed:
                if self._is_closed:
                    return
                self._changed.wait(_RETRY_S)

    def _begin(self) -> KafkaProducer:
        """A writer that has fenced the earlier ones, and has read what they wrote."""
        producer = self._home.make_producer(
            transactional_id=WRITER,
            bootstrap_timeout_ms=ANSWERED_WITHIN_MS,
            max_block_ms=ANSWERED_WITHIN_MS,
            delivery_timeout_ms=ANSWERED_WITHIN_MS,
            transaction_timeout_ms=ANSWERED_WITHIN_MS,
        )
        try:
            producer.init_transactions()
            events = self._read()
        except BaseException:
            close_producer(producer, 0)
            raise
        with self._changed:
            if self._sent and events:
                # What was on its way is there: no other has written meanwhile.
                del self._waiting[: self._sent]
            self._sent = 0
        return producer

    def _read(self) -> list[RecordedEvent]:
        """The events since the last read; those of the first read are handed on."""
        found: list[RecordedEvent] = []
        with closing(self._home.make_consumer(read_committed=True, bootstrap_timeout_ms=ANSWERED_WITHIN_MS)) as consumer:
            consumer.assign([_PARTITION])
            first = consumer.beginning_offsets([_PARTITION])[_PARTITION]
            end = consumer.end_offsets([_PARTITION])[_PARTITION]
            is_first = self._next is None
            consumer.seek(_PARTITION, first if self._next is None else max(self._next, first))
            while consumer.position(_PARTITION) < end:
                for records in consumer.poll(timeout_ms=200).values():
                    found += [event for record in records if (event := event_of(record)) is not None]
            self._next = consumer.position(_PARTITION)
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
