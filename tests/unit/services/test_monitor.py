"""The monitor's shell: an earlier life's report that it cannot make sense of costs only that query's journal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from kafka.consumer.fetcher import ConsumerRecord

from boreal.model.errors import CorruptError
from boreal.model.frames import LogId
from boreal.query.spec import load_query
from deployment.evolution import evolve
from deployment.layout import make_layout
from deployment.query_record import QueryRecord
from deployment.shared_sources import STATE
from deployment.watched_query import WatchedQuery
from reconcile.events import InstanceId
from services.hosting.process import now_us
from services.kafka.clusters import Cluster
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings
from services.monitor import monitor as monitor_module
from services.monitor import reports as reports_module
from services.monitor.monitor import CLAIM_RETRY_US, TICK_US, MonitorProcess
from services.monitor.reports import QueryReports, Report, ReportWriter
from services.storage.kafka_log import KafkaLogStore
from tests.harness import query_of


class Said:
    """The names of the queries that were reported on."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def publish(self, query: str, report: Report | None) -> None:
        self.names.append(query)


def test_a_journal_that_is_not_understood_begins_anew_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    monitor, said = MonitorProcess(ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")})), Said()
    monitor._reports = cast(ReportWriter, said)
    for name in ("p", "q"):
        monitor.queries[name] = WatchedQuery(QueryRecord(name, query_of(name=name), 1), ("a",), 0)
    monitor._earlier = {"p": {"v": 1, "journal": [{"at_ms": "never"}], "seen": []}}
    monitor._tick()
    assert said.names == ["p", "q"]
    assert "the journal of p cannot be read" in caplog.text


def test_logs_of_sources_are_trimmed_no_further_than_all_versions_claim_that_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the control topic that has the name of these sources; other logs by that of their version."""
    monitor = MonitorProcess(ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")}))
    sent: list[tuple[str, dict[str, int]]] = []

    def control(name: str) -> object:
        return SimpleNamespace(send=lambda items: sent.extend((name, dict(item["trim"])) for item in items))

    monkeypatch.setattr(monitor, "_control", control)
    spec = {**query_of({"out": {"filter": "a", "where": "v > 0"}}, "out"), "replicas": 1}
    running = QueryRecord("q", load_query(spec).dump(), 1)
    evolved = evolve(running, load_query({**spec, "operators": {"out": {"filter": "a", "where": "v > 1"}}}), STATE)
    for run in evolved.runs():
        monitor.queries[run.name] = WatchedQuery(run, ("a",), now_us())
    main, egress = InstanceId("main", "r0", 0), InstanceId("egress", "r0", 0)
    for name, first_id in (("q", 9), ("q-2", 5)):
        for who, key in ((main, "a/0"), (egress, "out/0")):
            monitor.queries[name].claims.acknowledge(who, [(key, first_id)], now_us())
        monitor._tick()
    assert sent == [("q", {"out/0": 9}), ("q", {"a/0": 5}), ("q", {"a/0": 5}), ("q-2", {"out/0": 5})]


def claiming() -> QueryRecord:
    """A version whose state depends on all rows ever is to begin with that of another one."""
    first = {"first": {"distinct": "a", "on": ["k"]}}
    shown = {**first, "shown": {"map": "first", "select": {"k": "k"}}}
    running, new = (load_query(query_of(each, list(each)[-1], ("a",))) for each in (first, shown))
    return evolve(QueryRecord("q", running.dump(), 1), new, STATE)


def test_what_a_version_waits_for_is_said_while_redis_is_away_which_is_not_asked_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sites, now = {"a": KafkaSettings(bootstrap="127.0.0.1:1")}, [now_us()]
    monitor = MonitorProcess(ServiceSettings(sites=sites, redis=RedisSettings(url="redis://127.0.0.1:1/0")))
    asked: list[int] = []

    def begin(write: Callable[[QueryRecord], None], record: QueryRecord) -> None:
        asked.append(now[0])
        write(record)

    monkeypatch.setattr(monitor_module, "now_us", lambda: now[0])
    monkeypatch.setattr(monitor, "_begin_writing", begin)
    record = claiming()
    monitor.queries = {run.name: WatchedQuery(run, ("a",), now[0]) for run in record.runs()}
    for _ in range(2 * CLAIM_RETRY_US // TICK_US):
        monitor._advance("q", record)
        now[0] += TICK_US
    assert [at - asked[0] for at in asked] == [0, CLAIM_RETRY_US]
    evolution = monitor.queries["q"].evolution
    assert evolution is not None and evolution["waits_for"].startswith("Redis: ")


def test_nothing_is_stored_for_a_version_of_a_paused_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be paused because it is being deleted, with all that is stored."""
    monitor = MonitorProcess(ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")}))
    asked: list[int] = []
    monkeypatch.setattr(monitor, "_begin_writing", lambda _, record: asked.append(record.revision))
    for record in (claiming(), replace(claiming(), paused=True, revision=9)):
        monitor.queries = {run.name: WatchedQuery(run, ("a",), now_us()) for run in record.runs()}
        monitor._advance("q", record)
    assert asked == [claiming().revision]


def test_a_report_of_another_version_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "TopicFollower", lambda *what, **how: SimpleNamespace(is_current=threading.Event()))
    reports = QueryReports(cast(Cluster, None))

    def take(name: str, report: Report) -> None:
        reports._take(cast(ConsumerRecord, SimpleNamespace(key=b"query:" + name.encode(), value=json.dumps(report).encode())))

    take("p", {"v": 1, "journal": []})
    with pytest.raises(ValueError, match="version 2"):
        take("q", {"v": 2, "journal": []})
    assert reports.newest() == {"p": {"v": 1, "journal": []}}


def test_a_log_that_is_damaged_is_not_joined_and_the_query_that_would_reads_the_topic(caplog: pytest.LogCaptureFixture) -> None:
    layout = make_layout(load_query(query_of(engine="native")), ("a",))
    [stream, *_] = layout.plan.sources

    def look(logs: Sequence[LogId], first_id: int) -> bool:
        raise CorruptError("a record is damaged")

    for is_held, holds in ((look, False), (lambda logs, first_id: True, True), (lambda logs, first_id: False, False)):
        logs = cast(KafkaLogStore, SimpleNamespace(is_held=is_held))
        assert monitor_module._holds_all(logs, layout, stream.operator) is holds
    assert "a record is damaged" in caplog.text
