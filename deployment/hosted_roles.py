"""What a worker that has joined a site runs: as the newest placement record says. Pure.

A record whose number is not higher, or that cannot be read, changes nothing. Without new records all goes on as it is: a role
that ends by itself is the supervisor's to start again, and only if it says nothing for long does the worker do so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from deployment.placement_record import Assignment, PlacementRecord, RoleReport

AGAIN_AFTER_US = 10_000_000
"""After this time without a new record, a role that has ended by itself is started again."""


# Events


@dataclass(frozen=True, slots=True)
class PlacementRead:
    """A record of the worker's site has been read."""

    record: PlacementRecord
    """The record."""


@dataclass(frozen=True, slots=True)
class PlacementRefused:
    """A record of the worker's site cannot be obeyed."""

    why: str
    """What is wrong with it, as the predicate of a sentence."""


@dataclass(frozen=True, slots=True)
class RoleOver:
    """A role has ended, asked or not."""

    name: str
    """Its name."""
    code: int
    """Its exit code."""


@dataclass(frozen=True, slots=True)
class HostTick:
    """Time has passed."""


HostEvent = PlacementRead | PlacementRefused | RoleOver | HostTick

# Effects


@dataclass(frozen=True, slots=True)
class BeginRole:
    """Start a role."""

    name: str
    """Its name."""
    assignment: Assignment
    """What the record says of it."""


@dataclass(frozen=True, slots=True)
class EndRole:
    """Ask a role to end."""

    name: str
    """Its name."""


HostEffect = BeginRole | EndRole


@dataclass(slots=True)
class _Hosted:
    assignment: Assignment  # with which it runs, or ran last
    code: int | None = None  # how it has ended by itself
    again_at: int = 0  # if it has
    is_ending: bool = False  # it was asked to end


class HostedRoles:
    """The roles of one worker. Times are in us."""

    def __init__(self, incarnation: str) -> None:
        """incarnation: the worker's process."""
        self._incarnation = incarnation
        self._roles: dict[str, _Hosted] = {}
        self._wanted: Mapping[str, Assignment] = {}
        self.number = 0
        """The number of the record that is obeyed."""
        self.refused: str | None = None
        """Why the supervisor gives this worker no roles."""
        self.problem: str | None = None
        """Why the last record that came is not obeyed."""

    def handle(self, event: HostEvent, now: int) -> list[HostEffect]:
        """Take an event; returns what to do, in order."""
        match event:
            case PlacementRead(record):
                if record.number < self.number:
                    self.problem = f"record {record.number} is older than record {self.number}, which is obeyed"
                if record.number <= self.number:
                    return []
                self.number, self.problem = record.number, None
                self.refused = record.refused.get(self._incarnation)
                self._wanted = {name: to for name, to in record.roles.items() if to.incarnation == self._incarnation}
                return self._obey()
            case PlacementRefused(why):
                self.problem = f"a record {why}; record {self.number} is obeyed"
                return []
            case RoleOver(name, code):
                return self._end(name, code, now)
            case HostTick():
                return [
                    self._begin(name, hosted.assignment)
                    for name, hosted in sorted(self._roles.items())
                    if hosted.code is not None and hosted.again_at <= now
                ]
            case _:
                assert_never(event)

    def report(self) -> dict[str, RoleReport]:
        """What the worker says of its roles, by name; readiness is left to the caller."""
        return {
            name: RoleReport(self._wanted.get(name, each.assignment).start, False, each.code)
            for name, each in sorted(self._roles.items())
        }

    @property
    def running(self) -> list[str]:
        """The roles that run."""
        return sorted(name for name, hosted in self._roles.items() if hosted.code is None)

    def _obey(self) -> list[HostEffect]:
        effects: list[HostEffect] = []
        for name, hosted in sorted(self._roles.items()):
            to = self._wanted.get(name)
            if to is not None and to.start == hosted.assignment.start:
                continue
            if hosted.code is not None:
                del self._roles[name]
            elif not hosted.is_ending:
                hosted.is_ending = True
                effects.append(EndRole(name))
        return effects + [self._begin(name, to) for name, to in sorted(self._wanted.items()) if name not in self._roles]

    def _begin(self, name: str, to: Assignment) -> HostEffect:
        self._roles[name] = _Hosted(to)
        return BeginRole(name, to)

    def _end(self, name: str, code: int, now: int) -> list[HostEffect]:
        hosted = self._roles[name]
        if not hosted.is_ending:
            hosted.code, hosted.again_at = code, now + AGAIN_AFTER_US
            return []
        del self._roles[name]
        to = self._wanted.get(name)
        return [] if to is None else [self._begin(name, to)]
