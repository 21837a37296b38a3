"""Decides which processes the supervisor starts, stops and restarts, and when. Pure: `Supervision.handle` takes an event and
the time, and returns the effects in order; `next_deadline` says when to send the next tick.

    absent ──wanted──> RUNNING ──exits by itself──> WAITING ──back-off is over──> RUNNING
                          │ not wanted, or changed                                  (in its current version)
                          v
                       STOPPING ──exits──> absent, or RUNNING again if it is still wanted
                          │ grace period is over
                          └──> KILLED

Rules:
 1. A process that exits by itself is restarted, whatever its exit code, since a stray signal must not leave a query without a
    replica. The first restart is immediate. Then the back-off doubles from 0.2 s to 10 s. It is reset after 30 s of health.
 2. Processes end downstream first (API, egress, nodes, Spark jobs, sources, monitor, then Redis and Kafka), each stage after
    the one before has ended. So no process can mistake an orderly end upstream for a failure, and answer tentatively.
 3. A changed `revision` means stop and start at once. If only `turn` changed, the processes of a query restart one at a time:
    the next one only when all others of the query that take turns are ready, so that one replica stays live. If the first
    process never becomes ready, the others keep their old version. A process that was never ready, or has not been ready for
    30 s, restarts without waiting, since it does no work.
 4. If `version` changed, the process has changed to it already: an egress begins a new incarnation by itself when another
    version of its query takes over. It needs no restart.
 5. A process that is held, because it has crashed on purpose for a stated time, waits. It starts when it is held no longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from deployment.query_record import QueryRecord

BACKOFF_FIRST_US = 200_000
"""Back-off before the second restart."""
BACKOFF_LAST_US = 10_000_000
"""Longest back-off."""
HEALTHY_AFTER_US = 30_000_000
"""A process that runs for this long resets its back-off."""
HOPELESS_AFTER_US = 30_000_000
"""A process that has been unready for this long does not wait for its turn (rule 3)."""

STOP_ORDER = ("api", "egress", "node", "spark", "source", "monitor", "redis", "kafka")
"""The kinds of processes, in the order in which they end."""

GRACE_US = {"redis": 15_000_000, "kafka": 30_000_000}
"""Time that a process of this kind may take to end before it is killed."""
DEFAULT_GRACE_US = 10_000_000
"""The same for kinds that are not in GRACE_US."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that should run."""

    name: str
    """Unique name of the process."""
    kind: str
    """One of STOP_ORDER."""
    query: str | None
    """Name of its query; None for a process of the whole installation."""
    command: tuple[str, ...]
    """Command line."""
    revision: str = ""
    """Identifies the configuration whose change requires an immediate restart (rule 3)."""
    turn: str = ""
    """Identifies the configuration whose change requires a restart in turn (rule 3); empty for a process without turns."""
    streams: tuple[str, ...] = ()
    """The streams whose logs it reads."""
    record: QueryRecord | None = field(default=None, compare=False)
    """The query as it is now; None for a process of the whole installation."""
    version: int = 1
    """The version of the query that the process follows. It goes from one to another by itself (rule 4)."""
    site: str = ""
    """The site of a process of a query; '' for one of the whole installation."""


# Events


@dataclass(frozen=True, slots=True)
class ProcessTargets:
    """The processes that should run from now on, and no others; empty to end all."""

    children: tuple[Child, ...]
    """All processes that should run."""
    held: frozenset[str] = frozenset()
    """Those of them that do not start for now, by name (rule 5). One that runs goes on."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """A process has exited."""

    name: str
    """Its name."""


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """A running process has reported, or shown, whether it is ready."""

    name: str
    """Its name."""
    ready: bool
    """Whether it is ready."""


@dataclass(frozen=True, slots=True)
class SupervisionTick:
    """Time has passed, and nothing else happened."""


SupervisionEvent = ProcessTargets | ProcessExit | ReadinessReport | SupervisionTick

# Effects


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a process."""

    child: Child
    """What to start."""


@dataclass(frozen=True, slots=True)
class TerminateProcess:
    """Ask a process to end."""

    name: str
    """Its name."""


@dataclass(frozen=True, slots=True)
class KillProcess:
    """Kill a process."""

    name: str
    """Its name."""


SupervisionEffect = StartProcess | TerminateProcess | KillProcess


class ProcessPhase(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    KILLED = "killed"


@dataclass(slots=True)
class ProcessState:
    """The state of one process. Times are in us."""

    child: Child
    """The version that runs, or ran last."""
    phase: ProcessPhase
    """Current phase."""
    since: int
    """Begin of the phase."""
    due: int = 0
    """End of the phase, if it ends by itself."""
    ready: bool = False
    """Whether the process is ready."""
    was_ready: bool = False
    """Whether it has been ready in this phase."""
    hopeless_at: int = 0
    """When it will have been unready for too long (rule 3)."""
    failures: int = 0
    """Number of failures in a row."""
    restarts: int = 0
    """Number of restarts after it exited by itself."""

    def enter(self, phase: ProcessPhase, now: int, due: int = 0) -> None:
        """Begin a phase."""
        self.phase, self.since, self.due = phase, now, due
        self.ready = self.was_ready = False
        self.hopeless_at = now

    def answer(self, ready: bool, now: int) -> None:
        """The process has reported whether it is ready."""
        if self.ready and not ready:
            self.hopeless_at = now + HOPELESS_AFTER_US
        self.ready = ready
        self.was_ready = self.was_ready or ready

    @property
    def state(self) -> str:
        """The state for people. 'running' means ready; 'recovering' means that the process was ready before; else 'starting',
        or the phase."""
        if self.phase is not ProcessPhase.RUNNING or self.ready:
            return self.phase.value
        return "recovering" if self.was_ready else "starting"


@dataclass(slots=True)
class Supervision:
    """All processes of one supervisor."""

    processes: dict[str, ProcessState] = field(default_factory=dict)
    """The processes that run, wait for a restart, or end; by name."""
    _wanted: dict[str, Child] = field(default_factory=dict)
    _held: frozenset[str] = frozenset()

    def unready(self) -> set[str]:
        """The wanted processes, by name, that do not run in their current version, or are not ready."""
        return {
            child.name
            for child in self._wanted.values()
            if (process := self.processes.get(child.name)) is None or not process.ready or self._is_other(process)
        }

    def handle(self, event: SupervisionEvent, now: int) -> list[SupervisionEffect]:
        """Take an event; returns what to do, in order. now: the time in us."""
        match event:
            case ProcessTargets(children, held):
                self._wanted = {child.name: child for child in children}
                self._held = held
                for name, process in self.processes.items():
                    wanted = self._wanted.get(name)
                    if wanted is not None and wanted.version != process.child.version:
                        process.child = wanted
            case ProcessExit(name):
                ended = self.processes.get(name)
                if ended is None:
                    return []  # a supervisor before this one had started it, and we were asked for something else meanwhile
                has_failed = ended.phase is ProcessPhase.RUNNING and name in self._wanted
                self._handle_exit(ended, now)
                if has_failed:
                    # No other process has to do anything because of it. With many roles in a worker, this comes for each.
                    return self._start(self._wanted[name], now)
            case ReadinessReport(name, ready):
                found = self.processes.get(name)
                if found is None or found.phase is not ProcessPhase.RUNNING or found.ready == ready:
                    # Each process reports every second, and mostly the same.
                    return []
                found.answer(ready, now)
                # It may be the turn of another process of its query, and of no other.
                return self._end([one for one in self.processes.values() if one.child.query == found.child.query], now)
            case SupervisionTick():
                pass
            case _:
                assert_never(event)
        return self._settle(now)

    def next_deadline(self) -> int | None:
        """When the next SupervisionTick is due (us); None if none is."""
        ends = [
            process.due
            for name, process in self.processes.items()
            if process.phase is ProcessPhase.STOPPING or (process.phase is ProcessPhase.WAITING and name not in self._held)
        ]
        turns = [process.hopeless_at for process in self.processes.values() if self._waits_for_its_turn(process)]
        return min((*ends, *turns), default=None)

    def _handle_exit(self, process: ProcessState, now: int) -> None:
        if process.phase is not ProcessPhase.RUNNING:
            # It was asked to end, so this is no failure. If it is still wanted, it restarts at once.
            process.enter(ProcessPhase.WAITING, now, due=now)
            return
        if now - process.since >= HEALTHY_AFTER_US:
            process.failures = 0
        backoff = min(BACKOFF_FIRST_US << (process.failures - 1), BACKOFF_LAST_US) if process.failures else 0
        process.failures = min(process.failures + 1, 32)
        process.restarts += 1
        process.enter(ProcessPhase.WAITING, now, due=now + backoff)

    def _settle(self, now: int) -> list[SupervisionEffect]:
        effects: list[SupervisionEffect] = []
        for name, process in sorted(self.processes.items()):
            if process.phase is ProcessPhase.WAITING and name not in self._wanted:
                del self.processes[name]
            elif process.phase is ProcessPhase.STOPPING and process.due <= now:
                process.enter(ProcessPhase.KILLED, now)
                effects.append(KillProcess(name))
        effects += self._end(self.processes.values(), now)
        for child in sorted(self._wanted.values(), key=_stop_order, reverse=True):
            effects += self._start(child, now)
        return effects

    def _end(self, processes: Iterable[ProcessState], now: int) -> list[SupervisionEffect]:
        effects: list[SupervisionEffect] = []
        unwanted = (_stage(process.child) for process in self.processes.values() if process.child.name not in self._wanted)
        stage = min(unwanted, default=0)
        for process in sorted(processes, key=lambda process: _stop_order(process.child)):
            if process.phase is ProcessPhase.RUNNING and self._must_end(process, stage, now):
                process.enter(ProcessPhase.STOPPING, now, due=now + GRACE_US.get(process.child.kind, DEFAULT_GRACE_US))
                effects.append(TerminateProcess(process.child.name))
        return effects

    def _start(self, child: Child, now: int) -> list[SupervisionEffect]:
        process = self.processes.get(child.name)
        if child.name in self._held:
            return []
        if process is None:
            self.processes[child.name] = ProcessState(child, ProcessPhase.RUNNING, now)
        elif process.phase is ProcessPhase.WAITING and process.due <= now:
            process.child = child
            process.enter(ProcessPhase.RUNNING, now)
        else:
            return []
        return [StartProcess(child)]

    def _must_end(self, process: ProcessState, stage: int, now: int) -> bool:
        """stage: the first of those that are not wanted."""
        wanted = self._wanted.get(process.child.name)
        if wanted is None:
            return _stage(process.child) <= stage
        if wanted.revision != process.child.revision:
            return True
        is_hopeless = not process.ready and process.hopeless_at <= now
        return wanted.turn != process.child.turn and (is_hopeless or self._others_are_ready(process))

    def _waits_for_its_turn(self, process: ProcessState) -> bool:
        wanted = self._wanted.get(process.child.name)
        return (
            wanted is not None
            and process.phase is ProcessPhase.RUNNING
            and not process.ready
            and wanted.turn != process.child.turn
        )

    def _others_are_ready(self, process: ProcessState) -> bool:
        """Whether the other processes of the query that take turns are ready."""
        others = [child for child in self._wanted.values() if child.query == process.child.query and child.turn]
        return all(
            child.name == process.child.name or ((other := self.processes.get(child.name)) is not None and other.ready)
            for child in others
        )

    def _is_other(self, process: ProcessState) -> bool:
        wanted = self._wanted[process.child.name]
        return (wanted.revision, wanted.turn) != (process.child.revision, process.child.turn)


def _stage(child: Child) -> int:
    return STOP_ORDER.index(child.kind)


def _stop_order(child: Child) -> tuple[int, str]:
    return _stage(child), child.name
