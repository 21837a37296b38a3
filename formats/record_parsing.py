"""Parses input records into tuples of a stream. Files and topics share these rules.

Takes raw columns, returns times and values. The fast path accepts all rows or none. The exact path goes row by row, and
gives the reason for each row that is rejected. Also parses JSON objects into raw columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.json

from boreal.model.durations import format_duration
from boreal.model.schema import Schema, Type
from formats.columns import convert, convert_each

LONGEST_SHOWN = 200
"""Maximum length of a value in a reason, in characters."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """The columns that a stream requires of its records."""

    time: str
    """Name of the column that holds the event time."""
    time_unit: str
    """Unit of integer times: 's', 'ms', 'us' or 'ns'."""
    schema: Schema
    """The attributes."""

    @property
    def wanted(self) -> list[str]:
        """Names of the required columns: the time (which may be an attribute too), then the attributes."""
        return list(dict.fromkeys((self.time, *self.schema.names)))


RawColumns = Mapping[str, pa.Array]
"""Raw columns by name, one for each of `RecordShape.wanted`."""


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """The accepted rows of some records, and why the other records were rejected."""

    times: np.ndarray
    """int64, one per row: event time in us."""
    values: list[pa.Array]
    """One array per attribute, in the schema's order."""
    places: np.ndarray
    """int64, one per row: index of the record that the row came from."""
    reasons: dict[int, str]
    """Why each other record was rejected, by its index."""

    def take(self, kept: np.ndarray) -> ParsedRows:
        """Only the rows with these indices (int64); `reasons` stay the same."""
        chosen = pa.array(kept)
        return ParsedRows(self.times[kept], [column.take(chosen) for column in self.values], self.places[kept], self.reasons)


def read_all(shape: RecordShape, columns: RawColumns) -> ParsedRows | None:
    """The rows, if every record can be parsed; otherwise None."""
    try:
        moments = convert(columns[shape.time], Type.TIMESTAMP, shape.time_unit)
        values = [convert(columns[name], kind, shape.time_unit) for name, kind in shape.schema.columns]
    except pa.ArrowInvalid:
        return None
    if moments.null_count:
        return None
    return ParsedRows(moments.cast(pa.int64()).to_numpy(), values, np.arange(len(moments)), {})


def read_each(shape: RecordShape, columns: RawColumns) -> ParsedRows:
    """The rows that can be parsed, and a reason for each record that cannot."""
    reasons: dict[int, str] = {}
    moments, bad = convert_each(columns[shape.time], Type.TIMESTAMP, shape.time_unit)
    _note_bad(reasons, shape.time, "time", columns[shape.time], bad)
    for row in np.flatnonzero(moments.is_null().to_numpy(zero_copy_only=False) & ~bad):
        reasons[int(row)] = f"column {shape.time}: no time"
    values = []
    for name, kind in shape.schema.columns:
        column, bad = convert_each(columns[name], kind, shape.time_unit)
        _note_bad(reasons, name, kind.value, columns[name], bad)
        values.append(column)
    usable = np.ones(len(moments), dtype=bool)
    usable[list(reasons)] = False
    places = np.flatnonzero(usable)
    kept = pa.array(places)
    times = moments.take(kept).cast(pa.int64()).to_numpy()
    return ParsedRows(times, [column.take(kept) for column in values], places, reasons)


def late_reason(behind_us: int, disorder_us: int) -> str:
    """The reason for a row that is older than the disorder allows. behind_us: how much older than the newest before it."""
    return f"late by {format_duration(behind_us)}, disorder allows {format_duration(disorder_us)}"


def ahead_reason(beyond_us: int, what: str, ahead_us: int) -> str:
    """The reason for a row whose time is too far in the future. beyond_us: how far beyond `what`."""
    beyond_ms = beyond_us // 1_000
    return f"{format_duration(beyond_ms * 1_000)} ahead of {what}, ahead allows {format_duration(ahead_us)}"


def _note_bad(reasons: dict[int, str], name: str, kind: str, raw: pa.Array, bad: np.ndarray) -> None:
    for row in np.flatnonzero(bad).tolist():
        article = "an" if kind == "int" else "a"
        reasons.setdefault(row, f"column {name}: {shown(raw[row].as_py())} is not {article} {kind}")


def shown(value: object) -> str:
    """A value as it appears in a reason: cut to LONGEST_SHOWN characters, so that dead letters stay small enough for Kafka."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


# JSON objects.


def read_records(shape: RecordShape, records: Sequence[bytes | None]) -> ParsedRows:
    """Parses records that should hold one JSON object each; a reason for each record that cannot be parsed."""
    present = [record for record in records if record is not None]
    columns = fast_json(shape, present) if len(present) == len(records) else None
    rows = read_all(shape, columns) if columns is not None else None
    if rows is not None:
        return rows
    texts, broken = exact_json(shape, records)
    rows = read_each(shape, texts)
    rows.reasons.update(broken)
    return rows


def json_kinds(shape: RecordShape) -> Iterator[dict[str, pa.DataType]]:
    """The expected types of JSON values: times are all texts, or all numbers."""
    for moment in (pa.string(), pa.int64()):
        kinds = {name: moment if kind is Type.TIMESTAMP else kind.arrow for name, kind in shape.schema.columns}
        yield {**kinds, shape.time: moment}


def read_json(data: bytes, kinds: Mapping[str, pa.DataType], block_size: int | None = None) -> pa.Table | None:
    """The JSON objects in a text as a table; None if a value has another type, or the text is not JSON."""
    parse = pa.json.ParseOptions(explicit_schema=pa.schema(list(kinds.items())), unexpected_field_behavior="ignore")
    read = pa.json.ReadOptions(use_threads=block_size is None, block_size=block_size)
    try:
        return pa.json.read_json(pa.BufferReader(data), read, parse)
    except pa.ArrowInvalid:
        return None


_WRAPPER = "record"
_BEFORE = b'{"record":'
_BETWEEN = b'}\n{"record":'
_AFTER = b"}"


def fast_json(shape: RecordShape, records: Sequence[bytes]) -> RawColumns | None:
    """The wanted columns of records that hold one JSON object each; None if the records need `exact_json`.

    Each record is wrapped in another object on a separate line. An incomplete record makes the parser fail, because the brace
    at the beginning of the next line is not allowed inside an object; so a record cannot absorb its neighbour. Each record has
    exactly one closing brace, at its end; so none holds more than one object. Therefore row i is record i.
    """
    if not records:
        return None
    data = _BEFORE + _BETWEEN.join(records) + _AFTER
    if data.count(b"}") != 2 * len(records) or not all(record.endswith(b"}") for record in records) or not _is_utf8(data):
        return None
    for kinds in json_kinds(shape):
        table = read_json(data, {_WRAPPER: pa.struct(list(kinds.items()))}, block_size=len(data) + 1)
        if table is not None:
            break
    if table is None or table.num_rows != len(records):
        return None
    rows = whole(table, [_WRAPPER])[_WRAPPER]
    if rows.null_count:
        return None
    return dict(zip(kinds, rows.flatten(), strict=True))


def exact_json(shape: RecordShape, records: Sequence[bytes | None]) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """The wanted columns, as texts, of the records that hold a JSON object, and a reason for each other record, by index.

    A rejected record has a row of nulls, so that row i is record i.
    """
    columns: dict[str, list[str | None]] = {name: [] for name in shape.wanted}
    reasons: dict[int, str] = {}
    nothing: list[str | None] = [None] * len(columns)
    for place, record in enumerate(records):
        texts = nothing
        try:
            if record is None:
                raise ValueError("no value")
            texts = json_texts(shape, json_object(record.decode("utf-8", "surrogateescape")))
        except ValueError as problem:
            reasons[place] = str(problem)
        for column, text in zip(columns.values(), texts, strict=True):
            column.append(text)
    return {name: pa.array(texts, pa.string()) for name, texts in columns.items()}, reasons


def json_object(line: str) -> dict[str, object]:
    """The JSON object of a line, with numbers as texts. ValueError says why the line holds none."""
    if not is_text(line):
        raise ValueError("not UTF-8")
    try:
        record = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def json_texts(shape: RecordShape, record: Mapping[str, object]) -> list[str | None]:
    """The wanted values of an object as texts. ValueError names the first that is an object, a list or not UTF-8."""
    return [_json_text(name, record.get(name)) for name in shape.wanted]


def _json_text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and is_text(value):
        return value
    raise ValueError(f"column {name}: {shown(value)} is not a plain value")


# Text and columns.


def is_text(text: str) -> bool:
    """Whether a text holds no lone surrogates, which stand for bytes that are not UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """The text with lone surrogates escaped, without its end of line."""
    return text.rstrip("\r\n").encode("utf-8", "backslashreplace").decode()


def whole(table: pa.Table, names: list[str]) -> dict[str, pa.Array]:
    """The table's columns by name, each as one array."""
    columns = {}
    for name in names:
        column = table.column(name).combine_chunks()
        columns[name] = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
    return columns


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
