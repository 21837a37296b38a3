"""What an embedded installation records of its failures, and of who did what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from boreal.query.spec import load_query
from deployment.events import RecordedEvent
from deployment.failures import Failure, Failures
from embedded.faults import parse_fault_at_once
from embedded.live import journal as journal_module
from embedded.live.journal import EventJournal
from tests.unit.embedded.live.test_engine import BEGIN, COUNTS, SECOND, Drive, event, killed, rows


@pytest.fixture
def drives() -> Iterator[list[Drive]]:
    made: list[Drive] = []
    yield made
    for drive in made:
        drive.engine.close()


def recorded(data: Path) -> list[RecordedEvent]:
    return [event for _, event in EventJournal(data).events]


def failures_of(query: str, data: Path) -> list[Failure]:
    found = Failures()
    for each in recorded(data):
        found.take(each)
    return found.of(query)


def failures(data: Path) -> list[Failure]:
    return failures_of("departures", data)


def test_a_cut_is_one_failure_with_its_cause_its_phases_and_its_cost(drives: list[Drive], tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    drives.append(drive)
    query = drive.demo()
    drive.run(8)
    query.strike(parse_fault_at_once("cut jfk for 6s"), drive.now, "cut jfk for 6s in departures", "ann (chaos)")
    drive.run(12)
    [failure] = failures(tmp_path)
    told = failure.detail()
    tentative = rows(query, "tentative")
    assert (told["state"], told["missing"][0], told["x_ms"]) == ("over", "jfk", 3_000.0)
    assert told["rows_tentative"] == told["rows_undone"] == len(tentative) > 0 and told["late_rows"] == 0
    assert {each["instance"] for each in told["instances"]} >= {"main.r0.0", "main.r1.0"}
    [fault] = told["faults"]
    cut_ms = (BEGIN + 8 * SECOND) / 1_000
    assert (fault["fault"], fault["begun_ms"]) == ("cut jfk for 6s in departures", cut_ms)
    assert [phase["name"] for phase in told["phases"]] == ["detected", "held", "tentative", "redo"]
    assert cut_ms - 200 <= told["begun_ms"] <= told["detected_ms"] <= cut_ms + 1_000
    assert tentative[0]["emitted_ms"] == pytest.approx(told["clients"]["tentative_from_ms"], abs=1)
    healed = told["phases"][3]["from_ms"]
    assert cut_ms + 6_000 <= healed <= told["ended_ms"] <= cut_ms + 8_000
    by = [(event.kind, event.by) for event in recorded(tmp_path) if event.kind.startswith("chaos") or event.by]
    assert by == [("chaos_begun", "ann (chaos)"), ("chaos_undone", None)]


def test_a_failure_that_finds_early_answers_has_its_tentative_phase_all_the_same(drives: list[Drive], tmp_path: Path) -> None:
    """Where rows may be out of order for longer than X, clients hold early results when the failure begins."""
    drive = Drive(tmp_path)
    drives.append(drive)
    query = drive.engine.put(load_query(COUNTS.replace("disorder: 600ms", "disorder: 3500ms")), drive.now)

    def pass_seconds(number: int) -> None:
        for _ in range(number * 4):
            query.post("a", [event((drive.now - BEGIN) / SECOND, "x")], drive.now)
            drive.run(0.25)

    pass_seconds(8)
    assert query.status(drive.now)["tentative"]["cause"] == "early"
    before = len(failures_of("counts", tmp_path))  # its start may have been one
    query.strike(parse_fault_at_once("cut a for 5s"), drive.now, "cut a for 5s", "ann (chaos)")
    pass_seconds(4)
    assert query.status(drive.now)["tentative"]["cause"] != "early"
    pass_seconds(8)
    failure, *rest = failures_of("counts", tmp_path)
    assert len(rest) == before
    told = failure.detail()
    assert [phase["name"] for phase in told["phases"]] == ["detected", "held", "tentative", "redo"]
    assert all(phase["from_ms"] <= phase["to_ms"] for phase in told["phases"])


def test_a_calm_night_writes_nothing(drives: list[Drive], tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    drives.append(drive)
    drive.demo()
    drive.run(5)
    before = (tmp_path / "events.jsonl").read_bytes()
    drive.run(30)
    assert (tmp_path / "events.jsonl").read_bytes() == before
    assert [event.kind for event in recorded(tmp_path)] == ["created"]


def test_a_failure_that_outlasts_the_process_stays_one(drives: list[Drive], tmp_path: Path) -> None:
    first = Drive(tmp_path / "a")
    drives.append(first)
    query = first.demo()
    first.run(8)
    query.strike(parse_fault_at_once("cut jfk for 60s"), first.now, "cut jfk for 60s", "ann (chaos)")
    first.run(5)
    data = killed(tmp_path / "a")
    [open_] = failures(data)
    assert open_.summary()["state"] == "open"
    second = Drive(data, first.now)
    drives.append(second)
    second.run(10)
    [failure] = failures(data)
    assert failure.id == open_.id and failure.summary()["state"] == "over", "the fault ended with the process"
    assert failure.rows_undone == len(rows(query, "tentative"))
    assert [event.kind for event in recorded(data) if event.kind.startswith("chaos")] == ["chaos_begun", "chaos_undone"]
    numbers = [number for number, _ in EventJournal(data).events]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.soak
def test_a_crash_and_a_frozen_replica_are_failures_too(drives: list[Drive], tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    drives.append(drive)
    query = drive.demo()
    for fault in ("crash main.r0 for 3s", "freeze main.r0 for 3s"):
        drive.run(8)
        drive.cut(query, fault)
        drive.run(12)
    found = failures(tmp_path)
    assert [each.summary()["silent"] for each in found] == [["main.r0.0"], ["main.r0.0"]]
    assert all(each.summary()["state"] == "over" for each in found)


def test_who_changed_a_query_is_recorded(drives: list[Drive], tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    drives.append(drive)
    engine = drive.engine
    engine.put(load_query(COUNTS), drive.now, by="ann (operator)")
    engine.put(load_query(COUNTS), drive.now, by="ann (operator)")
    engine.change("counts", {"delay_threshold": "5s"}, drive.now, "bob (admin)")
    engine.pause("counts", True, drive.now, "bob (admin)")
    engine.pause("counts", False, drive.now, "bob (admin)")
    engine.restart("counts", drive.now, "bob (admin)")
    engine.see_tokens([{"id": "t1", "name": "ci", "roles": ["viewer"], "created_ms": drive.now / 1_000}], drive.now)
    engine.see_tokens([], drive.now)
    engine.delete("counts", drive.now, "eve (admin)")
    said = [(event.kind, event.by) for event in recorded(tmp_path)]
    assert said == [
        ("created", "ann (operator)"),
        ("changed", "bob (admin)"),
        ("paused", "bob (admin)"),
        ("resumed", "bob (admin)"),
        ("restarted", "bob (admin)"),
        ("token_made", "cli"),
        ("token_revoked", "cli"),
        ("deleted", "eve (admin)"),
    ]
    assert recorded(tmp_path)[1].facts["changes"] == {"delay_threshold": ["3s", "5s"]}


def test_the_file_is_bounded_and_a_torn_line_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "FILE_BYTES", 2_000)
    journal = EventJournal(tmp_path)
    for number in range(100):
        journal.record([RecordedEvent(float(number), "created", "q", "cli")])
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"n":101,"event":{"v":1,"at')
    again = EventJournal(tmp_path)
    again.record([RecordedEvent(7.0, "deleted", "q", "cli")])
    found = EventJournal(tmp_path).events
    assert [number for number, _ in found] == list(range(found[0][0], 102)) and found[-1][1].kind == "deleted"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 2_000
