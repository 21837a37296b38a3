"""What every process does alike: it says how it is, whatever happens."""

from __future__ import annotations

import itertools
import json
import queue
import time
from contextlib import closing
from typing import Any, cast

import pytest

from services import process
from services.clusters import Cluster
from services.process import StatusPublisher


class Kafka:
    """A cluster, and its producer."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def producer(self, **options: Any) -> Kafka:
        return self

    def send(self, topic: str, value: bytes, **options: Any) -> None:
        self.said.put(json.loads(value))

    def close(self, **options: Any) -> None:
        pass


def test_a_status_that_cannot_be_made_once_is_not_the_last() -> None:
    tries = itertools.count()

    def make_status() -> dict[str, Any]:
        if next(tries) == 0:
            raise RuntimeError("dictionary changed size during iteration")
        return {"ready": True}

    kafka = Kafka()
    with closing(StatusPublisher(cast(Cluster, kafka), "node.q.r0", make_status)) as publisher:
        publisher.now()
        assert kafka.said.get(timeout=10)["query"] == "q"


def test_a_status_is_of_the_walls_time_though_that_was_set_since_the_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    XX
    kafka = Kafka()
    with closing(StatusPublisher(cast(Cluster, kafka), "monitor", lambda: {"ready": True})):
        assert abs(kafka.said.get(timeout=10)["at_ms"] - time.time() * 1_000) < 5_000


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this kernel does not tell how long the machine has slept")
def test_the_services_clock_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = time.clock_gettime_ns

    def after_an_hours_sleep(clock: int) -> int:
        return asleep(clock) + (3_600_000_000_000 if clock == time.CLOCK_BOOTTIME else 0)

    before = process.now_us()
    monkeypatch.setattr(time, "clock_gettime_ns", after_an_hours_sleep)
    assert process.now_us() - before >= 3_600_000_000
