"""The functions that Spark's Python worker runs for an application that queries share: the hosts of all orders topics of one
replica number. A topic says whose orders it has by its name, and the query's record is in boreal.queries.

A host that fails ends alone. Its orders are left unanswered until the driver's role begins again, which it says by a warm-up
record with a new key. Then they are read from the topic, and answered, before those that come next.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.accumulators import Accumulator, AccumulatorParam

from boreal.model.errors import BorealError
from deployment.layout import layout_of
from deployment.operator_hosts import answers_topic, orders_topic
from deployment.query_record import QueryRecord, public_name
from services.hosting.log_lines import set_up_logging
from services.kafka.clusters import Cluster
from services.kafka.queries import QueryRegistry
from services.kafka.settings import load_settings
from spark_jobs.progress import HostProgress
from spark_jobs.worker import PIECE_BYTES, WARM_UP, ReplicaHosts, ReplicaTask

ORDERS = ("topic", "partition", "offset", "key", "value")
"""The columns that `obey` takes, as Kafka's connector names them."""

ANSWERS = "topic string, partition int, value binary"
"""The schema of the rows that `obey` returns."""

END = b"end"
"""The key of a warm-up record after which the topic's hosts are not needed any more. Any other key names the life of a role."""

_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("value", pa.binary())])

_logger = logging.getLogger("boreal.spark.worker")


@dataclass(frozen=True, slots=True)
class TopicState:
    """The hosts of one orders topic, as the worker reports them."""

    life: bytes | None
    """The life of the role that they obey; None: this worker is a new one, and has seen none yet."""
    begun: frozenset[int]
    """The partitions whose warm-up record of this life has been seen."""
    failure: str | None
    """Why a host has ended; None if none has."""


TopicStates = Mapping[str, TopicState]

HostsOfAll = Mapping[tuple[str, int], HostProgress]
"""The progress of each host, by its topic of orders and its partition."""


class TopicStatesAccumulator(AccumulatorParam[TopicStates]):
    """Keeps the last state of each topic."""

    def zero(self, value: TopicStates) -> TopicStates:
        return {}

    def addInPlace(self, value1: TopicStates, value2: TopicStates) -> TopicStates:
        return {**value1, **value2}


def obey(
    replica: str,
    progress: Accumulator[HostsOfAll],
    states: Accumulator[TopicStates],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """For `DataFrame.mapInArrow`. Takes ORDERS, returns ANSWERS. progress, states: get those of the topics that had records."""
    hosts = _hosts(replica)
    made: list[tuple[str, int, bytes]] = []
    size = 0
    for topic, partition, offset, key, data in _records(batches):
        for answer in hosts.obey(topic, partition, offset, key, data):
            made.append((hosts.answers_of(topic), partition, answer))
            size += len(answer)
        if size >= PIECE_BYTES:
            yield _rows(made)
            made, size = [], 0
    if made:
        yield _rows(made)
    now, news = hosts.report()
    progress.add(now)
    states.add(news)


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in ORDERS), strict=True)


def _rows(answers: list[tuple[str, int, bytes]]) -> pa.RecordBatch:
    topics, partitions, values = zip(*answers, strict=True)
    columns = [pa.array(topics, pa.string()), pa.array(partitions, pa.int32()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


@cache
def _hosts(replica: str) -> SharedHosts:
    """The hosts of this process."""
    set_up_logging(f"spark.{replica}")
    return SharedHosts(replica)


@dataclass(slots=True)
class _Topic:
    """The hosts of one query's replica, in one life of its role."""

    life: bytes | None
    hosts: ReplicaHosts | None
    """None: they cannot be made, or the topic is no query's."""
    failure: str | None
    missed: dict[int, int]
    """By partition, the first order that was left unanswered in a life before."""
    begun: set[int] = field(default_factory=set)
    failed: dict[int, int] = field(default_factory=dict)
    """The same for the partitions whose host has failed in this life."""

    def obey(self, partition: int, offset: int, data: bytes) -> list[bytes]:
        first = self.missed.get(partition, offset)
        if self.hosts is None:
            self.failed.setdefault(partition, first)
        if partition in self.failed:
            return []
        assert self.hosts is not None
        try:
            answers = self.hosts.catch_up(partition, first, offset) if first < offset else []
            answers += self.hosts.obey(partition, offset, data)
        except Exception:
            self.failed[partition], self.failure = first, traceback.format_exc()
            self.hosts.forget(partition)
            return []
        self.missed.pop(partition, None)
        return answers


class SharedHosts:
    """The hosts of all topics; each is made when its first record comes."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._settings = load_settings()
        self._name = f"spark.{replica}"
        self._registry = QueryRegistry(Cluster(self._settings.home, self._settings, self._name))
        self._topics: dict[str, _Topic] = {}
        self._have_news: set[str] = set()

    def obey(self, topic: str, partition: int, offset: int, key: bytes | None, data: bytes | None) -> list[bytes]:
        """Take one record; returns the records of its answer. Never fails: a host that does is reported."""
        self._have_news.add(topic)
        if key == END:
            self._end(topic)
            return []
        found = self._topics.get(topic)
        if found is None or (key is not None and found.life != key):
            found = self._topics[topic] = self._begin(topic, key, found)
        if key is not None:
            found.begun.add(partition)
        return found.obey(partition, offset, data or WARM_UP)

    def answers_of(self, topic: str) -> str:
        """The topic of the answers to a topic of orders."""
        return answers_topic(self._inner(topic), self._replica)

    def report(self) -> tuple[HostsOfAll, TopicStates]:
        """Of the topics that had records since the last report."""
        progress: dict[tuple[str, int], HostProgress] = {}
        states: dict[str, TopicState] = {}
        for name in sorted(self._have_news):
            topic = self._topics.get(name)
            if topic is None:
                continue
            states[name] = TopicState(topic.life, frozenset(topic.begun), topic.failure)
            if topic.hosts is not None:
                progress |= {(name, partition): report for partition, report in topic.hosts.report().items()}
        self._have_news.clear()
        return progress, states

    def _inner(self, topic: str) -> str:
        """The name of the query, or its version, whose orders a topic has."""
        return topic.removesuffix(orders_topic("", self._replica))

    def _begin(self, topic: str, life: bytes | None, former: _Topic | None) -> _Topic:
        """The hosts for another life of a role, or, if it is None, for records that a worker before this one has begun with."""
        missed = {**former.missed, **former.failed} if former is not None else {}
        if former is not None and former.hosts is not None:
            former.hosts.close()
        try:
            record = self._record(self._inner(topic))
            hosts = self._make(topic, record) if record is not None else None
        except Exception as error:
            failure = str(error) if isinstance(error, BorealError) else traceback.format_exc()
            return _Topic(life, None, failure, missed)
        is_unknown = hosts is None and life is not None
        return _Topic(life, hosts, f"{self._inner(topic)} is not in boreal.queries" if is_unknown else None, missed)

    def _record(self, inner: str) -> QueryRecord | None:
        """The record of a version; None if no query has one, as with a topic of somebody else's."""
        record = self._registry.load().get(public_name(inner))
        return record.version_named(inner) if record is not None else None

    def _make(self, topic: str, record: QueryRecord) -> ReplicaHosts:
        layout = layout_of(record, self._settings.site_names)
        cluster = Cluster(layout.site_of_replica(self._replica), self._settings, self._name)
        admin = cluster.make_admin()
        try:
            [described] = admin.describe_topics([topic])
        finally:
            admin.close()
        log = f"{topic}@{described['topic_id']}"
        task = ReplicaTask(json.dumps(record.spec), self._replica, layout.sites, log, record.inner, self._name)
        return ReplicaHosts(task, ask_s=0.0)  # other queries do not wait: the role asks again when it begins again

    def _end(self, topic: str) -> None:
        found = self._topics.pop(topic, None)
        if found is not None and found.hosts is not None:
            found.hosts.close()
