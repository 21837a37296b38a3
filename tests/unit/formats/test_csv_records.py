"""Records in CSV: which are rows, which are refused and why, and that the same rows in JSON are the same."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boreal.model.frames import Data, Origin
from boreal.query.plan import Edge
from boreal.query.spec import Stream
from formats.csv_records import CsvRecords
from formats.record_parsing import PIECE, ParsedRows, RecordShape
from intake.intake import Intake, SourceStream, form_of
from intake.place import SourcePlace
from intake.user_records import PartitionRecords

SCHEMA = {"at": "timestamp", "user": "string", "n": "int", "price": "decimal(9, 2)", "ok": "bool", "day": "date", "v": "double"}
NOW_US = 1_400_000_000_000_000


def stream(**fields: Any) -> Stream:
    return Stream.model_validate({"time": "at", "schema": SCHEMA, "format": "csv", **fields})


def parsed(spec: Stream, *records: bytes | None) -> ParsedRows:
    reader = CsvRecords.of(spec)
    assert reader is not None
    return reader.read(RecordShape.of(spec), records)


def small(*records: bytes | None, **fields: Any) -> tuple[list[Any], dict[int, str]]:
    """The users of records with a time and a user, and the reasons for those that are no rows."""
    rows = parsed(stream(**{"schema": {"at": "timestamp", "user": "string"}, **fields}), *records)
    return rows.values[1].to_pylist(), rows.reasons


def test_fields_are_in_the_order_of_the_schema_and_the_end_of_the_line_may_be_there() -> None:
    assert small(b"1000,a", b"2000,b\n", b"3000,c\r\n", b"4000,") == (["a", "b", "c", None], {})


def test_fields_may_be_named_and_have_another_delimiter_and_null() -> None:
    form = {"header": ["user", "more", "at"], "delimiter": ";", "nulls": "\\N"}
    assert small(b"a,b;;1000", b"\\N;x;2000", csv=form) == (["a,b", None], {})


@pytest.mark.parametrize("header", [b"at,user", b'"at","user"', b"at,user\n", b"\xef\xbb\xbfat,user\r\n"])
def test_a_header_is_no_row_and_not_refused(header: bytes) -> None:
    assert small(header, b"1000,a", header, b"2000,user") == (["a", "user"], {})
    many = [header, *(b"%d,u" % number for number in range(2 * PIECE))]
    users, reasons = small(*many)
    assert users == ["u"] * 2 * PIECE and not reasons


def test_quotes_hold_anything_also_an_end_of_line() -> None:
    assert small(b'1000,"a ""b"", c"', b'2000,"a\nb"', b'"3000","c"') == (['a "b", c', "a\nb", "c"], {})


def test_what_is_no_row_says_why_and_its_neighbours_stay() -> None:
    odd = {
        b"1000": "1 fields, but the header has 2",
        b"1000,a,b": "3 fields, but the header has 2",
        b"": "is empty",
        b"\n": "is empty",
        b'1000,"a': "a quote is not closed",
        b"1000,a\n2000,b": "has 2 lines, and a record is one row",
        b"1000,\xff": "not UTF-8",
        b"noon,a": "column at: 'noon' is not a time",
        b",a": "column at: no time",
    }
    records: list[bytes | None] = [None]
    for record in odd:
        records += [b"5000,good", record]
    users, reasons = small(*records)
    assert users == ["good"] * len(odd)
    assert reasons == {0: "no value", **dict(zip(range(2, 2 * len(odd) + 2, 2), odd.values(), strict=True))}


def test_a_stray_quote_does_not_take_the_next_record_in() -> None:
    """Two records with a quote each would be one row, and a third one with two lines would make up for it."""
    users, reasons = small(b'1000,"a', b'b",x', b"2000,c\n3000,d", b"4000,e")
    assert users == ["e"] and sorted(reasons) == [0, 1, 2]
    users, reasons = small(b'1000,"a', b'b"', b"2000,c", b"3000,d")
    assert users == ["c", "d"] and sorted(reasons) == [0, 1]


def test_a_strict_stream_takes_no_numbers_for_bools() -> None:
    schema = {"at": "timestamp", "ok": "bool"}
    records = b"1000,true", b"2000,0", b"3000,", b"4000,False"
    rows = parsed(stream(schema=schema), *records)
    assert rows.values[1].to_pylist() == [True, False, None, False]
    rows = parsed(stream(schema=schema, types="refuse"), *records)
    assert rows.reasons == {1: "column ok: '0' is a number, and a bool is wanted"}
    assert rows.values[1].to_pylist() == [True, None, False]


def test_parts_of_a_record_beside_its_value_are_no_fields() -> None:
    schema = {"at": "timestamp", "shop": {"type": "string", "from": "key"}, "user": "string"}
    spec = stream(schema=schema)
    intake = intake_of(spec)
    records = PartitionRecords(np.arange(2), [b"1000,a", b"2000,b"], keys=[b"x", None], stamps_ms=np.zeros(2, np.int64))
    [rows] = rows_of(intake, records)
    assert [rows[name].to_pylist() for name in ("time", "shop", "user")] == [[1_000_000, 2_000_000], ["x", None], ["a", "b"]]


# The same rows in JSON


def intake_of(spec: Stream) -> Intake:
    edge = Edge("s", "s", spec.attributes, 1, 1, (), True)
    source = SourceStream("s", spec, "t", (edge,), 100_000)
    return Intake(source, Origin("", 1), SourcePlace({"s/0": 0}), form=form_of(spec))


def rows_of(intake: Intake, records: PartitionRecords) -> list[pa.RecordBatch]:
    batch = intake.take({0: records}, NOW_US)
    assert not batch.letters, batch.letters
    return [frame.batch for _, frame in batch.frames if isinstance(frame, Data)]


def as_csv(rows: Sequence[dict[str, Any]], **form: Any) -> list[bytes | None]:
    made: list[bytes | None] = []
    for row in rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="", **form).writerow(["" if row[name] is None else plain(row[name]) for name in SCHEMA])
        made.append(text.getvalue().encode())
    return made


def plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


ROWS: list[dict[str, Any]] = [
    {
        "at": f"2013-01-01T00:{number // 60:02}:{number % 60:02}+0{number % 3}:00" if number % 5 else 1_357_000_000_000,
        "user": ("ü", 'a"b', "x,y", None, "line\nbreak")[number % (5 if number % 100 == 0 else 4)],
        "n": None if number % 7 == 0 else number - 500,
        "price": ("19.90", "-0.01", None, "7")[number % 4],
        "ok": (True, False, None)[number % 3],
        "day": ("2013-01-31", "15706", None)[number % 3],
        "v": (0.1, -0.0, 1e300, 5e-324, None)[number % 5],
    }
    for number in range(1_000)
]


@pytest.mark.parametrize("form", [{}, {"quoting": csv.QUOTE_ALL}, {"delimiter": ";"}, {"delimiter": "\t"}])
def test_the_same_rows_in_csv_and_in_json_are_the_same_frames(form: dict[str, Any]) -> None:
    wide = {"disorder": "1d"}
    written = stream(csv={"delimiter": form.get("delimiter", ",")}, **wide)
    in_csv = rows_of(intake_of(written), PartitionRecords(np.arange(len(ROWS)), as_csv(ROWS, **form)))
    texts: list[bytes | None] = [json.dumps(row).encode() for row in ROWS]
    in_json = rows_of(intake_of(stream(format="json", **wide)), PartitionRecords(np.arange(len(ROWS)), texts))
    assert [batch.num_rows for batch in in_csv] == [len(ROWS)]
    assert in_csv == in_json
