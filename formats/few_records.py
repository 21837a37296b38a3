"""The values of few JSON records, read by Python, as formats.record_parsing reads those of many with Arrow: formats.few_texts
says why. Whatever is not plain is left to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import isfinite
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from boreal.model.columns import int64_values
from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US, Type
from formats.columns import NULL_TEXTS, convert

FEW_RECORDS = 256
"""For so many, Python takes about as long as Arrow does where no thread waits, and for more it takes longer."""

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
    types = _TYPES.get(kind, (str,))
    if not all(value is None or type(value) in types for value in values):
        return None
    try:
        if kind not in _TYPES:
            return convert(pa.array(values, pa.string()), kind, unit)
        if kind is Type.STRING:
            values = [None if value in NULL_TEXTS else value for value in values]
        elif kind is Type.DOUBLE:
            values = [None if value is None else float(value) for value in values]
            if not all(value is None or isfinite(value) for value in values):
                return None
        return pa.array(values, kind.arrow)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return None


_TYPES: dict[Type, tuple[type, ...]] = {
    Type.STRING: (str,),
    Type.INT: (int,),
    Type.DOUBLE: (float, int),
    Type.BOOL: (bool,),
}
"""What values may be that are taken as they are. Those of other columns are texts, which `convert` reads."""
