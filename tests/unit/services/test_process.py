"""What every process does alike: it says how it is, whatever happens."""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.future import Future

from services.hosting import process
from services.hosting.process import EXIT_FENCED, EXIT_STOPPED, ExitRequest, Resources, StatusDesk, StatusPublisher, StopSignal
from services.kafka import timekeeper
from services.kafka.clusters import Cluster
from services.kafka.timekeeper import Timekeeper
from services.kafka.topics import STATUS


class Answer(Future):
    """What `send` returns."""

    def get(self, timeout: float) -> Stamped:
        if self.failed():
            raise self.exception
        return cast(Stamped, self.value)


@dataclass
class Stamped:
    timestamp: int


class Kafka:
    """A cluster, and its producer. It stamps records with a time so far ahead of the wall, or refuses the topic for that."""

    def __init__(self, ahead_ms: int = 0, refuses: bool = False) -> None:
        self.said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.ahead_ms, self.refuses = ahead_ms, refuses

    def make_producer(self, **options: Any) -> Kafka:
        return self

    def send(self, topic: str, value: bytes, **options: Any) -> Answer:
        future = Answer()
        if topic == STATUS:
            self.said.put(json.loads(value))
        elif self.refuses:
            future.failure(TopicAuthorizationFailedError(topic))
        else:
            future.success(Stamped(time.time_ns() // 1_000_000 + self.ahead_ms))
        return future

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


def test_a_calm_role_says_less_often_how_it_is_but_at_once_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STATUS_INTERVAL_S", 0.05)
    kafka = Kafka()
    desk = StatusDesk(cast(Cluster, kafka))
    with closing(desk):
        calm = StatusPublisher(cast(Cluster, kafka), "node.q.r0", lambda: {"ready": True}, desk, lambda: True)
        StatusPublisher(cast(Cluster, kafka), "node.p.r0", lambda: {"ready": True}, desk)
        said = [kafka.said.get(timeout=10)["query"] for _ in range(100)]
        assert 0.3 < said.count("q") / said.count("p") < 0.7
        monkeypatch.setattr(process, "CALM_INTERVALS", 1_000_000)
        calm.now()
        assert "q" in [kafka.said.get(timeout=10)["query"] for _ in range(10)]


def test_what_changes_gathers_in_a_loaded_process_but_not_for_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STATUS_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(process, "LOADED_RESTS_S", (0.0, 3_600.0))
    kafka = Kafka()
    with closing(StatusDesk(cast(Cluster, kafka), load=lambda: 1)) as desk:
        ready = StatusPublisher(cast(Cluster, kafka), "node.q.r0", lambda: {"ready": True}, desk)
        assert kafka.said.get(timeout=10)["query"] == "q"
        ready.now()
        with pytest.raises(queue.Empty):
            kafka.said.get(timeout=0.2)
        StatusPublisher(cast(Cluster, kafka), "node.p.r0", lambda: {"ready": True}, desk)
        assert {kafka.said.get(timeout=10)["query"] for _ in range(2)} == {"p", "q"}


def test_all_roles_of_a_loaded_process_say_less_often_how_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STATUS_INTERVAL_S", 0.02)
    monkeypatch.setattr(process, "CALM_INTERVALS", 1_000_000)
    kafka, degree = Kafka(), 1
    with closing(StatusDesk(cast(Cluster, kafka), load=lambda: degree)) as desk:
        StatusPublisher(cast(Cluster, kafka), "node.q.r0", lambda: {"ready": True}, desk)
        assert kafka.said.get(timeout=10)["query"] == "q"
        with pytest.raises(queue.Empty):
            kafka.said.get(timeout=0.2)
        degree = 0
        assert kafka.said.get(timeout=10)["query"] == "q"


def test_a_status_is_of_the_walls_time_though_that_was_set_since_the_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    before, wall = process.now_us(), time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 3_600)
    kafka = Kafka()
    with closing(StatusPublisher(cast(Cluster, kafka), "monitor", lambda: {"ready": True})):
        assert abs(kafka.said.get(timeout=10)["at_ms"] - before / 1_000 - 3_600_000) < 60_000


def test_a_status_says_how_far_the_wall_is_off_once_the_broker_has_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_timekeeper", Timekeeper())
    kafka = Kafka(ahead_ms=-2_000)
    with closing(StatusPublisher(cast(Cluster, kafka), "monitor", lambda: {"ready": True})) as publisher:
        first = kafka.said.get(timeout=10)
        publisher.now()
        second = kafka.said.get(timeout=10)
    assert {first[name] for name in ("clock_offset_ms", "clock_uncertainty_ms", "clock_error_ms")} == {None}
    assert second["clock_offset_ms"] == pytest.approx(2_000, abs=second["clock_uncertainty_ms"] + 1)


def test_a_clock_that_is_begun_with_is_the_brokers() -> None:
    keeper = Timekeeper()
    keeper.begin(cast(Cluster, Kafka(ahead_ms=7_000)))
    assert abs(keeper.now_us() - time.time_ns() // 1_000 - 7_000_000) < 1_000_000


def test_the_clock_does_not_fall_for_a_thread_that_is_stopped_while_it_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the steady clock, and another thread corrects the shared one before it goes on."""
    steady = 0
    corrections: list[int] = []

    def steady_us() -> int:
        nonlocal steady
        before = steady
        if corrections:
            steady = corrections.pop()
            keeper._take(steady, 0)
        return before

    monkeypatch.setattr(timekeeper, "steady_us", steady_us)
    keeper = Timekeeper()
    first = keeper.now_us()
    keeper._take(steady, 0)  # the clock is far ahead, and slows down
    steady, corrections = 100, [100_000]
    assert keeper.now_us() == first + 100_000 - 10_000


def test_who_reads_the_clock_while_it_changes_waits_for_the_change() -> None:
    keeper = Timekeeper()
    with keeper._changing():
        reader = threading.Thread(target=keeper.now_us)
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
    reader.join(10)
    assert not reader.is_alive()


def test_where_the_broker_does_not_let_us_ask_the_wall_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_timekeeper", Timekeeper())
    kafka = Kafka(refuses=True)
    process._timekeeper.begin(cast(Cluster, kafka))
    assert abs(process.now_us() - time.time_ns() // 1_000) < 1_000_000
    with closing(StatusPublisher(cast(Cluster, kafka), "monitor", lambda: {"ready": True})) as publisher:
        for _ in range(3):
            publisher.now()
            assert kafka.said.get(timeout=10)["clock_offset_ms"] is None


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this kernel does not tell how long the machine has slept")
def test_the_services_clock_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = time.clock_gettime_ns

    def after_an_hours_sleep(clock: int) -> int:
        return asleep(clock) + (3_600_000_000_000 if clock == time.CLOCK_BOOTTIME else 0)

    before = process.now_us()
    monkeypatch.setattr(time, "clock_gettime_ns", after_an_hours_sleep)
    assert process.now_us() - before >= 3_590_000_000, "but for what it is just being slewed"


CHILD = "rows = bytearray(40_000_000)\nprint(len(rows), flush=True)\nwhile True: pass"


def test_what_a_process_takes_with_those_that_it_has_started_ends_with_them() -> None:
    alone, together = Resources(), Resources(counts_children=True)
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"40000000\n"
        together.share(1)  # from now on its time is known
        used = wait_for_cores(together)
        assert used["memory_bytes"] - alone.share(1)["memory_bytes"] > 40_000_000
        assert together.share(2)["memory_bytes"] < used["memory_bytes"] * 0.6
    finally:
        child.kill()
        child.communicate()
    assert together.share(1)["memory_bytes"] < used["memory_bytes"] - 30_000_000


def wait_for_cores(resources: Resources) -> dict[str, Any]:
    """What they take once the child has used some processor time."""
    while True:
        time.sleep(0.2)
        if (found := resources.share(1))["cores"] > 0.1:
            return found


@pytest.mark.parametrize("stops_first", [True, False])
def test_a_role_waits_for_its_end_without_a_look_at_the_clock(stops_first: bool) -> None:
    stopping, request = StopSignal(), ExitRequest()
    waiting = threading.Thread(target=request.wait, args=(stopping,))
    waiting.start()
    if stops_first:
        stopping.set()
    else:
        request.exit(EXIT_FENCED)
        request.exit(EXIT_STOPPED)
    waiting.join(10)
    assert not waiting.is_alive()
    assert request.code == (EXIT_STOPPED if stops_first else EXIT_FENCED), "the first request counts"


def test_a_role_that_was_stopped_before_it_waits_ends_at_once() -> None:
    stopping = StopSignal()
    stopping.set()
    ExitRequest().wait(stopping)
