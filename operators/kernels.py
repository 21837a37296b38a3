"""What the functions over Arrow arrays share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Datum = Any
"""A pa.Array with the batch's length, or a pa.Scalar that stands for an array of equal values."""

Function = Callable[..., Datum]
"""Computes a term from the values of its arguments."""


def where(condition: pa.Array, value: pa.Array) -> pa.Array:
    """The values where the condition is true; null elsewhere."""
    return pc.if_else(condition, value, pa.scalar(None, value.type))


def between(value: pa.Array, low: float, high: float) -> pa.Array:
    """Whether each value is in the range, which has both ends."""
    return pc.and_(pc.greater_equal(value, low), pc.less_equal(value, high))


def each(function: Callable[[Any], Any], kind: pa.DataType) -> Function:
    """The function of one value that is not null, for arrays; for what no kernel does."""

    def run(array: pa.Array) -> pa.Array:
        return pa.array([None if value is None else function(value) for value in array.to_pylist()], kind)

    return run
