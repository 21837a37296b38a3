"""Rows of results in Avro, Protobuf and JSON with a schema are what they are in q.stable."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from jsonschema import Draft7Validator

from boreal.model.errors import UserError
from boreal.model.schema import Schema
from boreal.query.planner import plan
from boreal.query.spec import load_query
from formats.json_text import column_texts, encoded, joined, object_parts
from formats.typed_rows import avro_schema, json_schema, protobuf_file, protobuf_message, row_reader

COLUMNS = {
    "s": "string", "n": "int", "v": "double", "b": "bool", "t": "timestamp", "d": "date", "p": "decimal(38, 10)",
}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {
        "s": 'é"\n', "n": (1 << 63) - 1, "v": 5e-324, "b": True, "t": datetime(1, 1, 1, tzinfo=UTC), "d": date(9999, 12, 31),
        "p": Decimal("-1234567890123456789012345678.0000000001"),
    },
    dict.fromkeys(COLUMNS),
    {**dict.fromkeys(COLUMNS), "v": float("nan"), "t": datetime(2013, 1, 1, 0, 0, 0, 1, tzinfo=UTC)},
]  # fmt: skip


def rows(windowed: bool) -> tuple[Schema, list[bytes], list[dict[str, Any]]]:
    """(the schema, rows as q.stable has them, what they are)."""
    schema = Schema.of(dict(COLUMNS), windowed)
    edges = {"window_start": 1_000_000, "window_end": 2_000_000} if windowed else {}
    batch = pa.RecordBatch.from_pylist([{"time": 1_000_000, **edges, **row} for row in ROWS], schema=schema.arrow)
    texts = encoded(joined(object_parts(column_texts(schema, batch))))
    second, next_one = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    first = {"window_start": second, "window_end": next_one} if windowed else {"time": second}
    return schema, texts, [{**first, **row} for row in [*ROWS[:2], {**ROWS[2], "v": None}]]


@pytest.mark.parametrize("windowed", [False, True])
def test_rows_in_avro_are_read_back(windowed: bool) -> None:
    schema, texts, wanted = rows(windowed)
    parsed = fastavro.parse_schema(json.loads(avro_schema("q", schema)))
    read, found = row_reader(schema), []
    for text in texts:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, read(text))
        file.seek(0)
        found.append(fastavro.schemaless_reader(file, parsed, None))
    assert found == wanted


@pytest.mark.parametrize("windowed", [False, True])
def test_rows_in_json_are_what_their_schema_says(windowed: bool) -> None:
    schema, texts, _ = rows(windowed)
    judge = Draft7Validator(json.loads(json_schema("q", schema)), format_checker=Draft7Validator.FORMAT_CHECKER)
    for text in texts:
        row = json.loads(text)
        judge.validate(row)
        edges = {"window_start", "window_end"} if windowed else {"time"}
        assert {name for name in row if judge.is_valid({**row, name: None})} == set(COLUMNS)
        assert edges <= row.keys() and not judge.is_valid({**row, "more": 1}) and not judge.is_valid({**row, "n": "1"})


@pytest.mark.parametrize("windowed", [False, True])
def test_rows_in_protobuf_are_read_back(windowed: bool) -> None:
    schema, texts, wanted = rows(windowed)
    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool.Add(known)
    pool.Add(protobuf_file("q", schema))
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("boreal.q"))
    read = row_reader(schema)
    for text, row in zip(texts, wanted, strict=True):
        message = kind.FromString(protobuf_message(kind, read(text)).SerializeToString())
        for name, value in row.items():
            got = getattr(message, name) if message.HasField(name) else None
            if isinstance(value, datetime):
                assert got is not None
                got = got.ToDatetime(UTC)
            assert got == (str(value) if isinstance(value, Decimal | date) and not isinstance(value, datetime) else value)


def test_a_column_keeps_its_number_through_all_versions_and_no_other_one_gets_it() -> None:
    """Readers find the fields of Protobuf by their numbers, whatever version has written a row."""
    first = Schema.of({"a": "int", "b": "string"})
    second = Schema.of({"c": "int", "b": "string", "a": "string"})
    third = Schema.of({"a": "int", "c": "int", "d": "int"})

    def numbers(schema: Schema, *earlier: Schema) -> dict[str, int]:
        [message] = protobuf_file("q", schema, earlier).message_type
        return {field.name: field.number for field in message.field}

    assert numbers(first) == {"time": 1, "a": 2, "b": 3}
    assert numbers(second, first) == {"time": 1, "c": 4, "b": 3, "a": 5}
    assert numbers(third, first, second) == {"time": 1, "a": 2, "c": 4, "d": 6}


def query(**fields: Any) -> dict[str, Any]:
    return {"name": "q", "streams": {"s": {"time": "at", "schema": {"n": "int"}, "topic": "t"}}, "output": "s", **fields}


def test_records_are_named_by_their_format_and_refused_with_a_fix() -> None:
    made = load_query(query(records="avro"))
    assert made.records is not None and made.records.format == "avro" and load_query(made.dump()) == made
    assert plan(made).records == made.records
    with pytest.raises(UserError, match=r"records\.format.*did you mean avro"):
        load_query(query(records="avor"))
    odd = {"s": {"time": "at", "schema": {"flight-number": "int"}, "topic": "t"}}
    with pytest.raises(UserError, match=r"records\.format.*flight-number.*such as flight_number"):
        plan(load_query(query(records="avro", streams=odd)))
    plan(load_query(query(streams=odd)))
