"""Estimates: their states do not depend on the way to them, their errors are as small as it is said, and DuckDB agrees."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from boreal.model.errors import UserError
from boreal.model.schema import Schema
from boreal.query.expressions import parse_aggregation
from operators.accumulators import make_accumulator, prepare
from operators.aggregate import AggregateOperator
from operators.sketches import _buckets, _value_of
from operators.windows import Windows

SCHEMA = Schema.of({
    "x": "double", "n": "int", "s": "string", "d": "decimal(12, 2)", "t": "timestamp", "day": "date", "b": "bool",
})  # fmt: skip
HARD = [0.0, -0.0, 5e-324, -5e-324, 1e-310, 2.3e-308, math.inf, -math.inf, math.nan, 1e308, -1e308, 0.1, 511.0, 513.0]


def folded(text: str, column: pa.Array, cuts: list[int]) -> tuple[bytes, Any]:
    """(State, result) of one group over the rows, each part between cuts being a pane."""
    aggregation = parse_aggregation(text, SCHEMA, "f")
    accumulator = make_accumulator(aggregation)
    assert aggregation.argument is not None
    held = [slot.fresh(1) for slot in accumulator.slots]
    for begin, end in zip([0, *cuts], [*cuts, len(column)], strict=True):
        pane = [slot.fresh(1) for slot in accumulator.slots]
        middle = (begin + end) // 2
        for some in (column[begin:middle], column[middle:end]):
            _, values = prepare(some, aggregation.argument.type)
            if len(values):
                accumulator.fold(pane, np.zeros(len(values), np.intp), values)
        accumulator.combine(held, np.zeros(1, np.intp), pane)
    return held[0][0], accumulator.result(held).to_pylist()[0]


@pytest.mark.parametrize(
    ("text", "name", "make"),
    [
        ("approx_count_distinct(x)", "x", lambda rng: rng.choice([*HARD, None, rng.random()])),
        ("approx_count_distinct(n)", "n", lambda rng: rng.choice([None, rng.getrandbits(62), (1 << 63) - 1, -(1 << 63)])),
        ("approx_count_distinct(s)", "s", lambda rng: rng.choice([None, "", "é", str(rng.randrange(500))])),
        ("approx_quantile(x, 0.5)", "x", lambda rng: rng.choice([*HARD, None, rng.gauss(0, 10)])),
        ("approx_quantile(n, 0.9)", "n", lambda rng: rng.choice([None, rng.getrandbits(62), (1 << 63) - 1, -(1 << 63)])),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_the_state_does_not_depend_on_order_or_cuts(text: str, name: str, make: Any, seed: int) -> None:
    rng = Random(seed)
    rows = [make(rng) for _ in range(600)]
    kind = SCHEMA.types[name].arrow
    expected = folded(text, pa.array(rows, kind), [])
    for _ in range(5):
        rng.shuffle(rows)
        assert repr(folded(text, pa.array(rows, kind), sorted(rng.sample(range(600), 7)))) == repr(expected)


@pytest.mark.parametrize("count", [0, 1, 2, 30, 500, 3_000, 20_000, 300_000])
def test_an_estimate_of_distinct_values_is_within_four_standard_errors(count: int) -> None:
    rng = np.random.default_rng(count)
    ints = rng.permutation(np.repeat(np.arange(count, dtype=np.int64) * 1_000 - 7, 2))
    texts = pa.array([f"user-{number}" for number in range(min(count, 20_000))])
    for name, column in (("n", pa.array(ints)), ("x", pa.array(ints / 8)), ("s", texts)):
        wanted = len(column.unique())
        assert abs(folded(f"approx_distinct({name})", column, [])[1] - wanted) <= 4 * 0.01625 * wanted


def test_the_error_is_on_average_what_is_said() -> None:
    errors = []
    for seed in range(60):
        values = np.random.default_rng(seed).integers(-(1 << 62), 1 << 62, 8_000)
        errors.append(folded("approx_distinct(n)", pa.array(values), [])[1] / len(np.unique(values)) - 1)
    assert np.sqrt(np.mean(np.square(errors))) < 1.25 * 0.01625 and abs(np.mean(errors)) < 0.008


@pytest.mark.parametrize("share", ["0", "0.01", "0.07", "0.5", "0.95", "1"])
@pytest.mark.parametrize("seed", range(4))
def test_a_quantile_is_near_that_of_duckdb(share: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole, huge = rng.integers(-512, 513, 500) * 1.0, rng.integers(-9, 9, 7) * 1e300
    values = [rng.lognormal(0, 4, 301), rng.normal(0, 1, 1_000), whole, huge][seed]
    column = pa.array(values, mask=rng.random(len(values)) < 0.1)
    with duckdb.connect() as connection:
        connection.register("given", pa.table({"x": column}))
        [(exact,)] = connection.sql(f"select quantile_disc(x, {share}) from given").fetchall()
    found = folded(f"approx_quantile(x, {share})", column, [])[1]
    assert abs(found) <= abs(exact) and abs(found - exact) <= abs(exact) / 256
    assert seed != 2 or found == exact


def test_the_value_of_a_bucket_is_its_end_nearer_to_zero() -> None:
    rng = Random(1)
    values = [*HARD, *(rng.choice((-1, 1)) * 10 ** rng.uniform(-300, 300) for _ in range(2_000))]
    buckets = _buckets(np.array(values)).tolist()
    for value, bucket in zip(values, buckets, strict=True):
        found = _value_of(bucket)
        if value != value or math.isinf(value):
            assert repr(found) == repr(value)
        else:
            assert abs(found) <= abs(value) and str(found) != "-0.0"
            assert abs(found - value) <= max(abs(value) / 256, 2.3e-308)
    numbers = sorted((value, bucket) for value, bucket in zip(values, buckets, strict=True) if value == value)
    assert all(one <= other for (_, one), (_, other) in pairwise(numbers)) and max(buckets) > numbers[-1][1]


@pytest.mark.parametrize("name", SCHEMA.names)
def test_values_of_each_type_are_counted(name: str) -> None:
    column = pa.array([None, 1, 0, 1], pa.int64())
    first = {"day": pa.int32(), "d": pa.decimal128(19, 0)}
    given = column.cast(first.get(name, pa.int64())).cast(SCHEMA.types[name].arrow)
    assert folded(f"approx_count_distinct({name})", given, [])[1] == 2


def test_estimates_of_sliding_windows_merge_their_panes() -> None:
    schema = Schema.of({"n": "int"})
    compute = {"kinds": "approx_count_distinct(n)", "middle": "approx_quantile(n, 0.5)"}
    operator = AggregateOperator("a", schema, 12, 4, (), compute)
    rows = pa.RecordBatch.from_pydict({"time": list(range(40)), "n": [time % 5 for time in range(40)]}, schema=schema.arrow)
    state = operator.empty()
    made = operator.step(state, (rows,), 100).to_pylist()
    whole = [row for row in made if row["window_start"] >= 0 and row["window_end"] <= 40]
    assert len(whole) == 8 and Windows(12, 4).size == 12
    for row in whole:
        values = sorted(time % 5 for time in range(row["window_start"], row["window_end"]))
        assert (row["kinds"], row["middle"]) == (5, values[5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("approx_quantile(x, 1.5)", "1.5 is no share of the values"),
        ("approx_quantile(x, n)", "n is no share of the values"),
        ("approx_quantile(s, 0.5)", "approx_quantile needs a number, not string"),
        ("approx_quantile(x, 0.5, 3)", "takes no accuracy and no weight"),
        ("approx_distinct(x, 0.1)", "takes no accuracy and no weight"),
        ("approx_quantile(x)", "cannot be read"),
        ("approx_count_distinct(*)", "only count takes"),
    ],
)
def test_what_is_no_estimate_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_aggregation(text, SCHEMA, "f")


def test_both_spellings_and_a_filter_are_known() -> None:
    for text in ("APPROX_DISTINCT(n)", "approx_count_distinct(n)", "approx_count_distinct(n) filter (where b)"):
        assert parse_aggregation(text, SCHEMA, "f").function == "approx_count_distinct"
    assert parse_aggregation("APPROX_QUANTILE(d, 0.95)", SCHEMA, "f").share == Fraction(19, 20)
