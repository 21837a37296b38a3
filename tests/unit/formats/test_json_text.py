"""Texts of single times are those of columns of times."""

from __future__ import annotations

import pyarrow as pa
import pytest

from boreal.model.frames import INFINITY
from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US
from formats.json_text import moment, moments

HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    "time_us",
    [
        -HOUR_US + FIRST_TIME_US, FIRST_TIME_US - 1, FIRST_TIME_US, -HOUR_US, -1, 0, 1, 1_357_017_000_250_000, LAST_TIME_US,
        LAST_TIME_US + 1, INFINITY,
    ],
)  # fmt: skip
def test_one_time_has_the_text_that_it_has_in_a_column(time_us: int) -> None:
    assert moment(time_us) == moments(pa.array([time_us], pa.int64()))[0].as_py()
