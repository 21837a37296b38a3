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
_WHOLE_IN_DOUBLES = 1 << 53
"""Up to here every whole number is a double."""
_POWERS_IN_DOUBLES = 22
"""Up to here every power of ten is a double."""
_EXACT = Context(prec=2_000)
"""Has room for all digits of any double."""


def decimal_texts(column: pa.Array) -> pa.Array:
    """The decimals as texts, all with as many digits after the point as their type has, without an exponent."""
    texts = column.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if value is None else f"{value:f}" for value in column.to_pylist()], pa.string())


def unscaled_halves(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(the lower 64 bits as uint64, the upper 64 bits as int64) of the decimals without their point; any for a null."""
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


def nearest_doubles(column: pa.Array) -> pa.Array:
    """For each decimal the double that is nearest. Arrow's cast multiplies by a negative power of ten, which is no double: it
    makes 3.5700000000000003 of 3.57."""
    after, missing = column.type.scale, column.is_null().to_numpy(zero_copy_only=False)
    low, high = unscaled_halves(column)
    whole = low.view(np.int64)
    # A quotient of two numbers that are doubles is rounded once.
    is_one_division = (high == whole >> 63) & (np.abs(whole) <= _WHOLE_IN_DOUBLES) & (after <= _POWERS_IN_DOUBLES)
    doubles = whole / float(10**after)
    for row in np.flatnonzero(~is_one_division & ~missing).tolist():
        doubles[row] = ((int(high[row]) << 64) | int(low[row])) / 10**after
    return pa.array(doubles, pa.float64(), mask=missing)


def scaled_to(value: Decimal, digits: int) -> int:
    """The decimal in units of the last of so many digits after the point; halves are rounded away from zero."""
    scaled = value.scaleb(digits, _EXACT)
    return int(scaled.to_integral_value(ROUND_HALF_UP, _EXACT))
