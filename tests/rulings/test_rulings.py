"""One test for each ruling on the protocol, in our own words; each is held here on the embedded core.

Not here: R24's losses of a real control topic, R27's retention and the user's choice about endless failures, R28's
transactions and sites, R31 (Spark) and R32 (failpoints) belong to the services, and are tested on the real stack. What
holds of R24, R27 and R28 without them is tested.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.model.frames import INFINITY, Boundary, Data, LogId, RecDone, Start, State, Undo
from boreal.model.schema import Schema
from boreal.query.planner import plan as make_plan
from boreal.query.spec import Hold, load_query
from embedded.generate import START_US
from embedded.network import LinkCut
from embedded.run import Run
from logs.checkpoints import Checkpoint
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.memory_log import MemoryLog
from reconcile.events import Acknowledge, Frames, Heartbeat, Read, Threshold, Tick
from sunion.buckets import bucket_end
from tests.harness import (
    MS,
    InstanceDriver,
    Logged,
    Ran,
    RowClock,
    S,
    SUnionDriver,
    chain_of,
    clean,
    plan_of,
    query_of,
    rows_of,
    run,
    small_steps,
    stable_of,
    tentative_spans,
)

COUNT = {"window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)", "total": "sum(v)"}}
COUNTED = {"all": {"union": ["a", "b", "c"]}, "counted": {"aggregate": "all", **COUNT}}
KEYED = {name: {"time": "time", "schema": {"k": "int", "v": "double"}, "key": ["k"]} for name in ("a", "b", "c")}


def counted(**options: Any) -> dict[str, Any]:
    return query_of(COUNTED, "counted", **options)


def frames(history: list[Logged], kind: type) -> list[Any]:
    return [logged.frame for logged in history if isinstance(logged.frame, kind)]


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1e6)


# Streams, identity, order


def test_r01_the_unit_is_a_partition_and_control_frames_go_to_all_of_them() -> None:
    """Each partition of a stream counts its own ids; an UNDO goes to every one, with that one's last stable id; and the
    client's stream, merged from the shards, has the rows that one shard would have made. What has no key runs as one."""
    one, two = counted(), {**counted(shards=2), "streams": KEYED}
    ran = run(two, "cut b at 1s for 3s", rows="generate:100,6,20")
    assert ran.is_stable and ran.n_tentative > 0
    assert ran.stable == clean(two, "generate:100,6,20").stable
    assert sorted(map(str, ran.stable)) == sorted(map(str, clean(one, "generate:100,6,20").stable))
    for partition in (0, 1):
        history = ran.history("counted", "r0", partition)
        assert stable_of(history), "ids are contiguous in each partition, and every UNDO names its last stable one"
        assert frames(history, Undo)
    alone = plan_of({**query_of({"all": {"union": ["a", "b", "c"]}, "n": {"aggregate": "all", "window": {"tumbling": "1s"},
        "compute": {"n": "count(*)"}}}, "n"), "shards": 2})  # fmt: skip
    assert alone.fragment("main").shards == 1 and any("one shard" in note for note in alone.notes)


def test_r02_stable_ids_identify_and_tentative_ones_are_used_again_in_a_later_epoch() -> None:
    """Two replicas, and two epochs, may give one id to different tentative rows; only stable rows are one per id."""
    ran = run(query_of(), "cut b at 1s for 3s", rows="generate:50,6")
    data = frames(ran.history("all", "r0"), Data)
    tentative = {frame.first_id + row: frame.epoch for frame in data if frame.tentative for row in range(frame.batch.num_rows)}
    stable = {frame.first_id + row: frame.epoch for frame in data if not frame.tentative for row in range(frame.batch.num_rows)}
    shared = [number for number in tentative if number in stable]
    assert shared and all(stable[number] > tentative[number] for number in shared)


def test_r03_an_undo_revokes_all_that_is_tentative_and_stable_boundaries_only_rise() -> None:
    """UNDO carries the last stable id; tentative boundaries fall with it, stable ones never."""
    ran = run(query_of(), "cut b at 1s for 3s", "crash main.r1 at 5s for 500ms", rows="generate:50,8")
    for replica in ("r0", "r1"):
        history = ran.history("all", replica)
        stable_of(history)
        boundaries = frames(history, Boundary)
        times = [frame.time for frame in boundaries if not frame.tentative]
        assert times == sorted(times)
        assert [frame.time for frame in boundaries if frame.tentative]
    one = SUnionDriver("a")
    one.boundary("a", 10)
    one.boundary("a", 30, tentative=True)
    one.undo("a")
    assert one.ports["a"].boundary == 10


def test_r04_every_frame_names_the_end_of_the_bucket_that_caused_it() -> None:
    """t_max is what tells corrections from news, and where a reader goes on after a switch."""
    ran = run(query_of(), "cut b at 1s for 2s", rows="generate:50,5")
    for stream, replica in (("a", ""), ("all", "r0"), ("q", "r0")):
        for frame in frames(ran.history(stream, replica), Data):
            assert frame.t_max == bucket_end(frame.batch.column(0)[-1].as_py(), ran.plan.bucket_us)


def test_r05_results_do_not_depend_on_where_steps_are_cut_or_on_the_bucket() -> None:
    """The same rows, in the same order, under the same ids: in small steps, in large ones, and with other buckets."""
    expected = stable_of(clean(counted(), "generate:80,4").history("counted", "r0"))
    small = run(counted(), rows="generate:80,4", prepare=small_steps(1))
    other = run(counted(tuning={"bucket": "50ms"}), rows="generate:80,4")
    late = run(counted(), "slow a by 400ms at 1s for 2s", rows="generate:80,4")
    for ran in (small, other, late):
        assert stable_of(ran.history("counted", "r0")) == expected


XY = Schema.of({"k": "int", "v": "double"})


def output_times(operator: dict[str, Any], left: list[tuple[int, float]], right: list[tuple[int, float]]) -> list[int]:
    """Event times, in ms after the start, of what an operator named `out` over streams l and r makes of rows (ms, v)."""
    query = query_of({"out": operator}, "out", streams=("l", "r"))
    used = [name for name in ("l", "r") if name in str(operator)]
    query["streams"] = {name: query["streams"][name] for name in used}
    held = {
        name: rows_of(name, [START_US + at * MS for at, _ in rows], {"k": [1] * len(rows), "v": [v for _, v in rows]}, XY)
        for name, rows in (("l", left), ("r", right))
        if name in used
    }
    ran = run(query, rows=held)
    return [(us(record["event_time"]) - START_US) for record in ran.of("stable")]


WINDOW = {"tumbling": "1s"}

OUTPUT_TIMES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "filter": ({"filter": "l", "where": "v > 1"}, [20 * MS, 1500 * MS]),
    "map": ({"map": "l", "select": {"w": "v + 1"}}, [10 * MS, 20 * MS, 1500 * MS]),
    "union": ({"union": ["l", "r"]}, [10 * MS, 15 * MS, 20 * MS, 1500 * MS]),
    "aggregate": ({"aggregate": "l", "window": WINDOW, "compute": {"n": "count(*)"}}, [S - 1, 2 * S - 1]),
    "top": ({"top": "l", "k": 1, "order_by": "v", "window": WINDOW}, [S - 1, 2 * S - 1]),
    "distinct": ({"distinct": "l", "on": ["k"], "window": WINDOW}, [10 * MS, 1500 * MS]),
    "deduplicate": ({"deduplicate": "l", "on": ["k"], "within": "1s"}, [10 * MS, 1500 * MS]),
    "sessions": (
        {"aggregate": "l", "window": {"session": "100ms"}, "compute": {"n": "count(*)"}},
        [120 * MS - 1, 1600 * MS - 1],
    ),
    "inner lookup": ({"lookup": ["l", "r"], "on": ["k"]}, [20 * MS, 1500 * MS]),
    "left lookup": (
        {"lookup": ["l", "r"], "on": ["k"], "within": "100ms", "how": "left"},
        [10 * MS, 20 * MS, 1500 * MS],
    ),
    "inner join": ({"join": ["l", "r"], "on": ["k"], "within": "100ms"}, [15 * MS, 20 * MS]),
    "left join": (
        {"join": ["l", "r"], "on": ["k"], "within": "100ms", "how": "left"},
        [15 * MS, 20 * MS, 1600 * MS],
    ),
}
"""What each operator makes of l = 10, 20 and 1500 ms, and r = 15 ms (R6; docs/protocol.md publishes the table)."""


@pytest.mark.parametrize("kind", OUTPUT_TIMES)
def test_r06_output_times(kind: str) -> None:
    """A result's time is its input's; of a window, its end less 1 us; of a pair, the later one's; of a left row that
    found no partner, the end of its window less 1 us, for it comes when the boundary has passed that."""
    operator, expected = OUTPUT_TIMES[kind]
    found = output_times(operator, [(10, 1.0), (20, 2.0), (1500, 3.0)], [(15, 1.0)])
    assert found == expected


def test_r06_an_outputs_boundary_is_its_inputs() -> None:
    """So every SUnion downstream may close the same buckets: no window result comes after the boundary that closed it."""
    ran = clean(counted(), "generate:80,4")
    for logged, after in pairwise(ran.history("counted", "r0")):
        if isinstance(logged.frame, Data):
            assert isinstance(after.frame, Boundary)
            assert logged.frame.batch.column(0)[-1].as_py() < after.frame.time
            assert after.frame.time % ran.plan.bucket_us == 0 or after.frame.time == INFINITY


def test_r07_byte_equality_is_of_values_ids_and_times() -> None:
    """Replicas, and lives of one replica, differ in producer, epoch and clocks, and in nothing else."""
    ran = run(query_of(), "crash main.r0 at 1s for 1s", rows="generate:50,4")
    first, second = (ran.history("all", replica) for replica in ("r0", "r1"))
    assert {frame.origin for frame in frames(first, Data)} != {frame.origin for frame in frames(second, Data)}
    assert stable_of(first) == stable_of(second) == stable_of(clean(query_of(), "generate:50,4").history("all", "r0"))


# Deadlines


def test_r08_ingest_time_travels_with_the_frames_so_x_is_counted_once() -> None:
    """Down a chain every SUnion counts from when the source logged the tuple, and none from when it got it."""
    ran = clean(chain_of(3), "generate:50,3")
    logged = {row.at for row in ran.history("a", "")}
    for frame in frames(ran.history("s3", "r0"), Data):
        assert all(at in logged for _, at in frame.ingest)
    assert all(record["emitted_ms"] - record["ingest_ms"] < 300 for record in ran.of("stable"))


def test_r08_a_backlog_drained_after_an_outage_is_not_overdue_at_once() -> None:
    """All streams were cut for far longer than X: what then arrives is old, but it arrives together. Only the rows of the
    bucket that the cut tore apart were overdue before. (`process` may release it without its being overdue.)"""
    cuts = [f"cut {name} at 1s for 3s" for name in "abc"]
    ran = run(query_of(policy="delay/delay"), *cuts, rows="generate:50,6")
    assert ran.is_stable and ran.n_tentative <= 15


def test_r09_alpha_x_is_x_less_what_comes_after_and_is_frozen_while_not_stable() -> None:
    """Upstream fragments may hold back less than those after them; all of it is reported."""
    ran = clean(chain_of(3), "generate:50,3")
    alphas = {who.fragment: p.instance.status().alpha_x_us for who, p in ran.world.processes.items() if p.instance}
    assert 250 * MS <= alphas["f1"] < alphas["f2"] < alphas["f3"] < S
    assert ran.report["alpha_x_ms"] == min(alphas.values()) / MS
    one = InstanceDriver(plan_of(query_of()))
    assert one.instance.status().alpha_x_us == S - (100 + 50) * MS, "a bucket and a boundary interval, more than a tenth of X"
    one.give(Threshold.of(replace(one.instance.plan, delay_threshold_us=2 * S)))
    assert one.instance.status().alpha_x_us == 1800 * MS, "a new X holds at once; a tenth of it is kept back"


def test_r09_an_alpha_x_fixed_by_the_user_is_kept() -> None:
    ran = clean(query_of(tuning={"alpha_x": "333ms"}), "generate:50,3")
    assert ran.report["alpha_x_ms"] == 333


def test_r09_a_fixed_alpha_x_is_that_of_who_reads_sources_and_the_rest_of_the_path_has_what_x_leaves() -> None:
    """Deadlines count from ingest: whoever is further down gets rows when the fixed time is over, and must still be able to
    wait for another shard's."""
    ran = clean(chain_of(3, tuning={"alpha_x": "333ms"}), "generate:50,3")
    alphas = {who.fragment: p.instance.status().alpha_x_us for who, p in ran.world.processes.items() if p.instance}
    assert alphas["f1"] == 333 * MS < alphas["f2"] < alphas["f3"] <= alphas["egress"] < S
    assert ran.report["alpha_x_ms"] == 333
    late = clean(chain_of(2, tuning={"alpha_x": "950ms"}), "generate:50,3")
    assert {p.instance.status().alpha_x_us for p in late.world.processes.values() if p.instance} == {950 * MS}


def test_r10_a_failure_is_advertised_at_detection_and_answered_tentatively_only_at_the_deadline() -> None:
    """Readers can leave early for a STABLE replica; the client sees nothing before alpha*X."""
    ran = run(query_of(replicas=1), "cut b at 2s for 3s", rows="generate:50,7")
    (since, _), *_ = ran.during("UP_FAILURE", "main")
    assert 2000 < since < 2000 + 4 * 50
    first = ran.of("tentative")[0]["emitted_ms"]
    assert first > 2000 + 0.8 * ran.report["alpha_x_ms"]
    advertised = [logged.at for logged in ran.history("all", "r0") if getattr(logged.frame, "state", None) is State.UP_FAILURE]
    assert advertised[0] == pytest.approx(since * MS, abs=2 * MS)


@pytest.mark.parametrize(("hold", "given"), [(Hold.PROCESS, 11), (Hold.DELAY, 1), (Hold.SUSPEND, 0)])
def test_r11_after_the_first_hold_a_policy_says_when_a_bucket_leaves(hold: Hold, given: int) -> None:
    """process: as soon as the ports that are not missing have passed it; delay: at its deadline; suspend: never."""
    one = SUnionDriver("a", "b", failure=hold)
    one.boundaries(0)
    one.at(0)
    one.silence("b")
    left: list[Any] = []
    for at in range(500, 1600, 100):
        one.now = at
        one.rows("a", (at - 500) // 10, ingest=at)
        one.boundary("a", (at - 500) // 10 + 10, ingest=at)
        left += [item for item in one.at(at) if item[0] == "tentative"]
    assert sum(len(rows) for _, rows, _ in left) == given


def test_r11_rows_of_a_port_that_rejoins_late_are_kept_for_the_redo_only() -> None:
    one = SUnionDriver("a", "b")
    one.boundaries(0)
    one.at(0)
    one.silence("b")
    one.rows("a", 3, ingest=0)
    one.boundary("a", 10, ingest=0)
    assert one.at(1000) == [("mark", 1), ("tentative", [(3, 0)], 10)]
    one.silence("b", False)
    one.rows("b", 4, 14, ingest=0)
    one.rows("a", 13, ingest=1000)
    one.boundaries(20)
    assert one.at(1000) == [("tentative", [(13, 1), (14, 1)], 20)]
    one.sunion.roll_back(one.now, 0, keep_live=False)
    assert one.at(1000)[0] == ("stable", [(3, 0), (4, 0), (13, 1), (14, 1)], 20)


def test_r12_while_behind_it_is_recovering_sends_nothing_tentative_and_is_not_read() -> None:
    """A replica that comes back has a backlog: no deadline holds, and its readers stay with the other."""
    ran = run(query_of(), "cut main.r0 at 1s for 3s", rows="generate:200,6", clock=RowClock(300))
    assert ran.is_stable and ran.n_tentative == 0
    spans = ran.during("RECOVERING", "main", "r0")
    assert spans
    tentative = [logged.at / MS for logged in ran.history("all", "r0") if getattr(logged.frame, "tentative", False)]
    for since, until in spans:
        assert not any(since < at < until for at in tentative)
        assert {r["replica"] for r in ran.of("stable") if since < r["emitted_ms"] < until} <= {"r1"}


@pytest.mark.parametrize(("memory", "in_turn"), [("1KB", 1), ("256MB", 4)])
def test_r12_time_passes_fairly_beside_a_backlog(memory: str, in_turn: int) -> None:
    """Eight inputs, each with a backlog in small frames, on a machine that needs 10 ms for each: the inbox is never empty.
    Rounds of work come between the events. None of them blames an input for what waits in the inbox, or takes a bucket for
    overdue whose rows are there, and memory holds. in_turn: how many frames of an input come in a row."""
    names = [f"s{number}" for number in range(8)]
    one = InstanceDriver(plan_of(query_of(streams=names, x="1s", tuning={"memory": memory})))
    inbox: list[Frames] = []
    frame_bytes = 0
    for since in range(0, 40, in_turn):
        for name in names:
            for number in range(since, since + in_turn):
                data = one.rows(name, list(range(number * 100 * MS, (number + 1) * 100 * MS, 5 * MS)))
                frame_bytes = max(frame_bytes, data.batch.nbytes)
                items = ((2 * number, data), (2 * number + 1, one.boundary((number + 1) * 100 * MS)))
                inbox.append(Frames(LogId(name, "", 0), items, 80))
    pauses, ticked_at = [], 0
    while inbox:
        if one.instance.is_starving(one.now):
            pauses.append(one.now - ticked_at)
            ticked_at = one.now
            one.effects += one.instance.handle(Tick(0), one.now)
        else:
            one.effects += one.instance.handle(inbox.pop(0), one.now)
        one.now += 10 * MS
        assert one.instance.held_bytes <= one.plan.memory_bytes + frame_bytes
        assert one.state is State.STABLE
    assert max(pauses) <= one.plan.heartbeat_us and one.now > 3 * one.plan.delay_threshold_us
    # What memory has no room for is asked for again; there are no logs here that would give it.
    assert one.sent(Heartbeat) and (one.frames(Data) or any(isinstance(effect, Read) for effect in one.effects))
    assert not any(frame.tentative for frame in one.frames(Data))  # type: ignore[union-attr]


@pytest.mark.parametrize(("cut_ms", "leaves_trace"), [(650, False), (1100, True)])
def test_r13_what_counts_as_a_short_failure(cut_ms: int, leaves_trace: bool) -> None:
    """No tentative tuple if the cut, a bucket, a boundary interval and the time to reconnect stay below alpha*X."""
    ran = run(query_of(), f"cut b at 2003ms for {cut_ms}ms", rows="generate:100,5")
    assert (ran.n_tentative > 0) == leaves_trace
    if not leaves_trace:
        assert cut_ms + 100 + 50 + 5 < ran.report["alpha_x_ms"]


def test_r14_a_result_is_a_correction_iff_its_bucket_was_given_before() -> None:
    """delay_new, measured at the client, leaves corrections out, however late they are."""
    ran = run(query_of(), "cut b at 1s for 4s", rows="generate:50,7")
    highest, worst = "", 0.0
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for record in ran.changes:
        if record["type"] in ("stable", "tentative"):
            groups.setdefault((record["emitted_ms"], record["type"]), []).append(record)
    for records in groups.values():
        new = [record for record in records if record["t_max"] > highest]
        worst = max([worst, *(record["emitted_ms"] - record["ingest_ms"] for record in new)])
        highest = max([highest, *(record["t_max"] for record in records)])
    assert ran.delay_ms == pytest.approx(worst, abs=0.01)
    corrections = [r["emitted_ms"] - r["ingest_ms"] for r in ran.of("stable")]
    assert max(corrections) > 3000 > worst


def joined(how: str) -> dict[str, Any]:
    return query_of({"paired": {"join": ["a", "b"], "on": ["k"], "within": "200ms", "how": how}}, "paired", streams=("a", "b"))


def test_r15_an_inner_join_with_a_dead_side_owes_nothing_and_a_left_join_owes_nulls() -> None:
    """I3 speaks of paths through operators that do not block."""
    inner = run(joined("inner"), "cut b at 1s for 4s", rows="generate:50,7")
    left = run(joined("left"), "cut b at 1s for 4s", rows="generate:50,7")
    assert not [record for record in inner.of("tentative") if us(record["event_time"]) > START_US + 1500 * MS]
    late = [record for record in left.of("tentative") if us(record["event_time"]) > START_US + 1500 * MS]
    assert late and left.report["violations"] == 0
    right = [name for name in late[0]["data"] if name.endswith("_right")]
    assert right and all(record["data"][name] is None for record in late[: len(late) // 2] for name in right)
    assert inner.stable == clean(joined("inner"), "generate:50,7").stable
    assert left.stable == clean(joined("left"), "generate:50,7").stable


# Healing


def test_r16_rolling_failures_do_not_starve_stable_output() -> None:
    """Some stream is always cut, so no failure ever heals in full; yet stable output follows S within stable_lag_max."""
    query = query_of(tuning={"stable_lag_max": "1500ms"})
    cuts = [f"cut {'abc'[at % 3]} at {1000 + 1500 * at}ms for 1700ms" for at in range(6)]
    ran = run(query, *cuts, rows="generate:50,13")
    assert ran.is_stable and ran.stable == clean(query, "generate:50,13").stable
    while_failing = [record for record in ran.of("stable") if 4000 < record["emitted_ms"] < 9500]
    assert len({record["emitted_ms"] for record in while_failing}) >= 2, "corrections came in between"
    # Stable output never trails by more than the longest cut, stable_lag_max and the time of a redo.
    since = [0.0, *sorted({record["emitted_ms"] for record in ran.of("stable")})]
    assert max(after - before for before, after in pairwise(since)) < 1700 + 1500 + 1000


def test_r16_only_stable_boundaries_decide_when_a_failure_has_healed() -> None:
    """A REC_DONE from upstream ends the reading of two branches, and nothing else."""
    one = SUnionDriver("a", "b")
    one.boundaries(10)
    one.at(0)
    one.silence("b")
    one.rows("a", 11, ingest=0)
    one.boundary("a", 20, ingest=0)
    one.at(1000)
    one.silence("b", False)
    one.boundary("b", 20, tentative=True)
    assert one.sunion.healed(1000, one.sunion.base.position) is None
    one.boundary("b", 20)
    assert one.sunion.healed(1000, one.sunion.base.position) is not None


def slow(policy: str = "process/process", cut: str = "3s", **options: Any) -> Ran:
    """Redo takes long, in small pieces: 0.5 ms a row."""
    query = query_of(policy=policy, tuning={"bucket": "20ms"}, **options)
    return run(query, f"cut b at 1s for {cut}", rows="generate:200,8", clock=RowClock(500), prepare=small_steps(1))


def test_r17_beside_a_live_replica_a_correcting_one_is_read_without_being_shown() -> None:
    """The visible stream stays with the live replica while the other corrects; then one UNDO, corrections, REC_DONE."""
    ran = slow()
    first = min(ran.during("STABILIZATION", "main", "r0") + ran.during("STABILIZATION", "main", "r1"))
    meanwhile = [r for r in ran.changes if first[0] + 100 < r["emitted_ms"] < first[1] - 100]
    assert {record["type"] for record in meanwhile} <= {"tentative", "boundary"}
    assert any(record["type"] == "tentative" for record in meanwhile)
    kinds = [r["type"] for r in ran.changes if r["type"] != "boundary"]
    order = [kind for kind, after in pairwise([*kinds, ""]) if kind != after]
    for before, after in pairwise(order):
        assert before != "undo" or after in ("stable", "rec_done"), order


def test_r18_a_failure_in_mid_correction_is_parted_from_it_by_a_rec_done() -> None:
    """The second failure comes while the first is being corrected, slowly."""
    query = query_of(tuning={"bucket": "20ms", "alpha_x": "200ms"})
    ran = run(
        query, "cut b at 1s for 3s", "cut a at 3900ms for 2s",
        rows="generate:200,8", clock=RowClock(500), prepare=small_steps(1),
    )  # fmt: skip
    assert ran.is_stable and ran.stable == clean(query, "generate:200,8").stable
    for replica in ("r0", "r1"):
        [kinds] = tentative_spans(ran.history("all", replica))
        since_undo = False
        for kind in kinds:
            assert not (kind == "tentative" and since_undo), kinds
            since_undo = kind == "undo" or (since_undo and kind not in ("rec_done", "start"))


class DeafStore(MemoryCheckpointStore):
    """A checkpoint store out of reach: nothing ever arrives."""

    def put(self, checkpoint: Checkpoint) -> None:
        self.damaged.append((checkpoint.instance, checkpoint.number))


def test_r19_the_copy_in_memory_serves_the_rollback_and_the_store_delays_nothing() -> None:
    """MARK copies in the process; the upload goes on behind, and counts only once it has finished."""
    deaf = DeafStore()
    lost = run(counted(), "cut b at 1s for 3s", rows="generate:50,6", store=deaf)
    fine = run(counted(), "cut b at 1s for 3s", rows="generate:50,6")
    assert deaf.damaged and not deaf.blobs
    assert lost.changes == fine.changes
    reconciliations = fine.report["reconciliations"]
    assert reconciliations and all(entry["checkpoint_bytes"] > 0 for entry in reconciliations)


def test_r20_undo_redo_rebuilds_from_the_oldest_input_that_still_counts() -> None:
    """Its log may be trimmed up to there only; operators whose state never lets go refuse the mode."""
    ran = run(counted(reconcile="undo_redo"), "cut b at 1600ms for 2s", rows="generate:100,6")
    assert ran.stable == clean(counted(reconcile="undo_redo"), "generate:100,6").stable
    # The window open at the mark began at 1 s: 0.6 s of 300 rows/s are rebuilt beside the 2 s redone.
    reconciliations = ran.report["reconciliations"]
    assert reconciliations and all(entry["tuples_redone"] > 2.5 * 300 for entry in reconciliations)
    with pytest.raises(UserError, match="undo_redo cannot rebuild"):
        load_query(query_of({"u": {"distinct": "a", "on": ["k"]}}, "u", streams=("a",), reconcile="undo_redo"))


def test_r21_alone_only_the_overlay_goes_on_during_a_correction() -> None:
    """One replica: overlay_redo keeps its overlay live while the base is redone; other modes act as suspend, and say so."""
    overlay = slow(cut="5s", replicas=1, reconcile="overlay_redo")
    copied = slow(cut="5s", replicas=1, reconcile="checkpoint_redo")
    assert overlay.is_stable and overlay.report["violations"] == 0
    assert copied.report["violations"] > 0
    assert any("acts as suspend" in note for note in copied.report["notes"])
    assert not any("acts as suspend" in note for note in overlay.report["notes"])


def test_r22_replicas_take_turns_and_nobody_waits_for_a_dead_one() -> None:
    ran = slow()
    spans = sorted(ran.during("STABILIZATION", "main", "r0") + ran.during("STABILIZATION", "main", "r1"))
    assert len(spans) >= 2 and all(before[1] <= after[0] for before, after in pairwise(spans))
    alone = run(query_of(), "cut b at 1s for 3s", "crash main.r1 at 2s", rows="generate:50,6")
    [(since, _)] = alone.during("STABILIZATION", "main", "r0")
    assert since < 4000 + 3 * 100 + 50


# Switching, crashes, fencing


def test_r23_switching_is_the_readers_act_and_repeats_nothing() -> None:
    """Nobody writes an UNDO for one reader: r1's log knows nothing of the egress that turned to it."""
    ran = run(query_of(), "crash main.r0 at 2s for 2s", rows="generate:50,6")
    assert ran.n_tentative == 0 and not frames(ran.history("all", "r1"), Undo)
    tentative = run(query_of(), "cut b at 1s for 4s", "crash main.r1 at 2500ms for 1s", rows="generate:50,7", checked=True)
    highest: dict[int, int] = {}
    for frame in frames(tentative.history("q", "r0"), Data):
        if frame.tentative:
            since = frame.batch.column(0)[0].as_py()
            assert since >= highest.get(frame.epoch, 0), "a t_max is given once in an epoch"
            highest[frame.epoch] = frame.t_max


def test_r24_losing_the_control_path_alone_changes_no_state() -> None:
    """Liveness is judged by a stream's own log; and a live control path never hides a dead data path."""

    def deafen(played: Run) -> None:
        played.world.network.cuts.append(LinkCut("main.r0", "main.r1", control_only=True))
        played.world.network.cuts.append(LinkCut("egress.r0", control_only=True))

    ran = run(query_of(), rows="generate:50,3", prepare=deafen)
    assert [state for state, _, _ in ran.states("main", "r0")] == ["STABLE"]
    one = InstanceDriver(plan_of(query_of()))
    one.until(5 * S)
    assert one.state is State.UP_FAILURE


def test_r25_a_new_life_begins_with_start_and_fences_the_one_before() -> None:
    """START(n+1) in every partition that it writes; readers give nothing on what the dead incarnation still says."""
    ran = run({**counted(shards=2), "streams": KEYED}, "crash main.r0 at 1s for 1s", rows="generate:50,4,20")
    for partition in (0, 1):
        starts = frames(ran.history("counted", "r0", partition), Start)
        assert [frame.origin.incarnation for frame in starts] == [1, 2]
        assert starts[1].epoch > starts[0].epoch


def test_r25_start_revokes_the_tentative_suffix_of_the_life_before() -> None:
    """r0 dies in the middle of a failure, and its tentative rows with it: no UNDO is owed for them."""
    ran = run(query_of(replicas=1), "cut b at 1s for 4s", "crash main.r0 at 3s for 1s", rows="generate:50,7")
    assert ran.is_stable and ran.stable == clean(query_of(replicas=1), "generate:50,7").stable
    [kinds] = tentative_spans(ran.history("all", "r0"))
    at = kinds.index("tentative")
    assert kinds[at + 1] == "start"


def test_r26_an_instance_acknowledges_only_what_neither_rollback_nor_restart_needs() -> None:
    """With a window of 2 s open, its rows stay; each stable boundary carries the anchor that a restart begins at."""
    operators = {**COUNTED, "counted": {"aggregate": "all", **COUNT, "window": {"tumbling": "2s"}}}
    query = query_of(operators, "counted")
    ran = run(query, "crash main.r0 at 3500ms for 1s losing checkpoint", rows="generate:100,7")
    assert ran.is_stable and ran.stable == clean(query, "generate:100,7").stable
    anchors = [frame.anchor for frame in frames(ran.history("counted", "r1"), Boundary) if frame.anchor]
    in_window = [anchor for anchor in anchors if START_US + 2500 * MS <= anchor.time < START_US + 3900 * MS]
    assert in_window and all(anchor.needs == START_US + 2 * S for anchor in in_window)
    assert all(dict(anchor.inputs)["a/0"] <= 200 for anchor in in_window), "200 rows came before the open window"


def test_r26_nothing_is_acknowledged_before_it_is_needed_no_more() -> None:
    one = InstanceDriver(plan_of(query_of(streams=("a", "b"), operators={"all": {"union": ["a", "b"]}})))
    one.deliver_all(rows={"a": [1, 2], "b": [3]}, boundary=0)
    acknowledged = [e for e in one.until(300 * MS) if isinstance(e, Acknowledge)]
    positions = [first_id for effect in acknowledged for _, first_id in effect.positions]
    assert positions and not any(positions), "received is not processed"


def test_r26_state_that_no_window_bounds_is_checkpointed_and_the_plan_says_so() -> None:
    operators = {"all": {"union": ["a", "b", "c"]}, "u": {"distinct": "all", "on": ["v"]}}
    query = query_of(operators, "u", tuning={"checkpoint_interval": "500ms"})
    plan = plan_of(query)
    assert any("checkpointed in the background" in note for note in plan.notes)
    store = MemoryCheckpointStore()
    ran = run(query, "crash main.r0 at 3s for 1s", "cut b at 4500ms for 2s", rows="generate:50,8", store=store)
    assert store.blobs and ran.is_stable
    assert ran.stable == clean(query, "generate:50,8").stable


def test_r27_a_reader_that_was_away_for_long_comes_back_though_the_logs_were_trimmed() -> None:
    """It goes on from an anchor, and the living were not stopped by it."""
    query = counted(replicas=2)
    ran = run(query, "cut main.r0 at 1s for 6s", rows="generate:50,10")
    assert ran.is_stable and ran.n_tentative == 0 and ran.delay_ms < 1000
    assert ran.stable == clean(query, "generate:50,10").stable


def test_r28_each_stable_tuple_is_given_once_and_an_undo_raises_the_epoch() -> None:
    """What holds of it without Kafka: one client's stream of the embedded egress."""
    ran = run(query_of(), "cut b at 1s for 2s", "cut a at 4s for 2s", rows="generate:50,8")
    epochs = [record["epoch"] for record in ran.of("undo")]
    assert epochs == sorted(set(epochs)) and len(epochs) >= 2
    assert [record["seq"] for record in ran.changes] == list(range(1, len(ran.changes) + 1))
    assert len(ran.of("stable")) == len(ran.stable) == 3 * 50 * 8


def test_r29_lateness_is_judged_once_at_the_source(tmp_path: Path) -> None:
    """A row later than the disorder is a dead letter for every replica alike; one within it is put in its place.
    A stream may have late ones clamped instead, to the boundary that they missed."""
    lines = [0, 100, 300, 250, 900, 100, 1000]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"time": {START_US // MS + at}, "k": 1, "v": {at}}}\n' for at in lines))
    query = query_of({"kept": {"filter": "a", "where": "v >= 0"}}, "kept", streams=("a",))
    query["streams"]["a"] = {**query["streams"]["a"], "disorder": "100ms"}
    ran = run(query, rows={"a": str(path)})
    assert (ran.report["n_dlq"], ran.report["n_clamped"]) == (1, 0)
    assert [row["v"] for row in ran.stable] == [0, 100, 250, 300, 900, 1000]
    query["streams"]["a"]["late"] = "clamp"
    clamped = run(query, rows={"a": str(path)})
    assert (clamped.report["n_dlq"], clamped.report["n_clamped"]) == (0, 1)
    assert [row["v"] for row in clamped.stable] == [0, 100, 250, 300, 100, 900, 1000]
    assert clamped.stable[4]["time"].rstrip("0Z").endswith(".8")


def test_r29_boundaries_flow_without_data() -> None:
    """An idle stream is not a failed one: its owner says how far it is."""
    held = dict.fromkeys(("a", "b"), "generate:50,3")
    quiet = rows_of("c", [START_US], {"k": [0], "v": [0.0]}, XY)
    ran = run(query_of(), rows={**held, "c": quiet})
    assert ran.n_tentative == 0 and [state for state, _, _ in ran.states("main")] == ["STABLE"]


def test_r30_a_dead_input_makes_tentative_only_what_it_reaches() -> None:
    """Parts of a fragment that share no stream are instances of their own."""
    operators = {
        "left": {"filter": "a", "where": "v >= 0"},
        "right": {"filter": "b", "where": "v >= 0"},
        "all": {"union": ["left", "right"]},
    }
    fragments = {"edge": {"operators": ["left", "right"]}, "merge": {"operators": ["all"]}}
    query = query_of(operators, "all", streams=("a", "b"), fragments=fragments)
    names = [fragment.name for fragment in make_plan(load_query(query)).fragments]
    assert names[:2] == ["edge_1", "edge_2"]
    ran = run(query, "cut a at 1s for 2s", rows="generate:50,5")
    assert ran.during("UP_FAILURE", "edge_1") and not ran.during("UP_FAILURE", "edge_2")
    assert not [frame for frame in frames(ran.history("right", "r0"), Data) if frame.tentative]
    assert frames(ran.history("left", "r0"), RecDone) or not frames(ran.history("left", "r0"), Undo)


def test_logs_are_the_real_ones() -> None:
    """The recording logs of these tests are the product's memory logs, not a model of them."""
    ran = clean(query_of(), "generate:50,3")
    assert all(isinstance(ran.logs.open(log), MemoryLog) for log in ran.logs.ids())
