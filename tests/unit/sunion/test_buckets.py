"""Buckets of event time, before and after the epoch."""

from __future__ import annotations

import pytest

from boreal.model.frames import INFINITY
from sunion.buckets import bucket_end, bucket_floor


@pytest.mark.parametrize(("time", "floor", "end"), [(0, 0, 10), (9, 0, 10), (10, 10, 20), (-1, -10, 0), (-10, -10, 0)])
def test_a_bucket_holds_its_start_and_not_its_end(time: int, floor: int, end: int) -> None:
    assert (bucket_floor(time, 10), bucket_end(time, 10)) == (floor, end)


def test_the_end_of_a_stream_lies_in_no_bucket() -> None:
    assert bucket_floor(INFINITY, 7) == bucket_end(INFINITY, 7) == INFINITY
