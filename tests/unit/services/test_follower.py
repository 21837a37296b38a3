"""A record that cannot be made sense of holds up none after it."""

from __future__ import annotations

import queue
from contextlib import closing
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from boreal.model.errors import CorruptError, ProtocolError, UserError
from services.kafka.clusters import Cluster
from services.kafka.follower import TopicFollower

PLACE = TopicPartition("t", 0)


class Record:
    def __init__(self, offset: int) -> None:
        self.offset = offset


class Consumer:
    """Of a topic of two records."""

    at = 0

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PLACE: 0}

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PLACE: 2}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.at = offset

    def position(self, partition: TopicPartition) -> int:
        return self.at

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Record]]:
        found = [Record(self.at)] if self.at < 2 else []
        self.at += len(found)
        return {PLACE: found}

    def close(self) -> None:
        pass


class Kafka:
    def make_consumer(self, **options: Any) -> Consumer:
        return Consumer()

    site = "a"


@pytest.mark.parametrize(
    "error",
    [
        UserError("late", "hmm", "is of a later version", "upgrade"),
        CorruptError("x"),
        ProtocolError("x"),
        KeyError("v"),
        OverflowError("cannot convert float infinity to integer"),
    ],
)
def test_what_take_cannot_understand_is_passed_over(error: Exception) -> None:
    taken: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take(record: ConsumerRecord) -> None:
        if record.offset == 0:
            raise error
        taken.put(record.offset)

    with closing(TopicFollower(cast(Cluster, cast(Any, Kafka())), "t", take)):
        assert taken.get(timeout=10) == 1
