"""What the modules of `services` find in place of `threading`, `queue` and `time` while a run is under way.

The classes keep to the standard library's, as far as `services` uses them. Each waits in simulated time.
"""

from __future__ import annotations

import queue as real_queue
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from sys import modules
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

from role_simulation.scheduler import SimulatedThread, scheduler

EPOCH_US = 1_700_000_000_000_000
"""The simulated time at the start of each run, in microseconds since the epoch."""

Item = TypeVar("Item")

_numbers = count(1)


def now_us() -> int:
    """The simulated time, in microseconds since the epoch."""
    return EPOCH_US + scheduler().now_us


def _microseconds(seconds: float | None) -> int | None:
    """At least one, unless no time is to pass: whoever waits for a moment that is less ahead would never reach it."""
    if seconds is None or seconds <= 0:
        return None if seconds is None else 0
    return max(round(seconds * 1e6), 1)


def _deadline(timeout: float | None) -> int | None:
    """The simulated time after a timeout; None for none."""
    within_us = _microseconds(timeout)
    return None if within_us is None else scheduler().now_us + within_us


class Lock:
    """As `threading.Lock`."""

    _is_reentrant = False

    def __init__(self) -> None:
        self._owner: SimulatedThread | None = None
        self._depth = 0
        self._waiting: deque[SimulatedThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        run = scheduler()
        run.check_alive()
        run.may_preempt()
        me = run.current
        if self._depth and self._is_reentrant and self._owner is me:
            self._depth += 1
            return True
        deadline = None if timeout < 0 else _deadline(timeout)
        while self._depth:
            if not blocking:
                return False
            waiting = run.begin_wait()
            self._waiting.append(waiting)
            if not run.wait(None if deadline is None else deadline - run.now_us):
                self._waiting.remove(waiting)
                return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        # Also in a thread that was killed: nobody of its process will take the lock again.
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiting:
                self._waiting.popleft().wake()

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def give_up(self) -> int:
        """Release the lock whole, for a wait; returns what `take_back` needs."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_back(self, depth: int) -> None:
        self.acquire()
        self._depth = depth


class RLock(Lock):
    """As `threading.RLock`."""

    _is_reentrant = True


class Condition:
    """As `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: deque[SimulatedThread] = deque()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        run = scheduler()
        me = run.begin_wait()
        self._waiting.append(me)
        depth = self._lock.give_up()
        try:
            was_woken = run.wait(_microseconds(timeout))
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
            if me.process.is_dead:
                self._lock._depth += 1  # what releases it next did not get it again
        self._lock.take_back(depth)
        return was_woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        run = scheduler()
        deadline = _deadline(timeout)
        while not (result := predicate()):
            if deadline is not None and deadline <= run.now_us:
                break
            self.wait(None if deadline is None else (deadline - run.now_us) / 1e6)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            self._waiting.popleft().wake()
        scheduler().may_preempt()

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class ThreadEvent:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[SimulatedThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        run = scheduler()
        run.check_alive()
        if not self._is_set and (timeout is None or timeout > 0):
            me = run.begin_wait()
            self._waiting.append(me)
            run.wait(_microseconds(timeout))
            if me in self._waiting:
                self._waiting.remove(me)
        return self._is_set


class Thread:
    """As `threading.Thread`: it belongs to the process of the thread that starts it."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or f"thread-{next(_numbers)}"
        self.daemon = daemon
        self._run: Callable[[], object] = lambda: target(*args, **(kwargs or {}))
        self._simulated: SimulatedThread | None = None

    def start(self) -> None:
        run = scheduler()
        run.check_alive()
        assert run.current is not None, "threads are started by threads"
        self._simulated = run.start(run.current.process, self.name, self._run)
        self._simulated.of = self

    def join(self, timeout: float | None = None) -> None:
        assert self._simulated is not None, "it was never started"
        if not self._simulated.has_ended:
            run = scheduler()
            me, waiting = run.begin_wait(), self._simulated.waiting_for_end
            waiting.append(me)
            run.wait(_microseconds(timeout))
            if me in waiting:
                waiting.remove(me)

    def is_alive(self) -> bool:
        return self._simulated is not None and not self._simulated.has_ended


def current_thread() -> object:
    """As `threading.current_thread`; None for a thread that was not started by another one."""
    current = scheduler().current
    return None if current is None else current.of


class SimpleQueue(Generic[Item]):
    """As `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._waiting: deque[SimulatedThread] = deque()

    def put(self, item: Item) -> None:
        self._items.append(item)
        if self._waiting:
            self._waiting.popleft().wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        run = scheduler()
        run.check_alive()
        deadline = _deadline(timeout)
        while not self._items:
            if not block or (deadline is not None and deadline <= run.now_us):
                raise real_queue.Empty
            me = run.begin_wait()
            self._waiting.append(me)
            run.wait(None if deadline is None else deadline - run.now_us)
            if me in self._waiting:
                self._waiting.remove(me)
        return self._items.popleft()

    def get_nowait(self) -> Item:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


def sleep(seconds: float) -> None:
    """As `time.sleep`."""
    scheduler().sleep(round(seconds * 1e6))


THREADING = SimpleNamespace(
    Thread=Thread, Lock=Lock, RLock=RLock, Condition=Condition, Event=ThreadEvent, current_thread=current_thread
)
QUEUE = SimpleNamespace(SimpleQueue=SimpleQueue, Empty=real_queue.Empty)
TIME = SimpleNamespace(
    CLOCK_MONOTONIC=real_time.CLOCK_MONOTONIC,
    sleep=sleep,
    time=lambda: now_us() / 1e6,
    time_ns=lambda: now_us() * 1_000,
    monotonic=lambda: scheduler().now_us / 1e6,
    monotonic_ns=lambda: scheduler().now_us * 1_000,
    clock_gettime_ns=lambda _: scheduler().now_us * 1_000,
    perf_counter=lambda: scheduler().now_us / 1e6,
    thread_time=lambda: 0.0,
    strftime=real_time.strftime,
    gmtime=real_time.gmtime,
)

_REPLACED: tuple[tuple[ModuleType, SimpleNamespace], ...] = (
    (real_threading, THREADING),
    (real_queue, QUEUE),
    (real_time, TIME),
)


@contextmanager
def simulated_modules(replaced: Mapping[str, Any]) -> Iterator[None]:
    """Within it, all modules of `services` use simulated threads, queues and clocks. replaced: what else is replaced, by its
    full name."""
    undo: list[tuple[ModuleType, str, Any]] = []
    try:
        for name, module in list(modules.items()):
            if not name.startswith("services."):
                continue
            for real, simulated in _REPLACED:
                for attribute, value in list(vars(module).items()):
                    if value is real:
                        undo.append((module, attribute, value))
                        setattr(module, attribute, simulated)
        for full_name, value in replaced.items():
            module_name, _, attribute = full_name.rpartition(".")
            undo.append((modules[module_name], attribute, getattr(modules[module_name], attribute)))
            setattr(modules[module_name], attribute, value)
        yield
    finally:
        for module, attribute, value in reversed(undo):
            setattr(module, attribute, value)
