"""A failure of a live query is run again from what its sources have logged: in skipped time, and the same each time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from api.event_history import EventHistory
from api.installation import ConflictError
from api.replays import Replay, ReplayRequest, check, faults_of, run, saved, span_of
from boreal.model.frames import INFINITY, Boundary, LogId
from boreal.query.spec import load_query
from embedded import recording
from embedded.faults import parse_fault_at_once
from embedded.live.query import LiveQuery
from embedded.recording import Recording, RowsGoneError, Span, TooManyRowsError, memory_us, record
from embedded.session import RunOptions, replay_session
from tests.unit.embedded.live.test_engine import BEGIN, COUNTS, SECOND, Drive, event, rows

MOST_ROWS = 100_000


def history_of(drive: Drive) -> EventHistory:
    history = EventHistory()
    drive.engine.journal.on_event = history.take
    return history


def the_failure(history: EventHistory, name: str = "departures") -> dict[str, Any]:
    [found] = history.failures(name)
    told = history.failure(name, found["id"])
    assert told is not None
    return dict(told)


def recorded(query: LiveQuery, failure: dict[str, Any], most_rows: int = MOST_ROWS) -> Recording:
    with closing(query.recorded()) as files:
        return record(query.plan, query.record.query, files.newest_first, span_of(failure), most_rows)


def replay_of(query: LiveQuery, failure: dict[str, Any]) -> Replay:
    recording = recorded(query, failure)
    faults = faults_of(failure, list(query.record.spec["streams"]), recording.begin)
    return Replay(query.record.spec, query.plan.bucket_us, faults, recording)


def results(replay: Replay, scratch: Path, **asked: Any) -> list[dict[str, Any]]:
    request = ReplayRequest(**asked)
    check(request, replay)
    table: list[dict[str, Any]] = run(request, replay, scratch, lambda done, total: None)["table"]
    return table


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveQuery, dict[str, Any]]]:
    """The demo after a cut of 6 s, and what is told of it."""
    drive = Drive(tmp_path_factory.mktemp("data"))
    history = history_of(drive)
    query = drive.demo()
    drive.run(12)
    query.strike(parse_fault_at_once("cut jfk for 6s"), drive.now, "cut jfk for 6s in departures")
    drive.run(12)
    yield query, the_failure(history)
    drive.engine.close()


def test_what_happened_happens_again_and_a_longer_x_hides_it(
    struck: tuple[LiveQuery, dict[str, Any]], tmp_path: Path
) -> None:
    query, failure = struck
    assert failure["rows_undone"] > 0
    replay = replay_of(query, failure)
    assert len(replay.faults) == 1 and replay.faults[0].startswith("cut jfk at ") and replay.faults[0].endswith(" for 6s")
    assert replay.recording.notes == ()
    same, shorter, longer = results(replay, tmp_path, delay_thresholds=["3s", "1s", "10s"])
    assert same["n_tentative"] == same["n_undone"] == failure["rows_undone"]
    assert shorter["n_tentative"] >= same["n_tentative"] and longer["n_tentative"] == 0
    assert all(row["is_stable"] and row["violations"] == 0 for row in (same, shorter, longer))


def test_it_is_the_same_after_it_was_written_and_read(
    struck: tuple[LiveQuery, dict[str, Any]], tmp_path: Path
) -> None:
    query, failure = struck
    replay = replay_of(query, failure)
    replay.recording.save(tmp_path / "recording")
    said = {"spec": replay.spec, "bucket_us": replay.bucket_us, "faults": replay.faults}
    again = saved(tmp_path, said)
    assert again.recording.n_rows == replay.recording.n_rows > 0
    assert results(again, tmp_path) == results(replay, tmp_path)


def test_the_stable_rows_of_a_replay_are_those_that_clients_got(
    struck: tuple[LiveQuery, dict[str, Any]], tmp_path: Path
) -> None:
    """From the first window that is whole: the recording goes back as far as windows do."""
    query, failure = struck
    replay = replay_of(query, failure)
    options = RunOptions(faults=replay.faults, seed=0)
    session = replay_session(replay.spec, replay.recording, replay.bucket_us, options)
    out = tmp_path / "out"
    out.mkdir()
    session.run(out)
    span = span_of(failure)
    wanted = [row["data"] for row in rows(query, "stable") if span.begin <= 1_000 * row["ingest_ms"] <= span.end - 50_000]
    replayed = [json.loads(line) for line in (out / "stable.jsonl").read_text().splitlines()]
    first = replayed.index(wanted[0])
    assert replayed[first : first + len(wanted)] == wanted and len(wanted) > 10


def test_a_replay_has_a_limit_of_rows(struck: tuple[LiveQuery, dict[str, Any]]) -> None:
    query, failure = struck
    with pytest.raises(TooManyRowsError, match="at most 20"):
        recorded(query, failure, most_rows=20)


def test_a_replay_has_a_limit_of_bytes(
    struck: tuple[LiveQuery, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, failure = struck
    monkeypatch.setattr(recording, "MOST_BYTES", 100)
    with pytest.raises(TooManyRowsError, match="MB over all streams"):
        recorded(query, failure)


@contextmanager
def posted(tmp_path: Path, seconds: int, window: str = "1s") -> Iterator[tuple[Drive, LiveQuery]]:
    """A query that got a row every 100 ms."""
    drive = Drive(tmp_path)
    query = drive.engine.put(load_query(COUNTS.replace("tumbling: 1s", f"tumbling: {window}")), drive.now)
    for tenth in range(10 * seconds):
        query.post("a", [event(tenth / 10, "x")], drive.now)
        drive.run(0.1)
    try:
        yield drive, query
    finally:
        drive.engine.close()


def again(query: LiveQuery, span: Span, most_rows: int = MOST_ROWS) -> Recording:
    with closing(query.recorded()) as files:
        return record(query.plan, query.record.query, files.newest_first, span, most_rows)


def test_what_is_trimmed_is_kept_for_a_while_and_then_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedded.live.query.SEGMENT_BYTES", 4_000)
    span = Span(BEGIN + 9 * SECOND, BEGIN + 11 * SECOND)
    with posted(tmp_path, 20) as (drive, query):
        assert query._running is not None
        log = query._running.logs.open(LogId("a", "", 0))
        oldest = next(frame for _, frame in log.read(log.start, 99) if isinstance(frame, Boundary))
        assert oldest.sent > span.end, "the log is trimmed"
        whole = again(query, span)
        assert whole.notes == () and whole.begin <= span.begin - SECOND
        assert 30 <= whole.n_rows <= 90, "10 a second, for 2 s, and those before that a window and the warm-up need"
        monkeypatch.setattr("embedded.live.source_archive.KEPT_BYTES", 1)
        drive.run(15)
        with pytest.raises(RowsGoneError, match=r"rows of a from .* are no longer kept: the oldest that is kept came at"):
            again(query, span)


def test_windows_that_lack_rows_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedded.live.query.SEGMENT_BYTES", 4_000)
    span = Span(BEGIN + 8 * SECOND, BEGIN + 9 * SECOND)
    with posted(tmp_path, 10, window="1h") as (_, query):
        assert memory_us(query.record.query) == 3_600 * SECOND
        assert again(query, span).notes == (), "nothing came before the query was there"
        short = again(query, span, 80)
        assert 10 < short.n_rows < 80 and "lack rows" in short.notes[0]


@pytest.mark.parametrize(
    ("operator", "memory"),
    [
        ({"distinct": "a", "on": ["k"]}, INFINITY),
        ({"aggregate": "a", "window": {"session": "1m"}, "compute": {"n": "count(*)"}}, INFINITY),
        ({"aggregate": "a", "window": {"session": "1m", "longest": "1h"}, "compute": {"n": "count(*)"}}, 3_600 * SECOND),
        ({"lookup": ["a", "a"], "on": ["k"]}, INFINITY),
        ({"lookup": ["a", "a"], "on": ["k"], "within": "1h"}, 3_600 * SECOND),
        ({"deduplicate": "a", "on": ["k"], "within": "1h"}, 3_600 * SECOND),
    ],
)
def test_how_long_a_row_can_matter_to_later_results(operator: dict[str, Any], memory: int) -> None:
    spec = {
        "name": "q", "streams": {"a": {"time": "at", "schema": {"k": "string"}}}, "output": "once", "delay_threshold": "3s",
        "operators": {"once": operator},
    }  # fmt: skip
    assert memory_us(load_query(spec)) == memory


FAILURE: dict[str, Any] = {
    "id": "f", "query": "q", "begun_ms": 10_000.0, "ended_ms": 14_000.0, "faults": [],
    "instances": [
        {"instance": "main.r0.0", "state": "UP_FAILURE", "missing": ["a", "b"], "detected_ms": 10_300.0, "healed_ms": 12_000.0},
        {"instance": "main.r1.0", "state": "FAILURE", "missing": [], "detected_ms": 11_000.0, "healed_ms": None},
        {"instance": "egress.local", "state": "UP_FAILURE", "missing": ["main"], "detected_ms": 11_000.0, "healed_ms": None},
    ],
}  # fmt: skip


def test_what_nobody_did_on_purpose_is_repeated_as_cuts_and_crashes() -> None:
    assert faults_of(FAILURE, ["a"], 8_000_000) == ["cut a to main.r0 at 2s for 2s", "crash main.r1 at 3s for 3s"]
    nothing = {**FAILURE, "instances": FAILURE["instances"][2:]}
    with pytest.raises(ConflictError, match="no cause"):
        faults_of(nothing, ["a"], 8_000_000)
    with pytest.raises(ConflictError, match="is not over"):
        span_of({**FAILURE, "ended_ms": None})


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("cut q.a for 9s", "cut a at 3s for 2s"),
        ("cut a to r0 for 9s in q", "cut a to r0 at 3s for 2s"),
        ("slow q.main.r0 by 500ms for 9s", "slow main.r0 by 500ms at 3s for 2s"),
        ("crash main.r1 for 9s losing checkpoint in q", "crash main.r1 at 3s for 2s losing checkpoint"),
    ],
)
def test_faults_on_purpose_last_as_long_as_they_did(text: str, again: str) -> None:
    struck = {"id": "1", "fault": text, "begun_ms": 11_000.0, "ended_ms": 13_000.0}
    before = {"id": "0", "fault": "cut b for 1s", "begun_ms": 1_000.0, "ended_ms": 2_000.0}
    assert faults_of({**FAILURE, "faults": [before, struck]}, ["a"], 8_000_000) == [again]
