"""Texts of single times, and of few rows, are those of columns and of many rows."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boreal.model.frames import INFINITY
from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US, Schema, Type
from formats.few_texts import FEW_ROWS
from formats.json_text import (
    by_run,
    column_texts,
    encoded,
    joined,
    key_parts,
    lines,
    listed,
    moment,
    moments,
    numbers,
    object_parts,
)

HOUR_US = 3_600_000_000
REPEATS = FEW_ROWS + 1
"""So often are rows repeated to be many."""


@pytest.mark.parametrize(
    "time_us",
    [
        -HOUR_US + FIRST_TIME_US, FIRST_TIME_US - 1, FIRST_TIME_US, -HOUR_US, -1, 0, 1, 1_357_017_000_250_000, LAST_TIME_US,
        LAST_TIME_US + 1, INFINITY,
    ],
)  # fmt: skip
def test_one_time_has_the_text_that_it_has_in_a_column(time_us: int) -> None:
    assert [moment(time_us)] == moments(pa.array([time_us], pa.int64()))
    assert [moment(time_us)] * REPEATS == listed(moments(pa.array([time_us] * REPEATS, pa.int64())))


_TIMES = st.one_of(
    st.integers(FIRST_TIME_US, LAST_TIME_US),
    st.integers(-3, 3).map(lambda seconds: seconds * 1_000_000),
    st.sampled_from([FIRST_TIME_US - 1, LAST_TIME_US + 1, INFINITY]),
)
_COLUMNS: dict[str, tuple[Type, st.SearchStrategy[Any]]] = {
    "a": (Type.STRING, st.text()),
    "100%s": (Type.INT, st.integers(-(2**63), 2**63 - 1)),
    "c": (Type.DOUBLE, st.floats(width=64)),
    "d": (Type.BOOL, st.booleans()),
    "e": (Type.TIMESTAMP, st.datetimes(timezones=st.just(datetime.UTC))),
    "f": (Type.DATE, st.dates()),
}
_ROWS = st.lists(st.tuples(_TIMES, *(st.none() | values for _, values in _COLUMNS.values())), min_size=1, max_size=5)
SCHEMA = Schema.of({name: kind.value for name, (kind, _) in _COLUMNS.items()})


@given(_ROWS)
def test_few_rows_have_the_texts_of_many(rows: list[tuple[Any, ...]]) -> None:
    times, *values = zip(*rows, strict=True)
    columns = [pa.array(of, kind.arrow) for of, (_, kind) in zip(values, SCHEMA.columns, strict=True)]
    few = pa.record_batch([pa.array(times, pa.int64()), *columns], names=["time", *SCHEMA.names])
    many = pa.concat_batches([few] * REPEATS)
    texts, of_many = (_objects(batch) for batch in (few, many))
    assert isinstance(texts, list) and isinstance(of_many, pa.Array)
    assert listed(of_many) == texts * REPEATS
    assert encoded(of_many) == encoded(texts) * REPEATS and lines(of_many) == lines(texts) * REPEATS


def _objects(batch: pa.RecordBatch) -> pa.Array | list[str]:
    texts = column_texts(SCHEMA, batch)
    return joined(["%d%%", *object_parts(texts), " ", *key_parts(("a", "c"), texts)])


def test_numbers_and_runs_are_the_same_for_few_and_many_rows() -> None:
    assert listed(numbers(7, REPEATS))[:3] == numbers(7, 3) == ["7", "8", "9"]
    values = np.array([5, 5, 6, 7])
    assert by_run(values, str) == ["5", "5", "6", "7"]
    assert listed(by_run(np.tile(values, REPEATS), str))[:4] == ["5", "5", "6", "7"]
    assert by_run(values[:2], str) == "5"
