"""The tuples of files and of the generator, and the order in which a replay logs them.

The fast path parses whole columns of a file. If a record is not valid (a broken line, a value of the wrong type, a missing or
late time), the file is read again on the exact path, line by line: each line that cannot be used becomes a dead letter with
its number, and all other lines are kept. Both paths read the same values from the same text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from boreal.model.columns import event_times
from boreal.model.errors import UserError
from boreal.model.schema import Schema
from boreal.query.csv_form import Csv
from embedded.generate import PREFIX, generate
from formats.csv_text import row_problem, split_row, with_nulls
from formats.record_parsing import (
    ParsedRows,
    RawColumns,
    RecordShape,
    ahead_reason,
    columns_in,
    json_object,
    json_texts,
    json_types,
    late_reason,
    printable,
    read_all,
    read_each,
    read_json,
    whole,
)

if TYPE_CHECKING:
    from boreal.query.spec import Stream


_ARROW_FILE = b"ARROW1"
"""What a file of Arrow begins with, where it is no stream."""
WITNESSES = 9
"""The number of following rows that decide whether a row far ahead of the earlier ones is credible."""
LEAST_WITNESSES = 2
"""The number of these rows that must contradict it, at least, to reject it."""


@dataclass(frozen=True, slots=True)
class FileDeadLetter:
    """A rejected input record: a line of dlq.jsonl."""

    source: str
    """The name of the stream."""
    line: int
    """The number of the record's first line in the file, from 1; in a file of Parquet or Arrow, the number of the row."""
    reason: str
    """Why the record was rejected."""
    record: str
    """The text of the record."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The contents of a source."""

    name: str
    """The name of the stream."""
    batch: pa.RecordBatch
    """The tuples, in the shape of `Schema.arrow`, by event time and then by their place in the file."""
    rejects: list[FileDeadLetter]
    """The rejected records, by line."""
    clamped: int = 0
    """The number of late tuples whose time was raised (`late: clamp`)."""

    @property
    def times(self) -> np.ndarray:
        """The event times: int64, microseconds since the Unix epoch, ascending."""
        times: np.ndarray = event_times(self.batch)
        return times


def read_source(name: str, stream: Stream, where: str, seed: int = 0) -> SourceRows:
    """Read stream `name` from a .csv, .jsonl, .parquet or .arrow file, or from `generate:RATE,SECONDS[,KEYS]`.

    The batch has the shape of `Schema.arrow`; columns that the schema does not name are ignored. Lateness is judged in
    the order of the file (R29): a tuple that is older than the newest earlier one by more than `disorder` is rejected or, with
    `late: clamp`, moved to the oldest time allowed. A file has no clock to show which tuples are far ahead. Instead, a tuple
    more than `ahead` after the newest earlier one is rejected if most of the following tuples are before it again.
    UserError: the file does not exist, has an unknown type, or lacks a column.
    """
    schema = stream.attributes
    if where.startswith(PREFIX):
        return SourceRows(name, generate(name, schema, where, seed), [])
    # A file has no keys and headers: all columns are fields.
    shape = replace(RecordShape.of(stream), origins={})
    source = _Source(name, Path(where), shape, stream.disorder, stream.ahead, stream.late == "clamp", stream.csv or Csv())
    readers = _READERS.get(source.path.suffix.lower())
    if readers is None:
        raise source.error("is not a .csv, .jsonl, .parquet or .arrow file", "convert the file, or correct the end of its name")
    if not source.path.is_file():
        raise source.error("does not exist", "write the path of a file, or generate:RATE,SECONDS[,KEYS]")
    fast, exact = readers
    columns = fast(source)
    clean = None if columns is None else _all_or_nothing(source, columns)
    return clean or _sift(source, exact(source))


@dataclass(frozen=True, slots=True)
class _Source:
    """A file to read, and the rules of its stream. Times in microseconds of event time."""

    name: str
    path: Path
    shape: RecordShape
    disorder_us: int
    ahead_us: int
    clamps: bool
    csv: Csv

    def error(self, problem: str, fix: str) -> UserError:
        return UserError("--source", f"{self.name}={self.path}", f"{self.path} {problem}", fix)

    def require(self, wanted: list[str], present: list[str]) -> None:
        """UserError for the first column that is wanted and not present."""
        for column in wanted:
            if column not in present:
                fix = f"its columns are {', '.join(present)}; correct the stream or the file"
                raise self.error(f"has no column {column!r}", fix)


@dataclass(slots=True)
class _Records:
    """The records that the exact path could split: raw columns, and the line of each record; and dead letters for the others.

    text(i) is the text of record i in the file.
    """

    columns: RawColumns
    lines: np.ndarray
    text: Callable[[int], str]
    rejects: list[FileDeadLetter] = field(default_factory=list)


# Raw columns into a batch.


def _all_or_nothing(source: _Source, columns: RawColumns) -> SourceRows | None:
    """The rows if all records can be used; else None."""
    rows = read_all(source.shape, columns)
    if rows is None or _ahead(rows.times, source):
        return None
    floors = _newest_so_far(rows.times) - source.disorder_us
    late = rows.times < floors
    if late.any() and not source.clamps:
        return None
    return _source_rows(source, replace(rows, times=np.maximum(rows.times, floors)), [], int(late.sum()))


def _sift(source: _Source, records: _Records) -> SourceRows:
    """The rows that can be used, and a dead letter for each record that cannot."""
    rows = read_each(source.shape, records.columns)
    reasons = dict(rows.reasons)
    if ahead := _ahead(rows.times, source):
        for row, beyond_us in ahead.items():
            reasons[int(rows.places[row])] = ahead_reason(beyond_us, "the rows around it", source.ahead_us)
        rows = rows.take(np.delete(np.arange(len(rows.times)), list(ahead)))
    newest = _newest_so_far(rows.times)
    behind = newest - rows.times
    late = behind > source.disorder_us
    if source.clamps:
        kept = replace(rows, times=np.maximum(rows.times, newest - source.disorder_us))
    else:
        kept = rows.take(np.flatnonzero(~late))
        for place, behind_us in zip(rows.places[late].tolist(), behind[late].tolist(), strict=True):
            reasons[place] = late_reason(behind_us, source.disorder_us)
    letters = [
        FileDeadLetter(source.name, int(records.lines[row]), reason, records.text(row)) for row, reason in reasons.items()
    ]
    rejects = sorted(records.rejects + letters, key=lambda letter: letter.line)
    return _source_rows(source, kept, rejects, int(late.sum()) if source.clamps else 0)


def _source_rows(source: _Source, rows: ParsedRows, rejects: list[FileDeadLetter], clamped: int) -> SourceRows:
    return SourceRows(source.name, _by_time(source.shape.schema, rows), rejects, clamped)


def _newest_so_far(times: np.ndarray) -> np.ndarray:
    # A late tuple is never the newest, so the maximum of all tuples is the maximum of the accepted ones.
    return np.maximum.accumulate(times) if len(times) else times


def _ahead(times: np.ndarray, source: _Source) -> dict[int, int]:
    """The rows that are not credible, each with how far it is ahead of the newest credible row before it, in microseconds. If
    there is none: how far it is ahead of the rows after it.

    A jump ahead can be a quiet night, or a wrong clock. After a night, the rows continue from the new time. After a wrong
    clock, most of the next rows are back by more than `disorder` allows. A single late row is not most of the next rows.
    """
    if not len(times):
        return {}
    jumps = np.diff(np.maximum.accumulate(times)) > source.ahead_us
    back_us = source.disorder_us + source.ahead_us
    if not jumps.any() and not _is_contradicted(times, 0, back_us):
        return {}
    found: dict[int, int] = {}
    newest: int | None = None
    for row, time in enumerate(times.tolist()):
        is_suspect = newest is None or time > newest + source.ahead_us
        if is_suspect and _is_contradicted(times, row, back_us):
            found[row] = time - (newest if newest is not None else int(times[row + 1 : row + 1 + WITNESSES].min()))
        else:
            newest = time if newest is None else max(newest, time)
    return found


def _is_contradicted(times: np.ndarray, row: int, back_us: int) -> bool:
    """Whether most of the following rows, and at least LEAST_WITNESSES, are before this row by more than `back_us`."""
    following = times[row + 1 : row + 1 + WITNESSES]
    back = int((following < times[row] - back_us).sum())
    return back >= LEAST_WITNESSES and back > len(following) - back


def _by_time(schema: Schema, rows: ParsedRows) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays([pa.array(rows.times, pa.int64()), *rows.values], schema=schema.arrow)
    if (rows.times[1:] >= rows.times[:-1]).all():
        return batch
    return batch.take(pa.array(np.argsort(rows.times, kind="stable")))


# CSV.


def _fast_csv(source: _Source) -> RawColumns | None:
    names = source.shape.wanted
    data = source.path.read_bytes()
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            parse_options=pa.csv.ParseOptions(delimiter=source.csv.delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                include_columns=names, column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except (pa.ArrowInvalid, KeyError):
        return None
    # A record of several lines is either quoted correctly or caused by a stray quote. The exact path can distinguish them.
    if table.num_rows + 1 != _count_lines(data):
        return None
    return {name: with_nulls(column, source.csv.nulls) for name, column in whole(table, names).items()}


def _exact_csv(source: _Source) -> _Records:
    lines = _text_lines(source.path)
    if not lines:
        raise source.error("is empty", "its first line must name the columns")
    delimiter = source.csv.delimiter
    header, at = split_row(lines, 0, delimiter)
    if header is None:
        raise source.error("has an unclosed quote in its first line", "its first line must name the columns")
    source.require(source.shape.wanted, header)
    places = {name: header.index(name) for name in source.shape.wanted}
    values: dict[str, list[str]] = {name: [] for name in places}
    spans: list[tuple[int, int]] = []
    rejects: list[FileDeadLetter] = []
    while at < len(lines):
        start = at
        if not lines[start].rstrip("\r\n"):
            at += 1
            continue
        fields, at = split_row(lines, start, delimiter)
        problem = row_problem(fields, len(header))
        if fields is None or problem:
            # A stray quote may have joined the following lines to this one: only this line is rejected.
            at = start + 1
            rejects.append(FileDeadLetter(source.name, at, problem, printable(lines[start])))
            continue
        spans.append((start, at))
        for name, place in places.items():
            values[name].append(fields[place])
    return _Records(
        columns={name: with_nulls(pa.array(texts, pa.string()), source.csv.nulls) for name, texts in values.items()},
        lines=np.array([start + 1 for start, _ in spans], dtype=np.int64),
        text=lambda row: printable("".join(lines[slice(*spans[row])])),
        rejects=rejects,
    )


# JSON lines.


def _fast_jsonl(source: _Source) -> RawColumns | None:
    data = source.path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    table = None
    for kind in json_types(source.shape):
        table = read_json(data, kind)
        if table is not None:
            break
    # Two objects on one line are not two records; and a column of nulls may be missing from the file.
    lines = _count_lines(data)
    if table is None or table.num_rows != lines:
        return None
    columns = columns_in(source.shape, whole(table, source.shape.fields))
    return None if any(column.null_count == lines for column in columns.values()) else columns


def _exact_jsonl(source: _Source) -> _Records:
    lines = _text_lines(source.path)
    values: dict[str, list[str | None]] = {name: [] for name in source.shape.wanted}
    numbers: list[int] = []
    rejects: list[FileDeadLetter] = []
    present: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json_object(line)
            present.update(dict.fromkeys(record))
            texts = json_texts(source.shape, record)
        except ValueError as problem:
            rejects.append(FileDeadLetter(source.name, number, str(problem), printable(line)))
            continue
        numbers.append(number)
        for column, text in zip(values.values(), texts, strict=True):
            column.append(text)
    if present:
        source.require(source.shape.fields, list(present))
    return _Records(
        columns={name: pa.array(column, pa.string()) for name, column in values.items()},
        lines=np.array(numbers, dtype=np.int64),
        text=lambda row: printable(lines[numbers[row] - 1]),
        rejects=rejects,
    )


# Parquet, and Arrow's own files.


def _exact_parquet(source: _Source) -> _Records:
    return _numbered(_parquet_columns(source))


def _exact_arrow(source: _Source) -> _Records:
    return _numbered(_arrow_columns(source))


def _numbered(columns: RawColumns) -> _Records:
    """Rows are numbered from 1, like lines. The text of a record is its columns of the stream, as JSON."""
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return _Records(
        columns=columns,
        lines=np.arange(1, rows.num_rows + 1),
        text=lambda row: json.dumps(rows.slice(row, 1).to_pylist()[0], default=str),
    )


def _parquet_columns(source: _Source) -> RawColumns:
    try:
        with pa.parquet.ParquetFile(source.path) as file:
            source.require(source.shape.fields, file.schema_arrow.names)
            table = file.read(columns=source.shape.fields)
    except pa.ArrowInvalid as error:
        raise source.error(f"is not a Parquet file: {error}", "use a valid Parquet file") from None
    return _columns_of(source, table)


def _arrow_columns(source: _Source) -> RawColumns:
    """Of a file, which pyarrow.feather writes too, or of a stream in a file."""
    try:
        with pa.OSFile(str(source.path)) as data:
            is_file = data.read(len(_ARROW_FILE)) == _ARROW_FILE
            data.seek(0)
            with pa.ipc.open_file(data) if is_file else pa.ipc.open_stream(data) as reader:
                table = reader.read_all()
                # What a damaged file claims of its buffers is not true.
                table.validate(full=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise source.error(f"is not a file of Arrow: {error}", "use a valid file of Arrow") from None
    source.require(source.shape.fields, table.schema.names)
    return _columns_of(source, table.select(source.shape.fields))


def _columns_of(source: _Source, table: pa.Table) -> RawColumns:
    try:
        columns = columns_in(source.shape, whole(table, source.shape.fields))
    except pa.ArrowInvalid as error:
        raise source.error(f"has no place for a column: {error}", "correct the paths of the stream's columns") from None
    for name, column in columns.items():
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            raise source.error(f"has a column {name!r} of type {column.type}", "use a column of plain values")
    return columns


_READERS: dict[str, tuple[Callable[[_Source], RawColumns | None], Callable[[_Source], _Records]]] = {
    ".csv": (_fast_csv, _exact_csv),
    ".jsonl": (_fast_jsonl, _exact_jsonl),
    ".parquet": (_parquet_columns, _exact_parquet),
    ".arrow": (_arrow_columns, _exact_arrow),
}


# Text files.


def _count_lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n"))


def _text_lines(path: Path) -> list[str]:
    """The lines of a file with their line ends. Bytes that are not UTF-8 become lone surrogates, which `is_text` detects."""
    text = path.read_bytes().decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    return list(io.StringIO(text, newline=""))


# The order of a replay.


@dataclass(frozen=True, slots=True)
class Schedule:
    """The event-time order of the rows of all streams. The order of the streams settles ties."""

    times: np.ndarray
    """All event times: int64, microseconds since the Unix epoch, ascending."""
    index: dict[str, np.ndarray]
    """By stream: the place of each row in that order, int64, ascending."""

    def rows_within(self, name: str, count: int) -> int:
        """The number of rows of the stream among the first `count` rows of all streams."""
        return int(np.searchsorted(self.index[name], count, side="left"))

    def rows_before(self, name: str, time: int) -> int:
        """The number of rows of the stream with an event time before `time`."""
        return self.rows_within(name, int(np.searchsorted(self.times, time, side="left")))


def merge_schedule(sources: dict[str, SourceRows]) -> Schedule:
    """The order of the rows of all sources, by (time, stream, row)."""
    times = np.concatenate([np.empty(0, dtype=np.int64), *(source.times for source in sources.values())])
    order = np.argsort(times, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    ends = np.cumsum([len(source.times) for source in sources.values()])
    return Schedule(times[order], dict(zip(sources, np.split(place, ends[:-1]), strict=True)) if sources else {})
