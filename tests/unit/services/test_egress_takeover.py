"""An egress that is to prepare a takeover: by the newest record, and also where Kafka does not answer at once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from kafka.errors import KafkaTimeoutError

from deployment.query_record import QueryRecord
from services.egress import egress as module
from services.egress.egress import EgressProcess
from services.hosting.connections import Connections
from tests.harness import query_of


def test_it_prepares_the_newest_takeover_when_all_records_are_known_and_kafka_answers_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PREPARE_RETRY_S", 0)
    record = QueryRecord("q", query_of(name="q"), 3)
    egress = object.__new__(EgressProcess)
    egress.query, egress._known = "q", record
    egress._heard = replace(record, revision=9)  # of a query of this name that was deleted
    tried: list[int] = []

    def await_current() -> None:
        egress._heard = record

    def prepare(wanted: QueryRecord) -> None:
        tried.append(wanted.revision)
        if len(tried) == 2:
            egress._heard = replace(record, revision=4)
        if len(tried) < 4:
            raise KafkaTimeoutError("Failed to get offsets")

    egress.connections = cast(Connections, SimpleNamespace(watch=SimpleNamespace(await_current=await_current)))
    monkeypatch.setattr(egress, "_prepare", prepare)
    egress._prepare_in_time()
    assert tried == [3, 3, 4, 4] and "is prepared again" in caplog.text
    monkeypatch.setattr(egress.connections.watch, "await_current", lambda: setattr(egress, "_heard", None))
    egress._prepare_in_time()
    assert len(tried) == 4, "the query is deleted"
