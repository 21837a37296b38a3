"""The local stack as its users know it, by its commands: up, status, queries, kills, down. In the order of the file: each
test goes on with the stack as the one before left it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from boreal.client import CorrectedStream, Tentative, Undo
from deployment.status_fields import PROCESS, PROCESS_OF_STACK, PROCESSES
from deployment.status_fields import QUERY as STATUS_OF_QUERY
from services.kafka.clusters import make_clusters
from services.kafka.statuses import Statuses
from services.monitor.reports import QueryReports
from services.stack.launcher import reach
from tests.command_line import run_command
from tests.described import assert_described
from tests.examples.test_flights import DEPARTURES, assert_same, oracle
from tests.stack.test_flights import read_with_confluent
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.in_order, pytest.mark.xdist_group("servers")]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0
SECOND_US = 1_000_000
QUERY = """
name: counts
streams:
  left: {topic: in.left, time: at, time_unit: us, schema: {key: string, value: int}}
  right: {topic: in.right, time: at, time_unit: us, schema: {key: string, value: int}}
operators:
  all: {union: [left, right]}
  per_key: {aggregate: all, window: {tumbling: 1s}, by: [key], compute: {rows: count(*), total: sum(value)}}
output: per_key
delay_threshold: 3s
replicas: 2
engine: native
"""
IN_SPARK = QUERY.replace("engine: native\n", "").replace("replicas: 2", "replicas: 1")
"""The stack's default."""


@dataclass
class Commands:
    """Runs boreal's commands on one local stack."""

    data: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment of the commands, and of what they start."""

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """status: which it is to exit with."""
        run = subprocess.run(
            [sys.executable, "-m", "boreal", *arguments, "--data", str(self.data)],
            cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert status == run.returncode, f"{arguments}: {run.returncode}\n{run.stdout}\n{run.stderr}\n{self.logs()}"
        return run

    @property
    def environment(self) -> dict[str, str]:
        return {**environment(), **self.variables}

    def begin(self, *arguments: str) -> dict[str, Any]:
        """What a command prints that starts processes, or that runs beside another one: as a program, as its users call it."""
        return json.loads(self.run(*arguments, "--json").stdout)

    def json(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        found, out, err = self.look(*arguments)
        assert found == status, f"{arguments}: {found}\n{out}\n{err}\n{self.logs()}"
        return json.loads(out)

    def look(self, *arguments: str) -> tuple[int, str, str]:
        """Status, stdout and stderr of a command that starts no process: in this one, without another interpreter."""
        done = run_command([*arguments, "--json", "--data", str(self.data)], self.environment)
        return done.returncode, done.stdout, done.stderr

    def status(self) -> dict[str, Any]:
        """Ready or not: on a busy machine a replica may be catching up at any moment."""
        return json.loads(self.look("status")[1])

    def refused(self, *arguments: str) -> dict[str, Any]:
        status, _, err = self.look(*arguments)
        assert status == 2, f"{arguments}: {status}\n{err}\n{self.logs()}"
        return json.loads(err)["error"]

    def shown(self, *arguments: str) -> dict[str, Any]:
        """What `boreal query show` and `list` say."""
        return self.json("query", *arguments)

    def state(self) -> dict[str, Any]:
        return json.loads((self.data / "run" / "state.json").read_text())

    def processes(self) -> dict[str, dict[str, Any]]:
        return {process["name"]: process for process in self.state()["processes"]}

    def pid(self, name: str) -> int:
        return self.processes()[name]["pid"]

    def is_ready(self) -> bool:
        return self.state()["ready"]

    def everything(self) -> list[psutil.Process]:
        """The supervisor and all its descendants."""
        supervisor = psutil.Process(self.state()["supervisor"]["pid"])
        return [supervisor, *supervisor.children(recursive=True)]

    def logs(self) -> str:
        """The ends of all, for a test that has failed."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted(self.data.glob("logs/*.log")))

    @contextmanager
    def up(self, *options: str) -> Iterator[Commands]:
        """A stack that is up, by `boreal up` with these options, and is brought down at the end."""
        self.begin("up", *options)
        self.guard()
        yield self
        self.run("down")

    def guard(self) -> None:
        """Should the test run be killed, tests/guard.py ends the supervisor, and the kernel all others with it."""
        guarded = self.data / "run" / "server.json"
        guarded.write_text(json.dumps(self.state()["supervisor"]))


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("BOREAL_") or name == "BOREAL_CACHE"}


def have_ended(processes: list[psutil.Process]) -> bool:
    return not any(is_alive(process) for process in processes)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


@pytest.fixture(scope="module")
def boreal(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path_factory.mktemp("stack") / "data")
    yield commands
    commands.run("down")


@pytest.fixture(scope="module")
def query_file(boreal: Commands) -> Path:
    path = boreal.data.parent / "counts.yaml"
    path.write_text(QUERY)
    return path


def feed(boreal: Commands, begin_s: int, seconds: int) -> None:
    """A row in each stream every 100 ms of event time, by `boreal feed`."""
    rows = [{"at": begin_s * SECOND_US + tick * SECOND_US // 10, "key": "k", "value": tick} for tick in range(10 * seconds)]
    path = boreal.data.parent / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fed = boreal.json("feed", "counts", f"left={path}", f"right={path}")
    assert fed == {"rows": 2 * len(rows), "refused": {}, "ended": False}


def windows(boreal: Commands, count: int) -> list[str]:
    """The seconds at which the stable results' windows begin, once there are so many."""
    partition = TopicPartition("counts.stable", 0)
    begins: list[str] = []
    consumer = KafkaConsumer(bootstrap_servers=boreal.status()["kafka"]["a"], isolation_level="read_committed")
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        deadline = time.monotonic() + PATIENCE_S
        while len(begins) < count and time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=200).get(partition, []):
                begins.append(json.loads(record.value)["window_start"][-3:-1])
    finally:
        consumer.close()
    return begins


def first_rows(boreal: Commands, kind: str, count: int) -> list[dict[str, Any]]:
    """What `boreal tail` prints first; then Ctrl-C ends it."""
    command = [sys.executable, "-m", "boreal", "tail", "counts", kind, "--json", "--data", str(boreal.data)]
    with heeding_interrupts():
        tail = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    overdue = threading.Timer(PATIENCE_S, tail.kill)
    overdue.start()
    try:
        with tail:
            assert tail.stdout is not None
            rows = [json.loads(tail.stdout.readline()) for _ in range(count)]
            tail.send_signal(signal.SIGINT)
            tail.stdout.read()
    finally:
        overdue.cancel()
    assert tail.returncode == 130
    return rows


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """What is started meanwhile heeds SIGINT. It would not where these tests run in the background of a shell without job
    control: that ignores SIGINT, and who starts ignoring it goes on so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_up_and_commands_say_so(boreal: Commands, query_file: Path) -> None:
    assert boreal.json("status", status=1) == {
        "ready": False, "kafka": {}, "redis": None, "api": None, "token": None, "processes": [], "queries": [],
        "problems": {},
    }  # fmt: skip
    assert "boreal up" in boreal.refused("query", "list")["fix"]
    assert "nothing was up" in boreal.run("down").stdout


def test_up_returns_when_all_is_ready(boreal: Commands) -> None:
    status = boreal.begin("up", "--workers", "2")
    boreal.guard()
    assert status == boreal.json("status")
    assert status["ready"] and status["queries"] == []
    assert sorted(process["name"] for process in status["processes"]) == ["api", "kafka.a", "monitor", "redis"]
    for process in status["processes"]:
        assert process["state"] == "running"
        assert process.keys() == PROCESS_OF_STACK.keys()
        assert psutil.pid_exists(process["pid"])
    host, port = status["kafka"]["a"].split(":")
    socket.create_connection((host, int(port))).close()
    token = boreal.data / "token"
    assert token.read_text() == status["token"]
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_up_again_changes_nothing(boreal: Commands) -> None:
    before = boreal.json("status")
    assert "already up" in boreal.run("up").stdout
    assert boreal.json("status") == before
    assert boreal.refused("up", "--sites", "2")["field"] == "--sites"


def test_a_killed_process_is_started_again(boreal: Commands) -> None:
    killed = boreal.pid("monitor")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: boreal.processes()["monitor"]["restarts"] == 1, "it is started again")
    wait_until(boreal.is_ready, "all is ready again")
    assert boreal.pid("monitor") != killed


def test_a_query_that_cannot_run_is_refused_by_the_field_that_is_wrong(boreal: Commands, tmp_path: Path) -> None:
    path = tmp_path / "query.yaml"
    for text, wrong in (
        (QUERY.replace("topic: in.left, ", ""), "streams.left.topic"),
        (QUERY.replace("sum(value)", "sum(none)"), "operators.per_key.compute.total"),
        (IN_SPARK.replace("delay_threshold: 3s", "delay_threshold: 900ms"), "delay_threshold"),
    ):
        path.write_text(text)
        error = boreal.refused("query", "apply", str(path))
        assert error["field"] == wrong
    assert boreal.shown("list") == {"queries": []}
    assert boreal.refused("query", "show", "none")["field"] == "NAME"
    assert boreal.refused("feed", "none", "left=rows.csv")["field"] == "NAME"


def test_a_query_is_live_when_apply_returns(boreal: Commands, query_file: Path) -> None:
    found = boreal.json("query", "apply", str(query_file))
    assert found["live"] and found["revision"] == 1
    assert set(found["states"]) == {"main.r0.0", "main.r1.0"}
    status = boreal.status()
    assert status["queries"] == ["counts"]
    assert {process["name"] for process in status["processes"] if process["query"] == "counts"} == {
        "source.counts.left", "source.counts.right", "node.counts.r0", "node.counts.r1", "egress.counts.a",
    }  # fmt: skip
    assert boreal.json("query", "apply", str(query_file))["revision"] == 1, "the same again changes nothing"


def test_a_file_without_an_engine_leaves_the_query_the_engine_that_it_has(boreal: Commands, tmp_path: Path) -> None:
    path = tmp_path / "query.yaml"
    path.write_text(QUERY.replace("engine: native\n", ""))
    found = boreal.json("query", "apply", str(path))
    assert (found["revision"], found["engine"], found["live"]) == (1, "native", True), "Spark is the default of a new one"


def test_who_verifies_a_query_without_results_hears_that_nothing_was_compared(boreal: Commands) -> None:
    found = boreal.json("verify", "counts", status=3)
    assert found["rows"] == 0


def test_rows_that_are_fed_come_out_stable(boreal: Commands) -> None:
    feed(boreal, 1_700_000_000, 5)
    rows = first_rows(boreal, "--stable", 3)
    assert [row["rows"] for row in rows] == [20, 20, 20]
    assert rows[0] == {
        "window_start": "2023-11-14T22:13:20Z", "window_end": "2023-11-14T22:13:21Z", "key": "k", "rows": 20, "total": 90,
    }  # fmt: skip
    changes = first_rows(boreal, "--all", 1)
    assert {"v", "type", "seq", "stable_seq", "epoch"} <= set(changes[0])


def call(boreal: Commands, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and body of an answer of the API."""
    status = boreal.status()
    request = urllib.request.Request(f"{status['api']}/api/v1{path}", method=method)
    request.data = None if body is None else json.dumps(body).encode()
    for name, value in {"Authorization": f"Bearer {status['token']}", "Content-Type": "application/json", **headers}.items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.loads(refusal.read())


def test_the_api_shows_and_changes_what_the_commands_do(boreal: Commands) -> None:
    assert call(boreal, "GET", "/queries", Authorization="Bearer x")[0] == 401
    code, listed = call(boreal, "GET", "/queries?expand=status")
    assert code == 200 and [each["name"] for each in listed["queries"]] == ["counts"]
    wait_until(lambda: call(boreal, "GET", "/queries/counts/status")[1]["counts"]["stable"] >= 3, "the results are counted")
    status = call(boreal, "GET", "/queries/counts/status")[1]
    assert (status["x_ms"], len(status["replicas"])) == (3000, 2)
    assert {each["name"] for each in status["inputs"]} == {"left", "right"}
    revision = boreal.shown("show", "counts")["revision"]
    spec = {**listed["queries"][0]["spec"], "delay_threshold": "4s"}
    assert call(boreal, "PUT", "/queries/counts", spec)[1]["revision"] == revision + 1
    code, refusal = call(boreal, "PATCH", "/queries/counts", {"delay_threshold": "3s"}, **{"If-Match": f'"{revision}"'})
    assert (code, refusal["revision"]) == (412, revision + 1)
    assert call(boreal, "PATCH", "/queries/counts", {"delay_threshold": "1ms"})[1]["field"] == "delay_threshold"
    assert boreal.shown("show", "counts")["spec"]["delay_threshold"] == "4s"
    changed = call(boreal, "PATCH", "/queries/counts", {"delay_threshold": "3s"})[1]
    assert (changed["x_ms"], changed["revision"]) == (3000, revision + 2)
    code, shown = call(boreal, "GET", f"/queries/counts/status?min_revision={revision + 2}")
    assert code == 200 and shown["name"] == "counts"


def events(boreal: Commands, path: str, count: int, **headers: str) -> list[dict[str, str]]:
    """The first server-sent events, without comments."""
    status = boreal.status()
    request = urllib.request.Request(f"{status['api']}/api/v1{path}")
    for name, value in {"Authorization": f"Bearer {status['token']}", **headers}.items():
        request.add_header(name, value)
    found: list[dict[str, str]] = []
    event: dict[str, str] = {}
    with urllib.request.urlopen(request, timeout=60) as answer:
        while len(found) < count:
            name, _, value = answer.readline().decode().rstrip("\r\n").partition(": ")
            if name:
                event[name] = value
            elif "event" in event:
                found.append(event)
                event = {}
            else:
                event = {}
    return found


def test_results_come_as_events_and_a_caller_goes_on_where_it_was(boreal: Commands) -> None:
    rows = events(boreal, "/queries/counts/output?from=stable", 3)
    assert [json.loads(row["data"])["rows"] for row in rows] == [20, 20, 20]
    [again] = events(boreal, "/queries/counts/output?from=stable", 1, **{"Last-Event-ID": rows[1]["id"]})
    assert again == rows[2]
    [change] = events(boreal, "/queries/counts/output?from=all&last=1", 1)
    assert {"v", "type", "seq", "stable_seq", "epoch"} <= set(json.loads(change["data"]))


def test_rows_may_be_posted_and_chaos_is_refused_unless_it_is_allowed(boreal: Commands) -> None:
    row = {"at": 1_700_000_004_950_000, "key": "k", "value": 1}
    for name in ("left", "counts.right"):
        assert call(boreal, "POST", f"/streams/{name}/tuples", [row, {}]) == (
            202, {"accepted": 1, "refused": 1, "reasons": [{"row": 1, "reason": "column at: no time"}]},
        )  # fmt: skip
    assert call(boreal, "POST", "/streams/none/tuples", row)[0] == 404
    code, refusal = call(boreal, "POST", "/chaos", {"fault": "cut left for 5s"})
    assert code == 403 and "--allow-chaos" in refusal["fix"]


def test_a_record_that_was_refused_is_put_back_once_and_the_journal_has_it(boreal: Commands) -> None:
    in_2100 = {"at": 4_102_444_800_000_000, "key": "k", "value": 1}
    assert call(boreal, "POST", "/streams/counts.left/tuples", in_2100)[0] == 202

    def replayed() -> list[bool]:
        return [each["replayed"] for each in boreal.json("dlq", "show", "counts", "--reason", "ahead")["dead_letters"]]

    wait_until(lambda: replayed() == [False], "the dead letter")
    assert boreal.json("dlq", "replay", "counts", "--stream", "left")["replayed"] == 1
    wait_until(lambda: replayed() == [False, True], "it is refused again")
    wait_until(lambda: bool(boreal.json("events", "--kind", "replayed")["events"]), "the journal has it")
    [event] = boreal.json("events", "--kind", "replayed")["events"]
    assert (event["query"], event["facts"]["stream"], event["facts"]["replayed"]) == ("counts", "left", 1) and event["by"]

    def shown() -> dict[str, Any]:
        """What the source said of the stream last: it says so every second."""
        found: dict[str, Any] = boreal.shown("show", "counts")["streams"]["left"]
        return found

    wait_until(lambda: shown()["dlq"] == 2, "the source says so")
    assert "ahead of the clock" in shown()["last_refusal"]


@pytest.mark.soak
def test_a_number_in_quotes_is_converted_and_counted_or_refused_as_the_stream_says(
    boreal: Commands, query_file: Path, tmp_path: Path
) -> None:
    def said() -> tuple[int, str]:
        found = boreal.shown("show", "counts")["streams"]["left"]
        return found["coerced"], found["last_refusal"] or ""

    def send() -> None:
        with closing(KafkaProducer(bootstrap_servers=boreal.status()["kafka"]["a"])) as producer:
            producer.send("in.left", json.dumps({"at": 1_700_000_004_950_000, "key": "k", "value": "7"}).encode()).get(60)

    send()
    wait_until(lambda: said() == (1, said()[1]), "the value is counted")
    assert boreal.status()["sources"]["counts.left"]["coerced"] == 1
    strict = tmp_path / "query.yaml"
    strict.write_text(QUERY.replace("{topic: in.left,", "{topic: in.left, types: refuse,"))
    assert boreal.json("query", "apply", str(strict))["live"]
    send()
    wait_until(lambda: said() == (0, "column value: '7' is a text, and a number is wanted"), "the value is refused")
    assert boreal.json("query", "apply", str(query_file))["live"]


def test_the_api_may_be_killed_and_no_query_notices(boreal: Commands) -> None:
    before = {name: (process["pid"], process["restarts"]) for name, process in boreal.processes().items() if name != "api"}
    status = boreal.status()
    happened = call(boreal, "GET", "/events?limit=1000")[1]["events"]
    job: dict[str, Any] = {"id": "kept", "query": "counts", "modes": ["overlay_redo"], "policies": ["process/process"]}
    job["sources"] = dict.fromkeys(("left", "right"), "generate:100,100")
    assert happened and call(boreal, "POST", "/comparisons", job)[0] == 202
    wait_until(lambda: call(boreal, "GET", "/comparisons/kept")[1]["state"] == "running", "the job runs")
    os.kill(boreal.pid("api"), signal.SIGKILL)
    wait_until(lambda: boreal.processes()["api"]["restarts"] == 1 and boreal.is_ready(), "it is started again")
    assert call(boreal, "GET", "/queries/counts")[1]["delay_threshold"] == "3s"
    assert (boreal.status()["api"], boreal.status()["token"]) == (status["api"], status["token"])
    after = boreal.processes()
    assert {name: (after[name]["pid"], after[name]["restarts"]) for name in before} == before
    told = call(boreal, "GET", "/events?limit=1000")[1]["events"]
    assert {event["id"] for event in happened} <= {event["id"] for event in told}, "no event is lost"
    wait_until(lambda: call(boreal, "GET", "/comparisons/kept")[1]["state"] == "done", "the job begins again")

    def ends() -> list[str]:
        events = call(boreal, "GET", "/events?kind=job_created&kind=job_done")[1]["events"]
        return [event["kind"] for event in events if event["facts"]["id"] == "kept"]

    wait_until(lambda: ends() == ["job_done", "job_created"], "the journal has both, once each")


def said_by(boreal: Commands, kinds: set[str]) -> dict[str, dict[str, Any]]:
    """What processes of these kinds, or their queries, said last; by their names."""
    home = make_clusters(reach(boreal.data), "test")["a"]
    with closing(Statuses(home)) as statuses, closing(QueryReports(home)) as reports:
        wait_until(lambda: statuses.is_current.is_set() and reports.is_current.is_set(), "what was said before is read")
        found = {**statuses.newest(), **{f"query.{name}": report for name, report in reports.newest().items()}}
    said = {name: status for name, status in found.items() if name.partition(".")[0] in kinds}
    assert {name.partition(".")[0] for name in said} == kinds
    return said


def test_all_that_processes_say_of_themselves_is_described(boreal: Commands) -> None:
    for name, status in said_by(boreal, {"source", "node", "egress", "monitor", "supervisor", "api"}).items():
        assert_described(status, {**PROCESS, **PROCESSES[name.partition(".")[0]]})
    for report in said_by(boreal, {"query"}).values():
        assert_described(report, STATUS_OF_QUERY)


def test_a_stack_elsewhere_is_reached_by_its_settings(boreal: Commands) -> None:
    """As in containers: by the environment alone. Only the token is this machine's."""
    address = boreal.status()["kafka"]["a"]
    there = {"BOREAL_SITES__A__BOOTSTRAP": address, "BOREAL_REDIS__URL": boreal.status()["redis"]}

    def is_told_the_same() -> bool:
        run = subprocess.run(
            [sys.executable, "-m", "boreal", "status", "--json"],
            cwd=ROOT, env={**environment(), **there}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        # How queries answer changes with each look.
        fields = ("ready", "kafka", "redis", "processes", "queries", "problems", "api", "token")
        said, here = json.loads(run.stdout), {**boreal.status(), "api": None, "token": None}
        return said.keys() == here.keys() and all(said[field] == here[field] for field in fields)

    wait_until(is_told_the_same, "both say the same")


def test_a_new_threshold_restarts_nothing(boreal: Commands) -> None:
    before = {name: (process["pid"], process["restarts"]) for name, process in boreal.processes().items()}
    revision = boreal.shown("show", "counts")["revision"]
    changed = boreal.json("query", "set", "counts", "delay_threshold=5s")
    assert changed["revision"] == revision + 1 and changed["delay_threshold"] == "5s"
    assert {name: (process["pid"], process["restarts"]) for name, process in boreal.processes().items()} == before
    assert boreal.shown("show", "counts")["spec"]["delay_threshold"] == "5s"
    assert boreal.refused("query", "set", "counts", "delay_threshold=soon")["field"] == "delay_threshold"
    assert boreal.refused("query", "set", "counts", "streams=none")["field"] == "streams"


def test_another_mode_restarts_replicas_one_after_the_other(boreal: Commands) -> None:
    command = [sys.executable, "-m", "boreal", "query", "set", "counts", "reconcile=overlay_redo", "--data", str(boreal.data)]
    seen: list[dict[str, dict[str, Any]]] = []
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as change:
        while change.poll() is None:
            seen.append(boreal.processes())
            time.sleep(0.01)
    assert change.returncode == 0, boreal.logs()

    def looks(name: str, *states: str) -> list[int]:
        return [at for at, look in enumerate(seen) if name in look and look[name]["state"] in states]

    ended = {name: looks(name, "stopping", "waiting", "starting") for name in boreal.processes()}
    assert {name for name, at in ended.items() if at} == {"node.counts.r0", "node.counts.r1", "egress.counts.a"}
    first, second = sorted(["node.counts.r0", "node.counts.r1"], key=lambda name: ended[name][0])
    # On a busy machine it may be ready for no longer than between two looks, before it recovers.
    back = next(at for at in looks(first, "running", "recovering") if at > ended[first][0])
    assert back <= ended[second][0], "the second ended before the first was ready again"


def test_a_paused_query_has_no_processes(boreal: Commands) -> None:
    assert boreal.json("query", "pause", "counts")["paused"]
    assert not any(process["query"] for process in boreal.processes().values())
    assert not boreal.shown("show", "counts")["live"]
    feed(boreal, 1_700_000_005, 5)


def test_a_query_that_names_no_engine_runs_in_spark(boreal: Commands, tmp_path: Path) -> None:
    """While the other is paused: a job needs its processor time to get ready."""
    path = tmp_path / "query.yaml"
    path.write_text(IN_SPARK.replace("counts", "sparks"))
    try:
        _runs_in_spark(boreal, path)
    finally:
        boreal.json("query", "delete", "sparks")


def _runs_in_spark(boreal: Commands, path: Path) -> None:
    found = boreal.json("query", "apply", str(path))
    assert found["live"] and found["engine"] == "spark"
    jobs = [process["name"] for process in boreal.status()["processes"] if process["kind"] == "spark"]
    assert jobs == ["spark.sparks.r0"]
    wait_until(lambda: (boreal.status()["jobs"]["spark.sparks.r0"]["batch_ms"] or 0) > 0, "it tells of its batches")
    assert boreal.status()["jobs"]["spark.sparks.r0"]["rss_bytes"]["jvm"] > 0
    for job in said_by(boreal, {"spark"}).values():
        assert_described(job, {**PROCESS, **PROCESSES["spark"]})
    assert "spark.sparks.r0" in boreal.run("status").stdout
    error = boreal.refused("query", "set", "sparks", "delay_threshold=1s")
    assert (error["field"], error["fix"]) == (
        "delay_threshold", "write at least 1s150ms, or engine: native, which gives the same results",
    )  # fmt: skip
    changed = boreal.json("query", "apply", str(path), "--engine", "native")
    assert changed["live"] and changed["engine"] == "native"
    wait_until(lambda: all(process["kind"] != "spark" for process in boreal.status()["processes"]), "the job has ended")


def test_a_query_that_is_resumed_goes_on_where_it_was(boreal: Commands) -> None:
    assert boreal.json("query", "resume", "counts")["live"]
    assert windows(boreal, 9) == [f"{second}" for second in range(20, 29)]


def test_a_worker_that_is_killed_costs_no_row(boreal: Commands) -> None:
    roles = {name: process["pid"] for name, process in boreal.processes().items() if process["query"]}
    assert len(roles) == 5 and len(set(roles.values())) == 2
    assert roles["node.counts.r0"] != roles["node.counts.r1"]
    killed = roles["node.counts.r0"]
    psutil.Process(killed).kill()
    wait_until(lambda: not any(process["pid"] == killed for process in boreal.processes().values()), "its end is seen")
    feed(boreal, 1_700_000_010, 2)
    assert windows(boreal, 11) == [f"{second}" for second in range(20, 31)]
    wait_until(boreal.is_ready, "all its roles are back")
    restarts = {name: process["restarts"] for name, process in boreal.processes().items() if name in roles}
    assert restarts == {name: int(pid == killed) for name, pid in roles.items()}


def test_when_the_supervisor_is_killed_nothing_is_left(boreal: Commands) -> None:
    everything = boreal.everything()
    assert len(everything) >= 7
    everything[0].kill()
    wait_until(lambda: have_ended(everything), "all have died with it")
    assert boreal.json("status", status=1)["processes"] == []


def test_up_brings_back_what_there_was(boreal: Commands) -> None:
    before = json.loads((boreal.data / "stack.json").read_text())
    status = boreal.begin("up", "--allow-chaos")
    boreal.guard()
    assert status["queries"] == ["counts"]
    wait_until(boreal.is_ready, "all is ready")
    assert json.loads((boreal.data / "stack.json").read_text()) == before
    # The roles have processes of their own now, and go on with the logs and checkpoints that workers wrote.
    feed(boreal, 1_700_000_012, 3)
    assert windows(boreal, 14) == [f"{second}" for second in range(20, 34)]


def test_a_fault_of_one_line_shows_tentative_rows_and_is_undone(boreal: Commands) -> None:
    with CorrectedStream("counts", boreal.status()["kafka"]["a"]) as stream:
        list(stream.changes(until="now"))
        assert boreal.run("fault", "cut", "left", "for", "15s").stdout.startswith("cut counts.left for 15s")
        feed(boreal, 1_700_000_015, 3)
        assert windows(boreal, 17) == [f"{second}" for second in range(20, 37)]
        changes = list(stream.changes(until="now"))
    assert any(isinstance(change, Tentative) and "left" in change.missing_inputs for change in changes)
    assert any(isinstance(change, Undo) and change.revoked for change in changes)


def test_one_replica_is_cut_from_one_stream_and_the_other_answers(boreal: Commands) -> None:
    assert boreal.run("fault", "cut", "left", "to", "r1", "for", "5m").stdout.startswith("cut counts.left to r1 for 5m")
    feed(boreal, 1_700_000_018, 3)
    wait_until(lambda: _lacks(boreal, "r1") == {"left"}, "the replica lacks the stream")
    assert windows(boreal, 20) == [f"{second}" for second in range(20, 40)]
    assert (_lacks(boreal, "r0"), _lacks(boreal, "r1")) == (set(), {"left"}), "stable results came during the cut"
    boreal.run("fault", "heal", "left")
    wait_until(lambda: not _lacks(boreal, "r1"), "the link is healed")


def _lacks(boreal: Commands, replica: str) -> set[str]:
    """The streams that a replica does not hear."""
    _, found = call(boreal, "GET", "/queries/counts/status")
    return {name for each in found["replicas"] if each["replica"] == replica for name in each["missing"]}


def test_without_a_java_spark_is_refused_in_a_line_that_says_what_to_install(boreal: Commands, tmp_path: Path) -> None:
    path = tmp_path / "query.yaml"
    path.write_text(IN_SPARK.replace("counts", "others"))
    without = (
        "import sys, boreal_cli, services.hosting.fetch as f; f._from_wheel = lambda *_: None; sys.exit(boreal_cli.main())"
    )
    run = subprocess.run(
        [sys.executable, "-c", without, "query", "apply", str(path), "--data", str(boreal.data)],
        cwd=ROOT, env={**environment(), "PATH": "/nowhere", "JAVA_HOME": ""}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 2
    said, line = run.stderr.splitlines()
    assert said.startswith("through the API at ") and "no Java 17 or later was found; install one" in line


def test_what_is_fed_to_a_stream_that_has_ended_is_refused_before_it_becomes_dead_letters(boreal: Commands) -> None:
    assert boreal.json("feed", "counts", "--end")["ended"]
    rows = boreal.data / "more.csv"
    rows.write_text("at,key,value\n1700000040000000,k,1\n")

    def is_refused() -> bool:
        status, _, said = boreal.look("feed", "counts", f"left={rows}")
        return status == 2 and "left" in said and "has ended" in said

    wait_until(is_refused, "its source has seen the end")


def test_a_deleted_query_leaves_its_inputs_and_nothing_else(boreal: Commands, query_file: Path) -> None:
    assert boreal.json("query", "delete", "counts") == {"name": "counts", "deleted": True}
    admin = KafkaAdminClient(bootstrap_servers=boreal.status()["kafka"]["a"])
    topics = {name for name in admin.list_topics() if not name.startswith("__")}
    admin.close()
    own = {f"boreal.{name}" for name in ("clock", "events", "placement", "queries", "status")}
    assert topics == {"in.left", "in.right", *own}
    assert boreal.refused("query", "delete", "counts")["problem"] == "there is no such query"


def test_the_five_commands_of_the_readme_do_what_it_says(boreal: Commands, tmp_path: Path) -> None:
    """As they are written, but that the packages are installed, the stack is up, and the query's engine is native: README says
    that this changes nothing but the time."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## On Kafka, in five commands\n\n")[2]
    install, *commands = [shlex.split(line, comments=True) for line in text.partition("\n\n")[0].splitlines()]
    extras = re.fullmatch(r"\.\[([\w,]+)\]", install[2])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras and set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**boreal.environment, "BOREAL_DATA": str(boreal.data), "PYTHONPATH": str(ROOT)}
    for program, *arguments in commands:
        command = [sys.executable, *(["-m", "boreal"] if program == "boreal" else []), *arguments]
        is_apply = arguments[:2] == ["query", "apply"]
        done = subprocess.run(
            [*command, "--engine", "native"] if is_apply else command,
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{boreal.logs()}"
    expected = oracle(tmp_path / "flights", DEPARTURES)
    assert_same(read_with_confluent(boreal.status()["kafka"]["a"], "departures.stable", len(expected)), expected)
    boreal.json("query", "delete", "departures")


def test_down_ends_all_and_nothing_else(boreal: Commands) -> None:
    everything = boreal.everything()
    address = tuple(boreal.status()["kafka"]["a"].split(":"))
    connect = f"import socket, time; s = socket.create_connection({address}); print('there', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", connect], stdout=subprocess.PIPE) as bystander:
        assert bystander.stdout is not None and bystander.stdout.readline() == b"there\n"
        down = boreal.run("down")
        assert "boreal is down" in down.stdout
        users = [line for line in down.stderr.splitlines() if "is connected to a server of this stack" in line]
        assert len(users) == 1 and f"(pid {bystander.pid})" in users[0]
        assert have_ended(everything)
        assert bystander.poll() is None
        bystander.kill()
    assert not (boreal.data / "run" / "state.json").exists()


def test_an_address_that_another_program_has_taken_is_named(boreal: Commands) -> None:
    port = json.loads((boreal.data / "redis" / "server.json").read_text())["ports"][0]
    with socket.create_server(("127.0.0.1", port)):
        error = json.loads(boreal.run("up", "--json", status=2).stderr)["error"]
    assert (error["field"], error["value"]) == ("port", port)
    assert "redis" in error["problem"]
