"""Who runs what at each site: the topic boreal.placement, at the home site, with one writer for each site's record
(deployment/placement_record.py)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing

from kafka import KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError, KafkaTimeoutError

from deployment.placement_record import PlacementRecord, PlacementUnreadable, read_placement
from services.kafka.clusters import Cluster, close_producer, is_fenced, log_retry
from services.kafka.follower import TopicFollower
from services.kafka.topics import PLACEMENT

ANSWERED_WITHIN_MS = 10_000
_RETRY_S = 0.5
_PARTITION = TopicPartition(PLACEMENT, 0)

_logger = logging.getLogger("boreal.placement")


def writer_id(site: str) -> str:
    """The transactional id of all writers of a site's record: Kafka lets only the last one that began commit."""
    return f"{PLACEMENT}.{site}"


def follow_placement(
    home: Cluster, site: str, on_record: Callable[[PlacementRecord], None], on_problem: Callable[[str], None]
) -> TopicFollower:
    """Follow a site's record until the follower is closed. on_record, on_problem: called in the follower's thread, with each
    record, or with what is wrong with one that cannot be obeyed. An unreachable cluster is silent."""

    def take(record: ConsumerRecord) -> None:
        if record.key != site.encode():
            return
        try:
            found = read_placement(record.value, site)
        except PlacementUnreadable as error:
            return on_problem(str(error))
        on_record(found)

    return TopicFollower(home, PLACEMENT, take, read_committed=True)


class PlacementWriter:
    """Writes the record of one site. While Kafka is out of reach, the newest one waits.

    1. A writer begins: Kafka aborts what an earlier one has not committed, and refuses it from then on.
    2. The newest record is read, and handed on: it says what runs.
    3. Records are committed one by one. If it is not known whether one was, it is written again: workers ignore a number that
       they have.
    """

    def __init__(
        self, home: Cluster, site: str, on_found: Callable[[PlacementRecord | None], None], on_fenced: Callable[[], None]
    ) -> None:
        """on_found: called once, in the writer's thread, with the newest record that can be read. on_fenced: called if another
        writer has begun; this one writes nothing more."""
        self._home = home
        self._site = site
        self._on_found: Callable[[PlacementRecord | None], None] | None = on_found
        self._on_fenced = on_fenced
        self._changed = threading.Condition()
        self._waiting: PlacementRecord | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"placement-{site}", daemon=True)
        self._thread.start()

    def put(self, record: PlacementRecord) -> None:
        """Write a record, instead of those that still wait; returns at once."""
        with self._changed:
            self._waiting = record
            self._changed.notify()

    def close(self) -> None:
        """Stop when what waits is written, or after two seconds."""
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
                    _logger.error("%s has another writer: a later supervisor of site %s has begun", PLACEMENT, self._site)
                    return self._on_fenced()
                log_retry(_logger, f"{PLACEMENT} cannot be written", error)
            with self._changed:
                if self._is_closed:
                    return
                self._changed.wait(_RETRY_S)

    def _begin(self) -> KafkaProducer:
        producer = self._home.make_producer(
            transactional_id=writer_id(self._site),
            bootstrap_timeout_ms=ANSWERED_WITHIN_MS,
            max_block_ms=ANSWERED_WITHIN_MS,
            delivery_timeout_ms=ANSWERED_WITHIN_MS,
            transaction_timeout_ms=ANSWERED_WITHIN_MS,
        )
        try:
            producer.init_transactions()
            if self._on_found is not None:
                self._on_found(self._read())
                self._on_found = None
        except BaseException:
            close_producer(producer, 0)
            raise
        return producer

    def _read(self) -> PlacementRecord | None:
        """The newest record of the site that can be read."""
        newest: PlacementRecord | None = None
        deadline = time.monotonic() + ANSWERED_WITHIN_MS / 1_000
        with closing(self._home.make_consumer(read_committed=True, bootstrap_timeout_ms=ANSWERED_WITHIN_MS)) as consumer:
            consumer.assign([_PARTITION])
            end = consumer.end_offsets([_PARTITION])[_PARTITION]
            consumer.seek_to_beginning(_PARTITION)
            while consumer.position(_PARTITION) < end:
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(f"{PLACEMENT} could not be read to its end")
                for records in consumer.poll(timeout_ms=200).values():
                    for record in records:
                        newest = self._newer(newest, record)
        return newest

    def _newer(self, newest: PlacementRecord | None, record: ConsumerRecord) -> PlacementRecord | None:
        if record.key != self._site.encode():
            return newest
        try:
            return read_placement(record.value, self._site)
        except PlacementUnreadable as error:
            _logger.warning("the record at offset %d of %s %s, and is left out", record.offset, PLACEMENT, error)
            return newest

    def _write(self, producer: KafkaProducer) -> None:
        """Write what waits until the writer is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._is_closed)
                record = self._waiting
            if record is None:
                return
            producer.begin_transaction()
            producer.send(PLACEMENT, record.to_json(), key=self._site.encode(), partition=0)
            producer.commit_transaction()
            with self._changed:
                if self._waiting is record:
                    self._waiting = None
