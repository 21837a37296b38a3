"""The queries of an installation: one record per query in the compacted topic boreal.queries, at the home site
(deployment/query_record.py)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import InvalidProducerEpochError, KafkaTimeoutError, ProducerFencedError

from boreal.model.errors import UserError
from deployment.audit import QueryChange
from deployment.query_record import QueryRecord, read_query_record
from services.kafka.clusters import Cluster, close_producer
from services.kafka.follower import TopicFollower
from services.kafka.topics import QUERIES

ANSWERED_WITHIN_MS = 10_000
WRITER = "boreal.queries.writer"
"""The transactional id of all writers: Kafka lets only the last one that began commit."""
BY = "by"
"""The header of a record that says who wrote it."""
_FENCED = (ProducerFencedError, InvalidProducerEpochError)
"""Another writer has begun."""
_RETRY_S = 0.05

_PARTITION = TopicPartition(QUERIES, 0)

_logger = logging.getLogger("boreal.queries")

OnChange = Callable[[str, QueryRecord | None], None]
"""Called with a query's name and its record; None if it is deleted."""

Decide = Callable[[QueryRecord | None], QueryRecord | None]
"""Called with the newest record of a query, or None; returns the record that is to replace it, or None to delete it. The same
record again changes nothing. Any error that it raises ends the update."""


class QueryRegistry:
    """Reads and writes the records. No update is lost: between the read and the write of `update` no other process writes."""

    def __init__(self, home: Cluster) -> None:
        self._cluster = home

    def update(self, name: str, decide: Decide, by: str | None = None) -> QueryRecord | None:
        """Replace a query's record by what `decide` makes of it, and return that. by: who changes it. KafkaError if Kafka does
        not answer within ten seconds; the record may have been written nevertheless.

        1. A writer begins: Kafka aborts what an earlier one has not committed, and refuses it from then on.
        2. The newest record is read, and `decide` is called.
        3. The new record is committed. If another writer has begun meanwhile this fails, and it starts again.
        """
        deadline = time.monotonic() + ANSWERED_WITHIN_MS / 1_000
        while True:
            producer = self._make_writer()
            try:
                producer.init_transactions()
                old = self.load().get(name)
                new = decide(old)
                if new != old:
                    producer.begin_transaction()
                    value, headers = new.to_json() if new else None, [(BY, by.encode())] if by is not None else []
                    producer.send(QUERIES, value, key=name.encode(), headers=headers, partition=0)
                    producer.commit_transaction()
                return new
            except _FENCED:
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(f"other writers of {QUERIES} leave no turn") from None
                time.sleep(_RETRY_S)
            finally:
                close_producer(producer, 1)

    def put(self, record: QueryRecord) -> None:
        """Write a record, whatever there was. Errors as in `update`."""
        self.update(record.name, lambda old: record)

    def delete(self, name: str, by: str | None = None) -> None:
        """Delete a query's record. Errors as in `update`; deleting an absent record is no error."""
        self.update(name, lambda old: None, by)

    def load(self) -> dict[str, QueryRecord]:
        """All current queries, by name. KafkaError if the home site does not answer within ten seconds."""
        found: dict[str, QueryRecord] = {}
        deadline = time.monotonic() + ANSWERED_WITHIN_MS / 1_000
        with closing(self._cluster.make_consumer(read_committed=True, bootstrap_timeout_ms=ANSWERED_WITHIN_MS)) as consumer:
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
        return TopicFollower(
            self._cluster, QUERIES, lambda record: on_change(*read_query_record(record.key, record.value)), read_committed=True
        )

    def watch_changes(self, on_change: Callable[[QueryChange], None]) -> TopicFollower:
        """As `watch`, with who made each change, and when."""

        def take(record: ConsumerRecord) -> None:
            name, found = read_query_record(record.key, record.value)
            by = dict(record.headers).get(BY)
            on_change(QueryChange(name, found, float(record.timestamp), by.decode() if by is not None else None))

        return TopicFollower(self._cluster, QUERIES, take, read_committed=True)

    def _make_writer(self) -> KafkaProducer:
        return self._cluster.make_producer(
            transactional_id=WRITER,
            bootstrap_timeout_ms=ANSWERED_WITHIN_MS,
            max_block_ms=ANSWERED_WITHIN_MS,
            delivery_timeout_ms=ANSWERED_WITHIN_MS,
            transaction_timeout_ms=ANSWERED_WITHIN_MS,
        )


def _changes(consumer: KafkaConsumer) -> Iterator[tuple[str, QueryRecord | None]]:
    """The records of one poll. A record that cannot be read is skipped, so that it does not block the other queries."""
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            try:
                yield read_query_record(record.key, record.value)
            except (KeyError, TypeError, ValueError) as error:
                _logger.warning("the record at offset %d of %s cannot be read: %r", record.offset, QUERIES, error)
