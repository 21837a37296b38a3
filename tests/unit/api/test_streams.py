"""Rows over HTTP, faults and metrics, on an installation in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from api.faults import resolve
from api.gate import ROWS_BYTES_MAX
from api.installation import ConflictError, NotFoundError
from api.models import EXAMPLE_SPEC
from api.tokens import Role
from boreal.model.errors import UserError
from boreal.query.spec import load_query
from deployment.query_record import QueryRecord
from tests.unit.api.memory import MemoryInstallation
from tests.unit.api.test_queries import QUERIES, problem

ROW = {"departed_at": "2013-01-01T05:15:00Z", "carrier": "AA", "dep_delay": 22.0}
TUPLES = "/api/v1/streams/jfk/tuples"
SPEC = load_query(EXAMPLE_SPEC).dump()


def arrow() -> bytes:
    table = pa.table({name: [value] for name, value in ROW.items()})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("content", "kind", "count"),
    [
        (json.dumps(ROW), "application/json", 1),
        (json.dumps([ROW, ROW]), "application/json; charset=utf-8", 2),
        (f"{json.dumps(ROW)}\n\n{json.dumps(ROW)}\n", "application/x-ndjson", 2),
        (arrow(), "application/vnd.apache.arrow.stream", 1),
        ("[]", "application/json", 0),
    ],
)
def test_rows_are_taken_as_json_json_lines_and_arrow(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation, content: str | bytes, kind: str, count: int
) -> None:
    for name in ("jfk", "departures.jfk"):
        answer = admin.post(f"/api/v1/streams/{name}/tuples", content=content, headers={"Content-Type": kind})
        assert answer.status_code == 202 and answer.json() == {"accepted": count, "refused": 0, "reasons": []}
    assert [json.loads(record) for _, record in installation.appended] == [ROW] * 2 * count


def test_rows_that_are_no_tuples_are_refused_and_the_others_taken(admin: TestClient, query: dict[str, Any]) -> None:
    answer = admin.post(TUPLES, json=[ROW, {**ROW, "departed_at": "soon"}, "row", {**ROW, "dep_delay": None}])
    assert answer.status_code == 202
    found = answer.json()
    assert (found["accepted"], found["refused"], [each["row"] for each in found["reasons"]]) == (2, 2, [1, 2])


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": 1} {"b": 2}'], ids=range(5))
@pytest.mark.parametrize("kind", ["application/json", "application/vnd.apache.arrow.stream"])
def test_a_body_that_cannot_be_read_is_refused(admin: TestClient, query: dict[str, Any], content: bytes, kind: str) -> None:
    problem(admin.post(TUPLES, content=content, headers={"Content-Type": kind}), 422, "body")


def test_a_stream_that_several_queries_have_must_be_named_with_its_query(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation
) -> None:
    problem(admin.post("/api/v1/streams/lga/tuples", json=ROW), 404, "stream")
    problem(admin.post("/api/v1/streams/a%2Fb/tuples", json=ROW), 404)
    admin.post(QUERIES, json={**EXAMPLE_SPEC, "name": "same"})
    assert admin.post(TUPLES, json=ROW).status_code == 202, "the same topic feeds both"
    other = {**EXAMPLE_SPEC["streams"]["jfk"], "topic": "elsewhere"}
    admin.post(QUERIES, json={**EXAMPLE_SPEC, "name": "other", "streams": {"jfk": other}})
    assert "departures.jfk, other.jfk, same.jfk" in problem(admin.post(TUPLES, json=ROW), 409, "stream")["fix"]
    assert admin.post("/api/v1/streams/other.jfk/tuples", json=ROW).status_code == 202
    assert installation.appended[-1][0].log == "elsewhere"


def test_too_much_is_asked_to_come_again(admin: TestClient, query: dict[str, Any], installation: MemoryInstallation) -> None:
    installation.is_busy = True
    answer = admin.post(TUPLES, json=ROW)
    assert problem(answer, 429) and answer.headers["retry-after"] == "1"
    problem(admin.post(TUPLES, content=b" " * (ROWS_BYTES_MAX + 1)), 413, "body")


@pytest.mark.parametrize(
    ("text", "query", "stream", "replica"),
    [
        ("cut jfk for 5s", "departures", "jfk", ""),
        ("cut departures.jfk for 5s", "departures", "jfk", ""),
        ("slow jfk by 500ms for 2s", "departures", "jfk", ""),
        ("cut main.r0 for 5s", "departures", "", "r0"),
        ("freeze departures.main.r1 for 1s", "departures", "", "r1"),
        ("crash main.r0 for 250ms", "departures", "", "r0"),
    ],
)
def test_a_fault_finds_its_query(text: str, query: str, stream: str, replica: str) -> None:
    found = resolve(text, {"departures": QueryRecord("departures", SPEC, 1)})
    assert (found.query, found.fault.stream, found.fault.replica) == (query, stream, replica)
    assert resolve(found.text, {"departures": QueryRecord("departures", SPEC, 1)}) == found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", UserError), ("cut", UserError), ("cut jfk", UserError), ("stop jfk", UserError), ("cut jfk at 5s", UserError),
        ("cut lga for 5s", NotFoundError), ("cut main.r7 for 5s", NotFoundError), ("cut departures.lga for 5s", NotFoundError),
        ("cut jfk for soon", UserError), ("rm -rf / for 5s", UserError), ("cut x.y.z.w for 5s", UserError),
    ],
)  # fmt: skip
def test_a_fault_that_is_none_or_has_no_target_is_refused(text: str, error: type[UserError]) -> None:
    with pytest.raises(error) as refused:
        resolve(text, {"departures": QueryRecord("departures", SPEC, 1)})
    assert refused.value.field == "fault" and refused.value.fix


def test_a_fault_that_several_queries_could_mean_is_refused_with_the_choices() -> None:
    records = {name: QueryRecord(name, {**SPEC, "name": name}, 1) for name in ("a", "b")}
    with pytest.raises(ConflictError) as refused:
        resolve("cut jfk for 5s", records)
    assert refused.value.fix == "write one of: cut a.jfk for 5s; cut b.jfk for 5s"


def test_chaos_has_its_own_role_and_must_be_allowed(
    client: TestClient, by: Callable[[Role], dict[str, str]], installation: MemoryInstallation
) -> None:
    body = {"fault": "cut jfk for 5s"}
    problem(client.post("/api/v1/chaos", json=body, headers=by(Role.ADMIN)), 403, "Authorization")
    answer = client.post("/api/v1/chaos", json=body, headers=by(Role.CHAOS))
    assert answer.status_code == 202 and answer.json()["fault"] == "cut jfk for 5s" and answer.json()["ends_at_ms"]
    problem(client.post("/api/v1/chaos", json={}, headers=by(Role.CHAOS)), 422, "fault")
    problem(client.post("/api/v1/chaos", json={**body, "now": 1}, headers=by(Role.CHAOS)), 422, "now")
    installation.allows_chaos = False
    answer = client.post("/api/v1/chaos", json=body, headers=by(Role.CHAOS))
    assert "--allow-chaos" in problem(answer, 403, "fault")["fix"]


def test_metrics_have_the_names_of_the_design_and_base_units(admin: TestClient, query: dict[str, Any]) -> None:
    answer = admin.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    assert 'boreal_delay_threshold_seconds{query="departures"} 3.0' in lines
    assert 'boreal_query_state{query="departures",state="STARTING"} 1.0' in lines
    for name in (
        "boreal_query_state", "boreal_output_tuples_total", "boreal_output_delay_seconds", "boreal_delay_threshold_seconds",
        "boreal_delay_violations_total", "boreal_tentative_outstanding", "boreal_last_stable_timestamp_seconds",
        "boreal_input_state", "boreal_reconciliation_seconds", "boreal_undone_tuples_total", "boreal_checkpoint_bytes",
        "boreal_buffer_tuples", "boreal_dlq_records_total",
    ):  # fmt: skip
        assert any(line.startswith(f"# TYPE {name.removesuffix('_total')}") for line in lines), name


def test_metrics_say_what_was_refused_last_by_its_kind_and_which_processes_are_frozen(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = installation.status("departures")
    [stream] = whole["inputs"]

    def lines(**said: Any) -> list[str]:
        status = {**whole, "frozen": ["node.departures.r0"], "inputs": [{**stream, **said}]}
        monkeypatch.setattr(installation, "statuses", lambda names: {"departures": status})
        return list(admin.get("/metrics").text.splitlines())

    found = lines(dlq=1, last_refusal="late by 3s, disorder allows 1s", coerced=7)
    assert 'boreal_frozen_processes{query="departures"} 1.0' in found
    assert 'boreal_input_coerced_values_total{query="departures",stream="jfk"} 7.0' in found
    told = 'boreal_input_last_refusal{kind="%s",query="departures",stream="jfk"} %.1f'
    assert all(told % (kind, kind == "late") in found for kind in ("late", "ahead", "malformed"))
    assert all(told % (kind, 0) in lines(dlq=0, last_refusal=None) for kind in ("late", "ahead", "malformed"))
    assert not any("last_refusal{" in line for line in lines(dlq=None, last_refusal=None)), "its source is not heard"


def test_who_reads_what_is_listed(admin: TestClient, query: dict[str, Any]) -> None:
    listed = admin.get("/api/v1/streams").json()["streams"]
    assert [(each["alike"], [f"{reader['query']}.{reader['stream']}" for reader in each["readers"]]) for each in listed] == [
        (True, ["departures.jfk"])
    ]
    assert listed[0]["readers"][0]["state"] == "starting"
    copies = [{**EXAMPLE_SPEC, "name": "alike"}, {**EXAMPLE_SPEC, "name": "other"}]
    [stream] = EXAMPLE_SPEC["streams"]
    copies[1]["streams"] = {stream: {**EXAMPLE_SPEC["streams"][stream], "disorder": "9s"}}
    for number, copy in enumerate(copies, 2):
        assert admin.post(QUERIES, json=copy).status_code == 201
        [same] = admin.get("/api/v1/streams").json()["streams"]
        assert len(same["readers"]) == number and same["alike"] == (number == 2)
