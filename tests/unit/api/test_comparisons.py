"""Comparisons over REST, with the processes that run them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import create_app
from api import jobs as module
from api.comparisons import EXAMPLE, MOST_ROWS, ComparisonRequest
from api.installation import BusyError, UnavailableError
from api.job_queue import JobState
from api.jobs import COMMAND, MOST_WAITING, Jobs
from api.models import EXAMPLE_SPEC
from api.settings import ApiSettings
from api.tokens import TokenStore
from boreal.query.spec import load_query
from tests.unit.api.conftest import ADDRESS, IDLE
from tests.unit.api.memory import MemoryInstallation
from tests.unit.api.test_queries import problem
from tests.waiting import wait_until

KIND = "comparison"
PATH = "/api/v1/comparisons"
SMALL = {
    "query": "departures", "sources": {"jfk": "generate:20,30"}, "speed": "10x", "faults": ["cut jfk at 500ms for 2s"],
    "modes": ["overlay_redo"], "policies": ["process/process"], "delay_thresholds": ["1s", "4s"],
}  # fmt: skip


STREAM = {"time": "at", "schema": {"sensor": "string", "value": "double"}}
LOAD = {
    "name": "load",
    "streams": {"north": {**STREAM, "topic": "north"}, "south": {**STREAM, "topic": "south"}},
    "operators": {
        "all": {"union": ["north", "south"]},
        "per_second": {"aggregate": "all", "window": {"tumbling": "1s"}, "compute": {"readings": "count(*)"}},
    },
    "output": "per_second",
    "delay_threshold": "2s",
}
CUT = {
    **SMALL,
    "query": LOAD,
    "sources": dict.fromkeys(["north", "south"], "generate:50,30"),
    "faults": ["cut south at 500ms for 2s"],
}


@pytest.fixture
def real(tmp_path: Path) -> Iterator[TestClient]:
    """An API that runs what it is asked for."""
    installation = MemoryInstallation()
    app = create_app(ApiSettings(), installation, TokenStore(tmp_path, "ours"), Jobs(tmp_path / "jobs"))
    with TestClient(app, base_url=ADDRESS, headers={"Authorization": "Bearer ours"}) as made:
        made.put("/api/v1/queries/departures", json=EXAMPLE_SPEC).raise_for_status()
        yield made


def test_each_x_mode_and_policy_has_a_row_and_the_result_outlives_the_api(real: TestClient, tmp_path: Path) -> None:
    begun = real.post(PATH, json={"id": "mine", **CUT})
    assert begun.status_code == 202 and begun.headers["location"] == f"{PATH}/mine" and begun.headers["retry-after"] == "1"
    wait_until(lambda: real.get(f"{PATH}/mine").json()["state"] not in ("queued", "running"))
    done = real.get(f"{PATH}/mine").json()
    assert done["state"] == "done", done["problem"]
    assert done["progress"] == {"done": 2, "total": 2} and done["query"] == "load" and done["by"].startswith("settings")
    table = done["result"]["table"]
    assert [(row["x_ms"], row["mode"], row["policy"]) for row in table] == [
        (x_ms, "overlay_redo", "process/process") for x_ms in (1_000, 4_000)
    ]
    assert all(row["is_stable"] and row["violations"] == 0 for row in table)
    assert table[0]["n_tentative"] > 0 == table[1]["n_tentative"], "a cut shorter than X shows nothing"
    assert not (tmp_path / "jobs" / "mine" / "work").exists()
    assert real.post(PATH, json={"id": "mine", **CUT}).json() == done, "the same request is the same comparison"

    later = Jobs(tmp_path / "jobs")
    assert later.find(KIND, "mine").state is JobState.DONE and later.read("mine", "result.json") == done["result"]


def test_an_id_names_one_request(admin: TestClient, query: dict[str, Any], jobs: Jobs) -> None:
    first = admin.post(PATH, json=EXAMPLE).json()
    assert first["state"] == "running" and first["progress"] == {"done": 0, "total": None}
    admin.patch("/api/v1/queries/departures", json={"delay_threshold": "9s"}).raise_for_status()
    assert admin.post(PATH, json=EXAMPLE).json() == first
    problem(admin.post(PATH, json={**EXAMPLE, "seed": 7}), 409, "id")
    assert len(jobs.page(KIND, None, 9).jobs) == 1


def test_comparisons_are_listed_cancelled_and_deleted(admin: TestClient, query: dict[str, Any], tmp_path: Path) -> None:
    ids = [admin.post(PATH, json=SMALL).json()["id"] for _ in range(3)]
    assert len(set(ids)) == 3
    page = admin.get(PATH, params={"limit": 2}).json()
    rest = admin.get(PATH, params={"limit": 2, "after": page["next"]}).json()
    listed = [each["id"] for each in page["comparisons"] + rest["comparisons"]]
    assert sorted(listed) == sorted(ids) and len(page["comparisons"]) == 2 and rest["next"] is None
    problem(admin.get(PATH, params={"after": "x"}), 422, "after")

    def states() -> list[str]:
        return [admin.get(f"{PATH}/{each}").json()["state"] for each in ids]

    assert sorted(states()) == ["queued", "queued", "running"]
    running = ids[states().index("running")]
    cancelled = admin.post(f"{PATH}/{running}/cancel")
    assert cancelled.status_code == 202 and cancelled.json()["state"] == "cancelled"
    assert sorted(states()) == ["cancelled", "queued", "running"], "the next one runs"
    assert admin.post(f"{PATH}/{running}/cancel").json() == cancelled.json()
    assert all(admin.delete(f"{PATH}/{each}").status_code == 204 for each in ids)
    problem(admin.get(f"{PATH}/{running}"), 404, "ID")
    problem(admin.post(f"{PATH}/{running}/cancel"), 404, "ID")
    problem(admin.delete(f"{PATH}/{running}"), 404, "ID")
    assert list((tmp_path / "jobs").glob("[!.]*")) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"query": "departed"}, "query"),
        ({"query": {**EXAMPLE_SPEC, "output": "late2"}}, "query.output"),
        ({"sources": {"jfk": "/etc/passwd"}}, "sources.jfk"),
        ({"sources": {"jfk": "generate:0,1"}}, "sources.jfk"),
        ({"sources": {"jfx": "generate:1,1"}}, "sources.jfx"),
        ({"sources": {"jfk": f"generate:{MOST_ROWS},2"}}, "sources"),
        ({"sources": {"jfk": "generate:1000,400"}, "modes": None, "policies": None}, "sources"),
        ({"sources": {}}, "sources"),
        ({"faults": ["cut lga at 1s for 1s"]}, "faults"),
        ({"faults": ["burn it"]}, "faults"),
        ({"modes": ["undo"]}, "modes"),
        ({"policies": ["never"]}, "policies"),
        ({"delay_thresholds": ["1ms"]}, "delay_thresholds"),
        ({"delay_thresholds": [f"{n}s" for n in range(1, 21)], "modes": None, "policies": None}, "delay_thresholds"),
        ({"rate": "100/s"}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"seed": -1}, "seed"),
        ({"id": "../up"}, "id"),
        ({"out": "/tmp"}, "out"),
    ],
)
def test_what_cannot_run_is_refused_at_once(
    admin: TestClient, query: dict[str, Any], jobs: Jobs, change: dict[str, Any], field: str
) -> None:
    refused = admin.post(PATH, json={**SMALL, **change})
    said = problem(refused, 404 if change == {"query": "departed"} else 422, field)
    assert said["fix"] and "--" not in said["fix"] and jobs.page(KIND, None, 1).jobs == []


def has_failed(jobs: Jobs, id_: str) -> bool:
    return jobs.find(KIND, id_).state is JobState.FAILED


def test_a_job_whose_process_dies_has_failed_and_says_why(tmp_path: Path) -> None:
    ways = {
        "echo 'out of luck' >&2; exit 3": "with status 3: out of luck",
        "kill -9 $$": "by SIGKILL",
        "exit 0": "with status 0",
    }
    for number, (way, why) in enumerate(ways.items()):
        jobs = Jobs(tmp_path / str(number), command=("sh", "-c", way))
        job = jobs.post(KIND, None, "departures", "ours", {})
        wait_until(partial(has_failed, jobs, job.id))
        found = jobs.find(KIND, job.id).problem
        assert found is not None and found["problem"].endswith(why)


def test_jobs_that_an_end_of_the_api_interrupts_run_again(tmp_path: Path) -> None:
    first = Jobs(tmp_path, command=IDLE)
    ids = [first.post(KIND, f"job{number}", "departures", "ours", {"n": number}).id for number in range(3)]
    first.close()
    said = "mkdir -p $0 && echo '{}' > $0/result.json"
    again = Jobs(tmp_path, command=("sh", "-c", said))
    wait_until(lambda: all(again.find(KIND, id_).state is JobState.DONE for id_ in ids))
    assert {again.find(KIND, id_).attempts for id_ in ids} == {1}, "what was stopped in good order does not count"


def test_one_process_runs_the_jobs_of_a_folder_and_another_takes_its_place(tmp_path: Path) -> None:
    one, other = Jobs(tmp_path, command=IDLE), Jobs(tmp_path, command=IDLE)
    id_ = one.post(KIND, "mine", "departures", "ours", {}).id
    assert other.find(KIND, id_).state is JobState.RUNNING and [job.id for job in other.page(KIND, None, 9).jobs] == [id_]
    changes = (
        partial(other.cancel, KIND),
        partial(other.delete, KIND),
        lambda id_: other.post(KIND, None, "departures", "ours", {"n": id_}),
    )
    for change in changes:
        with pytest.raises(UnavailableError):
            change(id_)
    assert one.find(KIND, id_).attempts == 1
    one.close()
    assert other.cancel(KIND, id_).state is JobState.CANCELLED
    other.close()


def test_a_process_ends_with_its_api(tmp_path: Path) -> None:
    """Also where that is killed: the pipe between them ends."""
    asked = {**CUT, "sources": dict.fromkeys(["north", "south"], "generate:1000,200")}
    (tmp_path / "request.json").write_text(json.dumps({"asked": asked, "spec": load_query(LOAD).dump()}))
    with subprocess.Popen([*COMMAND, tmp_path], stdin=subprocess.PIPE) as process:
        wait_until((tmp_path / "progress.json").is_file)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 1
    assert not (tmp_path / "result.json").exists()


def test_all_jobs_are_told_at_each_change(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, command=IDLE)
    seen: list[list[tuple[str, str]]] = []
    jobs.tell(lambda found: seen.append([(str(each["id"]), str(each["state"])) for each in found]))
    for id_ in ("one", "two"):
        jobs.post(KIND, id_, "departures", "ours", {})
    jobs.cancel(KIND, "one")
    jobs.delete(KIND, "one")
    jobs.close()
    assert seen == [
        [],
        [("one", "running")],
        [("one", "running"), ("two", "queued")],
        [("one", "cancelled"), ("two", "running")],
        [("two", "running")],
    ]


def test_a_status_has_the_jobs_of_lately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, other = Jobs(tmp_path, command=IDLE), Jobs(tmp_path, command=IDLE)
    for id_ in ("over", "running"):
        jobs.post(KIND, id_, "q", "ann", {})
    jobs.cancel(KIND, "over")
    assert [(job["id"], job["state"]) for job in jobs.lately()] == [("over", "cancelled"), ("running", "running")]
    assert other.lately() == [], "whoever has the lock says it"
    monkeypatch.setattr(module, "SAID_FOR_MS", -1.0)
    assert [job["id"] for job in jobs.lately()] == ["running"]
    jobs.close()


def test_there_is_an_end_to_what_may_wait(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, command=IDLE)
    for number in range(MOST_WAITING):
        jobs.post(KIND, None, "departures", "ours", {"n": number})
    with pytest.raises(BusyError):
        jobs.post(KIND, None, "departures", "ours", {})
    jobs.close()


def test_a_job_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, command=IDLE)
    ids = [jobs.post(KIND, None, "departures", "ours", {}).id for _ in range(2)]
    jobs.close()
    (tmp_path / ids[0] / "job.json").write_text("{")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "job.json").write_text(json.dumps({"id": "other"}))
    again = Jobs(tmp_path, command=IDLE)
    assert [job.id for job in again.page(KIND, None, 9).jobs] == ids[1:]
    again.close()


def test_the_example_is_one() -> None:
    assert ComparisonRequest.model_validate(EXAMPLE).id == "which-mode"


VERIFICATIONS = "/api/v1/verifications"
VERIFIED = {key: value for key, value in CUT.items() if key not in ("modes", "policies", "delay_thresholds")}


def test_a_verification_says_that_the_results_are_the_same(real: TestClient) -> None:
    asked = {"id": "exact", **VERIFIED, "delay_threshold": "1s", "mode": "overlay_redo"}
    begun = real.post(VERIFICATIONS, json=asked)
    assert begun.status_code == 202 and begun.headers["location"] == f"{VERIFICATIONS}/exact"
    wait_until(lambda: real.get(f"{VERIFICATIONS}/exact").json()["state"] not in ("queued", "running"))
    done = real.get(f"{VERIFICATIONS}/exact").json()
    assert done["state"] == "done", done["problem"]
    assert done["progress"] == {"done": 2, "total": 2}
    result = done["result"]
    assert result["holds"] and result["same"] and result["rows"] > 10 and result["first_difference"] is None
    assert real.post(VERIFICATIONS, json=asked).json() == done


def test_a_job_is_of_its_kind(admin: TestClient, query: dict[str, Any], jobs: Jobs) -> None:
    verified = admin.post(VERIFICATIONS, json={**VERIFIED, "id": "mine"}).json()
    assert [each["id"] for each in admin.get(VERIFICATIONS).json()["verifications"]] == ["mine"]
    assert admin.get(PATH).json()["comparisons"] == []
    problem(admin.get(f"{PATH}/mine"), 404, "ID")
    problem(admin.post(f"{PATH}/mine/cancel"), 404, "ID")
    problem(admin.delete(f"{PATH}/mine"), 404, "ID")
    problem(admin.post(PATH, json={**SMALL, "id": "mine"}), 409, "id")
    assert admin.get(f"{VERIFICATIONS}/mine").json() == verified
    assert admin.post(f"{VERIFICATIONS}/mine/cancel").json()["state"] == "cancelled"
    assert admin.delete(f"{VERIFICATIONS}/mine").status_code == 204


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"query": "departed"}, "query"),
        ({"sources": {"north": "/etc/passwd"}}, "sources.north"),
        ({"sources": {}}, "sources"),
        ({"faults": ["burn it"]}, "faults"),
        ({"mode": "undo"}, "mode"),
        ({"policy": "never"}, "policy"),
        ({"delay_threshold": "1ms"}, "delay_threshold"),
        ({"modes": ["undo_redo"]}, "modes"),
    ],
)
def test_a_verification_that_cannot_run_is_refused_at_once(
    admin: TestClient, query: dict[str, Any], jobs: Jobs, change: dict[str, Any], field: str
) -> None:
    refused = admin.post(VERIFICATIONS, json={**VERIFIED, **change})
    said = problem(refused, 404 if change == {"query": "departed"} else 422, field)
    assert said["fix"] and "--" not in said["fix"] and jobs.page("verification", None, 1).jobs == []
