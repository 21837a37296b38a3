"""The values of Arrow columns as numpy arrays that share their memory.

`pyarrow.Array.to_numpy` lets another thread have the interpreter, and so do most calls of Arrow's. Where many threads wait for
it, the caller gets it back some milliseconds later.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def int64_values(column: pa.Array) -> np.ndarray:
    """int64, one per row; they may not be changed. column: of 64-bit values, without nulls."""
    if not len(column):
        return np.empty(0, np.int64)
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)


def event_times(batch: pa.RecordBatch) -> np.ndarray:
    """int64, one per row: the event times of rows, in microseconds, which are in the first column."""
    return int64_values(batch.column(0))
