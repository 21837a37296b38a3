"""Decimals: exact in every operator, and null rather than rounded where there are too many digits."""

from __future__ import annotations

import json
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from boreal.client.result_frame import check_frame, frame_of_rows
from boreal.model.decimals import decimal_texts
from boreal.model.errors import UserError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema, Type
from boreal.query.expressions import parse
from boreal_cli.app import app
from formats.record_parsing import RecordShape, read_records
from operators.aggregate import AggregateOperator
from operators.distinct import DistinctOperator
from operators.expressions import compile_expression
from operators.join import JoinOperator
from operators.top import TopOperator

SCHEMA = Schema.of({"d": "decimal(10, 2)", "w": "decimal(38, 3)", "x": "double", "i": "int", "s": "string"})
MOST = Decimal("99999999999999999999999999999999999.999")
"""The largest of its type."""


def batch(*rows: dict[str, Any], schema: Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"time": place, **row} for place, row in enumerate(rows)], schema=schema.arrow)


def value(sql: str, **row: Any) -> Any:
    return compile_expression(parse(sql, SCHEMA, "sql"))(batch(row))[0].as_py()


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("d + 1", "decimal(11, 2)"), ("d + i", "decimal(22, 2)"), ("d * 1.125", "decimal(15, 5)"), ("d - w", "decimal(38, 3)"),
        ("d * w", "decimal(38, 5)"), ("d % 0.07", "decimal(10, 2)"), ("d + x", "double"), ("d / 2", "double"),
        ("d * (1 + 0.5)", "double"), ("round(d, 1)", "decimal(10, 1)"), ("floor(d)", "decimal(9, 0)"), ("-d", "decimal(10, 2)"),
        ("coalesce(d, 0.125)", "decimal(11, 3)"), ("case when i > 0 then d end", "decimal(10, 2)"), ("sign(d)", "int"),
        ("cast(s as decimal(4, 1))", "decimal(4, 1)"), ("cast(s as numeric(4, 1))", "decimal(4, 1)"), ("sqrt(d)", "double"),
    ],
)  # fmt: skip
def test_types(sql: str, kind: str) -> None:
    assert parse(sql, SCHEMA, "sql").type is Type(kind)


def test_numbers_that_are_written_out_keep_their_digits_beside_a_decimal() -> None:
    w = Decimal("12345678901234567.891")
    assert value("w = 12345678901234567.891", w=w) is True
    assert value("w + 0.100", w=w) == Decimal("12345678901234567.991")
    assert value("w > -12345678901234567.892", w=-w) is True
    assert value("x = 0.1 and x > -0.2", x=0.1) is True


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("w + w", {"w": MOST}, None),
        ("w + 0.001", {"w": Decimal(f"{str(MOST)[:-1]}8")}, MOST),
        ("w * w", {"w": Decimal("-2.5")}, Decimal("6.250000")),
        ("w * w", {"w": Decimal(10**17)}, None),
        ("d % 0", {"d": Decimal("1.5")}, None),
        ("d % 0.4", {"d": Decimal("-1.5")}, Decimal("-0.30")),
        ("cast(w as decimal(4, 1))", {"w": Decimal("999.949")}, Decimal("999.9")),
        ("cast(w as decimal(4, 1))", {"w": Decimal("999.950")}, None),
        ("cast(w as decimal(4, 1))", {"w": Decimal("-0.050")}, Decimal("-0.1")),
        ("cast(w as int)", {"w": Decimal(2**63)}, None),
        ("cast(w as int)", {"w": Decimal("-9223372036854775808.999")}, -(2**63)),
        ("cast(x as decimal(4, 2))", {"x": 1e300}, None),
        ("cast(x as decimal(4, 2))", {"x": 5e-324}, Decimal("0.00")),
        ("cast(x as decimal(4, 2))", {"x": float("nan")}, None),
        ("cast(s as decimal(4, 2))", {"s": "1e999999999"}, None),
        ("cast(s as decimal(4, 2))", {"s": "1e-999999999"}, Decimal("0.00")),
        ("cast(s as decimal(4, 2))", {"s": "infinity"}, None),
        ("cast(s as decimal(4, 2))", {"s": "٣"}, None),
        ("cast(w as string)", {"w": Decimal("-0.001")}, "-0.001"),
        ("round(d, -2)", {"d": Decimal("-150.00")}, Decimal("-200")),
        ("round(d, -100)", {"d": Decimal("99999999.99")}, Decimal("0")),
        ("ceil(d)", {"d": Decimal("99999999.01")}, Decimal("100000000")),
    ],
)  # fmt: skip
def test_what_has_too_many_digits_is_null(sql: str, row: dict[str, Any], expected: Any) -> None:
    found = value(sql, **row)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("kind", ["decimal(9, 2)", "decimal(18, 4)", "decimal(38, 3)", "decimal(38, 30)", "decimal(38, 0)"])
def test_a_cast_to_a_double_is_the_nearest_one(kind: str) -> None:
    made = Type(kind)
    most = 10**made.digits - 1
    some = [357, -357, 0, 1 << 53, (1 << 53) + 1, -(1 << 63), 1 << 63, most, -most, 12345678901234567, most // 7]
    values = [Decimal(one).scaleb(-made.after, Context(prec=38)) for one in some if abs(one) <= most]
    rows = pa.RecordBatch.from_pydict({"time": range(len(values) + 1), "d": [None, *values]}, Schema.of({"d": kind}).arrow)
    run = compile_expression(parse("cast(d as double)", Schema.of({"d": kind}), "sql"))
    assert run(rows).to_pylist() == [None, *map(float, values)]
    assert run(rows.slice(1)).to_pylist() == [*map(float, values)]


def test_small_decimals_have_no_exponent() -> None:
    column = pa.array([Decimal("0.00000001"), None, Decimal("-3")], pa.decimal128(20, 8))
    assert decimal_texts(column).to_pylist() == ["0.00000001", None, "-3.00000000"]


@pytest.mark.parametrize(
    ("sql", "problem", "fix"),
    [
        ("d + s", "has type string where double is needed", "cast"),
        ("d = s", "mixes decimal and string", "cast"),
        ("cast(d as bool)", "decimal(10, 2) cannot be cast to bool", "string, int, double"),
        ("cast(time as decimal(9, 2))", "timestamp cannot be cast to decimal(9, 2)", "string, int"),
        ("cast(d as decimal)", "decimal is not a known type", "decimal(18, 2)"),
        ("cast(d as decimal(39, 2))", "decimal(39, 2) is not a known type", "decimal(18, 2)"),
        ("cast(d as decimal(3, 4))", "decimal(3, 4) is not a known type", "decimal(18, 2)"),
        (f"d + 0.{'1' * 39}", "too many digits for a decimal", "at most 38"),
        (f"w * 0.{'1' * 36}", "has 39 digits after the point", "round the factors"),
    ],
)
def test_refusals(sql: str, problem: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(sql, SCHEMA, "operators.m.select.x")
    assert problem in caught.value.problem and fix in caught.value.fix


COMPUTED = {
    "total": "sum(w)", "mean": "avg(w)", "low": "min(w)", "high": "max(w)", "first": "first(w)", "last": "last(w)",
    "kinds": "count(distinct w)", "spread": "stddev(d)",
}  # fmt: skip


def test_aggregations_are_exact_whatever_is_saved_between() -> None:
    operator = AggregateOperator("a", SCHEMA, 4, 2, ("d",), COMPUTED)
    assert operator.schema.types["total"] is Type("decimal(38, 3)") and operator.schema.types["mean"] is Type.DOUBLE
    w = [Decimal(text) for text in ("-12345678901234567890.001", "0.002", "0.001", "12345678901234567890.001")]
    state, out = operator.empty(), []
    for place, one in enumerate(w):
        given = batch({"time": place, "d": Decimal("1.5"), "w": one}, {"time": place, "d": None})
        out += operator.step(state, (given,), place).to_pylist()
        state = operator.decode(state.encode())
    out += operator.step(state, (SCHEMA.empty(),), INFINITY).to_pylist()
    rows = [tuple(row.values())[3:] for row in out]
    half, nulls = Decimal("1.50"), (None, None, None, None, None, None, None, 0, None)
    assert rows == [
        nulls, (half, w[0] + w[1], float(w[0] + w[1]) / 2, w[0], w[1], w[0], w[1], 2, 0.0),
        nulls, (half, Decimal("0.003"), 0.00075, w[0], w[3], w[0], w[3], 4, 0.0),
        nulls, (half, w[2] + w[3], float(w[2] + w[3]) / 2, w[2], w[3], w[2], w[3], 2, 0.0),
    ]  # fmt: skip


def test_a_sum_of_too_many_digits_is_null_and_no_row_is_lost_on_its_way() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, (), {"total": "sum(w)", "n": "count(w)"})
    least = MOST.copy_negate()
    for rows, expected in (
        ([MOST, Decimal("0.001")], None),
        ([MOST, MOST, least], MOST),
        ([least, Decimal("-0.001"), Decimal("0.001")], least),
    ):
        out = operator.step(operator.empty(), (batch(*({"w": row} for row in rows)),), INFINITY)
        assert out.to_pylist()[0]["total"] == expected and out.to_pylist()[0]["n"] == len(rows)


def test_decimals_are_keys_and_are_ordered_by_their_values() -> None:
    d = [{"d": Decimal(text)} for text in ("9.5", "10.00", "9.50", "-1", "-0.5")]
    distinct = DistinctOperator("u", SCHEMA, ("d",), None)
    out = distinct.step(distinct.empty(), (batch(*d),), INFINITY)
    assert out["d"].to_pylist() == [Decimal(text) for text in ("9.50", "10.00", "-1.00", "-0.50")]
    top = TopOperator("t", SCHEMA, 3, "d desc", 10, 10, ())
    out = top.step(top.empty(), (batch(*d),), INFINITY)
    assert out["d"].to_pylist() == [Decimal(text) for text in ("10.00", "9.50", "9.50")]
    join = JoinOperator("j", (SCHEMA, SCHEMA), ("d",), 100, "inner")
    state = join.empty()
    join.step(state, (batch(*d[:2]), SCHEMA.empty()), 5)
    out = join.step(join.decode(state.encode()), (SCHEMA.empty(), batch({"time": 6, "d": Decimal("9.5"), "i": 7})), INFINITY)
    assert [(row["d"], row["i_right"]) for row in out.to_pylist()] == [(Decimal("9.50"), 7)]


@pytest.mark.parametrize("strict", [False, True])
def test_records_hold_decimals_as_numbers_or_texts_of_at_most_their_digits(strict: bool) -> None:
    shape = RecordShape("at", "ms", Schema.of({"d": "decimal(5, 2)"}), strict)
    given = ["1.5", '"1.50"', "-999.99", "null", "1.005", "1000", '"abc"', "true", "1e2", "[1]"]
    records: list[bytes | None] = [f'{{"at": 1, "d": {text}}}'.encode() for text in given]
    rows = read_records(shape, records)
    assert rows.values[0].to_pylist() == [Decimal("1.50"), Decimal("1.50"), Decimal("-999.99"), None, Decimal("100.00")]
    assert rows.reasons == {
        4: "column d: '1.005' is not a decimal(5, 2)",
        5: "column d: '1000' is not a decimal(5, 2)",
        6: "column d: 'abc' is not a decimal(5, 2)",
        7: "column d: 'true' is not a decimal(5, 2)",
        9: "column d: [1] is not a plain value",
    }


def test_a_run_gives_exact_sums_as_texts(tmp_path: Path) -> None:
    query = tmp_path / "query.sql"
    query.write_text("""\
        CREATE STREAM paid (amount decimal(10, 2)) WITH (time = 'at', key = ('amount'));
        CREATE QUERY total AS
        SELECT amount, sum(amount * 1.19) AS gross, avg(amount) AS mean FROM paid GROUP BY TUMBLE('1m'), amount;
    """)
    source = tmp_path / "paid.jsonl"
    source.write_text('{"at": 1, "amount": "0.10"}\n{"at": 2, "amount": 0.1}\n{"at": 3, "amount": 0.101}\n')
    options = ["--source", f"paid={source}", "--seed", "1", "--shards", "2", "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, ["run", str(query), *options])
    assert ran.exit_code == 0, ran.output
    [line] = (tmp_path / "out" / "stable.jsonl").read_text().splitlines()
    assert '"amount":"0.10","gross":"0.2380","mean":0.1}' in line
    [letter] = [json.loads(line) for line in (tmp_path / "out" / "dlq.jsonl").read_text().splitlines()]
    assert (letter["line"], letter["reason"]) == (3, "column amount: '0.101' is not a decimal(10, 2)")
    frame = frame_of_rows([json.loads(line)], {"amount": "decimal(10, 2)", "gross": "decimal(38, 4)"}).to_arrow()
    assert frame["gross"].to_pylist() == [Decimal("0.2380")] and frame["amount"].type == pa.decimal128(10, 2)


def test_a_frame_refuses_what_is_no_decimal() -> None:
    check_frame("stable", {"a": "decimal(10, 2)"})
    with pytest.raises(UserError, match=r"types\.a: is not a type"):
        check_frame("stable", {"a": "decimal(10)"})
    for wrong in ("1.005", "abc", "999"):
        with pytest.raises(UserError, match=r"types\.a: does not fit the values"):
            frame_of_rows([{"a": wrong}], {"a": "decimal(3, 2)"}).to_arrow()
