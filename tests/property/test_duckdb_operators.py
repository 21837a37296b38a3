"""Operators against the same in DuckDB's SQL, on random rows with ties, nulls, NaN, -0.0, huge ints, decimals and dates."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from operators.aggregate import AggregateOperator
from operators.deduplicate import DeduplicateOperator
from operators.distinct import DistinctOperator
from operators.join import JoinOperator
from operators.lookup import LookupOperator
from operators.sessions import SessionOperator
from operators.top import TopOperator
from tests.thoroughness import IS_THOROUGH, every

SCHEMA = Schema.of({
    "place": "int", "k": "string", "i": "int", "x": "double", "p": "bool", "d": "decimal(20, 4)", "a": "date",
})  # fmt: skip
_INTS = [0, 1, -1, (1 << 63) - 1, -(1 << 63), (1 << 53) + 1, 1 << 53]
_REALS = [0.0, -0.0, 1.5, -1.5, 1e308, float("nan"), float("inf"), float("-inf")]
_DECIMALS = [Decimal(text) for text in ("0", "0.0001", "-0.0001", "12.5", "9999999999999999.9999", "-9999999999999999.9999")]
_DATES = [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)]

SEEDS = (1, 2, 3) if IS_THOROUGH else (1,)
KEYS = (["k"], ["i"], ["x"], ["k", "p"], ["x", "i"], ["d"], ["a", "k"])


def random_rows(seed: int, count: int = 1_500, span: int = 2_000) -> pa.RecordBatch:
    """Rows in the order of time, from -span to span, with ties; `place` is their number."""
    rng = Random(seed)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    times = sorted(rng.randrange(-span, span) for _ in range(count))
    rows = [
        {
            "time": time, "place": place, "k": maybe(f"k{rng.randrange(30)}"), "i": maybe(rng.choice(_INTS)),
            "x": maybe(rng.choice(_REALS)), "p": maybe(rng.random() < 0.5),
            "d": maybe(rng.choice(_DECIMALS)), "a": maybe(rng.choice(_DATES)),
        }
        for place, time in enumerate(times)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def theirs(database: duckdb.DuckDBPyConnection, sql: str, **tables: pa.RecordBatch) -> list[tuple[Any, ...]]:
    for name, batch in tables.items():
        database.register(name, pa.Table.from_batches([batch]))
    try:
        return database.sql(sql).fetchall()
    finally:
        for name in tables:
            database.unregister(name)


def plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows with a text for NaN, which would differ from itself."""
    return [tuple("NaN" if value != value else value for value in row) for row in rows]


def in_order_of_groups(names: list[str]) -> str:
    """The terms of an ORDER BY: in the order of groups NaN comes after null, before all numbers."""
    terms = [term for name in names for term in ([f"isnan({name}) desc", name] if name == "x" else [name])]
    return "".join(f"{term} nulls first, " for term in terms)


def ours(operator: Any, *inputs: pa.RecordBatch) -> pa.RecordBatch:
    """What comes of all rows, in steps of various lengths."""
    state, made, since = operator.empty(), [], -INFINITY
    for upto in (-1_999, -1_990, -1_500, -1_499, -200, -30, 0, 1, 21, 777, INFINITY):
        batches = []
        for batch in inputs:
            times = batch.column(0).to_numpy()
            batches.append(batch.filter(pa.array((times >= since) & (times < upto))))
        made.append(operator.step(state, tuple(batches), upto))
        since = upto
    return pa.concat_batches(made)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("on", KEYS, ids=str)
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("within", [0, 1, 7, 50])
def test_join(within: int, how: Any, on: list[str], seed: int, database: duckdb.DuckDBPyConnection) -> None:
    """A pair has the later time of its rows. A left row without a partner has nulls, and the last time at which one could have
    come. Nulls meet nobody; NaN equals itself."""
    rows, other = random_rows(seed, 500, 60), random_rows(seed + 100, 300, 60)
    found = ours(JoinOperator("j", (SCHEMA, SCHEMA), tuple(on), within, how), rows, other)
    same = " and ".join(f"l.{name} = r.{name}" for name in on)
    pairs = f"from rows l join other r on {same} and abs(l.time - r.time) <= {within}"
    alone = f"select time + {within}, place, null, null from rows where place not in (select l.place {pairs})"
    sql = f"""
        select greatest(l.time, r.time) as time, l.place as one, r.place as two, abs(l.time - r.time) as apart {pairs}
        {"" if how == "inner" else f"union all {alone}"} order by time, one, two"""
    expected = theirs(database, sql, rows=rows, other=other)
    places = found.select(["time", "place", "place_right"])
    assert list(zip(*(column.to_pylist() for column in places.columns), strict=True)) == [row[:3] for row in expected]
    assert within in [apart for *_, apart in expected], "no pair is exactly within"


WINDOWS = every(2, [(100, 100), (60, 20), (90, 60), (7, 7), (400, 100)])
COMPUTED = {
    "count(*)": "count(*)", "count(x)": "count(x)", "count(distinct x)": "count(distinct x)",
    "count(distinct d)": "count(distinct d)", "count(distinct a)": "count(distinct a)", "sum(d)": "sum(d)",
    "count_if(p)": "coalesce(count_if(p), 0)",
    "sum(i)": "case when sum(i) between -9223372036854775808 and 9223372036854775807 then cast(sum(i) as bigint) end",
    "sum(d) filter (where p)": "sum(d) filter (where p)", "min(x)": "min(x)", "max(x)": "max(x)", "min(i)": "min(i)",
    "max(d)": "max(d)", "min(a)": "min(a)", "max(a)": "max(a)", "max(k)": "max(k)",
    "first(x)": "arg_min(x, place)", "last(x)": "arg_max(x, place)", "first(i)": "arg_min(i, place)",
    "last(k)": "arg_max(k, place)", "first(d)": "arg_min(d, place)", "last(d)": "arg_max(d, place)",
    "first(a)": "arg_min(a, place)", "last(a) filter (where i > 0)": "arg_max(a, place) filter (where i > 0)",
    "first(p)": "arg_min(p, place)",
}  # fmt: skip
"""Aggregations, and the same in DuckDB, whose `first` knows no order and takes nulls, and whose `count_if` of nulls is null."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", every(4, [[], *KEYS]), ids=str)
@pytest.mark.parametrize(("size", "every"), WINDOWS)
def test_windows(size: int, every: int, by: list[str], seed: int, database: duckdb.DuckDBPyConnection) -> None:
    rows = random_rows(seed, 800)
    compute = {f"c{place}": sql for place, sql in enumerate(COMPUTED)}
    found = ours(AggregateOperator("w", SCHEMA, size, every, tuple(by), compute), rows)
    found = found.select(["window_start", "window_end", *by, *compute])
    first, last = f"(floor((time - {size}) / {every}) + 1) * {every}", f"floor(time / {every}) * {every}"
    starts = f"unnest(generate_series(cast({first} as bigint), cast({last} as bigint), {every}))"
    groups = "".join(f", {name}" for name in by)
    sql = f"""
        with placed as (select *, {starts} as since from rows)
        select since, since + {size}{groups}, {", ".join(COMPUTED.values())} from placed group by since{groups}
        order by since, {in_order_of_groups(by)} 1"""
    expected = plain(theirs(database, sql, rows=rows))
    assert plain(list(zip(*(column.to_pylist() for column in found.columns), strict=True))) == expected
    assert len(expected) > 9


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("on", KEYS, ids=str)
@pytest.mark.parametrize("size", [None, 1, 50, 700])
def test_distinct(size: int | None, on: list[str], seed: int, database: duckdb.DuckDBPyConnection) -> None:
    rows = random_rows(seed)
    found = ours(DistinctOperator("d", SCHEMA, tuple(on), size), rows)["place"].to_pylist()
    window = "" if size is None else f", floor(time / {size})"
    numbered = f"row_number() over (partition by {', '.join(on)}{window} order by place)"
    expected = theirs(database, f"select place from rows qualify {numbered} = 1 order by place", rows=rows)
    assert found == [place for (place,) in expected]
    assert 0 < len(found) < rows.num_rows


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("on", KEYS, ids=str)
@pytest.mark.parametrize("within", [1, 7, 150, 5_000])
def test_deduplicate(within: int, on: list[str], seed: int, database: duckdb.DuckDBPyConnection) -> None:
    rows = random_rows(seed)
    found = ours(DeduplicateOperator("d", SCHEMA, tuple(on), within), rows)["place"].to_pylist()
    window = f"window w as (partition by {', '.join(on)} order by place)"
    sql = f"select place from rows {window} qualify coalesce(time - lag(time) over w >= {within}, true) order by place"
    assert found == [place for (place,) in theirs(database, sql, rows=rows)]
    assert 0 < len(found) < rows.num_rows


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("on", [*KEYS, ["k", "x"]], ids=str)
@pytest.mark.parametrize(("within", "how"), [(None, "inner"), (None, "left"), (0, "inner"), (25, "left"), (700, "inner")])
def test_lookup(within: int | None, how: Any, on: list[str], seed: int, database: duckdb.DuckDBPyConnection) -> None:
    """DuckDB's ASOF JOIN takes any of several rows of one time, so the last of these is taken before. NaN equals itself."""
    rows, table = random_rows(seed), random_rows(seed + 100, 400)
    operator = LookupOperator("l", (SCHEMA, SCHEMA), tuple(on), within, how)
    found = ours(operator, rows, table).select(["place", "place_right"])
    same = " and ".join(f"l.{name} = r.{name}" for name in on)
    newest = "is not null" if how == "inner" else "is not null or true"
    found_row = "r.place" if within is None else f"case when l.time - r.time <= {within} then r.place end"
    latest = f"partition by {', '.join(on)}, time order by place desc"
    sql = f"""
        with last as (select * from other qualify row_number() over ({latest}) = 1),
        both_sides as (select l.place, {found_row} as found from rows l asof left join last r on {same} and l.time >= r.time)
        select place, found from both_sides where found {newest} order by place"""
    expected = theirs(database, sql, rows=rows, other=table)
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    assert expected or within == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("on", [["k"], ["i"], ["x"], ["x", "i"]], ids=str)
@pytest.mark.parametrize(("within", "how"), [(None, "inner"), (None, "left"), (25, "left"), (700, "inner")])
def test_lookup_with_deletes(
    within: int | None, how: Any, on: list[str], seed: int, database: duckdb.DuckDBPyConnection
) -> None:
    """As a table with the time from which each row counts, and that until which it does; the last of several rows of one time
    counts alone. What deletes is no row of that table."""
    rows, table = random_rows(seed), random_rows(seed + 100, 400)
    operator = LookupOperator("l", (SCHEMA, SCHEMA), tuple(on), within, how, "p")
    found = ours(operator, rows, table).select(["place", "place_right"])
    keys = ", ".join(on)
    same = " and ".join(f"l.{name} = r.{name}" for name in on)
    age = "" if within is None else f"and l.time - r.time <= {within}"
    sql = f"""
        with last as (select * from other qualify row_number() over (partition by {keys}, time order by place desc) = 1),
        spans as (select *, lead(time) over (partition by {keys} order by time) as until from last),
        there as (select * from spans where p is null or not p)
        select l.place, r.place from rows l {'' if how == 'inner' else 'left'} join there r
        on {same} and l.time >= r.time and (r.until is null or l.time < r.until) {age} order by l.place"""
    expected = theirs(database, sql, rows=rows, other=table)
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    plain = ours(LookupOperator("l", (SCHEMA, SCHEMA), tuple(on), within, how), rows, table)
    assert plain.filter(plain["place_right"].is_valid()).num_rows > sum(place is not None for _, place in expected) > 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", [[], *KEYS], ids=str)
@pytest.mark.parametrize(("gap", "longest"), [(1, None), (7, None), (40, 100), (150, 1_000), (5_000, None)])
def test_sessions(
    gap: int, longest: int | None, by: list[str], seed: int, database: duckdb.DuckDBPyConnection
) -> None:
    rows = random_rows(seed)
    compute = {"n": "count(*)", "low": "min(i)", "high": "max(place)", "kinds": "count(distinct p)", "last": "last(place)"}
    names = ["window_start", "window_end", "n", "low", "high", "kinds", "last"]
    found = ours(SessionOperator("s", SCHEMA, gap, longest, tuple(by), compute), rows).select(names)
    end = f"time + {gap}"
    if longest is not None:
        end = f"least({end}, cast((floor(time / {longest}) + 1) * {longest} as bigint))"
    groups = "".join(f"{name}, " for name in by)
    within = f"partition by {', '.join(by)} order by place" if by else "order by place"
    sql = f"""
        with ends as (select *, {end} as until from rows),
        begun as (select *, coalesce(time >= lag(until) over (w), true) as begins from ends window w as ({within})),
        numbered as (select *, sum(begins::int) over (w) as session from begun window w as ({within}))
        select min(time) as since, max(until) as until, count(*) as n, min(i) as low, max(place) as high,
        count(distinct p) as kinds, arg_max(place, place) as last
        from numbered group by {groups} session order by until, {in_order_of_groups(by)} since"""
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == theirs(database, sql, rows=rows)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "order", ["x desc, i", "i, x desc, k desc", "p desc, k, i desc", "k", "p, x, abs(length(k)) desc", "d desc, a"]
)
@pytest.mark.parametrize("by", [[], ["k"], ["p"]], ids=str)
def test_top(by: list[str], order: str, seed: int, database: duckdb.DuckDBPyConnection) -> None:
    """Each term of the order breaks the ties of those before it, and arrival the last. In both directions nulls come last, and
    NaN, which is DuckDB's largest double, before them."""
    rows = random_rows(seed)
    found = ours(TopOperator("t", SCHEMA, 4, order, 100, 100, tuple(by)), rows).select(["window_start", "rank", "place"])
    nan_last = [f"isnan(x), {term}" if "x" in term else term for term in order.split(",")]
    terms = ", ".join(f"{term} nulls last" for term in ", ".join(nan_last).split(","))
    start = "cast(floor(time / 100) * 100 as bigint)"
    window = f"window w as (partition by {', '.join([start, *by])} order by {terms}, place)"
    groups = ", ".join(f"{each} nulls first" for each in [start, *by])
    sql = f"select {start}, row_number() over w as rank, place from rows {window} qualify rank <= 4 order by {groups}, rank"
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == theirs(database, sql, rows=rows)
