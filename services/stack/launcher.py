"""The local stack: real Kafka and Redis and the processes of all queries, on this machine, with no other installation.

All its files are in one directory, DATA, so that a stopped stack starts again with its data, at the same addresses:

    DATA/stack.json      its description: its sites, the port of its API
    DATA/token           the token for callers of the API; only the owner may read it
    DATA/kafka/SITE      a broker of each site    DATA/redis    the checkpoints
    DATA/logs            a log of each process
    DATA/run/state.json  the running processes (services.stack.supervisor)

`up` starts one process, the supervisor, which keeps running; `down` ends that process, and with it all the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from boreal.model.errors import BorealError, UserError
from deployment.status_fields import shown_process
from services.hosting.fetch import java, kafka_jars, redis_server
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings, load_settings
from services.stack.children import python_environment
from services.stack.description import VERSION, StackDescription, fix_for_nothing_up, is_local, supervisor_command
from services.stack.ports import HOST, free_port, is_taken
from services.stack.servers import Server
from services.stack.state import (
    default_data,
    identity,
    living,
    make_token,
    problems,
    read_state,
    replace_file,
    state_path,
    write_state,
)
from services.stack.supervisor import make_local_servers

DEFAULT_SITES = 1
DEFAULT_PORT = 8080
SITE_NAMES = "abcdefghijklmnopqrstuvwxyz"

READY_WITHIN_S = 90.0
QUERIES_WITHIN_S = 30.0
RESTARTS_MAX = 5
WORKERS_MIN, WORKERS_MAX = 2, 8
LOG_LINES_SHOWN = 8
DOWN_WITHIN_S = 90.0
_LOOK_S = 0.05

ProgressCallback = Callable[[str], None]
"""Called with a line of text for each step."""


class StackFailed(BorealError):
    """The stack did not start, or did not stop. The message holds the end of the log that shows why."""


def refuse_sites_elsewhere(data: Path | None) -> None:
    """UserError if the environment names a Kafka, and no directory is given: a stack of this machine starts one of its own."""
    named = sorted(name for name in os.environ if name.startswith(("BOREAL_SITES", "BOREAL_CONFIG")))
    if data is None and named:
        fix = (
            "to run on that Kafka: boreal init, then python -m services.stack.supervisor; for a stack with a Kafka of its own "
            "beside it: unset the variable, or name the stack's directory with --data"
        )
        raise UserError(named[0], None, "names a Kafka that boreal up does not use: it starts one of its own", fix)


def reach(data: Path | None) -> ServiceSettings:
    """The settings to reach the stack that a command refers to (see `is_local`). UserError if none is running."""
    if not is_local(data):
        return load_settings()
    stack = LocalStack((data or default_data()).absolute())
    if stack.is_embedded:
        fix = "use its page, or its REST API: boreal status shows where it is"
        raise UserError("--data", str(stack.data), "holds an embedded installation, which has no Kafka", fix)
    if stack.state() is None:
        fix = f"{fix_for_nothing_up()}; or set BOREAL_SITES__A__BOOTSTRAP=HOST:PORT to reach one elsewhere"
        raise UserError("--data", str(stack.data), "no stack is up there", fix)
    return stack.settings


class LocalStack(StackDescription):
    """The stack in a directory, running or not."""

    @property
    def settings(self) -> ServiceSettings:
        """The settings to reach it: its own addresses, whatever the environment says."""
        servers = self.servers()
        return ServiceSettings.model_construct(
            sites={site: KafkaSettings(bootstrap=f"{HOST}:{servers[f'kafka.{site}'].port}") for site in self.sites},
            redis=RedisSettings(url=f"redis://{HOST}:{servers['redis'].port}/0"),
            data=self.data,
            proxies={},
        )

    def environment(self) -> dict[str, str]:
        """The settings as environment variables for its processes."""
        settings = self.settings
        brokers = {f"BOREAL_SITES__{site.upper()}__BOOTSTRAP": kafka.bootstrap for site, kafka in settings.sites.items()}
        return {**brokers, "BOREAL_REDIS__URL": settings.redis.url, "BOREAL_DATA": str(self.data)}

    def servers(self) -> dict[str, Server]:
        """Its brokers and its Redis, by the names of their processes."""
        return make_local_servers(self.data, self.sites)

    # State

    def status(self) -> dict[str, Any]:
        """As `boreal status --json` prints it."""
        state = self.state()
        if state is None:
            empty: dict[str, Any] = {"processes": [], "queries": [], "problems": {}}
            return {"ready": False, "kafka": {}, "redis": None, "api": None, "token": None, **empty}
        settings = self.settings
        return {
            "ready": state["ready"],
            "kafka": {site: kafka.bootstrap for site, kafka in settings.sites.items()},
            "redis": settings.redis.url,
            "api": self.api,
            "token": self.token,
            "processes": [shown_process(process) for process in state["processes"]],
            "queries": sorted(state["queries"] or ()),
            "problems": problems(state),
        }

    # Up

    def up(
        self,
        sites: int | None,
        port: int | None,
        allow_chaos: bool,
        on_progress: ProgressCallback,
        workers: int | None = None,
    ) -> bool:
        """Start it, and return when all processes are ready; False if it was running already.

        sites, port, workers: None for its own values, or the defaults. workers: how many processes share the roles of the
        queries; 0: each role has its own. UserError if it has other sites, or a program is missing that cannot be fetched;
        StackFailed if it does not get ready.
        """
        with self._one_at_a_time(on_progress):
            if self.state() is not None and not self.is_embedded:
                self._refuse_other(sites, port)
                self._await_ready(on_progress)
                return False
            self.describe(sites, port)
            for what in (java, redis_server):
                what()
            kafka_jars(on_progress=on_progress)
            self._end_leftovers()
            self._refuse_taken_ports()
            make_token(self.data)
            self._spawn(allow_chaos, default_workers(allow_chaos) if workers is None else workers)
            self._await_ready(on_progress)
            return True

    def describe(self, sites: int | None, port: int | None) -> None:
        """Make its directory, and fix its description, including the servers' ports, for good. UserError as with `up`."""
        if self.is_embedded:
            fix = "add --embedded, or name another directory with --data"
            raise UserError("--data", str(self.data), "holds an embedded installation", fix)
        if self.exists:
            self._refuse_other(sites, None)
            description = {**self._description(), **({} if port is None else {"port": port})}
        else:
            names = list(SITE_NAMES[: sites or DEFAULT_SITES])
            description = {"v": VERSION, "sites": names, "port": port or _free_default_port()}
        with self._writing():
            self.data.mkdir(parents=True, exist_ok=True)
            replace_file(self.data / "stack.json", json.dumps(description))
            self.servers()

    @contextlib.contextmanager
    def _one_at_a_time(self, on_progress: ProgressCallback) -> Iterator[None]:
        """A second `up` waits: it would take the processes of the first for leftovers."""
        path = self.data / "run" / "up.lock"
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_progress("waiting for another boreal up")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise UserError("--data", str(self.data), problem, "name a directory that you may write") from None

    def _refuse_other(self, sites: int | None, port: int | None) -> None:
        """Refuse another number of sites, which decides where a query's replicas and logs are, and another port."""
        if sites is not None and sites != len(self.sites):
            fix = f"leave out --sites, or name another directory with --data; the stack is in {self.data}"
            raise UserError("--sites", sites, f"the stack has {len(self.sites)}, which cannot change", fix)
        if port is not None and port != self.port:
            raise UserError("--port", port, f"the stack is running with port {self.port}", "run boreal down first")

    def _refuse_taken_ports(self) -> None:
        if is_taken(self.port):
            problem = "is the port of the API, but another program listens there"
            raise UserError("--port", self.port, problem, "end that program, or give another --port")
        for name, server in self.servers().items():
            for port in server.ports:
                if is_taken(port):
                    ports = server.directory / "server.json"
                    fix = f"end the program that listens there, or remove {ports}, and another port is chosen"
                    raise UserError("port", port, f"belongs to {name}, but another program listens there", fix)

    def _spawn(self, allow_chaos: bool, workers: int) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
        environment = {**inherited, **python_environment(), **self.environment()}
        log = self._log("supervisor")
        log.parent.mkdir(exist_ok=True)
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        command = supervisor_command(allow_chaos, self.port, workers)
        # Not a Popen, which warns when its process outlives it, as this one should.
        pid = os.posix_spawn(command[0], command, environment, file_actions=files, setsid=True)
        # From now on `down` finds it; it will soon write its own state.
        write_state(self.data, {"supervisor": identity(pid), **NOTHING_YET})

    def _log(self, name: str) -> Path:
        return self.data / "logs" / f"{name}.log"

    def _log_end(self, name: str) -> str:
        log = self._log(name)
        lines = log.read_text(errors="replace").strip().splitlines()[-LOG_LINES_SHOWN:] if log.is_file() else []
        return f"{log} ends with:\n" + "\n".join(lines)

    def _await_ready(self, on_progress: ProgressCallback) -> None:
        """Wait until all processes are ready. Those of queries are waited for at most QUERIES_WITHIN_S, and a query that cannot
        run at all is only reported."""
        started = time.monotonic()
        reported: set[str] = set()
        restarts: dict[str, int] = {}
        while True:
            state = self.state()
            if state is None:
                raise StackFailed(f"the supervisor has ended; {self._log_end('supervisor')}")
            waits_for = [process["name"] for process in state["processes"] if process["state"] != "running"]
            for process in state["processes"]:
                name = process["name"]
                if process["state"] == "running" and name not in reported:
                    reported.add(name)
                    on_progress(f"{name} is ready")
                ended = process["restarts"] - restarts.setdefault(name, process["restarts"])
                if ended >= RESTARTS_MAX and process["query"] is None:
                    raise StackFailed(f"{name} has ended {ended} times; {self._log_end(name)}")
            for name, problem in problems(state).items():
                if f"query {name}" not in reported:
                    reported.add(f"query {name}")
                    on_progress(f"query {name} does not run in full: {problem}")
            if state["ready"] or (problems(state) and self._all_run(state)):
                return
            waited = time.monotonic() - started
            if waited > QUERIES_WITHIN_S and state["queries"] is not None and _are_of_queries(state, waits_for):
                on_progress(f"not ready yet: {', '.join(waits_for)}; boreal status shows their progress")
                return
            if waited > READY_WITHIN_S:
                name = waits_for[0] if waits_for else "supervisor"
                raise StackFailed(f"{name} is not ready after {waited:.0f} s; {self._log_end(name)}")
            time.sleep(_LOOK_S)

    def _all_run(self, state: dict[str, Any]) -> bool:
        """Whether all that can run does: the servers exist, and all processes are ready."""
        states = {process["name"]: process["state"] for process in state["processes"]}
        return self.servers().keys() <= states.keys() and set(states.values()) == {"running"}

    # Down

    def other_users(self) -> list[str]:
        """The programs of this machine, as far as this user sees them, that are connected to its servers and do not belong to
        it: `NAME (pid PID)`."""
        state = self.state()
        if state is None or self.is_embedded:
            return []
        supervisor = living(state["supervisor"])
        own = {os.getpid(), *(process["pid"] for process in state["processes"])}
        if supervisor is not None:
            own |= {supervisor.pid, *(child.pid for child in supervisor.children(recursive=True))}
        ports = {server.port for server in self.servers().values()}
        found = set()
        for process in psutil.process_iter():
            if process.pid not in own:
                with contextlib.suppress(psutil.Error):
                    if any(link.raddr and link.raddr.port in ports for link in process.net_connections("tcp")):
                        found.add(f"{process.name()} (pid {process.pid})")
        return sorted(found)

    def down(self, on_progress: ProgressCallback) -> bool:
        """Stop all processes that `up` started, and no others; False if none ran."""
        state = read_state(self.data)
        supervisor = None if state is None else living(state["supervisor"])
        if supervisor is not None:
            on_progress("stopping")
            _signal(supervisor, signal.SIGTERM)
            _signal(supervisor, signal.SIGCONT)
            if not _ends(supervisor, DOWN_WITHIN_S):
                _signal(supervisor, signal.SIGKILL)
                _ends(supervisor, DOWN_WITHIN_S)
        left = self._end_leftovers()
        state_path(self.data).unlink(missing_ok=True)
        return supervisor is not None or left

    def _end_leftovers(self) -> bool:
        """Kill the processes that a killed supervisor left, if the kernel has not ended them with it; False if there are
        none."""
        state = read_state(self.data)
        processes = [living(process) for process in state["processes"]] if state else []
        left = [process for process in processes if process is not None]
        for process in left:
            _signal(process, signal.SIGKILL)
        for process in left:
            _ends(process, DOWN_WITHIN_S)
        return bool(left)


_SETTINGS = ("BOREAL_SITES", "BOREAL_REDIS", "BOREAL_DATA", "BOREAL_PROXIES", "BOREAL_CONFIG")
"""The prefixes of variables that are settings: the caller's belong to another stack."""

NOTHING_YET: dict[str, Any] = {"ready": False, "processes": [], "queries": None}


def default_workers(allow_chaos: bool) -> int:
    """As many as there are cores, and at least two, since replicas of a query never share one. None where faults may be made:
    a fault of a process is then one of one role."""
    return 0 if allow_chaos else min(max(len(os.sched_getaffinity(0)), WORKERS_MIN), WORKERS_MAX)


def _free_default_port() -> int:
    """The default, or another one where a program listens there, such as the API of another stack."""
    return free_port() if is_taken(DEFAULT_PORT) else DEFAULT_PORT


def _are_of_queries(state: dict[str, Any], names: list[str]) -> bool:
    return all(process["query"] is not None for process in state["processes"] if process["name"] in names)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _ends(process: psutil.Process, within_s: float) -> bool:
    """Whether the process ends within this time, in seconds."""
    try:
        process.wait(within_s)
    except psutil.TimeoutExpired:
        return False
    return True
