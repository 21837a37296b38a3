"""The local stack, as its supervisor's state has it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal_cli import main
from boreal_cli.stack_tables import show_status
from deployment.status_fields import STACK
from services.stack import description, launcher
from services.stack.launcher import LocalStack, default_workers
from tests.described import SOMETIMES, assert_described


@pytest.fixture
def stack(tmp_path: Path) -> LocalStack:
    made = LocalStack(tmp_path)
    made.describe(1, None)
    return made


def state(*running: str, problem: str | None = None, **others: str) -> dict[str, Any]:
    """Of a stack with one query, of which these processes run; others: the states of others, by name."""
    states = {**dict.fromkeys(running, "running"), **others}
    processes = [
        {"name": name, "kind": "monitor", "query": None, "pid": 1, "state": is_, "restarts": 0} for name, is_ in states.items()
    ]
    query = {"revision": 1, "paused": False, "ready": False, "problem": problem}
    return {"ready": False, "processes": processes, "queries": {"q": query}}


def states_are(monkeypatch: pytest.MonkeyPatch, *states: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One after the other, as the stack is looked at."""
    left = iter(states)
    monkeypatch.setattr(LocalStack, "state", lambda stack: next(left))
    monkeypatch.setattr(launcher, "_LOOK_S", 0)
    return left


def test_a_query_that_cannot_run_is_told_of_once_and_not_waited_for(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    left = states_are(
        monkeypatch,
        state("kafka.a", problem="has no such operator"),
        state("kafka.a", "redis", monitor="starting", problem="has no such operator"),
        state("kafka.a", "redis", "monitor", problem="has no such operator"),
    )
    said: list[str] = []
    stack._await_ready(said.append)
    assert said == [
        "kafka.a is ready",
        "query q does not run in full: has no such operator",
        "redis is ready",
        "monitor is ready",
    ]
    assert list(left) == []


def test_the_status_says_why_a_query_cannot_run(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states_are(monkeypatch, state("kafka.a", problem="has no such operator"))
    status = stack.status()
    assert_described(status, STACK, may_lack=SOMETIMES)
    assert status["problems"] == {"q": "has no such operator"}
    show_status(status)
    shown = capsys.readouterr().out
    assert "query q does not run in full: has no such operator\n" in shown and "not ready; queries: q" in shown


def test_a_command_that_finds_no_stack_names_the_directory_and_those_that_are_up_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`boreal up --data D`, and then a command without --data."""
    nothing, there = tmp_path / "nothing", tmp_path / "there"
    for name in [name for name in os.environ if name.startswith("BOREAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BOREAL_DATA", str(nothing))
    for up, fix in (([], "run boreal up"), ([there], f"run boreal up, or give --data {there}, where a stack is up")):
        monkeypatch.setattr(description, "stacks_up", lambda up=up: up)
        with pytest.raises(UserError, match="no stack is up there") as refused:
            launcher.reach(None)
        assert refused.value.value == str(nothing) and refused.value.fix.startswith(f"{fix}; or set BOREAL_SITES")
        assert main(["status"]) == 1
        assert capsys.readouterr().out == f"nothing is up in {nothing}; {fix}\n"
        assert main(["down"]) == 0
        ended = "".join(f"a stack is up in {data}: boreal down --data {data}\n" for data in up)
        assert capsys.readouterr().out == f"nothing was up in {nothing}\n{ended}"


def test_stacks_that_are_up_are_found_by_their_supervisors(tmp_path: Path) -> None:
    program = tmp_path / "services" / "stack" / "supervisor.py"
    program.parent.mkdir(parents=True)
    program.write_text("import sys; print('ready', flush=True); sys.stdin.read()")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "BOREAL_DATA": str(tmp_path / "data")}
    command = description.supervisor_command(allow_chaos=True)
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert tmp_path / "data" in description.stacks_up()
        process.communicate()
    assert tmp_path / "data" not in description.stacks_up()


def test_the_status_warns_of_a_clock_that_eats_x(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states_are(monkeypatch, state("kafka.a"))
    show_status({**stack.status(), "clock": [{"process": "node.q.r0", "skew_ms": 1_800.0, "text": "its clock is behind"}]})
    assert "clock of node.q.r0: its clock is behind\n" in capsys.readouterr().out


def test_the_status_says_how_far_sources_are_and_what_they_did_not_believe(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    states_are(monkeypatch, state("kafka.a"))
    counts = {"rows": 1_234, "lag_records": 5, "dlq": 9, "dlq_per_minute": 6, "ahead": 7, "clamped": 0, "coerced": 6}
    facts = {"last_boundary": "2026-01-01T00:00:00.123456Z", **counts}
    unknown = dict.fromkeys(facts)
    sources = {
        "q.a": {"state": "spooling", **facts, "spooled_bytes": 3_000_000},
        "q.b": {"state": None, **unknown, "spooled_bytes": None},
    }
    sources["q.a"]["last_refusal"] = "column at: no time"
    show_status({**stack.status(), "sources": sources})
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["q.a", "spooling", "3", "MB", "2026-01-01T00:00:00", "1,234", "5", "9", "(6/min)", "7", "0", "6"] in lines
    assert ["q.b", *["-"] * 8] in lines
    assert "last refusal of q.a: column at: no time\n" in out


def test_the_status_says_how_queries_answer_and_what_they_take(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    states_are(monkeypatch, state("kafka.a"))
    delays = {"p50": 30.0, "p99": 61.0, "max": None}
    facts = {"state": "STABLE", "x_ms": 3_000.0, "delay_ms": delays, "violations": 4}
    slo = {"results": {"budget_left": 0.75}, "time": {"budget_left": 0.5}}
    answers = {
        "q": {**facts, "tentative_share": 0.0312, "resources": {"memory_bytes": 250_000_000, "cores": 0.314}},
        "new": {**facts, "tentative_share": None, "resources": None, "records_wait_for": "schema registry main"},
    }
    status = stack.status()
    show_status({**status, "answers": answers})
    out = capsys.readouterr().out
    assert "new.records waits for schema registry main\n" in out and "q.records" not in out
    lines = [line.split() for line in out.splitlines()]
    whole = ["3,000", "ms", "30", "ms", "61", "ms", "-", "4"]
    assert ["q", "STABLE", *whole, "3.12%", "250", "MB", "0.31"] in lines
    assert ["new", "STABLE", *whole, "-", "-", "-"] in lines and "budget" not in out
    show_status({**status, "answers": {**answers, "kept": {**answers["q"], "slo": slo}}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["kept", "STABLE", *whole, "3.12%", "250", "MB", "0.31", "50%"] in lines
    assert ["new", "STABLE", *whole, "-", "-", "-", "-"] in lines


def test_a_directory_that_cannot_hold_a_stack_is_named(tmp_path: Path) -> None:
    (tmp_path / "kafka").touch()
    with pytest.raises(UserError, match="cannot be written") as refused:
        LocalStack(tmp_path).describe(1, None)
    assert (refused.value.field, refused.value.value) == ("--data", str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_description_that_is_damaged_is_named(stack: LocalStack, text: str) -> None:
    (stack.data / "stack.json").write_text(text)
    with pytest.raises(UserError, match=r"stack\.json that is damaged"):
        stack.describe(1, None)


def test_a_second_up_begins_when_the_first_is_through(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it could not tell what the first has started from what a dead supervisor left."""
    has_looked = threading.Event()

    def look(stack: LocalStack) -> dict[str, Any]:
        has_looked.set()
        return state("kafka.a") | {"ready": True}

    monkeypatch.setattr(LocalStack, "state", look)
    said: list[str] = []
    second = threading.Thread(target=lambda: said.append(f"{stack.up(None, None, False, said.append)}"))
    with stack._one_at_a_time(said.append):
        second.start()
        assert not has_looked.wait(0.2)
    second.join(20)
    assert said == ["waiting for another boreal up", "kafka.a is ready", "False"]


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (2, 2), (4, 4), (64, 8)])
def test_workers_are_as_many_as_cores_within_bounds(monkeypatch: pytest.MonkeyPatch, cores: int, workers: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert default_workers(allow_chaos=False) == workers
    assert default_workers(allow_chaos=True) == 0
