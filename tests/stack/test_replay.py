"""A deployed query over REST: what its sources have logged, run again, as a failure under another X and without the failure;
and a new X while results are held back. In the order of the file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import create_app
from api.jobs import Jobs
from api.settings import ApiSettings
from api.stack import StackInstallation
from api.tokens import TokenStore
from bench.deployment import wait_until
from tests.stack.breaking import QUERY, X_S, Bench, flowing

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

PATH = f"/api/v1/queries/{QUERY['name']}/failures"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[Bench]:
    with flowing(tmp_path_factory.mktemp("replay") / "stack", QUERY) as bench:
        yield bench


@pytest.fixture
def api(bench: Bench, tmp_path: Path) -> Iterator[TestClient]:
    installation, tokens = StackInstallation(bench.deployment.settings), TokenStore(tmp_path, "ours")
    jobs = Jobs(tmp_path / "jobs")
    app = create_app(ApiSettings(), installation, tokens, jobs)
    headers = {"Authorization": "Bearer ours"}
    with closing(jobs), TestClient(app, base_url="http://127.0.0.1", headers=headers) as api:
        yield api


def over(api: TestClient, path: str) -> dict[str, Any]:
    """A job that is done."""
    wait_until(lambda: api.get(path).json()["state"] not in ("queued", "running"), f"{path} is over")
    told: dict[str, Any] = api.get(path).json()
    assert told["state"] == "done", told
    return told


@pytest.mark.soak
def test_a_cut_that_has_healed_is_replayed_and_its_results_are_verified(bench: Bench, api: TestClient) -> None:
    bench.breathe(8)  # a replay begins five seconds before the failure

    def failures() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = api.get(PATH).json()["failures"]
        return found

    with bench.deployment.cut("source.left"):
        # It is repeated from its detection on, which may be late on a busy machine. So it lasts for longer than X from then.
        wait_until(lambda: bool(failures()), "the failure is detected", bench.deployment.explain)
        bench.breathe(1.5 * X_S)

    def ended() -> list[dict[str, Any]]:
        return [each for each in failures() if each["state"] == "over" and each["rows_tentative"]]

    wait_until(lambda: bool(ended()), "the failure is over", bench.deployment.explain)
    [failure] = ended()
    asked = {"id": "longer", "delay_thresholds": ["3s", "30s"]}
    begun = api.post(f"{PATH}/{failure['id']}/replay", json=asked)
    assert begun.status_code == 202, begun.text
    result = over(api, "/api/v1/comparisons/longer")["result"]
    same, longer = result["table"]
    assert "cut left to main.r0" in " ".join(result["faults"]), result["faults"]
    assert same["n_tentative"] == same["n_undone"] > 0
    assert longer["n_tentative"] == 0
    assert same["n_stable"] == longer["n_stable"] > 0

    # What clients were given of it, corrections included, is what the rows come to without failures.
    span = {"since_ms": failure["detected_ms"] - 3_000, "until_ms": failure["ended_ms"] + 1_000}
    bench.breathe(2)
    for kind in ("verifications", "backfills"):
        begun = api.post(f"/api/v1/queries/{QUERY['name']}/{kind}", json={"id": kind, **span})
        assert begun.status_code == 202, begun.text
    verified, _ = (over(api, f"/api/v1/{kind}/{kind}") for kind in ("verifications", "backfills"))
    assert verified["result"]["holds"] and verified["result"]["rows"] >= 20, verified
    computed = api.get("/api/v1/backfills/backfills/rows").text.splitlines()
    given = bench.deployment.stable()
    first = given.index(json.loads(computed[0]))
    assert given[first : first + len(computed)] == [json.loads(row) for row in computed]


@pytest.mark.soak
def test_a_new_x_in_the_first_hold_of_a_failure_takes_effect_at_once(bench: Bench, api: TestClient) -> None:
    """The new X is over already when it comes. Under the old one results would be held back for 8 s longer."""

    def change_x(threshold: str) -> None:
        answer = api.patch(f"/api/v1/queries/{QUERY['name']}", json={"delay_threshold": threshold})
        assert answer.status_code == 200, answer.text

    change_x("10s")
    bench.breathe(2.0)
    since = len(bench.deployment.changes())

    def tentative_ms() -> list[float]:
        return [record["emitted_ms"] for record in bench.deployment.changes()[since:] if record["type"] == "tentative"]

    with bench.deployment.cut("source.left"):
        bench.breathe(1.0)
        assert tentative_ms() == []
        changed_ms = time.time() * 1_000
        change_x("1s")
        wait_until(lambda: bool(tentative_ms()), "results are tentative", bench.deployment.explain)
    assert changed_ms < min(tentative_ms()) < changed_ms + 5_000
