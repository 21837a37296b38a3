"""Placement records and the statuses of workers, as bytes and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployment.placement_record import (
    Assignment,
    PlacementRecord,
    PlacementUnreadable,
    RoleReport,
    WorkerReport,
    read_placement,
    worker_report,
)

RECORD = PlacementRecord("a", 17, "0.1.0", {"node.q.r0": Assignment("w", "id", 12, 3, "s/t")}, {"other": "why"})


def test_a_record_is_read_as_it_was_written() -> None:
    assert read_placement(RECORD.to_json(), "a") == RECORD


def test_a_worker_is_understood_as_it_reports() -> None:
    roles = {"node.q.r0": RoleReport(12, True), "source.q.s": RoleReport(3, False, 1)}
    report = WorkerReport("w", "id", "machine", "0.1.0", 17, roles, leaves=True)
    assert worker_report(json.loads(json.dumps(report.fields()))) == report


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "is damaged"),
        (b"\xff", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"v": 1}', "is damaged: KeyError('site')"),
        (RECORD.to_json().replace(b'"number":17', b'"number":"x"'), "is damaged"),
        (RECORD.to_json().replace(b'"start":12,', b""), "is damaged: KeyError('start')"),
        (RECORD.to_json().replace(b'"site":"a"', b'"site":"b"'), "it is of the site b"),
        (b'{"v": 2, "anything": 1}', "is of version 2, and this program reads version 1"),
    ],
)
def test_what_cannot_be_obeyed_says_why(value: bytes | None, why: str) -> None:
    with pytest.raises(PlacementUnreadable) as raised:
        read_placement(value, "a")
    assert why in str(raised.value)


@given(st.binary())
def test_bytes_of_any_kind_are_refused_and_break_nothing(value: bytes) -> None:
    with pytest.raises(PlacementUnreadable):
        read_placement(value, "a")
