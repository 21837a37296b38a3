"""Queries over REST, on an installation in memory."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from api.models import EXAMPLE_SPEC
from boreal.query.spec import load_query
from boreal.query.sql_writing import write_sql
from deployment.query_changes import SETTABLE
from deployment.query_record import QueryRecord
from tests.thoroughness import every
from tests.unit.api.memory import NOW_MS, MemoryInstallation

QUERIES = "/api/v1/queries"
DEPARTURES = f"{QUERIES}/departures"


def problem(answer: Any, status: int, field: str | None = None) -> dict[str, Any]:
    """The problem document of a refusal."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["status"] == status and found["title"] and found["detail"] and found["fix"]
    assert {"type", "title", "status", "detail", "field", "value", "fix"} <= found.keys()
    if field is not None:
        assert found["field"] == field
    return found


def test_put_creates_and_then_replaces(admin: TestClient) -> None:
    made = admin.put(DEPARTURES, json=EXAMPLE_SPEC)
    assert made.status_code == 201 and made.headers["location"] == DEPARTURES
    assert made.headers["etag"] == '"departures-1"'
    assert (made.json()["revision"], made.json()["x_ms"], made.json()["delay_threshold"]) == (1, 3000, "3s")
    again = admin.put(DEPARTURES, json=EXAMPLE_SPEC)
    assert again.status_code == 200 and again.json()["revision"] == 1
    other = admin.put(DEPARTURES, json={**EXAMPLE_SPEC, "delay_threshold": "1s"})
    assert other.status_code == 200 and other.json()["revision"] == 2
    assert admin.get(DEPARTURES).json()["spec"]["delay_threshold"] == "1s"


def test_the_body_is_the_query_file_in_json_or_yaml_with_or_without_its_name(admin: TestClient) -> None:
    nameless = {key: value for key, value in EXAMPLE_SPEC.items() if key != "name"}
    made = admin.put(DEPARTURES, content=yaml.safe_dump(nameless), headers={"Content-Type": "application/yaml"})
    assert made.status_code == 201 and made.json()["name"] == "departures"
    problem(admin.put(f"{QUERIES}/arrivals", json=EXAMPLE_SPEC), 422, "name")


def test_the_body_may_be_sql_and_its_refusals_say_where(admin: TestClient) -> None:
    sql = {"Content-Type": "application/sql"}
    made = admin.put(DEPARTURES, content=write_sql(load_query(EXAMPLE_SPEC)), headers=sql)
    assert made.status_code == 201
    again = admin.put(DEPARTURES, json=EXAMPLE_SPEC)
    assert again.status_code == 200 and again.json()["revision"] == 1
    wrong = "CREATE STREAM s (at timestamp) WITH (time = 'at', topic = 's');\nCREATE QUERY q AS SELECT * FROM s LIMIT 1"
    assert "(line 2, column 35)" in problem(admin.post(QUERIES, content=wrong, headers=sql), 422)["detail"]
    problem(admin.post(QUERIES, content="name: q", headers=sql), 422, "body")


def test_post_creates_and_refuses_a_name_that_is_taken(admin: TestClient) -> None:
    made = admin.post(QUERIES, json=EXAMPLE_SPEC)
    assert made.status_code == 201 and made.headers["location"] == DEPARTURES
    assert "PUT" in problem(admin.post(QUERIES, json=EXAMPLE_SPEC), 409, "name")["fix"]


def test_all_are_listed_in_one_call_or_in_pages(admin: TestClient) -> None:
    for name in ("c", "a", "b"):
        assert admin.post(QUERIES, json={**EXAMPLE_SPEC, "name": name}).status_code == 201
    everything = admin.get(QUERIES).json()
    assert [each["name"] for each in everything["queries"]] == ["a", "b", "c"] and everything["next"] is None
    assert everything["queries"][0]["status"] is None and not everything["stale"]
    page = admin.get(QUERIES, params={"limit": 2}).json()
    assert [each["name"] for each in page["queries"]] == ["a", "b"] and page["next"] == "b"
    rest = admin.get(QUERIES, params={"after": "b", "expand": "status"}).json()
    assert [each["status"]["name"] for each in rest["queries"]] == ["c"]
    problem(admin.get(QUERIES, params={"limit": 0}), 422, "limit")
    problem(admin.get(QUERIES, params={"expand": "everything"}), 422, "expand")


def test_the_overview_has_a_line_for_each_query(admin: TestClient, query: dict[str, Any]) -> None:
    shown = admin.get("/api/v1/overview").json()
    assert shown["queries"] == [
        {
            "name": "departures", "revision": 1, "paused": False, "state": "STARTING", "delay_threshold": "3s", "x_ms": 3000.0,
            "p99_ms": None, "violations": 0, "tentative": 0,
            "inputs": [{"name": "jfk", "state": "starting", "missing": False}],
        }
    ]  # fmt: skip
    assert shown["stale"] is False and shown["total"] == 1


def test_the_overview_lists_no_more_than_is_asked_for(admin: TestClient) -> None:
    for name in ("c", "a", "b"):
        assert admin.post(QUERIES, json={**EXAMPLE_SPEC, "name": name}).status_code == 201
    shown = admin.get("/api/v1/overview", params={"limit": 2}).json()
    assert [each["name"] for each in shown["queries"]] == ["a", "b"] and shown["total"] == 3
    problem(admin.get("/api/v1/overview", params={"limit": 0}), 422, "limit")


SET: dict[str, Any] = {
    "delay_threshold": "2s",
    "reconcile": "overlay_redo",
    "policy": {"failure": "delay", "stabilization": "suspend"},
    "alpha": "900ms",
    "replicas": 3,
    "engine": "spark",
    "tuning": {"bucket": "200ms"},
    "latest": True,
    "debezium": True,
    "records": {"format": "avro"},
    "slo": {"objective": "99.9%", "window": "7d"},
}
"""Another value for each field that a query can be given while it runs."""


@pytest.mark.parametrize("field", SETTABLE)
def test_each_field_that_can_be_set_is_set_by_patch(admin: TestClient, query: dict[str, Any], field: str) -> None:
    changed = admin.patch(DEPARTURES, json={field: SET[field]})
    assert changed.status_code == 200, changed.text
    spec = changed.json()["spec"]
    given, now = SET[field], spec["tuning"]["alpha_x"] if field == "alpha" else spec[field]
    assert {key: now[key] for key in given} == given if field == "tuning" else now == given
    assert changed.json()["revision"] == query["revision"] + 1


def test_several_fields_change_together_or_none_does(admin: TestClient, query: dict[str, Any]) -> None:
    changes = {key: SET[key] for key in ("delay_threshold", "reconcile", "policy", "alpha", "replicas")}
    changes["tuning"] = {"bucket": "200ms", "heartbeat": "50ms"}
    changed = admin.patch(DEPARTURES, json=changes)
    assert changed.status_code == 200 and changed.json()["revision"] == 2, changed.text
    spec = changed.json()["spec"]
    assert {key: spec[key] for key in ("delay_threshold", "reconcile", "policy", "replicas")} == {
        key: SET[key] for key in ("delay_threshold", "reconcile", "policy", "replicas")
    }
    assert [spec["tuning"][key] for key in ("alpha_x", "bucket", "heartbeat")] == ["900ms", "200ms", "50ms"]
    problem(admin.patch(DEPARTURES, json={"replicas": 1, "alpha": "2s"}), 422, "alpha")
    problem(admin.patch(DEPARTURES, json={"replicas": 1, "alpha": "1s", "tuning": {"alpha_x": "1s"}}), 422, "alpha")
    problem(admin.patch(DEPARTURES, json={"replicas": 1, "output": "late"}), 422, "output")
    assert admin.get(DEPARTURES).json()["replicas"] == 3
    tuning = admin.patch(DEPARTURES, json={"alpha": None, "tuning": {"heartbeat": None}}).json()["spec"]["tuning"]
    assert tuning["bucket"] == "200ms" and not {"alpha_x", "heartbeat"} & tuning.keys()


def test_patch_answers_with_what_is_in_force(admin: TestClient, query: dict[str, Any]) -> None:
    changed = admin.patch(DEPARTURES, json={"delay_threshold": "1s"})
    assert changed.status_code == 200 and (changed.json()["x_ms"], changed.json()["revision"]) == (1000, 2)
    short = problem(admin.patch(DEPARTURES, json={"delay_threshold": "1ms"}), 422, "delay_threshold")
    assert short["value"] == "1ms" and "at least 41ms" in short["fix"]
    assert admin.get(DEPARTURES).json()["revision"] == 2


def test_a_change_of_what_somebody_else_has_changed_is_refused_and_says_the_revision(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation
) -> None:
    """As in two tabs that change X at once: one gets 412, and nothing is lost."""
    seen = admin.get(DEPARTURES).headers["etag"]
    assert admin.patch(DEPARTURES, json={"delay_threshold": "2s"}, headers={"If-Match": seen}).status_code == 200
    answer = admin.patch(DEPARTURES, json={"delay_threshold": "9s"}, headers={"If-Match": seen})
    refused = problem(answer, 412, "If-Match")
    assert (refused["revision"], refused["value"]) == (2, seen) and answer.headers["etag"] == '"departures-2"'
    assert admin.get(DEPARTURES).json()["delay_threshold"] == "2s"
    for verb, path in (("put", ""), ("put", "/pause"), ("put", "/resume"), ("post", "/restart"), ("delete", "")):
        body = {"json": EXAMPLE_SPEC} if (verb, path) == ("put", "") else {}
        problem(getattr(admin, verb)(DEPARTURES + path, headers={"If-Match": seen}, **body), 412)
    for tag in ('"departures-2"', 'W/"departures-2"', '"2"', "*", '"departures-1", "departures-2"'):
        assert admin.put(f"{DEPARTURES}/pause", headers={"If-Match": tag}).status_code == 202
        installation.records["departures"] = QueryRecord("departures", admin.get(DEPARTURES).json()["spec"], 2)


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [
        ({"If-Match": '"arrivals-1"'}, 412, "If-Match"),
        ({"If-Match": "yesterday"}, 422, "If-Match"),
        ({"If-None-Match": "*"}, 412, "If-None-Match"),
        ({"If-None-Match": '"departures-1"'}, 422, "If-None-Match"),
        ({"If-None-Match": "*", "If-Match": "*"}, 422, "If-None-Match"),
    ],
)
def test_what_is_expected_must_be_of_this_query(
    admin: TestClient, query: dict[str, Any], headers: dict[str, str], status: int, field: str
) -> None:
    problem(admin.put(DEPARTURES, json={**EXAMPLE_SPEC, "replicas": 1}, headers=headers), status, field)
    assert admin.get(DEPARTURES).json()["replicas"] == 2


def test_create_only_and_replace_only(admin: TestClient) -> None:
    assert problem(admin.put(DEPARTURES, json=EXAMPLE_SPEC, headers={"If-Match": "*"}), 412)["revision"] is None
    assert admin.put(DEPARTURES, json=EXAMPLE_SPEC, headers={"If-None-Match": "*"}).status_code == 201


def test_pause_resume_and_restart_are_accepted_and_need_no_body(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation
) -> None:
    paused = admin.put(f"{DEPARTURES}/pause")
    assert paused.status_code == 202 and paused.json() == {"name": "departures", "revision": 2, "paused": True}
    assert admin.put(f"{DEPARTURES}/pause").json()["revision"] == 2
    assert admin.post(f"{DEPARTURES}/resume").json() == {"name": "departures", "revision": 3, "paused": False}
    assert admin.post(f"{DEPARTURES}/restart").status_code == 202 and installation.restarted == ["departures"]


READS = ("", "/status", "/plan", "/explain-delay", "/inputs", "/replicas", "/liveness", "/evolution", "/slo", "/what-if")
"""What depends on the revision of a query."""


@pytest.mark.parametrize("read", READS)
def test_every_read_of_a_query_waits_for_a_revision(admin: TestClient, query: dict[str, Any], read: str) -> None:
    assert admin.patch(DEPARTURES, json={"slo": "99.9%"}).json()["revision"] == 2
    assert admin.get(DEPARTURES + read, params={"min_revision": 2}).status_code == 200
    problem(admin.get(DEPARTURES + read, params={"min_revision": 3}), 503, "min_revision")


MARKED = (
    *(DEPARTURES + read for read in (*READS, "/failures", "/reconciliations", "/dead-letters")),
    QUERIES, "/api/v1/overview", "/api/v1/streams", "/api/v1/events",
)  # fmt: skip


@pytest.mark.parametrize("path", every(3, MARKED))
def test_every_read_says_how_old_its_answer_is(admin: TestClient, installation: MemoryInstallation, path: str) -> None:
    admin.put(DEPARTURES, json={**EXAMPLE_SPEC, "slo": "99.9%"})
    for is_away, said in ((False, "false"), (True, "true")):
        installation.is_away = is_away
        answer = admin.get(path)
        assert answer.status_code == 200
        assert (answer.headers["boreal-as-of-ms"], answer.headers["boreal-stale"]) == (f"{NOW_MS:.0f}", said)
    jobs = admin.get("/api/v1/comparisons").headers
    assert float(jobs["boreal-as-of-ms"]) > NOW_MS and jobs["boreal-stale"] == "false", "jobs are kept by the API itself"


def test_a_deleted_query_is_gone(admin: TestClient, query: dict[str, Any]) -> None:
    assert admin.delete(DEPARTURES).status_code == 204
    for path in ("", "/status", "/plan"):
        problem(admin.get(DEPARTURES + path), 404, "NAME")
    problem(admin.delete(DEPARTURES), 404, "NAME")
    problem(admin.patch(DEPARTURES, json={}), 404, "NAME")


def test_the_status_has_the_fields_of_the_contract(admin: TestClient, query: dict[str, Any]) -> None:
    status = admin.get(f"{DEPARTURES}/status").json()
    assert {
        "name", "state", "x_ms", "alpha_x_ms", "delay_ms", "violations", "inputs", "replicas", "tentative", "counts",
    } <= status.keys()  # fmt: skip
    assert set(status["delay_ms"]) == {"p50", "p99", "max"}
    assert {"name", "state", "last_boundary", "last_ingest_age_ms"} <= status["inputs"][0].keys()
    assert {"fragment", "replica", "shard", "engine", "state"} <= status["replicas"][0].keys()
    assert set(status["tentative"]) == {"outstanding", "since", "cause"}
    assert set(status["counts"]) == {"stable", "tentative", "undone"}


def test_the_plan_has_what_a_picture_of_the_graph_needs(admin: TestClient, query: dict[str, Any]) -> None:
    plan = admin.get(f"{DEPARTURES}/plan").json()
    assert {node["name"]: (node["layer"], node["reads"]) for node in plan["nodes"]} == {
        "jfk": (0, []), "late": (1, ["jfk"]), "by_carrier": (2, ["late"]),
    }  # fmt: skip
    assert (plan["x_ms"], plan["least_x_ms"], plan["output"]) == (3000, 248, "by_carrier")
    assert [replica["name"] for replica in plan["fragments"][0]["replicas"]] == ["r0", "r1"]


def test_validation_changes_nothing(admin: TestClient, installation: MemoryInstallation) -> None:
    for path in ("/api/v1/validate", f"{DEPARTURES}/validate"):
        found = admin.post(path, json=EXAMPLE_SPEC).json()
        assert found["valid"] and found["plan"]["name"] == "departures"
        bad = {**EXAMPLE_SPEC, "output": "by_carier"}
        assert "by_carrier" in problem(admin.post(path, json=bad), 422, "output")["fix"]
        assert found["change"] is None, "there is none to change"
    assert not installation.records


def test_validation_says_what_would_change_of_the_query_that_runs(admin: TestClient, query: dict[str, Any]) -> None:
    compute = {"flights": "count(*)", "most": "max(dep_delay)"}
    operators = {**EXAMPLE_SPEC["operators"], "by_carrier": {**EXAMPLE_SPEC["operators"]["by_carrier"], "compute": compute}}
    found = admin.post(f"{DEPARTURES}/validate?from=latest", json={**EXAMPLE_SPEC, "operators": operators}).json()["change"]
    assert (found["taken"], found["refused"]) == ("evolution", None)
    assert found["columns"] == [{"name": "most", "before": None, "after": "double"}]
    assert found["parts"] == [
        {"part": "operators.by_carrier.compute.most", "before": None, "after": "max(dep_delay)", "taken": "evolution"}
    ]
    assert found["command"] == f"boreal query apply FILE --evolve --from {found['from']}" and found["from"].startswith("2023-")
    assert found["needs"]["history_ms"] == 600_000
    same = admin.post("/api/v1/validate", json=EXAMPLE_SPEC).json()["change"]
    assert (same["taken"], same["parts"], same["command"]) == ("nothing", [], None)
    problem(admin.post("/api/v1/validate?from=soon", json=EXAMPLE_SPEC), 422, "--from")


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"{", "body"), (b"", "body"), (b"[]", "body"), (b"null", "body"), (b"\xff", "body"), (b'{"a": NaN}', "body"),
        (b'{"name": 1, "name": 2}', "name"), (b"[" * 100_000, "body"), (b'{"a":' * 50_000, "body"), (b"{}", "name"),
        (b'{"name": "q", "streams": {}, "nothing": 1}', None), (b'{"name": "a/b"}', None), (b"1" * 10_000, "body"),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_a_body_that_is_no_query_is_refused(admin: TestClient, content: bytes, field: str | None) -> None:
    problem(admin.post(QUERIES, content=content), 422, field)


def test_a_revision_that_was_answered_can_be_waited_for(admin: TestClient, query: dict[str, Any]) -> None:
    assert admin.get(f"{DEPARTURES}/status", params={"min_revision": 1}).status_code == 200
    answer = admin.get(f"{DEPARTURES}/status", params={"min_revision": 2})
    problem(answer, 503, "min_revision")
    assert answer.headers["retry-after"] == "1"


def test_while_servers_are_away_reads_go_on_marked_stale_and_writes_say_so(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation
) -> None:
    installation.is_away = True
    assert admin.get(QUERIES).json()["stale"] and admin.get(f"{DEPARTURES}/status").json()["stale"]
    answer = admin.patch(DEPARTURES, json={"delay_threshold": "1s"})
    problem(answer, 503)
    assert answer.headers["retry-after"] == "1"


def test_health_is_not_readiness(client: TestClient, installation: MemoryInstallation) -> None:
    assert client.get("/healthz").json()["ready"] and client.get("/readyz").status_code == 200
    installation.is_ready = False
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz")
    assert answer.status_code == 503 and answer.json() == {"ready": False, "waits_for": []}
