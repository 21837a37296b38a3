"""The monitor's shell: an earlier life's report that it cannot make sense of costs only that query's journal."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import cast

import pytest
from kafka.consumer.fetcher import ConsumerRecord

from deployment.query_record import QueryRecord
from deployment.watched_query import WatchedQuery
from services.kafka.clusters import Cluster
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.monitor import reports as reports_module
from services.monitor.monitor import Monitor
from services.monitor.reports import QueryReports, Report, ReportWriter
from tests.harness import query_of


class Said:
    """The names of the queries that were reported on."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def say(self, query: str, report: Report | None) -> None:
        self.names.append(query)


def test_a_journal_that_is_not_understood_begins_anew_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    monitor, said = Monitor(ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")})), Said()
    monitor._reports = cast(ReportWriter, said)
    for name in ("p", "q"):
        monitor.queries[name] = WatchedQuery(QueryRecord(name, query_of(name=name), 1), ("a",), 0)
    monitor._earlier = {"p": {"v": 1, "journal": [{"at_ms": "never"}], "seen": []}}
    monitor._tick()
    assert said.names == ["p", "q"]
    assert "the journal of p is not understood" in caplog.text


def test_a_report_of_another_version_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "TopicFollower", lambda *what: SimpleNamespace(is_current=threading.Event()))
    reports = QueryReports(cast(Cluster, None))

    def take(name: str, report: Report) -> None:
        reports._take(cast(ConsumerRecord, SimpleNamespace(key=b"query:" + name.encode(), value=json.dumps(report).encode())))

    take("p", {"v": 1, "journal": []})
    with pytest.raises(ValueError, match="version 2"):
        take("q", {"v": 2, "journal": []})
    assert reports.newest() == {"p": {"v": 1, "journal": []}}
