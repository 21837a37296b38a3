"""What the stack's commands say of a change."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaTimeoutError

from boreal.model.errors import UserError
from boreal.query.spec import load_query
from boreal_cli import main, stack, tail
from deployment.query_record import QueryRecord
from deployment.status_fields import SHOWN_QUERY
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.stack.operations import Liveness
from tests.described import assert_described
from tests.harness import query_of


class PausedOperations:
    """The operations of an installation whose only query is paused."""

    def set(self, name: str, changes: dict[str, str]) -> QueryRecord:
        return QueryRecord(name, load_query(query_of()).changed(**changes).dump(), 2, paused=True)

    def liveness(self, record: QueryRecord) -> Liveness:
        return Liveness(False, (), {}, (), None)

    def close(self) -> None:
        pass


def test_a_paused_query_that_is_changed_is_said_to_be_paused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stack, "_query_operations", lambda data, as_json: PausedOperations())
    monkeypatch.setattr(stack, "LIVE_WITHIN_S", 0.0)
    assert main(["query", "set", "q", "delay_threshold=1s"]) == 0
    assert capsys.readouterr() == ("q is paused, revision 2\n", "")
    assert main(["query", "set", "q", "delay_threshold=1s", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["paused"], said["live"], said["problem"]) == (True, False, None)


def test_a_query_that_this_version_cannot_read_is_listed_among_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = load_query(query_of(policy="delay/suspend", engine=["native", "spark"])).dump()
    records = {name: QueryRecord(name, {**spec, **more}, 1) for name, more in {"a": {}, "b": {"of_a_later_version": 1}}.items()}
    operations = SimpleNamespace(queries=lambda: records, close=lambda: None)
    monkeypatch.setattr(stack, "_query_operations", lambda data, as_json: operations)
    assert main(["query", "list", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["queries"]
    assert first == {
        "name": "a", "revision": 1, "version": 1, "paused": False, "delay_threshold": "1s", "reconcile": "checkpoint_redo",
        "policy": "delay/suspend", "replicas": 2, "engine": ["native", "spark"],
    }  # fmt: skip
    assert second == {**first, "name": "b"}


def test_all_that_a_query_is_shown_with_is_described(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = QueryRecord("q", load_query(query_of()).dump(), 1)
    live = Liveness(True, (), {"main.r0.0": "STABLE"}, ("a",), None)
    letters: dict[str, object] = {"rows": 12, "lag_records": 3, "lag_ms": 700.0, "dlq": 5, "dlq_per_minute": 2, "coerced": 8}
    letters["last_refusal"] = "column n: no time"
    answers = {
        "state": "STABLE", "x_ms": 3_000.0, "delay_ms": {"p50": 30.0, "p99": 61.0, "max": 70.0}, "violations": 4,
        "tentative_share": 0.0312, "resources": {"memory_bytes": 250_000_000, "cores": 0.314}, "frozen": ["node.q.r1"],
        "slo": {"results": {"budget_left": 0.75}, "time": {"budget_left": 0.5}},
        "records_wait_for": "schema registry main at http://there",
    }  # fmt: skip
    waits = {"waits_for": "schema registry main", "waits_since_ms": 1.0}
    streams = {"a": {"state": "live", **letters, **waits}}
    evolution = {"state": "building", "version": 2, "from": "earliest", "at": None, "waits_for": "results"}
    operations = SimpleNamespace(
        query=lambda name: record, liveness=lambda record: live, streams=lambda name: streams, close=lambda: None,
        evolution=lambda record: evolution, answers=lambda name: answers,
    )
    monkeypatch.setattr(stack, "_query_operations", lambda data, as_json: operations)
    assert main(["query", "show", "q", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("spec") == record.spec
    parts = {"delay_ms", "slo", "resources"}
    assert_described({key: value for key, value in shown.items() if key not in parts}, SHOWN_QUERY, may_lack={"spec", *parts})
    assert {field: shown[field] for field in answers} == answers
    assert shown["streams"] == streams
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["query", "show", "q"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a live 12 3 for 0.7 s 5 (2/min) 8 column n: no time" in said
    assert "q STABLE 3,000 ms 30 ms 61 ms 70 ms 4 3.12% 250 MB 0.31 50%" in said
    assert "stopped by a signal: node.q.r1" in said
    assert "version 1 is in charge, version 2 beside it: building; waits for results" in said
    assert "q.records waits for schema registry main at http://there" in said
    # Nothing is known of how it answers, as while the monitor is silent.
    monkeypatch.setattr(operations, "answers", lambda name: dict.fromkeys(answers))
    assert main(["query", "show", "q"]) == 0
    said = capsys.readouterr().out
    assert "q.records" not in said and "tentative" not in said and "stopped" not in said


class ClosedPipe(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_whoever_stops_reading_what_tail_prints_hears_nothing_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """`boreal tail q --json | head`."""
    settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")})
    operations = SimpleNamespace(settings=settings, home=None, query=lambda name: None, close=lambda: None)
    monkeypatch.setattr(stack, "_operations", lambda data: operations)
    monkeypatch.setattr(tail, "stable_rows", lambda cluster, topic: iter([{"n": 1}]))
    with monkeypatch.context() as patched, pytest.raises(BrokenPipeError):
        patched.setattr(sys, "stdout", ClosedPipe())
        stack.tail("q", stable=True, as_json=True)

    def cut_off(cluster: object, topic: str) -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise KafkaTimeoutError

    monkeypatch.setattr(tail, "stable_rows", cut_off)
    with pytest.raises(UserError, match="Kafka"):
        stack.tail("q", stable=True, as_json=True)
