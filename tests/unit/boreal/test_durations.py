"""Durations and sizes: what text means, what it is written as, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model.durations import format_bytes, format_duration, parse_bytes, parse_duration
from boreal.model.errors import UserError


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("3s", 3_000_000),
        ("250ms", 250_000),
        ("10m", 600_000_000),
        ("1h", 3_600_000_000),
        ("2d", 172_800_000_000),
        ("1m30s", 90_000_000),
        ("500us", 500),
        ("500µs", 500),
        ("1.5s", 1_500_000),
        ("0.1ms", 100),
        (" 3s ", 3_000_000),
        ("PT3S", 3_000_000),
        ("PT0.25S", 250_000),
        ("P1DT2H30M", 95_400_000_000),
        ("P1W", 604_800_000_000),
        (timedelta(milliseconds=250), 250_000),
    ],
)
def test_what_durations_mean(text: object, microseconds: int) -> None:
    assert parse_duration(text, "delay_threshold") == microseconds


@pytest.mark.parametrize(
    ("value", "problem", "fix"),
    [
        ("0s", "zero", '"3s"'),
        (0, "zero", '"3s"'),
        ("-3s", "negative", '"3s"'),
        (timedelta(seconds=-1), "negative", '"3s"'),
        (3, "no unit", '"3s" or "3ms"'),
        ("3", "no unit", '"3s" or "3ms"'),
        (True, "not a duration", "units: d, h, m, s, ms, us"),
        (None, "not a duration", "units: d, h, m, s, ms, us"),
        ("", "not a duration", "units: d, h, m, s, ms, us"),
        ("3 fortnights", "not a duration", "units: d, h, m, s, ms, us"),
        ("30s1m", "not a duration", "units: d, h, m, s, ms, us"),
        ("P", "not a duration", "units: d, h, m, s, ms, us"),
        ("PT", "not a duration", "units: d, h, m, s, ms, us"),
        ("P1M", "not a duration", "units: d, h, m, s, ms, us"),
        ("٣s", "not a duration", "units: d, h, m, s, ms, us"),
        ("0.5us", "not a whole number of microseconds", "round it"),
        ("36501d", "hundred years", "36500d"),
    ],
)
def test_refused_durations(value: object, problem: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_duration(value, "streams.ewr.disorder")
    assert caught.value.field == "streams.ewr.disorder"
    assert caught.value.value == value
    assert problem in caught.value.problem
    assert fix in caught.value.fix


@pytest.mark.parametrize("value", ["0s", "0", 0, "PT0S"])
def test_zero_where_it_is_allowed(value: object) -> None:
    assert parse_duration(value, "disorder", allow_zero=True) == 0


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(0, "0s"), (90_000_000, "1m30s"), (250_000, "250ms"), (1_500_001, "1s500ms1us"), (600_000_000, "10m")],
)
def test_how_durations_are_written(microseconds: int, text: str) -> None:
    assert format_duration(microseconds) == text


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(min_value=0, max_value=36_500 * 86_400_000_000))
def test_durations_come_back_from_their_text(microseconds: int) -> None:
    assert parse_duration(format_duration(microseconds), "x", allow_zero=True) == microseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MB", 256_000_000),
        ("1GiB", 2**30),
        ("1.5 kB", 1_500),
        ("7B", 7),
        ("64 mib", 64 * 2**20),
        ("2TB", 2 * 10**12),
    ],
)
def test_what_sizes_mean(text: str, size: int) -> None:
    assert parse_bytes(text, "tuning.memory") == size


@pytest.mark.parametrize("value", [256, "256", "MB", "0MB", "0.5B", None, "-1MB", "1XB", "1IB"])
def test_refused_sizes(value: object) -> None:
    with pytest.raises(UserError) as caught:
        parse_bytes(value, "tuning.memory")
    assert caught.value.field == "tuning.memory"
    assert '"256MB"' in caught.value.fix


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(min_value=1, max_value=2**60) | st.integers(min_value=1, max_value=4096).map(lambda n: n * 2**20))
def test_sizes_come_back_from_their_text(size: int) -> None:
    assert parse_bytes(format_bytes(size), "x") == size
