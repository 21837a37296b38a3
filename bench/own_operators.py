"""`boreal bench own_operators`: what an operator of one's own costs beside a built-in one that computes the same, on one core.

Each pair takes the same batches, 8,192 rows of (time, int key of 1,000, double value), in turns: so what else the machine does
slows both. A pair's overhead is the median, over its rounds, of the quotient of the processor times of a round.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.figures import Figure, as_report
from boreal.model.schema import Schema
from boreal.operators import Keyed, KeyState, RowOperator, WindowOperator
from boreal.operators.installed import provide
from boreal.query.planner import plan
from boreal.query.spec import load_query
from operators.build import build_operator
from operators.encoding import encode_batch
from operators.operator import Operator

ROWS = 8_192
BATCHES = 120
ROUNDS = 15
KEYS = 1_000
BATCH_US = 10_000
MOST_OVERHEAD = 20
SCHEMA = Schema.of({"k": "int", "v": "double"})


class Above(RowOperator):
    """As `where: v > 0.1`."""

    deterministic = True

    def unchanged(self) -> tuple[str, ...]:
        return self.given.names

    def prepare(self) -> None:
        self.limit = pa.scalar(0.1)

    def process(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        return pc.greater(rows.column("v"), self.limit)


class ScaledValues(RowOperator):
    """As `select: {k: k, v: v * 2.5}`."""

    deterministic = True

    def prepare(self) -> None:
        self.factor = pa.scalar(2.5)

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        product = pc.multiply(rows.column("v"), self.factor)
        finite = pc.is_finite(product)
        return self.output(rows, v=product if pc.all(finite).as_py() else pc.if_else(finite, product, None))


class WindowSums(WindowOperator):
    """As `compute: {n: count(*), total: sum(v)}`, by k, in windows of a second."""

    deterministic = True

    def state(self) -> Keyed:
        return Keyed(["k"], {"n": 0, "known": 0, "total": 0.0}, "1s")

    def output_schema(self, given: Schema) -> Mapping[str, str]:
        return {"k": "int", "n": "int", "total": "double"}

    def collect(self, rows: pa.RecordBatch, state: KeyState) -> None:
        values, codes = rows.column("v"), state.codes
        np.add.at(state["n"], codes, 1)
        if values.null_count:
            codes, values = codes[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()
        np.add.at(state["known"], codes, 1)
        np.add.at(state["total"], codes, values.to_numpy())

    def result(self, state: KeyState) -> Mapping[str, Any]:
        return {"k": state.keys()["k"], "n": state["n"], "total": pa.array(state["total"], mask=state["known"] == 0)}


@dataclass(frozen=True)
class Pair:
    """Two operators that compute the same."""

    name: str
    """What the pair does."""
    built_in: Mapping[str, Any]
    """The built-in operator, as a query writes it."""
    own: type[RowOperator] | type[WindowOperator]
    """The class that computes the same."""


PAIRS = (
    Pair("filter", {"filter": "s", "where": "v > 0.1"}, Above),
    Pair("map", {"map": "s", "select": {"k": "k", "v": "v * 2.5"}}, ScaledValues),
    Pair(
        "keyed sum in windows",
        {"aggregate": "s", "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)", "total": "sum(v)"}},
        WindowSums,
    ),
)


def main() -> dict[str, Any]:
    """Measure on one core, and return the report."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    return as_report("own_operators", [figure for pair in PAIRS for figure in _measured(pair)])


def _measured(pair: Pair) -> list[Figure]:
    provide(pair.own.__name__, pair.own)
    built_in = _operator(pair.built_in)
    own = _operator({"python": "s", "operator": pair.own.__name__})
    batches = _batches()
    assert encode_batch(_run(built_in, batches)[1]) == encode_batch(_run(own, batches)[1]), "they compute the same"
    rounds = [(_run(built_in, batches)[0], _run(own, batches)[0]) for _ in range(ROUNDS)]
    rate = ROWS * BATCHES / min(took for _, took in rounds) / 1e6
    overhead = 100 * (statistics.median(mine / theirs for theirs, mine in rounds) - 1)
    return [
        Figure(f"{pair.name}, of one's own", rate, "M tuples/s"),
        Figure(f"{pair.name}: overhead over the built-in one", overhead, "%", MOST_OVERHEAD, lower_is_better=True),
    ]


def _operator(spec: Mapping[str, Any]) -> Operator:
    streams = {"s": {"time": "time", "schema": dict(SCHEMA.columns)}}
    planned = plan(load_query({"name": "bench", "streams": streams, "operators": {"made": dict(spec)}, "output": "made"}))
    return build_operator(planned.fragments[0].nodes[0])


def _batches() -> list[pa.RecordBatch]:
    random = np.random.default_rng(0)
    made = []
    for place in range(BATCHES):
        times = np.sort(random.integers(place * BATCH_US, (place + 1) * BATCH_US, ROWS))
        columns = [pa.array(times), pa.array(random.integers(0, KEYS, ROWS)), pa.array(random.random(ROWS))]
        made.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow))
    return made


def _run(operator: Operator, batches: list[pa.RecordBatch]) -> tuple[float, pa.RecordBatch]:
    """(Processor time in seconds, what came out)."""
    state = operator.empty()
    began = time.process_time()
    made = [operator.step(state, (batch,), (place + 1) * BATCH_US) for place, batch in enumerate(batches)]
    took = time.process_time() - began
    return took, pa.concat_batches(made)
