"""The local stack, as its supervisor's state has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boreal.cli.stack_tables import show_status
from services.stack import launcher
from services.stack.launcher import LocalStack


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
        "query q cannot run: has no such operator",
        "redis is ready",
        "monitor is ready",
    ]
    assert list(left) == []


def test_the_status_says_why_a_query_cannot_run(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states_are(monkeypatch, state("kafka.a", problem="has no such operator"))
    status = stack.status()
    assert status["problems"] == {"q": "has no such operator"}
    show_status(status)
    shown = capsys.readouterr().out
    assert "query q cannot run: has no such operator\n" in shown and "not ready; queries: q" in shown
