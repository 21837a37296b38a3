"""Failures and events over REST, as the journal of an installation tells them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from api import event_history
from api.job_process import work
from api.jobs import RESULT, Jobs
from boreal.model.schema import Schema, Type
from deployment.events import RecordedEvent
from deployment.failure_recorder import Clients, FailureRecorder
from embedded.recording import RecordedStream, Recording
from tests.unit.api.memory import MemoryInstallation
from tests.unit.api.test_queries import DEPARTURES, problem

EVENTS = "/api/v1/events"


def take(installation: MemoryInstallation, events: list[RecordedEvent]) -> None:
    last = installation.events.last or 0
    for number, event in enumerate(events, last + 1):
        installation.events.take(number, event)


def a_failure(at_ms: float, rows: int = 3) -> list[RecordedEvent]:
    recorder = FailureRecorder("departures")
    recorder.regime = {"x_ms": 3_000.0, "reconcile": "overlay_redo", "policy": {"failure": "process"}}
    recorder.see_clients("a", Clients(0, None, None, 0, 0), at_ms)
    return [
        *recorder.see_state("main.r0.0", "UP_FAILURE", at_ms, ["jfk"], at_ms - 100),
        *recorder.see_clients("a", Clients(rows, at_ms + 2_700, "main.r0.0-1", 0, 0), at_ms + 2_800),
        *recorder.see_state("main.r0.0", "STABILIZATION", at_ms + 8_000),
        *recorder.see_clients("a", Clients(0, None, None, rows, 0), at_ms + 8_004),
        *recorder.see_state("main.r0.0", "STABLE", at_ms + 8_005, redo_s=0.005),
        *recorder.settle(at_ms + 60_000),
    ]


def test_failures_come_in_pages_the_newest_first(
    admin: TestClient, installation: MemoryInstallation, query: dict[str, Any]
) -> None:
    for number in range(5):
        take(installation, a_failure(1_000_000.0 * (number + 1)))
    first = admin.get(f"{DEPARTURES}/failures?limit=3").json()
    rest = admin.get(f"{DEPARTURES}/failures?limit=3&after={first['next']}").json()
    ids = [each["id"] for each in (*first["failures"], *rest["failures"])]
    assert ids == sorted(ids, reverse=True) and len(set(ids)) == 5 and rest["next"] is None
    problem(admin.get("/api/v1/queries/other/failures"), 404, "NAME")


def test_a_failure_is_told_in_full(admin: TestClient, installation: MemoryInstallation, query: dict[str, Any]) -> None:
    take(installation, a_failure(1_000_000.0))
    [listed] = admin.get(f"{DEPARTURES}/failures").json()["failures"]
    told = admin.get(f"{DEPARTURES}/failures/{listed['id']}").json()
    assert {key: told[key] for key in listed} == listed
    assert (told["rows_tentative"], told["missing"], told["x_ms"], told["late_rows"]) == (3, ["jfk"], 3_000.0, 0)
    assert [(phase["name"], phase["ms"]) for phase in told["phases"]] == [
        ("detected", 100.0),
        ("held", 2_700.0),
        ("tentative", 5_300.0),
        ("redo", 5.0),
    ]
    assert [event["kind"] for event in told["events"]] == ["detected", "tentative", "healed", "undone", "reconciled", "over"]
    refused = problem(admin.get(f"{DEPARTURES}/failures/f-1"), 404, "ID")
    assert listed["id"] in refused["fix"]


def test_corrections_come_in_pages_the_newest_first(
    admin: TestClient, installation: MemoryInstallation, query: dict[str, Any]
) -> None:
    path = f"{DEPARTURES}/reconciliations"
    assert admin.get(path).json() == {"reconciliations": [], "next": None}
    for number in range(3):
        take(installation, a_failure(1_000_000.0 * (number + 1)))
    egress = {"instance": "egress.a", "redo_s": 0.002}
    take(installation, [RecordedEvent(3_009_000.0, "reconciled", "departures", "f-9", None, egress)])
    unneeded = RecordedEvent(4_000_000.0, "reconciled", "departures", None, None, {"instance": "main.r1.0", "redo_s": None})
    take(installation, [unneeded, RecordedEvent(4_000_001.0, "paused", "other")])
    first = admin.get(f"{path}?limit=3").json()
    rest = admin.get(f"{path}?limit=3&after={first['next']}").json()
    found = [*first["reconciliations"], *rest["reconciliations"]]
    own = found.pop(0)
    assert (own["fragment"], own["replica"], own["shard"], own["mode"]) == ("egress", "a", 0, None)
    assert [each["ended_ms"] for each in found] == [3_008_005.0, 2_008_005.0, 1_008_005.0] and rest["next"] is None
    failures = [each["id"] for each in admin.get(f"{DEPARTURES}/failures").json()["failures"]]
    assert [each["failure"] for each in found] == failures
    assert {key: found[0][key] for key in ("fragment", "replica", "shard", "mode", "started_ms", "seconds")} == {
        "fragment": "main", "replica": "r0", "shard": 0, "mode": "overlay_redo", "started_ms": 3_008_000.0, "seconds": 0.005,
    }  # fmt: skip
    assert admin.get(f"{path}?failure={failures[1]}").json()["reconciliations"] == [found[1]]
    problem(admin.get("/api/v1/queries/other/reconciliations"), 404, "NAME")


def test_an_objective_has_its_budgets(admin: TestClient, query: dict[str, Any]) -> None:
    assert "PATCH" in problem(admin.get(f"{DEPARTURES}/slo"), 404, "slo")["fix"]
    problem(admin.get("/api/v1/queries/other/slo"), 404, "NAME")
    refused = problem(admin.patch(DEPARTURES, json={"slo": {"objective": "100%"}}), 422, "slo.objective")
    assert "99.9%" in refused["fix"]
    changed = admin.patch(DEPARTURES, json={"slo": "99.9%/7d"}).json()
    assert changed["spec"]["slo"] == {"objective": "99.9%", "window": "7d"}
    told = admin.get(f"{DEPARTURES}/slo").json()
    assert (told["query"], told["objective"], told["window_ms"]) == ("departures", 99.9, 7 * 86_400_000.0)
    for budget in ("results", "time"):
        assert (told[budget]["share"], told[budget]["budget_left"], told[budget]["burn_1h"]) == (None, 1.0, 0.0)
    metrics = admin.get("/metrics").text.splitlines()
    assert 'boreal_slo_objective_ratio{query="departures"} 0.999' in metrics
    assert 'boreal_slo_burn_rate{budget="time",over="6h",query="departures"} 0.0' in metrics


def test_what_if_is_a_staircase_that_ends_at_nothing(
    admin: TestClient, installation: MemoryInstallation, query: dict[str, Any]
) -> None:
    take(installation, [*a_failure(1_000_000.0, rows=3), *a_failure(2_000_000.0, rows=5)])
    told = admin.get(f"{DEPARTURES}/what-if?since_ms=0").json()
    assert told["is_bound"] and told["x_ms"] == 3_000.0
    assert [(step["failures"], step["rows_tentative_at_most"]) for step in told["steps"]] == [(2, 8), (0, 0)]
    assert 8_100.0 < told["steps"][1]["x_ms"] < 9_500.0
    later = admin.get(f"{DEPARTURES}/what-if?since_ms=1500000").json()
    assert later["steps"][0] == {"x_ms": 0.0, "failures": 1, "rows_tentative_at_most": 5}
    assert admin.get(f"{DEPARTURES}/what-if").json()["steps"] == [{"x_ms": 0.0, "failures": 0, "rows_tentative_at_most": 0}]
    problem(admin.get("/api/v1/queries/other/what-if"), 404, "NAME")


def test_events_are_filtered_and_paged(admin: TestClient, installation: MemoryInstallation) -> None:
    take(installation, [RecordedEvent(1.0, "created", "q", "cli", None, {}), *a_failure(1_000_000.0)])
    assert [event["kind"] for event in admin.get(f"{EVENTS}?limit=2").json()["events"]] == ["over", "reconciled"]
    [created] = admin.get(f"{EVENTS}?query=q").json()["events"]
    assert (created["id"], created["by"]) == (1, "cli")
    kinds = admin.get(f"{EVENTS}?kind=healed&kind=detected&since_ms=2").json()["events"]
    assert [event["kind"] for event in kinds] == ["healed", "detected"]
    found: list[int] = []
    after: int | None = None
    while True:
        page = admin.get(EVENTS, params={"limit": 2, **({} if after is None else {"after": after})}).json()
        found += [event["id"] for event in page["events"]]
        after = page["next"]
        if after is None:
            break
    assert found == [7, 6, 5, 4, 3, 2, 1]
    assert "healed" in problem(admin.get(f"{EVENTS}?kind=heeled"), 422, "kind")["fix"]


def read_stream(address: str, token: dict[str, str], count: int, path: str = "/stream", **headers: str) -> list[dict[str, Any]]:
    """The first events of a stream."""
    found: list[dict[str, Any]] = []
    fields: dict[str, str] = {}
    request = urllib.request.Request(f"{address}{EVENTS}{path}", headers={**token, **headers})
    with urllib.request.urlopen(request, timeout=20) as answer:
        while len(found) < count:
            line = answer.readline().decode().rstrip("\r\n")
            key, _, value = line.partition(": ")
            if key in ("id", "event", "data"):
                fields[key] = value
            elif not line and "event" in fields:
                found.append({**fields, "data": json.loads(fields["data"])})
                fields = {}
    return found


def test_a_stream_goes_on_where_its_caller_was_and_says_what_is_lost(
    address: str, admin: TestClient, installation: MemoryInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = {"Authorization": admin.headers["Authorization"]}
    take(installation, a_failure(1_000_000.0))
    events = read_stream(address, token, 4, **{"Last-Event-ID": "2"})
    assert [(event["id"], event["event"]) for event in events] == [
        ("3", "healed"), ("4", "undone"), ("5", "reconciled"), ("6", "over"),
    ]  # fmt: skip
    assert events[0]["data"]["failure"] == events[3]["data"]["failure"]
    [over] = read_stream(address, token, 1, "/stream?kind=over", **{"Last-Event-ID": "0"})
    assert over["id"] == "6"
    problem(admin.get(f"{EVENTS}/stream", headers={"Last-Event-ID": "a:1"}), 422, "Last-Event-ID")
    installation.events.begin(4)
    gap = read_stream(address, token, 1, **{"Last-Event-ID": "1"})
    assert (gap[0]["event"], gap[0]["data"]) == ("gap", {"after": 1})


def test_old_events_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_history, "KEPT_EVENTS", 4)
    history = event_history.EventHistory()
    for number in range(1, 8):
        history.take(number, RecordedEvent(float(number), "created", "q"))
    page = history.after(1, event_history.EventFilter(), 10)
    assert page.lost and [number for number, _ in page.events] == [4, 5, 6, 7]
    assert not history.after(5, event_history.EventFilter(), 10).lost


def recording() -> Recording:
    schema = Schema((("carrier", Type.STRING), ("dep_delay", Type.DOUBLE))).arrow
    batch = pa.RecordBatch.from_pylist([{"time": 1_000_000 * n, "carrier": "UA", "dep_delay": 20.0} for n in range(30)], schema)
    times = np.arange(30, dtype=np.int64)
    stream = RecordedStream(batch, times * 1_000_000, times * 1_000_000, times * 1_000_000)
    return Recording(990_000_000, 30_000_000, {"jfk": stream}, ("windows that began before lack rows",))


def test_a_failure_is_replayed_as_a_job(
    admin: TestClient, installation: MemoryInstallation, query: dict[str, Any], jobs: Jobs, tmp_path: Path
) -> None:
    path = f"{DEPARTURES}/failures"
    problem(admin.post(f"{path}/none/replay", json={}), 404, "ID")
    take(installation, a_failure(1_000_000.0))
    [failure] = admin.get(path).json()["failures"]
    here = f"{path}/{failure['id']}/replay"
    gone = problem(admin.post(here, json={}), 410, "ID")
    assert "rows of jfk are no longer kept" in gone["detail"] and gone["value"] == failure["id"]
    installation.recording = recording()
    asked = {"id": "again", "delay_thresholds": ["3s", "1s"]}
    begun = admin.post(here, json=asked)
    assert begun.status_code == 202 and begun.headers["location"] == "/api/v1/comparisons/again"
    told = begun.json()
    assert told["request"]["failure"] == failure["id"] and told["query"] == "departures"
    assert admin.post(here, json=asked).json() == told, "the same request is the same job"
    problem(admin.post(here, json={**asked, "seed": 3}), 409, "id")
    for body, field in [
        ({"delay_thresholds": ["1ms"]}, "delay_thresholds"),
        ({"modes": ["redo"]}, "modes"),
        ({"policies": ["never"]}, "policies"),
        ({"sources": {}}, "sources"),
    ]:
        problem(admin.post(here, json=body), 422, field)

    work(tmp_path / "jobs" / "again")
    result = jobs.read("again", RESULT)
    assert result is not None
    assert result["faults"] == ["cut jfk to main.r0 at 9s900ms for 8s100ms"]
    assert [row["x_ms"] for row in result["table"]] == [3_000.0, 1_000.0] and result["notes"][0].startswith("windows that")
    assert {row["mode"] for row in result["table"]} == {query["reconcile"]}


def test_a_failure_that_goes_on_is_not_replayed(
    admin: TestClient, installation: MemoryInstallation, query: dict[str, Any]
) -> None:
    take(installation, a_failure(1_000_000.0)[:2])
    [failure] = admin.get(f"{DEPARTURES}/failures").json()["failures"]
    problem(admin.post(f"{DEPARTURES}/failures/{failure['id']}/replay", json={}), 409, "ID")
