"""Stable results written to a file of the user's choice, or as JSON lines to stdout; a file is there whole, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from boreal.model.errors import UserError
from boreal.model.schema import TIME, WINDOW, Schema, Type
from formats.json_text import column_texts, joined, lines, moments, object_parts

Write = Callable[[pa.RecordBatch], None]
"""Takes a batch of the output's schema."""

KINDS = (".parquet", ".csv", ".jsonl")


def check(out: Path | None, force: bool) -> None:
    """UserError where such a file cannot be written."""
    if out is None:
        return
    if out.suffix.lower() not in KINDS:
        raise UserError("--out", str(out), "is of no kind that can be written", f"end its name in {', '.join(KINDS)}")
    if out.exists() and not force:
        raise UserError("--out", str(out), "exists already", "add --force to replace it, or name another")
    if not out.absolute().parent.is_dir():
        raise UserError("--out", str(out), "is in a directory that does not exist", "create it, or name another")


@contextmanager
def writing(out: Path | None, schema: Schema) -> Iterator[Write]:
    """For as long as it holds, results are written; None: to stdout. The file has its name once all are there."""
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
    """As stable.jsonl has them."""
    return lines(joined(object_parts(column_texts(schema, batch))))


@contextmanager
def _json(path: Path, schema: Schema) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        yield lambda batch: print(json_lines(schema, batch), end="", file=file)


@contextmanager
def _csv(path: Path, schema: Schema) -> Iterator[Write]:
    moment_columns = [name for name, kind in _kinds(schema).items() if kind is Type.TIMESTAMP]

    def as_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in moment_columns:
            texts = moments(batch.column(name).cast(pa.int64()))
            batch = batch.set_column(batch.schema.get_field_index(name), name, texts)
        return batch

    empty = as_texts(_client_columns(schema, schema.empty()))
    with pyarrow.csv.CSVWriter(path, empty.schema) as file:
        yield lambda batch: file.write(as_texts(_client_columns(schema, batch)))


@contextmanager
def _parquet(path: Path, schema: Schema) -> Iterator[Write]:
    with pyarrow.parquet.ParquetWriter(path, _client_columns(schema, schema.empty()).schema) as file:
        yield lambda batch: file.write_batch(_client_columns(schema, batch))


_WRITERS = {".jsonl": _json, ".csv": _csv, ".parquet": _parquet}


def _kinds(schema: Schema) -> dict[str, Type]:
    """The columns that a client is given, as `column_texts` has them."""
    return {**dict.fromkeys(WINDOW if schema.windowed else (TIME,), Type.TIMESTAMP), **schema.types}


def _client_columns(schema: Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    kinds = _kinds(schema)
    columns = [batch.column(name).cast(kind.arrow) for name, kind in kinds.items()]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([(name, kind.arrow) for name, kind in kinds.items()]))
