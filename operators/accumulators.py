"""The accumulators of the aggregations, over numpy columns with one row per group.

Results must not depend on where the rows are divided into steps (R5). So doubles are added one by one in the order of the
rows, to the sum so far (`np.add.at` does this). Integer sums are wider than int64, so that only the final sum can overflow
(to null), not an intermediate one. A standard deviation is computed from differences to the group's first value. Nulls are
removed before rows get here. NaN counts as the largest double. Callers disable numpy's warnings about infinities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from boreal.model.decimals import from_unscaled, unscaled_halves
from boreal.model.schema import Type
from boreal.query.expressions import Aggregation
from operators.accumulator_slots import AccumulatorColumns, AccumulatorSlot
from operators.keys import comparable_values, storage
from operators.sketches import ApproximateDistinct, ApproximateQuantile

_LOW_BITS = 32
_LOW = (1 << _LOW_BITS) - 1


_COUNT = AccumulatorSlot(np.int64, 0, pa.int64())
_REAL = AccumulatorSlot(np.float64, 0.0, pa.float64())


class Accumulator(Protocol):
    """One aggregation; immutable. `held`: its columns, one row per affected group; modified in place."""

    @property
    def slots(self) -> tuple[AccumulatorSlot, ...]:
        """The types of its columns."""
        ...

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        """Add rows. codes: for each row, its row of `held`. values: as returned by `prepare`."""
        ...

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        """Add a later pane: its row i belongs to row at[i] of `held`; all at[i] are distinct."""
        ...

    def result(self, held: AccumulatorColumns) -> pa.Array:
        """The result of each group."""
        ...


def make_accumulator(aggregation: Aggregation) -> Accumulator:
    """The accumulator of an aggregation."""
    argument = aggregation.argument
    if argument is None:
        return RowCount()
    match aggregation.function:
        case "count":
            return RowCount()
        case "count_distinct":
            return CountDistinct(argument.type)
        case "approx_count_distinct":
            return ApproximateDistinct(argument.type)
        case "approx_quantile":
            return ApproximateQuantile(aggregation.share)
        case "sum" if argument.type.is_decimal:
            return DecimalSum(aggregation.type)
        case "sum":
            return IntSum() if argument.type is Type.INT else RealSum()
        case "avg" if argument.type.is_decimal:
            return DecimalMean(argument.type)
        case "avg":
            return IntMean() if argument.type is Type.INT else RealMean()
        case "min" | "max" as name:
            extreme = ObjectExtreme if _is_object(argument.type) else Extreme
            return extreme(argument.type, name == "max")
        case "first" | "last" as name:
            return FirstOrLast(argument.type, name == "last")
        case name:
            return Deviation(sample=name == "stddev")


def prepare(array: pa.Array, kind: Type) -> tuple[np.ndarray | None, Any]:
    """(mask of the rows that are not null, None for all; the values of those rows: numpy int64 or float64; an Arrow array for
    strings and decimals)."""
    kept = None
    if array.null_count:
        kept = array.is_valid().to_numpy(zero_copy_only=False)
        array = array.drop_null()
    if _is_object(kind):
        return kept, array
    match kind:
        case Type.TIMESTAMP:
            return kept, array.view(pa.int64()).to_numpy()
        case Type.DATE:
            return kept, array.view(pa.int32()).to_numpy().astype(np.int64)
        case Type.BOOL:
            return kept, array.to_numpy(zero_copy_only=False).astype(np.int64)
        case _:
            return kept, array.to_numpy()


def _is_object(kind: Type) -> bool:
    """Whether the values of a group are kept as Python's objects."""
    return kind is Type.STRING or kind.is_decimal


def _to_result(values: np.ndarray, kind: Type, missing: np.ndarray) -> pa.Array:
    if kind is Type.BOOL:
        return pa.array(values.astype(bool), mask=missing)
    if kind is Type.DATE:
        return pa.array(values.astype(np.int32), mask=missing).view(kind.arrow)
    array = pa.array(values, mask=missing)
    return array.view(kind.arrow) if kind is Type.TIMESTAMP else array


class RowCount:
    """count: the number of rows that are not null."""

    slots: tuple[AccumulatorSlot, ...] = (_COUNT,)

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        np.add.at(held[0], codes, 1)

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        held[0][at] += later[0]

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return pa.array(held[0])


class CountDistinct:
    """count_distinct: the number of distinct values."""

    def __init__(self, kind: Type) -> None:
        # `prepare` turns timestamps, dates and bools into ints.
        self.kind = kind if _is_object(kind) or kind is Type.DOUBLE else Type.INT
        self.slots = (AccumulatorSlot(object, None, pa.list_(storage(self.kind)), layered=True),)

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        array = values if _is_object(self.kind) else pa.array(values)
        distinct, places = comparable_values(array, self.kind)
        pairs = np.unique(codes * len(distinct) + places, return_index=True)[1]
        for row in np.sort(pairs).tolist():
            held[0][codes[row]].add(distinct[places[row]])

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        for place, keys in zip(at.tolist(), later[0], strict=True):
            for key in keys:
                held[0][place].add(key)

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return pa.array([len(keys) for keys in held[0]], pa.int64())


class _WideSum:
    """The exact sum of ints, as high * 2**32 + low. Each part has room for the sum of 2**31 rows."""

    slots: tuple[AccumulatorSlot, ...] = (_COUNT, _COUNT, _COUNT)

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        count, low, high = held
        np.add.at(count, codes, 1)
        np.add.at(low, codes, values & _LOW)
        np.add.at(high, codes, values >> _LOW_BITS)

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        for mine, theirs in zip(held, later, strict=True):
            mine[at] += theirs

    def carried(self, held: AccumulatorColumns) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), normalised so that low is below 2**32."""
        return held[1] & _LOW, held[2] + (held[1] >> _LOW_BITS)


class IntSum(_WideSum):
    """sum of ints; null if it does not fit into int64."""

    def result(self, held: AccumulatorColumns) -> pa.Array:
        low, high = self.carried(held)
        limit = 1 << (63 - _LOW_BITS)
        is_beyond = (high < -limit) | (high >= limit)
        return pa.array((high << _LOW_BITS) | low, mask=(held[0] == 0) | is_beyond)


class IntMean(_WideSum):
    """avg of ints."""

    def result(self, held: AccumulatorColumns) -> pa.Array:
        low, high = self.carried(held)
        return _divided(high * float(1 << _LOW_BITS) + low, held[0])


class DecimalSum:
    """The exact sum of decimals; null if it has too many digits. In four parts of 32 bits, the highest with the sign, each with
    room for the sum of 2**31 rows."""

    slots: tuple[AccumulatorSlot, ...] = (_COUNT,) * 5

    def __init__(self, kind: Type) -> None:
        self.kind = kind

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        low, high = unscaled_halves(values)
        np.add.at(held[0], codes, 1)
        parts = (low & _LOW, low >> _LOW_BITS, high & _LOW, high >> _LOW_BITS)
        for column, part in zip(held[1:], parts, strict=True):
            np.add.at(column, codes, part.astype(np.int64))

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        for mine, theirs in zip(held, later, strict=True):
            mine[at] += theirs

    def totals(self, held: AccumulatorColumns) -> list[int | None]:
        """The sums without their point; None for a group without rows."""
        rows = zip(*(column.tolist() for column in held), strict=True)
        return [
            sum(part << place * _LOW_BITS for place, part in enumerate(parts)) if count else None for count, *parts in rows
        ]

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return from_unscaled(self.totals(held), self.kind.arrow)


class DecimalMean(DecimalSum):
    """avg of decimals: the double that is nearest to the exact mean."""

    def result(self, held: AccumulatorColumns) -> pa.Array:
        unit = 10**self.kind.after
        counted = zip(self.totals(held), held[0].tolist(), strict=True)
        return pa.array([None if total is None else total / (count * unit) for total, count in counted], pa.float64())


class RealSum:
    """sum of doubles, in the order of the rows."""

    slots: tuple[AccumulatorSlot, ...] = (_COUNT, _REAL)

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        np.add.at(held[0], codes, 1)
        np.add.at(held[1], codes, values)

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        held[0][at] += later[0]
        held[1][at] += later[1]

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return pa.array(held[1], mask=held[0] == 0)


class RealMean(RealSum):
    """avg of doubles."""

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return _divided(held[1], held[0])


class Extreme:
    """min or max of numbers, timestamps, dates or bools."""

    def __init__(self, kind: Type, largest: bool) -> None:
        self.kind = kind
        self.real = kind is Type.DOUBLE
        if self.real:
            # fmin ignores NaN unless all values are NaN; maximum prefers NaN.
            self.pick: np.ufunc = np.maximum if largest else np.fmin
            initial: float = -np.inf if largest else np.nan
        else:
            self.pick = np.maximum if largest else np.minimum
            bounds = np.iinfo(np.int64)
            initial = int(bounds.min if largest else bounds.max)
        dtype, arrow = (np.float64, pa.float64()) if self.real else (np.int64, pa.int64())
        self.slots = (_COUNT, AccumulatorSlot(dtype, initial, arrow))

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        np.add.at(held[0], codes, 1)
        # 0.0 and -0.0 compare as equal, so -0.0 is turned into 0.0.
        self.pick.at(held[1], codes, values + 0.0 if self.real else values)

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        held[0][at] += later[0]
        held[1][at] = self.pick(held[1][at], later[1])

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return _to_result(held[1], self.kind, held[0] == 0)


class ObjectExtreme:
    """min or max of decimals, or of strings by code points, which is the order of their UTF-8 bytes."""

    def __init__(self, kind: Type, largest: bool) -> None:
        self.kind = kind
        self.largest = largest
        self.pick: Callable[[Any, Any], Any] = max if largest else min
        self.slots: tuple[AccumulatorSlot, ...] = (AccumulatorSlot(object, None, kind.arrow),)

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        found, places = comparable_values(values, self.kind)
        order = sorted(found, reverse=self.largest)
        rank = {value: place for place, value in enumerate(order)}
        best = np.full(len(held[0]), len(order))
        np.minimum.at(best, codes, np.array([rank[value] for value in found], np.intp)[places])
        touched = np.flatnonzero(best < len(order))
        self._offer(held[0], touched.tolist(), [order[place] for place in best[touched].tolist()])

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        self._offer(held[0], at.tolist(), later[0].tolist())

    def _offer(self, column: np.ndarray, places: list[int], values: list[Any]) -> None:
        for place, value in zip(places, values, strict=True):
            if value is not None:
                held = column[place]
                column[place] = value if held is None else self.pick(held, value)

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return pa.array(held[0].tolist(), self.kind.arrow)


class FirstOrLast:
    """first or last: the first or last value in the order of the rows."""

    def __init__(self, kind: Type, last: bool) -> None:
        self.kind = kind
        self.last = last
        value = AccumulatorSlot(object, None, kind.arrow) if _is_object(kind) else _REAL if kind is Type.DOUBLE else _COUNT
        self.slots = (_COUNT, value)

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        rows = last_rows(codes, len(held[0])) if self.last else first_rows(codes, len(held[0]))
        chosen = np.flatnonzero((rows >= 0) & (self.last | (held[0] == 0)))
        rows = rows[chosen]
        held[1][chosen] = values.take(pa.array(rows)).to_pylist() if _is_object(self.kind) else values[rows]
        np.add.at(held[0], codes, 1)

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        chosen = (later[0] > 0) & (self.last | (held[0][at] == 0))
        held[1][at[chosen]] = later[1][chosen]
        held[0][at] += later[0]

    def result(self, held: AccumulatorColumns) -> pa.Array:
        if _is_object(self.kind):
            return pa.array(held[1].tolist(), self.kind.arrow)
        return _to_result(held[1], self.kind, held[0] == 0)


class Deviation:
    """The standard deviation of a sample or of a population.

    Columns: the count, the first value, the sum of the differences to it, and the sum of their squares.
    """

    slots: tuple[AccumulatorSlot, ...] = (_COUNT, _REAL, _REAL, _REAL)

    def __init__(self, sample: bool) -> None:
        self.sample = sample

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        count, origin, total, squares = held
        values = values.astype(np.float64)
        rows = first_rows(codes, len(count))
        new = np.flatnonzero((rows >= 0) & (count == 0))
        origin[new] = values[rows[new]]
        difference = values - origin[codes]
        np.add.at(count, codes, 1)
        np.add.at(total, codes, difference)
        np.add.at(squares, codes, difference * difference)

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        """Shift the later pane's sums to the earlier pane's first value, and add them."""
        count, origin, total, squares = (column[at] for column in held)
        more, from_origin, more_total, more_squares = later
        fresh = count == 0
        some = more > 0
        shift = np.where(fresh, 0.0, from_origin - origin)
        moved_total = more_total + more * shift
        moved_squares = more_squares + 2 * shift * more_total + more * shift * shift
        held[0][at] = count + more
        held[1][at] = np.where(fresh & some, from_origin, origin)
        held[2][at] = np.where(some, total + moved_total, total)
        held[3][at] = np.where(some, squares + moved_squares, squares)

    def result(self, held: AccumulatorColumns) -> pa.Array:
        count, _, total, squares = held
        freedom = count - 1 if self.sample else count
        missing = freedom <= 0
        about_mean = np.maximum(squares - total * total / np.maximum(count, 1), 0.0)
        return pa.array(np.sqrt(about_mean / np.where(missing, 1, freedom)), mask=missing)


def first_rows(codes: np.ndarray, count: int) -> np.ndarray:
    """The first row of each code below `count`; -1 if there is none."""
    rows = np.full(count, -1)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return rows


def last_rows(codes: np.ndarray, count: int) -> np.ndarray:
    """The last row of each code below `count`; -1 if there is none."""
    rows = np.full(count, -1)
    rows[codes] = np.arange(len(codes))
    return rows


def _divided(total: np.ndarray, count: np.ndarray) -> pa.Array:
    return pa.array(total / np.maximum(count, 1), mask=count == 0)
