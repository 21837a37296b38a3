"""What an instance's host remembers while Kafka takes nothing, and what happens to a thread of its that fails."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from boreal.model.errors import OperatorError
from boreal.model.frames import Boundary, Frame, LogId, Origin, State
from deployment.corrections import Correction
from logs.checkpoints import Checkpoint, CheckpointStore
from logs.memory_checkpoints import MemoryCheckpointStore
from reconcile.engine import HostFailed
from reconcile.events import (
    Append,
    CheckpointStored,
    Effect,
    Event,
    Frames,
    Heartbeat,
    InstanceId,
    Received,
    Reconciled,
    StateChanged,
    StoreCheckpoint,
    Tail,
    Tick,
)
from reconcile.instance import Instance
from services.hosting import host as host_module
from services.hosting.host import InstanceHost
from services.hosting.process import EXIT_BEGIN_ANEW, now_us
from services.storage.log_reader import LogReaders
from tests.waiting import wait

ME, PARTNER = InstanceId("main", "r0", 0), InstanceId("main", "r1", 0)
LOG = LogId("out", "r0", 0)


class Outlet:
    """A log of which Kafka has so many frames."""

    appended = 1
    confirmed = 0
    may_wait = False

    def append(self, log: LogId, frame: Frame) -> None:
        """Nothing of it matters here."""


class Scripted:
    """An instance that has nothing to do but what it is given."""

    def __init__(self, script: list[Effect]) -> None:
        self.me = ME
        self.plan = SimpleNamespace(query="q")
        self.script = script
        self.handled: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.starves = False

    def is_starving(self, now: int) -> bool:
        return self.starves

    def status(self) -> Any:
        return SimpleNamespace(alpha_x_us=2_700_000)

    def next_deadline(self) -> int:
        return now_us() + 10_000

    def handle(self, event: Event, now: int) -> list[Effect]:
        if not isinstance(event, Tick):
            self.handled.put(event)
        effects, self.script = self.script, []
        return effects


class Readers:
    """Those of an instance, which read nothing."""

    def __init__(self) -> None:
        self.are_closed = False

    def close(self) -> None:
        self.are_closed = True


def host_of(
    script: list[Effect], outlet: Outlet, store: CheckpointStore, exit: Callable[[int], None] = lambda code: None
) -> tuple[Scripted, InstanceHost]:
    instance = Scripted(script)
    host = InstanceHost(cast(Instance, instance), [], outlet, lambda items: None, store, lambda log, first_id: True, exit)
    host.readers = cast(LogReaders, Readers())
    return instance, host


def test_one_checkpoint_waits_for_kafka_and_the_next_comes_after_it() -> None:
    def copy(number: int) -> StoreCheckpoint:
        return StoreCheckpoint(number, 7, 7, (), (), b"state")

    outlet, store = Outlet(), MemoryCheckpointStore()
    instance, host = host_of([copy(number) for number in range(1, 50)], outlet, store)
    with closing(host):
        host.start()
        assert wait(lambda: not instance.script)
        assert len(host._pending) == 1
        outlet.confirmed = 1
        assert instance.handled.get(timeout=10) == CheckpointStored(1)
        instance.script = [copy(50)]
        assert instance.handled.get(timeout=10) == CheckpointStored(50)
    assert store.numbers(str(ME)) == [1, 50]


def test_a_host_that_is_closed_reads_nothing_more() -> None:
    _, host = host_of([], Outlet(), MemoryCheckpointStore())
    host.start()
    host.close()
    assert cast(Readers, host.readers).are_closed


def test_a_failure_behind_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(checkpoint: Checkpoint) -> None:
        raise RuntimeError("nobody sees this")

    outlet, store, codes = Outlet(), MemoryCheckpointStore(), list[int]()
    outlet.confirmed = 1
    monkeypatch.setattr(store, "put", fail)
    _, host = host_of([StoreCheckpoint(1, 7, 7, (), (), b"state")], outlet, store, codes.append)
    with closing(host):
        host.start()
        assert wait(lambda: codes == [1])


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (OperatorError("operators.tagged: ValueError: no"), "operators.tagged: ValueError: no", 1),
        (
            HostFailed("Traceback\nboreal.model.errors.OperatorError: operators.tagged: no\nin operator tagged, in the step"),
            "operators.tagged: no",
            EXIT_BEGIN_ANEW,
        ),
        (
            HostFailed("the state before order 3 of incarnation 1 is lost"),
            "the operators in Spark failed, or their state is lost",
            4,
        ),
        (RuntimeError("what"), "RuntimeError: what", 1),
    ],
)  # fmt: skip
def test_what_ends_the_process_is_told_before(error: Exception, said: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str | int] = []
    instance, host = host_of([], Outlet(), MemoryCheckpointStore(), told.append)
    host.on_failed = told.append
    monkeypatch.setattr(instance, "handle", Mock(side_effect=error))
    with closing(host):
        host.start()
        assert wait(lambda: len(told) == 2)
    assert told == [said, code]


def test_a_correction_is_told_with_its_phases_once_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Also to programs that read the log."""
    caplog.set_level(logging.INFO, "boreal.host")
    origin = Origin("r0", 1)
    told: list[Correction] = []
    script: list[Effect] = [
        StateChanged(State.UP_FAILURE),
        Append(LOG, Boundary(origin, 0, 7, True, 0, 0, missing=("jfk",), cause="jfk#1")),
        StateChanged(State.STABILIZATION),
    ]
    instance, host = host_of(script, Outlet(), MemoryCheckpointStore())
    host.on_corrected = told.append
    with closing(host):
        host.start()
        assert wait(lambda: host.status.state is State.STABILIZATION)
        redo_at = now_us()
        instance.script = [Reconciled(redo_at, 17, 4_096), StateChanged(State.STABLE)]
        assert wait(lambda: bool(told))
    [found] = told
    assert found.tentative_at is not None and found.redo_at == redo_at
    assert found.detected_at <= found.tentative_at <= found.redo_at <= found.done_at
    assert (found.missing, found.rows, found.checkpoint_bytes) == (("jfk",), 17, 4_096)
    facts = [record.facts for record in caplog.records if hasattr(record, "facts")]
    assert [fact.get("state") for fact in facts][:3] == ["UP_FAILURE", None, "STABILIZATION"]
    assert facts[1]["missing"] == ("jfk",) and facts[3]["rows"] == 17


def test_signs_of_life_that_nobody_takes_are_bounded_and_hold_back_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "WAITING_EVENTS", 10)
    _, host = host_of([], Outlet(), MemoryCheckpointStore())
    boundary = Boundary(Origin("r1", 1), 0, 7, False, 0, 0)
    for _ in range(100):
        host.deliver(Received(Heartbeat(PARTNER, State.STABLE)))
        host.deliver(Tail(LOG, boundary))
    assert host.inbox.qsize() == 10
    frames = Frames(LOG, cast(Any, ()), 0)
    host.deliver(frames)
    waiting = [host.inbox.get_nowait() for _ in range(11)]
    assert waiting[-1][1] is frames


def test_a_tick_that_cannot_wait_comes_before_what_has_come_and_says_since_when_that_waits() -> None:
    instance, host = host_of([], Outlet(), MemoryCheckpointStore())
    first, second = Received(Heartbeat(PARTNER, State.STABLE)), Received(Heartbeat(PARTNER, State.UP_FAILURE))
    host.deliver(first)
    host.deliver(second)
    (came_at, _), *_ = [host.inbox.get_nowait() for _ in range(2)]
    host.deliver(first)
    host.deliver(second)
    instance.starves = True
    tick = host._next()
    assert isinstance(tick, Tick) and tick.heard_until is not None and tick.heard_until >= came_at
    assert host._next() == tick, "the first of them waits on"
    instance.starves = False
    assert [host._next(), host._next(), host._next()] == [first, second, Tick()]
