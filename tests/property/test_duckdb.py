"""Every function and aggregation against DuckDB, on random rows with nulls, NaN, -0.0, huge ints and times in many zones.

Where boreal has another meaning on purpose, the case says it in DuckDB's SQL, and docs/query.md in words. Throughout, what has
no finite result is null here: NaN and infinities of DuckDB's answer are read as null, and its errors by `try`.
"""

from __future__ import annotations

import math
import re
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from boreal.model.frames import INFINITY
from boreal.model.schema import FIRST_DAY, FIRST_TIME_US, LAST_DAY, LAST_TIME_US, Schema, Type
from boreal.query.expressions import parse
from boreal.query.language import AGGREGATIONS, FUNCTIONS
from operators.aggregate import AggregateOperator
from operators.expressions import compile_expression
from tests.thoroughness import some

SCHEMA = Schema.of({
    "i": "int", "j": "int", "x": "double", "y": "double", "s": "string", "u": "string", "p": "bool", "t": "timestamp",
    "g": "int", "d": "decimal(12, 2)", "e": "decimal(9, 4)", "w": "decimal(38, 3)",
    "a": "date", "b": "date",
})  # fmt: skip

_INTS = [0, 1, -1, 2, 7, -13, 10**6, (1 << 53) + 1, (1 << 62) + 3, -(1 << 62), (1 << 63) - 1, -(1 << 63)]
_REALS = [0.0, -0.0, 1.0, -1.5, 2.5, 0.1, 1e-300, 1e300, -1e308, 3.75, 8.0, 100.0, math.nan, math.inf, -math.inf]
_TEXTS = ["", " ", "a", "  a b ", "UA-1", "ua-22-", "-", "--", "é-ü", "\U0001f600-x", "N14228", "aaa", "1.5", "x\ny", "A.B"]
_DATES = ["25.10.2020 02:30", "29.02.2013 10:00", "1.1.0001 00:00", "31.12.9999 23:59", "soon"]
_DAYS = [date(1970, 1, 1), date(2000, 2, 29), date(2013, 12, 31), date(1, 1, 1), date(9999, 12, 31)]
_TIMES = [0, -1, 1, 1_603_585_800_000_000, 1_603_582_200_000_000, 1_585_443_599_999_999, FIRST_TIME_US + 86_400_000_000 * 400]


def random_rows(seed: int, count: int = 400) -> pa.RecordBatch:
    random = Random(seed)

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.1 else value

    def time() -> int:
        if random.random() < 0.3:
            return random.choice(_TIMES)
        second = random.randrange(-600_000_000, 2_145_000_000)  # Arrow knows a zone's rules until 2037
        return second * 1_000_000 + random.randrange(1_000_000)

    def whole() -> int:
        return random.choice(_INTS) if random.random() < 0.5 else random.randrange(-50, 50)

    def real() -> float:
        return random.choice(_REALS) if random.random() < 0.5 else random.uniform(-50, 50)

    def text() -> str:
        return random.choice(_TEXTS) + (random.choice(_TEXTS) if random.random() < 0.5 else "")

    def decimal(digits: int, after: int) -> Decimal:
        most = 10**digits - 1
        some = [0, 1, -1, 50, -50, 150, 250, most, -most]
        value = random.choice(some) if random.random() < 0.5 else random.randint(-most, most)
        return Decimal(value).scaleb(-after, Context(prec=38))

    def day() -> date:
        return random.choice(_DAYS) if random.random() < 0.3 else date(1970, 1, 1) + timedelta(random.randrange(-9_000, 25_000))

    rows = [
        {
            "time": index, "i": maybe(whole()), "j": maybe(whole()), "x": maybe(real()), "y": maybe(real()),
            "s": maybe(text()), "u": maybe(random.choice(_DATES)), "p": maybe(random.random() < 0.5), "t": maybe(time()),
            "g": maybe(random.randrange(3)),
            "d": maybe(decimal(12, 2)), "e": maybe(decimal(9, 4)), "w": maybe(decimal(38, 3)),
            "a": maybe(day()), "b": maybe(day()),
        }
        for index in range(count)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        yield connection


SAME = [
    "i + j", "i - j", "i * j", "-i", "x + y", "x - y", "x * y", "x / y", "x % y", "mod(x, y)",
    "i = j", "s <> 'a'", "i < 3 and p", "i < 3 or p", "not p", "x is null", "i between -1 and 7", "s in ('a', 'aaa')",
    "s like '%a%'", "s || '-' || s", "case when p then i else j end", "case i when 1 then 'one' else s end", "if(p, x, y)",
    "abs(i)", "abs(x)", "coalesce(i, j, 0)", "nullif(i, j)", "greatest(i, j)", "least(i, j)",
    "greatest(s, 'b')", "length(s)", "lower(s)", "upper(s)", "substring(s, 2, 3)", "floor(x)", "ceil(x)", "sqrt(x)", "ln(x)",
    "exp(x)", "power(x, 2)", "round(x, 2)", "cast(p as int)", "cast(i as string)", "cast(i as double)",
    "replace(s, '-', '+')", "replace(s, 'aa', '')", "position('-' in s)", "position('b ' in s)",
    "split_part(s, '-', 1)", "split_part(s, '-', 2)", "split_part(s, '-', -1)", "split_part(s, 'a', -2)",
    "trim(s, 'a-')", "ltrim(s, 'a-')", "rtrim(s, 'a-')", "trim(s)", "ltrim(s)", "rtrim(s)",
    "regexp_matches(s, '^[A-Z]+-')", "regexp_matches(s, 'a{2}|\\d\\.')", "regexp_matches(s, '(?i)ua')",
    "regexp_replace(s, '[a-z]', '#')", "regexp_replace(s, '([a-z])-', '<\\1>', 'g')", "regexp_replace(s, '', '.')",
    "sign(i)", "log(x)", "log(2, x)",
    "d + e", "d - e", "d + 1", "d * 3", "d - i", "d + 0.05", "d * -1.19", "-d", "abs(d)", "d / e", "d % e", "w % 0.7",
    "mod(d, 7)",
    "d = e", "d <> 0.01", "d < e", "d >= -1.5", "d > 0.50 and e <= 5", "d between -0.01 and e", "d in (0, 0.5, -0.01, 1)",
    "d < i", "w > x", "d + x", "case when p then d else e end", "case when p then d end", "coalesce(d, e, 0)", "nullif(d, 0.5)",
    "greatest(d, e)", "least(d, 1.25)", "round(d, 1)", "round(e, 2)", "round(d)", "floor(d)", "ceil(d)", "floor(w)", "sign(d)",
    "sqrt(d)", "cast(d as double)", "cast(d as string)", "cast(w as string)", "cast(e as decimal(6, 1))",
    "cast(w as decimal(38, 0))", "cast(i as decimal(12, 2))", "cast(x as decimal(12, 2))", "cast(s as decimal(12, 2))",
    "cast('1.005' as decimal(4, 2)) + d",
    "a = b", "a < b", "a >= '2000-02-29'", "a between '1999-12-31' and b", "a in ('1970-01-01', '2000-02-29')", "a is null",
    "a - b", "a + 30", "7 + a", "a - 365", "coalesce(a, b)", "nullif(a, '1970-01-01')", "greatest(a, b)", "least(a, b)",
    "case when p then a else b end", "cast(a as string)", "cast(a as timestamp)", "cast(t as date)",
    "cast('2013-01-31' as date) - a", "cast(t at time zone 'Europe/Berlin' as date)",
    "cast(t at time zone 'America/Sao_Paulo' as date)",
    "extract(year from a)", "extract(doy from a)", "a < t",
    *(f"date_trunc('{unit}', t)" for unit in ("second", "minute", "hour", "day", "week", "month", "quarter", "year")),
    *(f"extract({part} from t)" for part in ("second", "minute", "hour", "day", "week", "month", "quarter", "year")),
    *(f"extract({part} from t)" for part in ("dow", "isodow", "doy", "epoch")),
    *(
        f"extract({part} from t at time zone '{zone}')"
        for part in ("hour", "minute", "day", "doy", "dow", "year")
        for zone in ("Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu")
    ),
]  # fmt: skip
"""What DuckDB computes from the same text."""

IN_OTHER_WORDS = {
    # DuckDB leaves nulls out.
    "concat(s, s)": "s || s",
    # DuckDB takes the remainder by -1 of the smallest int for an overflow.
    "i % j": "case when j <> -1 then i % j when i is not null and j is not null then 0 end",
    "mod(i, j)": "case when j <> -1 then i % j when i is not null and j is not null then 0 end",
    # A comparison with NaN is false here. In DuckDB it is the largest double.
    "x > 1": "x > 1 and not isnan(x)",
    # DuckDB rounds to the nearest int, we cut the fraction off.
    "cast(x as int)": "cast(trunc(x) as bigint)",
    # DuckDB writes times in another form.
    "cast(t as string)": "regexp_replace(strftime(t, '%Y-%m-%dT%H:%M:%S.%f'), '\\.?0*$', '') || 'Z'",
    "regexp_like(s, '[0-9]')": "regexp_matches(s, '[0-9]')",
    # DuckDB rounds to the nearest int, we cut the fraction off.
    "cast(w as int)": "cast(trunc(w) as bigint)",
    # DuckDB refuses what might have more than 38 digits; here it is null where it has.
    "d * e": "cast(d as decimal(20, 2)) * e",
    "w + d": "w + cast(d as decimal(38, 3))",
    "w - 1": "w - cast(1 as decimal(38, 3))",
    "a + i": "case when i between -10000000 and 10000000 then a + cast(i as int) end",
    "cast(concat(cast(a as string), substring(s, 1, 1)) as date)": "case when trim(s[1]) = '' then a end",
    # DuckDB's result is a date.
    "date_trunc('month', a)": "cast(date_trunc('month', a) as timestamptz)",
    # NaN has no sign here.
    "sign(x)": "case when not isnan(x) then sign(x) end",
    # No match is null here, and an empty text in DuckDB.
    "regexp_extract(s, '[a-z]+')": "case when regexp_matches(s, '[a-z]+') then regexp_extract(s, '[a-z]+') end",
    "regexp_extract(s, '([A-Za-z]+)(-)([0-9])?', 3)": "case when regexp_matches(s, '([A-Za-z]+)(-)([0-9])?') "
    "then regexp_extract(s, '([A-Za-z]+)(-)([0-9])?', 3) end",
    # DuckDB's has a zone, and knows no year 1.
    "to_timestamp(i)": f"case when i between {FIRST_TIME_US // 10**6} and {LAST_TIME_US // 10**6} "
    "then make_timestamptz(i * 1000000) end",
    "to_timestamp(round(x, 1))": f"case when x * 1e6 between {FIRST_TIME_US} and {LAST_TIME_US} "
    "then make_timestamptz(cast(round_even(round(x, 1) * 1e6, 0) as bigint)) end",
    "to_timestamp(u, '%d.%m.%Y %H:%M')": "try_strptime(u, '%d.%m.%Y %H:%M') at time zone 'UTC'",
    # Two arguments of `date_trunc` in DuckDB: its result is a local time.
    **{
        f"date_trunc('{unit}', t, '{zone}')": f"date_trunc('{unit}', t at time zone '{zone}') at time zone '{zone}'"
        for unit in ("day", "week", "month", "year")
        for zone in ("Europe/Berlin", "Asia/Kathmandu", "America/New_York")
    },
}


def ours(sql: str, batch: pa.RecordBatch) -> list[Any]:
    return _plain(compile_expression(parse(sql, SCHEMA, "sql"))(batch))


def theirs(sql: str, batch: pa.RecordBatch, database: duckdb.DuckDBPyConnection) -> list[Any]:
    table = pa.Table.from_batches([batch])
    database.register("rows", table)
    try:
        return _plain(database.sql(f"select try({sql}) as value from rows order by rows.time").to_arrow_table()["value"])
    finally:
        database.unregister("rows")


def _plain(column: Any) -> list[Any]:
    if pa.types.is_date(column.type):
        # DuckDB's dates go on before the year 1 and after the year 9999.
        days = column.cast(pa.int32())
        is_date = pc.and_(pc.greater_equal(days, FIRST_DAY), pc.less_equal(days, LAST_DAY))
        column = pc.if_else(is_date, column, pa.scalar(None, column.type))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return [None if isinstance(value, float) and not math.isfinite(value) else value for value in column.to_pylist()]


def is_alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return one == other or math.isclose(one, other, rel_tol=1e-13, abs_tol=1e-300)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("sql", [*SAME, *IN_OTHER_WORDS])
def test_a_function_is_as_in_duckdb(sql: str, database: duckdb.DuckDBPyConnection) -> None:
    batch = random_rows(seed=1, count=600)
    found, expected = ours(sql, batch), theirs(IN_OTHER_WORDS.get(sql, sql), batch, database)
    different = [
        (row, one, other)
        for row, one, other in zip(batch.to_pylist(), found, expected, strict=True)
        if not is_alike(one, other)
    ]
    assert not different, different[:3]
    assert len({repr(value) for value in found}) > 1, "the rows try nothing"


def test_every_function_is_compared() -> None:
    called = {name for sql in (*SAME, *IN_OTHER_WORDS) for name in re.findall(r"(\w+)\(", sql)}
    assert set(FUNCTIONS) - called == set()


COMPUTED = [
    "count(*)", "count(x)", "count(distinct i)", "count(distinct s)", "count_if(p)", "count_if(i > 0)", "sum(i)", "avg(j)",
    "min(i)", "max(i)", "min(s)", "max(s)", "min(t)", "max(t)", "sum(y)", "avg(y)", "stddev(y)", "stddev_pop(y)", "min(y)",
    "max(x)", "sum(i) filter (where p)", "count(*) filter (where i > 0 or s > 'b')", "count(distinct s) filter (where not p)",
    "count_if(p) filter (where i > 0)", "max(s) filter (where s like '%a%')", "avg(j) filter (where p is null)",
    "stddev(y) filter (where p)", "min(t) filter (where t > '2013-01-01')", "sum(d)", "sum(e) filter (where p)",
    "sum(d * 1.19)", "avg(d)", "avg(e)", "min(d)", "max(e)", "max(w)", "stddev(e)", "count(distinct d)",
    "min(a)", "max(b)", "count(distinct a)",
]  # fmt: skip
"""`y` is made small and finite here: DuckDB adds doubles in another order."""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("sql", COMPUTED)
def test_an_aggregation_is_as_in_duckdb(sql: str, seed: int, database: duckdb.DuckDBPyConnection) -> None:
    batch = random_rows(seed)
    small = [None if value is None or not abs(value) < 1e6 else value for value in batch["y"].to_pylist()]
    batch = batch.set_column(SCHEMA.arrow.get_field_index("y"), "y", pa.array(small, pa.float64()))
    operator = AggregateOperator("a", SCHEMA, 1_000, 1_000, ("g",), {"value": sql})
    result = operator.step(operator.empty(), (batch,), INFINITY)
    table = pa.Table.from_batches([batch])
    database.register("rows", table)
    answer = database.sql(f"select {sql} as value from rows group by g order by g nulls first").to_arrow_table()["value"]
    database.unregister("rows")
    expected = _plain(answer)
    if sql.startswith("sum(i)"):
        expected = [None if value is None else int(value) for value in expected]
    if sql.startswith("sum(i)"):
        expected = [None if value is None or not -(1 << 63) <= value < 1 << 63 else value for value in expected]
    found = _plain(result["value"])
    assert all(_is_about(one, other) for one, other in zip(found, expected, strict=True)), (found, expected)


def _is_about(one: Any, other: Any) -> bool:
    """Sums of doubles depend on the order of additions."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def test_every_aggregation_that_has_no_order_is_compared() -> None:
    def shape(sql: str) -> str:
        return re.sub(r"\b(?!distinct\b)[a-z]+(?=\))", "_", sql.partition(" filter")[0])

    compared = {shape(sql) for sql in COMPUTED}
    estimates = {sql for sql in AGGREGATIONS if sql.startswith("approx_")}  # compared in tests/unit/operators/test_sketches.py
    assert {sql for sql in AGGREGATIONS if shape(sql) not in compared} - estimates == {"first(x)", "last(x)"}


def test_every_zone_s_clocks_are_as_in_duckdb(database: duckdb.DuckDBPyConnection) -> None:
    """Zones are drawn from all that Python knows, except `localtime`, which DuckDB does not know, and `Factory`, which is no
    place and is refused here. The databases of zones are of different releases, so times are of the years 2000 to 2025:
    before them `WET`, `EET`, Tijuana and Tehran differ, and after them places whose rules have changed since."""
    zones = sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})
    random = Random(1)
    first, last = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2000, 2026))
    times = [random.randrange(first * 1_000_000, last * 1_000_000) for _ in range(300)]
    schema = Schema.of({"t": Type.TIMESTAMP})
    batch = pa.RecordBatch.from_pydict({"time": range(len(times)), "t": times}, schema=schema.arrow)
    database.register("times", pa.Table.from_batches([batch]))
    different = []
    for zone in random.sample(zones, min(some(150), len(zones))):
        local = f"t at time zone '{zone}'"
        shown = [f"cast({local} as date)", *(f"extract({part} from {local})" for part in ("hour", "minute", "second"))]
        runs = [compile_expression(parse(sql, schema, "sql")) for sql in shown]
        expected = database.sql(f"select {', '.join(shown)} from times order by time").fetchall()
        if list(zip(*(run(batch).to_pylist() for run in runs), strict=True)) != expected:
            different.append(zone)
    database.unregister("times")
    assert different == []


def test_a_time_that_a_zone_has_twice_or_never_is_begun_somewhere() -> None:
    """DuckDB's two local times cannot say which of two equal ones is meant."""
    berlin = [1_603_582_200_000_000, 1_603_585_800_000_000]  # 02:30, before and after the hour that comes twice
    schema = Schema.of({"t": Type.TIMESTAMP})

    def begun(unit: str, zone: str, times: list[int]) -> list[int]:
        batch = pa.RecordBatch.from_pydict({"time": times, "t": times}, schema=schema.arrow)
        run = compile_expression(parse(f"date_trunc('{unit}', t, '{zone}')", schema, "sql"))
        return [int(value) for value in run(batch).cast(pa.int64()).to_pylist()]

    assert begun("hour", "Europe/Berlin", berlin) == [time - 1_800_000_000 for time in berlin]
    # Midnight of 4 November 2018 does not exist in São Paulo: the day begins at 01:00, which is 03:00 in UTC.
    assert begun("day", "America/Sao_Paulo", [1_541_336_400_000_000]) == [1_541_300_400_000_000]
    # Midnight of 1 November 2020 comes twice in Havana: the first is 04:00 in UTC.
    assert begun("day", "America/Havana", [1_604_250_000_000_000]) == [1_604_203_200_000_000]
