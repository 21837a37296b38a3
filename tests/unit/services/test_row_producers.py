"""What librdkafka is given, and when: never more of a topic while some of it is on its way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.errors import KafkaError

from services.kafka import row_producers
from services.kafka.row_producers import LibrdkafkaRows, RowRecord

confluent_kafka = pytest.importorskip("confluent_kafka")


class Message:
    """A record that Kafka has, at an offset."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class Producer:
    """librdkafka's: Kafka answers when the test says so. room: how many more records it takes."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.room = 1 << 30
        self._callbacks: list[Callable[..., None] | None] = []
        self._stored = 0

    def produce(
        self, topic: str, value: bytes, key: Any, partition: int, callback: Any, on_delivery: Any, timestamp: int, headers: Any
    ) -> None:
        if not self.room:
            raise BufferError
        self.room -= 1
        self.values.append(value)
        self._callbacks.append(callback)

    def poll(self, timeout: float) -> int:
        if not self.room:
            self.room = 1 << 30
        time.sleep(0.001)
        return 0

    def flush(self, timeout: float) -> int:
        self.answer()
        return 0

    def purge(self, **options: Any) -> None:
        pass

    def answer(self, error: Any = None) -> None:
        """Kafka takes what is on its way, or refuses it."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._stored += 1
            if callback is not None:
                callback(error, Message(self._stored - 1))


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    made = Producer()
    monkeypatch.setattr(row_producers, "_make", lambda options, errors: made)
    return made


@pytest.fixture
def rows(producer: Producer) -> Iterator[LibrdkafkaRows]:
    made = LibrdkafkaRows({})
    yield made
    made.close(1)


class Calls:
    """What becomes of calls of `send_all`."""

    def __init__(self, rows: LibrdkafkaRows) -> None:
        self.rows = rows
        self.stored: list[int] = []
        self.refused: list[Exception] = []

    def send(self, first: int, upto: int) -> None:
        records: list[RowRecord] = [(b"%d" % number, None, []) for number in range(first, upto)]
        self.rows.send_all("q.out", records, self.stored.append, self.refused.append)


def values(upto: int) -> list[bytes]:
    return [b"%d" % number for number in range(upto)]


def test_records_wait_for_those_on_their_way_and_then_go_together(producer: Producer, rows: LibrdkafkaRows) -> None:
    calls = Calls(rows)
    for first, upto in [(0, 3), (3, 5), (5, 6)]:
        calls.send(first, upto)
    assert producer.values == values(3) and not calls.stored
    producer.answer()
    assert producer.values == values(6) and calls.stored == [2]
    producer.answer()
    assert calls.stored == [2, 4, 5] and not calls.refused
    calls.send(6, 7)
    assert producer.values == values(7), "nothing is on its way"


def test_only_so_many_go_at_once_and_each_once(
    producer: Producer, rows: LibrdkafkaRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where librdkafka has no room in between."""
    monkeypatch.setattr(row_producers, "_AT_ONCE", 4)
    calls = Calls(rows)
    producer.room = 2
    calls.send(0, 9)
    assert producer.values == values(4)
    producer.answer()
    assert producer.values == values(8) and not calls.stored
    producer.answer()
    producer.answer()
    assert producer.values == values(9) and calls.stored == [8]


def test_what_waits_is_refused_with_what_it_waits_for(producer: Producer, rows: LibrdkafkaRows) -> None:
    calls = Calls(rows)
    calls.send(0, 2)
    calls.send(2, 4)
    producer.answer(confluent_kafka.KafkaError(confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE))
    assert len(calls.refused) == 2 and all(isinstance(error, KafkaError) for error in calls.refused)
    assert producer.values == values(2) and not calls.stored


def test_nothing_more_is_sent_once_it_is_silent(producer: Producer, rows: LibrdkafkaRows) -> None:
    calls = Calls(rows)
    calls.send(0, 2)
    calls.send(2, 4)
    rows.silence()
    producer.answer()
    assert producer.values == values(2) and calls.stored == [1] and len(calls.refused) == 1
