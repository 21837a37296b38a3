"""Operators against deliberately dumb ones, and the promises of operators.operator: cuts, layers, bytes, and rebuilding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model.frames import INFINITY
from boreal.model.schema import RESERVED, Schema
from operators import chunks, groups, join, keys, lookup, sessions, top
from operators.aggregate import AggregateOperator
from operators.deduplicate import DeduplicateOperator
from operators.distinct import DistinctOperator
from operators.encoding import encode_batch
from operators.filter import FilterOperator
from operators.join import JoinOperator
from operators.lookup import LookupOperator
from operators.map import MapOperator
from operators.sessions import SessionOperator
from operators.top import TopOperator
from operators.union import UnionOperator
from tests.thoroughness import every, some

Row = dict[str, Any]

SCHEMA = Schema.of({"k": "int", "s": "string", "v": "double", "i": "int", "d": "decimal(38, 4)", "a": "date"})
OTHER = Schema.of({"s": "string", "k": "int", "w": "double"})
CHANGES = Schema.of({"s": "string", "gone": "bool", "k": "int", "w": "double"})
RATES = Schema.of({"d": "decimal(38, 4)", "k": "int", "w": "double"})
PRICES = Schema.of({"a": "date", "d": "decimal(38, 4)", "k": "int", "w": "double"})
SHUFFLED = Schema.of({"a": "date", "i": "int", "v": "double", "d": "decimal(38, 4)", "s": "string", "k": "int"})

VALUES: dict[str, list[Any]] = {
    "k": [None, -1, 0, 1],
    "s": [None, "a", "b", "é", "\U0001f600"],
    "v": [None, 0.1, 0.2, 0.3, -0.0, 0.0, 1e16, -1e16, 7.25],
    "w": [None, 0.5, 1.5],
    "gone": [None, False, True],
    "i": [None, 0, 1, -5, (1 << 62) + 3, -(1 << 62)],
    "d": [None, *(Decimal(text) for text in ("0", "0.0001", "-0.0001", "12.5", "9999999999999999999999999999999999.9999"))],
    "a": [None, date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
}

COMPUTE = {
    "n": "count(*)", "nv": "count(v)", "dv": "count(distinct v)", "ds": "count(distinct s)", "t": "sum(v)",
    "m": "avg(v)", "mi": "avg(i)", "lo": "min(v)", "hi": "max(v)", "lo_i": "min(i)", "hi_s": "max(s)", "lo_s": "min(s)",
    "ad": "approx_count_distinct(v)", "ads": "approx_distinct(s)", "adi": "approx_count_distinct(i)",
    "aq": "approx_quantile(v, 0.5)", "aqi": "approx_quantile(i, 0.9)", "fv": "first(v)", "ls": "last(s)", "li": "last(i)",
    "dev": "stddev(v)", "dev_all": "stddev_pop(k)", "st": "sum(k)",
    "td": "sum(d)", "md": "avg(d)", "dd": "count(distinct d)", "hi_d": "max(d)", "fd": "first(d)", "ld": "last(d)",
    "lo_a": "min(a)", "hi_a": "max(a)", "da": "count(distinct a)", "la": "last(a)", "add": "approx_count_distinct(d)",
    "some": "sum(d) filter (where a > '1970-01-01')",
}  # fmt: skip


# -- Dumb operators: all rows at once, in plain Python -----------------------------------------------------------------


def fold(values: Iterable[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def whole(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def deviation(values: list[float], sample: bool) -> float | None:
    if len(values) < 1 + sample:
        return None
    return statistics.stdev(values) if sample else statistics.pstdev(values)


def quantile(values: list[Any], percent: int) -> float | None:
    """To nine binary digits, cut off."""
    if not values:
        return None
    fraction, exponent = math.frexp(sorted(values)[max(-(-len(values) * percent // 100), 1) - 1])
    return math.ldexp(math.trunc(fraction * 512) / 512, exponent) + 0.0


def exact_sum(values: list[Decimal]) -> Decimal | None:
    """In units of the last digit; null with more than 38 digits."""
    total = sum(int(value.scaleb(4, WIDE)) for value in values)
    return Decimal(total).scaleb(-4, WIDE) if values and abs(total) < 10**38 else None


WIDE = Context(prec=60)


def summarised(rows: list[Row], pane: int) -> Row:
    """COMPUTE, of one window and group; sums of doubles go pane by pane."""
    panes: dict[int, list[float]] = {}
    for row in rows:
        panes.setdefault(row["time"] // pane, [])
        if row["v"] is not None:
            panes[row["time"] // pane].append(row["v"])
    v, s, i, k, d, a = (whole([row[name] for row in rows]) for name in "vsikda")
    late = whole([row["d"] for row in rows if row["a"] and row["a"] > date(1970, 1, 1)])
    total = fold(fold(part) for part in panes.values())
    return {
        "n": len(rows), "nv": len(v), "dv": len(set(v)), "ds": len(set(s)), "t": total if v else None,
        "m": total / len(v) if v else None, "mi": float(sum(i)) / len(i) if i else None, "lo": min(v, default=None),
        "hi": max(v, default=None), "lo_i": min(i, default=None), "hi_s": max(s, default=None),
        "ad": len(set(v)), "ads": len(set(s)), "adi": len(set(i)), "aq": quantile(v, 50), "aqi": quantile(i, 90),
        "lo_s": min(s, default=None), "fv": v[0] if v else None,
        "ls": s[-1] if s else None, "li": i[-1] if i else None, "dev": deviation(v, True),
        "dev_all": deviation(k, False), "st": sum(k) if k else None,
        "td": exact_sum(d), "md": float(sum(map(Fraction, d), Fraction()) / len(d)) if d else None, "dd": len(set(d)),
        "hi_d": max(d, default=None), "fd": d[0] if d else None, "ld": d[-1] if d else None, "lo_a": min(a, default=None),
        "hi_a": max(a, default=None), "da": len(set(a)), "la": a[-1] if a else None, "add": len(set(d)),
        "some": exact_sum(late),
    }  # fmt: skip


def nulls_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value.encode() if isinstance(value, str) else value)


def windows_of(rows: list[Row], size: int, every: int) -> list[tuple[int, list[Row]]]:
    starts = {k * every for row in rows for k in range((row["time"] - size) // every + 1, row["time"] // every + 1)}
    return [(start, [row for row in rows if start <= row["time"] < start + size]) for start in sorted(starts)]


def edges(start: int, size: int) -> Row:
    return {"time": start + size - 1, "window_start": start, "window_end": start + size}


def dumb_aggregate(size: int, every: int, by: tuple[str, ...]) -> Callable[[list[list[Row]]], list[Row]]:
    def run(inputs: list[list[Row]]) -> list[Row]:
        found = []
        for start, rows in windows_of(inputs[0], size, every):
            keys = sorted({tuple(row[name] for name in by) for row in rows}, key=lambda key: [*map(nulls_first, key)])
            for key in keys:
                group = [row for row in rows if tuple(row[name] for name in by) == key]
                grouped = dict(zip(by, key, strict=True))
                found.append({**edges(start, size), **grouped, **summarised(group, math.gcd(size, every))})
        return found

    return run


def dumb_sessions(gap: int, longest: int | None, by: tuple[str, ...]) -> Callable[[list[list[Row]]], list[Row]]:
    def run(inputs: list[list[Row]]) -> list[Row]:
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in inputs[0]:
            groups.setdefault(tuple(row[name] for name in by), []).append(row)
        found = []
        for key, rows in groups.items():
            first = 0
            for place, row in enumerate(rows):
                end = row["time"] + gap
                if longest is not None:
                    end = min(end, (row["time"] // longest + 1) * longest)
                if place + 1 < len(rows) and rows[place + 1]["time"] < end:
                    continue
                session = rows[first : place + 1]
                bounds = {"time": end - 1, "window_start": session[0]["time"], "window_end": end}
                found.append((end, [*map(nulls_first, key)], {
                    **bounds, **dict(zip(by, key, strict=True)), **summarised([{**each, "time": 0} for each in session], 1),
                }))
                first = place + 1
        return [row for *_, row in sorted(found, key=lambda entry: entry[:2])]

    return run


def by_value(row: Row) -> list[Any]:
    """v descending, then s."""
    return [row["v"] is None, -(row["v"] or 0.0), row["s"] is None, (row["s"] or "").encode()]


def by_price(row: Row) -> list[Any]:
    """d descending, then a."""
    return [row["d"] is None, -(row["d"] or Decimal(0)).scaleb(4, WIDE), row["a"] is None, row["a"] or date.min]


def dumb_top(
    size: int, every: int, k: int, by: tuple[str, ...], order: Callable[[Row], list[Any]]
) -> Callable[[list[list[Row]]], list[Row]]:
    def run(inputs: list[list[Row]]) -> list[Row]:
        found = []
        for start, rows in windows_of(inputs[0], size, every):
            keys = sorted({tuple(row[name] for name in by) for row in rows}, key=lambda key: [*map(nulls_first, key)])
            for key in keys:
                group = sorted((row for row in rows if tuple(row[name] for name in by) == key), key=order)
                for rank, row in enumerate(group[:k], start=1):
                    found.append({**row, **edges(start, size), "rank": rank})
        return found

    return run


def dumb_join(within: int, outer: bool, on: tuple[str, ...] = ("s",)) -> Callable[[list[list[Row]]], list[Row]]:
    def run(inputs: list[list[Row]]) -> list[Row]:
        found: list[tuple[tuple[int, int, int], Row]] = []
        for number, left in enumerate(inputs[0]):
            base = {name: value for name, value in left.items() if name != "time"}
            partners = [
                (other, right)
                for other, right in enumerate(inputs[1])
                if is_joined(left, right, on) and abs(left["time"] - right["time"]) <= within
            ]
            for other, right in partners:
                time = max(left["time"], right["time"])
                found.append(((time, number, other), {"time": time, **base, "k_right": right["k"], "w": right["w"]}))
            if outer and not partners:
                time = left["time"] + within
                found.append(((time, number, -1), {"time": time, **base, "k_right": None, "w": None}))
        return [row for _, row in sorted(found, key=lambda entry: entry[0])]

    return run


def is_joined(left: Row, right: Row, on: tuple[str, ...]) -> bool:
    return all(left[name] is not None and left[name] == right[name] for name in on)


def dumb_lookup(
    within: int | None, outer: bool, on: tuple[str, ...] = ("s",)
) -> Callable[[list[list[Row]]], list[Row]]:
    def run(inputs: list[list[Row]]) -> list[Row]:
        found = []
        for left in inputs[0]:
            older = [right for right in inputs[1] if right["time"] <= left["time"] and is_joined(left, right, on)]
            newest = older[-1] if older and (within is None or left["time"] - older[-1]["time"] <= within) else None
            newest = None if newest is not None and newest.get("gone") else newest
            if newest is not None or outer:
                found.append({**left, "k_right": newest and newest["k"], "w": newest and newest["w"]})
        return found

    return run


def dumb_distinct(size: int | None, on: tuple[str, ...]) -> Callable[[list[list[Row]]], list[Row]]:
    def run(inputs: list[list[Row]]) -> list[Row]:
        seen, found = set(), []
        for row in inputs[0]:
            key = (row["time"] // size if size else 0, *(row[name] for name in on))
            if key not in seen:
                found.append(row)
            seen.add(key)
        return found

    return run


def dumb_deduplicate(within: int, on: tuple[str, ...]) -> Callable[[list[list[Row]]], list[Row]]:
    """Every row is compared with every row before it."""

    def run(inputs: list[list[Row]]) -> list[Row]:
        (rows,) = inputs
        return [
            row
            for place, row in enumerate(rows)
            if not any(
                all(row[name] == other[name] for name in on) and row["time"] - other["time"] < within
                for other in rows[:place]
            )
        ]

    return run


def dumb_union(inputs: list[list[Row]]) -> list[Row]:
    return sorted((row for rows in inputs for row in rows), key=lambda row: row["time"])


def dumb_map(inputs: list[list[Row]]) -> list[Row]:
    return [
        {
            "time": row["time"],
            "x": None if row["v"] is None else row["v"] / 2,
            "s": row["s"],
            "known": row["k"] is not None,
            "more": None if row["d"] is None else exact_sum([row["d"], Decimal("0.5")]),
            "next": None if row["a"] in (None, date.max) else row["a"] + timedelta(1),
        }
        for row in inputs[0]
    ]


@dataclass
class Case:
    operator: Any
    inputs: tuple[Schema, ...]
    dumb: Callable[[list[list[Row]]], list[Row]]


def _aggregate(size: int, every: int, by: tuple[str, ...]) -> Case:
    return Case(AggregateOperator("a", SCHEMA, size, every, by, COMPUTE), (SCHEMA,), dumb_aggregate(size, every, by))


def _top(size: int, every: int, k: int, by: tuple[str, ...]) -> Case:
    return Case(TopOperator("t", SCHEMA, k, "v desc, s", size, every, by), (SCHEMA,), dumb_top(size, every, k, by, by_value))


def _distinct(size: int | None, on: tuple[str, ...] = ("k", "v")) -> Case:
    return Case(DistinctOperator("d", SCHEMA, on, size), (SCHEMA,), dumb_distinct(size, on))


def _deduplicate(within: int, on: tuple[str, ...] = ("k", "v")) -> Case:
    return Case(DeduplicateOperator("d", SCHEMA, on, within), (SCHEMA,), dumb_deduplicate(within, on))


def _sessions(gap: int, longest: int | None, by: tuple[str, ...]) -> Case:
    return Case(SessionOperator("s", SCHEMA, gap, longest, by, COMPUTE), (SCHEMA,), dumb_sessions(gap, longest, by))


CASES = {
    "filter": Case(
        FilterOperator("f", SCHEMA, "v > 0.15 and k >= 0"),
        (SCHEMA,),
        lambda inputs: [row for row in inputs[0] if (row["v"] or 0) > 0.15 and row["k"] is not None and row["k"] >= 0],
    ),
    "map": Case(
        MapOperator(
            "m", SCHEMA, {"x": "v / 2", "s": "s", "known": "k is not null", "more": "d + 0.5", "next": "a + 1"}
        ),
        (SCHEMA,),
        dumb_map,
    ),
    "union": Case(UnionOperator("u", (SCHEMA, SHUFFLED, SCHEMA)), (SCHEMA, SHUFFLED, SCHEMA), dumb_union),
    "tumbling": _aggregate(10, 10, ("k",)),
    "tumbling, two keys": _aggregate(7, 7, ("s", "k")),
    "tumbling, double key": _aggregate(20, 20, ("v",)),
    "tumbling, decimals and dates": _aggregate(20, 20, ("a", "d")),
    "tumbling, no key": _aggregate(10, 10, ()),
    "sliding": _aggregate(12, 4, ("s",)),
    "sliding, odd": _aggregate(9, 6, ("k",)),
    "sessions": _sessions(3, None, ("k",)),
    "sessions, two keys": _sessions(9, 20, ("s", "k")),
    "sessions, double key": _sessions(5, 12, ("v",)),
    "sessions, decimals": _sessions(5, 12, ("d",)),
    "sessions, no key": _sessions(2, None, ()),
    "inner join": Case(JoinOperator("j", (SCHEMA, OTHER), ("s",), 6, "inner"), (SCHEMA, OTHER), dumb_join(6, False)),
    "left join": Case(JoinOperator("j", (SCHEMA, OTHER), ("s",), 6, "left"), (SCHEMA, OTHER), dumb_join(6, True)),
    "left join, decimals and dates": Case(
        JoinOperator("j", (SCHEMA, PRICES), ("a", "d"), 9, "left"), (SCHEMA, PRICES), dumb_join(9, True, ("a", "d"))
    ),
    "lookup, decimals": Case(
        LookupOperator("l", (SCHEMA, RATES), ("d",), 9, "left"), (SCHEMA, RATES), dumb_lookup(9, True, ("d",))
    ),
    "lookup": Case(LookupOperator("l", (SCHEMA, OTHER), ("s",), 6, "inner"), (SCHEMA, OTHER), dumb_lookup(6, False)),
    "lookup, left": Case(LookupOperator("l", (SCHEMA, OTHER), ("s",), 6, "left"), (SCHEMA, OTHER), dumb_lookup(6, True)),
    "lookup of any age": Case(
        LookupOperator("l", (SCHEMA, OTHER), ("s",), None, "left"), (SCHEMA, OTHER), dumb_lookup(None, True)
    ),
    "lookup with deletes": Case(
        LookupOperator("l", (SCHEMA, CHANGES), ("s",), None, "left", "gone"), (SCHEMA, CHANGES), dumb_lookup(None, True)
    ),
    "lookup with deletes, of an age": Case(
        LookupOperator("l", (SCHEMA, CHANGES), ("s",), 9, "inner", "gone"), (SCHEMA, CHANGES), dumb_lookup(9, False)
    ),
    "distinct": _distinct(10),
    "distinct ever": _distinct(None),
    "distinct, decimals and dates": _distinct(10, ("a", "d")),
    "deduplicate": _deduplicate(6),
    "deduplicate all ties": _deduplicate(1),
    "deduplicate, dates": _deduplicate(6, ("a", "k")),
    "top": _top(10, 10, 2, ("k",)),
    "top of sliding": _top(12, 4, 3, ()),
    "top, decimals and dates": Case(
        TopOperator("t", SCHEMA, 2, "d desc, a", 20, 20, ("k",)), (SCHEMA,), dumb_top(20, 20, 2, ("k",), by_price)
    ),
}


# -- Running ----------------------------------------------------------------------------------------------------------


def batch_of(rows: list[Row], schema: Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema.arrow)


def taken(case: Case, inputs: list[list[Row]], since: int, upto: int) -> tuple[pa.RecordBatch, ...]:
    return tuple(
        batch_of([row for row in rows if since <= row["time"] < upto], schema)
        for rows, schema in zip(inputs, case.inputs, strict=True)
    )


def run(case: Case, state: Any, inputs: list[list[Row]], since: int, cuts: list[int]) -> pa.RecordBatch:
    """Step to each of the cuts; what came out."""
    made = [case.operator.schema.empty()]
    for upto in cuts:
        out = case.operator.step(state, taken(case, inputs, since, upto), upto)
        assert out.schema.equals(case.operator.schema.arrow)
        times = out.column(0).to_numpy()
        assert (times >= since).all() and (times < upto).all() and (np.diff(times) >= 0).all()
        made.append(out)
        since = upto
    return pa.concat_batches(made)


def rows_of(schema: Schema) -> st.SearchStrategy[list[Row]]:
    """Rows by a seed: dense enough that groups, ties and partners are the rule."""

    def make(seed: int, count: int, last: int) -> list[Row]:
        rng = Random(seed)
        times = sorted(rng.randint(-15, last) for _ in range(count))
        return [{"time": time, **{name: rng.choice(VALUES[name]) for name in schema.names}} for time in times]

    return st.builds(make, st.integers(0, 1 << 32), st.integers(0, 60), st.sampled_from([-5, 15, 45]))


def inputs_of(case: Case) -> st.SearchStrategy[list[list[Row]]]:
    return st.tuples(*(rows_of(schema) for schema in case.inputs)).map(list)


CUTS = st.lists(st.integers(-14, 60), max_size=6, unique=True).map(sorted)

examples = settings(max_examples=some(15), deadline=None, derandomize=True)
every_operator = pytest.mark.parametrize("name", CASES)


def outputs_after(out: pa.RecordBatch, time: int) -> bytes:
    times = out.column(0).to_numpy()
    return encode_batch(out.slice(int(np.searchsorted(times, time))))


@pytest.fixture(autouse=True, scope="module", params=every(2, ["tiny limits", "limits as they are"]))
def limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """With tiny limits, a few rows go the ways that are meant for many."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiny limits":
            patch.setattr(keys, "_SMALL", 0)
            patch.setattr(groups, "_FIRST_CAPACITY", 1)
            patch.setattr(chunks, "_SMALL", 2)
            patch.setattr(chunks, "_LARGE", 12)
            patch.setattr(chunks, "_LOOSE_BATCHES", 3)
            patch.setattr(join, "_FEW_KEYS", 0)
            patch.setattr(top, "_SLACK", 1)
            patch.setattr(sessions, "_SLACK", 0)
            patch.setattr(lookup, "_SLACK", 0)
        yield


# -- The properties ---------------------------------------------------------------------------------------------------


@every_operator
@examples
@given(st.data())
def test_results_are_the_dumb_operator_s(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    inputs = data.draw(inputs_of(case))
    out = run(case, case.operator.empty(), inputs, -INFINITY, [*data.draw(CUTS), INFINITY]).to_pylist()
    expected = case.dumb(inputs)
    assert len(out) == len(expected)
    for row, wanted in zip(out, expected, strict=True):
        about = {name for name in wanted if name.startswith("dev")}
        assert {name: row[name] for name in row if name not in about} == {
            name: wanted[name] for name in row if name not in about
        }
        for column in about:
            # Differences to a first value of 1e16 swallow what is far below it.
            near = None if wanted[column] is None else pytest.approx(wanted[column], rel=1e-6, abs=32)
            assert row[column] == near


@every_operator
@examples
@given(st.data())
def test_results_and_state_are_the_same_bytes_wherever_steps_are_cut(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    inputs = data.draw(inputs_of(case))
    last = data.draw(st.integers(-5, 60))
    every_row = sorted({row["time"] + 1 for rows in inputs for row in rows if row["time"] + 1 < last})
    results = []
    for cuts in ([], every_row, list(range(-14, last, 7)), [cut for cut in data.draw(CUTS) if cut < last]):
        state = case.operator.empty()
        before = run(case, state, inputs, -INFINITY, [*cuts, last])
        encoded = state.encode()
        after = run(case, state, inputs, last, [INFINITY])
        results.append((encode_batch(before), encoded, encode_batch(after)))
    assert all(result == results[0] for result in results)


@every_operator
@examples
@given(st.data())
def test_an_overlay_leaves_its_base_alone_until_it_is_absorbed(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    inputs = data.draw(inputs_of(case))
    first, second, third = sorted(data.draw(st.tuples(*[st.integers(-14, 50)] * 3)))
    some = [rows[:: data.draw(st.integers(1, 3))] for rows in inputs]

    plain = case.operator.empty()
    run(case, plain, inputs, -INFINITY, [first])
    base = case.operator.empty()
    run(case, base, inputs, -INFINITY, [first])
    frozen = base.encode()

    tentative = base.overlay()
    run(case, tentative, some, first, [second])
    run(case, tentative.overlay(), some, second, [third, INFINITY])
    redo = base.overlay()
    expected = encode_batch(run(case, plain, inputs, first, [second]))
    assert encode_batch(run(case, redo, inputs, first, [second])) == expected
    assert base.encode() == frozen
    assert redo.encode() == plain.encode()

    above = redo.overlay()
    expected = encode_batch(run(case, plain, inputs, second, [third]))
    assert encode_batch(run(case, above, inputs, second, [third])) == expected
    redo.absorb(above)
    base.absorb(redo)
    assert base.encode() == plain.encode()
    rest = [third, third + 3, INFINITY]
    assert encode_batch(run(case, base, inputs, third, rest)) == encode_batch(run(case, plain, inputs, third, rest))


@every_operator
@examples
@given(st.data())
def test_a_decoded_state_goes_on_as_the_one_that_was_encoded(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    inputs = data.draw(inputs_of(case))
    time = data.draw(st.integers(-14, 60))
    state = case.operator.empty()
    run(case, state, inputs, -INFINITY, [time])
    decoded = case.operator.decode(state.encode())
    assert decoded.encode() == state.encode()
    assert decoded.nbytes() >= 0
    overlay = decoded.overlay()
    expected = encode_batch(run(case, state, inputs, time, [time + 5, INFINITY]))
    assert encode_batch(run(case, overlay, inputs, time, [time + 5, INFINITY])) == expected
    assert encode_batch(run(case, decoded, inputs, time, [time + 2, INFINITY])) == expected


@every_operator
@examples
@given(st.data())
def test_a_state_rebuilt_from_what_it_needs_gives_the_same_results(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    inputs = data.draw(inputs_of(case))
    time = data.draw(st.integers(-14, 60))
    needs = case.operator.needs(time)
    assert needs <= time
    state = case.operator.empty()
    rebuilt = case.operator.empty()
    run(case, state, inputs, -INFINITY, [time])
    recent = [[row for row in rows if row["time"] >= needs] for rows in inputs]
    run(case, rebuilt, recent, -INFINITY, [time])
    expected = outputs_after(run(case, state, inputs, time, [time + 4, INFINITY]), time)
    assert outputs_after(run(case, rebuilt, inputs, time, [time + 4, INFINITY]), time) == expected


@examples
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(allow_nan=False, allow_infinity=False, width=32)), max_size=200))
def test_numpy_adds_one_by_one_in_the_order_of_the_rows(rows: list[tuple[int, float]]) -> None:
    """`np.add.at` is what sums rest on: the sequential left fold, to the last bit."""
    totals = [0.1, 0.2, 0.3, 0.4]
    folded = np.array(totals)
    np.add.at(folded, np.array([code for code, _ in rows], np.intp), np.array([value for _, value in rows]))
    for code, value in rows:
        totals[code] += value
    assert folded.tolist() == totals


def test_every_column_is_compared() -> None:
    """The dumb aggregate knows all that the quick one computes."""
    names = set(CASES["tumbling"].operator.schema.names)
    assert names == {"k", *COMPUTE} and names.isdisjoint(RESERVED)
