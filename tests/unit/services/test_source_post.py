"""The post box while Kafka is away: what is handed to the producer, which keeps it for as long as an outage lasts."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.errors import MessageSizeTooLargeError
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata

from services.clusters import Cluster
from services.source import post
from services.source.post import PostBox
from services.source.spool import Spool
from tests.waiting import wait

LARGEST = 100


class Kafka:
    """A cluster, and its producer: it takes what it is sent when it is back."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_away = True
        self.letters: list[bytes] = []
        self._waiting: list[tuple[bytes, FutureProduceResult]] = []

    def producer(self, **options: Any) -> Kafka:
        return self

    def send(self, topic: str, value: bytes, **options: Any) -> FutureRecordMetadata:
        self.sent.append(value)
        result = FutureProduceResult(TopicPartition(topic, 0))
        self._waiting.append((value, result))
        future = FutureRecordMetadata(result, 0, 0, None, -1, -1, -1)
        if not self.is_away:
            self.come_back()
        return future

    def come_back(self) -> None:
        self.is_away = False
        waiting, self._waiting = self._waiting, []
        for value, result in waiting:
            if len(value) > LARGEST:
                result.failure(MessageSizeTooLargeError("too large"))
            else:
                result.success((0, 0, None))

    def refuse(self, record: bytes, reason: str) -> FutureRecordMetadata:
        self.letters.append(record)
        return self.send("q.dlq", reason.encode())

    def close(self, **options: Any) -> None:
        pass


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    monkeypatch.setattr(post, "STALLED_S", 0.02)
    return Kafka()


@pytest.fixture
def box(kafka: Kafka, tmp_path: Path) -> Iterator[PostBox]:
    with closing(PostBox(cast(Cluster, kafka), "in", Spool(tmp_path, 50 << 20), kafka.refuse)) as made:
        yield made


def test_what_is_spooled_is_handed_over_once_however_long_kafka_is_away(kafka: Kafka, box: PostBox) -> None:
    assert not box.post([b"a"])
    time.sleep(0.5)  # as long as 25 tries may take
    assert kafka.sent == [b"a"] * 2  # when it was posted, and from the spool
    assert not box.post([b"b"])
    kafka.come_back()
    assert wait(lambda: box.is_empty)
    assert kafka.sent == [b"a", b"a", b"b"]
    assert box.post([b"c"])


def test_a_record_that_is_too_large_for_the_topic_holds_up_none_behind_it(kafka: Kafka, box: PostBox) -> None:
    large = b"l" * (LARGEST + 1)
    assert not box.post([b"a", large, b"b"])
    assert not box.post([b"c"])
    kafka.come_back()
    assert wait(lambda: box.is_empty)
    assert kafka.letters == [large] and kafka.sent.count(b"c") == 1 and box.refused == 1
    assert box.post([b"d"])


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may become longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_does_not_keep_what_is_spooled_from_kafka(kafka: Kafka, box: PostBox) -> None:
    assert not box.post([b"a"])
    with full_disk():
        with pytest.raises(OSError):
            box.post([b"b"])
        kafka.come_back()
        assert wait(lambda: box.is_empty)
        assert box.post([b"c"])
    assert "spool" in {thread.name for thread in threading.enumerate()}
    kafka.is_away = True
    assert not box.post([b"d"])
    kafka.come_back()
    assert wait(lambda: box.is_empty) and kafka.sent[-1] == b"d"
