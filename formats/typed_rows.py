"""Rows of results in formats with types: their schemas in Avro, Protobuf and JSON Schema, and their values as serializers take
them.

The columns are the time, or the window's edges, and then the query's own, each of which may be null:

    column          Avro                    Protobuf                        JSON Schema
    string          string                  optional string                 string
    int             long                    optional int64                  integer
    double          double                  optional double                 number
    bool            boolean                 optional bool                   boolean
    timestamp       long, timestamp-micros  google.protobuf.Timestamp       string, date-time
    date            int, date               optional string, ISO 8601       string, date
    decimal(p, s)   bytes, decimal(p, s)    optional string                 string
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from boreal.model.schema import TIME, WINDOW, Schema, Type

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_AVRO: dict[Type, object] = {
    Type.STRING: "string",
    Type.INT: "long",
    Type.DOUBLE: "double",
    Type.BOOL: "boolean",
    Type.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    Type.DATE: {"type": "int", "logicalType": "date"},
}
_JSON: dict[Type, dict[str, str]] = {
    Type.STRING: {"type": "string"},
    Type.INT: {"type": "integer"},
    Type.DOUBLE: {"type": "number"},
    Type.BOOL: {"type": "boolean"},
    Type.TIMESTAMP: {"type": "string", "format": "date-time"},
    Type.DATE: {"type": "string", "format": "date"},
}
_TIMESTAMP_FILE, _TIMESTAMP = "google/protobuf/timestamp.proto", ".google.protobuf.Timestamp"


def columns_of(schema: Schema) -> dict[str, Type]:
    """All columns of a record, in their order."""
    return {**dict.fromkeys(_edges(schema), Type.TIMESTAMP), **schema.types}


def row_reader(schema: Schema) -> Callable[[bytes], dict[str, Any]]:
    """Reads a row of q.stable, with its values as Python has them: times and dates as such, decimals exact."""
    readers = {name: Decimal if kind.is_decimal else _READERS[kind] for name, kind in columns_of(schema).items()}

    def read(row: bytes) -> dict[str, Any]:
        values = json.loads(row)
        return {name: None if values[name] is None else of(values[name]) for name, of in readers.items()}

    return read


def avro_schema(query: str, schema: Schema) -> str:
    """The schema of a query's rows, in JSON."""
    fields: list[dict[str, object]] = []
    for name, kind in columns_of(schema).items():
        if name in _edges(schema):
            fields.append({"name": name, "type": _avro(kind)})
        else:
            fields.append({"name": name, "type": ["null", _avro(kind)], "default": None})
    return json.dumps({"type": "record", "name": query, "namespace": "boreal", "fields": fields})


def json_schema(query: str, schema: Schema) -> str:
    """The schema of a query's rows as q.stable has them, in JSON. It takes no other fields: then registries let columns come,
    since no row of before has them with other values."""
    fields: dict[str, object] = {}
    for name, kind in columns_of(schema).items():
        own = {"type": "string"} if kind.is_decimal else _JSON[kind]
        fields[name] = own if name in _edges(schema) else {"oneOf": [{"type": "null"}, own]}
    draft = "http://json-schema.org/draft-07/schema#"
    return json.dumps(
        {"$schema": draft, "title": query, "type": "object", "properties": fields, "additionalProperties": False}
    )


def field_numbers(schemas: Iterable[Schema]) -> dict[tuple[str, Type], int]:
    """The numbers of Protobuf fields by column and type, from 1. schemas: of all versions of a query, the oldest first. A
    column keeps its number through all of them, and no other one gets it: readers find fields by their numbers."""
    found: dict[tuple[str, Type], int] = {}
    for schema in schemas:
        for column in columns_of(schema).items():
            found.setdefault(column, len(found) + 1)
    return found


def protobuf_file(query: str, schema: Schema, earlier: Iterable[Schema] = ()) -> FileDescriptorProto:
    """The file with the message of a query's rows, as a descriptor. earlier: the schemas of the versions before, the oldest
    first."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    kinds = {Type.INT: Field.TYPE_INT64, Type.DOUBLE: Field.TYPE_DOUBLE, Type.BOOL: Field.TYPE_BOOL}
    file = FileDescriptorProto(name=f"boreal/{query}.proto", package="boreal", syntax="proto3", dependency=[_TIMESTAMP_FILE])
    message = file.message_type.add(name=query)
    numbers = field_numbers((*earlier, schema))
    for name, kind in columns_of(schema).items():
        field = message.field.add(name=name, number=numbers[name, kind], label=Field.LABEL_OPTIONAL)
        if kind is Type.TIMESTAMP:
            field.type, field.type_name = Field.TYPE_MESSAGE, _TIMESTAMP
            continue
        field.type = kinds.get(kind, Field.TYPE_STRING)
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    return file


def protobuf_message(kind: Callable[..., Any], row: Mapping[str, Any]) -> Any:
    """A row of `row_reader` as a message of `protobuf_file`. kind: the class of the message."""
    message = kind()
    for name, value in row.items():
        if isinstance(value, datetime):
            getattr(message, name).FromDatetime(value.replace(tzinfo=None))
        elif value is not None:
            setattr(message, name, str(value) if isinstance(value, Decimal | date) else value)
    return message


def _edges(schema: Schema) -> tuple[str, ...]:
    return WINDOW if schema.windowed else (TIME,)


def _avro(kind: Type) -> object:
    if kind.is_decimal:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.digits, "scale": kind.after}
    return _AVRO[kind]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


_READERS: dict[Type, Callable[[Any], Any]] = {
    Type.STRING: str,
    Type.INT: int,
    Type.DOUBLE: float,
    Type.BOOL: bool,
    Type.TIMESTAMP: _moment,
    Type.DATE: date.fromisoformat,
}
