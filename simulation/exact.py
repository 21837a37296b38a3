"""Columns of decimals and dates in simulated queries: their expressions, each with its meaning in plain Python, as in
`simulation.expressions`. A decimal is a `decimal.Decimal` with as many digits after the point as its column, a date a
`datetime.date`; both are exact, and null where a column has no room for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

Row = dict[str, Any]
Meaning = Callable[[Row], Any]

SCHEMA = {"d": "decimal(9, 2)", "w": "decimal(38, 4)", "a": "date"}
"""The columns: a decimal that fits into 64 bits, one that fills its type, and a date."""

_ROOMY = Context(prec=2_000)
_EPOCH = date(1970, 1, 1)
_DAY_US = 86_400_000_000


def _of(operation: Callable[..., Any], *names: str) -> Meaning:
    """The meaning of an expression that is null where one of these columns is."""

    def meaning(row: Row) -> Any:
        values = [row[name] for name in names]
        return None if None in values else operation(*values)

    return meaning


def _decimal(value: Decimal, digits: int, after: int) -> Decimal | None:
    """The value as a decimal(digits, after): halves are rounded away from zero."""
    if not value.is_finite():
        return None
    rounded = value.quantize(Decimal(1).scaleb(-after), ROUND_HALF_UP, _ROOMY)
    # The addition makes one zero of two.
    return _ROOMY.add(rounded, 0) if rounded.copy_abs() < 10 ** (digits - after) else None


def _d(value: Decimal) -> Decimal | None:
    return _decimal(value, 9, 2)


def _w(value: Decimal) -> Decimal | None:
    return _decimal(value, 38, 4)


def _product(one: Decimal, other: Decimal) -> Decimal | None:
    """A product of w and d, which is a decimal(38, 6), as a decimal(38, 4)."""
    product = _decimal(_ROOMY.multiply(one, other), 38, 6)
    return None if product is None else _w(product)


def _day(us: int) -> date:
    return _EPOCH + timedelta(us // _DAY_US)


def _midnight(day: date) -> int:
    return (day - _EPOCH).days * _DAY_US


def _later(day: date, days: int) -> date | None:
    try:
        return day + timedelta(days)
    except OverflowError:
        return None


def _least(day: date | None, other: date) -> date:
    return other if day is None else min(day, other)


def _greatest(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    known = [value for value in (one, other) if value is not None]
    return _w(max(known)) if known else None


CONDITIONS: dict[str, Meaning] = {
    "d > 0.50": _of(lambda d: d > Decimal("0.50"), "d"),
    "d <> w": _of(lambda d, w: d != w, "d", "w"),
    "d between -0.05 and w": _of(lambda d, w: Decimal("-0.05") <= d <= w, "d", "w"),
    "d in (0, 0.05, 1.19, -0.1)": _of(lambda d: d in map(Decimal, ("0", "0.05", "1.19", "-0.1")), "d"),
    "d > v or a is null": lambda r: r["a"] is None or _of(lambda d, v: float(d) > v, "d", "v")(r),
    "w >= n": _of(lambda w, n: w >= n, "w", "n"),
    "a >= '2026-01-01'": _of(lambda a: a >= date(2026, 1, 1), "a"),
    "a < t or d is null": lambda r: r["d"] is None or _of(lambda a, t: _midnight(a) < t, "a", "t")(r),
    "a <> cast(t as date)": _of(lambda a, t: a != _day(t), "a", "t"),
    "extract(dow from a) <> 4": _of(lambda a: a.isoweekday() % 7 != 4, "a"),
}

SELECTED: dict[str, dict[str, Meaning]] = {
    "k": {
        "cast(d as string)": _of(lambda d: f"{d:f}", "d"),
        "cast(a as string)": _of(date.isoformat, "a"),
    },
    "v": {
        "cast(d as double)": _of(float, "d"),
        "d / 3": _of(lambda d: float(d) / 3.0, "d"),
    },
    "n": {
        "cast(d as int)": _of(math.trunc, "d"),
        "sign(w)": _of(lambda w: (w > 0) - (w < 0), "w"),
        "a - cast('2025-12-31' as date)": _of(lambda a: (a - date(2025, 12, 31)).days, "a"),
        "extract(doy from a)": _of(lambda a: a.timetuple().tm_yday, "a"),
    },
    "t": {
        "cast(a as timestamp)": _of(_midnight, "a"),
        "coalesce(t, cast(a as timestamp))": lambda r: _of(_midnight, "a")(r) if r["t"] is None else r["t"],
    },
    "b": {
        "d < w": _of(lambda d, w: d < w, "d", "w"),
        "a >= '2026-01-01'": CONDITIONS["a >= '2026-01-01'"],
        "w is null": lambda r: r["w"] is None,
    },
    "d": {
        "d": lambda r: r["d"],
        "-d": _of(lambda d: _d(-d), "d"),
        "abs(d)": _of(abs, "d"),
        "cast(d * 1.19 as decimal(9, 2))": _of(lambda d: _d(d * Decimal("1.19")), "d"),
        "d % 0.7": _of(lambda d: _d(_ROOMY.remainder(d, Decimal("0.7"))), "d"),
        "cast(w as decimal(9, 2))": _of(_d, "w"),
        "cast(v as decimal(9, 2))": _of(lambda v: _d(Decimal(v)), "v"),
        "cast(n as decimal(9, 2))": _of(lambda n: _d(Decimal(n)), "n"),
        "coalesce(d, 0.05)": lambda r: Decimal("0.05") if r["d"] is None else r["d"],
        "case when b then d end": lambda r: r["d"] if r["b"] else None,
        "nullif(d, 0)": _of(lambda d: d or None, "d"),
    },
    "w": {
        "w": lambda r: r["w"],
        "w + d": _of(lambda w, d: _w(_ROOMY.add(w, d)), "w", "d"),
        "w - 0.5": _of(lambda w: _w(_ROOMY.subtract(w, Decimal("0.5"))), "w"),
        "cast(w * d as decimal(38, 4))": _of(_product, "w", "d"),
        "greatest(w, d)": lambda r: _greatest(r["w"], r["d"]),
    },
    "a": {
        "a": lambda r: r["a"],
        "a + 30": _of(lambda a: _later(a, 30), "a"),
        "a + n": _of(_later, "a", "n"),
        "cast(t as date)": _of(_day, "t"),
        "coalesce(a, cast(time as date))": lambda r: _day(r["time"]) if r["a"] is None else r["a"],
        "least(a, '2026-01-01')": lambda r: _least(r["a"], date(2026, 1, 1)),
        "case when d > 0 then a end": lambda r: r["a"] if _of(lambda d: d > 0, "d")(r) else None,
    },
}
"""The expressions that a map may compute for each column, beside those for rows without decimals and dates."""

AFTER_JOIN: dict[str, Meaning] = {
    f"coalesce({name}_right, {name})": lambda r, name=name: r[name] if r[f"{name}_right"] is None else r[f"{name}_right"]  # type: ignore[misc]
    for name in SCHEMA
}

AGGREGATED: dict[str, Meaning] = {"d * 1.19": _of(lambda d: d * Decimal("1.19"), "d")}
"""The arguments of aggregations that are not columns."""

COMPUTED = {
    "d_total": "sum(d)",
    "w_total": "sum(w)",
    "d_mean": "avg(d)",
    "w_mean": "avg(w)",
    "d_least": "min(d)",
    "w_most": "max(w)",
    "d_kinds": "count(distinct d)",
    "a_kinds": "count(distinct a)",
    "first_day": "min(a)",
    "last_day": "max(a)",
    "d_opening": "first(d)",
    "w_closing": "last(w)",
    "a_closing": "last(a)",
    "taxed": "sum(d * 1.19)",
    "d_of_some": "sum(d) filter (where b)",
    "d_many": "count_if(d > 0.50)",
    "d_guess": "approx_count_distinct(d)",
    "a_guess": "approx_distinct(a)",
}
"""The computations of an aggregate, by the name of the column."""


def total(values: list[Decimal]) -> Decimal | None:
    """The sum, which is a decimal of 38 digits."""
    exponent = values[0].as_tuple().exponent
    assert isinstance(exponent, int)
    return _decimal(reduce(_ROOMY.add, values), 38, -exponent)


def mean(values: list[Decimal]) -> float:
    """The double that is nearest to the mean."""
    return float(sum(map(Fraction, values), Fraction(0)) / len(values))
