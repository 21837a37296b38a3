"""The recorded input of a query that runs, run again: its results are what clients were given, and can be fetched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import create_app
from api.embedded import EmbeddedInstallation
from api.job_process import work
from api.jobs import REQUEST, RESULT, Jobs
from api.recomputations import GIVEN
from api.settings import ApiSettings
from api.tokens import Role, TokenStore
from boreal.api_client import ApiClient, ApiError
from formats.json_text import moment, time_us
from tests.unit.api.conftest import ADDRESS, IDLE
from tests.unit.api.memory import MemoryInstallation
from tests.unit.api.test_queries import problem
from tests.waiting import wait_until

QUERY: dict[str, Any] = {
    "name": "load",
    "streams": {"a": {"time": "at", "schema": {"k": "string", "v": "int"}, "boundary": "clock"}},
    "operators": {
        "per_key": {
            "aggregate": "a",
            "window": {"tumbling": "500ms"},
            "by": ["k"],
            "compute": {"n": "count(*)", "total": "sum(v)"},
        }
    },
    "output": "per_key",
    "delay_threshold": "3s",
}
HERE = "/api/v1/queries/load"


@dataclass
class Fed:
    """An embedded installation whose query got a row every 50 ms for some seconds."""

    api: TestClient
    installation: EmbeddedInstallation
    jobs: Path
    since_ms: float
    """When a third of the rows had come."""
    end_ms: float
    """When the last row came."""

    def begin(self, kind: str, id_: str, **asked: Any) -> Any:
        """A job over the last two thirds of the rows, at least four seconds, once it is over."""
        request = {"id": id_, "since_ms": self.since_ms, "until_ms": self.end_ms, **asked}
        begun = self.api.post(f"{HERE}/{kind}", json=request)
        assert begun.status_code == 202, begun.text
        assert begun.headers["location"] == f"/api/v1/{kind}/{id_}"
        path = f"/api/v1/{kind}/{id_}"
        wait_until(lambda: self.api.get(path).json()["state"] not in ("queued", "running"))
        return self.api.get(path).json()

    def again(self, id_: str) -> Any:
        """The result of a job whose files were changed."""
        work(self.jobs / id_)
        return json.loads((self.jobs / id_ / RESULT).read_text())


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fed]:
    folder = tmp_path_factory.mktemp("data")
    installation = EmbeddedInstallation(folder, allow_chaos=True)
    jobs = Jobs(folder / "jobs")
    app = create_app(ApiSettings(), installation, TokenStore(folder, "ours"), jobs)
    with TestClient(app, base_url=ADDRESS, headers={"Authorization": "Bearer ours"}) as api:
        api.put(HERE, json=QUERY).raise_for_status()
        wait_until(lambda: api.get("/readyz").status_code == 200)
        since_ms = 0.0
        for number in range(120):
            if number == 40:
                since_ms = time.time() * 1_000
            row = {"at": moment(time.time_ns() // 1_000), "k": "xyz"[number % 3], "v": number}
            api.post("/api/v1/streams/a/tuples", json=row).raise_for_status()
            time.sleep(0.05)
        end_ms = time.time() * 1_000
        # However slow the machine is, there is something to compare then.
        wait_until(lambda: _is_stable_through(installation, round(end_ms * 1_000)))
        yield Fed(api, installation, folder / "jobs", since_ms, end_ms)


def _is_stable_through(installation: EmbeddedInstallation, at_us: int) -> bool:
    with closing(installation.output("load", "all")) as reader:
        events = reader.read(None, 10_000).events
    told = [json.loads(event.data) for event in events if event.type == "boundary"]
    return any(time_us(record["through"]) >= at_us for record in told if not record["tentative"])


def test_what_clients_were_given_is_what_the_input_comes_to(fed: Fed) -> None:
    done = fed.begin("verifications", "exact")
    assert done["state"] == "done" and done["progress"]["done"] == done["progress"]["total"] > 1, done
    result = done["result"]
    assert result["holds"] and result["rows"] >= 6 and result["first_difference"] is None, result
    assert result["since"] < result["until"]
    span = {key: done["request"][key] for key in ("since_ms", "until_ms")}
    again = fed.api.post(f"{HERE}/verifications", json={"id": "exact", **span})
    assert again.json() == done, "the same request is the same job"
    problem(fed.api.post(f"{HERE}/verifications", json={"id": "exact"}), 409, "id")
    assert fed.api.delete("/api/v1/verifications/exact").status_code == 204


@pytest.mark.soak
def test_rows_that_are_not_what_the_input_comes_to_are_found(fed: Fed) -> None:
    assert fed.begin("verifications", "wrong")["result"]["holds"]
    given, request = fed.jobs / "wrong" / GIVEN, fed.jobs / "wrong" / REQUEST
    lines = given.read_text().splitlines()
    given.write_text("\n".join([*lines[:4], lines[4].replace('"n": ', '"n": 1'), *lines[5:]]))
    result = fed.again("wrong")
    assert not result["holds"] and not result["same"] and result["first_difference"]["line"] == 5
    assert result["first_difference"]["given"] != result["first_difference"]["computed"]
    given.write_text("\n".join(lines[:-1]))
    request.write_text(json.dumps({**json.loads(request.read_text()), "show_rows": False}))
    assert fed.again("wrong")["first_difference"] == {"line": len(lines)}


@pytest.mark.soak
def test_a_backfill_has_the_rows_of_its_span_as_a_file(fed: Fed) -> None:
    done = fed.begin("backfills", "again")
    assert done["state"] == "done", done
    result = done["result"]
    fetched = fed.api.get("/api/v1/backfills/again/rows")
    assert fetched.status_code == 200 and len(fetched.content) == result["bytes"]
    rows = fetched.text.splitlines()
    assert len(rows) == result["rows"] >= 6
    given = [event.data for event in fed.installation.output("load", "stable").read(None, 1_000).events]
    first = given.index(rows[0])
    assert given[first : first + len(rows)] == rows
    assert all(result["since"] < json.loads(row)["window_end"] for row in rows)
    assert [each["id"] for each in fed.api.get("/api/v1/backfills").json()["backfills"]] == ["again"]


def test_the_client_has_a_call_for_each(address: str, tokens: TokenStore, jobs: Jobs) -> None:
    _, token = tokens.create("client", [Role.OPERATOR])
    with ApiClient(address, token) as api:
        for call in (api.verify_query, api.begin_backfill):
            with pytest.raises(ApiError) as refused:
                call("load", {"since_ms": 1.0})
            assert refused.value.status == 404
        job = jobs.post("backfill", "mine", "load", "ann", {})
        assert api.backfill(job.id)["state"] in ("queued", "running")
        with pytest.raises(ApiError) as refused:
            list(api.backfill_rows(job.id))
        assert refused.value.status == 409


def test_rows_are_fetched_when_they_are_there_and_may_be_shown(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs", command=IDLE)
    jobs.post("backfill", "mine", "load", "ann", {})
    jobs.post("verification", "other", "load", "ann", {})
    for shows, id_, status in ((True, "mine", 409), (True, "other", 404), (True, "none", 404), (False, "mine", 403)):
        app = create_app(ApiSettings(show_rows=shows), MemoryInstallation(), TokenStore(tmp_path, "ours"), jobs)
        api = TestClient(app, base_url=ADDRESS, headers={"Authorization": "Bearer ours"})
        problem(api.get(f"/api/v1/backfills/{id_}/rows"), status, "ID")
    jobs.close()


@pytest.mark.soak
def test_a_span_without_rows_is_no_verification(fed: Fed) -> None:
    wait_until(lambda: time.time() * 1_000 > fed.end_ms + 4_000)
    done = fed.begin("verifications", "empty", since_ms=fed.end_ms + 2_000, until_ms=fed.end_ms + 4_000)
    assert done["state"] == "failed" and "nothing was compared" in done["problem"]["problem"]


@pytest.mark.parametrize("kind", ["verifications", "backfills"])
def test_what_cannot_be_computed_is_refused(fed: Fed, kind: str) -> None:
    now_ms = time.time() * 1_000
    path = f"{HERE}/{kind}"
    problem(fed.api.post(f"/api/v1/queries/lod/{kind}", json={}), 404, "NAME")
    problem(fed.api.post(path, json={"until_ms": now_ms + 60_000}), 422, "until_ms")
    problem(fed.api.post(path, json={"since_ms": now_ms, "until_ms": now_ms - 1}), 422, "since_ms")
    problem(fed.api.post(path, json={"since_ms": "yesterday"}), 422, "since_ms")
    problem(fed.api.post(path, json={"days": 3}), 422, "days")
    problem(fed.api.post(path, json={"since_ms": now_ms - 7_200_000, "until_ms": now_ms - 3_600_000}), 410, "since_ms")
