"""The supervisor's hands: processes that die with it, logs that do not grow for ever, names that outlive a pid."""

from __future__ import annotations

import errno
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import psutil
import pytest

from boreal.model.errors import UserError
from boreal.query.spec import load_query
from deployment.query_record import JoinedSources, QueryRecord
from deployment.supervision import Child, ProcessTargets, ReadinessReport
from embedded.faults import parse_fault_at_once
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.kafka.statuses import StatusReader
from services.stack import chaos, parent_death, process_runner, state
from services.stack.chaos import request_fault
from services.stack.children import MONITOR
from services.stack.process_runner import ProcessRunner
from services.stack.servers import Server
from services.stack.state import identity, living, only_one, read_state
from services.stack.supervisor import Supervisor, _Readiness
from tests.foreign import make_foreign_packages
from tests.harness import STREAM, query_of
from tests.waiting import wait_until

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
PATIENCE_S = 120.0


def has_died(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def settings(data: Path) -> ServiceSettings:
    return ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")}, data=data)


@pytest.fixture
def ended() -> queue.SimpleQueue[tuple[str, int]]:
    return queue.SimpleQueue()


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """What this process has started since the test began: a broker of other tests in it is none of theirs."""
    before = set(psutil.Process().children())
    return lambda: [child for child in psutil.Process().children() if child not in before]


@pytest.fixture
def runner(
    tmp_path: Path, ended: queue.SimpleQueue[tuple[str, int]], children: Callable[[], list[psutil.Process]]
) -> Iterator[ProcessRunner]:
    made = ProcessRunner(settings(tmp_path), False, lambda name, code: ended.put((name, code)))
    yield made
    for child in children():
        child.kill()
        child.wait()


def test_a_process_dies_with_the_one_that_looks_after_it() -> None:
    """Killed at once, so that nobody could tell the child."""
    program = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-IS", {parent_death.__file__!r}, str(os.getpid()), *{SLEEP!r}])
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        wait_until(lambda: child.cmdline() == list(SLEEP), "the child has become its command")
        parent.kill()
    wait_until(lambda: has_died(child), "the child has died")


def test_a_process_whose_parent_is_gone_already_does_not_begin() -> None:
    command = [sys.executable, "-IS", parent_death.__file__, "1", *SLEEP]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=20)
    assert run.returncode == 1
    assert "has ended" in run.stderr


def test_a_process_is_started_logged_and_its_end_is_told(
    runner: ProcessRunner, ended: queue.SimpleQueue[tuple[str, int]], tmp_path: Path
) -> None:
    program = "import os, sys; print('said', os.environ['BOREAL_TEST']); sys.exit(7)"
    os.environ["BOREAL_TEST"] = "this"
    try:
        runner.start(Child("monitor", "monitor", None, (sys.executable, "-c", program)))
    finally:
        del os.environ["BOREAL_TEST"]
    pid, created = runner.pid("monitor"), runner.created("monitor")
    assert pid is not None and created is not None
    assert ended.get(timeout=PATIENCE_S) == ("monitor", 7)
    assert (tmp_path / "logs" / "monitor.log").read_text() == "said this\n"
    runner.forget("monitor")
    assert runner.pid("monitor") is None


def test_a_frozen_process_ends_when_it_is_asked_to(
    runner: ProcessRunner, ended: queue.SimpleQueue[tuple[str, int]], tmp_path: Path
) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("listens", flush=True)
time.sleep(600)
"""
    runner.start(Child("monitor", "monitor", None, (sys.executable, "-c", program)))
    pid, log = runner.pid("monitor"), tmp_path / "logs" / "monitor.log"
    assert pid is not None
    wait_until(lambda: log.read_text() == "listens\n", "it listens to signals")
    assert not runner.frozen(["monitor"])
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: bool(runner.frozen(["monitor"])), "it is seen to be frozen")
    runner.end("monitor", signal.SIGTERM)
    assert ended.get(timeout=PATIENCE_S) == ("monitor", 5)


def test_a_long_log_begins_anew_and_its_end_is_kept(
    runner: ProcessRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_runner, "LOG_BYTES_MAX", 1_000)
    go = tmp_path / "go"
    program = f"""
import os, sys, time
print('x' * 2000, flush=True)
while not os.path.exists({str(go)!r}): time.sleep(0.01)
print('after', flush=True)
time.sleep(600)
"""
    log = tmp_path / "logs" / "monitor.log"
    runner.start(Child("monitor", "monitor", None, (sys.executable, "-c", program)))
    wait_until(lambda: log.stat().st_size > 2_000, "it has written")
    runner.shorten_logs()
    assert log.stat().st_size == 0
    go.touch()
    wait_until(lambda: log.read_text() == "after\n", "it writes on, from the beginning")
    assert log.with_suffix(".log.1").read_text() == "x" * 2000 + "\n"
    runner.shorten_logs()
    assert log.read_text() == "after\n"


def test_a_log_that_somebody_has_removed_ends_nothing(runner: ProcessRunner, tmp_path: Path) -> None:
    runner.start(Child("monitor", "monitor", None, SLEEP))
    (tmp_path / "logs" / "monitor.log").unlink()
    runner.shorten_logs()


def no_more(*arguments: Any, **options: Any) -> NoReturn:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize("what", ["subprocess.Popen", "psutil.Process"])
def test_a_process_that_cannot_be_started_has_ended_at_once(
    runner: ProcessRunner,
    ended: queue.SimpleQueue[tuple[str, int]],
    children: Callable[[], list[psutil.Process]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(what, no_more)
        runner.start(Child("monitor", "monitor", None, SLEEP))
    assert ended.get_nowait() == ("monitor", 1)
    assert "monitor cannot be started: [Errno 11] Resource temporarily unavailable" in caplog.text
    assert runner.pid("monitor") is None and children() == []
    runner.end("monitor", signal.SIGTERM)
    runner.forget("monitor")
    runner.start(Child("monitor", "monitor", None, SLEEP))
    assert runner.pid("monitor") is not None


def test_a_spare_that_cannot_be_kept_is_told_of_once(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subprocess, "Popen", no_more)
    runner.keep_spare()
    runner.keep_spare()
    told = [record.message for record in caplog.records if record.name == "boreal.supervisor"]
    assert [message.partition(":")[0] for message in told] == ["there is no spare process"]


def test_logs_that_were_removed_are_made_anew(
    runner: ProcessRunner, ended: queue.SimpleQueue[tuple[str, int]], tmp_path: Path
) -> None:
    runner.start(Child("monitor", "monitor", None, (sys.executable, "-c", "")))
    ended.get(timeout=PATIENCE_S)
    runner.forget("monitor")
    shutil.rmtree(tmp_path / "logs")
    runner.start(Child("monitor", "monitor", None, (sys.executable, "-c", "print('said')")))
    assert ended.get(timeout=PATIENCE_S) == ("monitor", 0)
    assert (tmp_path / "logs" / "monitor.log").read_text() == "said\n"


def test_a_process_whose_log_cannot_be_opened_runs_without(
    runner: ProcessRunner, ended: queue.SimpleQueue[tuple[str, int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs" / "monitor.log").mkdir(parents=True)
    for _ in range(2):
        runner.start(Child("monitor", "monitor", None, (sys.executable, "-c", "print('said'); raise SystemExit(7)")))
        assert ended.get(timeout=PATIENCE_S) == ("monitor", 7)
        runner.forget("monitor")
    told = [record.message for record in caplog.records if (record.name, record.levelname) == ("boreal.supervisor", "ERROR")]
    assert len(told) == 1 and told[0].startswith("monitor runs without a log: ")


def test_a_query_that_cannot_run_is_not_ready(tmp_path: Path) -> None:
    made = Supervisor(settings(tmp_path), ("a",), {}, allow_chaos=False)
    made._take({})
    assert made._is_ready()
    records = {"q": QueryRecord("q", {"name": "q"}, 1)}
    made._take(records)
    assert not made._is_ready()
    state = made._query_states(records)["q"]
    assert state["problem"] and not state["ready"]
    made._take({})
    assert made._is_ready()


def test_a_query_that_joins_the_sources_of_another_sets_their_pace_and_changes_nothing_else_of_it(tmp_path: Path) -> None:
    topics = {name: {**STREAM, "topic": name} for name in "abc"}

    def record(name: str, x: str, joined: JoinedSources | None) -> QueryRecord:
        query = load_query({**query_of(x=x, engine="native"), "name": name, "streams": topics})
        return QueryRecord(name, query.dump(), 1, joined=joined)

    joined = JoinedSources(dict.fromkeys("abc", "first"), claimed=True)
    first, second = record("first", "3s", None), record("second", "1s", joined)
    made = Supervisor(settings(tmp_path), ("a",), {}, allow_chaos=False)
    made._take({"first": first})
    before = made._of_query["first"]
    made._take({"first": first, "second": second})
    after = made._of_query["first"]
    for one, other in zip(before, after, strict=True):
        assert one.record is not None and other.record is not None and one.name == other.name
        wanted = "1s" if one.kind == "source" else "3s"
        assert (one.record.spec["delay_threshold"], other.record.spec["delay_threshold"]) == ("3s", wanted)
    assert {child.name for child in made._of_query["second"]} >= {f"source.first.{name}" for name in "abc"}
    made._take({"first": first})
    assert made._of_query == {"first": before}


def test_a_frozen_process_is_said_to_be_frozen_and_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Supervisor(settings(tmp_path), ("a",), {}, allow_chaos=False)
    made._take({})
    made._supervision.handle(ProcessTargets((MONITOR,)), 0)
    made._supervision.handle(ReadinessReport(MONITOR.name, True), 1)
    states: list[tuple[str, bool]] = []
    for frozen in (set(), {MONITOR.name}, set()):
        monkeypatch.setattr(made._runner, "frozen", lambda names, frozen=frozen: frozen)
        assert made._write_state()
        [process] = made._written["processes"]
        states.append((process["state"], made._written["ready"]))
    assert states == [("running", True), ("frozen", False), ("running", True)]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")])
def test_a_server_that_cannot_be_asked_for_want_of_something_is_asked_again(tmp_path: Path, error: Exception) -> None:
    made = Supervisor(settings(tmp_path), ("a",), {}, allow_chaos=False)
    made._runner._running["redis"] = cast(Any, (SimpleNamespace(pid=7), 0.0))
    looks: Iterator[Exception | bool] = iter([error, False, True])

    def look() -> bool:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    server = SimpleNamespace(prepare=lambda: None, command=["redis-server"], is_ready=look)
    made._in_thread(lambda: made._keep_server("redis", cast(Server, server)))
    made._notifications.get(timeout=PATIENCE_S)
    heard = made._notifications.get(timeout=PATIENCE_S)
    assert isinstance(heard, _Readiness) and (heard.pid, heard.ready) == (7, True)
    assert not made._has_failed.is_set()
    made._ending.set()


def test_what_was_said_before_the_supervisor_began_is_no_word_of_its_processes(tmp_path: Path) -> None:
    made, is_current = Supervisor(settings(tmp_path), ("a",), {}, allow_chaos=False), threading.Event()
    made._statuses = cast(StatusReader, SimpleNamespace(is_current=is_current))
    said = {"process": "node.q.r0", "pid": 57, "at_ms": 1.0, "ready": True}
    made._hear(said)
    assert made._notifications.empty()
    is_current.set()
    made._hear(said)
    assert not made._notifications.empty()


def test_a_full_disk_ends_nothing_and_the_state_is_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made = Supervisor(settings(tmp_path), ("a",), {}, allow_chaos=False)
    with monkeypatch.context() as patch:
        patch.setattr(state, "replace_file", full)
        assert not made._write_state()
    assert made._write_state() and not made._write_state()
    written = read_state(tmp_path)
    assert written is not None and written["supervisor"]["pid"] == os.getpid()


def test_each_process_has_a_link_of_its_own_to_each_site_where_chaos_is_allowed(
    tmp_path: Path, ended: queue.SimpleQueue[tuple[str, int]]
) -> None:
    runner = ProcessRunner(settings(tmp_path), True, lambda name, code: ended.put((name, code)))
    program = "import os; print(os.environ.get('BOREAL_PROXIES'), os.environ.get('BOREAL_STREAM_PROXIES'), sep='\\n')"
    for name, kind in (("node.q.r0", "node"), ("node.q.r1", "node"), ("node.q.r0", "node"), ("redis", "redis")):
        runner.start(Child(name, kind, None, (sys.executable, "-c", program), streams=("jfk",)))
        assert ended.get(timeout=PATIENCE_S) == (name, 0)
        runner.forget(name)
    *first, site, stream = map(json.loads, (tmp_path / "logs" / "node.q.r0.log").read_text().splitlines())
    other = list(map(json.loads, (tmp_path / "logs" / "node.q.r1.log").read_text().splitlines()))
    assert site["a"].startswith("socks5://127.0.0.1:") and stream["jfk"].startswith("socks5://127.0.0.1:")
    assert first == [site, stream]
    assert len({each["a"] for each in (site, other[0])} | {each["jfk"] for each in (stream, other[1])}) == 4
    assert (tmp_path / "logs" / "redis.log").read_text() == "None\nNone\n"
    runner.close()


def test_a_cut_of_what_was_never_started_here_cuts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused query's source, for example: the supervisor ends with all of the stack if it fails at that."""
    runner = ProcessRunner(settings(tmp_path), True, lambda name, code: None)
    monkeypatch.setattr(chaos.time, "sleep", lambda seconds: runner.turn_faults())
    assert request_fault(tmp_path, parse_fault_at_once("cut jfk for 5s"), ["source.q.jfk"])
    runner.close()


def test_a_child_finds_our_packages_whatever_the_current_directory_holds(
    runner: ProcessRunner, ended: queue.SimpleQueue[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both by `python -m`, which puts that directory first, and by an empty entry of PYTHONPATH, which means it too."""
    monkeypatch.chdir(make_foreign_packages(tmp_path / "application"))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", f":{os.environ.get('PYTHONPATH', '')}")
    for name in [name for name in os.environ if name.startswith("BOREAL_")]:
        monkeypatch.delenv(name)
    runner.start(MONITOR)
    assert ended.get(timeout=PATIENCE_S) == ("monitor", 1)
    log = (tmp_path / "logs" / "monitor.log").read_text()
    assert "BOREAL_SITES" in log and "the user has a package" not in log, log


EGRESS = Child("egress.q.z", "egress", "q", (sys.executable, "-m", "services.egress", "q", "z"))


def test_a_spare_becomes_the_next_process_of_a_query_and_no_other(
    ended: queue.SimpleQueue[tuple[str, int]],
    children: Callable[[], list[psutil.Process]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BOREAL_SITES__A__BOOTSTRAP", "127.0.0.1:1")
    runner = ProcessRunner(settings(tmp_path), True, lambda name, code: ended.put((name, code)))
    runner.keep_spare()
    runner.keep_spare()
    [spare] = children()
    runner.start(Child("monitor", "monitor", None, SLEEP))
    assert runner.pid("monitor") != spare.pid
    runner.start(EGRESS)
    assert runner.pid(EGRESS.name) == spare.pid
    assert runner.created(EGRESS.name) == pytest.approx(state.created(spare))
    assert ended.get(timeout=PATIENCE_S) == (EGRESS.name, 1)
    log = (tmp_path / "logs" / f"{EGRESS.name}.log").read_text()
    assert "ERROR egress.q.z boreal.process: egress.q.z failed" in log
    assert "Unable to bootstrap from 127.0.0.1:1" in log
    assert (tmp_path / "logs" / "spare.log").read_text() == ""
    runner.end("monitor", signal.SIGKILL)
    assert ended.get(timeout=PATIENCE_S) == ("monitor", -9)
    runner.close()
    assert children() == []


def test_a_spare_becomes_the_next_worker_which_hears_what_was_said_meanwhile(
    children: Callable[[], list[psutil.Process]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOREAL_SITES__A__BOOTSTRAP", "127.0.0.1:1")
    ended: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    runner = ProcessRunner(settings(tmp_path), False, lambda name, code: ended.put((name, code)), workers=1)
    runner.keep_spare()
    [spare] = children()
    # All of it is said before the spare has imported anything. The record lacks its query, so that the role fails at once.
    for name in ("egress.q.z", "egress.other.z"):
        runner.start(Child(name, "egress", "q", EGRESS.command, record=QueryRecord("q", {}, 1)))
        assert runner.pid(name) == spare.pid
    assert children() == [spare]
    assert {ended.get(timeout=PATIENCE_S) for _ in range(2)} == {("egress.q.z", 1), ("egress.other.z", 1)}
    assert "egress.q.z failed" in (tmp_path / "logs" / "worker.0.log").read_text()
    runner.close()
    assert children() == []


def test_without_a_spare_or_with_a_dead_one_a_process_is_started_as_ever(
    ended: queue.SimpleQueue[tuple[str, int]], children: Callable[[], list[psutil.Process]], tmp_path: Path
) -> None:
    runner = ProcessRunner(settings(tmp_path), False, lambda name, code: ended.put((name, code)))
    runner.start(EGRESS)
    assert ended.get(timeout=PATIENCE_S) == (EGRESS.name, 1)
    runner.forget(EGRESS.name)
    runner.keep_spare()
    [spare] = children()
    spare.kill()
    wait_until(lambda: spare.status() == psutil.STATUS_ZOMBIE, "it has died")
    runner.start(EGRESS)
    assert ended.get(timeout=PATIENCE_S) == (EGRESS.name, 1)
    runner.keep_spare()
    runner.close()
    assert children() == []


def test_a_pid_that_has_been_given_to_another_process_is_not_taken_for_it() -> None:
    me = identity(os.getpid())
    assert living(me) is not None
    assert living({**me, "created": me["created"] - 60}) is None
    assert living({"pid": None, "created": None}) is None


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere the time of day is the kernel's own")
def test_a_process_is_known_though_the_clock_was_set_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    me, began = identity(os.getpid()), psutil.boot_time()
    for where in (psutil, psutil._pslinux):
        monkeypatch.setattr(where, "boot_time", lambda: began + 3_600)
    assert living(me) is not None


def test_a_directory_has_one_supervisor(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(UserError, match="another supervisor"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass
