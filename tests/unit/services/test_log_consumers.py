"""Consumers are ready for logs that are followed next, and are used again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from kafka.errors import KafkaConnectionError

from services.kafka.clusters import Cluster
from services.storage import log_consumers
from services.storage.log_consumers import LogConsumers
from tests.waiting import wait


class Consumer:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self, autocommit: bool) -> None:
        self.is_closed = True


class Kafka:
    """Makes consumers, those in the threads of spares when they may."""

    site = "a"

    def __init__(self) -> None:
        self.made: list[Consumer] = []
        self.may_fill = threading.Event()
        self.is_away = False

    def make_consumer(self, **options: Any) -> Consumer:
        if threading.current_thread().name.startswith("spare-"):
            self.may_fill.wait(10)
        if self.is_away:
            raise KafkaConnectionError("out of reach")
        self.made.append(Consumer())
        return self.made[-1]

    @property
    def open(self) -> int:
        """How many are not closed."""
        return sum(not consumer.is_closed for consumer in self.made)


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def consumers(kafka: Kafka) -> Iterator[LogConsumers]:
    made = LogConsumers(cast(Cluster, kafka))
    yield made
    kafka.may_fill.set()
    made.close()


def is_ready(consumers: LogConsumers, number: int) -> bool:
    return wait(lambda: len(consumers._ready) == number and not consumers._being_made)


def test_as_many_are_ready_as_there_are_readers_up_to_a_bound(
    kafka: Kafka, consumers: LogConsumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_consumers, "MOST_READY", 3)
    for _ in range(5):
        consumers.join()
    kafka.may_fill.set()
    assert is_ready(consumers, 3) and len(kafka.made) == 3


def test_one_that_was_used_is_used_again_the_one_that_has_rested_longest_first(kafka: Kafka, consumers: LogConsumers) -> None:
    kafka.may_fill.set()
    for _ in range(2):
        consumers.join()
    assert is_ready(consumers, 2)
    used = []
    for _ in range(4):
        with consumers.lend() as consumer:
            used.append(consumer)
    assert used == [kafka.made[0], kafka.made[1]] * 2 and len(kafka.made) == 2


def test_nobody_waits_for_one_and_when_the_last_is_taken_one_more_is_made(kafka: Kafka, consumers: LogConsumers) -> None:
    consumers.join()
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(consumers.lend())
        assert len(kafka.made) == 3, "none was ready"
        kafka.may_fill.set()
        assert is_ready(consumers, 1) and len(kafka.made) == 4
        stack.enter_context(consumers.lend())
        assert is_ready(consumers, 1) and len(kafka.made) == 5
    assert is_ready(consumers, 5)


def test_only_so_many_are_kept(kafka: Kafka, consumers: LogConsumers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_consumers, "MOST_KEPT", 2)
    kafka.may_fill.set()
    consumers.join()
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(consumers.lend())
    assert wait(lambda: not consumers._being_made) and kafka.open == 2


def test_one_with_which_something_failed_is_not_used_again(kafka: Kafka, consumers: LogConsumers) -> None:
    kafka.may_fill.set()
    consumers.join()
    with pytest.raises(KafkaConnectionError), consumers.lend() as consumer:
        raise KafkaConnectionError("lost")
    assert cast(Any, consumer).is_closed and consumer not in consumers._ready


def test_one_that_could_not_be_made_is_made_after_the_next_use(kafka: Kafka, consumers: LogConsumers) -> None:
    kafka.is_away = True
    kafka.may_fill.set()
    consumers.join()
    assert is_ready(consumers, 0)
    with pytest.raises(KafkaConnectionError), consumers.lend():
        pass
    assert wait(lambda: not consumers._being_made)
    kafka.is_away = False
    with consumers.lend():
        assert is_ready(consumers, 1) and len(kafka.made) == 2


def test_when_the_last_reader_has_left_none_is_kept(kafka: Kafka, consumers: LogConsumers) -> None:
    kafka.may_fill.set()
    consumers.join()
    consumers.join()
    assert is_ready(consumers, 2)
    with consumers.lend():
        consumers.leave()
        assert kafka.open == 2
        consumers.leave()
    assert kafka.open == 0
