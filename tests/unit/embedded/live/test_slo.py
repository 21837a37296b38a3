"""An objective of an embedded query, in skipped time: what clients were given is counted, and survives restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployment import status_fields
from deployment.events import SERVED
from embedded.live.journal import EventJournal
from embedded.live.query import LiveQuery
from tests.unit.embedded.live.test_engine import Begin, Drive, begin, killed, rows

__all__ = ["begin"]

SLO = {"objective": "99.9%", "window": "30d"}


def report(drive: Drive, query: LiveQuery) -> dict[str, Any]:
    found: dict[str, Any] = query.status(drive.now)["slo"]
    return found


def recorded(data: Path) -> list[dict[str, Any]]:
    return [dict(event.facts) for _, event in EventJournal(data).events if event.kind == SERVED]


@pytest.mark.soak
def test_a_failure_costs_the_budget_of_time_and_a_restart_forgets_nothing(tmp_path: Path, begin: Begin) -> None:
    drive = begin(tmp_path / "data")
    query = drive.demo()
    drive.engine.change("departures", {"slo": SLO}, drive.now)
    drive.run(10)  # the clock of these tests begins 20 s after a full minute
    calm = report(drive, query)
    assert set(calm) == set(status_fields.SLO)
    assert calm["time"]["share"] == 1.0 == calm["time"]["budget_left"] and calm["results"]["on_time"] > 0
    drive.cut(query, "cut jfk for 9s")
    drive.run(25)
    hurt = report(drive, query)
    assert rows(query, "tentative")
    assert 3_000 < hurt["time"]["tentative_ms"] < 15_000
    assert 0 < hurt["time"]["budget_left"] < 1 and hurt["time"]["burn_1h"] > hurt["time"]["burn_6h"] > 0
    assert hurt["results"]["late"] == query.status(drive.now)["violations"]
    drive.run(10)
    assert sum(each["tentative_ms"] for each in recorded(tmp_path / "data")) == hurt["time"]["tentative_ms"]
    # A crash forgets what was calm since the last record, and nothing else; an orderly end forgets nothing.
    before = report(drive, query)
    crashed = begin(killed(tmp_path / "data"), drive.now)
    assert report(crashed, crashed.engine.find("departures"))["time"]["tentative_ms"] == hurt["time"]["tentative_ms"]
    drive.engine.close()
    again = begin(tmp_path / "data", drive.now)
    after = report(again, again.engine.find("departures"))
    assert (after["results"], after["time"]["tentative_ms"]) == (before["results"], before["time"]["tentative_ms"])


def test_an_objective_comes_and_goes_while_the_query_runs(tmp_path: Path, begin: Begin) -> None:
    drive = begin(tmp_path)
    query = drive.demo()
    world = query._running
    drive.run(5)
    assert query.status(drive.now)["slo"] is None and recorded(tmp_path) == []
    drive.engine.change("departures", {"slo": "99%/7d"}, drive.now)
    assert report(drive, query)["results"]["on_time"] == 0
    drive.run(5)
    counted = report(drive, query)["results"]["on_time"]
    assert counted > 0 and report(drive, query)["objective"] == 99
    drive.engine.change("departures", {"slo": None}, drive.now)
    drive.run(5)
    assert query.status(drive.now)["slo"] is None
    assert [each["on_time"] for each in recorded(tmp_path)] == [counted]
    drive.engine.change("departures", {"slo": SLO}, drive.now)
    assert report(drive, query)["results"]["on_time"] == counted, "what came without an objective does not count"
    assert query._running is world, "nothing was restarted"


def test_a_pause_does_not_count(tmp_path: Path, begin: Begin) -> None:
    drive = begin(tmp_path)
    query = drive.demo()
    drive.engine.change("departures", {"slo": SLO}, drive.now)
    drive.run(5)
    drive.cut(query, "cut jfk for 600s")
    drive.run(9)
    held = report(drive, query)["time"]["tentative_ms"]
    assert held > 3_000
    drive.engine.pause("departures", True, drive.now)
    drive.run(120)
    assert report(drive, query)["time"]["tentative_ms"] == held
