"""Workers for deployments of tests and benchmarks: the supervisor's own, without a supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from deployment.supervision import Child
from services.kafka.settings import ServiceSettings
from services.stack.channel import Started, start_with_channel
from services.stack.workers import Workers, role_workers


class HostedRole:
    """A role that runs in a worker, with what is used of a process of its own. A signal reaches the whole worker."""

    def __init__(self, name: str, workers: Workers) -> None:
        self.name = name
        self._workers = workers
        self._code: int | None = None
        self._ended = threading.Event()

    @property
    def pid(self) -> int:
        """The process id of the worker; 0 once the role has ended."""
        identity = self._workers.identity_of(self.name)
        return identity[0] if identity else 0

    def end(self, code: int) -> None:
        """Note that it has ended with this exit code."""
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
        assert self._code is not None
        return self._code

    def send_signal(self, number: int) -> None:
        self._workers.send(self.name, signal.Signals(number))

    def kill(self) -> None:
        """Ask the role to end: the others in its worker run on."""
        self._workers.stop(self.name)


class WorkerPool:
    """Workers that share the roles of several deployments; started when the first role begins."""

    def __init__(self, root: Path, count: int, settings: ServiceSettings) -> None:
        self._root = root
        self._settings = settings
        self._lock = threading.RLock()
        self._roles: dict[str, HostedRole] = {}
        self._workers = role_workers(count, self._spawn, self._note_end)

    def start(self, child: Child, proxies: Mapping[str, str], _environment: Mapping[str, str]) -> HostedRole:
        """Start a role. proxies: URLs of the links of its own, by site; empty for none. Its environment is its worker's, which
        runs already."""
        links = {"proxies": dict(proxies), "stream_proxies": {}} if proxies else {}
        role = HostedRole(child.name, self._workers)
        with self._lock:
            self._roles[child.name] = role
            self._workers.start(child, links)
        return role

    def close(self) -> None:
        """End all workers. Call when no role runs any more."""
        self._workers.close()

    def roles_of(self, pid: int) -> list[str]:
        """The roles that the worker with this process id runs."""
        return sorted(name for name, role in list(self._roles.items()) if role.pid == pid)

    def _note_end(self, name: str, code: int) -> None:
        self._roles[name].end(code)

    def _spawn(self, name: str, command: Sequence[str]) -> Started:
        settings = self._settings
        environment = {
            **os.environ,
            "BOREAL_REDIS": settings.redis.model_dump_json(exclude_defaults=True),
            "BOREAL_SITES": json.dumps({site: {"bootstrap": kafka.bootstrap} for site, kafka in settings.sites.items()}),
            "BOREAL_DATA": str(settings.data),
            "PYTHONUNBUFFERED": "1",
        }
        with (self._root / f"{name}.log").open("ab") as output:
            return start_with_channel(
                lambda stdin: subprocess.Popen(
                    (sys.executable, *command), env=environment, stdin=stdin, stdout=output, stderr=output
                )
            )
