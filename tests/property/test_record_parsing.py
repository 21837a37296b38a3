"""Records in bulk are the rows, and the reasons, of the same records one by one, whichever odd ones are among them."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boreal.model.schema import Schema
from boreal.query.spec import Stream
from formats import record_parsing
from formats.csv_records import CsvRecords
from formats.record_parsing import ParsedRows, RecordShape, exact_json, fast_json, read_each, read_records
from tests.thoroughness import some

FLAT = {"user": "string", "n": "int", "price": "double", "ok": "bool", "at": "timestamp", "sum": "decimal(6, 2)", "day": "date"}
SHAPE = RecordShape.of(Stream.model_validate({"time": "at", "schema": FLAT}))
NESTED = RecordShape.of(
    Stream.model_validate(
        {
            "time": "at",
            "schema": {
                "at": {"type": "timestamp", "path": "meta.at"},
                "user": {"type": "string", "path": "meta.user.name"},
                "n": {"type": "int", "path": "items[0].n"},
                "price": {"type": "double", "path": "items[1].price"},
                "ok": {"type": "bool", "path": "grid[1][0]"},
                "sum": {"type": "decimal(38, 2)", "path": "items[1].sum"},
                "day": {"type": "date", "path": "meta.day"},
            },
        }
    )
)
"""The same columns, as `nest` nests them."""

TIMES = st.one_of(
    st.integers(-(10**15), 10**15),
    st.sampled_from(["1970-01-01T00:00:01Z", "2024-02-30T00:00:00Z", "1000", "", "noon", 1000.0, 1000.5, None, 10**30, True]),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), 2**53 + 1, 10**40, 0.1, -0.0, 1e308, 5.0, 5.5]),
    st.text(max_size=3),
    st.sampled_from(["5", "5.0", "NA", "null", "true", "\x00", "}", "\ud83d\ude00", "é"]),
    st.lists(st.integers(0, 1), max_size=2),
    st.dictionaries(st.sampled_from(["a", "at"]), st.integers(0, 1), max_size=2),
)
DECIMALS = [
    0, -0.0, 5, 1.5, -1.25, "1.50", "-0.01", "+7", "1e2", 1e2, "9999.99", None, 10_000, "10000.00", 99_999, 1.005, "1.500",
    "0.001", 10**35, 10**36, str(10**36), 10**37, 10**38, "1e500", " 1", "1_0", "NaN", "0x1", "1.", ".5",
]  # fmt: skip
"""Not all are decimals of the types below."""
DATES = [
    "2013-01-31", "0001-01-01", "9999-12-31", "0000-01-01", "2013-02-29", "2013-1-1", "20130131", "2013-01-31T00:00:00Z",
    " 2013-01-31", 15_706, "15706", -719_162, -719_163, 2_932_896, 2_932_897, 1.0, 1.5, None, "NA", "", 10**30,
]  # fmt: skip
PLAIN = st.fixed_dictionaries(
    {"at": st.integers(0, 10**12)},
    optional={
        "sum": st.sampled_from(DECIMALS), "day": st.sampled_from(DATES),
        "user": st.text(max_size=3), "n": st.integers(-5, 5), "price": st.floats(allow_nan=False, allow_infinity=False),
        "ok": st.booleans(), "more": VALUES,
    },
)  # fmt: skip
ANY = st.fixed_dictionaries({"at": TIMES}, optional=dict.fromkeys(("user", "n", "price", "ok", "sum", "day", "more"), VALUES))
TEXTS = st.builds(
    lambda record, separators, ascii_only, space: (json.dumps(record, separators=separators, ensure_ascii=ascii_only) + space),
    st.one_of(PLAIN, PLAIN, ANY),
    st.sampled_from([(",", ":"), (", ", ": "), (",\n", ":")]),
    st.booleans(),
    st.sampled_from(["", "", "", " ", "\n"]),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
ODD = st.one_of(
    st.none(),
    st.binary(max_size=6),
    st.sampled_from(
        [
            b"", b" ", b"{}", b"[]", b"null", b"1", b'"x"', b"{", b"}", b"\x00", b'{"at":1000}\x00', b'\xef\xbb\xbf{"at":1000}',
            b'{"at":1000,"at":2000}', b'{"at":1000,"user":"a","user":"b"}', b'{"at":1000,"more":1,"more":2}',
            b'{"at":1000}{"at":2000}', b'{"at":1000},{"at":2000}', b'{"at":1000},"more":{}', b'{"at":1000},"record":{"at":2}',
            b'{"at":1000}}\n{"record":{"at":2000}', b'{"at":1000}],"more":[{}', b'{"at":1000}],"record":[{}', b'{"at":', b'1}',
            b'{"at":1000}]}\n{"record":[{"at":2000}', b'{"at":1000,"user":"', b'{"at":01}', b'{"at":1000,"n":+1}',
            b"{'at':1000}",
            b'{"at":1000,"price":NaN}', b'{"at":1000,"price":-Infinity}', b'{"at":1000,"price":1e999}', b'{"at":1000,"n":1e3}',
            b'{"at":1000,"n":-0}', b'{"at":1000,"user":"\\ud800"}', b'{"at":1000,"user":"\\udc00"}',
            b'{"at":1000,"user":"\\u0000"}',
            b'{"at":1000,"user":"\xff"}', b'{"at":1000,"user":"a\nb"}', b'{"at":1000,"user":"\\x"}', b'{"at":1000,}',
            b'{"at":1000} // note', b'{"at":1000,"more":{"a":{"b":[{}]}}}', b'{"at":1000,"user":{"at":1}}',
            b"[" * 600 + b"]" * 600,
            b'{"at":1000,"more":' + b"[" * 1_200 + b"]" * 1_200 + b"}",
        ]
    ),
)  # fmt: skip


def one_by_one(records: list[bytes | None], shape: RecordShape = SHAPE) -> ParsedRows:
    """Each record alone, and by the exact path."""
    texts, broken, _ = exact_json(shape, records)
    rows = read_each(shape, texts)
    return ParsedRows(rows.times, rows.values, rows.places, {**rows.reasons, **broken})


@given(st.lists(st.one_of(TEXTS, TEXTS, TEXTS, ODD), min_size=1, max_size=12), st.sampled_from([1, 2, 5, 256]))
@example([b'{"at":1000},"more":{}', b'{"at":1000,"more":{"a":1}}'], 256)
@example([b'{"at":1000}],"more":[{}', b'{"at":1000}'], 256)
@example([b'{"at":1000}}\n{"record":{"at":2000}', b""], 256)
@settings(max_examples=some(1_000), deadline=None)
def test_in_bulk_as_one_by_one(records: list[bytes | None], piece: int) -> None:
    assert_alike(SHAPE, records, piece)


def nest(record: dict[str, Any]) -> dict[str, Any]:
    item, other = {"n": record.get("n"), "price": 0.5}, {"price": record.get("price"), "sum": record.get("sum")}
    user = {"name": record["user"]} if "user" in record else None
    meta = {"at": record.get("at"), "day": record.get("day"), "user": user}
    return {"meta": meta, "items": [item, other], "grid": [[], [record.get("ok"), True]]}


@st.composite
def nested_texts(draw: st.DrawFn) -> bytes:
    """A record, now and then with something else, or nothing, in the place of a value or of what holds it."""
    record = nest(draw(st.one_of(PLAIN, PLAIN, ANY)))
    if draw(st.integers(0, 3)) == 0:
        ways = [("meta",), ("meta", "user"), ("items",), ("items", 0), ("items", 1), ("grid",), ("grid", 1)]
        *outer, last = draw(st.sampled_from(ways))
        holder: Any = record
        for step in outer:
            holder = holder[step]
        if draw(st.booleans()):
            holder[last] = draw(st.one_of(VALUES, st.just([[]]), st.just([None, {"price": 2}]), st.just({"name": [None]})))
        else:
            del holder[last]
    text = json.dumps(record)
    if draw(st.integers(0, 9)) == 0:
        text = draw(st.sampled_from([
            text.replace('"user":', '"user": {"name": "a"}, "user":'), text.replace('"n":', '"n": 1, "n":'),
            text.replace('"items":', '"items": [], "items":'), text[:-1], text + "]", text.replace("]", "", 1),
        ]))  # fmt: skip
    return text.encode("utf-8", "surrogatepass")


NESTED_TEXTS = nested_texts()


@given(st.lists(st.one_of(NESTED_TEXTS, NESTED_TEXTS, ODD), min_size=1, max_size=12), st.sampled_from([1, 2, 256]))
@example([b'{"meta":{"at":1},"items":[]}', b'{"meta":{"at":1},"items":[{"n":1}],"grid":[[1],null]}', b'{"meta":{"at":1}}'], 256)
@settings(max_examples=some(1_000), deadline=None)
def test_nested_values_in_bulk_as_one_by_one(records: list[bytes | None], piece: int) -> None:
    assert_alike(NESTED, records, piece)


def assert_alike(shape: RecordShape, records: list[bytes | None], piece: int) -> None:
    with patch.object(record_parsing, "PIECE", piece):
        found = read_records(shape, records)
    wanted = one_by_one(records, shape)
    assert found.times.tolist() == wanted.times.tolist()
    assert found.places.tolist() == wanted.places.tolist()
    assert found.reasons == wanted.reasons
    for ours, theirs in zip(found.values, wanted.values, strict=True):
        # As texts: NaN is no NaN, and -0.0 is not 0.0.
        assert ours.type == theirs.type
        assert ours.cast(pa.string()).to_pylist() == theirs.cast(pa.string()).to_pylist()


def test_nested_objects_that_nobody_wants_and_ends_of_lines_are_read_in_bulk() -> None:
    records = [b'{"at":1000,"user":"a}b","more":{"deep":[{}]}}\n', b' {"at": 2000,\n "n": 7} ', b'{"at":3000}']
    columns = fast_json(RecordShape("at", "ms", Schema.of({"user": "string", "n": "int"})), records)
    assert columns is not None
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "at": [1000, 2000, 3000], "user": ["a}b", None, None], "n": [None, 7, None],
    }  # fmt: skip


def test_columns_by_path_are_read_in_bulk() -> None:
    records = [
        b'{"meta":{"at":1000,"day":"2013-01-31","user":{"name":"a"}},"items":[{"n":1},{"price":2.5,"sum":2.5}],"grid":[[],[true]]}',
        b'{"meta":{"at":2000,"user":null},"items":[{"n":7}],"grid":null}',
    ]
    columns = fast_json(NESTED, records)
    assert columns is not None
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "at": [1000, 2000], "user": ["a", None], "n": [1, 7], "price": [2.5, None], "ok": [True, None],
        "day": ["2013-01-31", None], "sum": [Decimal("2.50"), None],
    }  # fmt: skip


# CSV


CSV_SHAPE = RecordShape("at", "ms", Schema.of({"user": "string", "n": "int", "ok": "bool"}))
CSV_READER = CsvRecords(("at", "user", "n", "ok"), null="-")
CSV_PIECES = st.sampled_from(
    [
        ",", ",", ",", '"', '""', "\n", "\r\n", "\r", "a", "é", "1000", "2000", "7", "true", "1", "-", "NA", " ", "\ufeff",
        "\0", ";", "at", "at,user,n,ok",
    ]
)  # fmt: skip
CSV_TEXTS = st.one_of(
    st.lists(CSV_PIECES, max_size=9).map("".join),
    st.builds(
        ",".join,
        st.tuples(
            st.sampled_from(["1000", '"2000"', "2013-01-01", "noon", ""]),
            st.sampled_from(["a", '"a"', '"a,""b"""', '"a\nb"', 'a"b', '"a"b', '"a', 'b"', '"a"b"c"', "", "-"]),
            st.sampled_from(["7", "5.0", "5.5", '"7"', "", "-"]),
            st.sampled_from(["true", "0", "False", "yes", ""]),
        ),
    ),
).map(str.encode)


@given(st.lists(st.one_of(CSV_TEXTS, CSV_TEXTS, st.none(), st.just(b"\xff")), min_size=1, max_size=8), st.booleans())
@example([b'1,"a', b'b",1,true', b"2,c,1,true"], False)
@settings(max_examples=some(1_000), deadline=None)
def test_csv_in_bulk_as_one_by_one(records: list[bytes | None], strict: bool) -> None:
    shape = replace(CSV_SHAPE, strict=strict)
    for size in (1, len(records)):
        parts = [CSV_READER.read(shape, records[first : first + size]) for first in range(0, len(records), size)]
        with patch.object(CsvRecords, "fast", lambda *_: None):
            wanted = CSV_READER.read(shape, records)
        assert [time for part in parts for time in part.times.tolist()] == wanted.times.tolist()
        found = {number * size + place: reason for number, part in enumerate(parts) for place, reason in part.reasons.items()}
        assert found == wanted.reasons
        for column, whole in enumerate(wanted.values):
            assert [value for part in parts for value in part.values[column].to_pylist()] == whole.to_pylist()
