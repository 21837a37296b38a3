"""A worker: one process that runs many roles (sources, nodes and egresses), each in threads of its own.

A process costs some 90 MB, a start of a second, and clients of its own. Roles of many queries share them here.

The supervisor decides which roles run here. It says so over a channel, a stream socket, in lines of JSON:

    supervisor → worker     {"start": NAME, "kind": KIND, "part": PART, "record": {...},
                             "links": {"proxies": {SITE: URL}, "stream_proxies": {STREAM: URL}}}
                            {"stop": NAME}
    worker → supervisor     {"warm": true}                           once, when a role can begin without imports
                            {"ended": NAME, "code": EXIT_CODE}

The record is the query's (deployment/query_record.py); `links` is empty if the role has none of its own. A role that fails ends
alone, with the exit code that its process would have. The end of the channel ends the worker.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deployment.query_record import QueryRecord, query_record
from services.egress.egress import EgressProcess
from services.hosting.connections import Connections, MakeRole, make_role
from services.hosting.process import EXIT_FAILED, EXIT_STOPPED, THREAD_SWITCH_S, QueryProcess
from services.kafka.settings import ServiceSettings
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


@dataclass
class _Role:
    name: str
    stopping: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Worker:
    """`serve` runs until it is stopped, or the channel is closed, and returns the exit code."""

    def __init__(
        self, settings: ServiceSettings, name: str, channel: socket.socket, roles: Mapping[str, MakeRole] = ROLES
    ) -> None:
        """channel: to the supervisor. roles: how a role of each kind is made."""
        self._settings = settings
        self._shared = Connections(settings, name)
        self._channel = channel
        self._makers = roles
        self._roles: dict[str, _Role] = {}
        self._lock = threading.Lock()
        self._is_cut = threading.Event()

    def serve(self, stopping: threading.Event) -> int:
        sys.setswitchinterval(THREAD_SWITCH_S)
        self._report({"warm": True})
        threading.Thread(target=self._listen, name="channel", daemon=True).start()
        while not stopping.is_set() and not self._is_cut.is_set():
            stopping.wait(0.1)
        self._end_all()
        return EXIT_STOPPED

    def _listen(self) -> None:
        """Do as the supervisor says, until it closes the channel."""
        try:
            with self._channel.makefile("rb") as lines:
                for line in lines:
                    self._obey(json.loads(line))
        except Exception:
            _logger.exception("the channel to the supervisor has failed")
        finally:
            self._is_cut.set()

    def _obey(self, request: Mapping[str, Any]) -> None:
        if "stop" in request:
            with self._lock:
                role = self._roles.get(request["stop"])
            # A role that is unknown has ended by itself, and that was reported.
            if role is not None:
                role.stopping.set()
            return
        role = _Role(request["start"])
        role.thread = threading.Thread(target=self._run, args=(role, request), name=role.name, daemon=True)
        with self._lock:
            self._roles[role.name] = role
        role.thread.start()

    def _run(self, role: _Role, request: Mapping[str, Any]) -> None:
        own: Connections | None = None
        if request["links"]:
            # Its links are its own: a fault may cut this role off, and no other.
            own = Connections(self._settings.model_copy(update=request["links"]), role.name)
        try:
            make, record = self._makers[request["kind"]], query_record(request["record"])
            code = make_role(make, own or self._shared, role.name, record, request["part"]).serve(role.stopping)
        except Exception:
            _logger.exception("%s failed", role.name)
            code = EXIT_FAILED
        if own is not None:
            own.close()
        _logger.info("%s has ended: exit code %d", role.name, code)
        with self._lock:
            del self._roles[role.name]
            self._report({"ended": role.name, "code": code})

    def _report(self, message: Mapping[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._is_cut.set()

    def _end_all(self) -> None:
        with self._lock:
            roles = list(self._roles.values())
        for role in roles:
            role.stopping.set()
        for role in roles:
            if role.thread is not None:
                role.thread.join(END_WITHIN_S)
