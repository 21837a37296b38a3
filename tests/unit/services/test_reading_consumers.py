"""Logs are searched with a few consumers, each by one thread at a time."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any, cast

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError

from services.kafka.clusters import Cluster
from services.storage.reading_consumers import MOST, ReadingConsumers
from tests.waiting import wait


class Consumer:
    is_closed = False

    def close(self, **options: Any) -> None:
        self.is_closed = True


class Kafka:
    def __init__(self) -> None:
        self.made: list[Consumer] = []
        self.is_away = False

    def make_consumer(self, **options: Any) -> Consumer:
        if self.is_away:
            raise KafkaConnectionError
        self.made.append(Consumer())
        return self.made[-1]


def consumers_of(kafka: Kafka) -> ReadingConsumers:
    return ReadingConsumers(cast(Cluster, kafka))


def test_one_is_enough_for_those_who_search_one_after_the_other() -> None:
    kafka = Kafka()
    consumers = consumers_of(kafka)
    for _ in range(3):
        with consumers.lend() as consumer:
            assert consumer is kafka.made[0]
    consumers.close()
    assert kafka.made[0].is_closed and len(kafka.made) == 1


def test_several_search_at_one_moment_each_with_its_own_and_one_more_waits() -> None:
    kafka, given = Kafka(), list[Any]()
    consumers = consumers_of(kafka)

    def search() -> None:
        with consumers.lend() as consumer:
            given.append(consumer)

    with ExitStack() as open_:
        lent = [open_.enter_context(consumers.lend()) for _ in range(MOST)]
        assert len(set(lent)) == MOST
        late = threading.Thread(target=search)
        late.start()
        late.join(0.1)
        assert late.is_alive() and not given
    late.join(10)
    assert given[0] in lent and len(kafka.made) == MOST


def test_one_that_has_not_answered_is_not_used_again() -> None:
    kafka = Kafka()
    consumers = consumers_of(kafka)
    with pytest.raises(KafkaTimeoutError), consumers.lend():
        raise KafkaTimeoutError
    with consumers.lend() as consumer:
        assert kafka.made[0].is_closed and consumer is kafka.made[1]
    with pytest.raises(ValueError), consumers.lend():
        raise ValueError
    with consumers.lend() as consumer:
        assert consumer is kafka.made[1], "it has answered"


def test_one_that_cannot_be_made_leaves_room_for_others() -> None:
    kafka = Kafka()
    consumers = consumers_of(kafka)
    kafka.is_away = True
    for _ in range(2 * MOST):
        with pytest.raises(KafkaConnectionError), consumers.lend():
            pass
    kafka.is_away = False
    with consumers.lend() as consumer:
        assert consumer is kafka.made[0]


def test_one_that_is_lent_when_all_are_closed_is_closed_afterwards() -> None:
    kafka = Kafka()
    consumers = consumers_of(kafka)
    with consumers.lend():
        consumers.close()
        assert not kafka.made[0].is_closed
    assert wait(lambda: kafka.made[0].is_closed)
