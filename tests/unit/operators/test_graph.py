"""A fragment's DAG: built from a plan, stepped, layered, encoded and rebuilt as one."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from boreal.query.planner import plan
from boreal.query.spec import load_query
from operators.encoding import encode_batch
from operators.graph import FragmentGraph, GraphState

COLUMNS = {"k": "string", "x": "int", "v": "double"}
SCHEMA = Schema.of(COLUMNS)

OPERATORS: dict[str, Any] = {
    "late": {"filter": "one", "where": "x > 0"},
    "shaped": {"map": "two", "select": {"k": "k", "x": "x + 1", "v": "v / 2"}},
    "all": {"union": ["late", "shaped"]},
    "once": {"deduplicate": "all", "on": ["k", "x"], "within": "7us"},
    "uniq": {"distinct": "once", "on": ["k", "x"], "window": {"tumbling": "20us"}},
    "counted": {
        "aggregate": "uniq", "window": {"sliding": "20us", "every": "10us"}, "by": ["k"],
        "compute": {"n": "count(*)", "m": "avg(v)"},
    },
    "visits": {"aggregate": "once", "window": {"session": "6us", "longest": "40us"}, "by": ["k"], "compute": {"v": "sum(v)"}},
    "seen": {"lookup": ["counted", "visits"], "on": ["k"], "within": "9us", "how": "left"},
    "joined": {"join": ["seen", "late"], "on": ["k"], "within": "15us", "how": "left"},
    "worst": {"top": "joined", "k": 8, "order_by": "v desc", "window": {"tumbling": "30us"}, "by": ["k"]},
}  # fmt: skip


def graph_of(operators: dict[str, Any], output: str) -> FragmentGraph:
    streams = {name: {"time": "at", "schema": COLUMNS} for name in ("one", "two")}
    query = {"name": "q", "streams": streams, "operators": operators, "output": output, "delay_threshold": "3s"}
    return FragmentGraph(plan(load_query(query)).fragment("main"))


def rows_of(seed: int) -> dict[str, list[dict[str, Any]]]:
    rng = Random(seed)

    def row(time: int) -> dict[str, Any]:
        return {"time": time, "k": rng.choice([None, "a", "b"]), "x": rng.randint(-1, 4), "v": rng.random()}

    return {name: [row(time) for time in sorted(rng.randint(0, 200) for _ in range(120))] for name in ("one", "two")}


def run(
    graph: FragmentGraph, state: GraphState, rows: dict[str, list[dict[str, Any]]], since: int, cuts: list[int]
) -> pa.RecordBatch:
    made = []
    for upto in cuts:
        batches = {
            name: pa.RecordBatch.from_pylist(
                [row for row in rows[name] if since <= row["time"] < upto], schema=SCHEMA.arrow
            )
            for name in rows
        }
        (out,) = graph.step(state, batches, upto).values()
        made.append(out)
        since = upto
    return pa.concat_batches(made)


@pytest.mark.parametrize("seed", range(5))
def test_a_graph_keeps_the_promises_of_its_operators(seed: int) -> None:
    graph, rows, rng = graph_of(OPERATORS, "worst"), rows_of(seed), Random(seed)
    whole = run(graph, graph.empty(), rows, -INFINITY, [INFINITY])
    assert whole.num_rows > 10
    by_row = run(graph, graph.empty(), rows, -INFINITY, [*range(1, 202), INFINITY])
    assert encode_batch(by_row) == encode_batch(whole)

    time = rng.randint(20, 180)
    base = graph.empty()
    before = run(graph, base, rows, -INFINITY, [time])
    after = encode_batch(whole.slice(before.num_rows))
    frozen = base.encode()
    assert base.nbytes() > 0
    assert encode_batch(run(graph, base.overlay(), rows, time, [time + 9, INFINITY])) == after
    assert base.encode() == frozen
    assert encode_batch(run(graph, graph.decode(frozen), rows, time, [INFINITY])) == after

    rebuilt = graph.empty()
    needs = graph.needs(time)
    recent = {name: [row for row in entries if row["time"] >= needs] for name, entries in rows.items()}
    run(graph, rebuilt, recent, -INFINITY, [time])
    assert encode_batch(run(graph, rebuilt, rows, time, [INFINITY])) == after

    child = base.overlay()
    made = run(graph, child, rows, time, [time + 9])
    base.absorb(child)
    assert base.encode() == child.encode()
    rest = run(graph, base, rows, time + 9, [INFINITY])
    assert encode_batch(pa.concat_batches([made, rest])) == after


def test_needs_add_up_along_the_graph() -> None:
    graph = graph_of(OPERATORS, "worst")
    # top: 90, from which join must be exact, so its inputs from 60; aggregate: its window [50, 70); distinct: [40, 60);
    # lookup: 51; sessions: [40, 80); deduplicate: 40 - 7 + 1.
    assert graph.needs(100) == 34
    assert not graph.unbounded


def test_a_distinct_without_a_window_never_lets_go() -> None:
    graph = graph_of({"uniq": {"distinct": "one", "on": ["k"]}}, "uniq")
    assert graph.unbounded and graph.needs(100) == -INFINITY


def test_a_fragment_without_operators_passes_its_inputs_through() -> None:
    query = {
        "name": "q", "streams": {"one": {"time": "at", "schema": COLUMNS}}, "output": "late", "delay_threshold": "3s",
        "operators": {"late": {"filter": "one", "where": "x > 0"}},
    }  # fmt: skip
    egress = plan(load_query(query)).fragments[-1]
    assert not egress.nodes
    graph = FragmentGraph(egress)
    batch = pa.RecordBatch.from_pylist(rows_of(1)["one"], schema=SCHEMA.arrow)
    out = graph.step(graph.empty(), {entry.name: batch for entry in egress.inputs}, INFINITY)
    assert list(out) == [edge.operator for edge in egress.outputs] and all(made is batch for made in out.values())
    assert graph.needs(7) == 7


def test_another_graph_s_state_is_refused() -> None:
    with pytest.raises(CorruptError):
        graph_of(OPERATORS, "worst").decode(graph_of(OPERATORS, "counted").empty().encode())


def test_the_state_of_the_same_operators_goes_on_in_another_graph() -> None:
    """With an operator behind them, and one beside them that is gone."""
    former = graph_of(OPERATORS, "worst")
    shown = {"map": "seen", "select": {"k": "k", "n": "n + 1"}}
    names = [name for name in OPERATORS if name not in ("joined", "worst")]
    graph = graph_of({**{name: OPERATORS[name] for name in names}, "shown": shown}, "shown")
    for seed in range(5):
        rows, cut = rows_of(seed), Random(seed).randint(20, 180)
        known = former.empty()
        run(former, known, rows, -INFINITY, [cut])
        carried = graph.decode(graph.carry(known.encode(), former, names))
        whole = graph.empty()
        run(graph, whole, rows, -INFINITY, [cut])
        assert carried.encode() == whole.encode()
        assert run(graph, carried, rows, cut, [INFINITY]) == run(graph, whole, rows, cut, [INFINITY])
    assert graph.decode(graph.carry(known.encode(), former, ())).encode() == graph.empty().encode()
    with pytest.raises(CorruptError):
        graph.carry(graph.empty().encode(), former, names)


def test_a_graph_knows_which_operators_remember_rows() -> None:
    graph = graph_of(OPERATORS, "worst")
    assert {name for name in OPERATORS if not graph.remembers(name)} == {"late", "shaped", "all"}
