"""The state that an operator declares, and what it sees of it while it processes rows.

The operator never holds state itself. It names columns and their first values; boreal keeps one row of these columns for each
key, in the layers that all state has. So marks, rollbacks, checkpoints and overlays need nothing of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa

Value = int | float | bool | str | bytes
"""What a cell of state may hold: an int of 64 bits, a double, a bool, a text or bytes."""


@dataclass(frozen=True)
class Keyed:
    """State for each key: for each combination of values of some columns, nulls being equal to each other."""

    by: Sequence[str]
    """The columns of the input whose values are the key. Without any, all rows have one key."""
    columns: Mapping[str, Value]
    """The columns of the state, each with the value of a key that had no row yet. The value's type is the column's."""
    window: str | timedelta | None = None
    """The length of the tumbling windows, in event time, that each have state of their own, such as "1h". None: a key's state
    is kept for ever. Then it depends on all input ever, is checkpointed from time to time, and undo_redo cannot rebuild it."""


class KeyState:
    """The state of the keys that some rows have, one element for each key, in the order in which the rows have them first.

    `state["total"]` is a numpy array, to be changed in place or assigned to; `state.codes` says for each row the index of its
    key. Texts and bytes are in arrays of objects. Nothing of it may be kept after the call.
    """

    __slots__ = ("_columns", "_read_keys", "codes")

    def __init__(
        self, codes: np.ndarray, columns: Mapping[str, np.ndarray], read_keys: Callable[[], dict[str, pa.Array]]
    ) -> None:
        self.codes = codes
        """For each row the index of its key. Of a window that closes: empty."""
        self._columns = columns
        self._read_keys = read_keys

    def __len__(self) -> int:
        """The number of keys."""
        return len(next(iter(self._columns.values())))

    def __getitem__(self, column: str) -> np.ndarray:
        return self._columns[column]

    def __setitem__(self, column: str, values: np.ndarray) -> None:
        self._columns[column][:] = values

    def keys(self) -> dict[str, pa.Array]:
        """The keys: each column of `by` with one value for each key."""
        return self._read_keys()
