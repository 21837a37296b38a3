"""The accumulators of the aggregations, over numpy columns with one row per group.

Results must not depend on where the rows are divided into steps (R5). So doubles are added one by one in the order of the
rows, to the sum so far (`np.add.at` does this). Integer sums are wider than int64, so that only the final sum can overflow
(to null), not an intermediate one. A standard deviation is computed from differences to the group's first value. Nulls are
removed before rows get here. NaN counts as the largest double. Callers disable numpy's warnings about infinities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from boreal.model.schema import Type
from boreal.query.expressions import Aggregation
from operators.keys import comparable_values, storage
from operators.state import KeySet

AccumulatorColumns = list[np.ndarray]
"""The columns of an accumulator, with one row per group."""

_LOW_BITS = 32
_LOW = (1 << _LOW_BITS) - 1


@dataclass(frozen=True)
class AccumulatorSlot:
    """The type of one column of an accumulator."""

    dtype: Any
    """numpy type of the column."""
    initial: object
    """Value of a group without rows."""
    arrow: pa.DataType
    """Arrow type of the encoded column."""
    layered: bool = False
    """Whether the values are KeySets, which get an overlay before their first change."""

    def fresh(self, count: int) -> np.ndarray:
        """A column for `count` groups without rows."""
        column = np.full(count, self.initial, self.dtype)
        if self.layered:
            column[:] = [KeySet() for _ in range(count)]
        return column

    def to_arrow(self, column: np.ndarray) -> pa.Array:
        """The column in its encoded type."""
        if self.layered:
            return pa.array([list(keys) for keys in column], self.arrow)
        return pa.array(column.tolist() if self.dtype is object else column, self.arrow)

    def from_arrow(self, array: pa.Array) -> np.ndarray:
        """The inverse of `to_arrow`."""
        if self.dtype is not object:
            return np.array(array)
        column = np.empty(len(array), object)
        column[:] = [KeySet(keys) for keys in array.to_pylist()] if self.layered else array.to_pylist()
        return column


_COUNT = AccumulatorSlot(np.int64, 0, pa.int64())
_REAL = AccumulatorSlot(np.float64, 0.0, pa.float64())
_TEXT = AccumulatorSlot(object, None, pa.string())


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
        case "sum":
            return IntSum() if argument.type is Type.INT else RealSum()
        case "avg":
            return IntMean() if argument.type is Type.INT else RealMean()
        case "min" | "max" as name:
            return TextExtreme(name == "max") if argument.type is Type.STRING else Extreme(argument.type, name == "max")
        case "first" | "last" as name:
            return FirstOrLast(argument.type, name == "last")
        case name:
            return Deviation(sample=name == "stddev")


def prepare(array: pa.Array, kind: Type) -> tuple[np.ndarray | None, Any]:
    """(mask of the rows that are not null, None for all; the values of those rows: numpy int64 or float64; an Arrow array for
    strings)."""
    kept = None
    if array.null_count:
        kept = array.is_valid().to_numpy(zero_copy_only=False)
        array = array.drop_null()
    match kind:
        case Type.STRING:
            return kept, array
        case Type.TIMESTAMP:
            return kept, array.view(pa.int64()).to_numpy()
        case Type.BOOL:
            return kept, array.to_numpy(zero_copy_only=False).astype(np.int64)
        case _:
            return kept, array.to_numpy()


def _to_result(values: np.ndarray, kind: Type, missing: np.ndarray) -> pa.Array:
    if kind is Type.BOOL:
        return pa.array(values.astype(bool), mask=missing)
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
        # `prepare` turns timestamps and bools into ints.
        self.kind = kind if kind in (Type.STRING, Type.DOUBLE) else Type.INT
        self.slots = (AccumulatorSlot(object, None, pa.list_(storage(self.kind)), layered=True),)

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        array = values if self.kind is Type.STRING else pa.array(values)
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
    """min or max of numbers, timestamps or bools."""

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


class TextExtreme:
    """min or max of strings by code points, which is the order of their UTF-8 bytes."""

    slots: tuple[AccumulatorSlot, ...] = (_TEXT,)

    def __init__(self, largest: bool) -> None:
        self.largest = largest
        self.pick: Callable[[str, str], str] = max if largest else min

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        words, places = comparable_values(values, Type.STRING)
        order = sorted(words, reverse=self.largest)
        rank = {word: place for place, word in enumerate(order)}
        best = np.full(len(held[0]), len(order))
        np.minimum.at(best, codes, np.array([rank[word] for word in words], np.intp)[places])
        touched = np.flatnonzero(best < len(order))
        self._offer(held[0], touched.tolist(), [order[place] for place in best[touched].tolist()])

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        self._offer(held[0], at.tolist(), later[0].tolist())

    def _offer(self, column: np.ndarray, places: list[int], words: list[str | None]) -> None:
        for place, word in zip(places, words, strict=True):
            if word is not None:
                held = column[place]
                column[place] = word if held is None else self.pick(held, word)

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return pa.array(held[0].tolist(), pa.string())


class FirstOrLast:
    """first or last: the first or last value in the order of the rows."""

    def __init__(self, kind: Type, last: bool) -> None:
        self.kind = kind
        self.last = last
        self.slots = (_COUNT, _TEXT if kind is Type.STRING else _REAL if kind is Type.DOUBLE else _COUNT)

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        rows = last_rows(codes, len(held[0])) if self.last else first_rows(codes, len(held[0]))
        chosen = np.flatnonzero((rows >= 0) & (self.last | (held[0] == 0)))
        rows = rows[chosen]
        held[1][chosen] = values.take(pa.array(rows)).to_pylist() if self.kind is Type.STRING else values[rows]
        np.add.at(held[0], codes, 1)

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        chosen = (later[0] > 0) & (self.last | (held[0][at] == 0))
        held[1][at[chosen]] = later[1][chosen]
        held[0][at] += later[0]

    def result(self, held: AccumulatorColumns) -> pa.Array:
        if self.kind is Type.STRING:
            return pa.array(held[1].tolist(), pa.string())
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
