"""The values of Arrow columns as numpy arrays that share their memory, and the size of batches.

Arrow's own `to_numpy` and `nbytes` let another thread have the interpreter, as most of its calls do. Where many threads wait
for it, the caller gets it back some milliseconds later.
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


def batch_bytes(batch: pa.RecordBatch) -> int:
    """As `pyarrow.RecordBatch.nbytes`, for the types of a `Schema`; slices count their rows only."""
    return sum([_column_bytes(column) for column in batch.columns])


def _column_bytes(column: pa.Array) -> int:
    validity, values, *texts = column.buffers()
    rows, first = len(column), column.offset
    size = _bit_bytes(first, rows) if validity is not None else 0
    if texts:
        if not pa.types.is_string(column.type):
            return int(column.nbytes)
        if not rows:
            return size
        ends = np.frombuffer(values, np.int32, rows + 1, 4 * first)
        return size + 4 * rows + int(ends[-1] - ends[0])
    width: int = column.type.bit_width
    return size + (_bit_bytes(first, rows) if width == 1 else rows * width // 8)


def _bit_bytes(first: int, rows: int) -> int:
    """How many bytes hold these bits."""
    return (first + rows + 7) // 8 - first // 8
