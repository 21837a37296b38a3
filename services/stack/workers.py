"""The workers of a supervisor: processes that run many roles each (services.worker.worker, spark_jobs.application).

They are started when the first role needs one. A worker that ends takes its roles with it: each is reported as ended, and the
supervisor starts it in another worker, which is warm; its replacement is the spare (services.stack.spare), if there is one.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from deployment.placement import choose_worker
from deployment.supervision import Child
from services.stack.channel import Started
from services.stack.state import created

_logger = logging.getLogger("boreal.supervisor")

_URGENCY = {"source": 0, "egress": 1}
"""The order in which roles begin anew, by kind; all others come later."""


@dataclass
class _Worker:
    name: str
    process: subprocess.Popen[bytes]
    created: float
    channel: socket.socket
    roles: dict[str, Child] = field(default_factory=dict)
    is_up: bool = True
    is_warm: bool = False  # it has imported what roles need


class Workers:
    """The workers of these names. Only for the thread that starts processes, but for `identity_of`."""

    def __init__(
        self,
        names: Sequence[str],
        module: str,
        spawn: Callable[[str, Sequence[str]], Started],
        on_end: Callable[[str, int], None],
        has_rows: Callable[[str], bool] = lambda role: False,
    ) -> None:
        """module: what each runs. spawn(name, command): starts a process, with a socket as its stdin. on_end(role, exit code):
        called, in any thread, when a role has ended. has_rows(role): whether it has any at present."""
        self._names = names
        self._module = module
        self._spawn = spawn
        self._on_end = on_end
        self._has_rows = has_rows
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}

    def start(self, child: Child, links: Mapping[str, Mapping[str, str]]) -> None:
        """Start a role in a worker. links: the settings of its own links, if it has any. OSError, RuntimeError or
        psutil.Error if the machine has no room for a worker that it needs."""
        self._fill()
        with self._lock:
            up = [worker for worker in self._workers.values() if worker.is_up]
            name = _choose(child, [worker for worker in up if worker.is_warm]) or _choose(child, up)
            if name is None:
                raise RuntimeError("each worker runs another replica of its query")
            worker = self._workers[name]
            worker.roles[child.name] = child
        assert child.record is not None, "only roles of queries run in workers"
        record, part = child.record.fields(), child.command[-1]
        request = {"start": child.name, "kind": child.kind, "record": record, "part": part, "links": links}
        self._tell(worker, request)
        _logger.info("%s has been started in %s", child.name, name)

    def stop(self, role: str) -> None:
        """Ask a role to end."""
        if (worker := self._worker_of(role)) is not None:
            self._tell(worker, {"stop": role})
            # A frozen worker would not react.
            worker.process.send_signal(signal.SIGCONT)

    def send(self, role: str, number: signal.Signals) -> None:
        """Send the worker of a role a signal: a role has no process of its own."""
        if (worker := self._worker_of(role)) is not None:
            worker.process.send_signal(number)

    def identity_of(self, role: str) -> tuple[int, float] | None:
        """The process id of a role's worker, and when it was started; None if the role runs in none."""
        worker = self._worker_of(role)
        return None if worker is None else (worker.process.pid, worker.created)

    @property
    def names(self) -> list[str]:
        """The workers that run."""
        with self._lock:
            return [name for name, worker in self._workers.items() if worker.is_up]

    def close(self) -> None:
        """End all workers. Call when no role runs any more."""
        for worker in list(self._workers.values()):
            worker.channel.shutdown(socket.SHUT_RDWR)
            worker.process.wait()

    # Processes

    def _fill(self) -> None:
        """Start the workers that are missing."""
        for name in self._names:
            with self._lock:
                is_up = name in self._workers and self._workers[name].is_up
            if not is_up:
                self._begin(name)

    def _begin(self, name: str) -> None:
        process, channel = self._spawn(name, ("-m", self._module, name))
        worker = _Worker(name, process, created(psutil.Process(process.pid)), channel)
        with self._lock:
            self._workers[name] = worker
        try:
            threading.Thread(target=self._listen, args=(worker,), name=name, daemon=True).start()
        except RuntimeError:
            # Nobody would hear of its end.
            worker.is_up = False
            process.kill()
            process.wait()
            raise
        _logger.info("%s has been started: pid %d", name, process.pid)

    def _tell(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        try:
            worker.channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            # It has ended: its thread reports that, and the roles that it had, with this one.
            _logger.debug("%s has ended", worker.name)

    def _worker_of(self, role: str) -> _Worker | None:
        with self._lock:
            return next((worker for worker in self._workers.values() if role in worker.roles), None)

    def _listen(self, worker: _Worker) -> None:
        """Report the ends of roles, until the worker ends."""
        try:
            with worker.channel.makefile("rb") as lines:
                for line in lines:
                    self._hear(worker, json.loads(line))
        except (OSError, ValueError):
            worker.process.kill()
        code = worker.process.wait()
        with self._lock:
            worker.is_up = False
            roles, worker.roles = worker.roles, {}
        if roles:
            _logger.warning("%s has ended (%d), with %s", worker.name, code, ", ".join(roles))
        # They begin anew in this order. Clients wait for sources and egresses with rows; replicas have others that give results
        # meanwhile. All readers of a source that is away would come to a failure, and back.
        for role in sorted(roles, key=lambda role: (not self._has_rows(role), _URGENCY.get(roles[role].kind, len(_URGENCY)))):
            self._on_end(role, code)

    def _hear(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        if "ended" not in message:
            worker.is_warm = True
            return
        with self._lock:
            worker.roles.pop(message["ended"], None)
        self._on_end(message["ended"], message["code"])


def role_workers(
    count: int,
    spawn: Callable[[str, Sequence[str]], Started],
    on_end: Callable[[str, int], None],
    has_rows: Callable[[str], bool] = lambda role: False,
) -> Workers:
    """So many workers for sources, nodes and egresses."""
    return Workers([f"worker.{number}" for number in range(count)], "services.worker", spawn, on_end, has_rows)


def _choose(child: Child, workers: Iterable[_Worker]) -> str | None:
    return choose_worker(child, {worker.name: worker.roles.values() for worker in workers})
