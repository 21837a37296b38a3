"""The live engine in skipped time: nothing here sleeps, and each run repeats exactly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from boreal.model.errors import UserError
from boreal.operators import RowOperator
from boreal.operators.installed import provide
from boreal.query.plan import EGRESS
from boreal.query.spec import load_query
from deployment import status_fields
from deployment.corrections import Correction
from deployment.events import REPLAYED, RecordedEvent
from embedded.faults import parse_fault_at_once
from embedded.live import output as output_module
from embedded.live.engine import LiveEngine
from embedded.live.query import LiveQuery
from embedded.world import ModelClock
from formats.dead_letter import BEYOND_LIMIT, PUT_BACK_BEFORE, LetterChoice, ReplayOutcome
from formats.json_text import moment
from reconcile.events import InstanceId

BEGIN = 1_700_000_000_000_000
SECOND = 1_000_000

COUNTS = """
name: counts
streams:
  a: {time: at, schema: {k: string}, boundary: clock, disorder: 600ms}
operators:
  n: {aggregate: a, window: {tumbling: 1s}, by: [k], compute: {n: count(*)}}
output: n
delay_threshold: 3s
"""


class Drive:
    """An engine and its clock, which jumps from one action to the next."""

    def __init__(self, data: Path, now: int = BEGIN) -> None:
        self.now = now
        self.engine = LiveEngine(data, ModelClock())
        self.engine.begin(now)

    def demo(self) -> LiveQuery:
        return self.engine.put_demo(self.now)

    def run(self, seconds: float) -> None:
        end = self.now + round(seconds * SECOND)
        while (at := self.engine.next_at) is not None and at <= end:
            self.engine.turn(at)
        self.now = end

    def cut(self, query: LiveQuery, fault: str) -> None:
        query.strike(parse_fault_at_once(fault), self.now)


Begin = Callable[..., Drive]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Makes drives, and closes them in the end."""
    made: list[Drive] = []

    def make(data: Path, now: int = BEGIN) -> Drive:
        made.append(Drive(data, now))
        return made[-1]

    yield make
    for drive in made:
        drive.engine.close()


def killed(data: Path) -> Path:
    """The files as they would be if the process were killed now."""
    return Path(shutil.copytree(data, data.with_name(f"{data.name}-killed")))


def rows(query: LiveQuery, kind: str) -> list[dict[str, Any]]:
    return [json.loads(record.record) for record in query.ring.read(0, 100_000, False) if record.kind == kind]


def stable(query: LiveQuery) -> list[str | None]:
    return [record.data for record in query.ring.read(0, 100_000, True)]


def event(seconds: float, k: str) -> bytes:
    return json.dumps({"at": moment(BEGIN + round(seconds * SECOND)), "k": k}).encode()


def test_a_cut_gives_tentative_rows_within_x_which_are_undone_and_replaced(begin: Begin, tmp_path: Path) -> None:
    untroubled, drive = begin(tmp_path / "a"), begin(tmp_path / "b")
    expected, query = untroubled.demo(), drive.demo()
    untroubled.run(18)
    drive.run(8)
    drive.cut(query, "cut jfk for 6s")
    drive.run(6)
    status = query.status(drive.now)
    assert status["state"] != "FAILURE" and status["ready"]
    assert status["tentative"]["outstanding"] > 0
    assert {name for replica in status["replicas"] for name in replica["missing"]} == {"jfk"}
    drive.run(4)
    tentative = rows(query, "tentative")
    assert tentative and all(row["missing_inputs"] == ["jfk"] for row in tentative)
    assert tentative[0]["emitted_ms"] - (BEGIN / 1000 + 8_000) <= 3_000
    counts = query.status(drive.now)["counts"]
    assert counts["undone"] == counts["tentative"] == len(tentative)
    assert query.status(drive.now)["violations"] == 0
    assert stable(query) == stable(expected)
    assert query.status(drive.now)["state"] == "STABLE"


def test_corrections_are_told_of_every_instance_and_of_the_egress(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    told: list[tuple[str, str, InstanceId, Correction]] = []
    drive.engine.tell_corrections(lambda *what: told.append(what))
    query = drive.demo()
    drive.run(8)
    cut_at = drive.now
    drive.cut(query, "cut jfk for 6s")
    drive.run(10)
    assert {who.fragment for _, _, who, _ in told} == {"main", EGRESS} and len({who for _, _, who, _ in told}) == 3
    assert {(name, mode) for name, mode, _, _ in told} == {("departures", query.plan.mode.value)}
    first = {who: found for _, _, who, found in reversed(told)}
    for who, found in first.items():
        assert found.detected_at - cut_at < 6 * SECOND <= found.redo_at - cut_at < found.done_at + 1 - cut_at < 10 * SECOND
        if who.fragment == "main":
            assert found.missing == ("jfk",) and found.tentative_at is not None and found.rows > 0


def test_a_new_x_in_the_first_hold_takes_effect_within_a_bucket(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.demo()
    drive.run(10)
    drive.cut(query, "cut jfk for 8s")
    drive.run(1.5)
    assert not rows(query, "tentative")
    drive.engine.change("departures", {"delay_threshold": "1s"}, drive.now)
    drive.run(0.1 + 0.15)
    assert query.status(drive.now)["x_ms"] == 1_000
    drive.run(1)
    first = rows(query, "tentative")[0]
    assert first["emitted_ms"] - first["ingest_ms"] < 2_700
    assert first["emitted_ms"] <= BEGIN / 1_000 + 11_500 + 1_100, "a window of a second after the change"
    assert query.record.revision == 2


def test_boundaries_follow_x_without_a_restart_and_the_bucket_stays(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.engine.put(load_query(COUNTS), drive.now)
    drive.run(2)
    running = query._running
    drive.engine.change("counts", {"delay_threshold": "500ms"}, drive.now)
    assert (query.plan.bucket_us, query.plan.boundary_interval_us, query.plan.heartbeat_us) == (100_000, 50_000, 50_000)
    drive.run(2)
    assert query._running is running and query.status(drive.now)["state"] == "STABLE"
    assert running is not None and running.sources["a"].interval_us == 50_000
    with pytest.raises(UserError, match="write at least 249ms"):
        drive.engine.change("counts", {"delay_threshold": "200ms"}, drive.now)
    drive.engine.change("counts", {"delay_threshold": "200ms", "tuning": {"bucket": "10ms"}}, drive.now)
    assert query._running is not running and query.plan.bucket_us == 10_000


def test_a_greater_x_hides_the_failure(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.demo()
    drive.engine.change("departures", {"delay_threshold": "9s"}, drive.now)
    drive.run(4)
    drive.cut(query, "cut jfk for 5s")
    drive.run(6)
    assert not rows(query, "tentative")


def test_a_restart_goes_on_with_the_same_records(begin: Begin, tmp_path: Path) -> None:
    untroubled, drive = begin(tmp_path / "a"), begin(tmp_path / "b")
    expected, query = untroubled.demo(), drive.demo()
    untroubled.run(17)
    drive.run(6)
    drive.engine.change("departures", {"delay_threshold": "2s"}, drive.now)
    drive.cut(query, "cut jfk for 30s")
    drive.run(5)
    before = query.ring.read(0, 100_000, False)
    assert query.status(drive.now)["tentative"]["outstanding"] > 0
    again = begin(killed(tmp_path / "b"), drive.now + SECOND)
    query = again.engine.queries["departures"]
    after = query.ring.read(0, 100_000, False)
    assert [(r.seq, r.kind, r.data) for r in after[: len(before)]] == [(r.seq, r.kind, r.data) for r in before]
    assert query.plan.delay_threshold_us == 2 * SECOND and query.record.revision == 2
    again.run(6)
    assert query.problem is None
    seqs = [record.seq for record in query.ring.read(0, 100_000, False)]
    assert seqs == sorted(set(seqs))
    counts = query.status(again.now)["counts"]
    assert counts["undone"] == counts["tentative"] > 0
    both = min(len(stable(query)), len(stable(expected)))
    assert both > 10 and stable(query)[:both] == stable(expected)[:both]


def test_a_restart_after_a_trim_keeps_the_numbers(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "MARK_FRAMES", 30)
    monkeypatch.setattr("embedded.live.query.SEGMENT_BYTES", 2_000)
    drive = begin(tmp_path)
    query = drive.demo()
    for _ in range(2):
        drive.run(4)
        drive.cut(query, "cut lga for 3500ms")
    drive.run(6)
    last, counts = query.ring.last, query.status(drive.now)["counts"]
    before = {record.seq: record.data for record in query.ring.read(0, 100_000, False)}
    assert query._running is not None and query._running.output._log.start > 0
    drive.engine.close()
    again = begin(tmp_path, drive.now)
    query = again.engine.queries["departures"]
    assert query.problem is None and query.ring.last >= last
    assert query.status(again.now)["counts"]["stable"] >= counts["stable"] > 0
    kept = query.ring.read(0, 100_000, False)
    assert all(before.get(record.seq, record.data) == record.data for record in kept)
    again.run(1)
    assert query.problem is None and query.ring.last > last


def test_memory_is_bounded(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "MARK_FRAMES", 200)
    monkeypatch.setattr("embedded.live.query.SEGMENT_BYTES", 20_000)
    drive = begin(tmp_path)
    query = drive.demo()
    sizes = []
    for _ in range(4):
        drive.run(5)
        assert query._running is not None
        world = query._running.world
        assert not world.journal and not world.breaches
        sizes.append(max(log.end - log.start for log in (query._running.logs.open(each) for each in query._running.logs.ids())))
        assert len(world._events) < 100
    assert sizes[-1] < 600, sizes
    journal = query.journal.dump()
    assert len(journal) < 200
    ring = query.ring
    ring.add([output_module.RingRecord(ring.last + 1 + n, "stable", "{}", "{}") for n in range(output_module.KEPT_RECORDS)])
    assert len(ring.read(0, 100_000, True)) == output_module.KEPT_RECORDS
    assert ring.lost_to > 0


def test_posted_rows_are_counted_once_even_if_the_process_dies(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path / "a")
    query = drive.engine.put(load_query(COUNTS), drive.now)
    drive.run(2)
    query.post("a", [event(1.9, "x"), event(1.95, "y"), b'{"at": "nonsense"}'], drive.now)
    drive.run(0.3)
    query.post("a", [event(2.35, "x")], drive.now)  # not read before the end
    again = begin(killed(tmp_path / "a"), drive.now + SECOND // 2)
    query = again.engine.queries["counts"]
    again.run(5)
    found = [json.loads(row or "") for row in stable(query)]
    assert [(row["k"], row["n"]) for row in found] == [("x", 1), ("y", 1), ("x", 1)]
    assert query.problem is None


def test_a_row_ahead_of_the_clock_counts_once_its_letter_is_put_back_in_its_time(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.engine.put(load_query(COUNTS.replace("boundary: clock", "boundary: clock, ahead: 1s")), drive.now)
    drive.run(2)
    query.post("a", [event(1.95, "x"), event(5.9, "y"), b'{"at": "nonsense"}'], drive.now)
    drive.run(0.3)
    broken, ahead = query.newest_letters(LetterChoice(), 9).letters
    assert "ahead" in ahead.letter.reason and not ahead.replayed and ahead.at_ms == broken.at_ms <= drive.now / 1_000
    assert query.newest_letters(LetterChoice(reason="ahead"), 9).letters == (ahead,)
    [stream] = query.status(drive.now)["inputs"]
    assert stream["dlq"] == stream["dlq_per_minute"] == 2
    drive.run(3.6)
    said: list[RecordedEvent] = []
    drive.engine.journal.on_event = lambda number, event: said.append(event)

    def replay(choice: LetterChoice, limit: int = 9) -> ReplayOutcome:
        return drive.engine.replay("counts", choice, limit, drive.now, "ops")

    assert replay(LetterChoice(), 0) == ReplayOutcome(0, {BEYOND_LIMIT: 2})
    assert replay(LetterChoice(reason="ahead")) == ReplayOutcome(1, {})
    assert replay(LetterChoice()) == ReplayOutcome(1, {PUT_BACK_BEFORE: 1})
    drive.run(5)
    found = [json.loads(row or "") for row in stable(query)]
    assert [(row["k"], row["n"]) for row in found] == [("x", 1), ("y", 1)]
    assert [each.replayed for each in query.newest_letters(LetterChoice(), 9).letters] == [False, True, True]
    assert [(each.kind, each.by, each.facts["replayed"]) for each in said] == [(REPLAYED, "ops", 1), (REPLAYED, "ops", 1)]


def test_a_late_row_counts_once_the_stream_clamps_and_its_letter_is_put_back(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.engine.put(load_query(COUNTS), drive.now)
    drive.run(5)
    query.post("a", [event(1.0, "late"), event(4.9, "x")], drive.now)
    drive.run(3)
    [letter] = query.newest_letters(LetterChoice(), 9).letters
    assert letter.letter.reason.startswith("late by")
    drive.engine.put(load_query(COUNTS.replace("boundary: clock", "boundary: clock, late: clamp")), drive.now)
    drive.run(1)
    assert drive.engine.replay("counts", LetterChoice(), 9, drive.now, "ops").replayed == 1
    drive.run(5)
    found = [json.loads(row or "") for row in stable(query)]
    assert [(row["k"], row["n"]) for row in found] == [("x", 1), ("late", 1)]
    assert query.status(drive.now)["inputs"][0]["clamped"] == 1


def test_a_fault_can_be_ended_early_and_ends_in_time(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.demo()
    drive.run(3)
    drive.cut(query, "cut jfk for 60s")
    drive.cut(query, "cut lga for 2s")
    drive.run(3)
    assert query.heal("jfk") == 1 and query.heal("jfk") == 0
    drive.run(4)
    assert query._running is not None and not query._running.injector.active and not query._running.world.network.cuts
    assert query.status(drive.now)["state"] == "STABLE"
    texts = [entry["text"] for entry in query.journal.dump() if entry["kind"] == "fault"]
    assert texts == ["cut stream for 60 s", "cut stream for 2 s", "is over", "is over"]
    with pytest.raises(UserError, match="sfo"):
        drive.cut(query, "cut sfo for 5s")


def test_a_crash_and_a_new_mode_leave_the_results_as_they_are(begin: Begin, tmp_path: Path) -> None:
    untroubled, drive = begin(tmp_path / "a"), begin(tmp_path / "b")
    expected, query = untroubled.demo(), drive.demo()
    untroubled.run(18)
    drive.run(5)
    drive.cut(query, "crash main.r0 for 3s")
    drive.run(1)
    assert [replica["state"] for replica in query.status(drive.now)["replicas"]] == ["FAILURE", "STABLE"]
    drive.run(3)
    drive.cut(query, "cut ewr for 4s")
    drive.run(2)
    drive.engine.change("departures", {"reconcile": "overlay_redo", "policy": "process/delay"}, drive.now)
    drive.run(7)
    assert str(query.plan.mode) == "overlay_redo"
    assert not query._running.world.network.cuts  # type: ignore[union-attr]
    both = min(len(stable(query)), len(stable(expected)))
    assert both > 10 and stable(query)[:both] == stable(expected)[:both]


def test_a_paused_query_continues_where_it_stopped(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.demo()
    drive.run(4)
    drive.engine.pause("departures", True, drive.now)
    status, last = query.status(drive.now), query.ring.last
    assert (status["state"], status["inputs"][0]["state"], status["ready"]) == ("PAUSED", "paused", False)
    drive.run(10)
    assert query.ring.last == last
    drive.engine.pause("departures", False, drive.now)
    drive.run(2)
    assert query.ring.last > last and query.status(drive.now)["state"] == "STABLE"
    drive.engine.delete("departures", drive.now)
    assert not drive.engine.queries and not list((tmp_path / "queries").iterdir())


def test_a_query_that_breaks_begins_again_alone(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive = begin(tmp_path)
    query, other = drive.demo(), drive.engine.put(load_query(COUNTS), drive.now)
    drive.run(3)
    with monkeypatch.context() as patch:
        patch.setattr(query._running.output, "take", lambda *_: 1 / 0)  # type: ignore[union-attr]
        drive.run(0.5)
    assert query.problem == "ZeroDivisionError: division by zero"
    assert query.status(drive.now)["state"] == "FAILURE" and other.status(drive.now)["state"] == "STABLE"
    drive.run(2)
    assert query.problem is None and query.status(drive.now)["state"] == "STABLE"


def test_what_cannot_run_is_refused_and_changes_nothing(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.demo()
    with pytest.raises(UserError, match="delay_threshold"):
        drive.engine.change("departures", {"delay_threshold": "1ms"}, drive.now)
    with pytest.raises(UserError, match="cannot be set while the query runs"):
        drive.engine.change("departures", {"output": "late"}, drive.now)
    with pytest.raises(UserError, match="embedded installation"):
        drive.engine.put(load_query(COUNTS.replace("output", "engine: spark\noutput")), drive.now)
    with pytest.raises(UserError, match="takes no rows"):
        query.post("jfk", [b"{}"], drive.now)
    assert query.record.revision == 1 and list(drive.engine.queries) == ["departures"]


def test_a_status_has_the_documented_fields(begin: Begin, tmp_path: Path) -> None:
    drive = begin(tmp_path)
    query = drive.demo()
    drive.run(2)
    for paused in (False, True):
        drive.engine.pause("departures", paused, drive.now)
        status = query.status(drive.now)
        assert status.keys() == status_fields.QUERY.keys() - {"pid"}
        assert status["inputs"][0].keys() == status_fields.INPUT.keys()
        assert status["replicas"][0].keys() == status_fields.REPLICA.keys()
        assert status["egresses"][0].keys() == status_fields.EGRESS_OF_QUERY.keys()
        json.dumps(status)


def test_jobs_are_in_the_journal_once_also_after_a_restart(begin: Begin, tmp_path: Path) -> None:
    asked = {"id": "j", "kind": "comparison", "query": "q", "by": "ann", "created_ms": BEGIN / 1_000, "state": "queued",
             "ended_ms": None, "problem": None}  # fmt: skip
    first = begin(tmp_path)
    first.engine.see_jobs([asked], first.now)
    again = begin(tmp_path, first.now + SECOND)
    kinds: list[str] = []
    again.engine.journal.on_event = lambda number, event: kinds.append(event.kind)
    again.engine.see_jobs([{**asked, "state": "done", "ended_ms": BEGIN / 1_000 + 700}], again.now)
    assert kinds == ["job_done"]


class Picky(RowOperator):
    """Fails at one key."""

    deterministic = True

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if "bad" in rows.column("k").to_pylist():
            raise ValueError("a bad key")
        return rows


def test_an_operator_that_raises_is_named_and_ends_its_query_alone(begin: Begin, tmp_path: Path) -> None:
    provide("picky", Picky)
    file = load_query(COUNTS).dump()
    made = {"picked": {"python": "a", "operator": "picky"}, "n": {**file["operators"]["n"], "aggregate": "picked"}}
    drive = begin(tmp_path)
    query = drive.engine.put(load_query({**file, "name": "picky", "operators": made}), drive.now)
    other = drive.engine.put(load_query(COUNTS), drive.now)
    for each in (query, other):
        each.post("a", [event(1.0, "x"), event(2.0, "bad")], drive.now)
    drive.run(6)
    problem = "operators.picked: picky of tests has failed: ValueError: a bad key"
    assert query.problem == problem
    assert {replica["problem"] for replica in query.status(drive.now)["replicas"]} == {problem}
    assert other.problem is None and other.status(drive.now)["state"] == "STABLE" and len(stable(other)) == 2
    problems = []
    for _ in range(8):
        drive.run(5)
        problems.append(query.problem)
    assert problem in problems and other.status(drive.now)["state"] == "STABLE"
