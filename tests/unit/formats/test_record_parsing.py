"""Which JSON values a stream takes, whichever way they are parsed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from boreal.model.schema import Schema, Type
from boreal_cli.app import app
from formats import record_parsing
from formats.record_parsing import RecordShape, ahead_reason, kind_of_refusal, late_reason, read_records
from tests.thoroughness import some

SCHEMA = Schema.of({"s": "string", "n": "int", "v": "double", "b": "bool", "t": "timestamp"})
COERCE, REFUSE = (RecordShape("at", "ms", SCHEMA, strict) for strict in (False, True))


def parsed(shape: RecordShape, *records: dict[str, Any]) -> tuple[list[list[Any]], dict[int, str]]:
    rows = read_records(shape, [json.dumps({"at": 0, **record}).encode() for record in records])
    return [column.to_pylist() for column in rows.values], rows.reasons


@pytest.mark.parametrize("shape", [COERCE, REFUSE])
@pytest.mark.parametrize(
    "record",
    [
        {"s": "x", "n": 5, "v": 1.5, "b": True, "t": "2013-01-01"},
        {"s": None, "n": None, "v": None, "b": None, "t": None, "at": "2013-01-01"},
        {"n": 5.0, "v": 5, "t": 1_000},
        {"unknown": {"n": "5"}, "s": "5"},
    ],
)
def test_values_of_their_columns_type_are_taken(shape: RecordShape, record: dict[str, Any]) -> None:
    values, reasons = parsed(shape, record)
    assert not reasons and values[:4] == [[record.get(name)] for name in "snvb"]


@pytest.mark.parametrize(
    ("record", "converted", "reason"),
    [
        ({"n": "5"}, 5, "column n: '5' is a text, and a number is wanted"),
        ({"v": "1.5"}, 1.5, "column v: '1.5' is a text, and a number is wanted"),
        ({"v": "NA"}, None, "column v: 'NA' is a text, and a number is wanted"),
        ({"b": "true"}, True, "column b: 'true' is a text, and a bool is wanted"),
        ({"b": 1}, True, "column b: 1 is a number, and a bool is wanted"),
        ({"s": 5}, "5", "column s: 5 is a number, and a text is wanted"),
        ({"s": False}, "false", "column s: False is a bool, and a text is wanted"),
    ],
)
def test_other_values_are_converted_or_refused_and_their_neighbours_stay(
    record: dict[str, Any], converted: Any, reason: str
) -> None:
    (name,) = record
    place = SCHEMA.names.index(name)
    before, after = {"s": "before"}, {"s": "after"}
    values, reasons = parsed(COERCE, before, record, after)
    assert not reasons and values[place][1] == converted
    records = [json.dumps({"at": 0, **each}).encode() for each in (before, record, after, record)]
    assert read_records(COERCE, records[:4]).coerced == 2
    assert read_records(COERCE, [*records[:1] * 300, *records[:4], records[1]]).coerced == 3  # in pieces
    assert read_records(COERCE, records[:1] * 2).coerced == read_records(REFUSE, records[:4]).coerced == 0
    assert parsed(REFUSE, record, record)[1] == {0: reason, 1: reason}
    values, reasons = parsed(REFUSE, before, record, after)
    assert reasons == {1: reason} and values[0] == ["before", "after"]


KINDS = {"s": "string", "n": "int", "v": "double", "b": "bool", "t": "timestamp", "d": "date", "m": "decimal(9,2)"}
EVERY_KIND = Schema.of(dict(KINDS))
LIKELY = {
    "at": ["1357034400", "0", "-7", '"2013-01-01T10:00:00.25+02:00"'],
    "s": ['"x"', '"NA"', '"null"', '""', '"\\u00e9"', '"5"'],
    "n": ["0", "-0", "7", "9223372036854775807"],
    "v": ["0", "-0", "-0.0", "1", "1.5", "1e2", "9223372036854775809", "1e308"],
    "b": ["true", "false"],
    "t": ['"2013-01-01"', '"0099-12-31"'],
    "d": ['"2013-01-01"'],
    "m": ['"1.25"'],
    "other": ["{}", "[1, {}]"],
}
ODD = [
    "1.0", "1e400", "9223372036854775808", "-62135596800001", "NaN", "Infinity", "{}", "[1]", "0.125", "0", "true", '"7"',
    '"\\ud800"', '"a\tb"', '"10000-01-01"', "null", "null",
]  # fmt: skip
_FIELD = st.sampled_from(list(LIKELY)).flatmap(
    lambda name: st.sampled_from(LIKELY[name] * 20 + ODD).map(lambda text: f'"{name}": {text}')
)
_RECORD = st.one_of(
    st.lists(_FIELD, max_size=4).map(lambda fields: "{" + ", ".join(['"at": 7', *fields]) + "}"),
    st.sampled_from(["", " {}", "{}\n", "{} {}", "7", "[]", '{"at": 1', '{"at": 1}}', '{"at": 1, "n": 2, "n": 3}']),
)


@settings(max_examples=some(1_500))
@given(st.lists(_RECORD, min_size=1, max_size=3), st.sampled_from(["s", "ms", "us", "ns"]), st.booleans())
def test_few_records_are_read_as_many_are_one_by_one(texts: list[str], unit: str, strict: bool) -> None:
    shape = RecordShape("at", unit, EVERY_KIND, strict)
    records = [text.encode() for text in texts]
    few = record_parsing._read_few(shape, records)
    if few is None:
        return
    exact = record_parsing._read_one_by_one(shape, records, {})
    assert exact.reasons == {} and exact.coerced == few.coerced == 0
    assert few.times.tolist() == exact.times.tolist() and few.places.tolist() == exact.places.tolist()
    for ours, theirs, (name, kind) in zip(few.values, exact.values, EVERY_KIND.columns, strict=True):
        assert ours.type == theirs.type == kind.arrow, name
        assert ours.view(pa.int64()).equals(theirs.view(pa.int64())) if kind is Type.DOUBLE else ours.equals(theirs), name


@pytest.mark.parametrize(
    "record",
    [
        {"at": 1_357_034_400_000, "s": "x", "n": 5, "v": 0, "b": True},
        {"at": "2013-01-01T10:00:00Z", "s": "NA", "n": None, "v": 1.5, "t": "2013-01-01", "d": "2013-01-01", "m": "1.25"},
        {"at": 0, "unknown": {"n": [5]}},
    ],
)
def test_plain_records_are_read_at_once(record: dict[str, Any]) -> None:
    assert record_parsing._read_few(RecordShape("at", "ms", EVERY_KIND), [json.dumps(record).encode()] * 3) is not None


def test_values_of_a_record_that_is_refused_are_not_counted_as_converted() -> None:
    rows = read_records(COERCE, [b'{"at": 0, "n": "5", "v": "many"}', b'{"at": 0, "n": "5", "s": 7}', b'{"at": 0, "n": {}}'])
    assert (len(rows.times), rows.coerced) == (1, 2)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (late_reason(5_000_000, 1_000_000), "late"),
        ("late: the stream has ended", "late"),
        (ahead_reason(5_000_000, "the clock and its stream", 60_000_000), "ahead"),
        (ahead_reason(3_600_000_000, "the rows around it", 60_000_000), "ahead"),
        ("column late: 'late by 5s ahead of all' is not an int", "malformed"),
        ("not a JSON object", "malformed"),
    ],
)
def test_a_reason_is_of_one_of_few_kinds(reason: str, kind: str) -> None:
    assert kind_of_refusal(reason) == kind


def test_a_run_puts_what_is_refused_among_the_dead_letters(tmp_path: Path) -> None:
    query = tmp_path / "query.sql"
    query.write_text("""\
        CREATE STREAM paid (amount double) WITH (time = 'at', types = 'refuse');
        CREATE QUERY total AS SELECT sum(amount) AS total FROM paid GROUP BY TUMBLE('1m');
    """)
    source = tmp_path / "paid.jsonl"
    source.write_text('{"at": 1, "amount": 2.5}\n{"at": 2, "amount": "7"}\n{"at": 3, "amount": 4}\n')
    options = ["--source", f"paid={source}", "--seed", "1", "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, ["run", str(query), *options])
    assert ran.exit_code == 0, ran.output
    [line] = [json.loads(line) for line in (tmp_path / "out" / "stable.jsonl").read_text().splitlines()]
    [letter] = [json.loads(line) for line in (tmp_path / "out" / "dlq.jsonl").read_text().splitlines()]
    assert line["total"] == 6.5
    assert (letter["line"], letter["reason"]) == (2, "column amount: '7' is a text, and a number is wanted")
