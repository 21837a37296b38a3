"""What expressions mean, what they are typed as, and how they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from boreal.model.errors import UserError
from boreal.model.schema import Schema, Type
from boreal.query.expressions import DEEPEST, format_timestamp, parse, parse_aggregation, parse_order, parse_timestamp
from boreal.query.patterns import WHOLE, named_groups, pattern_problem
from operators.expressions import compile_expression
from tests.thoroughness import every

SCHEMA = Schema.of(
    {"a": "int", "b": "double", "s": "string", "f": "bool", "t": "timestamp", "left": "int", "Carrier": "string"},
    windowed=True,
)
LARGEST = (1 << 63) - 1
ROWS: list[dict[str, Any]] = [
    {"a": 1, "b": 2.5, "s": "abc", "f": True, "t": 7},
    {"a": None, "b": None, "s": None, "f": None, "t": None},
    {"a": LARGEST, "b": -1.0, "s": "1.5", "f": False, "t": 1_357_017_000_000_000},
    {"a": -7, "b": 0.0, "s": "2013-01-01", "f": True, "t": 0},
]
EDGES = {"time": 9, "window_start": 0, "window_end": 10, "left": 3, "Carrier": "UA"}
BATCH = pa.RecordBatch.from_pylist([{**EDGES, **row} for row in ROWS], schema=SCHEMA.arrow)


def value_of(sql: str) -> list[Any]:
    """Timestamps as microseconds."""
    expression = parse(sql, SCHEMA, "field")
    run = compile_expression(expression)
    array = run(BATCH)
    array.validate(full=True)
    assert isinstance(array, pa.Array) and array.type == expression.type.arrow and len(array) == len(ROWS)
    one_by_one = [run(BATCH.slice(row, 1)) for row in range(len(ROWS))]
    assert pa.concat_arrays(one_by_one).equals(array), "a row's value depends on that row alone"
    assert len(run(BATCH.slice(0, 0))) == 0
    return array.view(pa.int64()).to_pylist() if expression.type is Type.TIMESTAMP else array.to_pylist()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a + 1", [2, None, None, -6]),
        ("-a", [-1, None, -LARGEST, 7]),
        ("a * a", [1, None, None, 49]),
        ("a / 2", [0.5, None, LARGEST / 2, -3.5]),
        ("a / b", [0.4, None, -float(LARGEST), None]),
        ("a % 2", [1, None, 1, -1]),
        ("7 % a", [0, None, 7, 0]),
        ("a % 0", [None] * 4),
        ("a % -1", [0, None, 0, 0]),
        ("b % 2", [0.5, None, -1.0, 0.0]),
        ("b * 1e308 * 1e10", [None, None, None, 0.0]),
        ("a > 0 and b < 0", [False, None, True, False]),
        ("f and null", [None, None, False, None]),
        ("f or null", [True, None, None, True]),
        ("not f", [False, None, True, False]),
        ("a = null", [None] * 4),
        ("a is null", [False, True, False, False]),
        ("a is not null", [True, False, True, True]),
        ("a between -7 and 1", [True, None, False, True]),
        ("a in (1, -7)", [True, None, False, True]),
        ("a in (1, 2.5)", [True, None, False, False]),
        ("s not in ('abc', null)", [False, None, None, None]),
        ("s like 'a%'", [True, None, False, False]),
        ("s not like '_.5'", [True, None, False, True]),
        ("case when a > 1 then 2 else 3.5 end", [3.5, 3.5, 2.0, 3.5]),
        ("case a when 1 then 'one' end", ["one", None, None, None]),
        ("case when true then 1 else a end", [1, 1, 1, 1]),
        ("coalesce(a, 0)", [1, 0, LARGEST, -7]),
        ("nullif(a, 1)", [None, None, LARGEST, -7]),
        ("abs(b)", [2.5, None, 1.0, 0.0]),
        ("round(b)", [3.0, None, -1.0, 0.0]),
        ("round(b / 7, 2)", [0.36, None, -0.14, 0.0]),
        ("round(b * 5e307, 2)", [1.25e308, None, -5e307, 0.0]),
        ("round(a * 1e295, 10)", [1e295, None, None, -7e295]),
        ("round(b, 308)", [2.5, None, -1.0, 0.0]),
        ("round(b * 7e307, -308)", [None, None, pytest.approx(-1e308), 0.0]),
        ("round(1e308, 3)", [1e308] * 4),
        ("floor(b)", [2.0, None, -1.0, 0.0]),
        ("ceil(a)", [1, None, LARGEST, -7]),
        ("sqrt(b)", [pytest.approx(1.58113883), None, None, 0.0]),
        ("ln(b)", [pytest.approx(0.91629073), None, None, None]),
        ("exp(b * 1000)", [None, None, 0.0, 1.0]),
        ("power(b, 0.5)", [pytest.approx(1.58113883), None, None, 0.0]),
        ("greatest(a, 0)", [1, 0, LARGEST, 0]),
        ("least(t, '2000-01-01')", [7, 946_684_800_000_000, 946_684_800_000_000, 0]),
        ("upper(s)", ["ABC", None, "1.5", "2013-01-01"]),
        ("length(s)", [3, None, 3, 10]),
        ("substring(s, 1, 2)", ["ab", None, "1.", "20"]),
        ("substring(s from 2)", ["bc", None, ".5", "013-01-01"]),
        (f"substring(s, 2, {LARGEST})", ["bc", None, ".5", "013-01-01"]),
        (f"substring(s, {LARGEST}, {LARGEST})", ["", None, "", ""]),
        (f"substring(s, {LARGEST})", ["", None, "", ""]),
        ("00000000000000000000001 + a", [2, None, None, -6]),
        ("s || '!'", ["abc!", None, "1.5!", "2013-01-01!"]),
        ("concat(Carrier, '-', cast(a as string))", ["UA-1", None, f"UA-{LARGEST}", "UA--7"]),
        ("cast(s as double)", [None, None, 1.5, None]),
        ("cast(s as int)", [None] * 4),
        ("cast(s as timestamp)", [None, None, None, 1_356_998_400_000_000]),
        ("cast(t as string)", ["1970-01-01T00:00:00.000007Z", None, "2013-01-01T05:10:00Z", "1970-01-01T00:00:00Z"]),
        ("cast(b as int)", [2, None, -1, 0]),
        ("cast(b * 1e30 as int)", [None, None, None, 0]),
        ("f::int", [1, None, 0, 1]),
        ("-b / 1e308 / 1e308 in (0, 2.5)", [True, None, True, True]),
        ("cast(a as timestamp)", [1, None, None, -7]),
        ("cast(a * 253402300799999999 as timestamp)", [253_402_300_799_999_999, None, None, None]),
        ("cast(a * -62135596800000000 as timestamp)", [-62_135_596_800_000_000, None, None, None]),
        ("cast(cast(a * -62135596800000000 as timestamp) as string)", ["0001-01-01T00:00:00Z", None, None, None]),
        ("cast(s || '-01-01T00:00:00+01:00' as timestamp)", [None] * 4),
        ("cast('0001-01-01T00:00:00+01:00' || substring(s, 99) as timestamp)", [None] * 4),
        ("cast(a * 1.0 as int)", [1, None, None, -7]),
        ("cast(-9223372036854775808 * (b / b) as int)", [-LARGEST - 1, None, -LARGEST - 1, None]),
        ("t < timestamp '2013-01-01'", [True, None, False, True]),
        ("'2013-01-01T05:10:00Z' = t", [False, None, True, False]),
        ("time", [9] * 4),
        ("window_end > time", [True] * 4),
        ("1 + 1 = 2", [True] * 4),
        ("cast(null as int)", [None] * 4),
        ("LEFT", [3] * 4),
        ("left", [3] * 4),
        ("carrier", ["UA"] * 4),
        ('"Carrier"', ["UA"] * 4),
    ],
)
def test_values(sql: str, expected: list[Any]) -> None:
    assert value_of(sql) == expected


def test_products_beyond_the_ints_are_sorted_out_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema.of({"a": "int", "b": "int"})

    def product(rows: list[tuple[int | None, int | None]]) -> list[int | None]:
        columns = dict(zip("ab", zip(*rows, strict=True), strict=True))
        batch = pa.RecordBatch.from_pydict({"time": [0] * len(rows), **columns}, schema=schema.arrow)
        found: list[int | None] = compile_expression(parse("a * b", schema, "field"))(batch).to_pylist()
        return found

    edge = [(LARGEST, 1), (LARGEST, -1), (1 << 62, 2), (1 << 62, -2), (LARGEST, 2), (None, 1), (3, None)]
    assert product([*edge]) == [LARGEST, -LARGEST, None, -LARGEST - 1, None, None, None]
    multiply: Callable[..., Any] = pc.multiply_checked
    lengths: list[int] = []

    def counted(*values: Any) -> Any:
        lengths.append(len(values[0]))
        return multiply(*values)

    monkeypatch.setattr(pc, "multiply_checked", counted)
    assert product([(1 << 40, 1 << 40), (3, 4)] * 500) == [None, 12] * 500
    assert lengths == [1_000] * 2


def test_texts_that_are_no_numbers_are_sorted_out_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema.of({"s": "string"})
    texts = [None, "N14228", "7", "-8", "0x1F", "+9", " 9", "9 ", "1e3", ".5", "5.", "nan", "-inf", "1-1", "", "\u0665"]
    batch = pa.RecordBatch.from_pydict({"time": [0] * len(texts), "s": texts}, schema=schema.arrow)
    ints = compile_expression(parse("cast(s as int)", schema, "field"))
    reals = compile_expression(parse("cast(s as double)", schema, "field"))
    expected = [None, None, 7, -8, 31, *[None] * 11]
    assert ints(batch).to_pylist() == expected
    assert reals(batch).to_pylist() == [None, None, 7.0, -8.0, None, 9.0, None, None, 1000.0, 0.5, 5.0, *[None] * 5]
    cast: Callable[..., Any] = pc.cast
    lengths: list[int] = []

    def counted(value: Any, kind: Any) -> Any:
        lengths.append(len(value))
        return cast(value, kind)

    monkeypatch.setattr(pc, "cast", counted)
    many = pa.RecordBatch.from_pydict({"time": [0] * 1_000, "s": ["N14228", "7"] * 500}, schema=schema.arrow)
    assert ints(many).null_count == reals(many).null_count == 500
    assert lengths == [1_000] * 4


def test_an_expression_knows_its_columns() -> None:
    expression = parse("b > 1 and a = left", SCHEMA, "field")
    assert expression.columns == ("a", "b", "left") and expression.column is None
    assert parse("CARRIER", SCHEMA, "field").column == "Carrier"


@pytest.mark.parametrize(
    ("sql", "problem", "fix"),
    [
        ("lefft > 1", "lefft is not a column", "did you mean left?"),
        ("sqr(a)", "sqr is not a known function", "did you mean sqrt?"),
        ("now()", "now is not a known function", "abs"),
        ("count(*)", "count is an aggregation", "compute it in an aggregate"),
        ("sum(a) over ()", "is not supported", "use arithmetic"),
        ("(select 1)", "is not supported", "use arithmetic"),
        ("a in (select 1)", "parts that are not supported", "use arithmetic"),
        ("x.a", "parts that are not supported", "use arithmetic"),
        ("a as b", "is not supported", "use arithmetic"),
        ("a; b", "not one expression", "one SQL expression"),
        ("", "not one expression", "one SQL expression"),
        ("a +", "cannot be read", "one SQL expression"),
        ("'abc", "cannot be read", "one SQL expression"),
        ("s > 1", "mixes string and int", "cast"),
        ("s + 1", "has type string where double is needed", "cast"),
        ("a and f", "has type int where bool is needed", "cast"),
        ("t - t", "has type timestamp where double is needed", "cast"),
        ("t > 'soon'", "'soon' is not a timestamp", "2013-01-01T05:10:00Z"),
        ("s like s", "needs a pattern", "write a literal"),
        ("round(b, a)", "whole number of digits", "write a literal"),
        ("round(b, true)", "whole number of digits", "write a literal"),
        ("round(b, 309)", "cannot be rounded to 309 digits", "from -308 to 308"),
        ("round(b, -309)", "cannot be rounded to -309 digits", "from -308 to 308"),
        ("substring(s, 0)", "does not name a part", "from 1"),
        ("b < 1e400", "1e400 is too large for a double", "at most 1.797"),
        ("b < -1e400", "1e400 is too large for a double", "at most 1.797"),
        (f"b < 1{'0' * 400}", "is too large for a double", "at most 1.797"),
        (f"b < -1{'0' * 5_000}", "is too large for a double", "at most 1.797"),
        ("b < 1e", "1e is not a number", "1e3"),
        (f"{'(' * 1_000}b{')' * 1_000} > 1", "too many nested levels", "in (...)"),
        (f"a in ({', '.join(['a + 1'] * DEEPEST)})", "too many nested levels", "in (...)"),
        ("cast(a as time)", "time is not a known type", "string, int, double, bool, timestamp, date"),
        ("cast(a as date)", "int cannot be cast to date", "string, double, bool, timestamp"),
        ("cast(t as date) + 1.5", "cannot add date and double", "day + 7"),
        ("cast(t as date) - t", "cannot subtract date and timestamp", "day - other"),
        ("cast(t as date) = '31.1.2013'", "'31.1.2013' is not a date", "2013-01-31"),
        ("cast(t as date) > 5", "mixes int and date", "cast"),
        ("cast(t at time zone 'Mars' as date)", "'Mars' is not a time zone", "Europe/Berlin"),
        ("cast(b as timestamp)", "double cannot be cast to timestamp", "string, int"),
        ("9223372036854775808", "too large for an int", "9223372036854775808.0"),
        ("null", "without a type", "cast(null as double)"),
        ("date_trunc('hours', t)", "hours is not a unit", "did you mean hour?"),
        ("date_trunc('day', t, 'Mars/Base')", "'Mars/Base' is not a time zone", "Europe/Berlin"),
        ("date_trunc('day', s)", "has type string where timestamp is needed", "cast"),
        ("extract(century from t)", "century is not a part of a time", "second"),
        ("extract(hour from t at time zone s)", "s is not a time zone", "Europe/Berlin"),
        ("to_timestamp(s, '%Q')", "'%Q' is not the format of a time", "strptime"),
        ("to_timestamp(s, s)", "s is not the format of a time", "strptime"),
        ("to_timestamp()", "to_timestamp does not take 0 arguments", "write to_timestamp(s,"),
        ("trim(s, s)", "needs a text in quotes", "trim(s, '-')"),
        ("replace(s, '', 'x')", "looks for an empty text", "at least one character"),
        ("position('' in s)", "looks for an empty text", "at least one character"),
        ("split_part(s, '-', 0)", "counts from 1", "-1 for the last"),
        ("split_part(s, '-', a)", "needs a whole number", "split_part(s, '-', 1)"),
        ("regexp_matches(s, '(')", "is not a pattern: missing )", "RE2"),
        ("regexp_matches(s)", "regexp_matches does not take 1 argument", "write regexp_matches(s,"),
        ("regexp_extract(s, '(a)(?:b)', 2)", "has no group 2", "from 0, the whole match, to 1"),
        ("regexp_replace(s, 'a', '\\1')", "cannot replace matches", "first group"),
        ("regexp_replace(s, 'a', 'b', 'x')", "'x' is not known here", "'g' for all"),
        ("a is true", "is not supported", "is null"),
    ],
)
def test_refusals_name_the_problem_and_the_fix(sql: str, problem: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(sql, SCHEMA, "operators.late.where")
    assert caught.value.field == "operators.late.where" and caught.value.value == sql
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def chain(terms: int) -> str:
    return " or ".join(f"a = {number}" for number in range(terms))


@pytest.mark.parametrize("terms", every(2, [DEEPEST, 320, 5_000]))
@pytest.mark.parametrize(
    "read",
    [
        lambda condition: parse(condition, SCHEMA, "field"),
        lambda condition: parse_aggregation(f"count({condition})", SCHEMA, "field"),
        lambda condition: parse_order(f"{condition} desc", SCHEMA, "field"),
    ],
    ids=["expression", "aggregation", "order"],
)
def test_what_nests_too_deep_is_refused_wherever_it_is_read(read: Callable[[str], object], terms: int) -> None:
    with pytest.raises(UserError, match="too many nested levels") as caught:
        read(chain(terms))
    assert caught.value.field == "field" and "several filters" in caught.value.fix


def test_what_may_nest_is_run_too() -> None:
    # A comparison, with its column, is two deep by itself.
    assert value_of(chain(DEEPEST - 1)) == [True, None, False, False]
    assert parse(f"a in ({', '.join(str(number) for number in range(5_000))})", SCHEMA, "field").term.operation == "in"


def test_names_that_differ_by_case_alone_must_match_exactly() -> None:
    schema = Schema.of({"x": "int", "X": "double"})
    assert parse("X", schema, "field").type is Type.DOUBLE
    with pytest.raises(UserError, match="delay is not a column"):
        parse("delay", Schema.of({"Delay": "int", "DELAY": "int"}), "field")


@pytest.mark.parametrize(
    ("sql", "function", "argument", "kind"),
    [
        ("count(*)", "count", None, "int"),
        ("COUNT(s)", "count", "s", "int"),
        ("count(distinct s)", "count_distinct", "s", "int"),
        ("sum(a)", "sum", "a", "int"),
        ("sum(a / 2)", "sum", "a / 2", "double"),
        ("mean(a)", "avg", "a", "double"),
        ("max(s)", "max", "s", "string"),
        ("min(t)", "min", "t", "timestamp"),
        ("first(f)", "first", "f", "bool"),
        ("count_if(f)", "count", "CASE WHEN f THEN TRUE END", "int"),
        ("sum(a) filter (where f)", "sum", "CASE WHEN f THEN a END", "int"),
        ("count(distinct s) filter (where f)", "count_distinct", "CASE WHEN f THEN s END", "int"),
        ("stddev_samp(b)", "stddev", "b", "double"),
        ("stddev_pop(b)", "stddev_pop", "b", "double"),
    ],
)
def test_aggregations(sql: str, function: str, argument: str | None, kind: str) -> None:
    aggregation = parse_aggregation(sql, SCHEMA, "field")
    found = aggregation.argument.sql if aggregation.argument else None
    assert (aggregation.function, found, aggregation.type) == (function, argument, kind)


@pytest.mark.parametrize(
    "sql",
    [
        "a",
        "sum(a) / count(*)",
        "sum(s)",
        "sum(*)",
        "count()",
        "sum(distinct a)",
        "min(a, b)",
        "median(a)",
        "sum(sum(a))",
        "sum(a) filter (where b)",
        "count_if(a)",
        "a filter (where f)",
    ],
)
def test_refused_aggregations(sql: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_aggregation(sql, SCHEMA, "operators.x.compute.y")
    assert caught.value.field == "operators.x.compute.y" and caught.value.value == sql and caught.value.fix


def test_orders() -> None:
    found = parse_order("b desc, lower(s), a asc", SCHEMA, "field")
    assert [(expression.columns, descending) for expression, descending in found] == [
        (("b",), True),
        (("s",), False),
        (("a",), False),
    ]


@pytest.mark.parametrize("sql", ["", "a nulls first", "a limit 3", "a desc; b", "nobody", "a b"])
def test_refused_orders(sql: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_order(sql, SCHEMA, "operators.x.order_by")
    assert caught.value.value == sql


def test_timestamps_are_utc_unless_they_say_otherwise() -> None:
    assert parse_timestamp("1970-01-01T01:00:00+01:00") == parse_timestamp("1970-01-01") == 0
    assert parse_timestamp("yesterday") is None
    assert format_timestamp(-1) == "1969-12-31T23:59:59.999999Z"


@pytest.mark.parametrize(
    ("pattern", "named", "names"),
    [
        ("(a)(b)?", "(?P<group_1_of_pattern>a)(?P<group_2_of_pattern>b)?", ["group_1_of_pattern", "group_2_of_pattern"]),
        (r"\((?:x)(?i:y)", r"\((?:x)(?i:y)", []),
        (r"[()\]](a)[^](]", r"[()\]](?P<group_1_of_pattern>a)[^](]", ["group_1_of_pattern"]),
        (r"\Q(\E(?P<n>[[:alpha:](])", r"\Q(\E(?P<n>[[:alpha:](])", ["n"]),
    ],
)
def test_groups_of_a_pattern_get_names(pattern: str, named: str, names: list[str]) -> None:
    assert named_groups(pattern) == (f"(?P<{WHOLE}>{named})", [WHOLE, *names])
    assert pattern_problem(named) == ""
