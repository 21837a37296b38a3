"""The roles that run in this process, each in threads of its own. A role that fails ends alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployment.query_record import QueryRecord
from services.egress.egress import EgressProcess
from services.hosting.connections import Connections, MakeRole, make_role
from services.hosting.process import EXIT_FAILED, QueryProcess, StopSignal
from services.node.node import NodeProcess
from services.source.options import SourceOptions
from services.source.source import SourceProcess

END_WITHIN_S = 8.0
"""How long the roles may take to end with their worker; less than the supervisor's patience."""

_logger = logging.getLogger("boreal.worker")


def _make_source(connections: Connections, name: str, record: QueryRecord, stream: str) -> QueryProcess:
    return SourceProcess(connections, SourceOptions(), name, record, stream)


ROLES: Mapping[str, MakeRole] = {"source": _make_source, "node": NodeProcess, "egress": EgressProcess}
"""How a role of each kind is made."""


@dataclass(frozen=True)
class RoleRequest:
    """A role that should run."""

    name: str
    """Its name."""
    kind: str
    """Its kind."""
    part: str
    """Such as a replica."""
    find_record: Callable[[], QueryRecord]
    """Called in the role's thread: the record of its query. An error ends the role."""
    links: Mapping[str, Any] = field(default_factory=dict)
    """The settings of its own links, if it has any."""


@dataclass
class _Role:
    stopping: StopSignal = field(default_factory=lambda: StopSignal())
    thread: threading.Thread | None = None


class RoleThreads:
    """All roles of a worker."""

    def __init__(
        self,
        shared: Connections,
        on_end: Callable[[str, int], None],
        makers: Mapping[str, MakeRole] = ROLES,
    ) -> None:
        """shared: of roles without links. on_end(role, exit code): called in the role's thread when it has ended; the role can
        be started again from then on. makers: how a role of each kind is made."""
        self._shared = shared
        self._on_end = on_end
        self._makers = makers
        self._roles: dict[str, _Role] = {}
        self._lock = threading.Lock()

    def begin(self, request: RoleRequest) -> None:
        """Start a role that does not run."""
        role = _Role()
        role.thread = threading.Thread(target=self._run, args=(role, request), name=request.name, daemon=True)
        with self._lock:
            self._roles[request.name] = role
        role.thread.start()

    def end(self, name: str) -> None:
        """Ask a role to end."""
        with self._lock:
            role = self._roles.get(name)
        # A role that is unknown has ended by itself, and that was reported.
        if role is not None:
            role.stopping.set()

    def end_all(self) -> None:
        """End all roles; returns when they have ended, or do not in time."""
        with self._lock:
            roles = list(self._roles.values())
        for role in roles:
            role.stopping.set()
        until = time.monotonic() + END_WITHIN_S
        for role in roles:
            if role.thread is not None:
                role.thread.join(max(until - time.monotonic(), 0))

    def _run(self, role: _Role, request: RoleRequest) -> None:
        own: Connections | None = None
        try:
            if request.links:
                # Its links are its own: a fault may cut this role off, and no other.
                own = Connections(self._shared.settings.model_copy(update=dict(request.links)), request.name)
            make, record = self._makers[request.kind], request.find_record()
            code = make_role(make, own or self._shared, request.name, record, request.part).serve(role.stopping)
        except Exception:
            _logger.exception("%s failed", request.name)
            code = EXIT_FAILED
        if own is not None:
            own.close()
        _logger.info("%s has ended: exit code %d", request.name, code)
        with self._lock:
            del self._roles[request.name]
            self._on_end(request.name, code)
