"""An instance that begins with what one of another version keeps gives the rows that it would give if it had run all the time
(`deployment.shared_sources`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from boreal.model.frames import Anchor, Boundary, Data, LogId, State
from boreal.query.plan import Plan
from deployment.carried_states import CarriedStates, carry_states
from deployment.shared_sources import first_rows, same_operators
from logs.checkpoints import Checkpoint
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.restart import verified
from operators.graph import FragmentGraph
from reconcile.events import Acknowledge, Follow, StoreCheckpoint
from reconcile.recovery import Beginning, Restart, VerifiedCheckpoint, plan_restart
from tests.harness import MS, InstanceDriver, plan_of, query_of
from tests.unit.reconcile.test_instance import catch_up, flow

A = LogId("a", "", 0)
EVERY = 50 * MS
"""A row comes so often, with its number as its id."""
KILLED_AT = 3800 * MS


def windows(mode: str, **compute: str) -> Plan:
    sums = {"aggregate": "a", "window": {"tumbling": "1s"}, "compute": compute}
    return plan_of(query_of({"sums": sums}, "sums", ("a",), replicas=1, reconcile=mode, tuning={"bucket": "100ms"}))


def distinct(**operators: Any) -> Plan:
    """A new value of `group` comes every 1.5 s."""
    each = {
        "grouped": {"map": "a", "select": {"group": "v - mod(v, 30)", "v": "v"}},
        "first": {"distinct": "grouped", "on": ["group"]},
        **operators,
    }
    tuning = {"bucket": "100ms", "checkpoint_interval": "500ms"}
    return plan_of(query_of(each, list(each)[-1], ("a",), replicas=1, reconcile="checkpoint_redo", tuning=tuning))


def ran(plan: Plan, until: int, restart: Restart | None = None, first_id: int = 0, now: int = 0) -> InstanceDriver:
    """An instance that has read all rows from an id on, up to a time."""
    one = InstanceDriver(plan, restart=restart)
    one.ids[A], one.now = first_id, now
    flow(one, first_id * EVERY, until, "a", None)
    return one


def rows(one: InstanceDriver, since: int = 0) -> list[dict[str, Any]]:
    found = [row for frame in one.frames(Data) if isinstance(frame, Data) for row in frame.batch.to_pylist()]
    return [row for row in found if row["time"] >= since]


def last_anchor(one: InstanceDriver) -> Anchor:
    anchors = [frame.anchor for frame in one.frames(Boundary) if isinstance(frame, Boundary) and frame.anchor is not None]
    return anchors[-1]


def acknowledged(one: InstanceDriver) -> list[int]:
    return [dict(effect.positions)["a/0"] for effect in one.effects if isinstance(effect, Acknowledge)]


@pytest.mark.parametrize("mode", ["checkpoint_redo", "undo_redo", "overlay_redo"])
def test_one_with_other_windows_begins_with_the_rows_that_the_last_anchor_needs(mode: str) -> None:
    """And so does its next incarnation, which finds an anchor of its own."""
    anchor = last_anchor(ran(windows(mode, n="count(*)"), KILLED_AT))
    plan = windows(mode, n="count(*)", most="max(v)")
    first_ids, reach = first_rows(plan, {("main", 0): anchor})
    assert reach == {"a": 3000 * MS} and 0 < first_ids["a/0"] <= 3000 * MS // EVERY
    [place] = plan_restart(1, -1, {}, None, None, Beginning(first_ids))
    two = ran(plan, 7500 * MS, place, first_ids["a/0"], KILLED_AT)
    assert [effect for effect in two.effects if isinstance(effect, Follow)] == [Follow(A, first_ids["a/0"] - 1)]
    whole = rows(ran(plan, 9000 * MS), reach["a"])
    assert rows(two, reach["a"]) == whole[: len(rows(two, reach["a"]))] and len(rows(two)) >= 4
    assert min(acknowledged(two)) >= first_ids["a/0"]
    own = last_anchor(two)
    [again] = plan_restart(2, 0, {"sums/0": dict(own.next_ids)["sums/0"]}, own, None, Beginning(first_ids))
    three = ran(plan, 9000 * MS, again, dict(own.inputs)["a/0"], 7500 * MS)
    assert rows(two) + rows(three) == rows(ran(plan, 9000 * MS, place, first_ids["a/0"], KILLED_AT))


AFTER = distinct(shown={"map": "first", "select": {"group": "group", "twice": "v * 2"}})


def carried_at(killed_at: int) -> VerifiedCheckpoint:
    """The state with which a version with `AFTER` begins, from the last checkpoint of one that was killed."""
    before = distinct()
    copy = last_copy(ran(before, killed_at))
    old, new = before.fragments[0], AFTER.fragments[0]
    same = same_operators(before, AFTER)
    assert same == {"grouped", "first"}
    state = FragmentGraph(new).carry(copy.state or b"", FragmentGraph(old), same)
    return VerifiedCheckpoint(copy.time, copy.time, (), copy.inputs, state, ("carried/main.r0.0", copy.number))


def last_copy(one: InstanceDriver) -> StoreCheckpoint:
    return [effect for effect in one.effects if isinstance(effect, StoreCheckpoint)][-1]


def numbered(one: InstanceDriver) -> list[tuple[int, dict[str, Any]]]:
    """The stable rows that it has written, each with its id."""
    frames = [frame for frame in one.frames(Data) if isinstance(frame, Data) and not frame.tentative]
    return [pair for frame in frames for pair in enumerate(frame.batch.to_pylist(), start=frame.first_id)]


def test_one_with_the_same_states_begins_with_a_checkpoint() -> None:
    carried = carried_at(KILLED_AT)
    first_id = dict(carried.inputs)["a/0"]
    [place] = plan_restart(1, -1, {}, None, None, Beginning({"a/0": first_id}, True, carried))
    two = ran(AFTER, 9000 * MS, place, first_id, KILLED_AT)
    expected = rows(ran(AFTER, 9000 * MS), carried.time)
    assert numbered(two) == list(enumerate(expected)) and len(expected) >= 3
    [empty] = plan_restart(1, -1, {}, None, None, Beginning({"a/0": first_id}))
    without = ran(AFTER, 9000 * MS, empty, first_id, KILLED_AT)
    assert rows(without, carried.time) != expected, "the rows alone are not enough"


def test_its_later_incarnations_and_a_partner_that_begins_late_number_the_same_rows() -> None:
    """With its own checkpoint; without, as long as the logs hold what follows the state; and with the partner's."""
    carried = carried_at(KILLED_AT)
    first_id = dict(carried.inputs)["a/0"]
    begins = Beginning({"a/0": first_id}, True, carried)
    [place] = plan_restart(1, -1, {}, None, None, begins)
    whole = numbered(ran(AFTER, 12000 * MS, place, first_id, KILLED_AT))
    one = ran(AFTER, 7500 * MS, place, first_id, KILLED_AT)
    written, copy, anchor = len(numbered(one)), last_copy(one), last_anchor(one)
    assert 0 < written < len(whole) and numbered(one) == whole[:written]
    saved = VerifiedCheckpoint(copy.time, copy.needs, copy.next_ids, copy.inputs, copy.state or b"", ("main.r0.0", copy.number))
    for found in (saved, None):
        again = plan_restart(2, 0, {"shown/0": written}, anchor, found, begins)[0]
        assert again.position == (copy.time if found else carried.time), "what is the least to read again comes first"
        later = ran(AFTER, 12000 * MS, again, again.inputs["a/0"], 7500 * MS)
        assert numbered(later) == whole[written:]
    [partner, *_] = plan_restart(1, -1, {}, anchor, saved, Beginning({"a/0": first_id}, True))
    late = numbered(ran(AFTER, 12000 * MS, partner, partner.inputs["a/0"], 7500 * MS))
    assert late == whole[dict(copy.next_ids)["shown/0"] :]


@pytest.mark.parametrize("mode", ["checkpoint_redo", "overlay_redo"])
def test_a_failure_before_its_first_own_checkpoint_is_corrected_from_the_state_that_it_began_with(mode: str) -> None:
    operators = {
        "all": {"union": ["a", "b"]},
        "grouped": {"map": "all", "select": {"group": "v - mod(v, 30)", "v": "v"}},
        "first": {"distinct": "grouped", "on": ["group"]},
    }
    plan = plan_of(
        query_of(operators, "first", ("a", "b"), reconcile=mode, tuning={"bucket": "100ms", "checkpoint_interval": "1h"})
    )

    def began() -> InstanceDriver:
        """It begins after the first 40 rows of each stream, whose 2 groups its state knows."""
        copied = InstanceDriver(plan)
        flow(copied, 0, 40 * EVERY)
        time = copied.instance.sunion.base.position
        inputs = {f"{name}/0": time // EVERY for name in "ab"}
        host = copied.instance.engine.host
        assert host is not None
        state = VerifiedCheckpoint(time, time, (), tuple(inputs.items()), host.state.encode(), ("carried/main.r0.0", 1))
        [place] = plan_restart(1, -1, {}, None, None, Beginning(inputs, True, state))
        one = InstanceDriver(plan, restart=place)
        one.now = time
        one.ids.update({LogId(name, "", 0): time // EVERY for name in "ab"})
        flow(one, time, 2400 * MS)
        return one

    well, ill = began(), began()
    flow(well, 2400 * MS, 9000 * MS)
    flow(ill, 2400 * MS, 5000 * MS, "a", peer=None)
    assert ill.state is State.UP_FAILURE and any(frame.tentative for frame in ill.frames(Data) if isinstance(frame, Data))
    catch_up(ill, "b", 2400 * MS, 5000 * MS)
    flow(ill, 5000 * MS, 9000 * MS, peer=None)
    assert ill.state is State.STABLE and numbered(ill) == numbered(well) and len(numbered(well)) >= 3


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, {"grouped", "first"}),
        ({"first": {"distinct": "grouped", "on": ["v"]}}, {"grouped"}),
        ({"grouped": {"map": "a", "select": {"group": "v - mod(v, 20)", "v": "v"}}}, set()),
    ],
)
def test_an_operator_is_the_same_if_all_that_it_reads_is(changes: dict[str, Any], same: set[str]) -> None:
    before = distinct()
    assert same_operators(before, distinct(**changes)) == same
    [main, egress] = before.fragments
    other = replace(main, inputs=tuple(replace(entry, name="b") for entry in main.inputs))
    assert same_operators(replace(before, fragments=(other, egress)), before) == frozenset()


# Several fragments

PARTS: dict[str, dict[str, Any]] = {
    "both have states of all rows": {
        "pairs": {"distinct": "grouped", "on": ["group", "odd"]},
        "last": {"distinct": "pairs", "on": ["group"]},
    },
    "the first one has windows": {
        "pairs": {"aggregate": "grouped", "window": {"tumbling": "1s"}, "by": ["group"], "compute": {"n": "count(*)"}},
        "last": {"distinct": "pairs", "on": ["group"]},
    },
    "the second one has windows": {
        "pairs": {"distinct": "grouped", "on": ["group", "odd"]},
        "last": {"aggregate": "pairs", "window": {"tumbling": "1s"}, "by": ["group"], "compute": {"n": "count(*)"}},
    },
}


def chained(kind: str, **more: Any) -> Plan:
    """Two fragments in a row. Another value of `group` comes every 1.5 s, and the first one comes again after 7.5 s."""
    grouped = {"map": "a", "select": {"group": "mod(v - mod(v, 30), 150)", "odd": "mod(v, 2)", "v": "v"}}
    operators = {"grouped": grouped, **PARTS[kind], **more}
    fragments = {"one": {"operators": ["grouped", "pairs"]}, "two": {"operators": ["last", *more]}}
    tuning = {"bucket": "100ms", "checkpoint_interval": "400ms"}
    modes: dict[str, Any] = {"reconcile": "checkpoint_redo", "tuning": tuning, "fragments": fragments}
    return plan_of(query_of(operators, list(operators)[-1], ("a",), **modes))


def ran_in_a_row(
    plan: Plan, until: int, restarts: dict[str, Restart] | None = None, first_id: int = 0
) -> dict[str, InstanceDriver]:
    """Both fragments of a version that reads all rows from an id on, up to a time. Its processes begin with the first row."""
    places = restarts or {"one": Restart(1), "two": Restart(1)}
    both = {name: InstanceDriver(plan, name, restart=place) for name, place in places.items()}
    one, two = both.values()
    one.ids[A] = first_id
    for at in range(first_id * EVERY, until, EVERY):
        for each in both.values():
            each.until(at - first_id * EVERY)
        written = len(one.appended)
        one.deliver(A, one.rows("a", [at]), one.boundary(at + EVERY))
        for effect in one.appended[written:]:
            two.deliver(effect.log, effect.frame)
    return both


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("killed_at", [3800 * MS, 4150 * MS])
def test_fragments_in_a_row_begin_with_states_that_fit_and_give_the_rows_of_a_version_that_ran_all_the_time(
    kind: str, killed_at: int
) -> None:
    running, new = chained(kind), chained(kind, more={"map": "last", "select": {"group": "group", "double": "group * 2"}})
    former, store = MemoryCheckpointStore(), MemoryCheckpointStore()
    for name, one in ran_in_a_row(running, killed_at).items():
        behind = 0 if name == "one" else 1  # the last one of the second fragment is not stored yet
        copies = [effect for effect in one.effects if isinstance(effect, StoreCheckpoint)]
        for each in copies[: len(copies) - behind]:
            numbers = each.number, each.time, each.needs, each.next_ids, each.inputs, each.state or b""
            former.put(Checkpoint(str(one.me), *numbers))
    found = carry_states(former, store, running, new, lambda _, time: -(-time // EVERY), lambda *_: True)
    states = {name: (found.states or {}).get(f"{name}/0") for name in ("one", "two")}
    restarts = {
        name: plan_restart(1, -1, {}, None, None, begins(found, place and verified(store.get(*place))))[0]
        for name, place in states.items()
    }
    assert restarts["one"].position <= restarts["two"].position or states["two"] is None
    later = ran_in_a_row(new, 9_000 * MS, restarts, found.first_ids["a/0"])["two"]
    [since] = found.reach.values()
    expected = rows(ran_in_a_row(new, 9_000 * MS)["two"], since)
    assert rows(later, since) == expected and len(expected) >= 2
    assert since < killed_at + 1000 * MS
    empty = {name: plan_restart(1, -1, {}, None, None, Beginning(found.first_ids))[0] for name in states}
    without = ran_in_a_row(new, 9_000 * MS, empty, found.first_ids["a/0"])["two"]
    assert rows(without, since) != expected, "the rows alone are not enough"


def begins(found: CarriedStates, state: VerifiedCheckpoint | None) -> Beginning:
    return Beginning(found.first_ids, state is not None, state)
