"""Writers of stable results: to a file, or as JSON lines to stdout. A file appears only when it is complete."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from boreal.model.decimals import decimal_texts
from boreal.model.errors import UserError
from boreal.model.schema import TIME, WINDOW, Schema, Type
from formats.json_text import column_texts, joined, lines, moment_array, object_parts

Write = Callable[[pa.RecordBatch], None]
"""Writes a batch with the schema of the output."""

KINDS = (".parquet", ".csv", ".jsonl")


def check(out: Path | None, force: bool) -> None:
    """UserError if the file has an unknown type, exists and `force` is not set, or is in a directory that does not exist."""
    if out is None:
        return
    if out.suffix.lower() not in KINDS:
        raise UserError("--out", str(out), "has an unknown file type", f"end its name with one of {', '.join(KINDS)}")
    if out.exists() and not force:
        raise UserError("--out", str(out), "already exists", "add --force to replace it, or use another name")
    if not out.absolute().parent.is_dir():
        raise UserError("--out", str(out), "is in a directory that does not exist", "create the directory, or use another one")


@contextmanager
def writing(out: Path | None, schema: Schema) -> Iterator[Write]:
    """A context that gives a writer to the file `out`, or to stdout for None. The file gets its name when the context ends."""
    if out is None:
        yield lambda batch: print(json_lines(schema, batch), end="")
        sys.stdout.flush()
        return
    partial = out.with_name(f".{out.name}.partial")
    try:
        with _WRITERS[out.suffix.lower()](partial, schema) as write:
            yield write
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def json_lines(schema: Schema, batch: pa.RecordBatch) -> str:
    """The rows as lines of JSON, in the format of stable.jsonl."""
    return lines(joined(object_parts(column_texts(schema, batch))))


@contextmanager
def _json(path: Path, schema: Schema) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        yield lambda batch: print(json_lines(schema, batch), end="", file=file)


@contextmanager
def _csv(path: Path, schema: Schema) -> Iterator[Write]:
    texts_of = {name: _csv_texts(kind) for name, kind in _kinds(schema).items() if kind is Type.TIMESTAMP or kind.is_decimal}

    def as_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, texts in texts_of.items():
            batch = batch.set_column(batch.schema.get_field_index(name), name, texts(batch.column(name)))
        return batch

    empty = as_texts(_client_columns(schema, schema.empty()))
    with pyarrow.csv.CSVWriter(path, empty.schema) as file:
        yield lambda batch: file.write(as_texts(_client_columns(schema, batch)))


def _csv_texts(kind: Type) -> Callable[[pa.Array], pa.Array]:
    return decimal_texts if kind.is_decimal else lambda column: moment_array(column.cast(pa.int64()))


@contextmanager
def _parquet(path: Path, schema: Schema) -> Iterator[Write]:
    with pyarrow.parquet.ParquetWriter(path, _client_columns(schema, schema.empty()).schema) as file:
        yield lambda batch: file.write_batch(_client_columns(schema, batch))


_WRITERS = {".jsonl": _json, ".csv": _csv, ".parquet": _parquet}


def _kinds(schema: Schema) -> dict[str, Type]:
    """The columns of the output for clients, in the order of `column_texts`."""
    return {**dict.fromkeys(WINDOW if schema.windowed else (TIME,), Type.TIMESTAMP), **schema.types}


def _client_columns(schema: Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    kinds = _kinds(schema)
    columns = [batch.column(name).cast(kind.arrow) for name, kind in kinds.items()]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([(name, kind.arrow) for name, kind in kinds.items()]))
