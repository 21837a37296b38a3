"""Approximate aggregations: the number of distinct values, and quantiles, in state of bounded size.

Both states are sets of small ints that merge by maximum or by addition. So they do not depend on the order of rows, on steps,
on panes or on how often they were encoded, and replicas agree to the last byte; a test holds that. No logarithm is taken, whose
last bit may differ between machines.

Distinct values: HyperLogLog with 2**12 registers, of which those that are not empty are kept, and the estimator of Ertl ("New
cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6), which needs no tables. Its standard error is
1.04 / 64 = 1.6 %.

Quantiles: counts of values whose doubles agree in sign, exponent and the first 8 bits of the fraction, as DDSketch (Masson,
Rim and Lee, 2019) counts by logarithms. A bucket's value is its end nearer to zero. So the magnitude of a result is at most
2**-8 = 0.4 % below the exact one's, and whole numbers up to 512 are exact; below the least normal double, 2e-308, it may be 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from boreal.model.schema import Type
from operators.accumulator_slots import AccumulatorColumns, AccumulatorSlot
from operators.keys import comparable_values

_SKETCH = AccumulatorSlot(object, b"", pa.binary())

_REGISTER_BITS = 12
_REGISTERS = 1 << _REGISTER_BITS
_RANK_BITS = 6
_MOST_LEADING = 64 - _REGISTER_BITS
_ALPHA = 0.5 / 0.6931471805599453  # 1 / (2 ln 2)

_FRACTION_BITS = 8
_SHIFT = 52 - _FRACTION_BITS
_BUCKET = np.dtype([("bucket", "<i4"), ("count", "<i8")])


class ApproximateDistinct:
    """approx_count_distinct: an estimate of the number of distinct values.

    State: for each register that is not empty, register * 64 + rank, in order, as 32-bit ints.
    """

    slots: tuple[AccumulatorSlot, ...] = (_SKETCH,)

    def __init__(self, kind: Type) -> None:
        self.kind = kind

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        hashes = self._hashes(values)
        registers = (hashes >> np.uint64(_MOST_LEADING)).astype(np.int64)
        rest = hashes << np.uint64(_REGISTER_BITS)
        entries = (registers << _RANK_BITS) | _ranks(rest)
        _merge_rows(held[0], codes, entries, _merged_registers, "<u4")

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        _merge_panes(held[0], at, later[0], _merged_registers, np.dtype("<u4"))

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return pa.array([_estimate(np.frombuffer(sketch, "<u4")) for sketch in held[0]], pa.int64())

    def _hashes(self, values: Any) -> np.ndarray:
        """64 bits of each value; equal values have equal ones. Not those by which rows are sharded, since the values of one
        shard agree in these."""
        if isinstance(values, np.ndarray) and values.dtype == np.int64:
            return _mixed(values.view(np.uint64))
        kind = self.kind if isinstance(values, pa.Array) else Type.DOUBLE
        distinct, places = comparable_values(values if isinstance(values, pa.Array) else pa.array(values), kind)
        if kind is Type.DOUBLE:
            hashes: np.ndarray = _mixed(np.array(distinct, np.int64).view(np.uint64))[places]
            return hashes
        digests = b"".join(hashlib.blake2b(str(value).encode(), digest_size=8).digest() for value in distinct)
        hashes = np.frombuffer(digests, "<u8").astype(np.uint64)[places]
        return hashes


class ApproximateQuantile:
    """approx_quantile: an estimate of the smallest value that a share of the values does not exceed. NaN is the largest double.

    State: the buckets that have values, in order, with the number of their values.
    """

    slots: tuple[AccumulatorSlot, ...] = (_SKETCH,)

    def __init__(self, share: Fraction) -> None:
        self.share = share

    def fold(self, held: AccumulatorColumns, codes: np.ndarray, values: Any) -> None:
        buckets = _buckets(values.astype(np.float64))
        entries = np.empty(len(buckets), _BUCKET)
        entries["bucket"], entries["count"] = buckets, 1
        _merge_rows(held[0], codes, entries, _merged_buckets, _BUCKET)

    def combine(self, held: AccumulatorColumns, at: np.ndarray, later: AccumulatorColumns) -> None:
        _merge_panes(held[0], at, later[0], _merged_buckets, _BUCKET)

    def result(self, held: AccumulatorColumns) -> pa.Array:
        return pa.array([self._value(np.frombuffer(sketch, _BUCKET)) for sketch in held[0]], pa.float64(), from_pandas=False)

    def _value(self, sketch: np.ndarray) -> float | None:
        if not len(sketch):
            return None
        so_far = np.cumsum(sketch["count"])
        rank = max(math.ceil(self.share * int(so_far[-1])), 1)
        return _value_of(int(sketch["bucket"][np.searchsorted(so_far, rank)]))


Merge = Callable[[np.ndarray], np.ndarray]
"""Entries of one group, in any order, to its canonical sketch."""


def _merge_rows(column: np.ndarray, codes: np.ndarray, entries: np.ndarray, merge: Merge, kind: Any) -> None:
    """Add each row's entry to the sketch of its group."""
    order = np.argsort(codes, kind="stable")
    groups, begins = np.unique(codes[order], return_index=True)
    parts = np.split(entries[order].astype(kind, copy=False), begins[1:])
    for group, part in zip(groups.tolist(), parts, strict=False):
        column[group] = merge(np.concatenate((np.frombuffer(column[group], kind), part))).tobytes()


def _merge_panes(column: np.ndarray, at: np.ndarray, later: np.ndarray, merge: Merge, kind: np.dtype[Any]) -> None:
    for place, sketch in zip(at.tolist(), later, strict=True):
        if not column[place]:
            column[place] = sketch
        elif sketch:
            column[place] = merge(np.frombuffer(column[place] + sketch, kind)).tobytes()


def _merged_registers(entries: np.ndarray) -> np.ndarray:
    """The highest rank of each register."""
    entries = np.unique(entries)
    registers = entries >> _RANK_BITS
    highest: np.ndarray = entries[np.append(registers[1:] != registers[:-1], True)]
    return highest


def _merged_buckets(entries: np.ndarray) -> np.ndarray:
    """The number of values in each bucket."""
    buckets, places = np.unique(entries["bucket"], return_inverse=True)
    merged = np.zeros(len(buckets), _BUCKET)
    merged["bucket"] = buckets
    np.add.at(merged["count"], places, entries["count"])
    return merged


def _mixed(values: np.ndarray) -> np.ndarray:
    """64 bits that all depend on all 64 bits of a value (the finaliser of SplitMix64, after its first addition)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray = mixed ^ (mixed >> np.uint64(31))
    return result


def _ranks(bits: np.ndarray) -> np.ndarray:
    """The place of the first bit that is set, from 1; one more than there can be if none is."""
    high, low = (bits >> np.uint64(32)).astype(np.float64), (bits & np.uint64(0xFFFFFFFF)).astype(np.float64)
    # Ints of 32 bits are exact doubles, whose exponents are the places of their first bits.
    leading = np.where(high > 0, 32 - np.frexp(high)[1], np.where(low > 0, 64 - np.frexp(low)[1], _MOST_LEADING))
    return np.minimum(leading, _MOST_LEADING).astype(np.int64) + 1


def _estimate(entries: np.ndarray) -> int:
    counts = np.bincount(entries & ((1 << _RANK_BITS) - 1), minlength=_MOST_LEADING + 2).tolist()
    empty = _REGISTERS - len(entries)
    if empty == _REGISTERS:
        return 0
    total = _REGISTERS * _tau(1 - counts[_MOST_LEADING + 1] / _REGISTERS)
    for rank in range(_MOST_LEADING, 0, -1):
        total = 0.5 * (total + counts[rank])
    total += _REGISTERS * _sigma(empty / _REGISTERS)
    return round(_ALPHA * _REGISTERS * _REGISTERS / total)


def _sigma(x: float) -> float:
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before = math.sqrt(x), z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3


def _buckets(values: np.ndarray) -> np.ndarray:
    """The bucket of each double, rising with it: below 0 for those below zero."""
    values = values + 0.0  # one zero
    values[np.isnan(values)] = np.nan  # one NaN
    magnitudes = (values.view(np.uint64) & np.uint64(0x7FFF_FFFF_FFFF_FFFF)) >> np.uint64(_SHIFT)
    return np.where(np.signbit(values), -1 - magnitudes.astype(np.int64), magnitudes.astype(np.int64))


def _value_of(bucket: int) -> float:
    """The end of a bucket that is nearer to zero."""
    value = float(np.array((bucket if bucket >= 0 else -1 - bucket) << _SHIFT, np.uint64).view(np.float64))
    return value if bucket >= 0 else 0.0 - value
