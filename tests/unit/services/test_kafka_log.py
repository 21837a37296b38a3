"""What a log in Kafka keeps in memory while Kafka takes nothing, and what it does where Kafka has not what was sent."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import suppress
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.errors import IllegalStateError, KafkaTimeoutError, OutOfOrderSequenceNumberError
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.record_accumulator import RecordAccumulator

from boreal.model.frames import Boundary, LogId, Origin
from services.kafka.clusters import Cluster
from services.storage import kafka_log as kafka_module
from services.storage.kafka_log import AppendRefusedError, KafkaLog, SiteClients
from tests.waiting import start_until_it_waits

LIMIT = 2 << 20


class Kafka:
    """A cluster whose topics are empty, and whose producer keeps all that it is given, as kafka-python does."""

    def __init__(self) -> None:
        self._sender = self
        self.config = {"request_timeout_ms": 3_000}
        self.is_silent = False
        self._kept = RecordAccumulator(batch_size=16_384)

    def make_consumer(self, **options: Any) -> Kafka:
        return self

    def make_producer(self, **options: Any) -> Kafka:
        return self

    def assignment(self) -> set[TopicPartition]:
        return set()

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def seek(self, partition: TopicPartition, offset: int) -> None:
        pass

    def beginning_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    end_offsets = beginning_offsets

    def force_close(self) -> None:
        self.is_silent = True

    def send(self, topic: str, value: bytes, headers: list[Any], partition: int) -> FutureRecordMetadata:
        return self._kept.append(TopicPartition(topic, partition), 0, None, value, headers)[0]


def test_boundaries_that_kafka_does_not_take_keep_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_module, "UNACKNOWLEDGED_BYTES", LIMIT)
    log = KafkaLog(LogId("out", "r0", 0), "out", SiteClients(cast(Cluster, Kafka())))
    boundary = Boundary(Origin("r0", 1), 0, 7, False, 0, 0)

    def append() -> None:
        with suppress(AppendRefusedError):
            for _ in range(10_000):
                log.append_later(boundary)

    gc.collect()
    tracemalloc.start()
    writer = start_until_it_waits(append, lambda: log.unacknowledged)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert writer.is_alive() and log.unacknowledged > 500
    assert used < 1.5 * LIMIT
    log._fail(RuntimeError("the test is over"))
    writer.join(10)


def test_nothing_follows_a_frame_that_kafka_refuses_in_any_log_of_the_site() -> None:
    kafka, boundary = Kafka(), Boundary(Origin("r0", 1), 0, 7, False, 0, 0)
    site = SiteClients(cast(Cluster, kafka))
    one, other = (KafkaLog(LogId("out", "r0", partition), "out", site) for partition in (0, 1))
    one.append_later(boundary)
    one._fail(OutOfOrderSequenceNumberError())
    assert kafka.is_silent
    other._fail(IllegalStateError("the producer is closed"))
    for log in (one, other):
        with pytest.raises(AppendRefusedError, match=r"partition=0.*OutOfOrder"):
            log.append_later(boundary)


def test_a_consumer_that_no_longer_answers_is_replaced() -> None:
    """kafka-python's may never answer again: then no role could begin in its process."""

    class Deaf(Kafka):
        def __init__(self) -> None:
            super().__init__()
            self.made = 0
            self.closed = 0
            self.is_deaf = False

        def make_consumer(self, **options: Any) -> Deaf:
            self.made += 1
            self.is_deaf = self.made == 1
            return self

        def beginning_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
            if self.is_deaf:
                raise KafkaTimeoutError("no offsets")
            return dict.fromkeys(partitions, 0)

        def close(self, **options: Any) -> None:
            self.closed += 1

    kafka = Deaf()
    site = SiteClients(cast(Cluster, kafka))
    with pytest.raises(KafkaTimeoutError):
        KafkaLog(LogId("out", "r0", 0), "out", site)
    assert (kafka.made, kafka.closed) == (1, 1)
    for partition in (0, 1):
        assert KafkaLog(LogId("out", "r0", partition), "out", site).start == 0
    assert (kafka.made, kafka.closed) == (2, 1)
