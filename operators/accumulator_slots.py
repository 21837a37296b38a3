"""The columns of accumulators: how they are held, and how they are encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from operators.state import KeySet

AccumulatorColumns = list[np.ndarray]
"""The columns of an accumulator, with one row per group."""


@dataclass(frozen=True)
class AccumulatorSlot:
    """The type of one column of an accumulator."""

    dtype: Any
    """numpy type of the column."""
    initial: object
    """Value of a group without rows."""
    arrow: pa.DataType
    """Arrow type of the encoded column."""
    layered: bool = False
    """Whether the values are KeySets, which get an overlay before their first change."""

    def fresh(self, count: int) -> np.ndarray:
        """A column for `count` groups without rows."""
        column = np.full(count, self.initial, self.dtype)
        if self.layered:
            column[:] = [KeySet() for _ in range(count)]
        return column

    def to_arrow(self, column: np.ndarray) -> pa.Array:
        """The column in its encoded type."""
        if self.layered:
            return pa.array([list(keys) for keys in column], self.arrow)
        return pa.array(column.tolist() if self.dtype is object else column, self.arrow)

    def from_arrow(self, array: pa.Array) -> np.ndarray:
        """The inverse of `to_arrow`."""
        if self.dtype is not object:
            return np.array(array)
        column = np.empty(len(array), object)
        column[:] = [KeySet(keys) for keys in array.to_pylist()] if self.layered else array.to_pylist()
        return column
