"""Decides which of the workers that have joined a site runs which role. Pure: `Placer.handle` takes an event and the time, and
returns the effects in order. Events are only noted; what follows from them is decided at the next `PlacerTick`.

    WAITING ──a worker can take it──> PLACED ──its worker is lost, or it ends by itself──> reported as ended
                                        │ │ is moved
                                        │ └───> MOVING ──it has ended there──> WAITING
                                        │ not wanted
                                        └────> ENDING ──it has ended──> reported as ended

Rules:
 1. What is decided is one numbered record (`deployment.placement_record`). Whatever runs goes on without the placer.
 2. A worker is lost when it is silent for SILENCES times its longest recent silence: on a calm machine LEAST_DETECTION_US,
    and on a busy one up to DETECTION_US. Silence counts only while the supervisor hears somebody, and while it does not
    hear itself, nothing is decided. A worker that says that it leaves is lost at once.
 3. A role goes where `Places.choose` says, at once. Only the first workers of a site are waited for (GATHERING_US), so
    that those that start together share the roles.
 4. Roles stay where they are, but for three reasons to move: the worker is of another program version, or, for a replica,
    another one is on its machine and need not be, or the load is uneven by more than the role's weight. One role moves at a
    time, a replica before a role that has no partner, and only of a query whose roles are all ready; the next when it is
    ready there. So a worker that comes back takes its share gradually.
 5. A placer that begins keeps the roles where the record has them, if they run in the wanted configuration.
 6. A role that has failed in a worker goes to another one for AVOID_US, if one may run it: a worker that lacks what the role
    needs, such as a package, has little load, and would be chosen for it again and again.
 7. Of two workers of one name, the one that was heard first has it, as long as it is heard. One that the record of an earlier
    placer has was there before all that a new one hears.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from deployment.placement import Places
from deployment.placement_record import Assignment, PlacementRecord, WorkerReport
from deployment.query_record import public_name
from deployment.supervision import Child

SAY_EVERY_US = 150_000
"""How often a worker says that it is there."""
SILENCES = 4
"""A worker is lost after so many times its longest recent silence."""
DETECTION_US = 3_000_000
"""A worker is lost after this silence at the latest, and a new one, of which nothing is known yet, not before."""
LEAST_DETECTION_US = 800_000
"""A worker is not lost before this silence."""
HEARING_US = 500_000
"""Of the time between two things that were heard, at most so much counts as silence of the others: in the rest nobody could be
heard, and what was said then may still come."""
DEAF_AFTER_US = 2_000_000
"""A supervisor that has not heard itself for so long cannot judge who is silent."""
GATHERING_US = 1_000_000
"""After the first worker of a site was heard, others are waited for."""
MOVE_WITHIN_US = 30_000_000
"""A role that was moved and is not ready after this time holds up no other move."""
END_WITHIN_US = 10_000_000
"""A role that was asked to end counts as ended after this time: its next start fences it."""
MOVES_EVERY_US = 1_000_000
"""Time between two moves."""

AVOID_US = 300_000_000
"""How long a role avoids the worker in which it failed."""

LEAST_WEIGHT = 1
"""The part of a worker's load that a calm role is."""

LOST = 1
"""Exit code of a role that was lost with its worker: as of one that has failed."""

_MOVE_ORDER = ("node", "source", "egress")
"""A replica has partners, which answer meanwhile; for an egress, clients wait."""


# Events


@dataclass(frozen=True, slots=True)
class RecordFound:
    """The newest record of the site has been read; no other can be written but this placer's. None if there is none."""

    record: PlacementRecord | None
    """The record."""


@dataclass(frozen=True, slots=True)
class RoleWanted:
    """A role should start."""

    child: Child
    """The role."""


@dataclass(frozen=True, slots=True)
class RolesKnown:
    """All roles that should run were named: those that the record has beside them end."""


@dataclass(frozen=True, slots=True)
class RoleUnwanted:
    """A role should end."""

    name: str
    """Its name."""


@dataclass(frozen=True, slots=True)
class RoleGivenUp:
    """A role that does not end is waited for no longer."""

    name: str
    """Its name."""


@dataclass(frozen=True, slots=True)
class WorkerHeard:
    """A worker has said something."""

    report: WorkerReport
    """What it says."""


@dataclass(frozen=True, slots=True)
class SelfHeard:
    """The supervisor has heard itself: who speaks is heard."""


@dataclass(frozen=True, slots=True)
class RoleWeighed:
    """How much of a worker's load a role is."""

    name: str
    """Its name."""
    weight: int
    """LEAST_WEIGHT or more."""


@dataclass(frozen=True, slots=True)
class PlacerTick:
    """Time has passed. Send it several times a second, and after events that are urgent."""


PlacerEvent = (
    RecordFound | RoleWanted | RolesKnown | RoleUnwanted | RoleGivenUp | WorkerHeard | SelfHeard | RoleWeighed | PlacerTick
)

# Effects


@dataclass(frozen=True, slots=True)
class PlacementChanged:
    """Write this record; those before it need not be written any more."""

    record: PlacementRecord
    """The record."""


@dataclass(frozen=True, slots=True)
class RoleEnded:
    """A role has ended."""

    name: str
    """Its name."""
    code: int
    """Its exit code, or LOST."""
    why: str
    """Why it has ended, for people."""


@dataclass(frozen=True, slots=True)
class RoleReady:
    """A role is ready, or no longer."""

    name: str
    """Its name."""
    ready: bool
    """Whether it is."""


PlacerEffect = PlacementChanged | RoleEnded | RoleReady


class _Phase(Enum):
    WAITING = "waiting"
    PLACED = "placed"
    MOVING = "moving"
    ENDING = "ending"


@dataclass(slots=True)
class _Role:
    child: Child
    phase: _Phase = _Phase.WAITING
    at: Assignment | None = None  # where it runs, or ends
    ready: bool = False
    gone_with: int = 0  # the number of the record that does not have it any more, while it ends
    due: int = 0  # until when its end is waited for
    weight: int = LEAST_WEIGHT


@dataclass(slots=True)
class _Worker:
    name: str
    incarnation: str
    first_heard_at: int
    heard_at: int
    report: WorkerReport | None  # None: it is known from the record alone
    listened_us: int  # the placer's, when it was heard last
    silence_us: int = DETECTION_US // SILENCES  # its longest recent one

    @property
    def patience_us(self) -> int:
        return min(max(SILENCES * self.silence_us, LEAST_DETECTION_US), DETECTION_US)

    def hear(self, report: WorkerReport, now: int, listened_us: int) -> None:
        # What is recent fades by half in some 140 signs: 20 s.
        self.silence_us = max(listened_us - self.listened_us, self.silence_us * 199 // 200)
        self.heard_at, self.report, self.listened_us = now, report, listened_us


@dataclass(slots=True)
class Placer:
    """The roles of one site. Times are in us."""

    site: str
    """Name of the site."""
    program: str
    """The version of this program. Workers of another one get no roles."""
    number: int = 0
    """The number of the newest record."""
    _roles: dict[str, _Role] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    """Of the roles, those that are not placed."""
    _at: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Of the roles, those that run or end in each worker, by its incarnation."""
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _inherited: dict[str, Assignment] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _begun_at: int | None = None
    _are_known: bool = False
    _self_heard_at: int | None = None
    _any_heard_at: int | None = None
    _listened_us: int = 0
    """The time in which others could be heard."""
    _gathered_at: int | None = None
    _failed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By role: the worker, by its incarnation, in which it failed last, and until when it is avoided."""
    _moved: str | None = None
    _move_by: int = 0
    _move_at: int = 0
    _has_changed: bool = False

    # Events

    def handle(self, event: PlacerEvent, now: int) -> list[PlacerEffect]:
        """Take an event; returns what to do, in order."""
        match event:
            case RecordFound(record):
                self._begin(record, now)
            case RoleWanted(child):
                self._roles[child.name] = _Role(child)
                self._become(child.name, _Phase.WAITING, None)
                self._inherit(child.name, now)
            case RolesKnown():
                self._are_known = True
                self._has_changed |= bool(self._inherited)
                self._inherited.clear()
            case RoleUnwanted(name):
                return self._end(name, now)
            case RoleGivenUp(name):
                return self._drop(name, LOST, "it did not end in time")
            case WorkerHeard(report):
                return self._hear(report, now)
            case SelfHeard():
                self._listen(now)
                self._self_heard_at = now
            case RoleWeighed(name, weight):
                if name in self._roles:
                    self._roles[name].weight = weight
            case PlacerTick():
                return self._settle(now)
            case _:
                assert_never(event)
        return []

    def place_of(self, role: str) -> str | None:
        """The name of the worker that runs a role; None if none does."""
        found = self._roles.get(role)
        return found.at.worker if found is not None and found.at is not None else None

    def problem_of(self, query: str, now: int) -> str | None:
        """Why a role of a query, or of a version of one, runs nowhere; None if all run, or soon will."""
        for name in sorted(self._open):
            role = self._roles[name]
            if role.phase is _Phase.WAITING and public_name(str(role.child.query)) == public_name(query):
                return self._lack(name, now)
        return None

    def _lack(self, role: str, now: int) -> str | None:
        if self._begun_at is None or now < self._begun_at + DETECTION_US or self._is_deaf(now):
            return None
        if not self._workers:
            return f"no worker has joined site {self.site}: run boreal worker --site {self.site}"
        if self._gathered_at is None or now < self._gathered_at:
            return None
        if not self._candidates():
            why = next(iter(sorted(self._refused.values())), "none is heard")
            return f"site {self.site} has no worker for {role}: {why}"
        return f"each worker of site {self.site} runs another replica: start one more for {role}"

    # The record

    def _begin(self, record: PlacementRecord | None, now: int) -> None:
        self._begun_at = now
        if record is None:
            return
        self.number = max(self.number, record.number)
        self._inherited = dict(record.roles)
        for at in record.roles.values():
            worker = self._workers.setdefault(at.incarnation, self._new_worker(at.worker, at.incarnation, now, None))
            worker.first_heard_at = 0
        for name in sorted(self._roles):
            self._inherit(name, now)

    def _inherit(self, name: str, now: int) -> None:
        """Keep a role where the record of an earlier placer has it, if it runs there as it should."""
        at, role = self._inherited.pop(name, None), self._roles[name]
        if at is None:
            return
        if at.config == config_of(role.child):
            self._become(name, _Phase.PLACED, at)
        else:
            self._take_away(name, _Phase.MOVING, at, now)

    def _settle(self, now: int) -> list[PlacerEffect]:
        """What follows, and the record if it has changed."""
        if self._begun_at is None or not self._are_known:
            return []
        effects = [] if self._is_deaf(now) else self._lose()
        self._refuse()
        effects += self._stop_waiting(now)
        if not self._is_deaf(now):
            effects += self._place(now)
        if self._has_changed:
            self._has_changed = False
            self.number += 1
            roles = {
                name: role.at
                for name, role in sorted(self._roles.items())
                if role.phase is _Phase.PLACED and role.at is not None
            }
            record = PlacementRecord(self.site, self.number, self.program, roles, dict(sorted(self._refused.items())))
            effects.append(PlacementChanged(record))
        return effects

    # Workers

    def _is_deaf(self, now: int) -> bool:
        return self._self_heard_at is None or now - self._self_heard_at > DEAF_AFTER_US

    def _listen(self, now: int) -> None:
        if self._any_heard_at is not None:
            self._listened_us += min(now - self._any_heard_at, HEARING_US)
        self._any_heard_at = now

    def _new_worker(self, name: str, incarnation: str, now: int, report: WorkerReport | None) -> _Worker:
        return _Worker(name, incarnation, now, now, report, self._listened_us)

    def _hear(self, report: WorkerReport, now: int) -> list[PlacerEffect]:
        if report.number > self.number:
            # A record that is lost, such as with the topic. Numbers must rise nevertheless.
            self.number, self._has_changed = report.number, True
        self._listen(now)
        worker = self._workers.get(report.incarnation)
        if worker is None:
            worker = self._workers[report.incarnation] = self._new_worker(report.name, report.incarnation, now, report)
        worker.hear(report, now, self._listened_us)
        if self._gathered_at is None:
            self._gathered_at = now + GATHERING_US
        effects: list[PlacerEffect] = []
        for name in sorted(self._at[report.incarnation]):
            effects += self._hear_role(name, self._roles[name], report, now)
        if report.leaves:
            effects += self._lose_worker(report.incarnation, "has left")
        return effects

    def _hear_role(self, name: str, role: _Role, report: WorkerReport, now: int) -> Iterator[PlacerEffect]:
        assert role.at is not None, "it is placed"
        said = report.roles.get(name)
        if role.phase is not _Phase.PLACED:
            if said is None and report.number >= role.gone_with:
                yield from self._leave(name)
        elif said is not None and said.start == role.at.start:
            if said.code is not None:
                if said.code:
                    self._failed[name] = report.incarnation, now + AVOID_US
                yield from self._drop(name, said.code, f"it has ended in {report.name}")
            elif said.ready != role.ready:
                role.ready = said.ready
                yield RoleReady(name, said.ready)
        elif report.number >= role.at.start:
            yield from self._drop(name, LOST, f"{report.name} does not run it")

    def _lose(self) -> list[PlacerEffect]:
        silent = [
            each.incarnation for each in self._workers.values() if self._listened_us - each.listened_us > each.patience_us
        ]
        return [effect for incarnation in silent for effect in self._lose_worker(incarnation, "is not heard")]

    def _lose_worker(self, incarnation: str, what: str) -> list[PlacerEffect]:
        worker = self._workers.pop(incarnation)
        if not self._workers:
            self._gathered_at = None
        effects: list[PlacerEffect] = []
        # Clients wait for egresses; replicas and streams have others that give results meanwhile.
        for name in sorted(self._at[incarnation], key=lambda name: (self._roles[name].child.kind != "egress", name)):
            role = self._roles[name]
            if role.phase is _Phase.PLACED:
                effects += self._drop(name, LOST, f"{worker.name} {what}")
            else:
                effects += self._leave(name)
        del self._at[incarnation]
        return effects

    def _holders(self) -> dict[str, _Worker]:
        """Of each name, the worker that has it (rule 7)."""
        found: dict[str, _Worker] = {}
        for worker in sorted(self._workers.values(), key=lambda each: (each.first_heard_at, each.incarnation)):
            found.setdefault(worker.name, worker)
        return found

    def _candidates(self) -> dict[str, _Worker]:
        """The workers that can be given roles, by incarnation."""
        return {
            worker.incarnation: worker
            for _, worker in sorted(self._holders().items())
            if worker.report is not None and worker.report.program == self.program
        }

    def _refuse(self) -> None:
        """Say which workers get no roles, and why."""
        holders, refused = self._holders(), {}
        for incarnation, worker in self._workers.items():
            holder = holders[worker.name]
            if holder is not worker and holder.report is not None and holder.heard_at > worker.first_heard_at:
                refused[incarnation] = f"another worker of site {self.site} has the name {worker.name}: give --name"
            elif worker.report is not None and worker.report.program != self.program:
                refused[incarnation] = (
                    f"worker {worker.name} runs boreal {worker.report.program}, and the supervisor {self.program}: "
                    "start it with the same version"
                )
        self._has_changed |= refused != self._refused
        self._refused = refused

    # Roles

    def _become(self, name: str, phase: _Phase, at: Assignment | None) -> None:
        """A role changes its phase, and where it is."""
        role = self._roles[name]
        if role.at is not None:
            self._at[role.at.incarnation].discard(name)
        role.phase, role.at = phase, at
        if at is not None:
            self._at[at.incarnation].add(name)
        (self._open.discard if phase is _Phase.PLACED else self._open.add)(name)

    def _end(self, name: str, now: int) -> list[PlacerEffect]:
        role = self._roles.get(name)
        if role is None:
            return []  # Its end was reported.
        match role.phase:
            case _Phase.WAITING:
                return self._drop(name, 0, "it did not run")
            case _Phase.PLACED:
                self._take_away(name, _Phase.ENDING, role.at, now)
            case _Phase.MOVING:
                role.phase = _Phase.ENDING
            case _Phase.ENDING:
                pass
        return []

    def _take_away(self, name: str, phase: _Phase, at: Assignment | None, now: int) -> None:
        """Leave a role out of the next record: its worker ends it."""
        role = self._roles[name]
        self._become(name, phase, at)
        role.gone_with, role.due, role.ready = self.number + 1, now + END_WITHIN_US, False
        self._has_changed = True

    def _drop(self, name: str, code: int, why: str) -> list[PlacerEffect]:
        if name not in self._roles:
            return []
        self._has_changed |= self._roles[name].phase is _Phase.PLACED
        self._become(name, _Phase.WAITING, None)
        self._open.discard(name)
        del self._roles[name]
        return [RoleEnded(name, code, why)]

    def _leave(self, name: str) -> list[PlacerEffect]:
        """A role that was asked to end has ended."""
        if self._roles[name].phase is _Phase.ENDING:
            return self._drop(name, 0, "it has ended")
        self._become(name, _Phase.WAITING, None)
        return []

    def _stop_waiting(self, now: int) -> list[PlacerEffect]:
        ending = (_Phase.MOVING, _Phase.ENDING)
        over = [name for name in sorted(self._open) if self._roles[name].phase in ending and self._roles[name].due <= now]
        return [effect for name in over for effect in self._leave(name)]

    # Places

    def _place(self, now: int) -> list[PlacerEffect]:
        waiting = [name for name in self._open if self._roles[name].phase is _Phase.WAITING]
        may_move = now >= self._move_at
        if self._gathered_at is None or now < self._gathered_at or not (waiting or may_move):
            return []
        places = self._places(now)
        for name in sorted(waiting, key=lambda name: (self._roles[name].child.kind != "egress", name)):
            role = self._roles[name]
            if (to := places.choose(role.child)) is not None:
                places.add(role.child, to, role.weight)
                role.ready = False
                self._become(name, _Phase.PLACED, self._assignment(role.child, self._workers[to]))
                self._has_changed = True
        if may_move:
            self._move_at = now + MOVES_EVERY_US
            return self._move(places, now)
        return []

    def _places(self, now: int) -> Places:
        """The workers that can be given roles, and those that have some."""
        places, candidates = Places(), self._candidates()
        self._failed = {name: (where, until) for name, (where, until) in self._failed.items() if now < until}
        for name, (incarnation, _) in self._failed.items():
            places.avoid(name, incarnation)
        for incarnation, worker in candidates.items():
            places.add_worker(incarnation, worker.report.machine if worker.report is not None else "")
        for role in self._roles.values():
            if role.at is not None and role.at.incarnation in candidates:
                places.add(role.child, role.at.incarnation, role.weight)
        return places

    def _assignment(self, child: Child, worker: _Worker) -> Assignment:
        revision = child.record.revision if child.record is not None else 0
        return Assignment(worker.name, worker.incarnation, self.number + 1, revision, config_of(child))

    def _move(self, places: Places, now: int) -> list[PlacerEffect]:
        """Begin the move of one role, if one is due (rule 4)."""
        if self._moved is not None and now < self._move_by:
            moved = self._roles.get(self._moved)
            if moved is not None and not moved.ready:
                return []
        self._moved = next(self._movable(places), None)
        if self._moved is None:
            return []
        self._take_away(self._moved, _Phase.MOVING, self._roles[self._moved].at, now)
        self._move_by = now + MOVE_WITHIN_US
        return [RoleReady(self._moved, False)]

    def _movable(self, places: Places) -> Iterator[str]:
        """The roles that should be elsewhere and may move now, the most urgent first."""
        candidates = self._candidates()
        loads = {here: places.load(here) for here in candidates}
        uneven = [load for load in sorted({*loads.values()}, reverse=True) if load - min(loads.values()) > LEAST_WEIGHT]
        refused = [here for here, worker in self._workers.items() if worker.report is not None and here not in candidates]
        machines = {worker.report.machine for worker in candidates.values() if worker.report is not None}
        are_close = len(machines) > 1 and not places.are_apart()
        if not (uneven or are_close or any(self._at[here] for here in refused)):
            return
        ready = self._ready()
        for name, (child, here, _) in ready.items():
            if here in refused and places.choose(child) is not None:
                yield name
        of_candidates = {name: each for name, each in ready.items() if each[1] in candidates}
        if are_close:
            yield from _too_close(places, of_candidates)
        for load in uneven:
            yield from _too_much(places, {name: each for name, each in of_candidates.items() if loads[each[1]] == load})

    def _ready(self) -> dict[str, tuple[Child, str, int]]:
        """The roles of queries whose roles are all ready, with their workers and weights, in the order in which they move."""
        unready = {public_name(str(role.child.query)) for role in self._roles.values() if not role.ready}
        ordered = sorted(self._roles.items(), key=lambda item: (_MOVE_ORDER.index(item[1].child.kind), item[0]))
        return {
            name: (role.child, role.at.incarnation, role.weight)
            for name, role in ordered
            if role.at is not None and public_name(str(role.child.query)) not in unready
        }


def _too_close(places: Places, roles: Mapping[str, tuple[Child, str, int]]) -> Iterator[str]:
    """Replicas that share a machine with another one, and need not."""
    for name, (child, here, weight) in roles.items():
        places.remove(child, here, weight)
        to = places.choose(child) if places.shares_machine(child, here) else None
        is_better = to is not None and not places.shares_machine(child, to)
        places.add(child, here, weight)
        if is_better:
            yield name


def _too_much(places: Places, roles: Mapping[str, tuple[Child, str, int]]) -> Iterator[str]:
    """Roles that a worker with less load can take, so that the two come closer."""
    for name, (child, here, weight) in roles.items():
        places.remove(child, here, weight)
        to = places.choose(child)
        is_better = to is not None and places.load(to) < places.load(here)
        places.add(child, here, weight)
        if is_better:
            yield name


def config_of(child: Child) -> str:
    """Identifies the configuration that a role runs with."""
    return f"{child.revision}/{child.turn}"
