"""Records in Arrow: each is an IPC stream of one row or more, which are taken or refused together.

A dead letter, a header and an offset are of a record. If some of its rows were taken and others refused, the record could not
be put back without the first ones coming twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from boreal.model.schema import Type
from boreal.query.shapes import Stream
from formats.columns import convert
from formats.record_parsing import (
    JSON_TYPES,
    ParsedRows,
    RawColumns,
    RecordShape,
    columns_in,
    merged,
    read_all,
    read_each,
    shown,
    unknown_beside,
)

MOST_ROWS = 10_000
MOST_BYTES = 1 << 20
"""The most that a record may hold, once its buffers and dictionaries are unpacked: a small one could hold any amount."""
MOST_RECORDS = 32
"""Of a batch, so that a frame of the log has room for its rows."""
_FILE = b"ARROW1"
"""What Arrow's files begin with, and its streams do not."""


class ArrowRecords:
    """How the records of a stream are read."""

    @staticmethod
    def of(stream: Stream) -> ArrowRecords | None:
        """How a stream's records are read; None for a stream of another format."""
        return ArrowRecords() if stream.format == "arrow" else None

    def read(self, shape: RecordShape, records: Sequence[bytes | None], beside: RawColumns | None = None) -> ParsedRows:
        """The rows of records, in their order, and a reason for each record that is refused. Rows of one record have the same
        place. beside: as in `read_records`."""
        given = unknown_beside(shape, len(records)) if beside is None else beside
        reasons: dict[int, str] = {}
        groups: dict[tuple[pa.DataType, ...], list[_Fields]] = {}
        for place, record in enumerate(records):
            try:
                found = _fields(shape, place, record)
            except ValueError as problem:
                reasons[place] = str(problem)
            else:
                groups.setdefault(tuple(field.type for field in found.fields), []).append(found)
        parts = [(np.array([each.place for each in group]), _rows(shape, group, given)) for group in groups.values()]
        return merged(shape, parts, reasons)


@dataclass(frozen=True, slots=True)
class _Fields:
    """A record that is a stream of rows."""

    place: int
    """The record's index."""
    rows: int
    """How many it has."""
    fields: list[pa.Array]
    """Of each of `shape.fields`, its values."""


def _fields(shape: RecordShape, place: int, record: bytes | None) -> _Fields:
    """The rows of a record. ValueError says why it has none."""
    if record is None:
        raise ValueError("no value")
    table = _table(record)
    columns = []
    for name in shape.fields:
        at = table.schema.get_field_index(name)
        if at < 0 and not (shape.fills and name not in table.schema.names):
            column = next(column for column, path in shape.places.items() if path[0] == name)
            how_many = "has no field" if name not in table.schema.names else "has more than one field"
            raise ValueError(f"column {column}: the record {how_many} {name}")
        columns.append(_plain(name, table.column(at)) if at >= 0 else pa.nulls(table.num_rows))
    return _Fields(place, table.num_rows, columns)


def _table(record: bytes) -> pa.Table:
    """The rows of a record. ValueError says why it has none."""
    if record.startswith(_FILE):
        raise ValueError("is a file of Arrow, and an IPC stream is wanted")
    source = pa.BufferReader(record)
    batches: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(source) as stream:
            for batch in stream:
                # What a record claims of its buffers is not true of a damaged one.
                batch.validate(full=True)
                batches.append(batch)
                if (count := sum(each.num_rows for each in batches)) > MOST_ROWS:
                    raise ValueError(f"has {count:,} rows or more, and a record has at most {MOST_ROWS:,}")
            table = pa.Table.from_batches(batches, stream.schema)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"not an Arrow IPC stream: {shown(str(error))}") from None
    if source.tell() < len(record):
        raise ValueError(f"has {len(record) - source.tell()} bytes after the end of its stream")
    if not table.num_rows:
        raise ValueError("has no rows")
    if table.nbytes > MOST_BYTES:
        raise ValueError(f"unpacked, it has {table.nbytes:,} bytes, and a record has at most {MOST_BYTES:,}")
    return table


def _plain(name: str, column: pa.ChunkedArray) -> pa.Array:
    """A field of a record as one array, without a dictionary: each record has its own. ValueError if it would be too large."""
    if pa.types.is_dictionary(column.type):
        if _is_text(column.type.value_type):
            longest = max((pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks), default=0)
            if longest * len(column) > MOST_BYTES:
                raise ValueError(f"field {name}: a text of {longest:,} bytes in its dictionary is too long for its rows")
        column = column.cast(column.type.value_type)
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def _rows(shape: RecordShape, group: Sequence[_Fields], beside: RawColumns) -> ParsedRows:
    """The rows of records whose fields have the same types, with a record's index in the group as their place."""
    sizes = np.array([each.rows for each in group])
    record_of = np.repeat(np.arange(len(group)), sizes)
    try:
        fields = {name: pa.concat_arrays([each.fields[at] for each in group]) for at, name in enumerate(shape.fields)}
        columns = columns_in(shape, fields)
    except pa.ArrowInvalid as error:
        return merged(shape, [], dict.fromkeys(range(len(group)), str(error)))
    if problem := _mistyped(shape, columns):
        return merged(shape, [], dict.fromkeys(range(len(group)), problem))
    places = pa.array(np.array([each.place for each in group])[record_of])
    given = {**columns, **{name: column.take(places) for name, column in beside.items()}}
    rows = read_all(shape, given) or read_each(shape, given)
    refused: dict[int, str] = {}
    first = np.concatenate([[0], np.cumsum(sizes)])
    for row, reason in sorted(rows.reasons.items()):
        record = int(record_of[row])
        number = row - int(first[record]) + 1
        refused.setdefault(record, reason if sizes[record] == 1 else f"row {number}: {reason}")
    return ParsedRows(rows.times, rows.values, record_of[rows.places], {}).without(refused)


def _mistyped(shape: RecordShape, columns: RawColumns) -> str | None:
    """Why no value of a column could be one of the stream's; None if values could."""
    for name, kind in [(shape.time, Type.TIMESTAMP), *shape.schema.columns]:
        found = columns.get(name)
        if found is None or pa.types.is_null(found.type):
            continue
        wanted, given = JSON_TYPES.get(kind), _title(found.type)
        if shape.strict and name in shape.schema.names and wanted and given and given != wanted:
            return f"column {name}: {found.type} is {given}, and {wanted} is wanted"
        if not _can_be(found.type, kind, shape.time_unit):
            article = "an" if kind.value == "int" else "a"
            return f"column {name}: {found.type} cannot be {article} {'time' if name == shape.time else kind.value}"
    return None


def _can_be(given: pa.DataType, kind: Type, time_unit: str) -> bool:
    # As in JSON, a bool is no number, and a time is none of a unit that nobody said.
    if pa.types.is_boolean(given) and kind not in (Type.BOOL, Type.STRING):
        return False
    if pa.types.is_temporal(given) and kind not in (Type.TIMESTAMP, Type.DATE, Type.STRING):
        return False
    if pa.types.is_nested(given) or pa.types.is_binary(given) or pa.types.is_large_binary(given):
        return False
    try:
        convert(pa.nulls(1, given), kind, time_unit)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _title(kind: pa.DataType) -> str:
    """What a strict stream calls values of a type; "" for those that it takes for any column, such as times."""
    if pa.types.is_boolean(kind):
        return "a bool"
    if _is_text(kind):
        return "a text"
    return "a number" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else ""
