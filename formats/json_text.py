"""JSON texts of Arrow columns, one column at a time: a frame costs a few Arrow calls instead of a loop over its rows. Those of
few rows are made by Python (formats.few_texts), and are lists.

All texts are ASCII. `object_parts` and `joined` combine them into rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.columns import int64_values
from boreal.model.decimals import decimal_texts
from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US, TIME, WINDOW, Schema, Type
from formats.few_texts import FEW_ROWS, few_joined, few_moments, few_shortened, few_texts

encode_json = json.JSONEncoder(separators=(",", ":")).encode

Texts: TypeAlias = pa.Array | list[str]
"""A text for each row."""


def column_texts(schema: Schema, batch: pa.RecordBatch, times: Texts | None = None) -> dict[str, Texts]:
    """JSON texts of the user's rows by column name: the time or the window's edges, then the attributes. times: `moments` of
    the first column, where they are known."""
    edges: dict[str, Texts]
    if schema.windowed:
        edges = {name: _texts(batch.column(name), Type.TIMESTAMP) for name in WINDOW}
    else:
        edges = {TIME: _shortened(batch.column(TIME), moments(batch.column(TIME)) if times is None else times)}
    return {**edges, **{name: _texts(batch.column(name), kind) for name, kind in schema.columns}}


def _texts(column: pa.Array, kind: Type) -> Texts:
    if len(column) > FEW_ROWS:
        return _json_texts(column, kind)
    if kind is Type.TIMESTAMP and not column.null_count:
        times_us = column.view(pa.int64())
        return _shortened(times_us, moments(times_us))
    found = few_texts(column, kind)
    return listed(_json_texts(column, kind)) if found is None else found


def key_parts(key: tuple[str, ...], columns: dict[str, Texts]) -> list[Texts | str]:
    """Parts for `joined`: a plain value for one key column, an object for several, null for none."""
    if not key:
        return ["null"]
    if len(key) == 1:
        return [columns[key[0]]]
    return object_parts({name: columns[name] for name in key})


def object_parts(columns: dict[str, Texts]) -> list[Texts | str]:
    """One JSON object per row, as parts for `joined`."""
    parts: list[Texts | str] = []
    for place, (name, texts) in enumerate(columns.items()):
        parts += ["," if place else "{", f"{encode_json(name)}:", texts]
    return [*parts, "}"]


def joined(parts: Sequence[Texts | str]) -> Texts:
    """Concatenates the parts row by row; a plain text is repeated in every row. Those that are none are all lists, or none
    is."""
    if any(isinstance(part, list) for part in parts):
        return few_joined(parts)
    return pc.binary_join_element_wise(*parts, "")


def encoded(texts: Texts) -> list[bytes]:
    """The texts as bytes."""
    if isinstance(texts, list):
        return [text.encode("ascii") for text in texts]
    found: list[bytes] = texts.view("binary").to_pylist()
    return found


def listed(texts: Texts) -> list[str]:
    """The texts as a list."""
    if isinstance(texts, list):
        return texts
    found: list[str] = texts.to_pylist()
    return found


def lines(texts: Texts) -> str:
    """The texts, one per line, each with an end of line."""
    if isinstance(texts, list):
        return "".join([f"{text}\n" for text in texts])
    ended = pc.binary_join_element_wise(texts, "\n", "")
    # Arrow stores all texts of the array in one buffer.
    _, offsets, values = ended.buffers()
    first, last = np.frombuffer(offsets, dtype=np.int32)[[ended.offset, ended.offset + len(ended)]]
    text: bytes = values[int(first) : int(last)].to_pybytes()
    return text.decode("ascii")


def by_value(column: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    """text(value) of each value; computed once per distinct value."""
    encoded = column.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    return pa.array([text(value) for value in distinct], pa.string()).take(encoded.indices)


def by_run(values: np.ndarray, text: Callable[[Any], str]) -> Texts | str:
    """As `by_value`, as a part for `joined`. values: one at least, and mostly all the same, which takes no call of Arrow's."""
    if values[0] == values[-1] and (values == values[0]).all():
        return text(values[0].item())
    if len(values) <= FEW_ROWS:
        known: dict[Any, str] = {}
        return [known.get(value) or known.setdefault(value, text(value)) for value in values.tolist()]
    return by_value(pa.array(values), text)


def numbers(first: int, count: int) -> Texts:
    """The texts of consecutive numbers."""
    if count <= FEW_ROWS:
        return [str(number) for number in range(first, first + count)]
    return pa.array(np.arange(first, first + count)).cast(pa.string())


def moments(times_us: pa.Array) -> Texts:
    """ISO 8601 in UTC with six fractional digits, so that the texts sort as the times do. times_us: int64 microseconds, without
    nulls."""
    if len(times_us) > FEW_ROWS:
        return moment_array(times_us)
    found = few_moments(int64_values(times_us).tolist())
    return listed(moment_array(times_us)) if found is None else found


def moment_array(times_us: pa.Array) -> pa.Array:
    """As `moments`, by Arrow; nulls stay null."""
    if _may_hold(times_us, lambda times: times > LAST_TIME_US):
        # The bucket of the very last times ends after the year 9999; it gets the text of the last time.
        times_us = pc.min_element_wise(times_us, pa.scalar(LAST_TIME_US), skip_nulls=False)
    texts = pc.utf8_replace_slice(times_us.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    return pc.binary_join_element_wise(texts, "Z", "")


def moment(time_us: int) -> str:
    """As `moments`, for one time in microseconds."""
    if time_us < FIRST_TIME_US:
        # A bucket may begin before the year 1, which datetime lacks.
        return str(moment_array(pa.array([time_us], pa.int64()))[0])
    since = timedelta(microseconds=min(time_us, LAST_TIME_US) - FIRST_TIME_US)
    return (datetime.min + since).isoformat(timespec="microseconds") + "Z"


def time_us(text: str) -> int:
    """Microseconds since the epoch of a time in a record, as `moment` writes it."""
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def milliseconds(clock_us: int) -> float:
    """A clock value in milliseconds, with three decimals, as in records."""
    return round(clock_us / 1000, 3)


def _json_texts(column: pa.Array, kind: Type) -> pa.Array:
    """Each value as JSON: null for values that JSON lacks (NaN, infinities), ISO 8601 for timestamps and dates, texts for
    decimals, which programs would read as doubles if they were numbers."""
    texts = _quoted_decimals(column) if kind.is_decimal else _TEXTS[kind](column)
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _double_texts(column: pa.Array) -> pa.Array:
    """The shortest text that parses to the same double, always with a point or an exponent, unlike an int."""
    texts = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float64())).cast(pa.string())
    whole = pc.invert(pc.match_substring_regex(texts, r"[.e]"))
    return pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)


def _quoted_decimals(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', decimal_texts(column), '"', "")


def _bool_texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _timestamp_texts(column: pa.Array) -> pa.Array:
    """Quoted ISO 8601 in UTC, with six fractional digits if the fraction is not zero."""
    times_us = column.cast(pa.int64())
    return _shortened(times_us, moment_array(times_us))


def _shortened(times_us: pa.Array, texts: Texts) -> Texts:
    """The `moments` of times, in quotes, without a fraction that is zero."""
    if isinstance(texts, list):
        return few_shortened(texts)
    if _may_hold(times_us, lambda times: times % 1_000_000 == 0):
        whole = pc.equal(pc.utf8_slice_codeunits(texts, 19, 27), ".000000Z")
        texts = pc.if_else(whole, pc.utf8_replace_slice(texts, 19, 27, "Z"), texts)
    return pc.binary_join_element_wise('"', texts, '"', "")


def _may_hold(column: pa.Array, condition: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether a value meets the condition, or some are null: then it takes Arrow to tell. A call of numpy's costs a fraction of
    one of Arrow's for few rows, and most columns need nothing more."""
    return column.null_count > 0 or bool(condition(column.to_numpy()).any())


_TEXTS: dict[Type, Callable[[pa.Array], pa.Array]] = {
    Type.STRING: lambda column: by_value(column, encode_json),
    Type.INT: lambda column: column.cast(pa.string()),
    Type.DOUBLE: _double_texts,
    Type.BOOL: _bool_texts,
    Type.TIMESTAMP: _timestamp_texts,
    Type.DATE: lambda column: pc.binary_join_element_wise('"', column.cast(pa.string()), '"', ""),
}


def table_texts(table: pa.Table) -> pa.Array | None:
    """Each row as a JSON object. None if a column is of a type, or has a value, that has no such text here: nested values,
    decimals, and doubles that are not finite."""
    columns = {}
    for field, chunked in zip(table.schema, table.columns, strict=True):
        kind, column = _kind_of(field.type), chunked.combine_chunks()
        if kind is None or (kind is Type.DOUBLE and not pc.all(pc.is_finite(column)).as_py()):
            return None
        wanted = pa.timestamp("us", field.type.tz) if kind is Type.TIMESTAMP else kind.arrow
        columns[field.name] = _json_texts(column.cast(wanted, safe=False), kind)
    return joined(object_parts(columns)) if columns and table.num_rows else None


def _kind_of(found: pa.DataType) -> Type | None:
    kinds: tuple[tuple[Type, Callable[[pa.DataType], bool]], ...] = (
        (Type.STRING, pa.types.is_string),
        (Type.INT, pa.types.is_signed_integer),
        (Type.DOUBLE, pa.types.is_float64),
        (Type.BOOL, pa.types.is_boolean),
        (Type.TIMESTAMP, pa.types.is_timestamp),
    )
    return next((kind for kind, holds in kinds if holds(found)), None)
