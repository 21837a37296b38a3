"""An egress that is to prepare a takeover while Kafka does not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kafka.errors import KafkaTimeoutError

from deployment.query_record import QueryRecord
from services.egress import egress as module
from services.egress.egress import EgressProcess
from tests.harness import query_of


def test_it_prepares_the_takeover_when_kafka_answers_again_unless_the_record_has_changed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PREPARE_RETRY_S", 0)
    record = QueryRecord("q", query_of(name="q"), 3)
    egress = object.__new__(EgressProcess)
    egress.query, egress._known = "q", record
    tried: list[int] = []

    def prepare(wanted: QueryRecord) -> None:
        tried.append(wanted.revision)
        if len(tried) < 3:
            raise KafkaTimeoutError("Failed to get offsets")
        if wanted.revision == 4:
            egress._known = replace(record, revision=5)
            raise KafkaTimeoutError("Failed to get offsets")

    monkeypatch.setattr(egress, "_prepare", prepare)
    egress._prepare_in_time(record)
    assert tried == [3, 3, 3] and "is prepared again" in caplog.text
    egress._prepare_in_time(replace(record, revision=4))
    assert tried == [3, 3, 3, 4], "another record is there by now"
