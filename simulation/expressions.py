"""The expressions of simulated queries, each with its meaning in plain Python: `queries` draws from these tables, the oracle
evaluates them. No code is shared with the operators' own expressions.

A row is a dict; null is None; times are microseconds. Comparisons with null are null, those with NaN false (except <>);
a result that is not finite, or exceeds 64 bits, is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from simulation import exact

Row = dict[str, Any]
Meaning = Callable[[Row], Any]

_MOST = 1 << 63
MOMENT = "2026-01-01T00:00:06Z"
MOMENT_US = 1_767_225_606_000_000


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _whole(value: int | None) -> int | None:
    return value if value is not None and -_MOST <= value < _MOST else None


def _with(operation: Callable[..., Any], *values: Any) -> Any:
    return None if None in values else operation(*values)


def _either(one: bool | None, other: bool | None) -> bool | None:
    return True if one or other else None if one is None or other is None else False


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if one is False or other is False else None if one is None or other is None else True


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _quotient(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else _finite(over / under)


CONDITIONS: dict[str, Meaning] = {
    "v > 10": lambda r: _with(lambda v: v > 10, r["v"]),
    "n is not null": lambda r: r["n"] is not None,
    "k <> 'k0'": lambda r: _with(lambda k: k != "k0", r["k"]),
    "n > 1 and v is not null": lambda r: _both(_with(lambda n: n > 1, r["n"]), r["v"] is not None),
    "v < 40 or n = 3": lambda r: _either(_with(lambda v: v < 40, r["v"]), _with(lambda n: n == 3, r["n"])),
    "b or k in ('k1', 'k2')": lambda r: _either(r["b"], _with(lambda k: k in ("k1", "k2"), r["k"])),
    "not b or v >= 0": lambda r: _either(_with(lambda b: not b, r["b"]), _with(lambda v: v >= 0, r["v"])),
    "t is null or t <= time": lambda r: r["t"] is None or r["t"] <= r["time"],
    f"t < '{MOMENT}' or n <= 4": lambda r: _either(
        _with(lambda t: t < MOMENT_US, r["t"]), _with(lambda n: n <= 4, r["n"])
    ),
    "v <> 0 and n between -1 and 7": lambda r: _both(
        _with(lambda v: v != 0, r["v"]), _with(lambda n: -1 <= n <= 7, r["n"])
    ),
}

SELECTED: dict[str, dict[str, Meaning]] = {
    "k": {"k": lambda r: r["k"]},
    "v": {
        "v": lambda r: r["v"],
        "v / 3.0": lambda r: _finite(_quotient(r["v"], 3.0)),
        "coalesce(v, 0.5) + n": lambda r: _finite(_with(lambda n: _first(r["v"], 0.5) + n, r["n"])),
        "v / n": lambda r: _quotient(r["v"], r["n"]),
        "case when b then v else n end": lambda r: r["v"] if r["b"] else _with(float, r["n"]),
    },
    "n": {
        "n": lambda r: r["n"],
        "n + 1": lambda r: _whole(_with(lambda n: n + 1, r["n"])),
        "-n": lambda r: _whole(_with(lambda n: -n, r["n"])),
        "case when v > 5 then n end": lambda r: r["n"] if r["v"] is not None and r["v"] > 5 else None,
    },
    "t": {"t": lambda r: r["t"], "time": lambda r: r["time"], "coalesce(t, time)": lambda r: _first(r["t"], r["time"])},
    "b": {
        "b": lambda r: r["b"],
        "not b": lambda r: _with(lambda b: not b, r["b"]),
        "v > 5": lambda r: _with(lambda v: v > 5, r["v"]),
        "n is null": lambda r: r["n"] is None,
    },
}
"""The expressions that a map may compute for each column."""

AFTER_JOIN: dict[str, Meaning] = {
    **{name: (lambda r, name=name: r[name]) for name in ("k", "v", "n", "t", "b")},  # type: ignore[misc]
    "coalesce(v_right, v)": lambda r: _first(r["v_right"], r["v"]),
}

AFTER_WINDOW: dict[str, Meaning] = {
    "c > 1": lambda r: r["c"] > 1,
    "v > 3": lambda r: _with(lambda v: v > 3, r["v"]),
}

_COLUMNS = (*SELECTED.values(), *exact.SELECTED.values())
_SELECTABLE: dict[str, Meaning] = {text: run for column in _COLUMNS for text, run in column.items()}
_SELECTABLE |= AFTER_JOIN | exact.AFTER_JOIN | exact.AGGREGATED
_WHERE = CONDITIONS | AFTER_WINDOW | exact.CONDITIONS | {"b": SELECTED["b"]["b"]}


def condition(text: str) -> Meaning:
    """The condition of a filter; KeyError if it is not in the tables."""
    return _WHERE[text]


def selected(text: str) -> Meaning:
    """The expression of a map; KeyError if it is not in the tables."""
    return _SELECTABLE[text]


# Aggregations


def aggregated(text: str, panes: list[list[Row]]) -> Any:
    """An aggregation over a group's rows, by panes: sums of doubles are sums of the panes' sums."""
    call, _, where = text.partition(" filter (where ")
    if where:
        keeps = condition(where.removesuffix(")"))
        panes = [[row for row in pane if keeps(row) is True] for pane in panes]
    name, _, inner = call.removesuffix(")").partition("(")
    rows = [row for pane in panes for row in pane]
    if inner == "*":
        return len(rows)
    if name == "count_if":
        return sum(condition(inner)(row) is True for row in rows)
    distinct = inner.startswith("distinct ")
    argument = inner.removeprefix("distinct ").partition(",")[0]
    evaluate = _SELECTABLE.get(argument, lambda row: row[argument])
    by_pane = [[value for value in map(evaluate, pane) if value is not None] for pane in panes]
    values = [value for pane in by_pane for value in pane]
    if name == "approx_quantile":
        return _quantile(values, round(100 * float(inner.partition(",")[2])))
    if distinct or name in ("approx_count_distinct", "approx_distinct"):
        return len({_one_zero(value) for value in values})
    return _AGGREGATIONS[name](by_pane, values)


def _quantile(values: list[Any], percent: int) -> float | None:
    """The least value that so many percent of the values do not exceed, to nine binary digits, cut off; NaN is the largest."""
    if not values:
        return None
    numbers = sorted(float(value) for value in values if value == value)
    rank = max(-(-len(values) * percent // 100), 1)
    if rank > len(numbers):
        return math.nan
    exact = numbers[rank - 1]
    if math.isinf(exact):
        return exact
    unit = 2.0 ** max(math.frexp(exact)[1] - 9, -1030)  # doubles below the normal ones have fewer digits
    return math.trunc(exact / unit) * unit + 0.0


def _one_zero(value: Any) -> Any:
    """A double as a key: there is one zero, and one NaN that equals itself."""
    return "NaN" if value != value else value


def _sum(panes: list[list[Any]], values: list[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], int):
        return _whole(sum(values))
    if isinstance(values[0], Decimal):
        return exact.total(values)
    return _folded([_folded(pane) for pane in panes])


def _folded(values: list[float]) -> float:
    """The sum by plain additions: `sum` would compensate for rounding."""
    total = 0.0
    for value in values:
        total += value
    return total


def _mean(panes: list[list[Any]], values: list[Any]) -> float | None:
    if not values:
        return None
    if isinstance(values[0], Decimal):
        return exact.mean(values)
    total = _wide(values) if isinstance(values[0], int) else _sum(panes, values)
    return float(total) / len(values)


def _wide(values: list[int]) -> float:
    """The exact sum of ints as a double: the part above 32 bits is rounded before the lower part is added."""
    total = sum(values)
    return float(total >> 32) * 2.0**32 + float(total & 0xFFFFFFFF)


def _least(panes: list[list[Any]], values: list[Any]) -> Any:
    """The minimum. NaN is the largest double; there is one zero."""
    known = [value for value in values if value == value]
    return _plus_zero(min(known)) if known else values[0] if values else None


def _greatest(panes: list[list[Any]], values: list[Any]) -> Any:
    strange = next((value for value in values if value != value), None)
    return strange if strange is not None else _plus_zero(max(values)) if values else None


def _plus_zero(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value


def _deviation(panes: list[list[Any]], values: list[Any]) -> float | None:
    """The standard deviation of a sample, with rounding errors (see `is_about`); NaN if the values are too large for
    squares."""
    if len(values) < 2:
        return None
    if not all(abs(value) <= HUGE for value in values):
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


HUGE = 1e100

_AGGREGATIONS: dict[str, Callable[[list[list[Any]], list[Any]], Any]] = {
    "count": lambda panes, values: len(values),
    "sum": _sum,
    "avg": _mean,
    "min": _least,
    "max": _greatest,
    "stddev": _deviation,
    "first": lambda panes, values: values[0] if values else None,
    "last": lambda panes, values: values[-1] if values else None,
}

COMPUTED = {
    "average": "avg(v)",
    "total": "sum(v)",
    "whole": "sum(n)",
    "middle": "avg(n)",
    "least": "min(v)",
    "most": "max(v)",
    "spread": "stddev(v)",
    "kinds": "count(distinct n)",
    "values": "count(distinct v)",
    "known": "count(t)",
    "opening": "first(v)",
    "closing": "last(n)",
    "key_least": "min(k)",
    "earliest": "min(t)",
    "latest": "max(t)",
    "any": "max(b)",
    "first_time": "first(t)",
    "flag": "last(b)",
}
"""The computations of an aggregate over plain rows, by the name of the column."""


ESTIMATED = {
    "guess": "approx_count_distinct(v)",
    "key_guess": "approx_distinct(k)",
    "half": "approx_quantile(v, 0.5)",
    "tenth": "approx_quantile(n, 0.1)",
}
"""Computations that came after the seeds of the other families were drawn."""


def is_about(one: Any, other: Any, size: float) -> bool:
    """Whether two standard deviations are equal up to rounding. size: the magnitude of the values."""
    if one is None or other is None:
        return one is other
    return math.isnan(other) or abs(one - other) <= 1e-6 * max(size, 1e-6)
