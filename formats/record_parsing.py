"""What makes a record a tuple of a stream: the rules that files and topics share.

Raw columns in, times and values out: on a fast path, all of them or nothing; on an exact path, row by row, with the
reason for each that cannot be used. And JSON objects into raw columns.
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
"""Of a value, in characters."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """What a stream wants of its records: the column that holds the time, in which unit, and the attributes."""

    time: str
    time_unit: str
    schema: Schema

    @property
    def wanted(self) -> list[str]:
        """The columns that matter: the time (which the schema may name too), then the schema's."""
        return list(dict.fromkeys((self.time, *self.schema.names)))


RawColumns = Mapping[str, pa.Array]
"""Raw columns, one of each that is wanted."""


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """Rows that can be used. times: int64 microseconds; values: the schema's columns; places: which of the records each
    row was; reasons: why each of the others cannot be used, by its place."""

    times: np.ndarray
    values: list[pa.Array]
    places: np.ndarray
    reasons: dict[int, str]

    def take(self, kept: np.ndarray) -> ParsedRows:
        """Only the rows of these numbers."""
        chosen = pa.array(kept)
        return ParsedRows(self.times[kept], [column.take(chosen) for column in self.values], self.places[kept], self.reasons)


def read_all(shape: RecordShape, columns: RawColumns) -> ParsedRows | None:
    """The rows, if every record can be used; else None."""
    try:
        moments = convert(columns[shape.time], Type.TIMESTAMP, shape.time_unit)
        values = [convert(columns[name], kind, shape.time_unit) for name, kind in shape.schema.columns]
    except pa.ArrowInvalid:
        return None
    if moments.null_count:
        return None
    return ParsedRows(moments.cast(pa.int64()).to_numpy(), values, np.arange(len(moments)), {})


def read_each(shape: RecordShape, columns: RawColumns) -> ParsedRows:
    """The rows that can be used, and a reason for each record that cannot."""
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
    """Why a row is refused that is so much older than the newest before it."""
    return f"late by {format_duration(behind_us)}, disorder allows {format_duration(disorder_us)}"


def ahead_reason(beyond_us: int, what: str, ahead_us: int) -> str:
    """Why a row is not believed whose time is so far beyond all that there is to hold it against."""
    beyond_ms = beyond_us // 1_000
    return f"{format_duration(beyond_ms * 1_000)} ahead of {what}, ahead allows {format_duration(ahead_us)}"


def _note_bad(reasons: dict[int, str], name: str, kind: str, raw: pa.Array, bad: np.ndarray) -> None:
    for row in np.flatnonzero(bad).tolist():
        article = "an" if kind == "int" else "a"
        reasons.setdefault(row, f"column {name}: {shown(raw[row].as_py())} is not {article} {kind}")


def shown(value: object) -> str:
    """A value as a reason names it: no longer than people read, and no dead letter is too large for Kafka because of it."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


# JSON objects.


def read_records(shape: RecordShape, records: Sequence[bytes | None]) -> ParsedRows:
    """The rows of records that should hold one JSON object each, and a reason for each that cannot be used."""
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
    """The types to expect of JSON values: times may be texts or numbers, but all the same."""
    for moment in (pa.string(), pa.int64()):
        kinds = {name: moment if kind is Type.TIMESTAMP else kind.arrow for name, kind in shape.schema.columns}
        yield {**kinds, shape.time: moment}


def read_json(data: bytes, kinds: Mapping[str, pa.DataType], block_size: int | None = None) -> pa.Table | None:
    """The objects in a text, one after the other; None where a value is not of its kind, or the text is not JSON."""
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
    """The wanted columns of records that hold one JSON object each; None where `exact_json` has to look at them.

    Each record is wrapped in an object of its own line. As a line begins with a brace where none may stand but at the
    top, a record that is not whole breaks the reading, and cannot take in its neighbour; and as each has its one closing
    brace at its end, none can hold more than one object. So row i is record i.
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
    """The wanted columns, as texts, of the records that hold a JSON object, and why each of the others does not.

    A record that is not used has a row of nulls, so that row i is record i.
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
    """The line's object, numbers as their text. ValueError says why there is none."""
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
    """The wanted values of an object, as texts. ValueError names the first that is not a plain one."""
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
    """Whether a text holds no lone surrogate: what bytes that are not UTF-8 were read as."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """The text with lone surrogates written out, and no end of line."""
    return text.rstrip("\r\n").encode("utf-8", "backslashreplace").decode()


def whole(table: pa.Table, names: list[str]) -> dict[str, pa.Array]:
    """The table's columns, each in one piece."""
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
