"""A worker that has joined a site, from any machine that reaches its Kafka and Redis: it runs the roles that the newest record
of `boreal.placement` gives it.

It follows that topic and the records of queries, and says twice a second what it runs. The supervisor of the site decides;
while that is away, or Kafka is, all roles go on. It ends when it is stopped, or when the supervisor refuses it and it runs no
role.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

from boreal.model.errors import UserError
from deployment.hosted_roles import (
    BeginRole,
    EndRole,
    HostedRoles,
    HostEvent,
    HostTick,
    PlacementRead,
    PlacementRefused,
    RoleOver,
)
from deployment.joined_sources import SourceIndex
from deployment.placement_record import Assignment, WorkerReport, worker_process
from deployment.placer import SAY_EVERY_US
from deployment.query_record import QueryRecord, public_name
from services.hosting.connections import Connections, MakeRole
from services.hosting.process import (
    EXIT_FAILED,
    EXIT_STOPPED,
    StatusPublisher,
    StopSignal,
    now_us,
    program_version,
)
from services.kafka.placement import follow_placement
from services.kafka.settings import ServiceSettings
from services.worker.role_threads import ROLES, RoleRequest, RoleThreads

_LOOK_S = 0.1
_RECORD_WITHIN_S = 10.0
"""A query's record, which the supervisor has read, is here within this time."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_logger = logging.getLogger("boreal.worker")


def machine_id() -> str:
    """Identifies this machine: containers on it have the same. Where the kernel does not say, the host's name."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


def check_site(settings: ServiceSettings, site: str) -> None:
    """UserError if there is no such site."""
    if site not in settings.sites:
        fix = f"name one of {', '.join(settings.site_names)}, or set BOREAL_SITES__{site.upper()}__BOOTSTRAP=HOST:PORT"
        raise UserError("--site", site, "is not among the sites of BOREAL_SITES", fix)


class JoinedWorker:
    """`serve` runs until it is stopped or refused, and returns the exit code."""

    def __init__(self, settings: ServiceSettings, site: str, name: str, roles: Mapping[str, MakeRole] = ROLES) -> None:
        """name: unique at the site. roles: how a role of each kind is made. UserError if there is no such site."""
        check_site(settings, site)
        self._site = site
        self._name = name
        self._incarnation = uuid.uuid4().hex[:12]
        self._machine = machine_id()
        self._shared = Connections(settings, worker_process(site, name))
        self._threads = RoleThreads(self._shared, self._note_end, roles)
        self._hosted = HostedRoles(self._incarnation)
        self._queries = _KnownQueries()
        self._inbox: queue.SimpleQueue[HostEvent] = queue.SimpleQueue()
        self._leaves = False
        self._logged: str | None = None

    def serve(self, stopping: StopSignal) -> int:
        self._shared.watch.add(self._queries.take)
        # Its own desk: a role whose status takes long must not make the worker look dead.
        publisher = StatusPublisher(self._shared.home, worker_process(self._site, self._name), self._status)
        follower = follow_placement(
            self._shared.home,
            self._site,
            lambda record: self._inbox.put(PlacementRead(record)),
            lambda why: self._inbox.put(PlacementRefused(why)),
        )
        _logger.info("%s joins site %s as %s", self._name, self._site, self._incarnation)
        say_at = time.monotonic()
        while not stopping.is_set() and not self._is_done():
            has_changed = self._turn(min(max(say_at - time.monotonic(), 0), _LOOK_S))
            if has_changed or time.monotonic() >= say_at:
                say_at = time.monotonic() + SAY_EVERY_US / 1e6
                publisher.now()
        follower.close()
        self._threads.end_all()
        self._leaves = True
        publisher.deliver()
        return EXIT_FAILED if self._is_done() else EXIT_STOPPED

    def _is_done(self) -> bool:
        return self._hosted.refused is not None and not self._hosted.report()

    def _turn(self, within_s: float) -> bool:
        """Handle what has come, or wait so long at most. Returns whether the status has changed."""
        before = self._hosted.number, self._hosted.report(), self._ready()
        try:
            event: HostEvent = self._inbox.get(timeout=within_s)
        except queue.Empty:
            event = HostTick()
        for effect in self._hosted.handle(event, now_us()):
            match effect:
                case BeginRole(name, assignment):
                    self._threads.begin(self._request(name, assignment))
                case EndRole(name):
                    self._threads.end(name)
                case _:
                    assert_never(effect)
        self._log_problems()
        return before != (self._hosted.number, self._hosted.report(), self._ready())

    def _request(self, name: str, assignment: Assignment) -> RoleRequest:
        kind, query, part = name.split(".", 2)
        return RoleRequest(name, kind, part, lambda: self._queries.find(kind, query, part, assignment.revision))

    def _note_end(self, name: str, code: int) -> None:
        """In the role's thread."""
        self._inbox.put(RoleOver(name, code))

    def _ready(self) -> frozenset[str]:
        return frozenset(name for name in self._hosted.running if self._shared.statuses.is_ready(name))

    def _log_problems(self) -> None:
        """Log what the supervisor, or the record, has against us, once each."""
        problem = self._hosted.refused or self._hosted.problem
        if problem is not None and problem != self._logged:
            _logger.error("%s: %s", self._name, problem)
        self._logged = problem

    def _status(self) -> dict[str, Any]:
        """In the publisher's thread."""
        hosted, ready = self._hosted, self._ready()
        roles = {} if self._leaves else {name: replace(said, ready=name in ready) for name, said in hosted.report().items()}
        problem = hosted.refused or hosted.problem
        report = WorkerReport(
            self._name, self._incarnation, self._machine, program_version(), hosted.number, roles, self._leaves
        )
        return {
            "query": None,
            "ready": problem is None,
            "problem": problem,
            "site": self._site,
            "host": socket.gethostname(),
            **report.fields(),
        }


class _KnownQueries:
    """The records of queries, as they come."""

    def __init__(self) -> None:
        self._records: dict[str, QueryRecord] = {}
        self._changed = threading.Condition()

    def take(self, name: str, record: QueryRecord | None) -> None:
        with self._changed:
            if record is None:
                self._records.pop(name, None)
            else:
                self._records[name] = record
            self._changed.notify_all()

    def find(self, kind: str, query: str, part: str, revision: int) -> QueryRecord:
        """The record for a role, of this revision or a later one. RuntimeError if there is none in time."""

        def look() -> QueryRecord | None:
            if kind == "source":
                found = SourceIndex(self._records.values()).record_of(query, part)
                return found if found is not None and found.revision >= revision else None
            record = self._records.get(public_name(query))
            if record is None or record.revision < revision:
                return None
            # An egress is the query's, and goes from one version of it to another; all others are of one version.
            return record if kind == "egress" else record.version_named(query)

        with self._changed:
            record = self._changed.wait_for(look, _RECORD_WITHIN_S)
        if record is None:
            raise RuntimeError(f"revision {revision} of query {query} has not been read")
        return record
