"""Parses input records into tuples of a stream. Files and topics share these rules.

Takes raw columns, returns times and values. The fast path accepts all rows or none. The exact path goes row by row, and
gives the reason for each row that is rejected. Also parses JSON objects into raw columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import methodcaller
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.json

from boreal.model.durations import format_duration
from boreal.model.schema import Schema, Type
from boreal.query.columns import Path
from boreal.query.shapes import Stream
from formats.columns import convert, convert_each
from formats.few_records import FEW_RECORDS, few_column, few_objects, few_times
from formats.nested import column_at, type_holding, value_at

LONGEST_SHOWN = 200
"""Maximum length of a value in a reason, in characters."""
PARTS = 8
PIECE = 128
"""A batch with an odd record is divided into PARTS; so are parts with odd records, down to PIECE records."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """The columns that a stream requires of its records."""

    time: str
    """Name of the column that holds the event time."""
    time_unit: str
    """Unit of integer times: 's', 'ms', 'us' or 'ns'."""
    schema: Schema
    """The attributes."""
    strict: bool = False
    """Whether a JSON value must have its column's type, and is not converted: no number or bool in quotes, no text without."""
    paths: Mapping[str, Path] = field(default_factory=dict)
    """Where the columns are that are not fields of a record under their own names, in formats with nested values."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The columns that are other parts of a Kafka record than its value: which part (`SourceColumn.origin`)."""
    fills: bool = False
    """Whether a column that a record's schema in a registry lacks is null, and the record not refused."""

    @staticmethod
    def of(stream: Stream) -> RecordShape:
        """The shape of a stream's records."""
        strict = stream.types == "refuse"
        fills = stream.lacking == "nulls"
        return RecordShape(stream.time, stream.time_unit, stream.attributes, strict, stream.paths, stream.origins, fills)

    @property
    def wanted(self) -> list[str]:
        """Names of the required columns: the time (which may be an attribute too), then the attributes."""
        return list(dict.fromkeys((self.time, *self.schema.names)))

    @property
    def places(self) -> dict[str, Path]:
        """Where in the value of a record, which may be nested, each required column is that is in it."""
        return {name: self.paths.get(name, (name,)) for name in self.wanted if name not in self.origins}

    @property
    def fields(self) -> list[str]:
        """Names of the fields of such a record that hold the required columns."""
        return list(dict.fromkeys(str(path[0]) for path in self.places.values()))


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
    """int64, one per row, rising: index of the record that the row came from. In most formats a record has one row at most."""
    reasons: dict[int, str]
    """Why each other record was rejected, by its index."""
    coerced: int = 0
    """How many values had another JSON type than their column, and were converted."""

    def without(self, reasons: Mapping[int, str]) -> ParsedRows:
        """The same with these records rejected too."""
        kept = ~np.isin(self.places, list(reasons))
        return replace(self.take(np.flatnonzero(kept)), reasons={**self.reasons, **reasons})

    def take(self, kept: np.ndarray) -> ParsedRows:
        """Only the rows with these indices (int64); `reasons` stay the same."""
        chosen = pa.array(kept)
        values = [column.take(chosen) for column in self.values]
        return replace(self, times=self.times[kept], values=values, places=self.places[kept])


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


def merged(
    shape: RecordShape, parts: Sequence[tuple[np.ndarray, ParsedRows]], reasons: Mapping[int, str]
) -> ParsedRows:
    """The rows of parts as one, in the order of their records. parts: with the place of each of their records."""
    if not parts:
        nothing = np.empty(0, np.int64)
        return ParsedRows(nothing, [pa.nulls(0, kind.arrow) for _, kind in shape.schema.columns], nothing, dict(reasons))
    found = {int(places[at]): reason for places, rows in parts for at, reason in rows.reasons.items()}
    joined = ParsedRows(
        np.concatenate([rows.times for _, rows in parts]),
        [pa.concat_arrays(columns) for columns in zip(*(rows.values for _, rows in parts), strict=True)],
        np.concatenate([places[rows.places] for places, rows in parts]),
        {**reasons, **found},
        sum(rows.coerced for _, rows in parts),
    )
    return joined if len(parts) == 1 else joined.take(np.argsort(joined.places, kind="stable"))


def late_reason(behind_us: int, disorder_us: int) -> str:
    """The reason for a row that is older than the disorder allows. behind_us: how much older than the newest before it."""
    return f"late by {format_duration(behind_us)}, disorder allows {format_duration(disorder_us)}"


def ahead_reason(beyond_us: int, what: str, ahead_us: int) -> str:
    """The reason for a row whose time is too far in the future. beyond_us: how far beyond `what`."""
    beyond_ms = beyond_us // 1_000
    return f"{format_duration(beyond_ms * 1_000)} ahead of {what}, ahead allows {format_duration(ahead_us)}"


LATE, AHEAD, MALFORMED = "late", "ahead", "malformed"
KINDS_OF_REFUSALS = (LATE, AHEAD, MALFORMED)
"""What a record was refused for, where there is no room for its reason."""
_AHEAD = re.compile(r"\S+ ahead of ")


def kind_of_refusal(reason: str) -> str:
    """One of KINDS_OF_REFUSALS. reason: of a dead letter. Those that are neither late nor ahead begin with what is wrong."""
    if reason.startswith("late"):
        return LATE
    return AHEAD if _AHEAD.match(reason) else MALFORMED


def _note_bad(reasons: dict[int, str], name: str, kind: str, raw: pa.Array, bad: np.ndarray) -> None:
    for row in np.flatnonzero(bad).tolist():
        article = "an" if kind == "int" else "a"
        reasons.setdefault(row, f"column {name}: {shown(_value_of(raw[row]))} is not {article} {kind}")


def _value_of(scalar: pa.Scalar) -> object:
    """A value; of a time or a date that Python does not have, its number."""
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return scalar.value


def shown(value: object) -> str:
    """A value as it appears in a reason: cut to LONGEST_SHOWN characters, so that dead letters stay small enough for Kafka."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


# JSON objects.


def read_records(shape: RecordShape, records: Sequence[bytes | None], beside: RawColumns | None = None) -> ParsedRows:
    """Parses records that should hold one JSON object each; a reason for each record that cannot be parsed.

    beside: the columns of `shape.origins`, a row for each record. None if they are not known: all null, and a time in order.
    """
    return read_pieces(shape, records, beside, _read_in_bulk, _read_one_by_one)


InBulk = Callable[[RecordShape, Sequence[bytes | None], RawColumns], ParsedRows | None]
"""The rows of records, if no record is odd; otherwise None."""
OneByOne = Callable[[RecordShape, Sequence[bytes | None], RawColumns], ParsedRows]
"""The rows of any records."""


def read_pieces(
    shape: RecordShape, records: Sequence[bytes | None], beside: RawColumns | None, in_bulk: InBulk, one_by_one: OneByOne
) -> ParsedRows:
    """As `read_records`, for records of a format that is read by these two."""
    given = unknown_beside(shape, len(records)) if beside is None else beside
    rows = in_bulk(shape, records, given)
    if rows is not None:
        return rows
    if len(records) <= PIECE:
        return one_by_one(shape, records, given)
    # An odd record costs its own piece the fast path, and not the whole batch.
    size = max(len(records) // PARTS, PIECE)
    parts = []
    for first in range(0, len(records), size):
        piece = slice(first, first + size)
        near = {name: column[piece] for name, column in given.items()}
        parts.append(read_pieces(shape, records[piece], near, in_bulk, one_by_one))
    return _joined(parts, size)


def unknown_beside(shape: RecordShape, count: int) -> RawColumns:
    """The columns of `shape.origins` where they are not known: all null, and a time in order."""
    nulls = {name: pa.nulls(count, pa.string()) for name in shape.origins}
    return {**nulls, shape.time: pa.array(np.zeros(count, np.int64))} if shape.time in shape.origins else nulls


def _read_in_bulk(shape: RecordShape, records: Sequence[bytes | None], beside: RawColumns) -> ParsedRows | None:
    """The rows, if no record is odd; otherwise None."""
    if None in records:
        return None
    given = cast(Sequence[bytes], records)
    if len(given) <= FEW_RECORDS and (rows := _read_few(shape, given)) is not None:
        return rows
    columns = fast_json(shape, given)
    return read_all(shape, {**columns, **beside}) if columns is not None else None


def _read_few(shape: RecordShape, records: Sequence[bytes]) -> ParsedRows | None:
    """As `_read_in_bulk`, of plain records: of objects whose fields are the columns."""
    if not records or shape.origins or shape.paths:
        return None
    objects = few_objects(records, any(kind is Type.DOUBLE for _, kind in shape.schema.columns))
    if objects is None:
        return None
    times = few_times([each.get(shape.time) for each in objects], shape.time_unit)
    if times is None:
        return None
    values = []
    for name, kind in shape.schema.columns:
        column = few_column([each.get(name) for each in objects], kind, shape.time_unit)
        if column is None:
            return None
        values.append(column)
    return ParsedRows(times, values, np.arange(len(times)), {})


def _read_one_by_one(shape: RecordShape, records: Sequence[bytes | None], beside: RawColumns) -> ParsedRows:
    texts, broken, coerced = exact_json(shape, records)
    rows = read_each(shape, {**texts, **beside}).without(broken)
    return replace(rows, coerced=int(coerced[rows.places].sum()))


def _joined(parts: Sequence[ParsedRows], size: int) -> ParsedRows:
    """The rows of consecutive pieces of `size` records each."""
    reasons = {number * size + place: reason for number, part in enumerate(parts) for place, reason in part.reasons.items()}
    return ParsedRows(
        np.concatenate([part.times for part in parts]),
        [pa.concat_arrays(columns) for columns in zip(*(part.values for part in parts), strict=True)],
        np.concatenate([part.places + number * size for number, part in enumerate(parts)]),
        reasons,
        sum(part.coerced for part in parts),
    )


def json_types(shape: RecordShape, has_numbers: bool = False) -> Iterator[pa.StructType]:
    """The expected types of JSON objects: times are all texts, or all numbers, and so are dates. None if Arrow has no such
    type. has_numbers: whether times are likely to be numbers, which come first then."""
    texts_or_numbers = (pa.string(), pa.int64())
    has_dates = any(kind is Type.DATE for _, kind in shape.schema.columns)
    for day, moment in product(texts_or_numbers if has_dates else (None,), texts_or_numbers[:: -1 if has_numbers else 1]):
        varying = {Type.TIMESTAMP: moment, Type.DATE: day}
        kinds = {name: varying.get(kind) or kind.arrow for name, kind in shape.schema.columns}
        kinds[shape.time] = moment
        found = type_holding({path: kinds[name] for name, path in shape.places.items()})
        if found is not None:
            yield found


def columns_in(shape: RecordShape, fields: Mapping[str, pa.Array]) -> RawColumns:
    """The wanted columns. fields: those of the records that hold them. pa.ArrowInvalid if one is not of a type that can."""
    return {name: column_at(fields[str(path[0])], path[1:]) for name, path in shape.places.items()}


def read_json(data: bytes, kind: pa.StructType, block_size: int | None = None) -> pa.Table | None:
    """The JSON objects in a text as a table; None if a value has another type, or the text is not JSON."""
    parse = pa.json.ParseOptions(explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore")
    read = pa.json.ReadOptions(use_threads=block_size is None, block_size=block_size)
    try:
        return pa.json.read_json(pa.BufferReader(data), read, parse)
    except pa.ArrowInvalid:
        return None


_WRAPPER = "record"
_DEEPEST = 500
"""Records with more brackets are left to `exact_json`, whose parser refuses deep nesting."""


def fast_json(shape: RecordShape, records: Sequence[bytes]) -> RawColumns | None:
    """The wanted columns of records that hold one JSON object each; None if the records need `exact_json`.

    Each record is the member `record` of another object, on a separate line. An incomplete record makes the parser fail, since
    the brace after it closes something else, or is not allowed there; a string cannot go on over the end of a line. So no
    record absorbs its neighbour, and each gives one row at least; as many rows as records means one row each. Therefore row i
    is record i, unless a record ends its own object and adds members to ours: see `_are_single`.
    """
    if not records or _may_be_deep(records):
        return None
    data = _wrapped(records, b'{"record":', b"}")
    if not is_utf8(data):
        return None
    table = None
    for kind in json_types(shape, _has_number(shape, records[0])):
        table = read_json(data, pa.struct([(_WRAPPER, kind)]), block_size=len(data) + 1)
        if table is not None:
            break
    if table is None or table.num_rows != len(records):
        return None
    rows = whole(table, [_WRAPPER])[_WRAPPER]
    if rows.null_count or not _are_single(records, data):
        return None
    return columns_in(shape, dict(zip(kind.names, rows.flatten(), strict=True)))


def _has_number(shape: RecordShape, record: bytes) -> bool:
    """Whether the time of a record is a number: a guess at what the others have, since reading all in vain costs much more."""
    try:
        return isinstance(value_at(json.loads(record), shape.places.get(shape.time, ())), int)
    except (ValueError, TypeError, RecursionError):
        return False


def _are_single(records: Sequence[bytes], data: bytes) -> bool:
    """Whether each of these records is one JSON object, and not such as `{}, "more": {}`. data: the records as members of
    objects, which a parser has read as one row for each record."""
    if data.count(b"}") == 2 * len(records) and all(map(methodcaller("endswith", b"}"), records)):
        return True  # each has one closing brace, at its end
    # Nested objects: each record must be the only item of a list too, since what adds members to an object breaks a list.
    data = _wrapped(records, b'{"record":[', b"]}")
    table = read_json(data, pa.struct([("", pa.null())]), block_size=len(data) + 1)
    return table is not None and table.num_rows == len(records)


def _wrapped(records: Sequence[bytes], before: bytes, after: bytes) -> bytes:
    return before + (after + b"\n" + before).join(records) + after


def _may_be_deep(records: Sequence[bytes]) -> bool:
    return max(map(len, records)) > _DEEPEST and any(
        record.count(b"[") + record.count(b"{") > _DEEPEST for record in records if len(record) > _DEEPEST
    )


def exact_json(
    shape: RecordShape, records: Sequence[bytes | None]
) -> tuple[dict[str, pa.Array], dict[int, str], np.ndarray]:
    """The wanted columns, as texts, of the records that hold a JSON object; a reason for each other record, by index; and how
    many values of each record (int64) have another type than their column: `fast_json` takes no such record.

    A rejected record has a row of nulls, so that row i is record i.
    """
    columns: dict[str, list[str | None]] = {name: [] for name in shape.places}
    reasons: dict[int, str] = {}
    coerced = np.zeros(len(records), np.int64)
    nothing: list[str | None] = [None] * len(columns)
    for place, record in enumerate(records):
        texts = nothing
        try:
            if record is None:
                raise ValueError("no value")
            values = _wanted_values(shape, json_object(record.decode("utf-8", "surrogateescape")))
            texts = _texts_of(values)
            coerced[place] = sum(_mistyped(kind, values.get(name)) is not None for name, kind in shape.schema.columns)
        except ValueError as problem:
            reasons[place] = str(problem)
        for column, text in zip(columns.values(), texts, strict=True):
            column.append(text)
    return {name: pa.array(texts, pa.string()) for name, texts in columns.items()}, reasons, coerced


class _Number(str):
    """The text of a JSON number, which is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def json_object(line: str) -> dict[str, object]:
    """The JSON object of a line, with numbers as texts. ValueError says why the line holds none."""
    if not is_text(line):
        raise ValueError("not UTF-8")
    try:
        record = json.loads(line, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def json_texts(shape: RecordShape, record: Mapping[str, object]) -> list[str | None]:
    """The wanted values of an object as texts. ValueError names the first that is an object, a list or not UTF-8, or is in
    something else than its path says; or, where the stream is strict, of another type than its column."""
    return _texts_of(_wanted_values(shape, record))


def _wanted_values(shape: RecordShape, record: Mapping[str, object]) -> dict[str, object]:
    values = {name: _value_at(name, record, path) for name, path in shape.places.items()}
    if shape.strict:
        for name, kind in shape.schema.columns:
            if (types := _mistyped(kind, values.get(name))) is not None:
                given, wanted = types
                raise ValueError(f"column {name}: {shown(values[name])} is {given}, and {wanted} is wanted")
    return values


def _texts_of(values: Mapping[str, object]) -> list[str | None]:
    return [_json_text(name, value) for name, value in values.items()]


def _value_at(name: str, record: Mapping[str, object], path: Path) -> object:
    try:
        return value_at(record, path)
    except TypeError as error:
        wanted, found = error.args
        raise ValueError(f"column {name}: {shown(found)} is not {wanted}") from None


def _mistyped(kind: Type, value: object) -> tuple[str, str] | None:
    """What a plain value is, and what its column wants, if that is something else. Times may be texts and numbers: both are
    usual."""
    if not isinstance(value, bool | str):
        return None
    given = "a bool" if isinstance(value, bool) else "a number" if isinstance(value, _Number) else "a text"
    wanted = JSON_TYPES.get(kind, given)
    return (given, wanted) if given != wanted else None


JSON_TYPES = {Type.STRING: "a text", Type.INT: "a number", Type.DOUBLE: "a number", Type.BOOL: "a bool"}
"""What a value must be for a column of a strict stream; any value for another type."""


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


def is_utf8(data: bytes) -> bool:
    """Whether bytes are text in UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
