"""Who runs what at each site: the topic boreal.placement, at the home site, with one writer for each site's record
(deployment/placement_record.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from kafka import KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from deployment.placement_record import PlacementRecord, PlacementUnreadable, read_placement
from services.kafka.clusters import ANSWERED_WITHIN_MS, Cluster
from services.kafka.fenced_writer import FencedWriter
from services.kafka.follower import TopicFollower
from services.kafka.reading import read_range
from services.kafka.topics import PLACEMENT

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


class PlacementWriter(FencedWriter):
    """Writes the record of one site. While Kafka is out of reach, the newest one waits.

    The record that is there is handed on when the writer begins: it says what runs. If it is not known whether a record was
    committed, it is written again: workers ignore a number that they have.
    """

    def __init__(
        self, home: Cluster, site: str, on_found: Callable[[PlacementRecord | None], None], on_fenced: Callable[[], None]
    ) -> None:
        """on_found: called once, in the writer's thread, with the newest record that can be read. on_fenced: called if another
        writer has begun; this one writes nothing more."""
        self._site = site
        self._on_found: Callable[[PlacementRecord | None], None] | None = on_found
        self._waiting: PlacementRecord | None = None
        super().__init__(home, PLACEMENT, writer_id(site), f"supervisor of site {site}", on_fenced, _logger)

    def put(self, record: PlacementRecord) -> None:
        """Write a record, instead of those that still wait; returns at once."""
        with self._changed:
            self._waiting = record
            self._changed.notify()

    def _catch_up(self) -> None:
        if self._on_found is not None:
            self._on_found(self._read())
            self._on_found = None

    def _read(self) -> PlacementRecord | None:
        """The newest record of the site that can be read."""
        newest: PlacementRecord | None = None
        with closing(self._home.make_consumer(read_committed=True, bootstrap_timeout_ms=ANSWERED_WITHIN_MS)) as consumer:
            consumer.assign([_PARTITION])
            first = consumer.beginning_offsets([_PARTITION])[_PARTITION]
            end = consumer.end_offsets([_PARTITION])[_PARTITION]
            for record in read_range(consumer, _PARTITION, first, end, ANSWERED_WITHIN_MS / 1_000):
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
