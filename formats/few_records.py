"""The values of few JSON records, read by Python, as formats.record_parsing reads those of many with Arrow: formats.few_texts
says why. Whatever is not plain is left to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from boreal.model.columns import int64_values
from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US, Type
from formats.columns import NULL_TEXTS, convert

FEW_RECORDS = 256
"""Arrow is faster for more, also where threads wait for each other."""

_MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}


_MINUS_ZERO = re.compile(rb"-0[\s,}\]]")
"""A double of its own, which Python takes for the int 0."""


def few_objects(records: Sequence[bytes], has_doubles: bool) -> list[dict[str, Any]] | None:
    """The JSON object that each record holds; None if one holds something else, or is not plain. has_doubles: whether a column
    has doubles."""
    if has_doubles and any(map(_MINUS_ZERO.search, records)):
        return None
    found = []
    try:
        for record in records:
            text = record.decode()
            value, end = _decode(text)
            if end != len(text) or type(value) is not dict:
                return None
            found.append(value)
    except (ValueError, RecursionError):
        return None
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).raw_decode


def few_times(values: Sequence[Any], unit: str) -> np.ndarray | None:
    """int64 microseconds since the epoch, one for each value: all numbers, or all texts. None if they are neither. unit: of
    numbers."""
    factor = _MICROSECONDS.get(unit)
    if factor is not None and all(type(value) is int for value in values):
        if not FIRST_TIME_US <= min(values) * factor <= max(values) * factor <= LAST_TIME_US:
            return None
        return np.array(values, np.int64) * factor
    moments = few_column(values, Type.TIMESTAMP, unit)
    if moments is None or moments.null_count:
        return None
    return int64_values(moments)


def few_column(values: Sequence[Any], kind: Type, unit: str) -> pa.Array | None:
    """The values as `kind.arrow`; None if one needs more than to be taken as it is."""
    taken = _TAKEN.get(kind)
    try:
        if taken is not None:
            found = taken(values)
            return None if found is None else pa.array(found, kind.arrow)
        if not all(value is None or type(value) is str for value in values):
            return None
        return convert(pa.array(values, pa.string()), kind, unit)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return None


def _strings(values: Sequence[Any]) -> Sequence[str | None] | None:
    if not all(value is None or type(value) is str for value in values):
        return None
    return [None if value in NULL_TEXTS else value for value in values]


def _ints(values: Sequence[Any]) -> Sequence[int | None] | None:
    return values if all(value is None or type(value) is int for value in values) else None


def _doubles(values: Sequence[Any]) -> Sequence[float | None] | None:
    if not all(value is None or type(value) in (float, int) for value in values):
        return None
    found = [None if value is None else float(value) for value in values]
    return found if all(value is None or isfinite(value) for value in found) else None


def _bools(values: Sequence[Any]) -> Sequence[bool | None] | None:
    return values if all(value is None or type(value) is bool for value in values) else None


_TAKEN: dict[Type, Callable[[Sequence[Any]], Sequence[Any] | None]] = {
    Type.STRING: _strings,
    Type.INT: _ints,
    Type.DOUBLE: _doubles,
    Type.BOOL: _bools,
}
