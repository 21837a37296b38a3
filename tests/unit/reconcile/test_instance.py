"""One instance by hand: what it writes, to whom it listens, and which state it is in. Times in microseconds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin, RecDone, Start, State, Undo
from boreal.query.plan import Plan
from reconcile.events import (
    Acknowledge,
    Answered,
    Append,
    CheckpointStored,
    Follow,
    Frames,
    Heartbeat,
    InstanceId,
    LeaseEnd,
    LeaseGrant,
    LeaseRequest,
    Obey,
    PathAfter,
    Read,
    ReadDone,
    Received,
    Reconciled,
    Send,
    StateChanged,
    StoreCheckpoint,
    Threshold,
    Tick,
    Unfollow,
    Wake,
    Watch,
)
from reconcile.limits import PRODUCTION
from reconcile.links import HOP_SAMPLES
from reconcile.orders import Answer, Copy, EndRedo, Order, RollBack
from reconcile.recovery import Restart, VerifiedCheckpoint, plan_restart
from reconcile.stagger import CALM_BEATS
from reconcile.upstream import Rank
from sunion.steps import Step
from tests.harness import MS, InstanceDriver, S, chain_of, plan_of, query_of

A, B = LogId("a", "", 0), LogId("b", "", 0)
OUT = LogId("all", "r0", 0)
R1 = InstanceId("main", "r1", 0)
BUCKET = 100 * MS
REST = 150 * MS
"""What a loaded source says of its rows that gather: three boundary intervals."""


def union_plan(**options: Any) -> Plan:
    return plan_of(query_of(streams=("a", "b"), **options))


def threshold(x_us: int) -> Threshold:
    """Of a query whose intervals do not follow from X."""
    return Threshold.of(replace(union_plan(), delay_threshold_us=x_us))


def flow(one: InstanceDriver, since: int, until: int, names: str = "ab", peer: State | None = State.STABLE) -> None:
    """Every 50 ms each stream gives a row and a boundary, both of event time = run time; and the peer beats."""
    for at in range(since, until, 50 * MS):
        one.until(at)
        if peer is not None and one.plan.fragment("main").replicas == ("r0", "r1"):
            one.give(Received(Heartbeat(R1, peer)))
        for name in names:
            log = LogId(name, "", 0)
            one.deliver(log, one.rows(name, [at]), one.boundary(at + 50 * MS))


def catch_up(one: InstanceDriver, name: str, since: int, until: int) -> None:
    """What was held back of a stream arrives at once."""
    times = list(range(since, until, 50 * MS))
    one.deliver(LogId(name, "", 0), one.rows(name, times), one.boundary(until))


def failed(until: int = 1500 * MS, **options: Any) -> InstanceDriver:
    """All is well for 200 ms; then b is silent. alpha*X is 0.9 s."""
    one = InstanceDriver(union_plan(**options))
    flow(one, 0, 200 * MS)
    flow(one, 200 * MS, until, "a", peer=State.UP_FAILURE)
    one.until(until)
    return one


def test_it_begins_with_start_and_follows_its_inputs() -> None:
    one = InstanceDriver(union_plan())
    assert one.effects[0].log == OUT and isinstance(one.effects[0].frame, Start)  # type: ignore[union-attr]
    assert [effect for effect in one.effects if isinstance(effect, Follow)] == [Follow(A, -1), Follow(B, -1)]
    assert one.states == [State.STABLE]


def test_a_stream_with_replicas_is_watched_in_all_and_followed_in_one() -> None:
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    logs = [LogId("all", "r0", 0), LogId("all", "r1", 0)]
    assert [effect.log for effect in one.effects if isinstance(effect, Watch)] == logs
    assert [effect.log for effect in one.effects if isinstance(effect, Follow)] == logs[:1]


def test_stable_input_becomes_stable_output_at_once() -> None:
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    assert [frame.batch.column(0).to_pylist() for frame in one.frames(Data)] == [  # type: ignore[union-attr]
        [0, 0, 50 * MS, 50 * MS],
        [100 * MS, 100 * MS, 150 * MS, 150 * MS],
    ]
    assert one.state is State.STABLE


def test_it_gives_a_sign_of_life_at_every_boundary_interval() -> None:
    """R24: the stream's own log carries it, and the state."""
    one = InstanceDriver(union_plan())
    effects = one.until(100 * MS)
    boundaries = [e.frame for e in effects if getattr(e, "log", None) == OUT and isinstance(e.frame, Boundary)]  # type: ignore[union-attr]
    assert len(boundaries) == 2


CALM_PAUSE = 350 * MS
CALM_INTERVAL = 50 * MS + CALM_PAUSE
COUNTED = {"counts": {"aggregate": "a", "window": {"tumbling": "3s"}, "by": ["k"], "compute": {"n": "count(*)"}}}


def calm_plan(**options: Any) -> Plan:
    return replace(union_plan(**options), calm_pause_us=CALM_PAUSE)


def idle(one: InstanceDriver, since: int, until: int, names: str = "ab") -> list[tuple[int, Boundary]]:
    """Every 50 ms each stream gives a boundary of event time = run time, and no row. What the instance wrote, and when."""
    written = []
    for at in range(since, until, 50 * MS):
        effects = one.until(at)
        for name in names:
            effects += one.deliver(LogId(name, "", 0), one.boundary(at + 50 * MS))
        written += [(at, e.frame) for e in effects if isinstance(e, Append) and isinstance(e.frame, Boundary)]
    return written


def test_once_it_has_had_no_rows_for_a_while_it_is_heard_less_often_and_says_so() -> None:
    """R24. The boundaries that it leaves out are chosen by event time, so that its peer leaves out the same ones."""
    one = InstanceDriver(calm_plan())
    flow(one, 0, 1 * S)
    before = idle(one, 1 * S, 2 * S)
    assert {frame.pause for _, frame in before} == {0}
    assert sorted({frame.time for _, frame in before}) == list(range(1 * S, 2 * S + 1, 100 * MS))
    idle(one, 2 * S, 3 * S)
    calm = idle(one, 3 * S, 6 * S)
    assert [frame.time for _, frame in calm] == list(range(3_200 * MS, 6_001 * MS, CALM_INTERVAL))
    usual = one.plan.sign_of_life_us
    pauses = [(at, frame.pause - CALM_INTERVAL) for at, frame in calm]
    assert all(0 < pause <= CALM_PAUSE + 3 * usual // 2 for _, pause in pauses)
    assert all(later - at <= usual + pause for (at, pause), (later, _) in pairwise(pauses)), "one interval before it must"
    ends = {(at + usual + pause) % CALM_INTERVAL for at, pause in pauses}
    assert ends == {usual // 2}, "of all instances a moment after their sources write"


def test_a_row_ends_the_calm_at_once() -> None:
    one = InstanceDriver(calm_plan())
    idle(one, 0, 2 * S)
    one.until(2 * S)
    effects = one.deliver_all({"a": [2 * S]}, 2_100 * MS)
    data, boundary = [e.frame for e in effects if isinstance(e, Append)]
    assert isinstance(data, Data) and isinstance(boundary, Boundary) and (boundary.time, boundary.pause) == (2_100 * MS, 0)
    after = idle(one, 2_100 * MS, 2_600 * MS)
    assert {frame.pause for _, frame in after} == {0}
    assert {frame.time for _, frame in after} == set(range(2_100 * MS, 2_601 * MS, 100 * MS))


def test_a_window_that_ends_is_given_at_once_though_no_row_came() -> None:
    plan = replace(plan_of(query_of(COUNTED, "counts", streams=("a",))), calm_pause_us=CALM_PAUSE)
    one = InstanceDriver(plan)
    one.deliver_all({"a": [100 * MS]}, 200 * MS)
    written = idle(one, 200 * MS, 4 * S, "a")
    assert len(one.frames(Data)) == 1
    at = next(at for at, frame in written if frame.time >= 3 * S)
    assert at == 2_950 * MS, "with the boundary that ends it"


def test_a_calm_one_says_at_once_what_it_lacks_and_is_heard_as_usual_then() -> None:
    one = InstanceDriver(calm_plan())
    idle(one, 0, 3 * S)
    written = idle(one, 3 * S, 4 * S, "a")
    told = [(at, frame) for at, frame in written if frame.state is State.UP_FAILURE]
    assert told[0][0] <= 3_150 * MS and {frame.pause for _, frame in told} == {0}
    assert max(later - at for (at, _), (later, _) in pairwise(told)) <= one.plan.sign_of_life_us


@pytest.mark.parametrize("rows", [False, True])
def test_a_calm_one_may_be_late_by_as_much_as_its_readers_were_told(rows: bool) -> None:
    """On a machine that is busy for a moment, all calm instances would be away, tell their peers, be calm no more, and keep it
    busy."""
    one = InstanceDriver(calm_plan())
    flow(one, 0, 3 * S) if rows else idle(one, 0, 3 * S)
    for name in "ab":
        one.deliver(LogId(name, "", 0), replace(one.boundary(3 * S), pause=CALM_PAUSE + CALM_INTERVAL))
    one.now = one.instance.next_deadline() + 500 * MS
    one.give(Tick())
    assert one.state is (State.RECOVERING if rows else State.STABLE)


def test_what_a_calm_stream_has_said_is_longer_than_it_means_to_be_silent() -> None:
    """So one boundary that comes late is no failure."""
    one = InstanceDriver(calm_plan())
    idle(one, 0, 3 * S)
    for name in "ab":
        one.deliver(LogId(name, "", 0), replace(one.boundary(3 * S), pause=CALM_PAUSE + CALM_INTERVAL))
    one.until(one.now + 2 * CALM_INTERVAL + one.plan.silence_us - 60 * MS)
    assert one.state is State.STABLE
    one.until(one.now + 200 * MS)
    assert one.state is State.UP_FAILURE


def test_a_stream_that_ends_in_calm_has_its_last_boundary() -> None:
    one = InstanceDriver(calm_plan())
    idle(one, 0, 3 * S)
    one.until(3 * S)
    one.deliver_all({}, INFINITY)
    [last] = [frame for frame in one.frames(Boundary)[-1:] if isinstance(frame, Boundary)]
    assert last.time == INFINITY


def test_none_is_calm_whose_boundaries_others_wait_for() -> None:
    """The first fragment of a chain is read by one that may have windows; an egress of several shards waits for each."""
    chain, counted = plan_of(chain_of(2)), plan_of(query_of(COUNTED, "counts", streams=("a",)), shards=2)
    assert [chain.is_read_alone(fragment) for fragment in chain.fragments] == [False, True, True]
    assert [counted.is_read_alone(fragment) for fragment in counted.fragments] == [False, True]


def gathered(one: InstanceDriver, since: int, until: int, pause_us: int = REST) -> list[tuple[int, Frame]]:
    """Every 150 ms each stream gives the rows and the boundary that a loaded source has gathered. What the instance wrote, and
    when."""
    written = []
    for at in range(since, until, 150 * MS):
        effects = one.until(at)
        for name in "ab":
            log = LogId(name, "", 0)
            effects += one.deliver(log, one.rows(name, [at]), replace(one.boundary(at + 50 * MS), pause=pause_us))
        effects += one.until(at + 149 * MS)
        written += [(at, e.frame) for e in effects if isinstance(e, Append)]
    return written


def test_it_is_silent_while_its_sources_gather_rows_and_says_so() -> None:
    """R24: a sign of life in between would be a record for each reader, and rows cannot come sooner."""
    one = InstanceDriver(union_plan())
    gathered(one, 0, 600 * MS)
    written = gathered(one, 600 * MS, 1_800 * MS)
    boundaries = [frame for _, frame in written if isinstance(frame, Boundary)]
    assert {frame.pause for frame in boundaries} == {REST}
    assert len(boundaries) == 1_200 // 150, "one for each batch"
    assert {frame.pause for _, frame in gathered(one, 1_800 * MS, 3 * S, 0) if isinstance(frame, Boundary)} <= {0, REST}
    assert {frame.pause for frame in one.frames(Boundary)[-2:] if isinstance(frame, Boundary)} == {0}


def test_a_source_that_gathers_is_silent_only_after_what_it_has_said() -> None:
    one = InstanceDriver(union_plan())
    gathered(one, 0, 600 * MS)
    one.until(450 * MS + one.plan.silence_us + REST)
    assert one.state is State.STABLE
    assert one.instance.next_deadline() == 450 * MS + one.plan.silence_us + REST + 1, "that is found out at once"
    one.until(450 * MS + one.plan.silence_us + REST + 2)
    assert one.state is State.UP_FAILURE


def test_rows_do_not_gather_where_a_bucket_comes_from_several_instances() -> None:
    """R9: they delay it differently, the more so the later its end is known."""
    alone, sharded = (plan_of(query_of(COUNTED, "counts", streams=("a",)), shards=shards) for shards in (1, 2))
    x_us = alone.delay_threshold_us
    assert (alone.rest_us(0, x_us), alone.rest_us(2, x_us)) == (0, 3 * alone.boundary_interval_us)
    assert alone.rest_us(2, alone.boundary_interval_us) == 3 * alone.boundary_interval_us // 10, "X leaves no time for more"
    assert sharded.rest_us(2, x_us) == 0


def test_a_silent_port_is_found_out_before_its_third_boundary_is_due_and_said_at_once() -> None:
    """R10."""
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    since = 150 * MS
    flow(one, 200 * MS, 300 * MS, "a")
    one.until(since + 149 * MS)
    assert one.state is State.STABLE
    one.until(since + 152 * MS)
    assert one.state is State.UP_FAILURE
    told = [e.message for e in one.sent(Heartbeat)]
    assert Heartbeat(one.me, State.UP_FAILURE) in told
    assert not [frame for frame in one.frames(Data) if frame.tentative]


def test_a_short_failure_ends_where_it_began() -> None:
    one = failed(until=700 * MS)
    catch_up(one, "b", 200 * MS, 700 * MS)
    flow(one, 700 * MS, 900 * MS)
    assert one.states == [State.STABLE, State.UP_FAILURE, State.STABLE]
    assert not one.frames(Undo) and not [frame for frame in one.frames(Data) if frame.tentative]  # type: ignore[union-attr]


def test_past_the_deadline_it_answers_without_the_missing_port() -> None:
    one = failed()
    tentative = [frame for frame in one.frames(Data) if frame.tentative]  # type: ignore[union-attr]
    assert tentative and all(frame.missing == ("b",) for frame in tentative)  # type: ignore[union-attr]
    [copy] = [effect for effect in one.effects if isinstance(effect, StoreCheckpoint)]
    assert copy.time == 200 * MS, "MARK: before the first tentative bucket"


def test_healed_it_asks_for_a_lease_rolls_back_and_says_when_it_is_done() -> None:
    one = failed()
    catch_up(one, "b", 200 * MS, 1500 * MS)
    [request] = one.sent(LeaseRequest)
    assert request.to == R1 and one.state is State.UP_FAILURE, "not without leave"
    one.give(Received(LeaseGrant(R1)))
    flow(one, 1500 * MS, 1700 * MS, peer=State.UP_FAILURE)
    assert one.states == [State.STABLE, State.UP_FAILURE, State.STABILIZATION, State.STABLE]
    assert len(one.frames(Undo)) == len(one.frames(RecDone)) == 1
    [done] = [effect for effect in one.effects if isinstance(effect, Reconciled)]
    assert done.tuples >= 2 * 26 - 8
    assert [send.to for send in one.sent(type(one.sent(LeaseRequest)[0].message))] == [R1]
    stable = [frame for frame in one.frames(Data) if not frame.tentative]  # type: ignore[union-attr]
    times = [time for frame in stable for time in frame.batch.column(0).to_pylist()]  # type: ignore[union-attr]
    assert times == sorted(times) and times.count(1000 * MS) == 2


def test_healed_beside_a_stable_peer_it_asks_nobody() -> None:
    one = failed()
    one.give(Received(Heartbeat(R1, State.STABLE)))
    catch_up(one, "b", 200 * MS, 1500 * MS)
    assert State.STABILIZATION in one.states and not one.sent(LeaseRequest)


def test_healed_it_corrects_before_it_sends_more_that_is_tentative() -> None:
    """The fewest tentative tuples (DPC, Design goals): what is stable already is not sent tentatively first."""
    one = failed()
    given = sum(frame.batch.num_rows for frame in one.frames(Data) if frame.tentative)  # type: ignore[union-attr]
    one.now = 3000 * MS
    one.give(Received(Heartbeat(R1, State.STABLE)))
    assert one.state is State.RECOVERING, "it was stopped for a while, and comes back to find that all has healed"
    for name, since in (("a", 1500 * MS), ("b", 200 * MS)):
        catch_up(one, name, since, 3000 * MS)
    one.until(3220 * MS)
    assert State.STABILIZATION in one.states
    assert sum(frame.batch.num_rows for frame in one.frames(Data) if frame.tentative) == given  # type: ignore[union-attr]


def test_time_spent_working_is_not_silence_of_the_inputs() -> None:
    """A call took long, and what came meanwhile waits to be handed in: a's frames first, b's right after."""
    one = InstanceDriver(union_plan(tuning={"bucket": "20ms", "boundary_interval": "20ms"}))
    one.instance.sunion.settings = replace(one.instance.sunion.settings, step_rows=1)
    for name in "ab":
        rows = [one.rows(name, [at]) for at in range(0, 2000 * MS, 20 * MS)]
        log = LogId(name, "", 0)
        frames: tuple[tuple[int, Frame], ...] = (*enumerate(rows), (len(rows), one.boundary(2000 * MS)))
        one.offsets[log] = len(frames)
        one.effects += one.instance.handle(Frames(log, frames, len(frames)), 0)
    rounds = 0
    while one.instance.status().position < 2000 * MS:
        one.now += 30 * MS
        rounds += 1
        one.effects += one.instance.handle(Tick(), one.now)
    assert rounds * 30 * MS > 3 * one.instance.silence_us, "it worked for far longer than a port may be silent"
    for log in (A, B):
        one.deliver(log, one.boundary(2000 * MS))
        one.give(Tick())
    assert set(one.states) == {State.STABLE}


def test_stopped_for_long_it_is_recovering_and_blames_nobody() -> None:
    """A zombie that comes back (R12): its own silence says nothing of others."""
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    one.now = 5000 * MS
    one.deliver(A, one.rows("a", [200 * MS]), one.boundary(250 * MS), end=100)
    assert one.state is State.RECOVERING
    one.deliver(B, one.rows("b", [200 * MS]), one.boundary(250 * MS), end=100)
    one.until(5500 * MS)
    assert not [frame for frame in one.frames(Data) if frame.tentative]  # type: ignore[union-attr]


def test_a_new_life_is_recovering_until_it_has_read_what_it_missed() -> None:
    place = Restart(2, 3, 200 * MS, 200 * MS, {"all/0": 8}, {"all/0": 8}, {"a/0": 4, "b/0": 4})
    one = InstanceDriver(union_plan(), restart=place)
    assert one.states == [State.RECOVERING]
    assert [effect for effect in one.effects if isinstance(effect, Follow)] == [Follow(A, 3), Follow(B, 3)]
    one.ids = {A: 4, B: 4}
    one.deliver(A, one.rows("a", [200 * MS, 250 * MS]), one.boundary(300 * MS), end=2)
    one.deliver(B, one.rows("b", [200 * MS]), one.boundary(250 * MS), end=3)
    one.now = 140 * MS
    one.deliver(A, one.boundary(350 * MS))
    assert one.state is State.RECOVERING, "b is behind the end of its log"
    one.deliver(B, one.rows("b", [260 * MS]), one.boundary(300 * MS))
    one.until(150 * MS)
    assert one.state is State.STABLE
    first = one.frames(Data)[0]
    assert isinstance(first, Data) and first.first_id == 8 and first.origin == Origin("r0", 2)


def windows_plan(mode: str) -> Plan:
    sums = {"aggregate": "a", "window": {"tumbling": "2s"}, "compute": {"n": "sum(v)"}}
    tuning = {"bucket": "100ms", "checkpoint_interval": "500ms"}
    return plan_of(query_of({"sums": sums}, "sums", ("a",), replicas=1, reconcile=mode, tuning=tuning))


@pytest.mark.parametrize("mode", ["overlay_redo", "checkpoint_redo"])
def test_a_life_from_a_checkpoint_reads_on_from_there_though_its_windows_began_before(mode: str) -> None:
    """R26: a long window is not read again. What it needs is still claimed, for whoever has no checkpoint."""
    plan = windows_plan(mode)
    one, steady = InstanceDriver(plan), InstanceDriver(plan)
    flow(steady, 0, 6000 * MS, "a", None)
    flow(one, 0, 3800 * MS, "a", None)
    copy = [effect for effect in one.effects if isinstance(effect, StoreCheckpoint)][-1]
    anchor = [frame.anchor for frame in one.frames(Boundary) if frame.anchor is not None][-1]  # type: ignore[union-attr]
    opened = dict(anchor.inputs)["a/0"]
    assert 2000 * MS == anchor.needs < copy.time < anchor.time and opened < dict(copy.inputs)["a/0"]

    saved = VerifiedCheckpoint(copy.time, copy.needs, copy.next_ids, copy.inputs, copy.state or b"", ("main.r0.0", copy.number))
    place = plan_restart(2, 0, {"sums/0": 1}, anchor, saved)[0]
    two = InstanceDriver(plan, restart=place)
    two.ids[A] = first = dict(copy.inputs)["a/0"]
    assert [effect for effect in two.effects if isinstance(effect, Follow)] == [Follow(A, first - 1)]
    two.now = 3800 * MS
    flow(two, first * 50 * MS, 6000 * MS, "a", None)
    assert [frame.batch.to_pylist() for frame in two.frames(Data)] == [  # type: ignore[union-attr]
        frame.batch.to_pylist()  # type: ignore[union-attr]
        for frame in steady.frames(Data)[1:]
    ]
    anchors = [(frame.time, frame.anchor) for frame in two.frames(Boundary) if frame.anchor is not None]  # type: ignore[union-attr]
    assert min(time for time, _ in anchors) >= anchor.time, "the log's newest anchor is never an older one's"
    assert min(dict(found.inputs)["a/0"] for _, found in anchors if found is not None) == opened
    acknowledged = [dict(effect.positions)["a/0"] for effect in two.effects if isinstance(effect, Acknowledge)]
    assert opened <= min(acknowledged) and max(acknowledged) > first


def test_an_undo_makes_its_state_from_the_rows_of_open_windows_and_so_keeps_their_places() -> None:
    one = InstanceDriver(windows_plan("undo_redo"))
    flow(one, 0, 3800 * MS, "a", None)
    copy = [effect for effect in one.effects if isinstance(effect, StoreCheckpoint)][-1]
    assert copy.needs == 2000 * MS and dict(copy.inputs)["a/0"] <= 40


def test_a_new_life_does_not_take_the_stable_boundary_back() -> None:
    """R3: stable boundaries only rise, over a restart too."""
    one = InstanceDriver(union_plan(), restart=Restart(2, 3, 100 * MS, 200 * MS, {"all/0": 8}, {"all/0": 8}))
    one.until(300 * MS)
    boundaries = one.frames(Boundary)
    assert boundaries and all(frame.time == 200 * MS for frame in boundaries)  # type: ignore[union-attr]


def test_a_port_that_ended_is_never_silent() -> None:
    one = InstanceDriver(union_plan())
    for name in "ab":
        one.deliver(LogId(name, "", 0), one.rows(name, [0]), one.boundary(INFINITY))
    one.until(3000 * MS)
    assert one.states == [State.STABLE]
    boundaries = one.frames(Boundary)
    assert isinstance(boundaries[-1], Boundary) and boundaries[-1].time == INFINITY


def test_it_tells_upstream_how_long_the_rest_of_the_path_takes() -> None:
    """R9."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    log = LogId("all", "r0", 0)
    for at in range(0, 400 * MS, 50 * MS):
        one.until(at)
        row = one.rows("all", [at], replica="r0")
        boundary = Boundary(Origin("r0", 1), 0, at + 50 * MS, False, at, at - 10 * MS)
        one.deliver(log, row, boundary)
    told = one.sent(PathAfter)
    assert {send.to for send in told} == {InstanceId("f1", "r0", 0), InstanceId("f1", "r1", 0)}
    assert told[-1].message.micros == 15 * MS, "10 ms a hop, and half as much again"  # type: ignore[union-attr]


def test_in_calm_it_tells_upstream_what_is_new_and_reminds_of_the_rest() -> None:
    """A message may be lost, and who begins anew has forgotten."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")

    def told(until: int, incarnation: int = 1) -> set[tuple[str, int]]:
        one.effects.clear()
        for at in range(one.now + 50 * MS, until + 1, 50 * MS):
            one.until(at)
            for replica in ("r0", "r1"):
                life = 1 if replica == "r0" else incarnation
                one.tail(LogId("all", replica, 0), Boundary(Origin(replica, life), 0, at, False, at, at))
        return {(send.to.replica, send.message.micros // MS) for send in one.sent(PathAfter)}  # type: ignore[union-attr]

    assert told(850 * MS) == {("r0", 0), ("r1", 0)}, "it begins"
    assert not told(950 * MS)
    assert told(1_050 * MS) == {("r0", 0), ("r1", 0)}, "every tenth heartbeat"
    one.give(Received(PathAfter(InstanceId("egress", "r0", 0), "s2/0", 40 * MS)))
    assert told(1_250 * MS) == {("r0", 40), ("r1", 40)}
    assert not told(1_450 * MS)
    assert told(1_650 * MS, incarnation=2) == {("r1", 40)}


def test_in_calm_it_beats_seldom_and_at_every_interval_once_a_replica_is_not_stable() -> None:
    """R22."""
    one = InstanceDriver(union_plan())

    def beats(until: int, peer: State | None = None) -> int:
        one.effects.clear()
        flow(one, one.now + 50 * MS, until, peer=peer)
        return len(one.sent(Heartbeat))

    one.give(Received(Heartbeat(R1, State.STABLE)))
    assert beats(1_000 * MS) == 0, "it has when it began"
    assert beats(2_000 * MS) == 1
    one.give(Received(Heartbeat(R1, State.UP_FAILURE)))
    assert beats(3_000 * MS) == 10
    one.give(Received(Heartbeat(R1, State.STABLE)))
    assert beats(4_000 * MS) == 1


def test_without_rows_it_beats_less_often_until_a_replica_is_not_stable() -> None:
    """R24. Its peer counts it as alive for as long."""
    one = InstanceDriver(calm_plan())
    one.give(Received(Heartbeat(R1, State.STABLE)))

    def beats(until: int) -> int:
        one.effects.clear()
        idle(one, one.now + 50 * MS, until)
        return len(one.sent(Heartbeat))

    beats(3 * S)
    assert beats(3 * S + 24 * S) == 3, "eight times less often"
    one.give(Received(Heartbeat(R1, State.UP_FAILURE)))
    assert beats(one.now + 300 * MS) >= 2, "its peer would count it as dead"
    one.give(Received(Heartbeat(R1, State.STABLE)))
    flow(one, one.now + 50 * MS, one.now + 1_200 * MS, peer=None)
    one.effects.clear()
    flow(one, one.now + 50 * MS, one.now + 4 * S, peer=None)
    assert len(one.sent(Heartbeat)) == 4, "with rows it repeats itself as usual"


def test_rows_that_wait_for_streams_without_rows_keep_their_sources_awake() -> None:
    """R24."""
    one = InstanceDriver(calm_plan())
    idle(one, 0, 2 * S)
    one.effects.clear()
    flow(one, 2 * S, 3 * S, "a")
    assert [effect for effect in one.effects if isinstance(effect, Wake)] == 3 * [Wake(("b",))], "once in a pause"
    one.effects.clear()
    flow(one, 3 * S, 3 * S + CALM_PAUSE)
    flow(one, 3 * S + CALM_PAUSE, 4 * S)
    assert not [effect for effect in one.effects if isinstance(effect, Wake)][1:], "b has rows of its own"


def test_no_source_is_woken_where_none_is_calm() -> None:
    one = InstanceDriver(union_plan())
    idle(one, 0, 2 * S)
    flow(one, 2 * S, 3 * S, "a")
    assert not [effect for effect in one.effects if isinstance(effect, Wake)]


def test_who_waits_for_another_fragment_wakes_the_sources_behind_it() -> None:
    operators = {"ab": {"union": ["a", "b"]}, "all": {"union": ["ab", "c"]}}
    fragments = {"f1": {"operators": ["ab"]}, "f2": {"operators": ["all"]}}
    plan = replace(plan_of(query_of(operators, fragments=fragments)), calm_pause_us=CALM_PAUSE)
    one = InstanceDriver(plan, fragment="f2")
    flow(one, 1 * S, 1_050 * MS, "c", peer=None)
    assert [effect for effect in one.effects if isinstance(effect, Wake)] == [Wake(("a", "b"))]


@pytest.mark.parametrize(("retention", "every_ms"), [("1h", 1_000), ("2s", 500)])
def test_what_it_has_acknowledged_is_repeated_seldom_but_well_before_its_claim_ends(retention: str, every_ms: int) -> None:
    """R27."""
    one = InstanceDriver(plan_of(query_of(streams=("a", "b"), tuning={"retention": retention})))
    flow(one, 0, 1_000 * MS)
    one.until(2_000 * MS)
    at: list[int] = []
    for now in range(2_000 * MS, 6_000 * MS, 50 * MS):
        at += [now] * sum(isinstance(effect, Acknowledge) for effect in one.until(now))
    assert {second - first for first, second in pairwise(at)} == {every_ms * MS}


def test_the_intervals_that_follow_from_x_change_with_it_at_once() -> None:
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    closer = Threshold(200 * MS, 10 * MS, 20 * MS, 60 * MS, 0)
    one.give(closer)
    assert one.instance.next_deadline() <= one.now + 15 * MS, "it says four times in a silence timeout that it lives"
    flow(one, 200 * MS, 250 * MS)
    one.until(250 * MS + 60 * MS + 1)
    assert one.state is State.UP_FAILURE, "silence is judged by the new interval"
    assert [link.port.grace_us for link in one.instance.links] == [20 * MS, 20 * MS]
    one.give(Threshold.of(union_plan()))
    flow(one, 400 * MS, 700 * MS)
    one.until(700 * MS + 90 * MS)
    assert one.state is State.STABLE, "and by the former one again"


def test_what_it_tells_upstream_counts_all_that_comes_after_it() -> None:
    """R9: the hop from there to here, and the longest of the ways from here to a client."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    for reader, micros in (("egress", 40 * MS), ("egress.b", 200 * MS), ("egress.c", 70 * MS)):
        one.give(Received(PathAfter(InstanceId(reader, "r0", 0), "s2/0", micros)))
    for at in range(0, 400 * MS, 50 * MS):
        one.until(at)
        one.deliver(LogId("all", "r0", 0), Boundary(Origin("r0", 1), 0, at + 50 * MS, False, at, at - 10 * MS))
    assert one.sent(PathAfter)[-1].message.micros == 215 * MS  # type: ignore[union-attr]
    assert one.instance.status().alpha_x_us == 650 * MS


def test_what_it_tells_upstream_counts_what_its_clock_is_behind() -> None:
    """R9: else it would be overdue by its clock before what its producers hold back is there."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    for at in range(0, 400 * MS, 50 * MS):
        one.until(at)
        one.deliver(LogId("all", "r0", 0), Boundary(Origin("r0", 1), 0, at + 50 * MS, False, at, at + 30 * MS))
    assert one.sent(PathAfter)[-1].message.micros == 30 * MS  # type: ignore[union-attr]


@pytest.mark.parametrize(("shards", "spread_us"), [(1, 0), (2, 150 * MS)])
def test_what_several_producers_hold_back_may_come_so_far_apart(shards: int, spread_us: int) -> None:
    """R9: a bucket counts from a row in one shard, and from the first boundary past its end in another."""
    join = {"out": {"join": ["a", "b"], "on": ["k"], "within": "500ms"}}
    egress = InstanceDriver(plan_of(query_of(join, "out", shards=shards)), fragment="egress")
    egress.until(200 * MS)
    assert egress.sent(PathAfter)[-1].message.micros == spread_us  # type: ignore[union-attr]


def test_alpha_x_is_what_x_leaves_and_a_new_x_holds_at_once_for_what_is_held_back() -> None:
    one = InstanceDriver(union_plan())
    assert one.instance.status().alpha_x_us == 850 * MS
    one.give(Received(PathAfter(InstanceId("egress", "r0", 0), "all/0", 200 * MS)))
    one.until(150 * MS)
    assert one.instance.status().alpha_x_us == 650 * MS
    held = failed(until=900 * MS)
    assert not [frame for frame in held.frames(Data) if frame.tentative]  # type: ignore[union-attr]
    held.give(threshold(500 * MS))
    assert [frame for frame in held.frames(Data) if frame.tentative]  # type: ignore[union-attr]


def stamped(one: InstanceDriver, at: int, ingest: int, sent: int) -> None:
    """At a time of the instance's clock: a boundary on each input, stamped with these times."""
    one.until(at)
    for name in "ab":
        one.deliver(LogId(name, "", 0), Boundary(Origin("", 1), 0, at + 50 * MS, False, ingest, sent))


@pytest.mark.parametrize(("ingest_ahead", "sent_ahead"), [(300, 300), (300, 0), (0, 300)])
def test_what_the_clock_is_behind_what_it_reads_is_taken_off_alpha_x(ingest_ahead: int, sent_ahead: int) -> None:
    """R9: deadlines count from a clock that is ahead, and would come that much late."""
    one = InstanceDriver(union_plan())
    for at in range(0, 400 * MS, 50 * MS):
        stamped(one, at, at + ingest_ahead * MS, at + sent_ahead * MS)
    assert one.state is State.STABLE
    assert one.instance.status().skew_us == 300 * MS
    assert one.instance.status().alpha_x_us == 550 * MS
    assert one.instance.status().least_threshold_us > InstanceDriver(union_plan()).instance.status().least_threshold_us


def test_a_clock_that_is_ahead_or_right_takes_nothing_off_alpha_x() -> None:
    one = InstanceDriver(union_plan())
    for at in range(0, 400 * MS, 50 * MS):
        stamped(one, at, at - 300 * MS, at - 300 * MS)
    assert (one.instance.status().skew_us, one.instance.status().alpha_x_us) == (0, 850 * MS)


def test_however_far_the_clock_is_behind_a_quarter_of_x_is_left() -> None:
    one = InstanceDriver(union_plan())
    for at in range(0, 400 * MS, 50 * MS):
        stamped(one, at, at + 3_600 * S, at + 3_600 * S)
    assert one.instance.status().alpha_x_us == 250 * MS


def test_a_clock_that_has_been_made_right_gets_back_what_its_skew_took() -> None:
    one = InstanceDriver(union_plan())
    stamped(one, 0, 300 * MS, 300 * MS)
    one.until(200 * MS)
    assert one.instance.status().alpha_x_us == 550 * MS
    for at in range(250 * MS, 250 * MS + HOP_SAMPLES * 50 * MS, 50 * MS):
        stamped(one, at, at, at)
    one.until(one.now + 200 * MS)
    assert (one.instance.status().skew_us, one.instance.status().alpha_x_us) == (0, 850 * MS)


def test_a_backlog_does_not_push_out_what_was_seen_of_the_skew() -> None:
    one = InstanceDriver(union_plan())
    stamped(one, 0, 300 * MS, 300 * MS)
    log = LogId("a", "", 0)
    one.until(3_000 * MS)
    old = [Boundary(Origin("", 1), 0, at + 60 * MS, False, at, at) for at in range(0, 2 * HOP_SAMPLES * MS, MS)]
    one.deliver(log, *old, end=5_000)
    assert one.instance.by_log[log].skew_us == 300 * MS


def test_the_path_of_a_reader_that_is_gone_for_long_is_forgotten() -> None:
    one = InstanceDriver(union_plan())
    heartbeat = one.plan.heartbeat_us
    one.give(Received(PathAfter(InstanceId("egress", "r0", 0), "all/0", 200 * MS)))
    flow(one, 0, PRODUCTION.forgotten_heartbeats * heartbeat)
    assert one.state is State.STABLE and one.instance.status().alpha_x_us == 650 * MS
    flow(one, PRODUCTION.forgotten_heartbeats * heartbeat, (PRODUCTION.forgotten_heartbeats + 2) * heartbeat)
    assert one.state is State.STABLE and one.instance.status().alpha_x_us == 850 * MS


def test_time_in_which_it_was_stopped_does_not_make_it_forget_its_readers() -> None:
    one = InstanceDriver(union_plan())
    one.give(Received(PathAfter(InstanceId("egress", "r0", 0), "all/0", 200 * MS)))
    one.now = 2 * PRODUCTION.forgotten_heartbeats * one.plan.heartbeat_us
    one.give(Tick())
    assert one.instance.path_after


def test_alpha_x_is_frozen_on_leaving_stable() -> None:
    one = failed(until=900 * MS)
    before = one.instance.status().alpha_x_us
    one.give(Received(PathAfter(InstanceId("egress", "r0", 0), "all/0", 500 * MS)))
    flow(one, 900 * MS, 1050 * MS, "a", peer=State.UP_FAILURE)
    assert one.instance.status().alpha_x_us == before


def test_it_acknowledges_what_its_anchor_needs_no_more() -> None:
    """R26."""
    one = InstanceDriver(union_plan())
    flow(one, 0, 400 * MS)
    last = [effect for effect in one.effects if isinstance(effect, Acknowledge)][-1]
    assert dict(last.positions).keys() == {"a/0", "b/0"}
    assert all(0 < first_id <= 8 for first_id in dict(last.positions).values())


def test_a_failure_holds_acknowledgements_at_the_mark() -> None:
    one = failed(until=2500 * MS)
    last = [effect for effect in one.effects if isinstance(effect, Acknowledge)][-1]
    assert last.positions and all(first_id <= 4 for _, first_id in last.positions), "four rows of each came before the failure"


def test_what_memory_does_not_hold_is_read_again_from_the_log() -> None:
    one = InstanceDriver(union_plan(replicas=1, tuning={"memory": "1KB"}))
    flow(one, 0, 200 * MS)
    flow(one, 200 * MS, 4000 * MS, "a")
    catch_up(one, "b", 200 * MS, 4000 * MS)
    one.until(4100 * MS)
    reads = [effect for effect in one.effects if isinstance(effect, Read)]
    assert {read.log for read in reads} <= {A, B} and reads
    assert all(read.after_id >= 2 for read in reads), "nothing from before the mark"


def test_rows_read_again_for_a_view_that_has_moved_since_are_of_no_use() -> None:
    one = InstanceDriver(union_plan(replicas=1, tuning={"memory": "1KB"}))
    flow(one, 0, 200 * MS)
    flow(one, 200 * MS, 4000 * MS, "a")
    catch_up(one, "b", 200 * MS, 4000 * MS)
    one.until(4100 * MS)
    rereading, sunion = one.instance.rereading, one.instance.sunion
    (is_live, at), (token, log, cursor) = next(item for item in rereading.under_way.items() if not item[0][0])
    sunion.base = sunion.base.fork()
    port = one.instance.links[at].port
    one.ids[log] = cursor.replayed_to
    rereading.take(ReadDone(log, token, ((0, one.rows(port.name, [300 * MS])),)), one.now)
    assert not is_live and not sunion.base.cursors[at].replayed
    assert [read.log for read in rereading.ask(one.now) if read.after_id == cursor.next_id - 1], "it is asked for again"


@pytest.mark.parametrize("silent_ms", [400, 2000])
def test_it_leaves_a_dead_replica_and_names_no_input_missing(silent_ms: int) -> None:
    """Switching masks the failure of one replica of an input."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    logs = {replica: LogId("all", replica, 0) for replica in ("r0", "r1")}
    sent = 0
    for at in range(0, (300 + silent_ms) * MS, 50 * MS):
        one.until(at)
        row, boundary = one.rows("all", [at], replica="r0"), one.boundary(at + 50 * MS, "r0")
        following = one.instance.status().inputs[0].read_from
        if at < 300 * MS:
            one.deliver(logs["r0"], row, boundary)
            sent += 1
        elif following == "r1":
            one.deliver(logs["r1"], row, boundary)
        else:
            one.ids[logs["r0"]] = sent
        if following == "r0":
            one.tail(logs["r1"], one.boundary(at + 50 * MS, "r1"))
    assert Unfollow(logs["r0"]) in one.effects and Follow(logs["r1"], sent - 1) in one.effects
    assert not [frame for frame in one.frames(Data) if frame.tentative]  # type: ignore[union-attr]
    assert State.STABILIZATION not in one.states
    assert StateChanged(State.STABLE) in one.effects


def test_what_is_still_under_way_from_a_replica_that_was_left_says_nothing_of_its_log() -> None:
    """Its rows are not taken, so the next ones seem to skip ids; but nothing is missing there."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    logs = {replica: LogId("all", replica, 0) for replica in ("r0", "r1")}
    one.deliver(logs["r0"], one.rows("all", [0], "r0"), one.boundary(50 * MS, "r0"))
    one.tail(logs["r1"], one.boundary(50 * MS, "r1"))
    one.deliver(logs["r0"], one.boundary(50 * MS, "r0", State.UP_FAILURE))
    assert one.instance.status().inputs[0].read_from == "r1"
    one.deliver(logs["r0"], one.rows("all", [50 * MS], "r0"), one.rows("all", [60 * MS], "r0"))
    assert one.effects.count(Unfollow(logs["r0"])) == 1
    assert one.instance.links[0].upstream.candidate(logs["r0"]).lacking_until < one.now


def test_an_older_upload_that_never_arrived_is_not_waited_for() -> None:
    one = failed()
    catch_up(one, "b", 200 * MS, 1500 * MS)
    flow(one, 1500 * MS, 1600 * MS)
    flow(one, 1600 * MS, 3200 * MS, "a", peer=State.UP_FAILURE)
    copies = [effect for effect in one.effects if isinstance(effect, StoreCheckpoint)]
    assert len(copies) == 2
    one.give(CheckpointStored(copies[1].number))
    assert not one.instance.claims.saved


def test_the_inputs_of_a_checkpoint_are_let_go_once_its_upload_has_arrived_and_not_before() -> None:
    """R19, R26: a distinct without a window is rebuilt from its checkpoint alone."""
    ever = {"all": {"union": ["a", "b"]}, "ever": {"distinct": "all", "on": ["k"]}}
    one = InstanceDriver(plan_of(query_of(ever, "ever", ("a", "b"), tuning={"checkpoint_interval": "200ms"})))
    flow(one, 0, 1000 * MS)
    first, second, *_ = (effect for effect in one.effects if isinstance(effect, StoreCheckpoint))
    assert not [effect for effect in one.effects if isinstance(effect, Acknowledge)], "all are under way"
    one.give(CheckpointStored(first.number))
    flow(one, 1000 * MS, 1200 * MS)
    assert {effect.positions for effect in one.effects if isinstance(effect, Acknowledge)} == {first.inputs}
    one.give(CheckpointStored(second.number))
    flow(one, 1200 * MS, 2200 * MS)
    acknowledged = [effect.positions for effect in one.effects if isinstance(effect, Acknowledge)]
    assert acknowledged[-1] == second.inputs != first.inputs


def test_what_is_no_longer_needed_is_told_with_the_reminders_only_however_fast_rows_come() -> None:
    one = InstanceDriver(union_plan())
    flow(one, 0, 3000 * MS)
    told = [effect.positions for effect in one.effects if isinstance(effect, Acknowledge)]
    reminder_us = CALM_BEATS * one.instance.plan.heartbeat_us
    assert 1 < len(told) == len(set(told)) <= 3000 * MS // (reminder_us * 3 // 4) + 1


def test_a_lone_checkpoint_lets_no_input_go() -> None:
    """R26: where no partner has another, losing it would lose the query."""
    ever = {"all": {"union": ["a", "b"]}, "ever": {"distinct": "all", "on": ["k"]}}
    options: dict[str, Any] = {"replicas": 1, "tuning": {"checkpoint_interval": "200ms"}}
    one = InstanceDriver(plan_of(query_of(ever, "ever", ("a", "b"), **options)))
    flow(one, 0, 1000 * MS)
    [*_, copy] = (effect for effect in one.effects if isinstance(effect, StoreCheckpoint))
    one.give(CheckpointStored(copy.number))
    flow(one, 1000 * MS, 1400 * MS)
    assert not [effect for effect in one.effects if isinstance(effect, Acknowledge)]


def test_rows_since_the_copy_that_a_rollback_returns_to_are_not_let_go() -> None:
    """R26: with periodic checkpoints, of which there is none here but that of the beginning."""
    one = InstanceDriver(union_plan(tuning={"checkpoint_interval": "10s"}))
    flow(one, 0, 600 * MS)
    acknowledged = [effect.positions for effect in one.effects if isinstance(effect, Acknowledge)]
    assert acknowledged and set(acknowledged) == {(("a/0", 0), ("b/0", 0))}


def test_a_state_that_has_not_changed_is_not_stored_again() -> None:
    one = InstanceDriver(union_plan(tuning={"checkpoint_interval": "200ms"}))
    flow(one, 0, 1000 * MS)
    for log in (A, B):
        one.deliver(log, one.boundary(INFINITY))
    one.until(3000 * MS)
    ended = [effect.number for effect in one.effects if isinstance(effect, StoreCheckpoint) and effect.time >= INFINITY]
    assert len(ended) > 5, "until one has arrived, each is tried again"
    one.give(CheckpointStored(ended[-1]))
    stored = len(one.effects)
    one.until(5000 * MS)
    assert not [effect for effect in one.effects[stored:] if isinstance(effect, StoreCheckpoint)]


def test_who_takes_longer_to_copy_than_the_interval_begins_the_next_copy_an_interval_after_the_last() -> None:
    """Else it would copy for ever, though nothing is handed on any more."""
    one = InstanceDriver(union_plan(engine="spark", tuning={"checkpoint_interval": "50ms"}))
    numbered: list[Obey] = []
    for at in range(0, 900 * MS, 50 * MS):
        one.until(at)
        for log in (A, B):
            one.deliver(log, one.boundary(at))
        orders = [effect for effect in one.effects if isinstance(effect, Obey)]
        numbered = [effect for effect in orders if isinstance(effect.order, Copy) and effect.order.number is not None]
        for effect in orders if not numbered else ():
            one.give(Answered(effect.place, Answer({"all": one.instance.fragment.outputs[0].schema.empty()})))
    assert len(numbered) == 1, "it has no answer yet"


def test_corrections_that_are_held_back_are_no_sign_of_life() -> None:
    """R21, R24: readers see nothing of them until the correction is complete."""
    one = InstanceDriver(union_plan(tuning={"bucket": "50ms", "boundary_interval": "100ms"}))
    flow(one, 0, 200 * MS)
    one.instance.soutput.undo("a failure", defer=True)
    before = len(one.frames(Boundary))
    flow(one, 200 * MS, 1200 * MS)
    assert one.instance.soutput.deferred
    assert len(one.frames(Boundary)) - before >= 1_000 * MS // one.plan.silence_us


def test_boundaries_say_at_once_which_inputs_are_lacking() -> None:
    """R10: before anything is tentative, so that readers can choose the replica that lacks fewer."""
    one = failed(until=650 * MS)
    last = one.frames(Boundary)[-1]
    assert isinstance(last, Boundary) and last.state is State.UP_FAILURE
    assert (last.tentative, last.missing, last.lacking) == (False, (), ("b",))
    catch_up(one, "b", 200 * MS, 650 * MS)
    flow(one, 650 * MS, 800 * MS)
    assert one.frames(Boundary)[-1].lacking == ()  # type: ignore[union-attr]


def test_what_an_upstream_lacks_is_lacking_here() -> None:
    """Replicas further down the path are compared by the same names."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    [log, _] = [effect.log for effect in one.effects if isinstance(effect, Watch)]
    for at in range(0, 400 * MS, 50 * MS):
        one.until(at)
        state, lacking = (State.STABLE, ()) if at < 200 * MS else (State.UP_FAILURE, ("a", "c"))
        one.deliver(log, replace(one.boundary(min(at, 200 * MS), log.replica, state), lacking=lacking))
    last = one.frames(Boundary)[-1]
    assert isinstance(last, Boundary) and (last.state, last.lacking) == (State.UP_FAILURE, ("a", "c"))


def test_early_answers_stay_until_their_correction_is_complete() -> None:
    """A reader may still delay some of them, and a host in another process answers the redo long after the rollback."""
    query = query_of(streams=("a", "b"), engine="spark", reconcile="checkpoint_redo")
    query["streams"] = {name: {**stream, "disorder": "3s"} for name, stream in query["streams"].items()}
    one = InstanceDriver(plan_of(query))
    nothing = one.instance.fragment.outputs[0].schema.empty()

    def answer_next() -> tuple[Order, list[Frame]]:
        """Answer the oldest order, a step with the rows that it brings: what it was, and what was written."""
        number = one.instance.engine.under_way[0].number
        [asked] = [effect for effect in one.effects if isinstance(effect, Obey) and effect.place.number == number]
        batches = asked.order.batches.values() if isinstance(asked.order, Step) else ()
        rows = next((batch for batch in batches if batch.num_rows), nothing)
        effects = one.give(Answered(asked.place, Answer({"all": rows})))
        return asked.order, [effect.frame for effect in effects if isinstance(effect, Append)]

    corrections: list[list[list[Frame]]] = []
    for at in range(0, 6000 * MS, 50 * MS):
        one.until(at)
        for name in "ab":
            one.deliver(LogId(name, "", 0), one.rows(name, [at]), one.boundary(at - 3000 * MS))
        is_correcting = False
        while one.instance.engine.under_way:
            order, written = answer_next()
            is_correcting |= isinstance(order, RollBack)
            if isinstance(order, RollBack):
                corrections.append([])
            if is_correcting:
                corrections[-1].append(written)
            is_correcting &= not isinstance(order, EndRedo)
    assert len(corrections) > 1 and one.states == [State.RECOVERING, State.STABLE], "no failure"
    for *before, at_the_end in corrections:
        assert before and not any(before), "the tentative rows stay"
        assert isinstance(at_the_end[0], Undo) and isinstance(at_the_end[-1], RecDone)
    assert [frame.tentative for frame in at_the_end if isinstance(frame, Data)] == [False]


def test_what_befell_it_may_have_befallen_its_peer_which_is_heard_first() -> None:
    """R22: the peer is last known STABLE, and needs no lease; but it has just failed, and says so."""
    one = InstanceDriver(union_plan(tuning={"alpha_x": "200ms", "heartbeat": "300ms"}))
    flow(one, 0, 200 * MS)
    for at in range(200 * MS, 550 * MS, 50 * MS):
        one.until(at)
        one.deliver(A, one.rows("a", [at]), one.boundary(at + 50 * MS))
    assert one.state is State.UP_FAILURE and one.instance.status().is_tentative
    catch_up(one, "b", 200 * MS, 550 * MS)
    assert one.state is State.UP_FAILURE and not one.sent(LeaseRequest)
    one.give(Received(Heartbeat(R1, State.UP_FAILURE)))
    one.until(700 * MS)
    assert one.state is State.UP_FAILURE and one.sent(LeaseRequest)


@pytest.mark.parametrize("mode", ["checkpoint_redo", "undo_redo", "overlay_redo"])
def test_in_calm_memory_holds_nothing_that_was_handed_on(mode: str) -> None:
    one = InstanceDriver(union_plan(reconcile=mode))
    flow(one, 0, 2000 * MS)
    assert all(len(link.port.tape.chunks) <= 2 for link in one.instance.links)


def test_what_a_dead_life_goes_on_writing_is_no_sign_of_life() -> None:
    """R25: its successor has begun, and is dead too."""
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    one.deliver(B, Start(Origin("", 2), 0, 4))
    for at in range(200 * MS, 500 * MS, 50 * MS):
        one.until(at)
        one.deliver(A, one.rows("a", [at]), one.boundary(at + 50 * MS))
        one.deliver(B, one.boundary(at + 50 * MS))
    assert one.instance.status().inputs[1].silent and one.state is State.UP_FAILURE


def test_a_new_x_moves_how_far_stable_output_may_trail() -> None:
    """R16: ten times X, where the query does not say."""
    one = InstanceDriver(union_plan())
    one.give(threshold(500 * MS))
    assert one.instance.sunion.settings.stable_lag_max_us == 5_000 * MS


def test_a_correction_whose_host_is_gone_holds_no_peer_back() -> None:
    """R22: nobody waits for a dead one; peers hear that it is not about to end."""
    plan = union_plan()
    plan = replace(plan, fragments=tuple(replace(part, engines=("spark",)) for part in plan.fragments))
    one = InstanceDriver(plan)
    one.instance.state = State.STABILIZATION
    for since_ms, state in ((10, State.STABILIZATION), (60_000, State.RECOVERING)):
        one.instance.heard_until = since_ms * MS
        [told] = one.instance._tell_peers()  # its BEGIN has not been answered for so long
        assert told == Send(R1, Heartbeat(one.me, state))


def test_one_row_ahead_of_its_stream_makes_nothing_tentative_and_blinds_nobody() -> None:
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    one.deliver(A, one.rows("a", [60_000 * MS]))
    flow(one, 200 * MS, 3000 * MS)
    assert one.states == [State.STABLE]
    given = [time for frame in one.frames(Data) for time in frame.batch.column(0).to_pylist()]  # type: ignore[union-attr]
    assert given == sorted([*range(0, 3000 * MS, 50 * MS)] * 2)
    flow(one, 3000 * MS, 4800 * MS, "a", peer=State.UP_FAILURE)
    tentative = [frame for frame in one.frames(Data) if frame.tentative]  # type: ignore[union-attr]
    late = max(time for frame in tentative for time in frame.batch.column(0).to_pylist())  # type: ignore[union-attr]
    assert 3700 * MS <= late < 5000 * MS, "b is missing: a is answered without it, within X, and no further than it has come"


def test_a_row_ahead_of_its_stream_is_overdue_once_its_time_has_come_and_alpha_x_has_passed() -> None:
    """All inputs are silent: what is there is answered all the same."""
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    one.deliver(A, one.rows("a", [4000 * MS]))
    one.until(4700 * MS)
    assert not [frame for frame in one.frames(Data) if frame.tentative]  # type: ignore[union-attr]
    one.until(4900 * MS)
    assert [frame.batch.column(0).to_pylist() for frame in one.frames(Data) if frame.tentative] == [[4000 * MS]]  # type: ignore[union-attr]


def test_calls_take_as_much_work_as_leaves_it_heard_in_time() -> None:
    """Of a backlog, at 4 us a row: a heartbeat is 100 ms."""
    one = InstanceDriver(union_plan())
    for name in "ab":
        frames = [one.rows(name, list(range(at, at + 400 * MS, 100))) for at in range(0, 40_000 * MS, 400 * MS)]
        one.instance.handle(Frames(LogId(name, "", 0), tuple(enumerate([*frames, one.boundary(INFINITY)])), 101), 0)
    given, longest = 0, 0
    while one.instance.has_more:
        effects = one.instance.handle(Tick(), one.now)
        rows = sum(e.frame.batch.num_rows for e in effects if isinstance(e, Append) and isinstance(e.frame, Data))
        given, longest = given + rows, max(longest, rows)
        one.now += 4 * rows
    assert given == 800_000 and 16_384 <= longest <= 40_000


def test_a_live_branch_is_given_up_once_the_corrections_beside_it_have_outgrown_memory() -> None:
    """R21: alone, by overlay_redo; what was held back is then shown at once, and the rest as it is made."""
    wide = {"all": {"union": ["a", "b"]}, "wide": {"map": "all", "select": {f"v{n}": "v" for n in range(12)}}}
    one = failed(operators=wide, output="wide", reconcile="overlay_redo", replicas=1, tuning={"memory": "40KB"})
    sunion, soutput = one.instance.sunion, one.instance.soutput
    sunion.settings = replace(sunion.settings, step_rows=2)
    times = list(range(200 * MS, 1500 * MS, 2 * MS))
    frames: list[Frame] = [one.rows("b", times), one.boundary(1500 * MS)]
    items = tuple(enumerate(frames, start=one.offsets[B]))
    one.instance.handle(Frames(B, items, items[-1][0] + 1), one.now)
    held, lived = list[int](), list[bool]()
    while one.instance.has_more:
        shown = [effect.frame for effect in one.instance.handle(Tick(), one.now) if isinstance(effect, Append)]
        deferred = [frame.batch.nbytes for _, frame in soutput.deferred or () if isinstance(frame, Data)]
        if sunion.redoing:
            held.append(sum(deferred))
            lived.append(sunion.live is not None)
            assert lived[-1] or not deferred
    assert max(held) <= 2 * one.plan.memory_bytes
    assert lived[0] and not lived[-1]
    assert isinstance(shown[-1], RecDone | Boundary | Data) and one.state is not State.STABILIZATION


def test_what_is_held_back_beside_a_live_branch_is_not_acknowledged_before_it_is_shown() -> None:
    """R26: should we die before that, our next life finds in our logs what was there before the correction."""
    one = failed(reconcile="overlay_redo", replicas=1)
    one.instance.sunion.settings = replace(one.instance.sunion.settings, step_rows=2)
    times = list(range(200 * MS, 1500 * MS, 50 * MS))
    frames: list[Frame] = [one.rows("b", times), one.boundary(1500 * MS)]
    items = tuple(enumerate(frames, start=one.offsets[B]))
    one.instance.handle(Frames(B, items, items[-1][0] + 1), one.now)
    shown, held = one.instance.claims.shown, 0
    while one.instance.has_more:
        one.instance.handle(Tick(), one.now)
        if one.instance.soutput.deferred:
            held += 1
            assert one.instance.claims.shown is shown
    assert held > 1 and one.instance.claims.shown is one.instance.claims.made is not shown


def test_one_that_stays_live_for_its_peer_goes_on_by_the_policy_for_stabilization() -> None:
    """R11, R22: here that is to send nothing."""
    one = failed(policy="process/suspend")
    one.give(Received(LeaseRequest(R1)))
    assert one.sent(LeaseGrant)
    given = len(one.frames(Data))
    flow(one, 1500 * MS, 1700 * MS, "a", peer=State.STABILIZATION)
    assert len(one.frames(Data)) == given
    one.give(Received(LeaseEnd(R1)))
    flow(one, 1700 * MS, 1900 * MS, "a", peer=State.UP_FAILURE)
    assert len(one.frames(Data)) > given


def test_of_a_replica_that_is_read_for_its_corrections_no_tentative_row_is_taken() -> None:
    """R17."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    live, other = (LogId("all", replica, 0) for replica in ("r0", "r1"))
    one.deliver(live, one.boundary(100 * MS, "r0", State.UP_FAILURE))
    one.tail(other, one.boundary(100 * MS, "r1", State.STABILIZATION))
    [link] = one.instance.links
    assert link.upstream.correcting is not None and link.upstream.correcting.log == other
    one.deliver(other, one.rows("all", [150 * MS], "r1", tentative=True))
    assert not link.port.suffix
    one.deliver(other, one.rows("all", [150 * MS], "r1"))
    assert link.port.tape.next_id == 1


def test_a_log_that_lacks_rows_is_left_for_another_and_not_asked_again_for_a_while() -> None:
    """R27: it came back by its partner's anchor."""
    one = InstanceDriver(plan_of(chain_of(2)), fragment="f2")
    lacking, whole = (LogId("all", replica, 0) for replica in ("r0", "r1"))
    one.tail(whole, one.boundary(50 * MS, "r1"))
    one.ids[lacking] = 4
    effects = one.deliver(lacking, one.rows("all", [50 * MS], "r0"))
    assert [effect for effect in effects if isinstance(effect, Follow | Unfollow)] == [Unfollow(lacking), Follow(whole, -1)]
    [link] = one.instance.links
    assert link.upstream.live.log == whole and link.port.tape.next_id == 0
    one.tail(lacking, one.boundary(100 * MS, "r0"))
    assert link.upstream.rank(link.upstream.candidate(lacking), one.now) is Rank.DEAD


def test_when_all_inputs_return_at_once_it_was_itself_away() -> None:
    """R12: what they bring is a backlog, for which no deadline holds."""
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    one.until(700 * MS)
    one.deliver(A, one.rows("a", [200 * MS]), end=one.offsets[A] + 20)
    assert one.state is State.RECOVERING


# A Tick while events wait


def test_it_starves_when_no_tick_has_come_for_half_a_heartbeat_while_events_do() -> None:
    one = InstanceDriver(union_plan())
    flow(one, 0, 200 * MS)
    one.until(200 * MS)
    assert not one.instance.is_starving(10_000 * MS), "nothing has come since the last Tick: another would gain nothing"
    patience = one.plan.silence_us // 4
    one.instance.handle(Frames(A, ((9, one.rows("a", [200 * MS])),), 10), 201 * MS)
    assert not one.instance.is_starving(200 * MS + patience)
    assert one.instance.is_starving(200 * MS + patience + 1)
    one.instance.handle(Tick(200 * MS), 260 * MS)
    assert not one.instance.is_starving(10_000 * MS)


def test_it_starves_when_its_ports_hold_more_than_memory_allows_and_a_tick_lets_go_of_it() -> None:
    one = InstanceDriver(union_plan(tuning={"memory": "1KB"}))
    times = list(range(0, 100 * MS, 500))
    one.instance.handle(Frames(A, ((0, one.rows("a", times)),), 1), 0)
    tape = one.instance.links[0].port.tape
    assert tape.nbytes > one.plan.memory_bytes and one.instance.is_starving(0)
    one.instance.handle(Tick(0), 0)
    assert tape.nbytes <= one.plan.memory_bytes and not one.instance.is_starving(0)


def test_what_still_waits_is_nobodys_silence_and_makes_no_bucket_overdue() -> None:
    """A Tick that comes early speaks of the time when the first event that waits came."""
    for heard_until, is_failed in ((250 * MS, False), (None, True)):
        one = InstanceDriver(union_plan())
        flow(one, 0, 200 * MS)
        one.until(200 * MS)
        one.deliver(A, one.rows("a", [210 * MS]), one.boundary(300 * MS))
        # A call at every moment in which it is wanted, so that no time counts as its own absence.
        for now in range(210 * MS, 1500 * MS, 10 * MS):
            one.instance.handle(Tick(heard_until), now)
        assert (one.state is State.UP_FAILURE) is is_failed
        assert one.instance.status().inputs[1].silent is is_failed
        assert one.instance.status().is_tentative is is_failed
        assert one.instance.heartbeat_at > 1490 * MS, "it is heard all the same"


def test_a_correction_begins_while_events_wait() -> None:
    """Else a load that never empties the inbox would put it off for ever. Peers are judged as of the time that was heard."""
    one = failed(replicas=1)
    rows = one.rows("b", list(range(200 * MS, 1500 * MS, 50 * MS)))
    offset = one.offsets[B]
    one.instance.handle(Frames(B, ((offset, rows), (offset + 1, one.boundary(1500 * MS))), offset + 2), one.now)
    effects = one.instance.handle(Tick(one.now), one.now)
    assert StateChanged(State.STABILIZATION) in effects


# The copy for MARK


def copies_of(one: InstanceDriver) -> list[StoreCheckpoint]:
    return [effect for effect in one.effects if isinstance(effect, StoreCheckpoint)]


def first_tentative(one: InstanceDriver) -> int:
    return next(at for at, effect in enumerate(one.effects) if isinstance(effect, Append) and _is_tentative(effect.frame))


def _is_tentative(frame: Frame) -> bool:
    return isinstance(frame, Data) and frame.tentative


def test_the_copy_is_made_while_buckets_wait_and_mark_makes_none() -> None:
    one = failed(until=500 * MS)
    assert one.state is State.UP_FAILURE and not copies_of(one), "half of the wait is not over"
    flow(one, 500 * MS, 800 * MS, "a", peer=State.UP_FAILURE)
    [copy] = copies_of(one)
    assert copy.time == one.instance.status().position and not one.instance.status().is_tentative
    flow(one, 800 * MS, 1500 * MS, "a", peer=State.UP_FAILURE)
    assert one.effects.index(copy) < first_tentative(one) and copies_of(one) == [copy]
    catch_up(one, "b", 200 * MS, 1500 * MS)
    flow(one, 1500 * MS, 1600 * MS)
    assert State.STABILIZATION in one.states and len(one.frames(Undo)) == 1, "it is what the rollback returned to"


def test_mark_copies_again_where_stable_rows_have_come_since() -> None:
    one = failed(until=800 * MS)
    [ahead] = copies_of(one)
    late = list(range(200 * MS, 400 * MS, 50 * MS))
    one.deliver(B, one.rows("b", late), one.boundary(400 * MS))
    flow(one, 800 * MS, 2000 * MS, "a", peer=State.UP_FAILURE)
    _, again = copies_of(one)
    assert ahead.time < again.time == one.instance.status().position


def test_a_failure_that_heals_in_the_first_half_of_the_wait_costs_no_copy() -> None:
    one = failed(until=500 * MS)
    catch_up(one, "b", 200 * MS, 500 * MS)
    flow(one, 500 * MS, 1500 * MS)
    assert one.state is State.STABLE and not copies_of(one)


SUSPENDED = {"failure": "suspend", "stabilization": "suspend"}


@pytest.mark.parametrize("options", [{"reconcile": "overlay_redo"}, {"policy": SUSPENDED}])
def test_who_copies_nothing_at_mark_copies_nothing_ahead_of_it(options: dict[str, Any]) -> None:
    assert not copies_of(failed(**options))
