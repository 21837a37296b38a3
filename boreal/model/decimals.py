"""Decimals: as text, and as the whole numbers that Arrow keeps."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DECIMAL_DIGITS = 38
"""Of a decimal: those of Arrow's 128 bits."""

_BYTES = 16
_EXACT = Context(prec=2_000)
"""Has room for all digits of any double."""


def decimal_texts(column: pa.Array) -> pa.Array:
    """The decimals as texts, all with as many digits after the point as their type has, without an exponent."""
    texts = column.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if value is None else f"{value:f}" for value in column.to_pylist()], pa.string())


def unscaled_halves(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(the lower 64 bits as uint64, the upper 64 bits as int64) of the decimals without their point. No value may be null."""
    words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
    return words[::2].view(np.uint64), words[1::2]


def from_unscaled(values: Iterable[int | None], kind: pa.Decimal128Type) -> pa.Array:
    """Decimals of these whole numbers without their point; null also where one has more digits than the type."""
    limit = 10**kind.precision
    kept = [value if value is not None and -limit < value < limit else None for value in values]
    words = b"".join((value or 0).to_bytes(_BYTES, "little", signed=True) for value in kept)
    is_there = np.array([value is not None for value in kept], bool)
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(kept), [validity, pa.py_buffer(words)])


def scaled_to(value: Decimal, digits: int) -> int:
    """The decimal in units of the last of so many digits after the point; halves are rounded away from zero."""
    scaled = value.scaleb(digits, _EXACT)
    return int(scaled.to_integral_value(ROUND_HALF_UP, _EXACT))
