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
import threading
from collections.abc import Mapping
from typing import Any

from deployment.query_record import query_record
from services.hosting.connections import Connections, MakeRole
from services.hosting.process import EXIT_STOPPED, StopSignal
from services.worker.role_threads import ROLES, RoleRequest, RoleThreads

_logger = logging.getLogger("boreal.worker")


class Worker:
    """`serve` runs until it is stopped, or the channel is closed, and returns the exit code."""

    def __init__(
        self, connections: Connections, channel: socket.socket, roles: Mapping[str, MakeRole] = ROLES
    ) -> None:
        """connections: which its roles share; channel: to the supervisor. roles: how a role of each kind is made."""
        self._channel = channel
        self._roles = RoleThreads(connections, self._note_end, roles)
        self._is_cut = threading.Event()

    def serve(self, stopping: StopSignal) -> int:
        self._report({"warm": True})
        threading.Thread(target=self._listen, name="channel", daemon=True).start()
        while not stopping.is_set() and not self._is_cut.is_set():
            stopping.wait(0.1)
        self._roles.end_all()
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
            self._roles.end(request["stop"])
            return
        role = RoleRequest(
            request["start"],
            request["kind"],
            request["part"],
            lambda: query_record(request["record"]),
            request["links"],
        )
        self._roles.begin(role)

    def _note_end(self, name: str, code: int) -> None:
        self._report({"ended": name, "code": code})

    def _report(self, message: Mapping[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._is_cut.set()
