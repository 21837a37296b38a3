"""The processes of a supervisor: starts them, in workers where roles share processes, signals them, and keeps their logs."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from boreal.query.running import Application
from deployment.placement import HOSTED
from deployment.supervision import Child
from services.hosting.process import EXIT_FAILED
from services.kafka.settings import ServiceSettings
from services.stack import parent_death
from services.stack.channel import Started, start_with_channel
from services.stack.chaos import FaultDesk
from services.stack.children import python_environment
from services.stack.joined_workers import JoinedWorkers
from services.stack.links import ProxyLink, RoleLinks
from services.stack.spare_keeper import COMMAND, SpareKeeper
from services.stack.state import created
from services.stack.workers import Workers, role_workers

LOG_BYTES_MAX = 8 << 20
"""A longer log is moved to NAME.log.1, which replaces the one before."""

SHORTAGES = (OSError, RuntimeError)
"""Raised when the machine has no room for another process, file or (RuntimeError) thread."""

_logger = logging.getLogger("boreal.supervisor")


class ProcessRunner:
    """The processes themselves: starts, signals and logs. If the machine lacks a resource (processes, memory, files, disk),
    only the process that is started at that moment fails.

    All methods but `pid` must be called from the main thread: the kernel ties a process to the thread that started it."""

    def __init__(
        self,
        settings: ServiceSettings,
        allow_chaos: bool,
        on_end: Callable[[str, int], None],
        workers: int | JoinedWorkers = 0,
        has_rows: Callable[[str], bool] = lambda role: False,
    ) -> None:
        """on_end(name, exit code): called, in any thread, when a process or a role has ended. workers: how many processes share
        the roles of the queries; 0: each role has its own; or those elsewhere that run them. has_rows(role): whether it has any
        at present."""
        self._settings = settings
        self._allow_chaos = allow_chaos
        self._on_end = on_end
        self._logs = settings.data / "logs"
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self._began: dict[str, float] = {}
        self._workers: Workers | JoinedWorkers | None = None
        self._applications: dict[str, Workers] = {}
        if isinstance(workers, int) and workers:
            self._workers = role_workers(workers, self._spawn_worker, on_end, has_rows)
        elif workers:
            self._workers = workers
        self._links: dict[str, RoleLinks] = {}
        self._spare = SpareKeeper(lambda: self._spawn_with_channel(COMMAND, self._output("spare")))
        self._logged: set[str] = set()
        self.faults: list[dict[str, Any]] = []
        """For the supervisor's status, from any thread."""
        self._faults: FaultDesk | None = None
        if allow_chaos:
            self._faults = FaultDesk(settings.data, self._known_links, self._send)

    def turn_faults(self) -> bool:
        """Begin and undo the faults that are asked for, if chaos is allowed. Returns whether their report has changed."""
        if self._faults is None:
            return False
        self._faults.turn()
        before, self.faults = self.faults, self._faults.report()
        return before != self.faults

    @property
    def held(self) -> frozenset[str]:
        """The processes that have crashed on purpose, and must not be started yet."""
        return self._faults.held if self._faults is not None else frozenset()

    def pid(self, name: str) -> int | None:
        identity = self._identity(name)
        return identity[0] if identity else None

    def created(self, name: str) -> float | None:
        """When a process was started, as in `services.stack.state`: together with the pid this identifies it for good."""
        identity = self._identity(name)
        return identity[1] if identity else None

    def began(self, name: str) -> float:
        """When a process, or a role in a worker, was started last: seconds by the wall clock."""
        return self._began.get(name, 0.0)

    def _identity(self, name: str) -> tuple[int, float] | None:
        """The process id, and when the process was started; of a role, its worker's. None while it does not run."""
        running = self._running.get(name)
        if running is not None:
            return running[0].pid, running[1]
        return next((found for workers in self._hosts if (found := workers.identity_of(name)) is not None), None)

    @property
    def _hosts(self) -> list[Workers | JoinedWorkers]:
        """What runs roles in processes that they share."""
        return [*([] if self._workers is None else [self._workers]), *list(self._applications.values())]

    def _host_for(self, child: Child) -> Workers | JoinedWorkers | None:
        """What a role starts in; None: it has its own process. Where roles share workers, those of one replica number share a
        Spark application, if Spark runs on this machine and their queries do not want one of their own: on a cluster each has
        the executors that it needs."""
        if self._workers is None or child.kind in HOSTED:
            return self._workers if child.kind in HOSTED else None
        if child.kind != "spark" or not self._settings.spark.is_local or _has_own_application(child):
            return None
        name = f"spark.{child.command[-1]}"
        if name not in self._applications:
            self._applications[name] = Workers([name], "spark_jobs.application", self._spawn_worker, self._on_end)
        return self._applications[name]

    def frozen(self, names: Iterable[str]) -> set[str]:
        """Which of these were stopped by a signal (SIGSTOP), and so do nothing, without an end."""
        pids = {name: self.pid(name) for name in names}
        stopped = {pid for pid in {*pids.values()} if pid is not None and _is_stopped(pid)}
        return {name for name, pid in pids.items() if pid in stopped}

    def start(self, child: Child) -> None:
        """Start a process. One that cannot be started is reported as one that has ended at once."""
        self._began[child.name] = time.time()
        links = self._links_of(child)
        try:
            host = self._host_for(child)
            if host is None:
                self._begin(child, links)
            else:
                # An application's links to Kafka are those of all its roles.
                host.start(child, links.settings if links is not None and child.kind in HOSTED else {})
        except SHORTAGES as error:
            _logger.error("%s cannot be started: %s", child.name, error)
            self._on_end(child.name, EXIT_FAILED)

    def _begin(self, child: Child, links: RoleLinks | None) -> None:
        environment = (
            {f"BOREAL_{name.upper()}": json.dumps(value) for name, value in links.settings.items()} if links is not None else {}
        )
        log = self._output(child.name)
        if (spare := self._spare.become(child.command, environment, log)) is not None:
            process, stdin = spare
            stdin.close()  # it reads nothing there
        else:
            process = self._spawn(child.command, environment, log)
        try:
            created_at = created(psutil.Process(process.pid))
            threading.Thread(target=lambda: self._on_end(child.name, process.wait()), daemon=True).start()
        except SHORTAGES:
            # Its end would not be noticed.
            process.kill()
            process.wait()
            raise
        self._running[child.name] = process, created_at
        _logger.info("%s has been started: pid %d", child.name, process.pid)

    def keep_spare(self) -> None:
        """Keep a spare for the next process that is started, if possible. Without it starts only take longer. Workers that have
        joined are started elsewhere."""
        if isinstance(self._workers, JoinedWorkers):
            return
        try:
            self._spare.keep()
        except OSError as error:
            self._log_once("there is no spare process", error)
        else:
            self._logged.discard("there is no spare process")

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-IS", parent_death.__file__, str(os.getpid()), *command]
        environment = {**os.environ, **python_environment(), **environment}
        with log.open("ab") as output:
            return subprocess.Popen(
                command, env=environment, stdin=stdin, stdout=output, stderr=output, start_new_session=True
            )

    def _spawn_worker(self, name: str, command: Sequence[str]) -> Started:
        """Start a worker, or let the spare become it."""
        command, log = (sys.executable, *command), self._output(name)
        return self._spare.become(command, {}, log) or self._spawn_with_channel(command, log)

    def _spawn_with_channel(self, command: Sequence[str], log: Path) -> Started:
        """Start a process whose stdin is a socket."""
        return start_with_channel(lambda stdin: self._spawn(command, {}, log, stdin))

    def _send(self, name: str, number: signal.Signals) -> None:
        """Send a process a signal, if it runs."""
        if name in self._running:
            self._running[name][0].send_signal(number)
        else:
            for host in self._hosts:
                host.send(name, number)

    def end(self, name: str, number: signal.Signals) -> None:
        """Ask a process to end (SIGTERM), or kill it. A role that does not end is killed with its worker."""
        if name not in self._running:
            for host in self._hosts:
                (host.stop(name) if number is signal.SIGTERM else host.send(name, number))
            return  # Or it could not be started, and its end is reported.
        process, _ = self._running[name]
        process.send_signal(number)
        # A frozen process would not react.
        process.send_signal(signal.SIGCONT)

    def forget(self, name: str) -> None:
        """Forget a process that has ended, or could not be started."""
        self._running.pop(name, None)

    def drop(self, name: str) -> None:
        """Forget all of a process that has ended and is not wanted any more."""
        self._began.pop(name, None)
        if (links := self._links.pop(name, None)) is not None:
            links.close()
        if isinstance(self._workers, JoinedWorkers):
            self._workers.drop(name)

    def close(self) -> None:
        """End the spare, the workers and the links. Call when no other process runs any more."""
        self._spare.close()
        for host in self._hosts:
            host.close()
        for links in self._links.values():
            links.close()

    def shorten_logs(self) -> None:
        """Move long logs. Processes open them for appending, so after a log is copied and emptied they write at its start."""
        for name in (*self._running, *(name for host in self._hosts for name in host.names)):
            path = self._log(name)
            # The log may have been removed, or the disk may be full: the process keeps running.
            with suppress(OSError):
                if path.stat().st_size > LOG_BYTES_MAX:
                    shutil.copyfile(path, path.with_suffix(".log.1"))
                    os.truncate(path, 0)

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _output(self, name: str) -> Path:
        """The file for a process's output: its log, or /dev/null while that cannot be opened: the process runs nevertheless."""
        log, what = self._log(name), f"{name} runs without a log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.open("ab").close()
        except OSError as error:
            self._log_once(what, error)
            return Path(os.devnull)
        self._logged.discard(what)
        return log

    def _log_once(self, what: str, error: OSError) -> None:
        """Log an error once, until it is over."""
        if what not in self._logged:
            self._logged.add(what)
            _logger.error("%s: %s", what, error)

    def _known_links(self, name: str, stream: str) -> Sequence[ProxyLink]:
        """The links of a process, or one of them; none of what has never been started here: a paused query's, for example."""
        return self._links[name].of(stream) if name in self._links else ()

    def _links_of(self, child: Child) -> RoleLinks | None:
        """If chaos is allowed: the links of a process that talks to Kafka as a client."""
        if not self._allow_chaos or child.kind in ("kafka", "redis", "api"):
            return None
        if child.name not in self._links:
            self._links[child.name] = RoleLinks(self._settings.site_names, child.streams)
        return self._links[child.name]


def _has_own_application(child: Child) -> bool:
    """Whether the query of a Spark job wants an application that no other query shares."""
    assert child.record is not None, "it runs a query"
    return child.record.query.spark.application is Application.OWN


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
