"""The post box while Kafka is away: what is handed to the producer, which keeps it for as long as an outage lasts."""

from __future__ import annotations

import logging
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata

from boreal.model.errors import CorruptError
from services.kafka.clusters import Cluster
from services.source import post
from services.source.post import PostBox
from services.source.spool import Chunk, Spool, SpoolFull
from tests.waiting import wait

LARGEST = 100


class Kafka:
    """A cluster: it takes what its producers have sent when it is back. cannot_make: why no producer can be made; refusal: why
    it takes nothing."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.taken: list[bytes] = []
        self.is_away = True
        self.letters: list[bytes] = []
        self.tries = 0
        self.cannot_make: Exception | None = None
        self.refusal: KafkaError | None = None
        self._producers: list[Producer] = []
        self._of_letters = Producer(self)

    def make_producer(self, **options: Any) -> Producer:
        self.tries += 1
        if self.cannot_make is not None:
            raise self.cannot_make
        self._producers.append(Producer(self))
        return self._producers[-1]

    def come_back(self) -> None:
        self.is_away = False
        for producer in [*self._producers, self._of_letters]:
            producer.go_on()

    def refuse(self, record: bytes, reason: str) -> FutureRecordMetadata:
        self.letters.append(record)
        return self._of_letters.send("q.dlq", reason.encode())


class Producer:
    """One of Kafka's producers: once it has been refused something, all that it sends fails."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._waiting: list[tuple[bytes, FutureProduceResult]] = []
        self._failure: KafkaError | None = None

    def send(self, topic: str, value: bytes, **options: Any) -> FutureRecordMetadata:
        self._kafka.sent.append(value)
        result = FutureProduceResult(TopicPartition(topic, 0))
        self._waiting.append((value, result))
        future = FutureRecordMetadata(result, 0, 0, None, -1, -1, -1)
        if not self._kafka.is_away:
            self.go_on()
        return future

    def go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for value, result in waiting:
            too_large = MessageSizeTooLargeError("too large") if len(value) > LARGEST else None
            self._failure = self._failure or self._kafka.refusal or too_large
            if self._failure is not None:
                result.failure(self._failure)
            else:
                self._kafka.taken.append(value)
                result.success((0, 0, None))

    def close(self, **options: Any) -> None:
        self._waiting.clear()


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    monkeypatch.setattr(post, "STALLED_S", 0.02)
    return Kafka()


def box_of(kafka: Kafka, spool: Spool) -> PostBox:
    return PostBox(cast(Cluster, kafka), "in", spool, kafka.refuse)


@pytest.fixture
def box(kafka: Kafka, tmp_path: Path) -> Iterator[PostBox]:
    with closing(box_of(kafka, Spool(tmp_path, 50 << 20))) as made:
        yield made


def test_what_is_spooled_is_handed_over_once_however_long_kafka_is_away(kafka: Kafka, box: PostBox) -> None:
    assert not box.post([b"a"])
    assert wait(lambda: kafka.sent == [b"a"] * 2)  # when it was posted, and from the spool
    time.sleep(0.5)  # as long as 25 tries may take
    assert kafka.sent == [b"a"] * 2
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


@pytest.mark.parametrize("refusal", [TopicAuthorizationFailedError("in"), MessageSizeTooLargeError("too large")])
def test_what_kafka_refuses_once_it_takes_when_it_may(kafka: Kafka, box: PostBox, refusal: KafkaError) -> None:
    kafka.is_away = False
    kafka.refusal = refusal
    with pytest.raises(type(refusal)):
        box.post([b"a"])
    kafka.refusal = None
    assert box.post([b"b"]) and kafka.taken == [b"b"]


def test_what_is_spooled_and_refused_is_sent_when_it_may(kafka: Kafka, box: PostBox) -> None:
    assert not box.post([b"a"])
    kafka.refusal = TopicAuthorizationFailedError("in")
    kafka.come_back()
    sent = len(kafka.sent)
    assert wait(lambda: len(kafka.sent) > sent + 1) and not box.is_empty
    kafka.refusal = None
    assert wait(lambda: box.is_empty) and kafka.taken == [b"a"]


@pytest.mark.parametrize("error", [KafkaConnectionError("away"), OSError("no file descriptors")])
def test_a_producer_is_made_when_that_is_possible(kafka: Kafka, box: PostBox, error: Exception) -> None:
    kafka.cannot_make = error
    assert not box.post([b"a"])
    assert wait(lambda: kafka.tries > 2)
    kafka.is_away, kafka.cannot_make = False, None
    assert wait(lambda: box.is_empty) and kafka.taken == [b"a"]
    assert box.post([b"b"])


def test_making_a_producer_is_tried_now_and_then(kafka: Kafka, box: PostBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "STALLED_S", 60)
    kafka.cannot_make = KafkaConnectionError("away")
    assert not box.post([b"a"])
    assert wait(lambda: kafka.tries == 2)
    box.close()
    assert kafka.tries == 2


def test_what_the_spool_does_not_take_does_not_come_later(kafka: Kafka, box: PostBox, tmp_path: Path) -> None:
    with full_disk():
        for _ in range(3):
            with pytest.raises(OSError):
                box.post([b"a"])
    with closing(box_of(kafka, Spool(tmp_path / "small", 1))) as small:
        with pytest.raises(SpoolFull):
            small.post([b"b"])
        kafka.come_back()
        assert small.post([b"c"]) and box.post([b"d"])
    assert kafka.taken == [b"c", b"d"]


class Damaged(Spool):
    """It cannot be read, for a reason."""

    reason: Exception | None = None
    tries = 0

    def head(self) -> list[Chunk]:
        self.tries += 1
        if self.reason is not None:
            raise self.reason
        return super().head()


@pytest.mark.parametrize("reason", [OSError(5, "Input/output error"), CorruptError("00.log, byte 7: damaged")])
def test_while_the_spool_cannot_be_read_nothing_is_taken(
    kafka: Kafka, tmp_path: Path, reason: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "boreal.source")
    spool = Damaged(tmp_path, 50 << 20)
    spool.reason = reason
    with closing(box_of(kafka, spool)) as box:
        assert not box.post([b"a"])
        assert wait(lambda: spool.tries > 2)
        with pytest.raises(OSError, match="cannot be read, and nothing more is taken") as refused:
            box.post([b"b"])
        assert str(tmp_path) in str(refused.value) and box.failure == str(refused.value)
        assert [record.getMessage() for record in caplog.records if record.name == "boreal.source"] == [box.failure]
        spool.reason = None
        assert wait(lambda: box.failure is None)
        kafka.come_back()
        assert wait(lambda: box.is_empty)
        assert kafka.taken[-1] == b"a" and b"b" not in kafka.sent and box.post([b"c"])
