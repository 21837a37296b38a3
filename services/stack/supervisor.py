"""`python -m services.stack.supervisor`: runs the processes of the installation's queries, and keeps them running.

    python -m services.stack.supervisor              for all sites; Kafka and Redis run elsewhere
    python -m services.stack.supervisor --site a     only the processes of site a: one supervisor for each site
    python -m services.stack.supervisor --local      the local stack: Kafka and Redis too, as `boreal up` starts it
    python -m services.stack.supervisor --workers joined    roles run where `boreal worker` has joined their sites

It follows boreal.queries, writes each process's output to DATA/logs/NAME.log, and publishes its state in DATA/run/state.json
(replaced atomically) and, as 'supervisor', in boreal.status. Its decisions are made in `deployment.supervision`. SIGTERM ends
all its processes, in order; if it is killed, the kernel kills them with it (`services.stack.parent_death`).
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from kafka.errors import KafkaError

from boreal.model.errors import UserError
from deployment.joined_sources import SourceIndex, changed
from deployment.query_record import QueryRecord
from deployment.row_counts import RowCounts
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
from deployment.watched_query import FROZEN
from services.hosting.process import EXIT_FAILED, EXIT_STOPPED, StatusPublisher, StopSignal, now_us, run_process
from services.kafka.clusters import log_retry, make_clusters
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings, load_settings
from services.kafka.statuses import Status, StatusReader
from services.kafka.topics import ensure, system_topics
from services.stack.children import MONITOR, api_child, query_children, with_sources
from services.stack.joined_workers import JoinedWorkers
from services.stack.process_runner import SHORTAGES, ProcessRunner
from services.stack.servers import KafkaServer, RedisServer, Server
from services.stack.state import identity, only_one, write_state

_LOOK_S = 0.1
_LOOK_AT_LOGS_S = 1.0
_RETRY_S = 0.2

JOINED = "joined"
"""Instead of a number of workers: those that have joined."""

_logger = logging.getLogger("boreal.supervisor")


@dataclass(frozen=True, slots=True)
class _Readiness:
    """Whether a process is ready, by its status or by a check."""

    name: str
    pid: int
    ready: bool
    at_s: float  # when that was so, by the wall clock of this machine


@dataclass(frozen=True, slots=True)
class _ProcessExit:
    """A process has ended."""

    name: str
    code: int  # its exit code; a negative one is the signal that ended it


@dataclass(frozen=True, slots=True)
class _ServerSetup:
    """A server's directory is prepared, and the server can be started."""

    child: Child


@dataclass(frozen=True, slots=True)
class _QueryRecords:
    """The current records of all queries."""

    records: dict[str, QueryRecord]


@dataclass(frozen=True, slots=True)
class _RoleReadiness:
    """Whether a role in a worker that has joined is ready."""

    name: str
    ready: bool


_Notification = _Readiness | _RoleReadiness | _ProcessExit | _ServerSetup | _QueryRecords


class Supervisor:
    """`serve` runs until it is stopped; it then ends all processes that it started, and returns the exit code."""

    def __init__(
        self,
        settings: ServiceSettings,
        own: tuple[str, ...],
        servers: dict[str, Server],
        *,
        allow_chaos: bool,
        workers: int | None = 0,
        api_port: int | None = None,
    ) -> None:
        """own: the sites whose processes run here. servers: by the names of their processes. allow_chaos: put a link between
        each process and each site. workers: how many processes share the roles of the queries; 0: each role has its own; None:
        they run in the workers that have joined their sites. api_port: run the API, at this port."""
        self._settings = settings
        self._own = own
        self._servers = servers
        self._home = make_clusters(settings, "supervisor")[settings.home]
        self._has_failed = threading.Event()
        self._joined: JoinedWorkers | None = None
        if workers is None:
            self._joined = JoinedWorkers(self._home, own, self._note_exit, self._note_ready, self._has_failed.set)
        self._counts = RowCounts()
        rising = self._counts.is_rising
        self._runner = ProcessRunner(settings, allow_chaos, self._note_exit, self._joined or workers or 0, rising)
        self._supervision = Supervision()
        self._notifications: queue.SimpleQueue[_Notification] = queue.SimpleQueue()
        self._static: dict[str, Child] = {MONITOR.name: MONITOR} if settings.home in own else {}
        if api_port is not None:
            self._static["api"] = api_child(api_port, allow_chaos)
        self._records: dict[str, QueryRecord] | None = None
        self._of_query: dict[str, list[Child]] = {}
        self._problems: dict[str, str] = {}
        self._statuses: StatusReader | None = None
        self._ending = threading.Event()
        self._frozen: set[str] = set()
        """The processes that a signal has stopped, and that no signal has continued yet."""
        self._written: dict[str, Any] = {"processes": [], "queries": None}

    def serve(self, stopping: StopSignal) -> int:
        for server_name, server in self._servers.items():
            self._in_thread(lambda name=server_name, server=server: self._keep_server(name, server))  # type: ignore[misc]
        self._in_thread(lambda: self._follow_queries(QueryRegistry(self._home)))
        self._statuses = StatusReader(self._home, self._hear)
        publisher = StatusPublisher(self._home, self._name, self._status)
        self._perform(self._wanted())
        looked_at_logs = look_at = now_us()
        while not self._ending.is_set() or self._supervision.processes:
            if (stopping.is_set() or self._has_failed.is_set()) and not self._ending.is_set():
                self._ending.set()
                if self._joined is not None:
                    self._joined.let_go()
                self._perform(ProcessTargets(()))
            self._wait()
            if self._joined is not None:
                self._joined.tick()
            has_changed = self._runner.turn_faults()
            if has_changed and not self._ending.is_set():
                self._perform(self._wanted())  # before the end of a process that has just crashed is heard of
            if now_us() >= look_at:
                look_at = now_us() + int(_LOOK_S * 1e6)
                has_changed |= self._write_state()
            if has_changed:
                publisher.now()
            if now_us() - looked_at_logs > _LOOK_AT_LOGS_S * 1e6:
                looked_at_logs = now_us()
                self._runner.shorten_logs()
                if not self._supervision.unready() and not self._ending.is_set() and self._of_query:
                    self._runner.keep_spare()
        self._write_state()
        self._runner.close()
        # Our own clients of Kafka are not closed: Kafka may have been stopped with the other processes.
        return EXIT_FAILED if self._has_failed.is_set() else EXIT_STOPPED

    @property
    def _name(self) -> str:
        """The name of its status."""
        return "supervisor" if self._own == self._settings.site_names else f"supervisor.{'.'.join(self._own)}"

    def _status(self) -> dict[str, Any]:
        return {"query": None, "ready": self._is_ready(), **self._written, "faults": self._runner.faults}

    def _wait(self) -> None:
        """Handle all notifications that are there, or a Tick at the next deadline; waits only briefly, because a signal does
        not wake the queue."""
        deadline = self._supervision.next_deadline()
        left = _LOOK_S if deadline is None else min(max((deadline - now_us()) / 1e6, 0.0), _LOOK_S)
        try:
            notification: _Notification | None = self._notifications.get(timeout=left)
        except queue.Empty:
            notification = None
        while True:
            event = self._event_of(notification)
            if event is not None:
                self._perform(event)
            try:
                notification = self._notifications.get_nowait()
            except queue.Empty:
                return

    def _event_of(self, notification: _Notification | None) -> SupervisionEvent | None:
        match notification:
            case None:
                return SupervisionTick()
            case _Readiness(name, pid, ready, at_s):
                # A status of an earlier incarnation says nothing about this one.
                is_own = self._runner.pid(name) == pid and at_s >= self._runner.began(name)
                return ReadinessReport(name, ready) if is_own else None
            case _RoleReadiness(name, ready):
                return ReadinessReport(name, ready)
            case _ProcessExit(name, code):
                asked = self._ending.is_set() or name not in self._wanted_names()
                _logger.log(logging.INFO if asked else logging.WARNING, "%s has ended: %s", name, _ending_of(code))
                self._runner.forget(name)
                return ProcessExit(name)
            case _ServerSetup(child):
                self._static[child.name] = child
            case _QueryRecords(records):
                self._take(records)
            case _:
                assert_never(notification)
        return None if self._ending.is_set() else self._wanted()

    def _perform(self, event: SupervisionEvent) -> None:
        effects = self._supervision.handle(event, now_us())
        for effect in effects:
            match effect:
                case StartProcess(child):
                    self._runner.start(child)
                case TerminateProcess(name):
                    self._runner.end(name, signal.SIGTERM)
                case KillProcess(name):
                    _logger.warning("%s does not end and is killed", name)
                    self._runner.end(name, signal.SIGKILL)
                case _:
                    assert_never(effect)
        if isinstance(event, ProcessExit) and event.name not in self._supervision.processes:
            self._runner.drop(event.name)
            self._counts.forget(event.name)
        if self._joined is not None and self._records is not None and (effects or isinstance(event, ProcessTargets)):
            self._joined.settle()

    # What is wanted

    def _wanted(self) -> ProcessTargets:
        of_queries = (child for children in self._of_query.values() for child in children)
        return ProcessTargets((*self._static.values(), *of_queries), self._runner.held)

    def _wanted_names(self) -> set[str]:
        return {child.name for child in self._wanted().children}

    def _take(self, records: dict[str, QueryRecord]) -> None:
        """Take new records. A record that this version cannot run changes nothing: its old processes keep running."""
        known, self._records = self._records or {}, records
        for gone in known.keys() - records.keys():
            self._of_query.pop(gone, None)
            self._problems.pop(gone, None)
        sources = SourceIndex(records.values())
        for name, children in self._of_query.items():
            if known.get(name) == records[name]:
                self._of_query[name] = with_sources(children, sources)
        for name in changed(known, records):
            record = records[name]
            self._problems.pop(name, None)
            try:
                self._of_query[name] = query_children(record, self._settings.site_names, self._own, sources)
            except UserError as error:
                self._problems[name] = str(error)
                _logger.error("query %s, revision %d, cannot run: %s", name, record.revision, error)

    # Threads: each sends notifications to the main thread

    def _note_exit(self, name: str, code: int) -> None:
        self._notifications.put(_ProcessExit(name, code))

    def _note_ready(self, name: str, ready: bool) -> None:
        self._notifications.put(_RoleReadiness(name, ready))

    def _hear(self, status: Status) -> None:
        """Ignore statuses from before this process began: they are of other processes, even if a pid is the same, since pids
        repeat in containers."""
        if self._statuses is not None and self._statuses.is_current.is_set():
            if self._joined is not None and status["process"] == self._name:
                self._joined.hear_self()
            elif self._joined is not None:
                self._joined.hear(status)
            self._counts.see(status)
            said = status["process"], status["pid"], bool(status["ready"]), status["at_ms"] / 1_000
            self._notifications.put(_Readiness(*said))

    def _in_thread(self, act: Callable[[], None]) -> None:
        """Run `act` in a thread. An error that it cannot handle, such as a topic with other settings, ends the supervisor: a
        person must correct it."""

        def run() -> None:
            try:
                act()
            except UserError as error:
                _logger.error("the supervisor ends: %s", error)
                self._has_failed.set()
            except Exception:
                _logger.exception("the supervisor failed")
                self._has_failed.set()

        threading.Thread(target=run, daemon=True).start()

    def _keep_server(self, name: str, server: Server) -> None:
        """Prepare a server, and after each start check until it answers."""
        server.prepare()
        self._notifications.put(_ServerSetup(Child(name, name.partition(".")[0], None, tuple(server.command))))
        answered: int | None = None
        while not self._ending.is_set():
            pid = self._runner.pid(name)
            try:
                if pid is not None and pid != answered and server.is_ready():
                    answered = pid
                    self._notifications.put(_Readiness(name, pid, True, time.time()))
            except SHORTAGES as error:
                _logger.debug("%s cannot be asked whether it is ready: %s", name, error)
            self._ending.wait(_LOOK_S)

    def _follow_queries(self, registry: QueryRegistry) -> None:
        """Read all records after each change: a watch may report old records again before it reaches the newest."""
        changed = threading.Event()
        self._until_reached(lambda: ensure(self._home, system_topics()))
        registry.watch(lambda name, record: changed.set())
        while not self._ending.is_set():
            self._until_reached(lambda: self._notifications.put(_QueryRecords(registry.load())))
            changed.wait()
            changed.clear()

    def _until_reached(self, act: Callable[[], object]) -> None:
        while not self._ending.is_set():
            try:
                act()
                return
            except (KafkaError, *SHORTAGES) as error:
                log_retry(_logger, "the home site cannot be asked which queries there are", error)
                self._ending.wait(_RETRY_S)

    # State and status

    def _is_ready(self) -> bool:
        """Whether all servers and all processes of queries are ready, and every query can run."""
        is_known = self._records is not None and self._servers.keys() <= self._static.keys()
        return is_known and not self._problems and not self._frozen and not self._supervision.unready()

    def _query_states(self, records: Mapping[str, QueryRecord]) -> dict[str, dict[str, Any]]:
        """Of each query. ready: all processes of the record at our sites run and are ready; problem: why the record cannot run,
        or None."""
        hindered = self._supervision.unready() | self._frozen
        return {
            name: {
                "revision": record.revision,
                "paused": record.paused,
                "ready": self._runs_well(name, record, hindered),
                "problem": self._problems.get(name) or (self._joined.problem_of(name) if self._joined is not None else None),
            }
            for name, record in sorted(records.items())
        }

    def _runs_well(self, name: str, record: QueryRecord, hindered: set[str]) -> bool:
        """Whether all that clients of a query depend on here runs and is ready, or is not to run."""
        if name in self._problems or not (record.is_placed or record.paused):
            return False
        whose = {name, record.inner, *record.named_sources}
        return hindered.isdisjoint(child.name for child in self._of_query[name] if child.query in whose)

    def _write_state(self) -> bool:
        """Write the state if it has changed; whether it was written."""
        self._frozen = self._runner.frozen(self._supervision.processes)
        state = {
            "ready": self._is_ready(),
            "processes": [
                {
                    "name": name,
                    "kind": process.child.kind,
                    "query": process.child.query,
                    "pid": self._runner.pid(name),
                    "created": self._runner.created(name),
                    "state": FROZEN if name in self._frozen else process.state,
                    "restarts": process.restarts,
                    "worker": self._joined.place_of(name) if self._joined is not None else None,
                }
                for name, process in sorted(self._supervision.processes.items())
            ],
            "queries": None if self._records is None else self._query_states(self._records),
        }
        if state == self._written:
            return False
        try:
            write_state(self._settings.data, {"supervisor": identity(os.getpid()), **state})
        except OSError as error:
            # For example a full disk. All processes keep running; the write is tried again soon.
            _logger.debug("the state cannot be written: %s", error)
            return False
        self._written = state
        return True


def _workers(text: str) -> int | None:
    """How many; None for those that join."""
    if text == JOINED:
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor '{JOINED}'")
    return int(text)


def _ending_of(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.stack.supervisor", description="Runs the installation's queries.")
    parser.add_argument("--site", help="run only the processes of this site (default: of all sites)")
    parser.add_argument("--local", action="store_true", help="run Kafka and Redis too")
    parser.add_argument("--allow-chaos", action="store_true", help="put a link between each process and each site")
    parser.add_argument(
        "--workers",
        type=_workers,
        default=0,
        metavar="N",
        help="processes that share all roles (0: one for each), or 'joined': roles run where boreal worker has joined",
    )
    parser.add_argument("--api", type=int, metavar="PORT", help="run the API at this port")
    arguments = parser.parse_args()

    def serve(stopping: StopSignal) -> int:
        settings = load_settings()
        if arguments.site is not None and arguments.site not in settings.sites:
            fix = f"name one of {', '.join(settings.site_names)}"
            raise UserError("--site", arguments.site, "is not among the sites of BOREAL_SITES", fix)
        if arguments.allow_chaos and arguments.workers is None:
            fix = "leave one of them out"
            raise UserError("--allow-chaos", None, "has no links to workers elsewhere, which --workers joined uses", fix)
        own = settings.site_names if arguments.site is None else (arguments.site,)
        with only_one(settings.data):
            servers = make_local_servers(settings.data, own) if arguments.local else {}
            supervisor = Supervisor(
                settings,
                own,
                servers,
                allow_chaos=arguments.allow_chaos,
                workers=arguments.workers,
                api_port=arguments.api,
            )
            return supervisor.serve(stopping)

    run_process("supervisor", serve)


def make_local_servers(data: Path, sites: tuple[str, ...]) -> dict[str, Server]:
    """The local stack's brokers and its Redis, by the names of their processes; their directories hold their ports."""
    brokers: dict[str, Server] = {f"kafka.{site}": KafkaServer(data / "kafka" / site) for site in sites}
    return {**brokers, "redis": RedisServer(data / "redis")}


if __name__ == "__main__":
    main()
