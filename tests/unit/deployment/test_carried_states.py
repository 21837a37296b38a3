"""A version that begins with the states of the one in charge: which checkpoints it begins with, and how long these are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from boreal.model.errors import CorruptError, UserError
from boreal.query.planner import plan
from boreal.query.spec import load_query
from deployment.carried_states import CarriedStates, carry_states, is_carried, newest_place
from deployment.evolution import VersionProgress, claimed, evolve, let_go, roll_back, settle
from deployment.query_record import QueryRecord, SharedSources
from deployment.shared_sources import STATE, all_needed, first_rows
from deployment.watched_query import WatchedQuery
from logs.checkpoints import Checkpoint
from logs.memory_checkpoints import MemoryCheckpointStore
from operators.graph import FragmentGraph
from reconcile.events import InstanceId
from services.monitor.checkpoints import drop_carried
from tests.harness import S, query_of
from tests.unit.deployment.test_evolution import report, step, taken_over

FIRST = {"first": {"distinct": "a", "on": ["k"]}}
SHOWN = {**FIRST, "shown": {"map": "first", "select": {"k": "k", "more": "v + 1"}}}


def spec(operators: Mapping[str, Any] = FIRST, **changes: Any) -> dict[str, Any]:
    """A query that gives each key once, in two shards by it."""
    made = query_of(operators, list(operators)[-1], ("a",), shards=2, **changes)
    return {**made, "streams": {"a": {**made["streams"]["a"], "key": ["k"]}}}


OLD, NEW = plan(load_query(spec())), plan(load_query(spec(SHOWN)))

def saved(replica: str, shard: int, number: int, time: int, first_id: int, *keys: int) -> Checkpoint:
    """A checkpoint of the old version that has seen these keys."""
    graph, who = FragmentGraph(OLD.fragments[0]), InstanceId("main", replica, shard)
    [edge] = OLD.fragments[0].edges
    columns = [pa.array([time - 1] * len(keys), pa.int64()), pa.array(keys, pa.int64()), pa.array([0.0] * len(keys))]
    state = graph.empty()
    graph.step(state, {"a": pa.RecordBatch.from_arrays(columns, schema=edge.schema.arrow)}, time)
    return Checkpoint(str(who), number, time, time, ((f"first/{shard}", 5),), ((f"a/{shard}", first_id),), state.encode())


def stored(*checkpoints: Checkpoint) -> MemoryCheckpointStore:
    store = MemoryCheckpointStore()
    for each in checkpoints:
        store.put(each)
    return store


def held(_: str, __: int) -> bool:
    return True


def nowhere(_: str, __: int) -> int:
    """No anchor tells where rows of a time begin."""
    return 0


BOTH = (saved("r0", 0, 7, 30 * S, 300, 1, 2), saved("r1", 0, 4, 40 * S, 400, 1, 2, 3), saved("r0", 1, 9, 20 * S, 200, 8))
"""Of shard 0 replica r1 has the newer one, though with a lower number; of shard 1 r1 has none."""


def new_keys(store: MemoryCheckpointStore, place: tuple[str, int], *keys: int) -> list[int]:
    """Which of these keys a state of the new version has not seen."""
    graph = FragmentGraph(NEW.fragments[0])
    columns = [pa.array([90 * S] * len(keys), pa.int64()), pa.array(keys, pa.int64()), pa.array([0.0] * len(keys))]
    [edge] = NEW.fragments[0].edges
    rows = pa.RecordBatch.from_arrays(columns, schema=edge.schema.arrow)
    [found] = graph.step(graph.decode(store.get(*place).state), {"a": rows}, 91 * S).values()
    return [int(row["k"]) for row in found.to_pylist()]


def test_each_shard_begins_with_the_newest_checkpoint_of_any_replica_and_the_rows_that_follow() -> None:
    store = MemoryCheckpointStore()
    found = carry_states(stored(*BOTH), store, OLD, NEW, nowhere, held)
    places = {"main/0": ("carried/main.r1.0", 4), "main/1": ("carried/main.r0.1", 9)}
    assert found == CarriedStates({"a/0": 400, "a/1": 200}, {"a": 40 * S}, places)
    assert new_keys(store, places["main/0"], 1, 2, 3, 4) == [4] and new_keys(store, places["main/1"], 8, 9) == [9]
    carried = store.get(*places["main/0"])
    assert (carried.time, carried.needs, carried.next_ids, carried.inputs) == (40 * S, 40 * S, (), (("a/0", 400),))
    assert all(is_carried(owner) for owner in store.blobs), "no replica that loses its checkpoints loses these"
    assert not any(is_carried(str(InstanceId("main", replica, 0))) for replica in ("r0", "r1"))


def test_a_number_that_the_record_may_name_never_comes_to_mean_another_state() -> None:
    """A monitor that is killed before it has written the record chooses again, and may find that another replica is ahead."""
    former, store = stored(*BOTH), MemoryCheckpointStore()
    chosen = carry_states(former, store, OLD, NEW, nowhere, held).states["main/0"]
    before = store.get(*chosen)
    former.put(saved("r1", 0, 5, 60 * S, 600, 1, 2, 3, 4, 5))
    again = carry_states(former, store, OLD, NEW, nowhere, held)
    assert (again.states["main/0"], again.first_ids["a/0"]) == (("carried/main.r1.0", 5), 600)
    former.drop("main.r0.0", below=9)
    former.put(saved("r0", 0, chosen[1], 70 * S, 700, 1, 2, 3, 4, 5, 6))
    assert carry_states(former, store, OLD, NEW, nowhere, held).states["main/0"] == ("carried/main.r0.0", chosen[1])
    assert store.get(*chosen) == before


def test_a_version_that_needs_no_such_state_reads_on_from_the_same_places() -> None:
    """And has all rows from the last of them on: windows that begin there are complete."""
    [fragment, _], store = OLD.fragments, stored(*BOTH)
    anchors = {("main", shard): newest_place(store, fragment, shard) for shard in range(2)}
    assert first_rows(OLD, anchors) == ({"a/0": 400, "a/1": 200}, {"a": 40 * S})
    assert all_needed(OLD) == {"a"}
    counted = {"n": {"aggregate": "a", "window": {"tumbling": "7s"}, "by": ["k"], "compute": {"n": "count(*)"}}}
    windows = plan(load_query(spec(counted)))
    assert all_needed(windows) == frozenset()
    record = evolve(QueryRecord("q", load_query(spec()).dump(), 1), load_query(spec(counted)), STATE)
    assert record.beside is not None and record.beside.shared == SharedSources(1, "earliest")
    placed = claimed(record, *first_rows(OLD, anchors))
    waiting, why = step(placed, report(through=30 * S), beside=VersionProgress("STABLE", 30 * S))
    assert waiting is None and "1970-01-01T00:00:42" in why
    assert step(placed, report(through=42 * S), beside=VersionProgress("STABLE", 42 * S))[0] is not None
    with pytest.raises(UserError, match=r"main\.1.*not there yet"):
        newest_place(stored(*BOTH[:2]), fragment, 1)


def test_a_damaged_checkpoint_is_passed_over() -> None:
    former, store = stored(*BOTH), MemoryCheckpointStore()
    former.blobs["main.r1.0"][4] = former.blobs["main.r1.0"][4][:-1]
    assert carry_states(former, store, OLD, NEW, nowhere, held).states["main/0"] == ("carried/main.r0.0", 7)


@pytest.mark.parametrize("held_from", [301, 0])
def test_a_checkpoint_that_is_older_or_newer_than_the_logs_is_not_begun_with(held_from: int) -> None:
    """As where the store was restored from a backup, or a broker has lost the end of a log."""
    store = MemoryCheckpointStore()
    former = stored(BOTH[0], BOTH[2])
    with pytest.raises(UserError) as refused:
        carry_states(former, store, OLD, NEW, nowhere, lambda key, first_id: key == "a/1" or held_from <= first_id < 300)
    assert refused.value.field == "log a/0" and "from 300 on" in refused.value.problem
    assert store.blobs == {}


def test_a_shard_without_a_checkpoint_is_waited_for() -> None:
    with pytest.raises(UserError, match=r"main\.1.*not there yet"):
        carry_states(stored(*BOTH[:2]), MemoryCheckpointStore(), OLD, NEW, nowhere, held)


def test_what_is_no_state_of_the_running_version_is_refused() -> None:
    others = [replace(each, state=b"other") for each in BOTH]
    with pytest.raises(CorruptError):
        carry_states(stored(*others), MemoryCheckpointStore(), OLD, NEW, nowhere, held)


def begun() -> tuple[QueryRecord, MemoryCheckpointStore]:
    """The record of a version that begins with states, and their store."""
    store = MemoryCheckpointStore()
    found = carry_states(stored(*BOTH), store, OLD, NEW, nowhere, held)
    record = evolve(QueryRecord("q", load_query(spec()).dump(), 1), load_query(spec(SHOWN)), STATE)
    return claimed(record, found.first_ids, found.reach, found.states), store


def watched(record: QueryRecord) -> WatchedQuery:
    return WatchedQuery(record.runs()[-1], ("a",), 0)


def trim(query: WatchedQuery, key: str, first_id: int, replicas: tuple[str, ...] = ("r0", "r1")) -> None:
    """These replicas need rows from here on."""
    for replica in replicas:
        query.claims.acknowledge(InstanceId("main", replica, int(key[-1])), [(key, first_id)], 0)
    query.tick(S)


def test_the_states_stay_for_as_long_as_a_replica_may_begin_with_them() -> None:
    record, store = begun()
    beside = watched(record)
    assert record.beside is not None and record.beside.shared is not None and record.beside.shared.states is not None
    one, other = record.beside.shared.states.values()
    trim(beside, "a/0", 400)
    trim(beside, "a/1", 250, ("r0",))
    assert beside.states_to_begin_with() == {one, other}, "r1 has no checkpoint yet"
    trim(beside, "a/0", 401)
    assert beside.states_to_begin_with() == {other}
    for owner in list(store.blobs):
        drop_carried(store, owner, {other})
    assert [owner for owner in store.blobs if store.numbers(owner)] == [other[0]]


def test_those_that_the_record_does_not_name_go_once_it_names_others() -> None:
    record, store = begun()
    claiming = evolve(QueryRecord("q", load_query(spec()).dump(), 1), load_query(spec(SHOWN)), STATE)
    assert watched(claiming).states_to_begin_with() is None, "the monitor may be about to name them"
    assert watched(QueryRecord("q", load_query(spec()).dump(), 1)).states_to_begin_with() == frozenset()
    needed = watched(record).states_to_begin_with()
    assert needed is not None and len(needed) == 2
    former = stored(*BOTH, saved("r0", 0, 1, 90 * S, 900))
    store.put(replace(former.get("main.r0.0", 1), instance="carried/main.r0.0"))
    store.put(replace(former.get("main.r0.0", 1), instance="carried/main.r1.0", number=3))
    for owner in list(store.blobs):
        drop_carried(store, owner, needed)
    assert {(owner, number) for owner in store.blobs for number in store.numbers(owner)} == needed


def test_a_version_that_began_so_hands_its_states_on_so_though_it_has_one_replica_by_now() -> None:
    """That one keeps its whole input; but that does not begin with the first row."""
    shared = SharedSources(1, "earliest", {"a/0": 400, "a/1": 200}, {"a": 40 * S}, {"main/0": ("carried/main.r1.0", 4)})
    lone = QueryRecord("q", load_query(spec(replicas=1)).dump(), 3, version=2, versions=2, shared=shared)
    found = evolve(lone, load_query(spec(SHOWN)), STATE)
    assert found.beside is not None and found.beside.shared == SharedSources(1, "earliest", states={})
    rows = evolve(replace(lone, shared=None), load_query(spec(SHOWN)), STATE)
    assert rows.beside is not None and rows.beside.shared is not None and rows.beside.shared.states is None


def test_a_version_that_is_given_up_while_its_states_are_stored_does_not_begin() -> None:
    record, _ = begun()
    given_up = roll_back(evolve(QueryRecord("q", load_query(spec()).dump(), 1), load_query(spec(SHOWN)), STATE))
    assert record.beside is not None and record.beside.shared is not None
    shared = record.beside.shared
    assert shared.first_ids is not None
    assert claimed(given_up, shared.first_ids, shared.reach, shared.states) is given_up


def test_it_is_rolled_back_and_takes_over_again_with_the_state_that_it_has() -> None:
    """The version in charge before needs nothing of it; and it begins with the same states if its replicas begin once more."""
    record, _ = begun()
    assert record.beside is not None
    shared, done = record.beside.shared, taken_over(record)
    assert (done.version, done.shared, done.beside and done.beside.shared) == (2, shared, None)
    back = taken_over(roll_back(done))
    assert (back.version, back.shared, back.beside and back.beside.shared) == (1, None, shared)
    again = taken_over(roll_back(back))
    assert (again.version, again.shared) == (2, shared)
    alone = let_go(settle(again))
    assert [(run.name, run.sources, run.shared) for run in alone.runs()] == [("q-2", "q", shared)]
    assert let_go(settle(back)).shared is None


# Several fragments

ROW = {"early": {"distinct": "a", "on": ["k", "v"]}, "late": {"distinct": "early", "on": ["k"]}}


def in_a_row(**more: Any) -> dict[str, Any]:
    """A query of two fragments, each with a state that depends on all rows ever."""
    operators = {**ROW, **more}
    fragments = {"one": {"operators": ["early"]}, "two": {"operators": [name for name in operators if name != "early"]}}
    return query_of(operators, list(operators)[-1], ("a",), fragments=fragments)


def of(fragment: str, replica: str, number: int, time: int, **inputs: int) -> Checkpoint:
    made = plan(load_query(in_a_row())).fragment(fragment)
    state = FragmentGraph(made).empty().encode()
    keys = tuple((key.replace("_", "/"), first_id) for key, first_id in inputs.items())
    return Checkpoint(f"{fragment}.{replica}.0", number, time, time, (), keys, state)


def test_a_fragment_begins_with_a_state_that_is_no_newer_than_those_of_its_readers() -> None:
    former = stored(
        of("one", "r0", 1, 10 * S, a_0=100), of("one", "r0", 2, 30 * S, a_0=300), of("one", "r1", 1, 20 * S, a_0=200),
        of("two", "r0", 5, 15 * S, early_0=7), of("two", "r1", 6, 25 * S, early_0=9),
    )  # fmt: skip
    running, new = plan(load_query(in_a_row())), plan(load_query(in_a_row(shown={"map": "late", "select": {"k": "k"}})))
    store = MemoryCheckpointStore()
    found = carry_states(former, store, running, new, nowhere, held)
    states = {"one/0": ("carried/one.r1.0", 1), "two/0": ("carried/two.r1.0", 6)}
    assert found == CarriedStates({"a/0": 200}, {"a": 25 * S}, states)
    assert store.get(*states["two/0"]).inputs == (), "the log between them begins anew"
    former.put(of("two", "r0", 7, 35 * S, early_0=12))
    assert carry_states(former, store, running, new, nowhere, held).first_ids == {"a/0": 300}
    for owner in ("one.r0.0", "one.r1.0"):
        former.drop(owner, below=99)
    former.put(of("one", "r0", 3, 40 * S, a_0=400))
    with pytest.raises(UserError, match=r"one\.0.*not there yet of 1970-01-01T00:00:35\S* or before"):
        carry_states(former, store, running, new, nowhere, held)


def test_a_fragment_with_windows_beside_has_rows_from_where_a_checkpoint_or_an_anchor_tells_that_they_begin() -> None:
    """Its results are complete from its first whole window on."""
    fragments = {"one": ["early"], "two": ["late", "shown"], "counts": ["n", "ks"], "merge": ["all"]}
    operators: dict[str, dict[str, Any]] = {
        **ROW,
        "shown": {"map": "late", "select": {"k": "k"}},
        "n": {"distinct": "b", "on": ["k"], "window": {"tumbling": "7s"}},
        "ks": {"map": "n", "select": {"k": "k"}},
        "all": {"union": ["shown", "ks"]},
    }
    parts = {name: {"operators": of_fragment} for name, of_fragment in fragments.items()}
    made = plan(load_query(query_of(operators, "all", ("a", "b"), fragments=parts)))
    former, store = stored(of("one", "r1", 1, 20 * S, a_0=200), of("two", "r1", 6, 25 * S, early_0=9)), MemoryCheckpointStore()

    def place_of(key: str, time: int) -> int:
        return {"b/0": 240, "a/0": 0}[key] if time >= 25 * S else 0

    running = plan(load_query(in_a_row()))
    found = carry_states(former, store, running, made, place_of, held)
    assert (found.first_ids, set(found.reach.values())) == ({"a/0": 200, "b/0": 240}, {28 * S})
    # Where only one with a state reads the stream, its checkpoints tell it.
    operators["n"] = {**operators["n"], "distinct": "a"}
    other = plan(load_query(query_of(operators, "all", ("a",), fragments=parts)))
    former.put(of("one", "r0", 3, 24 * S, a_0=230))
    assert carry_states(former, store, running, other, nowhere, held).first_ids == {"a/0": 230}


def test_a_state_over_operators_that_change_is_refused() -> None:
    """Also where these are in another fragment."""
    record = QueryRecord("q", load_query(in_a_row()).dump(), 1)
    changed = in_a_row(late={"distinct": "early", "on": ["k"]})
    changed["operators"]["early"] = {"distinct": "a", "on": ["k"]}
    with pytest.raises(UserError) as refused:
        evolve(record, load_query(changed), STATE)
    assert refused.value.field == "operators.early"
    between = in_a_row()
    between["operators"] = {"some": {"filter": "a", "where": "k > 1"}, **ROW}
    between["operators"]["early"] = {"distinct": "some", "on": ["k", "v"]}
    between["fragments"]["zero"] = {"operators": ["some"]}
    with pytest.raises(UserError) as moved:
        evolve(record, load_query(between), STATE)
    assert moved.value.field == "operators.early"
    sharded = in_a_row()
    sharded["fragments"]["two"]["shards"] = 2
    sharded["operators"]["late"] = {"distinct": "early", "on": ["k"]}
    with pytest.raises(UserError) as split:
        evolve(record, load_query(sharded), STATE)
    assert split.value.field == "fragments.two.shards"


def test_the_states_of_several_fragments_stay_until_each_replica_has_its_own() -> None:
    running, new = load_query(in_a_row()), load_query(in_a_row(shown={"map": "late", "select": {"k": "k"}}))
    former = stored(of("one", "r0", 1, 10 * S, a_0=100), of("two", "r1", 6, 25 * S, early_0=9))
    found = carry_states(former, MemoryCheckpointStore(), plan(running), plan(new), nowhere, held)
    record = claimed(
        evolve(QueryRecord("q", running.dump(), 1), new, STATE), found.first_ids, found.reach, found.states
    )
    beside = watched(record)

    def acknowledge(fragment: str, key: str, first_id: int) -> None:
        for replica in ("r0", "r1"):
            beside.claims.acknowledge(InstanceId(fragment, replica, 0), [(key, first_id)], 0)
        beside.tick(S)

    acknowledge("one", "a/0", 100)
    acknowledge("two", "early/0", 0)
    assert beside.states_to_begin_with() == set(found.states.values())
    acknowledge("one", "a/0", 101)
    assert beside.states_to_begin_with() == {found.states["two/0"]}
    acknowledge("two", "early/0", 3)
    assert beside.states_to_begin_with() == frozenset()
