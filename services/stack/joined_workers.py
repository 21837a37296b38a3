"""The workers that have joined the sites of a supervisor (services.worker.joined): it decides which roles they run, and writes
that to `boreal.placement`. A `Placer` for each site makes the decisions; here are its events and effects.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from deployment.placement import HOSTED
from deployment.placement_record import WORKER, PlacementRecord, worker_report
from deployment.placer import (
    PlacementChanged,
    Placer,
    PlacerEffect,
    PlacerEvent,
    PlacerTick,
    RecordFound,
    RoleEnded,
    RoleGivenUp,
    RoleReady,
    RolesKnown,
    RoleUnwanted,
    RoleWanted,
    RoleWeighed,
    SelfHeard,
    WorkerHeard,
)
from deployment.role_weights import RoleWeights
from deployment.supervision import Child
from services.hosting.process import EXIT_STOPPED, now_us, program_version
from services.kafka.clusters import Cluster
from services.kafka.placement import PlacementWriter
from services.kafka.statuses import Status

_logger = logging.getLogger("boreal.supervisor")


class JoinedWorkers:
    """Starts and stops roles wherever a worker has joined their site. Any thread may call any method."""

    def __init__(
        self,
        home: Cluster,
        sites: Iterable[str],
        on_end: Callable[[str, int], None],
        on_ready: Callable[[str, bool], None],
        on_fenced: Callable[[], None],
    ) -> None:
        """on_end(role, exit code), on_ready(role, whether it is): called in any thread. on_fenced: a later supervisor decides
        for one of the sites."""
        self._on_end = on_end
        self._on_ready = on_ready
        self._lock = threading.RLock()
        self._sites = {site: Placer(site, program_version()) for site in sites}
        self._weights = RoleWeights()
        self._site_of: dict[str, str] = {}
        self._has_let_go = False
        self._writers = {site: PlacementWriter(home, site, self._finder(site), on_fenced) for site in self._sites}

    # As a supervisor's own workers

    def start(self, child: Child, links: Mapping[str, Mapping[str, str]]) -> None:
        """Start a role in a worker, as soon as there is one for it."""
        assert not links, "a worker elsewhere has no links of this machine"
        self._site_of[child.name] = child.site
        self._tell(child.site, RoleWanted(child))

    def stop(self, role: str) -> None:
        """Ask a role to end."""
        if self._has_let_go:
            return self._on_end(role, EXIT_STOPPED)
        self._tell(self._site_of[role], RoleUnwanted(role))

    def send(self, role: str, number: signal.Signals) -> None:
        """A role that must be killed is given up: nobody here can signal its process."""
        if number is signal.SIGKILL:
            self._tell(self._site_of[role], RoleGivenUp(role))

    def drop(self, role: str) -> None:
        """Forget a role that has ended and is not wanted any more."""
        with self._lock:
            self._site_of.pop(role, None)
            self._weights.forget(role)

    def identity_of(self, role: str) -> tuple[int, float] | None:
        """None: a role has no process on this machine."""
        return None

    @property
    def names(self) -> list[str]:
        """None of them writes a log on this machine."""
        return []

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    # Placement

    def settle(self) -> None:
        """All roles that should run have been started, and all others stopped: decide where they run."""
        for site in self._sites:
            self._tell(site, RolesKnown(), PlacerTick())

    def tick(self) -> None:
        """Time has passed: call it several times a second."""
        for site in self._sites:
            self._tell(site, PlacerTick())

    def let_go(self) -> None:
        """The supervisor ends: roles go on where they run, and `stop` only forgets them."""
        self._has_let_go = True

    def hear(self, status: Status) -> None:
        """The status of a worker, or of a role. KeyError, TypeError or ValueError if it is malformed."""
        kind = status.get("kind")
        if kind in HOSTED and (site := self._site_of.get(status["process"])) is not None:
            with self._lock:
                weight = self._weights.see(status, now_us())
            self._tell(site, RoleWeighed(status["process"], weight))
        elif kind == WORKER and status["site"] in self._sites:
            report = worker_report(status)
            effects = self._tell(status["site"], WorkerHeard(report))
            if effects or report.leaves:
                self._tell(status["site"], PlacerTick())

    def hear_self(self) -> None:
        """The supervisor has heard its own status."""
        for site in self._sites:
            self._tell(site, SelfHeard())

    def place_of(self, role: str) -> str | None:
        """The name of the worker that runs a role; None if none does."""
        with self._lock:
            site = self._site_of.get(role)
            return self._sites[site].place_of(role) if site is not None else None

    def problem_of(self, query: str) -> str | None:
        """Why a role of a query runs nowhere; None if all run, or soon will."""
        with self._lock:
            found = (placer.problem_of(query, now_us()) for placer in self._sites.values())
            return next((problem for problem in found if problem is not None), None)

    def _finder(self, site: str) -> Callable[[PlacementRecord | None], None]:
        return lambda record: (self._tell(site, RecordFound(record)), None)[1]

    def _tell(self, site: str, *events: PlacerEvent) -> list[PlacerEffect]:
        with self._lock:
            effects = [effect for event in events for effect in self._sites[site].handle(event, now_us())]
            for effect in effects:
                match effect:
                    case PlacementChanged(record):
                        if not self._has_let_go:
                            self._writers[site].put(record)
                    case RoleEnded(name, code, why):
                        _logger.log(logging.WARNING if code else logging.INFO, "%s: %s", name, why)
                        self._on_end(name, code)
                    case RoleReady(name, ready):
                        self._on_ready(name, ready)
                    case _:
                        assert_never(effect)
        return effects
