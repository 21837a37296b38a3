"""A site in miniature: the placer, workers that obey it, and a supervisor that starts again what ends; in simulated time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from deployment.hosted_roles import BeginRole, HostedRoles, HostTick, PlacementRead, RoleOver
from deployment.placement_record import PlacementRecord, WorkerReport, read_placement
from deployment.placer import (
    SAY_EVERY_US,
    PlacementChanged,
    Placer,
    PlacerEffect,
    PlacerEvent,
    PlacerTick,
    RecordFound,
    RoleEnded,
    RolesKnown,
    RoleWanted,
    SelfHeard,
    WorkerHeard,
)
from deployment.supervision import Child

STEP_US = 100_000
HEARTBEAT_US = SAY_EVERY_US
PROGRAM = "1"
FAILED = 2
"""Exit code of a role."""


def role(kind: str, query: str, part: str) -> Child:
    return Child(f"{kind}.{query}.{part}", kind, query, (), revision="s", turn="t")


def roles_of(query: str, replicas: int = 2, streams: int = 2) -> list[Child]:
    nodes = [role("node", query, f"r{number}") for number in range(replicas)]
    return [*(role("source", query, f"s{number}") for number in range(streams)), *nodes, role("egress", query, "a")]


@dataclass
class Worker:
    """A process that has joined."""

    name: str
    incarnation: str
    machine: str
    program: str = PROGRAM
    is_frozen: bool = False
    start_us: int = 300_000
    """How long a role takes to be ready."""
    broken: frozenset[str] = frozenset()
    """The roles that never are."""
    lacks: frozenset[str] = frozenset()
    """The queries whose roles fail at once."""
    hosted: HostedRoles = field(init=False)
    ready_at: dict[str, int] = field(default_factory=dict)
    spoke_at: int = -HEARTBEAT_US

    def __post_init__(self) -> None:
        self.hosted = HostedRoles(self.incarnation)

    def report(self, now: int) -> WorkerReport:
        said = {name: replace(each, ready=self._is_ready(name, each.code, now)) for name, each in self.hosted.report().items()}
        return WorkerReport(self.name, self.incarnation, self.machine, self.program, self.hosted.number, said)

    def _is_ready(self, name: str, code: int | None, now: int) -> bool:
        return code is None and name not in self.broken and self.ready_at.get(name, now + 1) <= now

    def turn(self, record: PlacementRecord | None, now: int) -> None:
        effects = self.hosted.handle(HostTick(), now)
        if record is not None:
            effects += self.hosted.handle(PlacementRead(record), now)
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, BeginRole) and effect.name.split(".")[1] in self.lacks:
                effects += self.hosted.handle(RoleOver(effect.name, FAILED), now)
            elif isinstance(effect, BeginRole):
                self.ready_at[effect.name] = now + self.start_us
            else:
                effects += self.hosted.handle(RoleOver(effect.name, 0), now)


@dataclass
class Site:
    """The whole. `run` lets time pass; `record` is the newest that was written."""

    program: str = PROGRAM
    now: int = 0
    record: PlacementRecord | None = None
    workers: dict[str, Worker] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    records: list[PlacementRecord] = field(default_factory=list)
    ended: list[RoleEnded] = field(default_factory=list)
    is_cut: bool = False
    """Whether nobody is heard, and nothing can be read."""
    placer: Placer = field(init=False)
    joined: int = 0
    is_weighed: bool = False
    """Whether roles have different weights."""
    unready_max: int = 0
    """The most roles that were not ready at a time; set it to 0 to begin."""

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A supervisor begins: it reads the record, and names what should run."""
        self.placer = Placer("a", self.program)
        self.tell(RecordFound(self.record))
        for child in self.children.values():
            self.tell(RoleWanted(child))
        self.tell(RolesKnown())

    def want(self, children: Iterable[Child]) -> None:
        for child in children:
            self.children[child.name] = child
            self.tell(RoleWanted(child))

    def join(self, name: str, machine: str = "", program: str = PROGRAM) -> Worker:
        self.joined += 1
        worker = Worker(name, f"{name}/{self.joined}", machine or name, program)
        self.workers[worker.incarnation] = worker
        return worker

    def kill(self, worker: Worker) -> None:
        del self.workers[worker.incarnation]

    def tell(self, event: PlacerEvent) -> None:
        self._perform(self.placer.handle(event, self.now))

    def _perform(self, effects: Iterable[PlacerEffect]) -> None:
        for effect in effects:
            match effect:
                case PlacementChanged(record):
                    self._note(record)
                case RoleEnded(name):
                    self.ended.append(effect)
                    if name in self.children:
                        self.tell(RoleWanted(self.children[name]))
                case _:
                    pass

    def _note(self, record: PlacementRecord) -> None:
        before, self.record = self.record, read_placement(record.to_json(), "a")
        assert self.record == record
        assert before is None or record.number > before.number
        self.records.append(record)
        beside = Counter((at.incarnation, name.split(".")[1]) for name, at in record.roles.items() if name.startswith("node."))
        assert max(beside.values(), default=1) == 1, "two replicas of a query in one worker"

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 1e6 / STEP_US)):
            self.now += STEP_US
            if self.now % 1_000_000 == 0 and not self.is_cut:
                self.tell(SelfHeard())
            self.tell(PlacerTick())
            for worker in list(self.workers.values()):
                if worker.is_frozen or self.is_cut:
                    continue
                worker.turn(self.record, self.now)
                if self.now - worker.spoke_at >= HEARTBEAT_US:
                    worker.spoke_at = self.now
                    self.tell(WorkerHeard(worker.report(self.now)))
            self.tell(PlacerTick())
            self.unready_max = max(self.unready_max, len(self.children) - len(self.ready()))

    # What is there

    def places(self) -> dict[str, str]:
        """Where each role runs by the record: the incarnation."""
        return {name: at.incarnation for name, at in self.record.roles.items()} if self.record is not None else {}

    def ready(self) -> set[tuple[str, str]]:
        """The roles that are ready, each with its worker's incarnation."""
        workers = [worker for worker in self.workers.values() if not worker.is_frozen]
        reports = [(worker.incarnation, worker.report(self.now)) for worker in workers]
        return {(name, who) for who, report in reports for name, said in report.roles.items() if said.ready}

    def loads(self) -> list[int]:
        counts = Counter(self.places().values())
        return sorted(counts[incarnation] for incarnation in self.workers)
