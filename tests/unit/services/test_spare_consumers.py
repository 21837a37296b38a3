"""A consumer is kept ready for the next log that is followed, and not several."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from kafka.errors import KafkaConnectionError

from services.kafka.clusters import Cluster
from services.storage.log_reader import _SpareConsumers
from tests.waiting import wait


class Kafka:
    """Makes consumers, those in the threads of spares when they may, and counts them."""

    site = "a"

    def __init__(self) -> None:
        self.made = 0
        self.closed = 0
        self.may_fill = threading.Event()
        self.is_away = False

    def make_consumer(self, **options: Any) -> Any:
        if threading.current_thread().name.startswith("spare-"):
            self.may_fill.wait(10)
        if self.is_away:
            raise KafkaConnectionError("out of reach")
        self.made += 1
        return SimpleNamespace(close=self._close)

    def _close(self, autocommit: bool) -> None:
        self.closed += 1


def spares(kafka: Kafka) -> _SpareConsumers:
    return _SpareConsumers(cast(Cluster, kafka))


def test_logs_that_are_followed_at_the_same_time_have_one_spare_made_between_them() -> None:
    kafka = Kafka()
    spare = spares(kafka)
    for _ in range(3):
        spare.take()
    assert kafka.made == 3, "none was ready"
    kafka.may_fill.set()
    assert wait(lambda: kafka.made == 4)
    spare.take()
    assert wait(lambda: kafka.made == 5)
    spare.close()
    assert wait(lambda: kafka.closed == 1)


def test_a_spare_that_could_not_be_made_is_made_after_the_next_use() -> None:
    kafka = Kafka()
    kafka.is_away = True
    kafka.may_fill.set()
    spare = spares(kafka)
    assert wait(lambda: not spare._is_filling)
    kafka.is_away = False
    spare.take()
    assert wait(lambda: kafka.made == 2)
    spare.close()
