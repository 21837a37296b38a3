"""A query of an embedded installation changes to another version: in skipped time, with cuts, and killed in each state."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.query.spec import load_query
from deployment.evolution import state_of
from embedded.faults import parse_fault_at_once
from embedded.live.query import LiveQuery
from formats.json_text import moment, time_us
from tests.thoroughness import every, some
from tests.unit.embedded.live.test_engine import BEGIN, SECOND, Drive, killed

SPEC: dict[str, Any] = {
    "name": "counts",
    "streams": {name: {"time": "at", "schema": {"k": "string", "v": "int"}, "disorder": "100ms"} for name in ("a", "b")},
    "operators": {
        "all": {"union": ["a", "b"]},
        "n": {"aggregate": "all", "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)"}},
    },
    "output": "n",
    "delay_threshold": "2s",
}
STEP_US = 50_000
COLUMNS = {1: {"n"}, 2: {"n", "total"}, 3: {"n", "least"}}


def version_of(number: int) -> dict[str, Any]:
    compute = {1: {"n": "count(*)"}, 2: {"n": "count(*)", "total": "sum(v)"}, 3: {"n": "count(*)", "least": "min(v)"}}[number]
    n = {**SPEC["operators"]["n"], "compute": compute}
    more = {2: {"shards": 2, "replicas": 2}}.get(number, {})
    return {**SPEC, "operators": {**SPEC["operators"], "n": n}, **more}


class Flow:
    """An engine whose query gets a row every 50 ms, and all that its clients have seen."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.drive = Drive(data)
        self.files = ExitStack()
        self.files.enter_context(closing(self.drive.engine))
        self.drive.engine.put(load_query(SPEC), self.drive.now)
        self.rows: list[tuple[int, str, int]] = []
        self.seen: dict[int, tuple[str, str]] = {}

    @property
    def query(self) -> LiveQuery:
        return self.drive.engine.queries["counts"]

    @property
    def state(self) -> str | None:
        return state_of(self.query.record)

    def step(self) -> None:
        number, at = len(self.rows), self.drive.now
        row = {"at": moment(at), "k": "xyz"[number % 3], "v": number}
        self.query.post("ab"[number % 2], [json.dumps(row).encode()], at)
        self.rows.append((at, "xyz"[number % 3], number))
        self.drive.run(STEP_US / SECOND)
        self._look()

    def _look(self) -> None:
        for each in self.query.ring.read(max(self.seen, default=0), 100_000, False):
            if each.kind != "boundary":
                self.seen[each.seq] = each.kind, each.record
        assert self.query.problem is None, self.query.problem

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * SECOND / STEP_US)):
            self.step()

    def until(self, state: str | None, within_s: float = 60) -> None:
        for _ in range(round(within_s * SECOND / STEP_US)):
            if self.state == state:
                return
            self.step()
        raise AssertionError(f"never {state}: {self.state}, {self.query.evolution}")

    def kill(self, record: str | None = None) -> None:
        """The process dies, and another one goes on after a while. record: what query.json has then."""
        self.data = killed(self.data)
        if record is not None:
            (self.data / "queries" / "counts" / "query.json").write_text(record)
        self.drive = Drive(self.data, self.drive.now + SECOND // 2)
        self.files.enter_context(closing(self.drive.engine))
        self._look()

    def evolve(self, number: int, start: str = "earliest") -> None:
        self.drive.engine.evolve(load_query(version_of(number)), start, self.drive.now, "ops")

    def check(self) -> list[int]:
        """Clients have each row once, as the version in charge then computes it. The versions, in order."""
        held: list[tuple[str, dict[str, Any]]] = []
        for _, (kind, text) in sorted(self.seen.items()):
            if kind == "undo":
                held = [each for each in held if each[0] == "stable"]
            elif kind in ("stable", "tentative"):
                assert kind == "tentative" or not held or held[-1][0] == "stable"
                held.append((kind, json.loads(text)["data"]))
        stable = [row for kind, row in held if kind == "stable"]
        times = [row["window_end"] for row in stable]
        assert times == sorted(times)
        last_us = time_us(times[-1])
        expected: dict[tuple[int, str], list[int]] = {}
        for at, k, v in self.rows:
            if (end := (at // SECOND + 1) * SECOND) < last_us:
                expected.setdefault((end, k), []).append(v)
        rows = [row for row in stable if time_us(row["window_end"]) < last_us]
        assert Counter((time_us(row["window_end"]), row["k"]) for row in rows) == Counter(dict.fromkeys(expected, 1))
        versions: list[int] = []
        for row in rows:
            values = expected[time_us(row["window_end"]), row["k"]]
            of_all = {"n": len(values), "total": sum(values), "least": min(values)}
            [number] = [number for number, columns in COLUMNS.items() if columns == row.keys() & of_all.keys()]
            assert {name: row[name] for name in COLUMNS[number]} == {name: of_all[name] for name in COLUMNS[number]}
            if versions[-1:] != [number]:
                versions.append(number)
        return versions


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    made = Flow(tmp_path / "data")
    with made.files:
        made.run(3)
        yield made


def test_a_version_takes_over_is_rolled_back_and_let_go_and_no_row_is_lost_or_repeated(flow: Flow) -> None:
    flow.evolve(2)
    assert flow.state == "building" and flow.query.status(flow.drive.now)["evolution"]["version"] == 2
    flow.until("taken_over")
    flow.run(4)
    assert flow.check() == [1, 2]
    status = flow.query.status(flow.drive.now)
    assert (status["version"], status["state"], status["violations"]) == (2, "STABLE", 0)
    assert {replica["replica"] for replica in status["replicas"]} == {"r0", "r1"}
    flow.drive.engine.roll_back("counts", flow.drive.now)
    flow.until("rolled_back")
    flow.run(4)
    assert flow.check() == [1, 2, 1]
    flow.drive.engine.settle("counts", flow.drive.now)
    assert flow.state is None and not (flow.query.directory / "versions" / "2").exists()
    flow.evolve(3, "latest")
    flow.until("taken_over")
    flow.run(3)
    flow.drive.engine.settle("counts", flow.drive.now)
    assert (flow.query.record.version, sorted(path.name for path in flow.query.directory.iterdir())) == (
        3, ["output.json", "posted", "query.json", "versions"],
    )  # fmt: skip
    flow.kill()
    flow.run(3)
    assert flow.check() == [1, 2, 1, 3]


@pytest.mark.parametrize("seed", range(some(20, 20)))
def test_a_process_that_dies_in_any_state_goes_on_with_the_next_step(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    flow = Flow(tmp_path / "data")

    def die_on_the_way(state: str) -> None:
        for _ in range(draw.randint(1, 3)):
            for _ in range(draw.choice([1, 5, 20, 45])):
                flow.step()
            flow.kill()
        flow.until(state)

    with flow.files:
        flow.run(2)
        flow.evolve(2)
        die_on_the_way("taken_over")
        flow.run(draw.choice([0.0, 2.0]))
        flow.drive.engine.roll_back("counts", flow.drive.now)
        die_on_the_way("rolled_back")
        flow.kill()
        flow.drive.engine.settle("counts", flow.drive.now)
        flow.kill()
        flow.run(3)
        assert flow.check() in ([1, 2, 1], [1])


def test_a_process_that_dies_between_the_mark_and_the_record_has_taken_over(flow: Flow) -> None:
    flow.evolve(2)
    flow.until("taking_over")
    record = (flow.query.directory / "query.json").read_text()
    flow.until("taken_over")
    flow.kill(record)
    assert flow.state == "taken_over" and flow.query.record.version == 2
    flow.run(3)
    assert flow.check() == [1, 2]
    flow.kill()
    flow.drive.engine.settle("counts", flow.drive.now)
    flow.kill()
    flow.run(2)
    assert flow.check() == [1, 2] and flow.query.record.beside is None


@pytest.mark.parametrize("seconds", every(4, [0.1, 1.0, 1.7, 2.2]))
def test_a_cut_in_the_midst_makes_rows_tentative_and_costs_none(flow: Flow, seconds: float) -> None:
    flow.evolve(2)
    flow.until("taking_over")
    flow.run(seconds)
    flow.query.strike(parse_fault_at_once("cut a for 4s"), flow.drive.now)
    flow.run(8)
    flow.until("taken_over")
    flow.run(4)
    assert flow.check() == [1, 2]
    assert any(kind == "tentative" for kind, _ in flow.seen.values())
    assert flow.query.status(flow.drive.now)["violations"] == 0


def test_a_version_that_is_late_at_the_time_of_the_takeover_gets_a_later_one(flow: Flow) -> None:
    flow.evolve(2)
    flow.until("taking_over")
    first = flow.query.record.takeover
    assert flow.query._beside is not None and first is not None
    for who in flow.query._beside.world.processes:
        if who.fragment == "egress":
            flow.query._beside.world.freeze(who)
    flow.run(4)
    later = flow.query.record.takeover
    assert flow.state == "taking_over" and later is not None and later.at > first.at
    for who in flow.query._beside.world.processes:
        flow.query._beside.world.thaw(who)
    flow.until("taken_over")
    flow.run(4)
    assert flow.check() == [1, 2]
    assert flow.query.status(flow.drive.now)["violations"] == 0


def test_a_version_that_fails_leaves_the_one_in_charge_alone_and_is_given_up(flow: Flow) -> None:
    flow.evolve(2)
    beside = flow.query._beside
    assert beside is not None
    beside.world.turn = lambda now: 1 / 0  # type: ignore[method-assign,assignment]
    flow.run(3)
    evolution = flow.query.evolution
    assert evolution is not None and "which fails: ZeroDivisionError" in evolution["waits_for"]
    flow.drive.engine.roll_back("counts", flow.drive.now)
    assert flow.state is None and not (flow.query.directory / "versions" / "2").exists()
    flow.run(3)
    assert flow.check() == [1]


def test_a_new_stream_takes_rows_before_the_version_that_reads_it_is_in_charge(flow: Flow) -> None:
    spec = version_of(2)
    streams = {**spec["streams"], "c": spec["streams"]["a"]}
    wider = {**spec, "streams": streams, "operators": {**spec["operators"], "all": {"union": ["a", "b", "c"]}}}
    with pytest.raises(UserError, match="is for a stack"):
        flow.drive.engine.evolve(load_query(wider), "state", flow.drive.now)
    flow.drive.engine.evolve(load_query(wider), "earliest", flow.drive.now)
    flow.query.post("c", [json.dumps({"at": moment(flow.drive.now), "k": "w", "v": 1}).encode()], flow.drive.now)
    with pytest.raises(UserError, match="choose from a, b, c"):
        flow.query.post("d", [b"{}"], flow.drive.now)


def test_a_new_x_and_a_pause_while_it_evolves(flow: Flow) -> None:
    flow.evolve(2)
    flow.run(0.5)
    engine = flow.drive.engine
    engine.change("counts", {"delay_threshold": "3s"}, flow.drive.now)
    assert flow.state in ("building", "taking_over") and flow.query.record.spec["delay_threshold"] == "3s"
    engine.pause("counts", True, flow.drive.now)
    assert flow.query.next_at is None
    engine.pause("counts", False, flow.drive.now)
    flow.until("taken_over")
    flow.run(3)
    assert flow.check() == [1, 2] and flow.drive.now > BEGIN


def test_the_demo_has_one_version(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    with closing(drive.engine):
        query = drive.demo()
        other = load_query({**query.record.spec, "output": "late"})
        with pytest.raises(UserError, match="is the demo"):
            drive.engine.evolve(other, "earliest", drive.now)
