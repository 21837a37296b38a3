"""Records with ids of schemas: framing, Avro in step as fastavro reads it, Protobuf, evolution, and what is odd."""

from __future__ import annotations

import io
import json
import math
from base64 import b64encode
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, wrappers_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boreal.query.shapes import Stream
from formats.avro_columns import AvroColumns, OddError
from formats.record_parsing import ParsedRows, RecordShape
from formats.registry_records import SchemaBook, message_path
from formats.writer_schema import WriterSchema
from tests.thoroughness import some


def shape_of(format: str = "avro", **fields: Any) -> RecordShape:
    columns = {"n": "int", "user": "string"}
    return RecordShape.of(Stream.model_validate({"format": format, "time": "at", "schema": columns, **fields}))


def framed(schema: Any, row: Any, id_: int = 7) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
    return b"\0" + id_.to_bytes(4) + file.getvalue()


def record_of(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


AT = {"name": "at", "type": "long"}
N = {"name": "n", "type": ["null", "int"]}
USER = {"name": "user", "type": "string"}
PLAIN = record_of(AT, N, USER)


def book_of(schemas: dict[int, Any], format: str = "avro", kind: str = "AVRO") -> SchemaBook:
    book = SchemaBook(format)
    for id_, schema in schemas.items():
        book.learn(id_, WriterSchema(kind, schema if isinstance(schema, str) else json.dumps(schema)))
    return book


def table(rows: ParsedRows) -> list[tuple[Any, ...]]:
    return list(zip(rows.places.tolist(), rows.times.tolist(), *(column.to_pylist() for column in rows.values), strict=True))


# Avro in step

_PLAIN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=6),
}
_LEAVES = ("boolean", "int", "long", "float", "double", "string")


@st.composite
def fields_and_rows(draw: st.DrawFn) -> tuple[dict[str, Any], list[str], list[dict[str, Any]]]:
    """A record's schema, the names of its plain fields, and rows of it."""
    names: list[str] = []
    fields: list[dict[str, Any]] = []
    values: dict[str, st.SearchStrategy[Any]] = {}
    for number in range(draw(st.integers(1, 6))):
        name, kind = f"f{number}", draw(st.sampled_from(sorted(_PLAIN_VALUES)))
        match draw(st.sampled_from(["plain", "nullable", "array", "map", "record", "enum", "fixed", "union"])):
            case "plain":
                fields.append({"name": name, "type": kind})
                values[name] = _PLAIN_VALUES[kind]
                names += [name] if kind in _LEAVES else []
            case "nullable":
                leaf = kind if kind != "null" else "int"
                fields.append({"name": name, "type": ["null", leaf] if draw(st.booleans()) else [leaf, "null"]})
                values[name] = st.none() | _PLAIN_VALUES[leaf]
                names += [name] if leaf in _LEAVES else []
            case "array":
                items = kind if kind != "null" else "int"  # an array of null is refused
                fields.append({"name": name, "type": {"type": "array", "items": items}})
                values[name] = st.lists(_PLAIN_VALUES[items], max_size=4)
            case "map":
                fields.append({"name": name, "type": {"type": "map", "values": kind}})
                values[name] = st.dictionaries(st.text(max_size=3), _PLAIN_VALUES[kind], max_size=3)
            case "record":
                inner = {"type": "record", "name": f"R{number}", "fields": [{"name": "x", "type": kind}]}
                fields.append({"name": name, "type": ["null", inner]})
                values[name] = st.none() | st.fixed_dictionaries({"x": _PLAIN_VALUES[kind]})
            case "enum":
                fields.append({"name": name, "type": {"type": "enum", "name": f"E{number}", "symbols": ["A", "B"]}})
                values[name] = st.sampled_from(["A", "B"])
                names.append(name)
            case "fixed":
                fields.append({"name": name, "type": {"type": "fixed", "name": f"F{number}", "size": 3}})
                values[name] = st.binary(min_size=3, max_size=3)
            case "union":
                fields.append({"name": name, "type": ["string", "null", "long"]})
                values[name] = st.none() | _PLAIN_VALUES["string"] | _PLAIN_VALUES["long"]
    rows = draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=6))
    return record_of(*fields), names, rows


@settings(max_examples=some(900, 9), deadline=None)
@given(fields_and_rows())
def test_columns_that_are_read_in_step_are_what_fastavro_reads(made: tuple[dict[str, Any], list[str], list[Any]]) -> None:
    schema, names, rows = made
    named: dict[str, Any] = {}
    parsed = fastavro.parse_schema(schema, named)
    payloads = [framed(schema, row)[5:] for row in rows]
    read = [fastavro.schemaless_reader(io.BytesIO(payload), parsed, None) for payload in payloads]
    columns = AvroColumns(parsed, named, {(name,): name for name in names}).read(payloads)
    for name in names:
        expected = [row[name] for row in read]  # type: ignore[index,call-overload]
        assert columns.get(name, pa.nulls(len(rows))).to_pylist() == expected, name


@settings(max_examples=some(900, 9), deadline=None)
@given(fields_and_rows(), st.data())
def test_damage_gives_what_fastavro_reads_alone_or_a_reason_and_never_harms_another_record(
    made: tuple[dict[str, Any], list[str], list[Any]], data: st.DataObject
) -> None:
    plain, _, rows = made
    schema = {**plain, "fields": [AT, *plain["fields"]]}
    good = [framed(schema, {"at": place, **row}) for place, row in enumerate(rows)]
    odd = data.draw(st.integers(0, len(good) - 1))
    value = bytearray(good[odd])
    match data.draw(st.sampled_from(["cut", "more", "flip", "noise"])):
        case "cut":
            del value[data.draw(st.integers(5, len(value))) :]
        case "more":
            value += data.draw(st.binary(max_size=12))
        case "flip":
            value[data.draw(st.integers(5, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        case "noise":
            value[5:] = data.draw(st.binary(max_size=30))
    records: list[bytes | None] = [*good[:odd], bytes(value), *good[odd + 1 :]]
    shape = RecordShape.of(Stream.model_validate({"format": "avro", "time": "at", "time_unit": "us", "schema": {"at": "int"}}))
    book = book_of({7: schema})
    together = book.read(shape, records)
    alone = [book.read(shape, [record]) for record in records]
    assert together.reasons == {place: rows.reasons[0] for place, rows in enumerate(alone) if rows.reasons}
    assert together.times.tolist() == [time for rows in alone for time in rows.times.tolist()]
    assert [place for place in together.places.tolist() if place != odd] == [at for at in range(len(good)) if at != odd]


def test_times_dates_decimals_and_paths_are_columns() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}
    item = {"type": "record", "name": "Item", "fields": [{"name": "price", "type": ["null", price]}]}
    schema = record_of(
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "items", "type": {"type": "array", "items": item}},
        {"name": "more", "type": {"type": "map", "values": "long"}},
        {"name": "next", "type": ["null", "Item"]},
    )
    places = {
        "at": "timestamp", "day": "date", "price": {"type": "decimal(20, 3)", "path": "items[1].price"},
        "other": {"type": "decimal(20, 3)", "path": "next.price"},
    }  # fmt: skip
    row: dict[str, Any] = {"at": 1_234_567, "day": None, "items": [], "more": {"a": 1}, "next": None}
    prices = [Decimal("-0.001"), Decimal("99999999999999999.999"), None, Decimal(0)]
    rows = [{**row, "items": [{"price": None}, {"price": price}], "day": 3, "next": {"price": price}} for price in prices]
    records: list[bytes | None] = [framed(schema, each) for each in (*rows, row)]
    expected = [*((price, price) for price in prices), (None, None)]
    for more in ({}, {"key": {"type": "int", "path": "more.a"}}):  # a column in a map is not read in step
        got = book_of({7: schema}).read(shape_of(schema={**places, **more}), records)
        assert not got.reasons and got.times.tolist() == [1_234_567] * 5
        assert list(zip(got.values[2].to_pylist(), got.values[3].to_pylist(), strict=True)) == expected
        assert [str(day) for day in got.values[1].to_pylist()] == ["1970-01-04"] * 4 + ["None"]
        if more:
            assert got.values[4].to_pylist() == [1] * 5


def test_times_and_dates_that_no_calendar_has_are_refused() -> None:
    for unit in ("millis", "micros", "nanos"):
        at = {"name": "at", "type": {"type": "long", "logicalType": f"timestamp-{unit}"}}
        day = {"name": "n", "type": {"type": "int", "logicalType": "date"}}
        schema = record_of(at, day)
        rows = [{"at": 1, "n": 1}, {"at": 1 << 62, "n": 1}, {"at": 1, "n": (1 << 31) - 1}]
        found = book_of({7: schema}).read(shape_of(schema={"n": "date"}), [framed(schema, row) for row in rows])
        reasons = {2: f"column n: {(1 << 31) - 1} is not a date"}
        if unit != "nanos":  # that is in the year 2116
            reasons[1] = f"column at: {1 << 62} is not a time"
        assert found.reasons == reasons


def test_records_of_several_schemas_are_rows_in_their_order() -> None:
    added = record_of(AT, {"name": "shop", "type": "string"}, USER, N)
    text = record_of(AT, {"name": "n", "type": "string"}, USER)
    lacks = record_of(AT, USER)
    book = book_of({7: PLAIN, 8: added, 9: text, 10: lacks, 11: {"type": "enum", "name": "E", "symbols": ["A"]}})
    rows = [
        framed(PLAIN, {"at": 1, "n": 1, "user": "a"}),
        framed(added, {"at": 2, "n": None, "user": "b", "shop": "x"}, 8),
        framed(text, {"at": 3, "n": "3", "user": "c"}, 9),
        framed(text, {"at": 4, "n": "many", "user": "d"}, 9),
        framed(lacks, {"at": 5, "user": "e"}, 10),
        b"\0\0\0\0\x0b\0",
        framed(PLAIN, {"at": 7, "n": 7, "user": "g"}),
        framed(PLAIN, {"at": 8, "n": 8, "user": "h"}, 99),
        None,
        b"",
    ]
    found = book.read(shape_of(), rows, unknown={99})
    assert table(found) == [(0, 1000, 1, "a"), (1, 2000, None, "b"), (2, 3000, 3, "c"), (6, 7000, 7, "g")]
    assert found.reasons == {
        3: "column n: 'many' is not an int",
        4: "column n: schema 10 has no field n; with `lacking: nulls` it would be null",
        5: "column at: the record is of the type enum in schema 11, and not an object",
        7: "the schema registry has no schema 99",
        8: "no value",
        9: "has no id of a schema: the first byte must be 0, and four more the id",
    }
    filled = book.read(shape_of(lacking="nulls"), [rows[4]])
    assert table(filled) == [(0, 5000, None, "e")]
    assert book.lacking(rows) == [99] and book.lacking([b"{}", None, b"\0\0\0\0"]) == []
    nothing = book.read(shape_of(), [b"x"])
    assert not len(nothing.times) and nothing.values[0].type == pa.int64()


def test_a_strict_stream_takes_no_other_types() -> None:
    schema = record_of(AT, {"name": "n", "type": "string"}, USER)
    found = book_of({7: schema}).read(shape_of(types="refuse"), [framed(schema, {"at": 1, "n": "1", "user": "a"})])
    assert found.reasons == {0: "column n: is a text in its schema, and a number is wanted"}


NO_BYTE = "schema 7 has an array whose items take no byte"
EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "x", "type": "null"}]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([AT, {"name": "n", "type": "bytes"}, USER], "column n: is of the type bytes in schema 7, and so no plain value"),
        ([AT, {"name": "n", "type": ["int", "string"]}, USER], "column n: is one of several types in schema 7"),
        ([AT, {"name": "n", "type": "Unheard"}, USER], "schema 7 is no Avro schema"),
        ([AT, {"name": "gone", "type": {"type": "array", "items": "null"}}], NO_BYTE),
        ([AT, {"name": "gone", "type": {"type": "map", "values": {"type": "array", "items": {"type": "null"}}}}], NO_BYTE),
        ([AT, {"name": "gone", "type": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}}], NO_BYTE),
        ([AT, {"name": "gone", "type": {"type": "array", "items": EMPTY}}, {"name": "again", "type": "Empty"}], NO_BYTE),
    ],
)
def test_a_schema_that_cannot_serve_says_why(fields: list[dict[str, Any]], reason: str) -> None:
    [found] = book_of({7: record_of(*fields)}).read(shape_of(), [b"\0\0\0\0\7\0\0\0"]).reasons.values()
    assert found.startswith(reason)
    other = book_of({7: "{}"}, kind="JSON").read(shape_of(), [b"\0\0\0\0\7"])
    assert other.reasons == {0: "schema 7 is of the type JSON, and the stream's format is avro"}


def test_references_and_types_that_hold_themselves_are_followed() -> None:
    user = {"type": "record", "name": "shop.User", "fields": [{"name": "name", "type": "string"}]}
    node = {"name": "next", "type": ["null", "R"]}
    schema = record_of(AT, N, {"name": "by", "type": "shop.User"}, node)
    book = SchemaBook("avro")
    book.learn(7, WriterSchema("AVRO", json.dumps(schema), (("user", json.dumps(user)),)))
    shape = shape_of(schema={"n": "int", "user": {"type": "string", "path": "by.name"}})
    row: dict[str, Any] = {"at": 1, "n": 1, "by": {"name": "ada"}, "next": None}
    named: dict[str, Any] = {}
    fastavro.parse_schema(user, named)
    whole = fastavro.parse_schema(schema, named)
    records: list[bytes | None] = []
    for _ in range(5):
        file = io.BytesIO()
        fastavro.schemaless_writer(file, whole, row)
        records.append(b"\0\0\0\0\7" + file.getvalue())
        row = {**row, "next": row}
    found = book.read(shape, records)
    assert [user for *_, user in table(found)] == ["ada"] * 5 and not found.reasons


def test_numbers_that_are_too_long_are_odd() -> None:
    columns = AvroColumns(fastavro.parse_schema(record_of(AT)), {}, {("at",): "at"})
    for payload in (b"\xff" * 9 + b"\x02", b"\xff" * 11, b""):
        with pytest.raises(OddError):
            columns.read([payload])
    assert columns.read([b"\xff" * 9 + b"\x01"])["at"].to_pylist() == [-(1 << 63)]
    schema = record_of(AT, {"name": "n", "type": {"type": "int", "logicalType": "date"}})
    long = b"\0\0\0\0\7\0" + framed(record_of(AT), {"at": 1 << 31})[5:]
    found = book_of({7: schema}).read(shape_of(schema={"n": "date"}), [long])
    assert found.reasons == {0: "column n: is larger than its type in schema 7 allows"}


# Protobuf


def proto(*fields: tuple[str, int, str | None], repeated: Sequence[str] = ()) -> str:
    """A file in base64 with a message `Outer.Click` of these fields: (name, type, name of the type)."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.enum_type.add(name="Kind").value.add(name="UNKNOWN", number=0)
    click = file.message_type.add(name="Outer").nested_type.add(name="Click")
    for number, (name, type_, of) in enumerate(fields, start=1):
        label = kind.LABEL_REPEATED if name in repeated else kind.LABEL_OPTIONAL
        click.field.add(name=name, number=number, type=type_, label=label, type_name=of)
    return b64encode(file.SerializeToString()).decode()


_KIND = descriptor_pb2.FieldDescriptorProto
_AT = ("at", _KIND.TYPE_MESSAGE, ".google.protobuf.Timestamp")
_CLICK = b"\x04\0\0"
"""Two indexes: message 0, and in it message 0."""


def test_protobuf_values_are_columns() -> None:
    schema = proto(
        _AT, ("n", _KIND.TYPE_INT32, None), ("user", _KIND.TYPE_MESSAGE, ".google.protobuf.StringValue"),
        ("kind", _KIND.TYPE_ENUM, ".p.Kind"), ("tags", _KIND.TYPE_STRING, None), repeated=["tags"],
    )  # fmt: skip
    columns = {"n": "int", "user": "string", "kind": "string", "tag": {"type": "string", "path": "tags[1]"}}
    book, shape = book_of({7: schema}, "protobuf", "PROTOBUF"), shape_of("protobuf", schema=columns)
    head = b"\0\0\0\0\7" + _CLICK
    at = b"\x0a\x04\x08\x05\x10\x0a"  # 5 s and 10 ns
    user = wrappers_pb2.StringValue(value="ada").SerializeToString()
    records = [
        head + at + b"\x10\x05" + b"\x1a" + bytes([len(user)]) + user + b"\x2a\1a\x2a\1b",
        head + at + b"\x20\x07",
        head + b"\x10\x05",
        head + at + b"\x10",
        b"\0\0\0\0\7\x04\0",
        b"\0\0\0\0\7\x02\x02",
    ]
    found = book.read(shape, records)
    assert table(found) == [(0, 5_000_000, 5, "ada", "UNKNOWN", "b"), (1, 5_000_000, 0, None, "7", None)]
    assert found.reasons[2] == "column at: no time" and found.reasons[3].startswith("not a p.Outer.Click of schema 7: ")
    assert found.reasons[4] == "the record does not say which message of its schema it is"
    assert found.reasons[5] == "schema 7 has no message 1"


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (("n", _KIND.TYPE_BYTES, None), "column n: is of the type bytes in schema 7, and so no plain value"),
        (("n", _KIND.TYPE_MESSAGE, ".p.Outer.Click"), "column n: is a p.Outer.Click in schema 7, and so no plain value"),
        (("m", _KIND.TYPE_INT32, None), "column n: schema 7 has no field n; with `lacking: nulls` it would be null"),
    ],
)
def test_a_message_that_cannot_serve_says_why(field: tuple[str, int, str | None], reason: str) -> None:
    book = book_of({7: proto(_AT, field)}, "protobuf", "PROTOBUF")
    found = book.read(shape_of("protobuf", schema={"n": "int"}), [b"\0\0\0\0\7" + _CLICK])
    assert found.reasons == {0: reason}
    text = book_of({7: 'syntax = "proto3";'}, "protobuf", "PROTOBUF").read(shape_of("protobuf"), [b"\0\0\0\0\7\0"])
    assert text.reasons == {0: "schema 7 is neither a Protobuf descriptor nor a text that protoc compiles"}


@given(st.binary(max_size=8))
@example(b"\0")
@example(b"\x02\x80")
def test_any_bytes_are_a_place_or_none(place: bytes) -> None:
    found = message_path(place)
    assert found is None or math.prod(map(len, [found])) >= 0
