"""Operators: windows, joins, aggregates, and the layers of their states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

import operators.aggregate
import operators.arguments
import operators.join
import operators.keys
from boreal.model.frames import INFINITY
from boreal.model.schema import Type
from operators import accumulators
from operators.accumulators import Deviation, Extreme, FirstOrLast, RealSum, _WideSum
from operators.aggregate import AggregateOperator
from operators.chunks import RowChunk, Side
from operators.deduplicate import DeduplicateOperator, LastTimes
from operators.filter import FilterOperator
from operators.groups import Groups
from operators.join import JoinOperator
from operators.keys import Keys
from operators.lookup import LookupOperator, NewestRows
from operators.sessions import SessionOperator, Sessions
from operators.state import NEVER, KeySet, Panes
from operators.top import TopOperator
from operators.union import UnionOperator
from operators.windows import Windows
from simulation.mutants.registry import Patch, caught_by, mutant


@caught_by("operators/test_operators.py", "test_a_join_pairs_rows_that_are_near_in_time")
def miss_partners_at_exactly_within(patch: Patch) -> None:
    """A join does not pair rows that are exactly `within` apart."""
    patch(RowChunk, "find", lambda original: lambda self, codes, times, within: original(self, codes, times, within - 1))


@caught_by("operators/test_operators.py", "test_a_left_row_that_finds_nobody_gets_nulls_once_nobody_can_come")
def find_no_later_partner_at_exactly_within(patch: Patch) -> None:
    """A join's newer row finds no older partner that is exactly `within` before it: that row was dropped too early."""
    patch(Side, "bury", lambda original: lambda self, alive: original(self, alive + 1))


@mutant
def match_nulls(patch: Patch) -> None:
    """A join pairs rows whose keys are null."""
    patch(Keys, "without_nulls", lambda _: lambda self, keys, codes: (keys, codes))


@mutant
def give_lonely_rows_their_own_time(patch: Patch) -> None:
    """A left row without a partner is emitted with its own time, which the boundary has passed (R6)."""

    def make(original: Any) -> Any:
        def take(self: JoinOperator, chunk: Any, since: int, alive: int, found: list[Any]) -> None:
            before = len(found)
            original(self, chunk, since, alive, found)
            found[before:] = [replace(pairs, times=pairs.times - self.within) for pairs in found[before:]]

        return take

    patch(JoinOperator, "_take_partnerless", make)


@mutant
def repeat_lonely_rows(patch: Patch) -> None:
    """A left row that has found partners gets a row of nulls as well."""
    patch(Side, "mark", lambda _: lambda self, place, rows: None)


@caught_by("operators/test_graph.py", "test_a_graph_keeps_the_promises_of_its_operators")
def mark_partners_in_a_shared_chunk(patch: Patch) -> None:
    """Partners that a left row found tentatively also count for the stable branch, because chunks are shared with
    overlays."""
    patch(RowChunk, "owned_by", lambda _: lambda self, side: self)


@caught_by("operators/test_operators.py", "test_what_a_join_needs")
def need_half_of_what_a_left_join_does(patch: Patch) -> None:
    """A left join is rebuilt from rows `within` back, although partners of its open rows may be twice as old (R20)."""
    patch(JoinOperator, "needs", lambda _: lambda self, time: max(time - self.within, -INFINITY))


@caught_by("operators/test_operators.py", "test_pairs_of_one_time_go_by_the_left_row_then_the_right")
def pair_in_the_order_of_arrival(patch: Patch) -> None:
    """A join's pairs are emitted as they were found, and not by (time, left row, right row) (R5)."""

    def make(_: Any) -> Any:
        return lambda times, left, right: np.argsort(times, kind="stable")

    patch(operators.join, "_order", make)


@mutant
def forget_the_rows_of_a_restored_join(patch: Patch) -> None:
    """A join whose state was restored has forgotten which left rows have found partners."""

    def make(original: Any) -> Any:
        def append(self: Side, batch: Any, codes: Any, matched: Any) -> None:
            original(self, batch, codes, np.zeros(len(matched), bool) if self.next == 0 else matched)

        return append

    patch(Side, "append", make)


@mutant
def close_windows_too_late(patch: Patch) -> None:
    """A window closes only after the boundary has passed its end, and not when it has reached it."""

    def make(original: Any) -> Any:
        return lambda self, state, upto: original(self, state, upto if upto >= INFINITY else upto - 1)

    patch(Windows, "close", make)


@mutant
def put_a_window_start_in_the_window_before(patch: Patch) -> None:
    """A row on a window's start counts for the window that ends there."""

    def make(original: Any) -> Any:
        def split(self: Windows, batch: Any) -> Any:
            times = batch.column(0).to_numpy() - 1
            return original(self, batch.set_column(0, batch.schema.field(0), pa.array(times)))

        return split

    patch(Windows, "split", make)


@mutant
def leave_out_the_first_pane(patch: Patch) -> None:
    """A sliding window lacks its oldest pane."""

    def make(original: Any) -> Any:
        def panes(self: Windows, end: int) -> range:
            whole: range = original(self, end)
            return whole[1:] if len(whole) > 1 else whole

        return panes

    patch(Windows, "panes", make)


@mutant
def add_panes_backwards(patch: Patch) -> None:
    """A sliding window's panes are added from the newest to the oldest (R5)."""
    patch(Windows, "panes", lambda original: lambda self, end: original(self, end)[::-1])


@mutant
def compute_an_open_window_at_once(patch: Patch) -> None:
    """A window with rows of an earlier step is computed from the rows of this step alone."""

    def make(original: Any) -> Any:
        def whole(self: Windows, state: Any, batch: Any, upto: int) -> Any:
            panes, state.panes = state.panes, {}
            found = original(self, state, batch, upto)
            state.panes = panes
            return found

        return whole

    patch(Windows, "whole", make)


@mutant
def forget_to_close_restored_windows(patch: Patch) -> None:
    """Windows of a state that was restored from a checkpoint close with the next row of their operator only."""

    def make(original: Any) -> Any:
        def restore(self: Windows, state: Any) -> None:
            if state.next_close != NEVER or not state.panes:
                original(self, state)

        return restore

    patch(Windows, "restore", make)


@mutant
def need_one_step_of_a_sliding_window(patch: Patch) -> None:
    """An aggregate is rebuilt from its window's last step on, as if that window were a tumbling one (R20)."""
    patch(AggregateOperator, "needs", lambda _: lambda self, time: time // self.windows.every * self.windows.every)


@mutant
def count_nulls(patch: Patch) -> None:
    """Aggregates take nulls for zeros, and count them."""

    def make(original: Any) -> Any:
        def prepare(array: Any, kind: Any) -> Any:
            fills = {Type.STRING: "", Type.DOUBLE: 0.0, Type.INT: 0}
            return original(array.fill_null(fills[kind]) if kind in fills else array, kind)

        return prepare

    patch(operators.arguments, "prepare", make)


@mutant
def add_doubles_by_steps(patch: Patch) -> None:
    """Doubles of one step are added up before they are added to the sum: the result depends on the steps (R5)."""

    def make(_: Any) -> Any:
        def fold(self: RealSum, held: Any, codes: Any, values: Any) -> None:
            np.add.at(held[0], codes, 1)
            held[1] += np.bincount(codes, weights=values, minlength=len(held[1]))

        return fold

    patch(RealSum, "fold", make)


@mutant
def take_the_newest_for_the_first(patch: Patch) -> None:
    """first(...) is the last value of each step."""

    def make(original: Any) -> Any:
        def fold(self: FirstOrLast, held: Any, codes: Any, values: Any) -> None:
            last, self.last = self.last, True
            original(self, held, codes, values)
            self.last = last

        return fold

    patch(FirstOrLast, "fold", make)


@mutant
def take_the_last_pane_as_the_first(patch: Patch) -> None:
    """first(...) of a sliding window is that of its newest pane."""

    def make(original: Any) -> Any:
        def combine(self: FirstOrLast, held: Any, at: Any, later: Any) -> None:
            last, self.last = self.last, True
            original(self, held, at, later)
            self.last = last

        return combine

    patch(FirstOrLast, "combine", make)


@caught_by("operators/test_operators.py", "test_double_keys_have_one_zero_and_one_nan")
def keep_two_zeros(patch: Patch) -> None:
    """0.0 and -0.0, and every NaN, are different keys."""

    def make(original: Any) -> Any:
        def comparable(column: Any, kind: Any) -> Any:
            return column.view(pa.int64()) if kind is Type.DOUBLE else original(column, kind)

        return comparable

    patch(operators.keys, "_comparable", make)


@caught_by("operators/test_operators.py", "test_nan_is_the_largest_double")
def pass_nan_over(patch: Patch) -> None:
    """NaN is no value for min and max, and not the largest double."""

    def make(original: Any) -> Any:
        def init(self: Extreme, kind: Any, largest: bool) -> None:
            original(self, kind, largest)
            if self.pick is np.maximum and kind is Type.DOUBLE:
                self.pick = np.fmax

        return init

    patch(Extreme, "__init__", make)


@mutant
def wrap_sums_on_their_way(patch: Patch) -> None:
    """A sum of ints keeps only its low part, and wraps around."""

    def make(_: Any) -> Any:
        def carried(self: _WideSum, held: Any) -> Any:
            return held[1] & accumulators._LOW, held[2]

        return carried

    patch(_WideSum, "carried", make)


@mutant
def put_null_keys_last(patch: Patch) -> None:
    """Results of one window are ordered by their keys with nulls last instead of first (R5)."""
    patch(operators.aggregate, "sorting", lambda original: lambda columns, nulls: original(columns, "at_end"))


@mutant
def leave_groups_in_the_order_of_arrival(patch: Patch) -> None:
    """Results of one window are emitted in the order in which their keys arrived (R5)."""

    def make(_: Any) -> Any:
        return lambda columns, nulls: np.arange(len(columns[0][0]))

    patch(operators.aggregate, "sorting", make)


@caught_by("operators/test_operators.py", "test_top_ranks_within_each_group")
def rank_ties_by_the_newest(patch: Patch) -> None:
    """top-k ranks the newest of equal rows first."""

    def make(original: Any) -> Any:
        def ranked(self: TopOperator, rows: Any) -> Any:
            back = rows.take(pa.array(np.arange(rows.num_rows)[::-1]))
            best, ranks = original(self, back)
            return rows.num_rows - 1 - best, ranks

        return ranked

    patch(TopOperator, "_ranked", make)


@caught_by("operators/test_graph.py", "test_a_graph_keeps_the_promises_of_its_operators")
def see_no_key_below_an_overlay(patch: Patch) -> None:
    """A set of keys on an overlay does not know the keys of the state below it: repeats are distinct again."""
    patch(KeySet, "__contains__", lambda _: lambda self, key: key in self.own)


@mutant
def add_keys_below_an_overlay(patch: Patch) -> None:
    """A set of keys in an aggregate is shared with its overlay: tentative rows leave their keys in the stable state."""
    patch(KeySet, "overlay", lambda _: lambda self: self)


@caught_by("operators/test_operators.py", "test_a_lookup_takes_the_newest_row_that_is_not_later")
def look_up_what_comes_later(patch: Patch) -> None:
    """A lookup finds the newest row of the step, also if it is later than the row that looks it up."""

    def make(original: Any) -> Any:
        def places(self: LookupOperator, layers: Any, left: Any, right: Any, keys: Any, codes: Any) -> Any:
            latest = left.set_column(0, left.schema.field(0), pa.array(np.full(left.num_rows, INFINITY)))
            return original(self, layers, latest, right, keys, codes)

        return places

    patch(LookupOperator, "_places", make)


@caught_by("operators/test_operators.py", "test_a_lookup_on_an_overlay_finds_what_came_before_and_what_replaced_it")
def look_nothing_up_below_an_overlay(patch: Patch) -> None:
    """A lookup on an overlay finds only rows that came since then."""
    patch(NewestRows, "layers", lambda _: property(lambda self: [self]))


@caught_by("operators/test_operators.py", "test_a_lookup_finds_no_row_that_was_deleted_before_and_keeps_nothing_of_it")
def find_what_was_deleted(patch: Patch) -> None:
    """A lookup takes a row that deletes for one that replaces."""
    patch(LookupOperator, "deletes", lambda _: lambda self, rows: np.zeros(rows.num_rows, bool))


@caught_by("operators/test_operators.py", "test_a_delete_on_an_overlay_hides_the_row_below_until_it_is_dropped")
def forget_deletes_on_an_overlay(patch: Patch) -> None:
    """On an overlay a row that deletes is dropped, as it is below: the row that it deletes shows through."""

    def make(original: Any) -> Any:
        def add(self: NewestRows, rows: pa.RecordBatch, keys: Any) -> None:
            kept = np.flatnonzero(~self.lookup.deletes(rows))
            original(self, rows.take(pa.array(kept)), [keys[place] for place in kept.tolist()])

        return add

    patch(NewestRows, "add", make)


@mutant
def forget_what_a_lookup_needs(patch: Patch) -> None:
    """A lookup is rebuilt without the rows of the table before (R20)."""
    patch(LookupOperator, "needs", lambda _: lambda self, time: -INFINITY if self.within is None else time)


@caught_by("operators/test_operators.py", "test_a_lookup_takes_the_newest_row_that_is_not_later")
def look_up_a_row_that_is_too_old(patch: Patch) -> None:
    """A lookup takes a row of the table that is a microsecond older than `within`."""
    _with_another(patch, LookupOperator, "within", lambda within: None if within is None else within + 1)


@mutant
def end_sessions_a_microsecond_late(patch: Patch) -> None:
    """A row exactly a gap after the last one goes on with its session."""
    _with_another(patch, SessionOperator, "gap", lambda gap: gap + 1)


@mutant
def let_sessions_go_on(patch: Patch) -> None:
    """Sessions do not end at multiples of `longest`."""
    _with_another(patch, SessionOperator, "longest", lambda _: None)


@mutant
def leave_out_repeats_at_exactly_within(patch: Patch) -> None:
    """A deduplicate leaves out a row exactly `within` after one with the same values."""
    _with_another(patch, DeduplicateOperator, "within", lambda within: within + 1)


@mutant
def forget_when_a_repeat_came(patch: Patch) -> None:
    """A deduplicate counts from the last row that it gave, and not from the last one that came."""

    def make(original: Any) -> Any:
        def note(self: LastTimes, key: Any, time: int) -> None:
            if self.get(key) is None:
                original(self, key, time)

        return note

    patch(LastTimes, "note", make)


def _with_another(patch: Patch, operator: type, name: str, change: Any) -> None:
    """One attribute of an operator is changed when it is made."""

    def make(original: Any) -> Any:
        def init(self: Any, *arguments: Any) -> None:
            original(self, *arguments)
            setattr(self, name, change(getattr(self, name)))

        return init

    patch(operator, "__init__", make)


@caught_by("operators/test_operators.py", "test_a_session_goes_on_on_an_overlay")
def begin_a_session_on_an_overlay(patch: Patch) -> None:
    """On an overlay, rows go on with no session of the state below: each begins one of its own."""
    patch(Sessions, "ends", lambda original: lambda self, keys: original(_without_what_is_below(self), keys))


def _without_what_is_below(state: Sessions) -> Sessions:
    groups = Groups(state.groups.layout)
    groups.places, groups.columns = state.groups.places, state.groups.columns
    return Sessions(state.operator, groups, state.upto, state.next_close)


@mutant
def rebuild_sessions_from_a_gap_before(patch: Patch) -> None:
    """A session is rebuilt from the rows of one gap, as if it could not be longer (R20)."""

    def make(original: Any) -> Any:
        def needs(self: SessionOperator, time: int) -> int:
            return time - self.gap if self.longest is not None else int(original(self, time))

        return needs

    patch(SessionOperator, "needs", make)


@caught_by("operators/test_operators.py", "test_a_session_that_follows_one_with_other_values_counts_its_own")
def add_the_values_of_the_session_before(patch: Patch) -> None:
    """When an overlay is adopted, the set of values of a session that it has begun is added to that of the one before."""

    def make(_: Any) -> Any:
        def absorb(self: Groups, child: Groups) -> None:
            rows = self.touch(list(child.places))
            for slot, mine, theirs in zip(self.slots, self.columns, child.columns, strict=True):
                if slot.layered:
                    for row, keys in zip(rows.tolist(), theirs, strict=False):
                        mine[row].absorb(keys)
                else:
                    mine[rows] = theirs[: len(rows)]

        return absorb

    patch(Groups, "absorb", make)


@caught_by("operators/test_operators.py", "test_a_deduplicate_on_an_overlay_knows_what_came_before")
def see_no_time_below_an_overlay(patch: Patch) -> None:
    """A deduplicate on an overlay does not know when keys came before it: repetitions are given again."""
    patch(LastTimes, "get", lambda _: lambda self, key: self.own.get(key))


@mutant
def rebuild_a_deduplicate_from_nothing(patch: Patch) -> None:
    """A deduplicate is rebuilt without the rows of `within` before, which others repeat (R20)."""
    patch(DeduplicateOperator, "needs", lambda _: lambda self, time: time)


@caught_by("operators/test_graph.py", "test_a_graph_keeps_the_promises_of_its_operators")
def keep_windows_that_an_overlay_closed(patch: Patch) -> None:
    """When a correction's state is adopted, windows that it has closed stay open, and close again."""

    def make(original: Any) -> Any:
        def absorb(self: Panes[Any], child: Panes[Any]) -> None:
            kept = {number: pane for number, pane in self.panes.items() if number not in child.panes}
            original(self, child)
            self.panes.update(kept)

        return absorb

    patch(Panes, "absorb", make)


@mutant
def change_a_pane_of_the_state_below(patch: Patch) -> None:
    """A pane that was there before an overlay is changed in place, for the state below too."""
    patch(Panes, "_changed", lambda _: lambda self, number: self.panes[number])


@caught_by("operators/test_graph.py", "test_a_graph_keeps_the_promises_of_its_operators")
def read_nothing_below_an_overlay(patch: Patch) -> None:
    """A group that an overlay changes begins empty, and not with the value of the state below."""
    patch(Groups, "_copy_from_below", lambda _: lambda self, keys: None)


@mutant
def let_nulls_pass_a_filter(patch: Patch) -> None:
    """A filter keeps rows for which its condition is null."""

    def make(_: Any) -> Any:
        def step(self: FilterOperator, state: Any, batches: Any, upto: int) -> Any:
            (batch,) = batches
            return batch.filter(self._where(batch).fill_null(True)) if batch.num_rows else batch

        return step

    patch(FilterOperator, "step", make)


@caught_by("operators/test_operators.py", "test_union_merges_by_time_then_input")
def unite_in_the_order_of_inputs(patch: Patch) -> None:
    """A union inside a fragment gives the rows of its first input before those of the second (R5)."""

    def make(_: Any) -> Any:
        def step(self: UnionOperator, state: Any, batches: Any, upto: int) -> Any:
            return pa.concat_batches([batch.select(self._names) for batch in batches])

        return step

    patch(UnionOperator, "step", make)


@mutant
def divide_a_sample_by_all(patch: Patch) -> None:
    """stddev divides by the number of values, as if they were the whole population."""

    def make(original: Any) -> Any:
        def init(self: Deviation, sample: bool) -> None:
            original(self, False)

        return init

    patch(Deviation, "__init__", make)


@mutant
def add_deviations_of_different_origins(patch: Patch) -> None:
    """Panes' sums of differences are added although each is relative to another first value."""

    def make(_: Any) -> Any:
        def combine(self: Deviation, held: Any, at: Any, later: Any) -> None:
            held[1][at] = np.where(held[0][at] == 0, later[1], held[1][at])
            for place in (0, 2, 3):
                held[place][at] += later[place]

        return combine

    patch(Deviation, "combine", make)
