"""Arrays that share the memory of columns."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boreal.model.columns import batch_bytes, event_times, int64_values
from boreal.model.schema import Schema


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


EVERY_KIND = Schema.of(
    {"s": "string", "n": "int", "v": "double", "b": "bool", "t": "timestamp", "d": "date", "m": "decimal(9,2)"}
)
_ROW = st.tuples(
    st.integers(0, 9), st.none() | st.text(max_size=3), st.none() | st.integers(0, 9), st.none() | st.floats(),
    st.none() | st.booleans(), st.none() | st.just(datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)),
    st.none() | st.just(datetime.date(2013, 1, 1)), st.none() | st.just(Decimal("1.25")),
)  # fmt: skip


@given(st.lists(_ROW, max_size=20), st.integers(0, 20), st.integers(0, 20), st.booleans())
def test_the_size_of_a_batch_is_what_arrow_says(rows: list[Any], first: int, count: int, has_nulls: bool) -> None:
    names = EVERY_KIND.arrow.names
    records = [dict(zip(names, row, strict=True)) for row in rows if has_nulls or None not in row]
    batch = pa.RecordBatch.from_pylist(records, schema=EVERY_KIND.arrow)
    for each in (batch, batch.slice(first, count), batch.slice(first).slice(count // 2)):
        assert batch_bytes(each) == each.nbytes
