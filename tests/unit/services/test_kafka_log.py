"""What a log in Kafka keeps in memory while Kafka takes nothing."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from contextlib import suppress
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.record_accumulator import RecordAccumulator

from boreal.frames import Boundary, LogId, Origin
from services.log import kafka as kafka_module
from services.log.kafka import AppendRefused, KafkaLog, Site
from tests.waiting import start_until_it_waits

LIMIT = 2 << 20


class Kafka:
    """A site whose topics are empty, and whose producer keeps all that it is given, as kafka-python does."""

    def __init__(self) -> None:
        self.reading = threading.RLock()
        self.consumer = self.producer = self
        self._kept = RecordAccumulator(batch_size=16_384)

    def assignment(self) -> set[TopicPartition]:
        return set()

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def seek(self, partition: TopicPartition, offset: int) -> None:
        pass

    def beginning_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    end_offsets = beginning_offsets

    def send(self, topic: str, value: bytes, headers: list[Any], partition: int) -> FutureRecordMetadata:
        return self._kept.append(TopicPartition(topic, partition), 0, None, value, headers)[0]


def test_boundaries_that_kafka_does_not_take_keep_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_module, "UNACKNOWLEDGED_BYTES", LIMIT)
    log = KafkaLog(LogId("out", "r0", 0), "out", cast(Site, Kafka()))
    boundary = Boundary(Origin("r0", 1), 0, 7, False, 0, 0)

    def append() -> None:
        with suppress(AppendRefused):
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
