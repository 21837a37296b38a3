"""The roles that run in this process, each in threads of its own. A role that fails ends alone."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployment.query_record import QueryRecord
from services.egress.egress import EgressProcess
from services.hosting.connections import Connections, MakeRole, make_role
from services.hosting.process import EXIT_FAILED, EXIT_STOPPED, QueryProcess, StopSignal
from services.node.node import NodeProcess
from services.source.options import SourceOptions
from services.source.source import SourceProcess

END_WITHIN_S = 8.0
"""How long a role may take to end, and all may with their worker; less than the supervisor's patience."""

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
        self._is_ending = False

    def begin(self, request: RoleRequest) -> None:
        """Start a role that does not run."""
        role = _Role()
        role.thread = threading.Thread(target=self._run, args=(role, request), name=request.name, daemon=True)
        with self._lock:
            self._roles[request.name] = role
        role.thread.start()

    def end(self, name: str) -> None:
        """Ask a role to end. One that does not in time, such as one that is still being made, is left to itself, and reported:
        the supervisor would kill the worker, with all others. It writes nothing that counts once its successor has begun."""
        with self._lock:
            role = self._roles.get(name)
        # A role that is unknown has ended by itself, and that was reported.
        if role is not None and not role.stopping.is_set():
            role.stopping.set()
            threading.Thread(target=self._await_end, args=(role, name), name=f"end-{name}", daemon=True).start()

    def end_all(self) -> None:
        """End all roles; returns when they have ended, or do not in time."""
        self._is_ending = True
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
        self._report(role, request.name, code)
        if not self._is_ending:
            # Parts of a role refer to each other, and may hold much memory; the collector looks at old objects rarely.
            gc.collect()

    def _await_end(self, role: _Role, name: str) -> None:
        assert role.thread is not None, "it has begun"
        role.thread.join(END_WITHIN_S)
        if self._report(role, name, EXIT_STOPPED):
            _logger.error("%s has not ended within %.0f s, and is left to itself", name, END_WITHIN_S)

    def _report(self, role: _Role, name: str, code: int) -> bool:
        """Tell that a role has ended; False if that was told before."""
        with self._lock:
            if self._roles.get(name) is not role:
                return False
            del self._roles[name]
            self._on_end(name, code)
            return True
