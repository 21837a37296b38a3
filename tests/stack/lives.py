"""What the tests of the egress and of its clients share: an egress's outlet without an instance, and what topics hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pyarrow as pa
from kafka import TopicPartition

from boreal.model.frames import Anchor, Boundary, Data, Frame, LogId, Origin, Start, State
from boreal.model.schema import Schema
from formats.changelog import Changelog
from formats.client_headers import ID
from formats.debezium import DebeziumForm
from services.egress.delays import RecentDelays
from services.egress.latest import LatestTopic
from services.egress.out import OutTopic, OutWriter, RowTopics
from services.egress.plain_form import PlainForm, RecordForm
from services.egress.registered import RegisteredForm
from services.egress.stable import StableTopic
from services.egress.tail import OutTail, read_out_tail
from services.hosting.registry import Registry
from services.kafka.clusters import Cluster
from services.kafka.reading import read_range
from services.kafka.settings import ClientChoice, KafkaSettings, RegistrySettings, ServiceSettings
from services.stack.servers import KafkaServer
from services.storage.log_clients import SiteClients
from tests.waiting import wait_until

SCHEMA = Schema.of({"name": "string", "n": "int"})
LOG = LogId("out", "r0", 0)
BUCKET = 100


def cluster_of(server: KafkaServer, site: str = "a", row_producer: ClientChoice = "auto") -> Cluster:
    settings = ServiceSettings(sites={site: KafkaSettings(bootstrap=server.bootstrap)}, row_producer=row_producer)
    return Cluster(site, settings, "test")


# What topics hold, and what it means.


def records_of(cluster: Cluster, topic: str, read_committed: bool = False) -> list[Any]:
    partition = TopicPartition(topic, 0)
    with closing(cluster.make_consumer(read_committed=read_committed)) as consumer:
        consumer.assign([partition])
        first, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
        return list(read_range(consumer, partition, first, end))


def stable_of(cluster: Cluster, topic: str) -> tuple[list[int], list[str]]:
    """Ids and values of q.stable, as a committed reader of kafka-python sees them."""
    found = records_of(cluster, topic, read_committed=True)
    return [int(dict(record.headers)[ID]) for record in found], [record.value.decode() for record in found]


def stable_by_confluent(server: KafkaServer, topic: str) -> list[str]:
    """Values of q.stable, as another client sees them with its usual settings (read_committed)."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "any", "enable.partition.eof": True, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[str] = []
    try:
        while True:
            message = consumer.poll(10)
            assert message is not None, f"{topic} does not answer"
            error, value = message.error(), message.value()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            assert value is not None, "a row without a value"
            found.append(value.decode())
    finally:
        consumer.close()


def replayed(records: list[dict[str, Any]]) -> list[str]:
    """What the changelog leaves, by the contract's rules, which it must keep."""
    held: list[tuple[int, str, str]] = []
    seq = stable_seq = epoch = 0
    for record in records:
        kind = record["type"]
        assert record["seq"] == seq + 1
        seq = record["seq"]
        stable_seq = seq if kind == "stable" else stable_seq
        assert record["stable_seq"] == stable_seq
        assert record["epoch"] > epoch if kind == "undo" else record["epoch"] >= epoch
        epoch = record["epoch"]
        if kind == "stable":
            assert all(kind == "stable" for _, kind, _ in held), "a stable row follows tentative ones"
        if kind in ("stable", "tentative"):
            held.append((seq, kind, json.dumps(record["data"])))
        elif kind == "undo":
            assert all(kind == "tentative" for at, kind, _ in held if at > record["after_seq"])
            held = [row for row in held if row[0] <= record["after_seq"]]
    return [data for _, _, data in held]


def values_of(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in records_of(cluster, topic)]


# The outlet by itself: frames in, records out, no instance.


def data(first_id: int, count: int = 1, tentative: bool = False, epoch: int = 0, at: int | None = None) -> Data:
    """Rows whose times and values are their ids (or begin with `at`)."""
    first = first_id if at is None else at
    rows = [{"time": n, "name": f"k{n % 3}é", "n": n} for n in range(first, first + count)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)
    return Data(Origin("r0", 1), epoch, first_id, batch, tentative, ((1, 0),), 0, ("jfk",) if tentative else ())


def boundary(time_us: int, next_id: int, epoch: int = 0) -> Boundary:
    anchor = Anchor(time_us, time_us - 1, (("out/0", next_id),), (("f/0", next_id),))
    return Boundary(Origin("r0", 1), epoch, time_us, False, 7, 8, State.STABLE, anchor)


@dataclass
class Life:
    """One life of an egress's outlet, at the home site or (site given) at one of several that has no q.stable."""

    cluster: Cluster
    name: str
    site: str = ""
    skip_to: int = 0
    has_latest: bool = False
    has_debezium: bool = False
    registry: str = ""
    """The address of the registry of q.records; "" for none."""
    format: str = "avro"
    codes: list[int] = field(default_factory=list)
    schema: Schema = SCHEMA
    version: int | None = None
    """Of the query, whose columns are `schema`; None: it has not evolved."""
    others: Mapping[int, Schema] = field(default_factory=dict)
    """The columns of other versions."""

    def __post_init__(self) -> None:
        schemas = dict(sorted({**self.others, self.version or 1: self.schema}.items()))
        out_topic, stable_topic = f"{self.name}.out{self.site and '.'}{self.site}", f"{self.name}.stable"
        self.stable: StableTopic | None = None
        if not self.site:
            self.stable = StableTopic(self.cluster, stable_topic, f"boreal.{stable_topic}", out_topic, self.codes.append)
        self.latest: LatestTopic | None = None
        if self.has_latest:
            self.latest = LatestTopic(self.cluster, f"{self.name}.latest", out_topic, self.codes.append)
        self.debezium: LatestTopic | None = None
        if self.has_debezium:
            form = DebeziumForm("q", self.schema, ("name",), schemas)
            self.debezium = LatestTopic(self.cluster, f"{self.name}.debezium", out_topic, self.codes.append, form)
        self.records: StableTopic | None = None
        if self.registry or self.format in ("csv", "arrow"):
            topic = f"{self.name}.records"
            records: RecordForm
            if self.registry:
                registry = Registry("main", RegistrySettings(url=self.registry), self.format)
                records = RegisteredForm(registry, self.format, topic, "q", lambda: schemas)
            else:
                records = PlainForm(self.format, lambda: schemas)
            arguments = self.cluster, topic, f"boreal.{topic}", out_topic, self.codes.append
            self.records = StableTopic(*arguments, records)
        rows = RowTopics(self.stable, self.latest, self.debezium, self.records)
        self.tail: OutTail = read_out_tail(self.cluster, out_topic, rows.next_id)
        changelog = Changelog("q", self.schema, ("name",), BUCKET, place=self.tail.place)
        incarnation = self.tail.incarnation + 1
        self.delays = RecentDelays(1_000_000)
        self.clients = SiteClients(self.cluster)
        self.out = OutTopic(
            self.clients,
            out_topic,
            changelog,
            OutWriter(incarnation, self.tail.end, self.version),
            rows,
            self.delays,
            lambda: "r0",
            self.codes.append,
        )
        rows.begin(incarnation, self.tail)
        self.epoch = self.tail.place.epoch + 1 if self.tail.place else 0
        self.give(Start(Origin("r0", incarnation), self.epoch, max(changelog.place.next_stable_id, self.skip_to)))

    @property
    def next_id(self) -> int:
        return self.out.changelog.place.next_stable_id

    def give(self, *frames: Frame) -> None:
        for frame in frames:
            self.out.append(LOG, frame)

    def give_rows(self, count: int = 1) -> None:
        self.give(data(self.next_id, count, epoch=self.epoch))

    def settle(self) -> None:
        wait_until(lambda: self.out.confirmed == self.out.appended, "all frames are confirmed")

    def close(self) -> None:
        self.out.close()
        self.clients.close()
        for topic in (self.stable, self.latest, self.debezium, self.records):
            if topic is not None:
                topic.close()
