"""What feeding writes is what the source reads: the same rows as the file's."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata

import services.stack.feed
from boreal.model.errors import UserError
from boreal.query.spec import Stream
from embedded.file_sources import read_source
from embedded.paced_sources import Pace
from formats.record_parsing import RecordShape, read_records
from services.kafka.clusters import Cluster
from services.stack.feed import json_records

COLUMNS = {"carrier": "string", "flight": "int", "delay": "double", "late": "bool", "landed": "timestamp"}
CSV = """at,carrier,flight,delay,late,landed
2013-01-01T05:10:00Z,UA,1545,0.1,true,2013-01-01T08:30:00.000001Z
2013-01-01T05:10:00.000001Z,"a ""quoted"", ünïcode",9223372036854775807,1e300,false,NA
2013-01-01T05:11:00Z,,,,,
"""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schema": {**COLUMNS, "at": "timestamp"}},
        {"schema": {**COLUMNS, "at": "string"}},
        {"time": "landed", "schema": {"carrier": "string", "landed": "timestamp"}},
        {"schema": {
            **COLUMNS,
            "at": {"type": "timestamp", "path": "meta.at"},
            "delay": {"type": "double", "path": "legs[1].delay"},
            "late": {"type": "bool", "path": "legs[1]['so late']"},
            "flight": {"type": "int", "path": "meta.flight"},
        }},
    ],
)
def test_records_are_read_as_the_rows_that_they_were_made_of(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(CSV)
    stream = Stream.model_validate({"time": "at", "schema": COLUMNS, **changes})
    batch = read_source("s", stream, str(path)).batch
    assert batch.num_rows > 0
    shape = RecordShape.of(stream)
    rows = read_records(shape, json_records(stream, batch))
    assert not rows.reasons
    again = pa.RecordBatch.from_arrays([pa.array(rows.times), *rows.values], schema=batch.schema)
    assert again.to_pylist() == batch.to_pylist()


def test_a_file_cannot_be_fed_as_keys_and_headers(tmp_path: Path) -> None:
    stream = Stream.model_validate({"topic": "in", "time": "at", "schema": {"k": {"type": "string", "from": "key"}}})
    path = tmp_path / "rows.csv"
    path.write_text("at,k\n1,a\n")
    with pytest.raises(UserError, match=r"streams\.s\.schema\.k: is a part of records that rows of a file have not"):
        services.stack.feed.feed({}, {"s": stream}, {"s": read_source("s", stream, str(path))}, Pace(rate=1_000_000))


class Kafka:
    """A cluster and its clients: it has a topic, and acknowledges what it is sent when it is told to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.heartbeats: list[bytes | None] = []  # their keys
        self.closed: list[dict[str, Any]] = []
        self._waiting: list[FutureProduceResult] = []

    def make_producer(self, **options: Any) -> Kafka:
        return self

    def make_consumer(self) -> Kafka:
        return self

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    def send(self, topic: str, value: bytes, **options: Any) -> FutureRecordMetadata:
        result = FutureProduceResult(TopicPartition(topic, 0))
        future = FutureRecordMetadata(result, 0, 0, None, -1, -1, -1)
        self.sent.append(value)
        if "headers" in options:
            self.heartbeats.append(options.get("key"))
        self._waiting.append(result)
        return future

    def acknowledge(self) -> None:
        while self._waiting:
            self._waiting.pop(0).success((0, 0, None))

    def close(self, **options: Any) -> None:
        self.closed.append(options)


def test_while_kafka_takes_nothing_feeding_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services.stack.feed, "UNDER_WAY_MAX", 100, raising=False)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"at": {n}, "n": {n}}}\n' for n in range(1_000)))
    stream = Stream.model_validate({"topic": "in", "time": "at", "schema": {"n": "int"}})
    rows = {"s": read_source("s", stream, str(path))}
    kafka = Kafka()
    fed: list[int] = []
    pace = Pace(rate=1_000_000)
    clusters = {"s": cast(Cluster, kafka)}
    feeding = threading.Thread(target=lambda: fed.append(services.stack.feed.feed(clusters, {"s": stream}, rows, pace)))
    feeding.start()
    feeding.join(0.5)
    assert feeding.is_alive() and len(kafka.sent) <= 100
    deadline = time.monotonic() + 20
    while feeding.is_alive() and time.monotonic() < deadline:
        kafka.acknowledge()
        feeding.join(0.01)
    assert fed == [1_000]


def test_streams_that_get_no_rows_may_have_any_format(tmp_path: Path) -> None:
    fed = Stream.model_validate({"topic": "in", "time": "at", "schema": {"n": "int"}})
    others = {
        "typed": Stream.model_validate({"topic": "typed", "format": "avro", "time": "at", "schema": {"n": "int"}}),
        "keyed": Stream.model_validate({"topic": "keyed", "time": "at", "schema": {"k": {"type": "string", "from": "key"}}}),
    }
    path = tmp_path / "rows.jsonl"
    path.write_text('{"at": 1, "n": 1}\n')
    kafka = Kafka()
    clusters = dict.fromkeys(("s", *others), cast(Cluster, kafka))

    def wait(producer: object) -> None:
        kafka.acknowledge()

    rows = {"s": read_source("s", fed, str(path))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services.stack.feed._Producer, "flush", wait)
        assert services.stack.feed.feed(clusters, {"s": fed, **others}, rows, Pace(rate=1_000_000)) == 1


@pytest.mark.parametrize("is_end", [False, True])
def test_who_interrupts_feeding_does_not_wait_for_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_end: bool) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"at": 1, "n": 1}\n')
    stream = Stream.model_validate({"topic": "in", "time": "at", "schema": {"n": "int"}})
    kafka = Kafka()

    def interrupt(producer: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(services.stack.feed._Producer, "flush", interrupt)
    with pytest.raises(KeyboardInterrupt):
        if is_end:
            services.stack.feed.end(cast(Cluster, kafka), "in")
        else:
            rows = {"s": read_source("s", stream, str(path))}
            services.stack.feed.feed({"s": cast(Cluster, kafka)}, {"s": stream}, rows, Pace(rate=1_000_000))
    assert kafka.sent and {"timeout": 1.0} in kafka.closed
    assert kafka.heartbeats == [b"boundary"] * is_end, "a compacted topic takes no record without a key"
    assert all(options == {"timeout": 1.0} for options in kafka.closed if options)
