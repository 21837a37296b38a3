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
from typing import assert_never

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
class Wanted:
    """Exactly these are to run from now on; none of them, to end."""

    children: tuple[Child, ...]


@dataclass(frozen=True, slots=True)
class Exited:
    name: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A process that runs says, or shows, whether it is ready."""

    name: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else happened."""


Event = Wanted | Exited | Answered | Tick

# Effects


@dataclass(frozen=True, slots=True)
class Start:
    child: Child


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask it to end."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    name: str


Effect = Start | Terminate | Kill


class Phase(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    KILLED = "killed"


@dataclass(slots=True)
class Life:
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
    """All processes of one supervisor. `lives`: those that run, or are to; by name."""

    lives: dict[str, Life] = field(default_factory=dict)
    _wanted: dict[str, Child] = field(default_factory=dict)

    def is_ready(self, query: str | None = None) -> bool:
        """All that is wanted, or all that is wanted of a query, runs as it is wanted, and is ready."""
        return all(
            (life := self.lives.get(child.name)) is not None and life.ready and not self._is_other(life)
            for child in self._wanted.values()
            if query is None or child.query == query
        )

    def handle(self, event: Event, now: int) -> list[Effect]:
        match event:
            case Wanted(children):
                self._wanted = {child.name: child for child in children}
            case Exited(name):
                self._handle_exit(self.lives[name], now)
            case Answered(name, ready):
                life = self.lives.get(name)
                if life is not None and life.phase is Phase.RUNNING:
                    life.answer(ready, now)
            case Tick():
                pass
            case _:
                assert_never(event)
        return self._settle(now)

    def next_deadline(self) -> int | None:
        ends = [life.due for life in self.lives.values() if life.phase in (Phase.WAITING, Phase.STOPPING)]
        turns = [life.hopeless_at for life in self.lives.values() if self._waits_for_its_turn(life)]
        return min((*ends, *turns), default=None)

    def _handle_exit(self, life: Life, now: int) -> None:
        if life.phase is not Phase.RUNNING:
            # It was asked to end. Where it is wanted it comes back at once, and that is no failure.
            life.enter(Phase.WAITING, now, due=now)
            return
        if now - life.since >= HEALTHY_AFTER_US:
            life.failures = 0
        backoff = min(BACKOFF_FIRST_US << (life.failures - 1), BACKOFF_LAST_US) if life.failures else 0
        life.failures = min(life.failures + 1, 32)
        life.restarts += 1
        life.enter(Phase.WAITING, now, due=now + backoff)

    def _settle(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for name, life in sorted(self.lives.items()):
            if life.phase is Phase.WAITING and name not in self._wanted:
                del self.lives[name]
            elif life.phase is Phase.STOPPING and life.due <= now:
                life.enter(Phase.KILLED, now)
                effects.append(Kill(name))
        for name, life in sorted(self.lives.items(), key=lambda item: _stop_order(item[1].child)):
            if life.phase is Phase.RUNNING and self._must_end(life, now):
                life.enter(Phase.STOPPING, now, due=now + GRACE_US.get(life.child.kind, DEFAULT_GRACE_US))
                effects.append(Terminate(name))
        for child in sorted(self._wanted.values(), key=_stop_order, reverse=True):
            effects += self._start(child, now)
        return effects

    def _start(self, child: Child, now: int) -> list[Effect]:
        life = self.lives.get(child.name)
        if life is None:
            self.lives[child.name] = Life(child, Phase.RUNNING, now)
        elif life.phase is Phase.WAITING and life.due <= now:
            life.child = child
            life.enter(Phase.RUNNING, now)
        else:
            return []
        return [Start(child)]

    def _must_end(self, life: Life, now: int) -> bool:
        wanted = self._wanted.get(life.child.name)
        if wanted is None:
            return not any(
                _stage(other.child) < _stage(life.child)
                for other in self.lives.values()
                if other.child.name not in self._wanted
            )
        if wanted.revision != life.child.revision:
            return True
        is_hopeless = not life.ready and life.hopeless_at <= now
        return wanted.turn != life.child.turn and (is_hopeless or self._others_are_ready(life))

    def _waits_for_its_turn(self, life: Life) -> bool:
        wanted = self._wanted.get(life.child.name)
        return wanted is not None and life.phase is Phase.RUNNING and not life.ready and wanted.turn != life.child.turn

    def _others_are_ready(self, life: Life) -> bool:
        """Of its query, of those that take turns."""
        others = [child for child in self._wanted.values() if child.query == life.child.query and child.turn]
        return all(
            child.name == life.child.name or ((other := self.lives.get(child.name)) is not None and other.ready)
            for child in others
        )

    def _is_other(self, life: Life) -> bool:
        wanted = self._wanted[life.child.name]
        return (wanted.revision, wanted.turn) != (life.child.revision, life.child.turn)


def _stage(child: Child) -> int:
    return STOP_ORDER.index(child.kind)


def _stop_order(child: Child) -> tuple[int, str]:
    return _stage(child), child.name
