"""What a site's supervisor and the workers that have joined the site tell each other. Pure.

The supervisor writes who runs what: the record of `boreal.placement` with the site's name as its key.

    {"v": 1, "site": "a", "number": 17, "program": "0.1.0",
     "roles": {ROLE: {"worker": NAME, "incarnation": ID, "start": 12, "revision": 3, "config": DIGESTS}},
     "refused": {ID: WHY}}

A worker says what it runs in its status, `worker.SITE.NAME` of `boreal.status`:

    {"site": "a", "name": NAME, "incarnation": ID, "machine": ID, "host": NAME, "program": "0.1.0", "number": 17,
     "leaves": false, "roles": {ROLE: {"start": 12, "ready": true, "code": null}}}

A process of a worker has an incarnation, which no other has: two workers of one name are told apart by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from boreal.model.errors import BorealError

VERSION = 1
WORKER = "worker"
"""The kind of a worker's status."""


class PlacementUnreadable(BorealError):
    """A placement record that this program cannot obey: it is damaged, or of a version that it does not know."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a role runs."""

    worker: str
    """Name of the worker."""
    incarnation: str
    """Its process."""
    start: int
    """The number of the first record with this assignment: a higher one means a new start of the role."""
    revision: int
    """The least revision of the query's record to start with."""
    config: str
    """Identifies the configuration that it runs with."""


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """Who runs what at one site."""

    site: str
    """Name of the site."""
    number: int
    """Rises with each record of the site."""
    program: str
    """The version of the program that wrote it."""
    roles: Mapping[str, Assignment]
    """Where each role runs, by its name. A role that is not there runs nowhere."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why workers get no roles, by their incarnations."""

    def to_json(self) -> bytes:
        roles = {name: asdict(assignment) for name, assignment in sorted(self.roles.items())}
        fields = {"v": VERSION, "site": self.site, "number": self.number, "program": self.program, "roles": roles}
        return json.dumps({**fields, "refused": dict(sorted(self.refused.items()))}, separators=(",", ":")).encode()


def read_placement(value: bytes | None, site: str) -> PlacementRecord:
    """The record in a value of the topic. site: that of its key. PlacementUnreadable."""
    try:
        fields = json.loads(value or b"")
        version = fields["v"]
        if version != VERSION:
            raise PlacementUnreadable(f"is of version {version}, and this program reads version {VERSION}")
        if fields["site"] != site:
            raise ValueError(f"it is of the site {fields['site']}")
        roles = {
            str(name): Assignment(
                str(said["worker"]), str(said["incarnation"]), int(said["start"]), int(said["revision"]), str(said["config"])
            )
            for name, said in fields["roles"].items()
        }
        refused = {str(incarnation): str(why) for incarnation, why in fields["refused"].items()}
        return PlacementRecord(site, int(fields["number"]), str(fields["program"]), roles, refused)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PlacementUnreadable(f"is damaged: {error!r}") from None


def worker_process(site: str, name: str) -> str:
    """The name of a worker's status."""
    return f"{WORKER}.{site}.{name}"


@dataclass(frozen=True, slots=True)
class RoleReport:
    """What a worker says of one of its roles."""

    start: int
    """As in the role's assignment."""
    ready: bool = False
    """Whether it is ready."""
    code: int | None = None
    """Its exit code, if it has ended by itself; None while it runs."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says of itself."""

    name: str
    """Its name, unique at its site."""
    incarnation: str
    """Its process."""
    machine: str
    """Identifies the machine that it runs on."""
    program: str
    """The version of its program."""
    number: int
    """The number of the newest record that it has read; 0 before the first."""
    roles: Mapping[str, RoleReport]
    """The roles that it runs, or that have ended by themselves, by name."""
    leaves: bool = False
    """Whether it ends, and has no roles any more."""

    def fields(self) -> dict[str, Any]:
        """As its status has them."""
        return asdict(self)


def worker_report(status: Mapping[str, Any]) -> WorkerReport:
    """What a worker's status says. KeyError, TypeError or ValueError if it is malformed."""
    roles = {str(name): RoleReport(int(s["start"]), bool(s["ready"]), s["code"]) for name, s in status["roles"].items()}
    name, incarnation, machine, program = (str(status[field]) for field in ("name", "incarnation", "machine", "program"))
    return WorkerReport(name, incarnation, machine, program, int(status["number"]), roles, bool(status["leaves"]))
