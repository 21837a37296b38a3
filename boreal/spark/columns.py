"""Records of results as Arrow batches with the columns of a Spark schema; and that schema, from the first rows.

Pure.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from boreal.model.errors import UserError

TIMES = ("time", "window_start", "window_end")
"""The columns of a row that are always moments. No other column of a query has one of these names."""

FACTS: dict[str, dict[str, DataType]] = {
    "stable": {},
    "latest": {"_key": StringType(), "_tentative": BooleanType(), "_deleted": BooleanType()},
    "changes": {
        "_type": StringType(),
        "_seq": LongType(),
        "_after_seq": LongType(),
        "_id": LongType(),
        "_key": StringType(),
        "_event_time": TimestampType(),
        "_through": TimestampType(),
        "_tentative": BooleanType(),
        "_missing_inputs": ArrayType(StringType()),
        "_cause": StringType(),
    },
}
"""The columns of each view beside those of the rows. Those of changes are the fields of a record of q.out, but for:

_id: the number of a stable row in the output. _key: the key of the record, as JSON text.
_tentative: whether the row, or the boundary, may yet be taken back. _deleted: the key has no row any more.
"""

_ARROW: dict[DataType, pa.DataType] = {
    StringType(): pa.string(),
    LongType(): pa.int64(),
    DoubleType(): pa.float64(),
    BooleanType(): pa.bool_(),
    TimestampType(): pa.timestamp("us", tz="UTC"),
    DateType(): pa.date32(),
    ArrayType(StringType()): pa.list_(pa.string()),
}
_BATCH_BYTES = 8 << 20
_OF_RECORD = ("_type", "_seq", "_after_seq", "_event_time", "_through", "_missing_inputs", "_cause", "_tentative")
"""The facts that are fields of the record itself, without the underscore."""


def schema_of(view: str, rows: Iterable[dict[str, Any]]) -> StructType:
    """The schema of a view, by some of its rows; nullable throughout. A column without any value is taken for text."""
    columns = pa.Table.from_pylist([*rows]).schema
    fields = {field.name: TimestampType() if field.name in TIMES else _spark_type(field.type) for field in columns}
    return StructType([StructField(name, kind) for name, kind in {**fields, **FACTS[view]}.items()])


def check_schema(view: str, schema: StructType) -> None:
    """Refuse a type that no result has, before anything is read."""
    for field in schema.fields:
        expected = FACTS[view].get(field.name)
        if _arrow_of(field.dataType) is None or (expected is not None and field.dataType != expected):
            choices = expected.simpleString() if expected else "string, bigint, double, boolean, timestamp, date, decimal(p,s)"
            raise UserError(f"schema.{field.name}", field.dataType.simpleString(), "is not a type of it", f"write {choices}")


def batches_of(view: str, schema: StructType, records: Iterable[Any], is_row: bool) -> Iterator[pa.RecordBatch]:
    """The records, in Kafka's shape, in their order. is_row: a value is the row itself, as in q.stable, or null."""
    for piece in _pieces(records):
        yield _batch(view, schema, piece, is_row)


def _pieces(records: Iterable[Any]) -> Iterator[list[Any]]:
    piece: list[Any] = []
    size = 0
    for record in records:
        piece.append(record)
        size += len(record.value or b"") + 100
        if size >= _BATCH_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _batch(view: str, schema: StructType, records: list[Any], is_row: bool) -> pa.RecordBatch:
    facts = FACTS[view]
    kinds = {field.name: _arrow_of(field.dataType) for field in schema.fields if field.name not in facts}
    # Arrow's parser reads dates from numbers only.
    row = pa.schema([(name, pa.string() if kind == pa.date32() else kind) for name, kind in kinds.items()])
    if is_row:
        table = _parsed(records, row)
        held: dict[str, Any] = {name: table[name] for name in row.names}
    else:
        own = [(name[1:], _ARROW[kind]) for name, kind in FACTS["changes"].items() if name in _OF_RECORD]
        table = _parsed(records, pa.schema([*own, ("data", pa.struct(list(row)))]))
        data = table["data"].combine_chunks()
        held = {f"_{name}": table[name] for name, _ in own} | {name: pc.struct_field(data, name) for name in row.names}
        is_tentative_row = pc.equal(table["type"], "tentative")
        held["_tentative"] = pc.if_else(pc.equal(table["type"], "boundary"), table["tentative"], is_tentative_row)
    held |= {name: _dates(held[name]) for name, kind in kinds.items() if kind == pa.date32()}
    if "_deleted" in facts:
        held["_deleted"] = pa.array([record.value is None for record in records])
    if is_row and "_tentative" in facts:
        held["_tentative"] = pa.array([_number(record, "tentative") == 1 for record in records])
    if "_key" in facts:
        held["_key"] = pa.array([record.key.decode() if record.key else None for record in records], pa.string())
    if "_id" in facts:
        held["_id"] = pa.array([_number(record, "id") for record in records], pa.int64())
    return pa.RecordBatch.from_arrays([_whole(held[name]) for name in schema.names], names=schema.names)


def _parsed(records: list[Any], expected: pa.Schema) -> pa.Table:
    """A row for each record, with all expected columns. A record without a value is a row of nulls."""
    lines = io.BytesIO(b"\n".join(record.value or b"{}" for record in records))
    options = pa_json.ParseOptions(explicit_schema=expected, unexpected_field_behavior="ignore")
    in_one_block = pa_json.ReadOptions(use_threads=False, block_size=lines.getbuffer().nbytes + 1)
    try:
        return pa_json.read_json(lines, in_one_block, options)
    except pa.ArrowInvalid as error:
        raise _unfit(error) from None


def _dates(texts: Any) -> Any:
    try:
        return texts.cast(pa.date32())
    except pa.ArrowInvalid as error:
        raise _unfit(error) from None


def _unfit(error: pa.ArrowInvalid) -> UserError:
    return UserError("schema", None, f"does not fit the rows ({error})", "leave it out, or correct it")


def _whole(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _number(record: Any, header: str) -> int | None:
    found = dict(record.headers).get(header)
    return None if found is None else int(found)


def latest_of(records: Iterable[Any]) -> list[Any]:
    """The newest record of each key, of records of q.out: what is stable, and over it what is tentative."""
    stable: dict[bytes | None, Any] = {}
    tentative: dict[bytes | None, Any] = {}
    for record in records:
        match json.loads(record.value)["type"]:
            case "stable":
                stable[record.key] = record
            case "tentative":
                tentative[record.key] = record
            case "undo":
                tentative.clear()
    return [*({**stable, **tentative}).values()]


def _arrow_of(kind: DataType) -> pa.DataType | None:
    return pa.decimal128(kind.precision, kind.scale) if isinstance(kind, DecimalType) else _ARROW.get(kind)


def _spark_type(kind: pa.DataType) -> DataType:
    return next((spark for spark, arrow in _ARROW.items() if arrow == kind), StringType())
