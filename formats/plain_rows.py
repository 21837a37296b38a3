"""Rows of results in CSV and in Arrow, where no registry has their schema. One record is one row.

The columns are the time, or the window's edges, and then the query's own, in the order of the row in q.stable.

    CSV     one line without its end. A text is in quotes, its own quotes doubled; null is nothing at all; times, dates and
            decimals are as in q.stable, without quotes
    Arrow   an IPC stream: a schema, one batch of one row, and the stream's end
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from boreal.model.schema import Schema, Type
from formats.typed_rows import columns_of, row_reader


def csv_writer(schema: Schema) -> Callable[[bytes], bytes]:
    """Writes a row of q.stable as a line of CSV."""
    fields = [(name, _FIELDS.get(kind, str)) for name, kind in columns_of(schema).items()]

    def write(row: bytes) -> bytes:
        values = json.loads(row)
        return ",".join("" if values[name] is None else field(values[name]) for name, field in fields).encode()

    return write


def arrow_schema(schema: Schema) -> pa.Schema:
    """The schema of the rows in Arrow: times in microseconds, in UTC."""
    utc = pa.timestamp("us", "UTC")
    return pa.schema([(name, utc if kind is Type.TIMESTAMP else kind.arrow) for name, kind in columns_of(schema).items()])


def arrow_writer(schema: Schema) -> Callable[[bytes], bytes]:
    """Writes a row of q.stable as an Arrow IPC stream."""
    read, kinds = row_reader(schema), arrow_schema(schema)

    def write(row: bytes) -> bytes:
        values = read(row)
        columns = [pa.array([values[kind.name]], kind.type) for kind in kinds]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, kinds) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=kinds))
        written: bytes = sink.getvalue().to_pybytes()
        return written

    return write


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


_FIELDS: dict[Type, Callable[[Any], str]] = {
    Type.STRING: _quoted,
    Type.BOOL: lambda value: "true" if value else "false",
    Type.DOUBLE: lambda value: repr(float(value)),
}
"""How a value is written that is no text in q.stable, or is to be quoted."""
