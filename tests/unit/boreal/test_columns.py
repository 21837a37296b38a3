"""Arrays that share the memory of columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from boreal.model.columns import event_times, int64_values


@pytest.mark.parametrize(("first", "count"), [(0, 5), (2, 3), (1, 1), (5, 0), (0, 0)])
def test_values_are_those_of_the_rows(first: int, count: int) -> None:
    column = pa.array([5, -1, 2**62, 0, 7], pa.int64()).slice(first, count)
    found = int64_values(column)
    assert found.dtype == np.int64 and found.tolist() == column.to_pylist()
    assert event_times(pa.record_batch([column], names=["time"])).tolist() == column.to_pylist()


def test_a_column_without_memory_has_no_values() -> None:
    assert int64_values(pa.array([], pa.int64())).tolist() == []
    assert int64_values(pa.array([], pa.timestamp("us"))).dtype == np.int64


def test_values_outlive_their_column() -> None:
    assert int64_values(pa.array(range(1_000), pa.int64())).sum() == 499_500
