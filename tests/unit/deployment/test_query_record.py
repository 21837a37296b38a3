"""What the record of a query keeps of it while it runs."""

from __future__ import annotations

import pytest

from boreal.model.errors import UserError
from boreal.query.spec import Intervals, Query, load_query
from deployment.query_record import with_bucket
from tests.harness import query_of


def query(x: str, **tuning: str | None) -> Query:
    return load_query(query_of(x=x, tuning={"bucket": "auto", "boundary_interval": "auto", "heartbeat": "auto", **tuning}))


def test_a_bucket_stays_what_it_was_when_the_query_was_created_and_the_other_intervals_follow_x() -> None:
    created = with_bucket(query("1s"), None)
    assert created.intervals == Intervals(50_000, 100_000, 100_000)
    changed = with_bucket(created.changed(delay_threshold="500ms"), created)
    assert changed.intervals == Intervals(50_000, 50_000, 50_000)
    assert with_bucket(query("9s"), changed).intervals == Intervals(50_000, 100_000, 100_000), "the file is applied again"
    assert with_bucket(query("9s"), None).intervals == Intervals(100_000, 100_000, 100_000)


def test_a_bucket_that_is_stated_is_taken_as_stated() -> None:
    created = with_bucket(query("1s", bucket="20ms"), None)
    assert with_bucket(query("1s", bucket="30ms"), created).intervals.bucket == 30_000


def test_an_x_that_is_too_short_for_the_bucket_that_is_kept_is_refused_with_the_least() -> None:
    created = with_bucket(query("3s"), None)
    with pytest.raises(UserError, match=r"buckets of 100ms.*write at least 249ms"):
        with_bucket(query("200ms"), created)
    assert with_bucket(query("249ms"), created).intervals == Intervals(100_000, 24_000, 24_000)


def test_a_record_of_the_version_before_keeps_the_numbers_that_it_ran_with() -> None:
    """It states all of them."""
    before = load_query(query_of(x="1s", tuning={"bucket": "100ms", "boundary_interval": "50ms", "heartbeat": "100ms"}))
    assert with_bucket(before, before) == before
    assert with_bucket(before.changed(delay_threshold="9s"), before).intervals == before.intervals
