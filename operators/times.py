"""Functions of times, in UTC or in a time zone of the machine's database."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.schema import FIRST_DAY, FIRST_TIME_US, LAST_DAY, LAST_TIME_US, Type
from boreal.query.expressions import Term, moment_us
from operators.kernels import Datum, Function, between, each, where

TIME_FUNCTIONS = ("extract", "date_trunc", "parse_time", "to_timestamp", "local_date", "add_days", "days_between")

_TIMESTAMP = Type.TIMESTAMP.arrow
_DATE = Type.DATE.arrow
_DAYS = LAST_DAY - FIRST_DAY
"""The most from one date to another."""
_SHORT_UNITS = ("second", "minute", "hour")

_PARTS: dict[str, Function] = {
    "second": pc.second,
    "minute": pc.minute,
    "hour": pc.hour,
    "day": pc.day,
    "week": pc.iso_week,
    "month": pc.month,
    "quarter": pc.quarter,
    "year": pc.year,
    "dow": lambda value: pc.day_of_week(value, count_from_zero=True, week_start=7),
    "isodow": lambda value: pc.day_of_week(value, count_from_zero=False, week_start=1),
    "doy": pc.day_of_year,
}


def time_function(term: Term) -> Function:
    """The function of a term whose operation is one of TIME_FUNCTIONS."""
    constant: Any = term.value
    match term.operation:
        case "extract":
            part, zone = constant
            return _seconds if part == "epoch" else lambda value: _PARTS[part](_local(value, zone))
        case "date_trunc":
            unit, zone = constant
            return lambda value: _truncated(value, unit, zone)
        case "parse_time":
            return each(lambda text: _parsed(text, constant), _TIMESTAMP)
        case "local_date":
            return lambda value: _local(value, constant).cast(_DATE)
        case "add_days":
            return lambda day, count: _add_days(day, count, constant)
        case "days_between":
            return lambda one, other: pc.subtract(_days(one), _days(other))
        case _:
            return _after_1970


def _local(value: Datum, zone: str) -> pa.Array:
    """What the clocks of the zone show, as a timestamp without a zone."""
    return pc.local_timestamp(value.cast(pa.timestamp("us", zone)))


def _days(value: Datum) -> pa.Array:
    return pc.cast(pc.cast(value, pa.int32()), pa.int64())


def _add_days(value: Datum, count: Datum, sign: int) -> pa.Array:
    counted = where(between(count, -_DAYS, _DAYS), count)
    days = pc.add(_days(value), pc.multiply(counted, sign))
    return where(between(days, FIRST_DAY, LAST_DAY), days).cast(pa.int32()).cast(_DATE)


def _seconds(value: Datum) -> pa.Array:
    return pc.divide(pc.cast(pc.cast(value, pa.int64()), pa.float64(), safe=False), 1e6)


def _truncated(value: Datum, unit: str, zone: str) -> pa.Array:
    local = _local(value, zone)
    start = pc.floor_temporal(local, unit=unit)
    if unit in _SHORT_UNITS:
        # Taken off the time itself, since a zone may have the same hour twice.
        passed = pc.subtract(local.cast(pa.int64()), start.cast(pa.int64()))
        begun = pc.subtract(value.cast(pa.int64()), passed)
    else:
        # A day may begin twice, or begin late.
        begun = pc.assume_timezone(start, zone, ambiguous="earliest", nonexistent="latest").cast(pa.int64())
    return _in_range(begun)


def _in_range(time: pa.Array) -> pa.Array:
    return where(between(time, FIRST_TIME_US, LAST_TIME_US), time).cast(_TIMESTAMP)


def _parsed(text: str, form: str) -> int | None:
    try:
        moment = datetime.strptime(text, form)
    except ValueError:
        return None
    return moment_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _after_1970(value: Datum) -> pa.Array:
    """Of so many seconds; a fraction of a microsecond is rounded to the nearest even one."""
    if pa.types.is_integer(value.type):
        first, last = math.ceil(FIRST_TIME_US / 1e6), LAST_TIME_US // 1_000_000
        return pc.multiply(where(between(value, first, last), value), 1_000_000).cast(_TIMESTAMP)
    nearest = pc.round(pc.multiply(value, 1e6), round_mode="half_to_even")
    whole = where(between(nearest, float(FIRST_TIME_US), math.nextafter(LAST_TIME_US, 0)), nearest)
    return whole.cast(pa.int64()).cast(_TIMESTAMP)
