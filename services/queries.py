"""The queries of an installation: one record each in the compacted topic boreal.queries, at the home site.

    key NAME, value {"v": 1, "name": NAME, "spec": {...}, "revision": 3, "paused": false}; no value: deleted
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

from boreal.errors import UserError
from boreal.spec import Query, load_query
from services.clusters import Cluster, end_producer
from services.follower import TopicFollower
from services.topics import QUERIES

VERSION = 1
ANSWERED_WITHIN_MS = 10_000

_PARTITION = TopicPartition(QUERIES, 0)

_logger = logging.getLogger("boreal.queries")


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A query as its users last wanted it. spec: as `Query.dump` gives it; revision: grows with every change."""

    name: str
    spec: dict[str, Any]
    revision: int
    paused: bool = False

    @property
    def query(self) -> Query:
        return load_query(self.spec)


OnChange = Callable[[str, QueryRecord | None], None]
"""Called with a query's name and its record, None once it is deleted."""


class QueryRegistry:
    """Reads and writes the records. The last put of a name counts: whoever changes a query compares revisions first."""

    def __init__(self, home: Cluster) -> None:
        self._cluster = home

    def put(self, record: QueryRecord) -> None:
        """Returns when Kafka has it. KafkaError if it does not take it within ten seconds; it may have, all the same."""
        fields = {
            "v": VERSION,
            "name": record.name,
            "spec": record.spec,
            "revision": record.revision,
            "paused": record.paused,
        }
        self._write(record.name, json.dumps(fields, separators=(",", ":")).encode())

    def delete(self, name: str) -> None:
        """As `put`; deleting what is not there is no error."""
        self._write(name, None)

    def load(self) -> dict[str, QueryRecord]:
        """All queries, by name, as they are now. KafkaError if the home site does not answer within ten seconds."""
        found: dict[str, QueryRecord] = {}
        deadline = time.monotonic() + ANSWERED_WITHIN_MS / 1_000
        with closing(self._cluster.consumer(bootstrap_timeout_ms=ANSWERED_WITHIN_MS)) as consumer:
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
        """The query of this name as it is now. UserError if there is none; KafkaError as `load`."""
        record = self.load().get(name)
        if record is None:
            raise UserError("query", name, "is not known", "apply it first: boreal query apply FILE")
        return record

    def watch(self, on_change: OnChange) -> TopicFollower:
        """Call `on_change`, in a thread of the watch, with every query that there is and then with every change, until the
        watch is closed. A change may be told of again; an unreachable cluster is silence."""
        return TopicFollower(self._cluster, QUERIES, lambda record: on_change(*_change(record.key, record.value)))

    def _write(self, name: str, value: bytes | None) -> None:
        producer = self._cluster.producer(
            bootstrap_timeout_ms=ANSWERED_WITHIN_MS,
            max_block_ms=ANSWERED_WITHIN_MS,
            delivery_timeout_ms=ANSWERED_WITHIN_MS,
        )
        try:
            producer.send(QUERIES, value, key=name.encode(), partition=0).get(timeout=ANSWERED_WITHIN_MS / 1_000)
        finally:
            end_producer(producer, 1)


def _changes(consumer: KafkaConsumer) -> Iterator[tuple[str, QueryRecord | None]]:
    """What one poll brings. A record that cannot be read is passed over: it must not hold up the other queries."""
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            try:
                yield _change(record.key, record.value)
            except (KeyError, TypeError, ValueError) as error:
                _logger.warning("the record at offset %d of %s cannot be read: %r", record.offset, QUERIES, error)


def _change(key: bytes, value: bytes | None) -> tuple[str, QueryRecord | None]:
    name = key.decode()
    if value is None:
        return name, None
    fields = json.loads(value)
    if fields["v"] != VERSION:
        raise ValueError(f"unknown version of query record: {fields['v']}; this program reads version {VERSION}")
    return name, QueryRecord(name, dict(fields["spec"]), int(fields["revision"]), bool(fields["paused"]))
