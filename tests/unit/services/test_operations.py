"""How a query is, by what supervisors and processes say."""

from __future__ import annotations

from typing import Any

import pytest

from boreal.spec import load_query
from services.queries import QueryRecord
from services.settings import KafkaSettings, Settings
from services.stack.children import query_children
from services.stack.operations import Operations
from tests.harness import query_of


def record(revision: int, paused: bool = False) -> QueryRecord:
    return QueryRecord("q", load_query(query_of()).dump(), revision, paused)


@pytest.fixture
def operations() -> Operations:
    return Operations(Settings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")}))


def say(monkeypatch: pytest.MonkeyPatch, operations: Operations, **query: Any) -> None:
    """What the supervisor says of q; all that it needs runs, unless it is paused."""
    state = {"revision": 1, "paused": False, "ready": True, "problem": None, **query}
    running = [] if state["paused"] else [child.name for child in query_children(record(1), ("a",), ("a",))]
    fields = {"kind": "node", "query": "q", "pid": 1, "state": "running", "restarts": 0}
    supervisor = {"ready": state["ready"], "processes": [{"name": name, **fields} for name in running], "queries": {"q": state}}
    monkeypatch.setattr(operations, "statuses", lambda: {"supervisor": supervisor})
    monkeypatch.setattr(operations, "queries", lambda: {"q": record(1)})


def test_a_query_is_live_once_all_that_it_needs_runs_as_its_record_says(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, operations)
    assert operations.liveness(record(1)).is_ready
    assert not operations.liveness(record(2)).is_ready


def test_a_paused_query_is_not_live_and_waits_for_nothing(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, operations, paused=True)
    liveness = operations.liveness(record(1, paused=True))
    assert not liveness.is_ready and not liveness.is_stable and liveness.waits_for == ()


def test_a_problem_of_an_older_revision_is_none_of_the_newer_one(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, operations, ready=False, problem="has no such operator")
    assert operations.liveness(record(1)).problem == "has no such operator"
    assert operations.liveness(record(2)).problem is None


def test_the_status_says_why_a_query_cannot_run(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, operations, ready=False, problem="has no such operator")
    status = operations.status()
    assert status["problems"] == {"q": "has no such operator"} and not status["ready"]
    say(monkeypatch, operations)
    assert operations.status()["problems"] == {}
