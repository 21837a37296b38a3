"""Where the user's topic ends: each leader is asked alone, and a silent one costs the others next to nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from services.kafka.clusters import Cluster
from services.source import user_topic as topic_module
from services.source.user_topic import ASK_SILENT_AGAIN_S, END_WITHIN_MS, SILENT_END_WITHIN_MS, UserTopic


class Consumer:
    """Partitions 0 and 2 are led by broker 0, 1 and 3 by broker 1."""

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self.asked: list[tuple[list[int], int]] = []
        self._client = SimpleNamespace(cluster=SimpleNamespace(leader_for_partition=lambda of: of.partition % 2))

    def end_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        numbers = [of.partition for of in partitions]
        self.asked.append((numbers, timeout_ms))
        if numbers[0] % 2 in self.silent:
            raise KafkaTimeoutError
        return {of: 10 * of.partition for of in partitions}


def test_a_silent_leader_is_asked_seldom_and_briefly_and_the_other_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    time_s = [0.0]
    monkeypatch.setattr(topic_module, "time", SimpleNamespace(monotonic=lambda: time_s[0]))
    consumer = Consumer()
    topic = UserTopic(cast(Cluster, SimpleNamespace(make_consumer=lambda **_: consumer)), "in", 25)
    numbers = range(4)
    whole: dict[int, Any] = {0: 0, 1: 10, 2: 20, 3: 30}
    assert topic.ends(numbers) == whole
    consumer.silent = {1}
    consumer.asked.clear()
    assert topic.ends(numbers) == topic.ends(numbers) == {0: 0, 2: 20}
    assert consumer.asked == [([0, 2], END_WITHIN_MS), ([1, 3], END_WITHIN_MS), ([0, 2], END_WITHIN_MS)]
    time_s[0] += ASK_SILENT_AGAIN_S
    consumer.asked.clear()
    assert topic.ends(numbers) == {0: 0, 2: 20}
    assert consumer.asked[-1] == ([1, 3], SILENT_END_WITHIN_MS)
    consumer.silent = set()
    time_s[0] += ASK_SILENT_AGAIN_S
    assert topic.ends(numbers) == topic.ends(numbers) == whole
    assert consumer.asked[-1] == ([1, 3], END_WITHIN_MS)
