"""Instances with few rows share a thread; one whose work may take long, or wait, has its own again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from boreal.model.frames import Boundary, Data, Frame, LogId, Origin, State
from logs.memory_checkpoints import MemoryCheckpointStore
from reconcile.events import Effect, Event, Frames, Heartbeat, InstanceId, Received, Tail, Threshold, Tick
from reconcile.instance import Instance
from services.hosting import host as host_module
from services.hosting.host import ALONE_US, BUSY_US, FEW_ROWS, InstanceHost, Outlet
from services.hosting.host_loop import HostLoop
from services.hosting.process import now_us
from tests.waiting import wait

FAR_US = 3_600_000_000
LOG = LogId("in", "", 0)
ORIGIN = Origin("", 1)
QUIET = Frames(LOG, ((0, Boundary(ORIGIN, 0, 7, False, 0, 0)),), 1)


def rows(count: int) -> Frames:
    batch = pa.record_batch({"time": [1] * count})
    return Frames(LOG, ((0, Data(ORIGIN, 0, 0, batch, False, ((1, 1),), 1)),), 1)


MANY_ROWS = rows(FEW_ROWS + 1)
PEER = InstanceId("main", "r1", 0)
BEAT = Received(Heartbeat(PEER, State.STABLE))


@pytest.fixture
def hosts() -> Iterator[HostLoop]:
    hosts = HostLoop()
    yield hosts
    hosts.close()


class Turns:
    """A host whose turns are written down."""

    is_patient = False

    def __init__(self) -> None:
        self.turns = 0
        self.due: int | None = FAR_US
        self.is_alone = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def take_turn(self) -> int | None:
        self.turns += 1
        self.may_go_on.wait(10)
        return None if self.due is None else now_us() + self.due

    def run_alone(self) -> None:
        self.is_alone = True


def test_one_has_a_turn_when_it_joins_when_it_is_woken_and_when_it_is_due(hosts: HostLoop) -> None:
    one, other = Turns(), Turns()
    for each in (one, other):
        hosts.join(each)
    assert wait(lambda: (one.turns, other.turns) == (1, 1))
    hosts.wake(one, now_us())
    assert wait(lambda: one.turns == 2)
    one.due = 1_000
    hosts.wake(one, now_us())
    assert wait(lambda: one.turns > 10)
    assert other.turns == 1


def test_one_that_asks_for_it_runs_alone_and_may_join_again(hosts: HostLoop) -> None:
    one = Turns()
    one.due = None
    hosts.join(one)
    assert wait(lambda: one.is_alone)
    hosts.wake(one, now_us())
    one.due = FAR_US
    hosts.join(one)
    assert wait(lambda: one.turns == 2)


def test_one_that_leaves_has_no_turn_any_more(hosts: HostLoop) -> None:
    one = Turns()
    one.due = 0
    hosts.join(one)
    assert wait(lambda: one.turns > 3)
    hosts.leave(one)
    turns = one.turns
    hosts.wake(one, now_us())
    other = Turns()
    hosts.join(other)
    assert wait(lambda: other.turns == 1)
    assert one.turns == turns


def test_who_leaves_waits_for_the_turn_that_it_has(hosts: HostLoop) -> None:
    one = Turns()
    one.may_go_on.clear()
    hosts.join(one)
    assert wait(lambda: one.turns == 1)
    leaving = threading.Thread(target=hosts.leave, args=(one,))
    leaving.start()
    leaving.join(0.05)
    assert leaving.is_alive()
    one.may_go_on.set()
    leaving.join(10)
    assert not leaving.is_alive()


class Scripted:
    """An instance that notes what it handles, and in which thread."""

    def __init__(self) -> None:
        self.me = InstanceId("main", "r0", 0)
        self.plan = SimpleNamespace(query="q")
        self.handled: list[tuple[Event, threading.Thread]] = []
        self.names: list[str] = []
        self.runs_here = True
        self.is_calm = True
        self.act: Callable[[], None] = lambda: None

    def is_starving(self, now: int) -> bool:
        return False

    def next_deadline(self) -> int:
        return now_us() + FAR_US

    def handle(self, event: Event, now: int) -> list[Effect]:
        if not isinstance(event, Tick):
            self.handled.append((event, threading.current_thread()))
            self.names.append(threading.current_thread().name)
            self.act()
        return []



class FreeOutlet:
    appended = confirmed = 0
    may_wait = False

    def append(self, log: LogId, frame: Frame) -> None:
        """Nothing is written here."""


class Hosted:
    """An instance with its host, which shares its thread by now."""

    def __init__(self, hosts: HostLoop) -> None:
        self.hosts = hosts
        self.instance, self.outlet, self.codes = Scripted(), FreeOutlet(), list[int]()
        self.host = InstanceHost(
            cast(Instance, self.instance),
            [],
            cast(Outlet, self.outlet),
            lambda items: None,
            MemoryCheckpointStore(),
            lambda log, first_id: True,
            self.codes.append,
            loop=hosts,
        )
        reader = SimpleNamespace(taken=lambda log: None)
        self.host.readers = cast(Any, SimpleNamespace(of=lambda log: reader, close=lambda: None))
        self.host.start()
        self.give(BEAT)
        self.give(BEAT)
        assert wait(lambda: self.was_shared)

    @property
    def was_shared(self) -> bool:
        """Whether the last event was handled in the thread that instances share."""
        return bool(self.instance.handled) and self.instance.handled[-1][1] is self.hosts._thread

    def give(self, event: Any) -> None:
        """Deliver an event, and wait until it is handled."""
        before = len(self.instance.handled)
        self.host.deliver(event)
        assert wait(lambda: len(self.instance.handled) == before + 1)


@pytest.fixture
def one(hosts: HostLoop) -> Iterator[Hosted]:
    one = Hosted(hosts)
    yield one
    one.host.close()


@pytest.mark.parametrize("event", [QUIET, Tail(LOG, Boundary(ORIGIN, 0, 7, False, 0, 0)), BEAT, rows(FEW_ROWS)])
def test_an_instance_handles_small_things_in_the_shared_thread(one: Hosted, event: Event) -> None:
    one.give(event)
    assert one.was_shared


def test_in_either_thread_log_lines_name_the_instance(one: Hosted) -> None:
    one.give(QUIET)
    one.give(MANY_ROWS)
    assert set(one.instance.names) == {"q.main.r0.0"}


def test_with_many_rows_it_has_a_thread_of_its_own_for_a_while(one: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    one.give(MANY_ROWS)
    assert not one.was_shared
    one.give(QUIET)
    assert not one.was_shared
    monkeypatch.setattr(host_module, "BUSY_US", 0)
    one.host._alone_until_us = 0
    one.give(QUIET)
    assert wait(lambda: one.host.is_shared)
    one.give(QUIET)
    assert one.was_shared


def test_the_while_begins_anew_with_what_comes_meanwhile(one: Hosted) -> None:
    """Small things can mean much work where many rows have come before."""
    for event in (MANY_ROWS, MANY_ROWS):
        one.host._alone_until_us = 0
        one.give(event)
        one.give(QUIET)
        assert not one.was_shared


def test_a_long_turn_in_its_own_thread_keeps_it_there(one: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    one.give(MANY_ROWS)
    monkeypatch.setattr(host_module, "LONG_TURN_S", 0.0)
    one.give(QUIET)
    assert wait(lambda: one.host._alone_until_us > now_us() + ALONE_US - BUSY_US)


def test_one_whose_operators_run_elsewhere_has_a_thread_of_its_own(one: Hosted) -> None:
    one.instance.runs_here = False
    one.give(QUIET)
    assert not one.was_shared


def test_what_may_ask_kafka_and_what_changes_the_plan_is_not_done_in_the_shared_thread(one: Hosted) -> None:
    one.give(Threshold(1, 1, 1, 1, 0))
    assert not one.was_shared


def test_it_has_its_own_thread_while_its_outlet_may_wait(one: Hosted) -> None:
    one.outlet.may_wait = True
    one.give(QUIET)
    assert not one.was_shared


def test_one_that_takes_long_has_its_own_thread_for_a_while(
    one: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "LONG_TURN_S", -1.0)
    one.give(QUIET)
    assert wait(lambda: not one.host.is_shared)
    monkeypatch.undo()
    one.give(QUIET)
    one.give(QUIET)
    assert not one.was_shared


def test_one_that_fails_ends_alone(one: Hosted, hosts: HostLoop) -> None:
    def fail() -> None:
        raise RuntimeError("seen by this one alone")

    other = Hosted(hosts)
    one.instance.act = fail
    one.give(QUIET)
    assert wait(lambda: one.codes == [1])
    other.give(QUIET)
    assert (other.was_shared, other.codes) == (True, [])
    other.host.close()


def test_one_that_is_closed_handles_nothing_more(one: Hosted, hosts: HostLoop) -> None:
    one.host.close()
    handled = len(one.instance.handled)
    one.host.deliver(QUIET)
    other = Turns()
    hosts.join(other)
    assert wait(lambda: other.turns == 1)
    assert len(one.instance.handled) == handled
