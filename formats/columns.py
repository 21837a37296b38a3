"""Converts columns of input files to the types of a query's schema.

One rule for all formats, so that the same data in CSV, JSON lines and Parquet gives the same tuples. For texts: empty, NA
and null are null; a time is ISO 8601 (UTC if it has no zone) or an integer epoch in the stream's `time_unit`; an int may
be written as 5.0, but not as 5.5; a bool is true, false, 1 or 0; a decimal may be a number or a text, and is never
rounded; a date is of ISO 8601, with dashes, or the number of days since 1970.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.schema import FIRST_DAY, FIRST_TIME_US, LAST_DAY, LAST_TIME_US, Type

NULL_TEXTS = ("", "NA", "null")
"""Texts that are null, in all formats."""

_MICROSECONDS = pa.timestamp("us")
_WIDEST = 76
"""The most digits of Arrow's decimals."""


def convert(column: pa.Array, kind: Type, time_unit: str) -> pa.Array:
    """The column as `kind.arrow`. pa.ArrowInvalid if any value is not of that type."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type):
        column = pc.if_else(pc.is_in(column, pa.array(NULL_TEXTS)), pa.scalar(None, pa.string()), column)
    return _to_decimal(column, kind.arrow) if kind.is_decimal else _CONVERTERS[kind](column, time_unit)


def convert_each(column: pa.Array, kind: Type, time_unit: str) -> tuple[pa.Array, np.ndarray]:
    """As `convert`, with null for each value that is not of that type, and a mask (bool) of those values."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # Each distinct value once: if a whole column has another type, it usually has few distinct values.
    distinct = column.dictionary_encode()
    values, bad = _convert_halves(distinct.dictionary, kind, time_unit)
    bad_rows = pa.array(bad).take(distinct.indices).fill_null(False)
    return values.take(distinct.indices), bad_rows.to_numpy(zero_copy_only=False)


def _convert_halves(column: pa.Array, kind: Type, time_unit: str) -> tuple[pa.Array, np.ndarray]:
    """As `convert_each`: a column that cannot be converted as a whole is halved, down to the single bad values."""
    try:
        return convert(column, kind, time_unit), np.zeros(len(column), dtype=bool)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, kind.arrow), np.ones(1, dtype=bool)
    middle = len(column) // 2
    halves = [_convert_halves(part, kind, time_unit) for part in (column[:middle], column[middle:])]
    return pa.concat_arrays([values for values, _ in halves]), np.concatenate([bad for _, bad in halves])


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column with this type. pa.ArrowInvalid if a value does not fit. Arrow's cast takes its time where nothing changes,
    too."""
    return column if column.type == kind else column.cast(kind)


def _to_string(column: pa.Array, _time_unit: str) -> pa.Array:
    return _as(column, pa.string())


def _to_int(column: pa.Array, _time_unit: str) -> pa.Array:
    if not pa.types.is_string(column.type):
        return _as(column, pa.int64())
    return _first_of(
        column,
        lambda texts: texts.cast(pa.int64()),
        lambda texts: texts.cast(pa.float64()).cast(pa.int64()),
    )


def _to_double(column: pa.Array, _time_unit: str) -> pa.Array:
    # Not safe: an int beyond 2**53 is rounded, as it is when it is parsed from text.
    return column.cast(pa.float64(), safe=False)


def _to_bool(column: pa.Array, _time_unit: str) -> pa.Array:
    # Through text, which accepts 0 and 1 only: a direct cast would turn 5 into true.
    return column if pa.types.is_boolean(column.type) else column.cast(pa.string()).cast(pa.bool_())


def _to_decimal(column: pa.Array, kind: pa.Decimal128Type) -> pa.Array:
    if pa.types.is_boolean(column.type):
        raise pa.ArrowInvalid("a bool is not a decimal")
    if pa.types.is_floating(column.type):
        column = column.cast(pa.string())
    # Through more digits than any value has: Arrow's parser of JSON takes values with more digits than the type has, and a cast
    # does not look at what has the type already.
    wide = column if pa.types.is_string(column.type) else column.cast(pa.decimal256(_WIDEST, kind.scale))
    return wide.cast(kind)


def _to_timestamp(column: pa.Array, time_unit: str) -> pa.Array:
    if pa.types.is_string(column.type):
        times_us = _first_of(
            column,
            lambda texts: _as_us(texts, _MICROSECONDS),
            lambda texts: _as_us(texts, Type.TIMESTAMP.arrow),
            lambda texts: _epoch(texts.cast(pa.int64()), time_unit),
            lambda texts: _as_us(_to_microseconds(texts), _MICROSECONDS),
            lambda texts: _as_us(_to_microseconds(texts), Type.TIMESTAMP.arrow),
        )
    elif pa.types.is_timestamp(column.type):
        times_us = _as_us(column, pa.timestamp("us", column.type.tz))
    elif pa.types.is_date(column.type):
        times_us = _as_us(column, _MICROSECONDS)
    else:
        times_us = _epoch(_as(column, pa.int64()), time_unit)
    range_us = pc.min_max(times_us).as_py()
    if range_us["min"] is not None and not FIRST_TIME_US <= range_us["min"] <= range_us["max"] <= LAST_TIME_US:
        raise pa.ArrowInvalid("a time outside the years 1 to 9999")
    return times_us.cast(Type.TIMESTAMP.arrow)


def _to_date(column: pa.Array, _time_unit: str) -> pa.Array:
    if pa.types.is_string(column.type):
        days = _first_of(column, lambda texts: _days(texts.cast(pa.date32())), lambda texts: texts.cast(pa.int64()))
    else:
        days = _days(column) if pa.types.is_date(column.type) else column.cast(pa.int64())
    found = pc.min_max(days).as_py()
    if found["min"] is not None and not FIRST_DAY <= found["min"] <= found["max"] <= LAST_DAY:
        raise pa.ArrowInvalid("a date outside the years 1 to 9999")
    return days.cast(pa.int32()).cast(pa.date32())


def _days(dates: pa.Array) -> pa.Array:
    return dates.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())


def _as_us(column: pa.Array, kind: pa.TimestampType) -> pa.Array:
    # Directly to integers: between two zones Arrow would look up the zone for every value.
    nanoseconds = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return column.cast(kind, safe=not nanoseconds).cast(pa.int64())


def _epoch(numbers: pa.Array, time_unit: str) -> pa.Array:
    if time_unit == "us":
        return numbers
    # Nanoseconds are truncated to microseconds. From coarser units the cast stays safe and detects overflow.
    return numbers.cast(pa.timestamp(time_unit)).cast(_MICROSECONDS, safe=time_unit != "ns").cast(pa.int64())


def _to_microseconds(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")


def _first_of(texts: pa.Array, *parsers: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The result of the first parser that can read every text. `convert_each` handles columns with several notations."""
    for parser in parsers[:-1]:
        try:
            return parser(texts)
        except pa.ArrowInvalid:
            continue
    return parsers[-1](texts)


_CONVERTERS: dict[Type, Callable[[pa.Array, str], pa.Array]] = {
    Type.STRING: _to_string,
    Type.INT: _to_int,
    Type.DOUBLE: _to_double,
    Type.BOOL: _to_bool,
    Type.TIMESTAMP: _to_timestamp,
    Type.DATE: _to_date,
}
