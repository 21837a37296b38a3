"""Dates: days, without a time and a zone, in every operator and in records."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from boreal.client.result_frame import frame_of_rows
from boreal.model.errors import UserError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema, Type
from boreal.query.expressions import parse
from boreal_cli.app import app
from formats.record_parsing import RecordShape, read_records
from operators.aggregate import AggregateOperator
from operators.distinct import DistinctOperator
from operators.expressions import compile_expression

SCHEMA = Schema.of({"a": "date", "b": "date", "t": "timestamp", "i": "int", "s": "string"})
A, B = date(2013, 1, 31), date(1969, 12, 31)


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"time": place, **row} for place, row in enumerate(rows)], schema=SCHEMA.arrow)


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("a - b", {"a": A, "b": B}, 15_737),
        ("a + 28", {"a": A}, date(2013, 2, 28)),
        ("a + i", {"a": A, "i": 1 << 62}, None),
        ("a - i", {"a": A, "i": -(1 << 63)}, None),
        ("a + 1", {"a": date.max}, None),
        ("a - 1", {"a": date.min}, None),
        ("a < '2013-02-01' and a <> b", {"a": A, "b": B}, True),
        ("a < t", {"a": A, "t": datetime(2013, 1, 31, 0, 0, 1, tzinfo=UTC)}, True),
        ("cast(t as date)", {"t": datetime(1969, 12, 31, 23, 59, tzinfo=UTC)}, B),
        ("cast(t at time zone 'Asia/Tokyo' as date)", {"t": datetime(2013, 1, 30, 15, 0, tzinfo=UTC)}, A),
        ("cast(s as date)", {"s": " 2013-01-31 "}, A),
        ("cast(s as date)", {"s": "20130131"}, None),
        ("cast(s as date)", {"s": "2013-02-30"}, None),
        ("cast(to_timestamp(s, '%d.%m.%Y') as date)", {"s": "31.01.2013"}, A),
        ("cast(a as timestamp)", {"a": A}, datetime(2013, 1, 31, tzinfo=UTC)),
        ("date_trunc('month', a)", {"a": A}, datetime(2013, 1, 1, tzinfo=UTC)),
    ],
)
def test_expressions(sql: str, row: dict[str, Any], expected: Any) -> None:
    assert compile_expression(parse(sql, SCHEMA, "sql"))(batch(row))[0].as_py() == expected


def test_dates_are_aggregated_and_are_keys() -> None:
    compute = {"low": "min(a)", "high": "max(a)", "last": "last(a)", "kinds": "count(distinct a)"}
    operator = AggregateOperator("a", SCHEMA, 10, 10, ("b",), compute)
    assert operator.schema.types["low"] is Type.DATE
    state = operator.empty()
    operator.step(state, (batch({"a": A, "b": B}, {"a": B, "b": B}, {"b": A}),), 5)
    out = operator.step(operator.decode(state.encode()), (SCHEMA.empty(),), INFINITY).to_pylist()
    assert [tuple(row.values())[3:] for row in out] == [(B, B, A, B, 2), (A, None, None, None, 0)]
    distinct = DistinctOperator("u", SCHEMA, ("a",), None)
    first = distinct.empty()
    assert distinct.step(first, (batch({"a": A}, {"a": A}, {"a": None}),), 5)["a"].to_pylist() == [A, None]
    assert distinct.step(distinct.decode(first.encode()), (batch({"a": A}, {"a": B}),), 9)["a"].to_pylist() == [B]


def test_records_hold_dates_as_texts_or_days() -> None:
    shape = RecordShape("at", "ms", Schema.of({"a": "date"}), strict=True)
    given = ['"2013-01-31"', "15736", '"15736"', "null", '"2013-02-30"', '"31.1.2013"', "1e9", "true", '"0000-01-01"']
    rows = read_records(shape, [f'{{"at": 1, "a": {text}}}'.encode() for text in given])
    assert rows.values[0].to_pylist() == [A, A, A, None]
    assert rows.reasons == {
        4: "column a: '2013-02-30' is not a date",
        5: "column a: '31.1.2013' is not a date",
        6: "column a: '1e9' is not a date",
        7: "column a: 'true' is not a date",
        8: "column a: '0000-01-01' is not a date",
    }


def test_a_run_counts_by_local_days(tmp_path: Path) -> None:
    query = tmp_path / "query.sql"
    query.write_text("""\
        CREATE STREAM sold (due date) WITH (time = 'at');
        CREATE VIEW days AS SELECT cast(time at time zone 'Asia/Tokyo' as date) AS day, due FROM sold;
        CREATE QUERY total AS SELECT day, max(due) AS due, count(*) AS n FROM days GROUP BY TUMBLE('1d'), day;
    """)
    for name, text in (
        ("sold.csv", "at,due\n2013-01-31T14:59:59Z,2013-02-28\n2013-01-31T15:00:00Z,\n"),
        ("sold.jsonl", '{"at": "2013-01-31T14:59:59Z", "due": 15764}\n{"at": "2013-01-31T15:00:00Z"}\n'),
    ):
        source, out = tmp_path / name, tmp_path / f"{name}.out"
        source.write_text(text)
        options = ["--source", f"sold={source}", "--seed", "1", "--out", str(out)]
        ran = CliRunner().invoke(app, ["run", str(query), *options])
        assert ran.exit_code == 0, ran.output
        rows = [json.loads(line) for line in (out / "stable.jsonl").read_text().splitlines()]
        found = [(row["day"], row["due"], row["n"]) for row in rows]
        assert found == [("2013-01-31", "2013-02-28", 1), ("2013-02-01", None, 1)]
    frame = frame_of_rows(rows, {"day": "date"}).to_arrow()
    assert frame["day"].to_pylist() == [A, date(2013, 2, 1)]
    with pytest.raises(UserError, match=r"types\.day: does not fit the values"):
        frame_of_rows([{"day": "31.1."}], {"day": "date"}).to_arrow()
