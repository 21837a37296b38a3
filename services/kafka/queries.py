"""The queries of an installation: one record per query in the compacted topic boreal.queries, at the home site
(deployment/query_record.py)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

from boreal.model.errors import UserError
from deployment.query_record import QueryRecord, read_query_record
from services.kafka.clusters import Cluster, close_producer
from services.kafka.follower import TopicFollower
from services.kafka.topics import QUERIES

ANSWERED_WITHIN_MS = 10_000

_PARTITION = TopicPartition(QUERIES, 0)

_logger = logging.getLogger("boreal.queries")

OnChange = Callable[[str, QueryRecord | None], None]
"""Called with a query's name and its record; None if it is deleted."""


class QueryRegistry:
    """Reads and writes the records. The last put of a name wins: compare revisions before changing a query."""

    def __init__(self, home: Cluster) -> None:
        self._cluster = home

    def put(self, record: QueryRecord) -> None:
        """Write a record, and wait for Kafka. KafkaError if there is no acknowledgement within ten seconds; the record may have
        been written nevertheless."""
        self._write(record.name, record.to_json())

    def delete(self, name: str) -> None:
        """Delete a query's record. Errors as in `put`; deleting an absent record is no error."""
        self._write(name, None)

    def load(self) -> dict[str, QueryRecord]:
        """All current queries, by name. KafkaError if the home site does not answer within ten seconds."""
        found: dict[str, QueryRecord] = {}
        deadline = time.monotonic() + ANSWERED_WITHIN_MS / 1_000
        with closing(self._cluster.make_consumer(bootstrap_timeout_ms=ANSWERED_WITHIN_MS)) as consumer:
            consumer.assign([_PARTITION])
            end = consumer.end_offsets([_PARTITION])[_PARTITION]
            consumer.seek_to_beginning(_PARTITION)
            while consumer.position(_PARTITION) < end:
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(f"{QUERIES} could not be read to its end")
                for name, record in _changes(consumer):
                    found.pop(name, None)
                    if record is not None:
                        found[name] = record
        return dict(sorted(found.items()))

    def find(self, name: str) -> QueryRecord:
        """The current query with this name. UserError if there is none; KafkaError as in `load`."""
        record = self.load().get(name)
        if record is None:
            raise UserError("query", name, "is not known", "apply it first: boreal query apply FILE")
        return record

    def watch(self, on_change: OnChange) -> TopicFollower:
        """Call `on_change`, in the follower's thread, for every existing query and then for every change, until the follower is
        closed. A change may be repeated. An unreachable cluster is silent."""
        return TopicFollower(self._cluster, QUERIES, lambda record: on_change(*read_query_record(record.key, record.value)))

    def _write(self, name: str, value: bytes | None) -> None:
        producer = self._cluster.make_producer(
            bootstrap_timeout_ms=ANSWERED_WITHIN_MS,
            max_block_ms=ANSWERED_WITHIN_MS,
            delivery_timeout_ms=ANSWERED_WITHIN_MS,
        )
        try:
            producer.send(QUERIES, value, key=name.encode(), partition=0).get(timeout=ANSWERED_WITHIN_MS / 1_000)
        finally:
            close_producer(producer, 1)


def _changes(consumer: KafkaConsumer) -> Iterator[tuple[str, QueryRecord | None]]:
    """The records of one poll. A record that cannot be read is skipped, so that it does not block the other queries."""
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            try:
                yield read_query_record(record.key, record.value)
            except (KeyError, TypeError, ValueError) as error:
                _logger.warning("the record at offset %d of %s cannot be read: %r", record.offset, QUERIES, error)
