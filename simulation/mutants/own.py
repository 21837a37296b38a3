"""Operators of installed packages: their state, their windows, and what is checked of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import operators.python
from operators.groups import Groups
from operators.python import _Guard, _Keeper
from simulation.mutants.registry import Patch, caught_by, mutant


@mutant
def leave_own_results_in_the_order_of_arrival(patch: Patch) -> None:
    """The results of a window of one's own leave in the order in which their keys came (R5)."""
    patch(operators.python, "sorting", lambda _: lambda columns, nulls: np.arange(len(columns[0][0])))


@mutant
def rebuild_own_state_from_nothing(patch: Patch) -> None:
    """An operator of one's own is rebuilt without the rows of its open window (R20)."""
    patch(_Keeper, "needs", lambda _: lambda self, time: time)


@mutant
def forget_to_close_restored_own_windows(patch: Patch) -> None:
    """Windows of one's own that were open in a checkpoint never close."""
    patch(
        _Keeper,
        "decode",
        lambda _: lambda self, blob: self.empty().decode(blob, partial(Groups.decode, self.layout)),
    )


@mutant
def count_a_step_for_its_first_window(patch: Patch) -> None:
    """All rows of a step go to the state of the window of the first."""

    def make(original: Any) -> Any:
        def panes(windows: Any, state: Any, batch: Any) -> list[tuple[int, int, int]]:
            return [(original(windows, state, batch)[0][0], 0, batch.num_rows)]

        return panes

    patch(operators.python, "open_panes", make)


@caught_by("boreal/test_own_operators.py", "test_what_breaks_the_contract_is_named_as_it_comes")
def let_own_rows_have_any_time(patch: Patch) -> None:
    """The rows that a class returns may be of any time, and in any order (R6)."""
    patch(_Guard, "_check_times", lambda _: lambda self, made, first, last: None)
