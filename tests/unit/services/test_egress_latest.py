"""What the egress holds for q.latest while that cannot be written."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata

from boreal.frames import Data, Origin
from boreal.schema import Schema
from services.clusters import RECORD_BYTES, Cluster
from services.egress import latest as latest_module
from services.egress.latest import LatestTopic
from services.egress.tail import StableRow
from services.records import Changelog
from tests.waiting import start_until_it_waits

SCHEMA = Schema.of({"n": "int"})
PLACE = TopicPartition("q.latest", 0)


class Kafka:
    """A cluster, with its consumer of an empty q.latest and its producer, which has a record only when it is told so."""

    def __init__(self) -> None:
        self.waiting: list[FutureProduceResult] = []

    def consumer(self) -> Kafka:
        return self

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def seek(self, partition: TopicPartition, offset: int) -> None:
        pass

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PLACE: 0}

    end_offsets = beginning_offsets

    def position(self, partition: TopicPartition) -> int:
        return 0

    def close(self) -> None:
        pass

    def producer(self) -> Kafka:
        return self

    def send(self, topic: str, value: bytes, **options: Any) -> FutureRecordMetadata:
        self.waiting.append(FutureProduceResult(PLACE))
        return FutureRecordMetadata(self.waiting[-1], 0, 0, None, -1, -1, -1)

    def take_all(self) -> None:
        while self.waiting:
            self.waiting.pop().success((0, 0, None))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    monkeypatch.setattr(latest_module, "ON_THE_WAY_BYTES", 10 * RECORD_BYTES)
    return Kafka()


def latest_topic(kafka: Kafka, codes: list[int]) -> LatestTopic:
    """codes: with which it would end its process."""
    return LatestTopic(cast(Cluster, kafka), "q.latest", "q.out", codes.append)


def give(latest: LatestTopic, changelog: Changelog, first: int) -> None:
    numbers = pa.array(range(first, first + 3), pa.int64())
    batch = pa.RecordBatch.from_arrays([numbers, numbers], schema=SCHEMA.arrow)
    given = changelog.take(Data(Origin("r0", 1), 0, first, batch, False, ((1, 0),), 0), 0, "r0")
    assert given is not None
    latest.take(given)


def test_what_kafka_does_not_take_is_bounded_and_beyond_that_the_process_ends(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    codes = list[int]()
    latest, changelog = latest_topic(kafka, codes), Changelog("q", SCHEMA, ("n",), 100)
    for first in range(0, 300, 3):
        give(latest, changelog, first)
    assert codes == [1]
    assert len(kafka.waiting) == 12
    assert "q.latest does not take what q.out does" in caplog.text


def test_what_kafka_takes_is_not_counted_any_more(kafka: Kafka) -> None:
    codes = list[int]()
    latest, changelog = latest_topic(kafka, codes), Changelog("q", SCHEMA, ("n",), 100)
    for first in range(0, 300, 3):
        give(latest, changelog, first)
        kafka.take_all()
    assert codes == [] and latest.next_id == 300


def test_a_new_life_waits_where_it_lacks_more_than_may_be_on_its_way(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [StableRow(id_, b"%d" % id_, b"v", 0) for id_ in range(100)]
    monkeypatch.setattr(latest_module, "stable_rows", lambda *range_: iter(rows))
    codes = list[int]()
    latest = latest_topic(kafka, codes)
    writer = start_until_it_waits(lambda: latest.begin(0, 100), lambda: latest.next_id)
    assert writer.is_alive() and latest.next_id <= 10
    while writer.is_alive():
        kafka.take_all()
        writer.join(0.01)
    assert latest.next_id == 100 and codes == []
