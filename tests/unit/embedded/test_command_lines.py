"""Runs in which X was once broken by minutes, or a replica died, by the command lines that showed it; time is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from boreal_cli import main

QUERY: dict[str, Any] = {
    "name": "q",
    "streams": {name: {"topic": name, "time": "time", "schema": {"k": "int", "v": "double"}} for name in "ab"},
    "operators": {"all": {"union": ["a", "b"]}},
    "output": "all",
    "delay_threshold": "1s",
    "replicas": 2,
    "policy": {"failure": "process", "stabilization": "process"},
}


def run(query: dict[str, Any], options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The report of `boreal run`, which must end with exit status 0."""
    file = folder / "query.json"
    file.write_text(json.dumps(query))
    skipped = ["--speed", "1x", "--clock", "skip", "--seed", "1", "--out", str(folder / "out"), "--json"]
    assert main(["run", str(file), *options, *skipped]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("replica", ["r0", "r1"])
def test_a_replica_that_has_lost_another_input_too_is_left(
    replica: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever replica it is: the other one still has a, and answers within X."""
    options = ["--source", "a=generate:50,20", "--source", "b=generate:50,20"]
    options += ["--fault", "cut b at 3s for 14s", "--fault", f"cut a to {replica} at 6s for 10s"]
    report = run(QUERY, options, tmp_path, capsys)
    assert report["n_tentative"] > 0 and report["violations"] == 0 and report["delay_new_ms_max"] <= 1000


@pytest.mark.soak
def test_both_replicas_outlive_a_failure_that_is_long_for_an_unbounded_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operators = {"all": {"union": ["a", "b"]}, "seen": {"distinct": "all", "on": ["k"]}}
    query = {**QUERY, "operators": operators, "output": "seen", "reconcile": "checkpoint_redo"}
    options = ["--source", "a=generate:20,400,1000", "--source", "b=generate:20,400,1000"]
    report = run(query, [*options, "--fault", "cut b at 60s for 320s"], tmp_path, capsys)
    assert report["n_tentative"] > 0 and report["violations"] == 0 and report["delay_new_ms_max"] <= 1000
