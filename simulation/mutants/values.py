"""Decimals and estimates: their sums, their doubles, and how they are merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import operators.decimals
import operators.sketches
from boreal.model.decimals import from_unscaled
from operators import accumulators
from operators.accumulators import DecimalSum
from operators.sketches import ApproximateQuantile
from simulation.mutants.registry import Patch, caught_by, mutant


@caught_by("operators/test_decimals.py", "test_what_has_too_many_digits_is_null")
def round_halves_to_even(patch: Patch) -> None:
    """A cast of a decimal rounds halves to the even neighbour, and not away from zero."""
    patch(operators.decimals, "_ROUND_MODES", lambda original: {**original, "round": "half_to_even"})


@caught_by("operators/test_decimals.py", "test_a_sum_of_too_many_digits_is_null_and_no_row_is_lost_on_its_way")
def wrap_sums_of_decimals(patch: Patch) -> None:
    """A sum with more digits than its type loses the first ones, and is not null."""

    def make(_: Any) -> Any:
        def result(self: DecimalSum, held: Any) -> pa.Array:
            limit = 10**self.kind.digits
            totals = [None if total is None else (abs(total) % limit) * (1 if total > 0 else -1) for total in self.totals(held)]
            return from_unscaled(totals, self.kind.arrow)

        return result

    patch(DecimalSum, "result", make)


@mutant
def add_the_lower_half_of_decimals(patch: Patch) -> None:
    """Of a decimal's 128 bits the upper 64 are left out of sums."""

    def make(original: Any) -> Any:
        def halves(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
            low, high = original(column)
            return low, np.zeros_like(high)

        return halves

    patch(accumulators, "unscaled_halves", make)


@mutant
def make_doubles_of_decimals_by_a_product(patch: Patch) -> None:
    """A decimal becomes its digits times a negative power of ten, which is not always the nearest double."""
    patch(operators.decimals, "nearest_doubles", lambda _: lambda column: column.cast(pa.float64()))


@caught_by("operators/test_sketches.py", "test_an_estimate_of_distinct_values_is_within_four_standard_errors")
def keep_the_lowest_rank_of_a_register(patch: Patch) -> None:
    """Of several values in one register of an estimate, the lowest rank is kept."""

    def make(_: Any) -> Any:
        def merged(entries: np.ndarray) -> np.ndarray:
            entries = np.unique(entries)
            registers = entries >> 6
            lowest: np.ndarray = entries[np.append(True, registers[1:] != registers[:-1])]
            return lowest

        return merged

    patch(operators.sketches, "_merged_registers", make)


@caught_by("operators/test_sketches.py", "test_estimates_of_sliding_windows_merge_their_panes")
def estimate_from_the_last_pane(patch: Patch) -> None:
    """A sliding window's estimate is that of its last pane."""

    def make(_: Any) -> Any:
        def merge(column: np.ndarray, at: np.ndarray, later: np.ndarray, *_: Any) -> None:
            for place, sketch in zip(at.tolist(), later, strict=True):
                column[place] = sketch or column[place]

        return merge

    patch(operators.sketches, "_merge_panes", make)


@mutant
def count_equal_values_once(patch: Patch) -> None:
    """An estimated quantile counts values of one bucket as one value."""

    def make(original: Any) -> Any:
        def merged(entries: np.ndarray) -> np.ndarray:
            found: np.ndarray = original(entries)
            found["count"] = 1
            return found

        return merged

    patch(operators.sketches, "_merged_buckets", make)


@mutant
def take_the_value_after_the_quantile(patch: Patch) -> None:
    """An estimated quantile is the next value that is larger, if there is one."""

    def make(original: Any) -> Any:
        def value(self: ApproximateQuantile, sketch: np.ndarray) -> Any:
            return original(self, sketch[1:] if len(sketch) > 1 else sketch)

        return value

    patch(ApproximateQuantile, "_value", make)


@mutant
def count_negative_values_as_positive(patch: Patch) -> None:
    """An estimated quantile does not see a value's sign."""
    patch(operators.sketches, "_buckets", lambda original: lambda values: original(np.abs(values)))
