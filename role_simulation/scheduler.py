"""Runs threads one at a time, in simulated time and in an order that a seed decides.

A simulated thread is a greenlet. It runs until it waits, or until a point where the scheduler takes the processor from it:
when it takes or gives a lock, and when it wakes another one. Time goes on only while all threads wait.

A thread belongs to a machine process, as it seems to the code: one that is killed never runs again and has no further effect,
and one that is frozen runs on later, as after SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from greenlet import getcurrent, greenlet

WAKE_US = 100
"""A thread that is woken runs within this time, in microseconds."""
PREEMPTED = 0.05
"""How often a thread loses the processor where it may."""
MOST_TURNS = 20_000
"""More turns than this at one moment are a loop that never waits."""


class ProcessKilled(BaseException):
    """Raised in each thread of a process that was killed: no handler of errors takes it."""


class Stuck(AssertionError):
    """A thread never waits, or the threads of the simulation wait for one another."""


@dataclass(eq=False)
class SimulatedProcess:
    """What is killed or frozen at one stroke."""

    name: str
    """Its name."""
    is_dead: bool = False
    """Whether it was killed."""
    is_frozen: bool = False
    """Whether its threads do not run for now."""
    threads: list[SimulatedThread] = field(default_factory=list)
    """Its threads that have not ended, in the order of their starts."""
    held: list[SimulatedThread] = field(default_factory=list)
    """Its threads that missed a turn while it was frozen, once for each."""


class SimulatedThread:
    """One thread. `wait` is called in the thread itself, all other methods from anywhere."""

    def __init__(self, scheduler: Scheduler, process: SimulatedProcess, name: str, run: Callable[[], object]) -> None:
        self.scheduler = scheduler
        self.process = process
        self.name = name
        self.of: object = None
        """The thread as the code that started it knows it."""
        self.has_ended = False
        self.waiting_for_end: list[SimulatedThread] = []
        self.turn = 0
        """The number of its waits; what was to wake it from an earlier one is out of date."""
        self.was_woken = False
        self._run = run
        self.greenlet = greenlet(self._main, scheduler.hub)

    def wake(self) -> None:
        """End the thread's wait."""
        if not self.was_woken:
            self.was_woken = True
            self.scheduler.plan(self, self.scheduler.rng.randrange(WAKE_US))

    def _main(self) -> None:
        try:
            self._run()
        except ProcessKilled:
            pass
        except Exception as error:
            self.scheduler.errors.append((self, error))
        finally:
            self.has_ended = True
            if self in self.process.threads:
                self.process.threads.remove(self)
            for other in self.waiting_for_end:
                other.wake()


class Scheduler:
    """All threads of a run, and the time."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now_us = 0
        """The time since the start of the run, in microseconds."""
        self.hub = getcurrent()
        self.current: SimulatedThread | None = None
        """The thread that runs now; None between turns."""
        self.errors: list[tuple[SimulatedThread, Exception]] = []
        """Threads that have ended with an error, and the error."""
        self._due: list[tuple[int, float, int, Callable[[], object]]] = []
        self._planned = 0
        self._at_once = 0

    # For those that set up a run

    def start(self, process: SimulatedProcess, name: str, run: Callable[[], object]) -> SimulatedThread:
        """A new thread of a process."""
        thread = SimulatedThread(self, process, name, run)
        process.threads.append(thread)
        self.plan(thread, 0)
        return thread

    def call(self, after_us: int, action: Callable[[], object]) -> None:
        """Call something after a time. It must not wait."""
        self._planned += 1
        heapq.heappush(self._due, (self.now_us + after_us, self.rng.random(), self._planned, action))

    def kill(self, process: SimulatedProcess) -> None:
        """End all threads of a process where they are. May be called by one of them, which then ends too."""
        process.is_dead = True
        self.call(0, lambda: self._end_all(process))
        self.check_alive()

    def thaw(self, process: SimulatedProcess) -> None:
        """Let a frozen process go on: its threads take the turns that they missed."""
        process.is_frozen = False
        held, process.held = process.held, []
        for thread in held:
            self.plan(thread, 0)

    def run(self, until_us: int) -> None:
        """Run all threads until a time."""
        while self._due and self._due[0][0] <= until_us:
            at, _, _, action = heapq.heappop(self._due)
            if at > self.now_us:
                self.now_us, self._at_once = at, 0
            self._at_once += 1
            if self._at_once > MOST_TURNS:
                raise Stuck(f"more than {MOST_TURNS} turns at {self.now_us} us; the last one of {action}")
            action()
        self.now_us = max(self.now_us, until_us)

    # For the threads themselves

    def wait(self, timeout_us: int | None = None) -> bool:
        """Wait until the current thread is woken, or for so long at most; returns whether it was woken."""
        thread = self._mine()
        if not thread.was_woken:
            if timeout_us is not None:
                self.plan(thread, max(timeout_us, 0))
            self.hub.switch()
            self.check_alive()
        was_woken, thread.was_woken = thread.was_woken, False
        return was_woken

    def begin_wait(self) -> SimulatedThread:
        """The current thread, which will call `wait`: what wakes it from now on counts."""
        thread = self._mine()
        thread.turn += 1
        thread.was_woken = False
        return thread

    def sleep(self, us: int) -> None:
        """Let the current thread wait for a time."""
        self.begin_wait()
        self.wait(us)

    def may_preempt(self) -> None:
        """Take the processor from the current thread, now and then."""
        if self.current is not None and self.rng.random() < PREEMPTED:
            self.sleep(self.rng.randrange(WAKE_US))

    def check_alive(self) -> None:
        """ProcessKilled in a thread of a process that was killed."""
        if self.current is not None and self.current.process.is_dead:
            raise ProcessKilled

    def plan(self, thread: SimulatedThread, after_us: int) -> None:
        """Give a thread its next turn after a time, unless its present wait has ended by then."""
        turn = thread.turn
        self.call(after_us, lambda: self._give_turn(thread, turn))

    def _mine(self) -> SimulatedThread:
        if self.current is None:
            raise Stuck("what is called between the turns of threads has to wait")
        self.check_alive()
        return self.current

    def _give_turn(self, thread: SimulatedThread, turn: int) -> None:
        if thread.has_ended or thread.turn != turn or thread.process.is_dead:
            return
        if thread.process.is_frozen:
            thread.process.held.append(thread)
            return
        thread.turn += 1
        self.current = thread
        thread.greenlet.switch()
        self.current = None

    def _end_all(self, process: SimulatedProcess) -> None:
        for thread in list(process.threads):
            if thread.greenlet:  # it has had a turn
                self.current = thread
                thread.greenlet.throw(ProcessKilled)
                self.current = None
            thread.has_ended = True
        process.threads.clear()


_running: list[Scheduler] = []


def scheduler() -> Scheduler:
    """The scheduler of the run that is under way."""
    return _running[-1]


def begin_run(made: Scheduler) -> None:
    """Let `scheduler` return this one."""
    _running.append(made)


def end_run(made: Scheduler) -> None:
    """The run is over."""
    assert _running.pop() is made
