"""`python -m services.stack.supervisor`: runs what the installation's queries need, and keeps it running.

    python -m services.stack.supervisor              for all sites; Kafka and Redis are somebody else's
    python -m services.stack.supervisor --site a     only what belongs beside site a: one such supervisor for each site
    python -m services.stack.supervisor --local      the local stack: Kafka and Redis too, as `boreal up` starts it

It follows boreal.queries, writes each process's output to DATA/logs/NAME.log, and says how things are in DATA/run/state.json
(whole at every moment) and, as 'supervisor', in boreal.status. What it decides is in `deployment.supervision`. SIGTERM
ends all its processes, in order; if it is killed, the kernel kills them with it (`services.stack.parent_death`).
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from kafka.errors import KafkaError

from boreal.model.errors import UserError
from deployment.query_record import QueryRecord
from deployment.supervision import (
    Child,
    KillProcess,
    ProcessExit,
    ProcessTargets,
    ReadinessReport,
    StartProcess,
    Supervision,
    SupervisionEvent,
    SupervisionTick,
    TerminateProcess,
)
from services.hosting.process import EXIT_STOPPED, StatusPublisher, now_us, run_process
from services.kafka.clusters import log_retry, make_clusters
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings, load_settings
from services.kafka.statuses import Status, StatusReader
from services.kafka.topics import ensure, system_topics
from services.stack import parent_death as tied
from services.stack.children import MONITOR, python_environment, query_children
from services.stack.links import Link
from services.stack.servers import KafkaServer, RedisServer, Server
from services.stack.spares import COMMAND, Spare
from services.stack.state import created, identity, only_one, write_state

EXIT_FAILED = 1

LOG_BYTES_MAX = 8 << 20
"""A longer log is moved to NAME.log.1, whose predecessor is forgotten."""

_SHORTAGES = (OSError, RuntimeError)
"""What is raised where a process, a file or (RuntimeError) a thread is one too many."""

_LOOK_S = 0.1
_LOOK_AT_LOGS_S = 1.0
_RETRY_S = 0.2

_logger = logging.getLogger("boreal.supervisor")


@dataclass(frozen=True, slots=True)
class _Heard:
    """The process `pid` says, or shows, whether it is ready."""

    name: str
    pid: int
    ready: bool


@dataclass(frozen=True, slots=True)
class _Ended:
    name: str
    code: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A server's directory is as the server needs it."""

    child: Child


@dataclass(frozen=True, slots=True)
class _Queries:
    """All queries, as they are wanted now."""

    records: dict[str, QueryRecord]


_Happening = _Heard | _Ended | _Prepared | _Queries


class Supervisor:
    """`serve` runs until it is told to stop, and has then ended everything that it started."""

    def __init__(
        self, settings: ServiceSettings, own: tuple[str, ...], servers: dict[str, Server], *, allow_chaos: bool
    ) -> None:
        """own: the sites whose processes run here. servers: by the name of their process."""
        self._settings = settings
        self._own = own
        self._servers = servers
        self._runner = Runner(settings, allow_chaos, self._tell)
        self._supervision = Supervision()
        self._happenings: queue.SimpleQueue[_Happening] = queue.SimpleQueue()
        self._static: dict[str, Child] = {MONITOR.name: MONITOR} if settings.home in own else {}
        self._records: dict[str, QueryRecord] | None = None
        self._of_query: dict[str, list[Child]] = {}
        self._problems: dict[str, str] = {}
        self._statuses: StatusReader | None = None
        self._has_failed = threading.Event()
        self._ending = threading.Event()
        self._written: dict[str, Any] = {}

    def serve(self, stopping: threading.Event) -> int:
        home = make_clusters(self._settings, "supervisor")[self._settings.home]
        name = "supervisor" if self._own == self._settings.site_names else f"supervisor.{'.'.join(self._own)}"
        for server_name, server in self._servers.items():
            self._in_thread(lambda name=server_name, server=server: self._keep_server(name, server))  # type: ignore[misc]
        self._in_thread(lambda: self._follow_queries(QueryRegistry(home)))
        self._statuses = StatusReader(home, self._hear)
        publisher = StatusPublisher(home, name, lambda: {"query": None, "ready": self._is_ready(), **self._written})
        self._perform(self._wanted())
        looked_at_logs = now_us()
        while not self._ending.is_set() or self._supervision.processes:
            if (stopping.is_set() or self._has_failed.is_set()) and not self._ending.is_set():
                self._ending.set()
                self._perform(ProcessTargets(()))
            self._wait()
            if self._write_state():
                publisher.now()
            if now_us() - looked_at_logs > _LOOK_AT_LOGS_S * 1e6:
                looked_at_logs = now_us()
                self._runner.shorten_logs()
                if self._supervision.is_ready() and not self._ending.is_set() and self._of_query:
                    self._runner.keep_spare()
        self._runner.close()
        # Our own clients of Kafka are left to the end of this process: there is nobody left who could answer them.
        return EXIT_FAILED if self._has_failed.is_set() else EXIT_STOPPED

    def _wait(self) -> None:
        """Until something happens, or it is time for something; at most a moment, since a signal wakes nobody."""
        deadline = self._supervision.next_deadline()
        left = _LOOK_S if deadline is None else min(max((deadline - now_us()) / 1e6, 0.0), _LOOK_S)
        try:
            happening: _Happening | None = self._happenings.get(timeout=left)
        except queue.Empty:
            happening = None
        event = self._understood(happening)
        if event is not None:
            self._perform(event)

    def _understood(self, happening: _Happening | None) -> SupervisionEvent | None:
        match happening:
            case None:
                return SupervisionTick()
            case _Heard(name, pid, ready):
                # What an earlier life said tells nothing of this one.
                return ReadinessReport(name, ready) if self._runner.pid(name) == pid else None
            case _Ended(name, code):
                asked = self._ending.is_set() or name not in self._wanted_names()
                _logger.log(logging.INFO if asked else logging.WARNING, "%s has ended: %s", name, _ending_of(code))
                self._runner.forget(name)
                return ProcessExit(name)
            case _Prepared(child):
                self._static[child.name] = child
            case _Queries(records):
                self._take(records)
        return None if self._ending.is_set() else self._wanted()

    def _perform(self, event: SupervisionEvent) -> None:
        for effect in self._supervision.handle(event, now_us()):
            match effect:
                case StartProcess(child):
                    self._runner.start(child)
                case TerminateProcess(name):
                    self._runner.signal(name, signal.SIGTERM)
                case KillProcess(name):
                    _logger.warning("%s does not end, and is killed", name)
                    self._runner.signal(name, signal.SIGKILL)

    # What is wanted

    def _wanted(self) -> ProcessTargets:
        of_queries = (child for children in self._of_query.values() for child in children)
        return ProcessTargets((*self._static.values(), *of_queries))

    def _wanted_names(self) -> set[str]:
        return {child.name for child in self._wanted().children}

    def _take(self, records: dict[str, QueryRecord]) -> None:
        """A record that this version cannot run changes nothing: what ran of it runs on."""
        self._records = records
        self._problems = {}
        for gone in self._of_query.keys() - records.keys():
            del self._of_query[gone]
        for name, record in records.items():
            try:
                self._of_query[name] = query_children(record, self._settings.site_names, self._own)
            except UserError as error:
                self._problems[name] = str(error)
                _logger.error("query %s, revision %d, cannot run: %s", name, record.revision, error)

    # Threads: each tells the main one what it finds

    def _tell(self, name: str, code: int) -> None:
        self._happenings.put(_Ended(name, code))

    def _hear(self, status: Status) -> None:
        """What was said before we began is of other processes, whatever their pids: in containers those repeat."""
        if self._statuses is not None and self._statuses.is_current.is_set():
            self._happenings.put(_Heard(status["process"], status["pid"], bool(status["ready"])))

    def _in_thread(self, act: Callable[[], None]) -> None:
        """What fails there for good, such as a topic that has other settings, ends the supervisor: a person must see to it."""

        def run() -> None:
            try:
                act()
            except Exception:
                _logger.exception("the supervisor cannot go on")
                self._has_failed.set()

        threading.Thread(target=run, daemon=True).start()

    def _keep_server(self, name: str, server: Server) -> None:
        """Prepare it, and then look whether it answers, whenever it has been started anew."""
        server.prepare()
        self._happenings.put(_Prepared(Child(name, name.partition(".")[0], None, tuple(server.command))))
        answered: int | None = None
        while not self._ending.is_set():
            pid = self._runner.pid(name)
            try:
                if pid is not None and pid != answered and server.is_ready():
                    answered = pid
                    self._happenings.put(_Heard(name, pid, True))
            except _SHORTAGES as error:
                _logger.debug("%s cannot be asked whether it is ready: %s", name, error)
            self._ending.wait(_LOOK_S)

    def _follow_queries(self, registry: QueryRegistry) -> None:
        """A watch may tell of old records again on its way to the newest, so each change only makes us read anew."""
        changed = threading.Event()
        self._until_reached(lambda: ensure(make_clusters(self._settings, "supervisor")[self._settings.home], system_topics()))
        registry.watch(lambda name, record: changed.set())
        while not self._ending.is_set():
            self._until_reached(lambda: self._happenings.put(_Queries(registry.load())))
            changed.wait()
            changed.clear()

    def _until_reached(self, act: Callable[[], None]) -> None:
        while not self._ending.is_set():
            try:
                return act()
            except (KafkaError, *_SHORTAGES) as error:
                log_retry(_logger, "the home site cannot be asked which queries there are", error)
                self._ending.wait(_RETRY_S)

    # What we say

    def _is_ready(self) -> bool:
        """All servers, the queries, and all that they want are there, and there is no query that cannot run."""
        is_known = self._records is not None and self._servers.keys() <= self._static.keys()
        return is_known and not self._problems and self._supervision.is_ready()

    def _query_state(self, name: str) -> dict[str, Any]:
        """ready: all that the record wants here runs as it says, and is ready; a problem: why it cannot."""
        assert self._records is not None
        record, problem = self._records[name], self._problems.get(name)
        is_ready = problem is None and self._supervision.is_ready(name)
        return {"revision": record.revision, "paused": record.paused, "ready": is_ready, "problem": problem}

    def _write_state(self) -> bool:
        """Whether there was anything new to say."""
        state = {
            "ready": self._is_ready(),
            "processes": [
                {
                    "name": name,
                    "kind": process.child.kind,
                    "query": process.child.query,
                    "pid": self._runner.pid(name),
                    "created": self._runner.created(name),
                    "state": process.state,
                    "restarts": process.restarts,
                }
                for name, process in sorted(self._supervision.processes.items())
            ],
            "queries": None if self._records is None else {name: self._query_state(name) for name in sorted(self._records)},
        }
        if state == self._written:
            return False
        try:
            write_state(self._settings.data, {"supervisor": identity(os.getpid()), **state})
        except OSError as error:
            # A full disk, say. All that runs goes on; this is tried again at the next look.
            _logger.debug("the state cannot be written: %s", error)
            return False
        self._written = state
        return True


class Runner:
    """The processes themselves: starts, signals and logs. Called by the main thread only, but for `pid`. What this machine has
    not enough of at a moment (processes, memory, files, disk) costs only the process that is started then.

    Only the thread that starts a process may: the kernel ties the process to that thread."""

    def __init__(self, settings: ServiceSettings, allow_chaos: bool, on_end: Callable[[str, int], None]) -> None:
        self._settings = settings
        self._allow_chaos = allow_chaos
        self._on_end = on_end
        self._logs = settings.data / "logs"
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self._links: dict[str, dict[str, Link]] = {}
        self._spare = Spare(lambda: self._spawn(COMMAND, {}, self._output("spare"), subprocess.PIPE))
        self._told: set[str] = set()

    def pid(self, name: str) -> int | None:
        running = self._running.get(name)
        return running[0].pid if running else None

    def created(self, name: str) -> float | None:
        """When it was made, as `services.stack.state` has it: with the pid this names the process for good."""
        running = self._running.get(name)
        return running[1] if running else None

    def start(self, child: Child) -> None:
        """One that cannot be started has ended at once: it is told as that."""
        try:
            process = self._begin(child)
        except _SHORTAGES as error:
            _logger.error("%s cannot be started: %s", child.name, error)
            self._on_end(child.name, EXIT_FAILED)
        else:
            _logger.info("%s has been started: pid %d", child.name, process.pid)

    def _begin(self, child: Child) -> subprocess.Popen[bytes]:
        proxies, log = self._proxies(child), self._output(child.name)
        process = self._spare.become(child.command, proxies, log) or self._spawn(child.command, proxies, log)
        try:
            created_at = created(psutil.Process(process.pid))
            threading.Thread(target=lambda: self._on_end(child.name, process.wait()), daemon=True).start()
        except _SHORTAGES:
            # Nobody would hear of its end.
            process.kill()
            process.wait()
            raise
        self._running[child.name] = process, created_at
        return process

    def keep_spare(self) -> None:
        """Have a process ready for the next one that is started, where it can be that. Nobody needs it."""
        try:
            self._spare.keep()
        except OSError as error:
            self._tell_once("there is no spare process", error)
        else:
            self._told.discard("there is no spare process")

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-IS", tied.__file__, str(os.getpid()), *command]
        environment = {**os.environ, **python_environment(), **environment}
        with log.open("ab") as output:
            return subprocess.Popen(
                command, env=environment, stdin=stdin, stdout=output, stderr=output, start_new_session=True
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        if name not in self._running:
            return  # It could not be started, which will be heard of.
        process, _ = self._running[name]
        process.send_signal(number)
        # One that is frozen would never notice.
        process.send_signal(signal.SIGCONT)

    def forget(self, name: str) -> None:
        """It has ended, if it was ever there."""
        self._running.pop(name, None)

    def close(self) -> None:
        """Once nothing runs any more."""
        self._spare.close()
        for links in self._links.values():
            for link in links.values():
                link.close()

    def shorten_logs(self) -> None:
        """Processes append, so a log that is copied and emptied goes on from its beginning."""
        for name in self._running:
            path = self._log(name)
            # Somebody may have removed it, or the disk is full: no reason to end what writes it.
            with suppress(OSError):
                if path.stat().st_size > LOG_BYTES_MAX:
                    shutil.copyfile(path, path.with_suffix(".log.1"))
                    os.truncate(path, 0)

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _output(self, name: str) -> Path:
        """Where a process writes to: its log, or nowhere while that cannot be opened, which is no reason not to run."""
        log, what = self._log(name), f"{name} runs without a log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.open("ab").close()
        except OSError as error:
            self._tell_once(what, error)
            return Path(os.devnull)
        self._told.discard(what)
        return log

    def _tell_once(self, what: str, error: OSError) -> None:
        """Until it is over."""
        if what not in self._told:
            self._told.add(what)
            _logger.error("%s: %s", what, error)

    def _proxies(self, child: Child) -> dict[str, str]:
        """With chaos allowed, what a process says to each site goes through a link of its own, the same for all its lives."""
        if not self._allow_chaos or child.kind in ("kafka", "redis"):
            return {}
        if child.name not in self._links:
            self._links[child.name] = {site: Link() for site in self._settings.site_names}
        return {f"BOREAL_PROXIES__{site.upper()}": link.url for site, link in self._links[child.name].items()}


def _ending_of(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.stack.supervisor", description="Runs the installation's queries.")
    parser.add_argument("--site", help="run only what belongs beside this site (default: beside all)")
    parser.add_argument("--local", action="store_true", help="run Kafka and Redis too")
    parser.add_argument("--allow-chaos", action="store_true", help="put a link between each process and each site")
    arguments = parser.parse_args()

    def serve(stopping: threading.Event) -> int:
        settings = load_settings()
        if arguments.site is not None and arguments.site not in settings.sites:
            fix = f"name one of {', '.join(settings.site_names)}"
            raise UserError("--site", arguments.site, "is not among the sites of BOREAL_SITES", fix)
        own = settings.site_names if arguments.site is None else (arguments.site,)
        with only_one(settings.data):
            servers = local_servers(settings.data, own) if arguments.local else {}
            return Supervisor(settings, own, servers, allow_chaos=arguments.allow_chaos).serve(stopping)

    run_process("supervisor", serve)


def local_servers(data: Path, sites: tuple[str, ...]) -> dict[str, Server]:
    """The local stack's own Kafkas and its Redis, by the names of their processes; their directories keep their ports."""
    brokers: dict[str, Server] = {f"kafka.{site}": KafkaServer(data / "kafka" / site) for site in sites}
    return {**brokers, "redis": RedisServer(data / "redis")}


if __name__ == "__main__":
    main()
