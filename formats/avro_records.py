"""Avro records to columns, by their writer's schema.

The payloads of a batch are read in step (`formats.avro_columns`). Where one is odd, the batch is read in parts, and the last of
them one by one, by fastavro. So are all where the schema needs it, or has a column in a map.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from boreal.query.columns import Path, path_text
from formats.avro_columns import AvroColumns, OddError
from formats.nested import value_at
from formats.record_parsing import PARTS, PIECE, RawColumns, RecordShape, shown
from formats.writer_schema import Decode, SchemaProblem, WriterSchema, lacking, refuse_other_kind

_LOGICAL = "boreal.logicalType"
"""The name that `logicalType` gets: values stay as they are written, and columns are converted as a whole."""
_ADDRESS = re.compile(r" from <[^>]* at 0x[0-9a-f]+>")
_WIDE = Context(prec=80)
_LONGEST_DECIMAL = 31
"""In bytes: what 76 digits suffice for."""


def avro_decode(schema: WriterSchema, shape: RecordShape, owner: str) -> Decode:
    """How records of a schema become a stream's columns. SchemaProblem if they cannot."""
    parsed, named = _parse(schema, owner)
    read: dict[str, tuple[Path, _Leaf] | None] = {}
    for name, path in shape.places.items():
        found = _schema_at(parsed, named, path, name, owner, shape)
        read[name] = None if found is None else (path, _leaf_of(found, name, owner, shape))
    return _AvroRecords(parsed, named, read, owner).decode


def _parse(schema: WriterSchema, owner: str) -> tuple[Any, dict[str, Any]]:
    named: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            fastavro.parse_schema(_renamed(json.loads(text)), named)
        parsed = fastavro.parse_schema(_renamed(json.loads(schema.text)), named)
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
        raise SchemaProblem(f"{owner} is no Avro schema: {shown(str(error))}") from None
    if any(_has_unbounded_array(each, named) for each in (parsed, *named.values())):
        problem = "has an array whose items take no byte, of which a damaged record could give more than fit into memory"
        raise SchemaProblem(f"{owner} {problem}")
    return parsed, named


def _has_unbounded_array(schema: Any, named: dict[str, Any]) -> bool:
    """Whether a schema has an array whose items take no byte: nothing in a record bounds their number."""
    if isinstance(schema, list):
        return any(_has_unbounded_array(each, named) for each in schema)
    if not isinstance(schema, dict):
        return False
    if schema["type"] == "array" and _takes_no_byte(schema["items"], named):
        return True
    inner = (schema.get("items"), schema.get("values"), schema["type"], *(each["type"] for each in schema.get("fields", ())))
    return any(_has_unbounded_array(each, named) for each in inner)


def _takes_no_byte(schema: Any, named: dict[str, Any], within: tuple[str, ...] = ()) -> bool:
    """Whether each value of a schema is encoded as nothing. within: the records whose fields these are; a record that holds
    itself has no value."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if not isinstance(schema, dict):
        return bool(schema == "null")
    match schema["type"]:
        case "fixed":
            return bool(schema["size"] == 0)
        case "record" if schema["name"] in within:
            return False
        case "record":
            return all(_takes_no_byte(each["type"], named, (*within, schema["name"])) for each in schema["fields"])
        case kind:
            return bool(kind == "null")


def _renamed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_renamed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        _LOGICAL if key == "logicalType" else key: value if key in ("default", "symbols", "doc") else _renamed(value)
        for key, value in schema.items()
    }


# Schemas


def _schema_at(schema: Any, named: Mapping[str, Any], path: Path, name: str, owner: str, shape: RecordShape) -> Any | None:
    """The schema of what is at a path; None if there is no such field."""
    found = _resolved(schema, named, name, owner)
    for at, step in enumerate(path):
        kind = found.get("type") if isinstance(found, dict) else found
        if isinstance(step, str) and kind in ("record", "error"):
            inner = next((field["type"] for field in found["fields"] if field["name"] == step), None)
            if inner is None:
                lacking(shape, name, path_text(path[: at + 1]), owner)
                return None
        elif isinstance(step, str) and kind == "map":
            inner = found["values"]
        elif isinstance(step, int) and kind == "array":
            inner = found["items"]
        else:
            wanted = "an object" if isinstance(step, str) else "an array"
            of = path_text(path[:at]) if at else "the record"
            raise SchemaProblem(f"{of} is of the type {kind} in {owner}, and not {wanted}", name)
        found = _resolved(inner, named, name, owner)
    return found


def _resolved(schema: Any, named: Mapping[str, Any], name: str, owner: str) -> Any:
    """A schema without its name's detour, and of a union with null the other one."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) > 1:
            raise SchemaProblem(f"is one of several types in {owner}: {shown(json.dumps(others))}", name)
        schema = others[0] if others else "null"
    while isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        return _resolved(schema["type"], named, name, owner)
    return schema


@dataclass(frozen=True, slots=True)
class _Leaf:
    """How the values of a field become a column."""

    plain: pa.DataType
    """The type of the values as they are written; for a decimal, that of the column."""
    final: pa.DataType
    """The type of the column."""

    def holds(self, value: Any) -> bool:
        """Whether the column can hold a value that fastavro has read: a damaged payload may have longer numbers."""
        if value is None or not pa.types.is_int64(self.plain):
            return not isinstance(value, bytes) or len(value) <= _LONGEST_DECIMAL
        bits = 31 if pa.types.is_date(self.final) else 63
        return -(1 << bits) <= int(value) < 1 << bits

    def column(self, values: list[Any]) -> pa.Array:
        """The column of values that fastavro has read."""
        if pa.types.is_decimal(self.plain):
            values = [None if value is None else _decimal(value, self.plain.scale) for value in values]
        return self.cast(pa.array(values, self.plain))

    def cast(self, column: pa.Array) -> pa.Array:
        """The column of values as they are written."""
        if column.type == self.final:
            return column
        return column.cast(pa.int32()).cast(self.final) if pa.types.is_date(self.final) else column.cast(self.final)


def _decimal(value: bytes, scale: int) -> Decimal:
    return Decimal(int.from_bytes(value, signed=True)).scaleb(-scale, _WIDE)


_NUMBERS: dict[str, pa.DataType] = {"int": pa.int64(), "long": pa.int64(), "float": pa.float64(), "double": pa.float64()}
_UNITS = (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
_TIMES = {
    "date": pa.date32(),
    **{f"timestamp-{word}": pa.timestamp(unit, "UTC") for word, unit in _UNITS},
    **{f"local-timestamp-{word}": pa.timestamp(unit) for word, unit in _UNITS},
}


def _leaf_of(schema: Any, name: str, owner: str, shape: RecordShape) -> _Leaf:
    kind = schema["type"] if isinstance(schema, dict) else schema
    logical = schema.get(_LOGICAL) if isinstance(schema, dict) else None
    if kind in ("int", "long") and logical in _TIMES:
        return _Leaf(pa.int64(), _TIMES[logical])
    if kind in _NUMBERS:
        refuse_other_kind(shape, name, "a number")
        return _Leaf(_NUMBERS[kind], _NUMBERS[kind])
    if kind in ("string", "enum"):
        refuse_other_kind(shape, name, "a text")
        return _Leaf(pa.string(), pa.string())
    if kind == "boolean":
        refuse_other_kind(shape, name, "a bool")
        return _Leaf(pa.bool_(), pa.bool_())
    if kind == "null":
        return _Leaf(pa.null(), pa.null())
    if logical == "decimal" and kind in ("bytes", "fixed"):
        refuse_other_kind(shape, name, "a number")
        wide = pa.decimal256(76, int(schema.get("scale", 0)))
        return _Leaf(wide, wide)
    raise SchemaProblem(f"is of the type {kind} in {owner}, and so no plain value", name)


# Records


class _AvroRecords:
    """Records of one schema."""

    def __init__(
        self, schema: Any, named: Mapping[str, Any], read: Mapping[str, tuple[Path, _Leaf] | None], owner: str
    ) -> None:
        """read: of each column, where it is and what its values are; None where the schema lacks it."""
        self._schema = schema
        self._read = read
        self._owner = owner
        wanted = {found[0]: name for name, found in read.items() if found is not None}
        try:
            self._in_step: AvroColumns | None = AvroColumns(schema, named, wanted)
        except OddError:
            self._in_step = None

    def decode(self, payloads: Sequence[bytes]) -> tuple[RawColumns, dict[int, str]]:
        """See `Decode`."""
        if self._in_step is not None:
            try:
                found = self._in_step.read(payloads)
                return {name: self._cast(name, found.get(name), len(payloads)) for name in self._read}, {}
            except OddError:
                pass
        if self._in_step is None or len(payloads) <= PIECE:
            return self._one_by_one(payloads)
        size = max(len(payloads) // PARTS, PIECE)
        parts = [(first, self.decode(payloads[first : first + size])) for first in range(0, len(payloads), size)]
        columns = {name: _joined([part[name] for _, (part, _) in parts]) for name in self._read}
        return columns, {first + at: reason for first, (_, broken) in parts for at, reason in broken.items()}

    def _found(self) -> Iterator[tuple[str, tuple[Path, _Leaf]]]:
        return ((name, found) for name, found in self._read.items() if found is not None)

    def _cast(self, name: str, column: pa.Array | None, count: int) -> pa.Array:
        read = self._read[name]
        return pa.nulls(count) if read is None or column is None else read[1].cast(column)

    def _one_by_one(self, payloads: Sequence[bytes]) -> tuple[RawColumns, dict[int, str]]:
        rows: list[Any] = []
        broken: dict[int, str] = {}
        for place, payload in enumerate(payloads):
            file = BytesIO(payload)
            try:
                row = fastavro.schemaless_reader(file, self._schema, None)
            except Exception as error:  # the library raises what it runs into
                broken[place] = f"not a record of {self._owner}: {_said(error)}"
                continue
            if (left := len(payload) - file.tell()) > 0:
                broken[place] = f"not a record of {self._owner}: {left} bytes are left after its end"
            elif large := [name for name, found in self._found() if not found[1].holds(value_at(row, found[0]))]:
                broken[place] = f"column {large[0]}: is larger than its type in {self._owner} allows"
            else:
                rows.append(row)
        columns: dict[str, pa.Array] = {}
        for name, found in self._read.items():
            if found is None:
                columns[name] = pa.nulls(len(rows))
            else:
                path, leaf = found
                columns[name] = leaf.column([value_at(row, path) for row in rows])
        return columns, broken


def _said(error: Exception) -> str:
    """What an error says, without the address of the object that it may name: a reason follows from the record alone."""
    return f"{type(error).__name__} {shown(_ADDRESS.sub('', str(error)))}"


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Parts of a column, of which some may hold nothing but nulls."""
    kind = next((column.type for column in columns if not pa.types.is_null(column.type)), pa.null())
    return pa.concat_arrays([column.cast(kind) for column in columns])
