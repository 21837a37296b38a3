"""What the supervisor decides: which processes to start, to stop and to start again, and when. Pure: `Supervision.handle`
takes what has happened and the time, and returns what to do, in order; `next_deadline` says when to ask again.

    not there ──wanted──> RUNNING ──exits by itself──> WAITING ──back-off is over──> RUNNING
                             │ not wanted, or wanted otherwise                          (as it is wanted by then)
                             v
                          STOPPING ──exits──> not there, or RUNNING again where it is still wanted
                             │ its grace is over
                             └──> killed

Rules:
 1. Whatever exits without having been asked is started again, whatever its exit code: a stray signal is no reason to leave a
    query without a replica: the first time at once, then after a back-off that doubles from 0.2 s to 10 s, and begins anew
    after 30 s of health.
 2. Processes end downstream first (egress, nodes, Spark jobs, sources, monitor, then Redis and Kafka), each stage once the
    one before is gone. So nobody is left who could take an orderly end for a failure upstream, and answer tentatively.
 3. Another `revision` means stop and start, at once. Another `turn` alone means the same one process of a query at a time: the
    next only once all others of the query that take turns are ready, so that one replica stays live. If the first never
    gets ready, the others keep what they had. A process that never was ready, or has not been for 30 s, has nothing to lose,
    and waits for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

BACKOFF_FIRST_US = 200_000
BACKOFF_LAST_US = 10_000_000
HEALTHY_AFTER_US = 30_000_000
HOPELESS_AFTER_US = 30_000_000

STOP_ORDER = ("egress", "node", "spark", "source", "monitor", "redis", "kafka")
"""The kinds of processes, in the order in which they end."""

GRACE_US = {"redis": 15_000_000, "kafka": 30_000_000}
DEFAULT_GRACE_US = 10_000_000
"""How long a process of this kind may take to end before it is killed."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that is to run. kind: one of STOP_ORDER. revision, turn: what it was made from (rule 3); a process with an
    empty `turn` takes no turns."""

    name: str
    kind: str
    query: str | None
    command: tuple[str, ...]
    revision: str = ""
    turn: str = ""


# Events


@dataclass(frozen=True, slots=True)
class ProcessTargets:
    """Exactly these are to run from now on; none of them, to end."""

    children: tuple[Child, ...]


@dataclass(frozen=True, slots=True)
class ProcessExit:
    name: str


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """A process that runs says, or shows, whether it is ready."""

    name: str
    ready: bool


@dataclass(frozen=True, slots=True)
class SupervisionTick:
    """Time has passed; nothing else happened."""


SupervisionEvent = ProcessTargets | ProcessExit | ReadinessReport | SupervisionTick

# Effects


@dataclass(frozen=True, slots=True)
class StartProcess:
    child: Child


@dataclass(frozen=True, slots=True)
class TerminateProcess:
    """Ask it to end."""

    name: str


@dataclass(frozen=True, slots=True)
class KillProcess:
    name: str


SupervisionEffect = StartProcess | TerminateProcess | KillProcess


class Phase(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    KILLED = "killed"


@dataclass(slots=True)
class ProcessState:
    """One process as it is. since: when its phase began; due: when a phase that ends by itself does; hopeless_at: when it
    will have been unready for too long; failures: in a row."""

    child: Child
    phase: Phase
    since: int
    due: int = 0
    ready: bool = False
    was_ready: bool = False
    hopeless_at: int = 0
    failures: int = 0
    restarts: int = 0

    def enter(self, phase: Phase, now: int, due: int = 0) -> None:
        self.phase, self.since, self.due = phase, now, due
        self.ready = self.was_ready = False
        self.hopeless_at = now

    def answer(self, ready: bool, now: int) -> None:
        if self.ready and not ready:
            self.hopeless_at = now + HOPELESS_AFTER_US
        self.ready = ready
        self.was_ready = self.was_ready or ready

    @property
    def state(self) -> str:
        """For people. running: and ready as well; recovering: it was ready, and will be again."""
        if self.phase is not Phase.RUNNING or self.ready:
            return self.phase.value
        return "recovering" if self.was_ready else "starting"


@dataclass(slots=True)
class Supervision:
    """All processes of one supervisor. `processes`: those that run, or are to; by name."""

    processes: dict[str, ProcessState] = field(default_factory=dict)
    _wanted: dict[str, Child] = field(default_factory=dict)

    def is_ready(self, query: str | None = None) -> bool:
        """All that is wanted, or all that is wanted of a query, runs as it is wanted, and is ready."""
        return all(
            (process := self.processes.get(child.name)) is not None and process.ready and not self._is_other(process)
            for child in self._wanted.values()
            if query is None or child.query == query
        )

    def handle(self, event: SupervisionEvent, now: int) -> list[SupervisionEffect]:
        match event:
            case ProcessTargets(children):
                self._wanted = {child.name: child for child in children}
            case ProcessExit(name):
                self._handle_exit(self.processes[name], now)
            case ReadinessReport(name, ready):
                process = self.processes.get(name)
                if process is not None and process.phase is Phase.RUNNING:
                    process.answer(ready, now)
        return self._settle(now)

    def next_deadline(self) -> int | None:
        ends = [process.due for process in self.processes.values() if process.phase in (Phase.WAITING, Phase.STOPPING)]
        turns = [process.hopeless_at for process in self.processes.values() if self._waits_for_its_turn(process)]
        return min((*ends, *turns), default=None)

    def _handle_exit(self, process: ProcessState, now: int) -> None:
        if process.phase is not Phase.RUNNING:
            # It was asked to end. Where it is wanted it comes back at once, and that is no failure.
            process.enter(Phase.WAITING, now, due=now)
            return
        if now - process.since >= HEALTHY_AFTER_US:
            process.failures = 0
        backoff = min(BACKOFF_FIRST_US << (process.failures - 1), BACKOFF_LAST_US) if process.failures else 0
        process.failures = min(process.failures + 1, 32)
        process.restarts += 1
        process.enter(Phase.WAITING, now, due=now + backoff)

    def _settle(self, now: int) -> list[SupervisionEffect]:
        effects: list[SupervisionEffect] = []
        for name, process in sorted(self.processes.items()):
            if process.phase is Phase.WAITING and name not in self._wanted:
                del self.processes[name]
            elif process.phase is Phase.STOPPING and process.due <= now:
                process.enter(Phase.KILLED, now)
                effects.append(KillProcess(name))
        for name, process in sorted(self.processes.items(), key=lambda item: _stop_order(item[1].child)):
            if process.phase is Phase.RUNNING and self._must_end(process, now):
                process.enter(Phase.STOPPING, now, due=now + GRACE_US.get(process.child.kind, DEFAULT_GRACE_US))
                effects.append(TerminateProcess(name))
        for child in sorted(self._wanted.values(), key=_stop_order, reverse=True):
            effects += self._start(child, now)
        return effects

    def _start(self, child: Child, now: int) -> list[SupervisionEffect]:
        process = self.processes.get(child.name)
        if process is None:
            self.processes[child.name] = ProcessState(child, Phase.RUNNING, now)
        elif process.phase is Phase.WAITING and process.due <= now:
            process.child = child
            process.enter(Phase.RUNNING, now)
        else:
            return []
        return [StartProcess(child)]

    def _must_end(self, process: ProcessState, now: int) -> bool:
        wanted = self._wanted.get(process.child.name)
        if wanted is None:
            return not any(
                _stage(other.child) < _stage(process.child)
                for other in self.processes.values()
                if other.child.name not in self._wanted
            )
        if wanted.revision != process.child.revision:
            return True
        is_hopeless = not process.ready and process.hopeless_at <= now
        return wanted.turn != process.child.turn and (is_hopeless or self._others_are_ready(process))

    def _waits_for_its_turn(self, process: ProcessState) -> bool:
        wanted = self._wanted.get(process.child.name)
        return wanted is not None and process.phase is Phase.RUNNING and not process.ready and wanted.turn != process.child.turn

    def _others_are_ready(self, process: ProcessState) -> bool:
        """Of its query, of those that take turns."""
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
