"""The window aggregate: when a window closes, one row for each of its groups that has input rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.schema import Schema
from boreal.query.expressions import parse_aggregation
from operators.accumulators import make_accumulator
from operators.arguments import Arguments
from operators.groups import GroupLayout, Groups
from operators.keys import Keys, sorting
from operators.state import Panes
from operators.windows import Windows


class AggregateOperator:
    """Groups rows by the columns `by` in tumbling (every = size) or sliding windows.

    A window's rows are output when upto reaches its end, with time = its end - 1 (R6), sorted by the key's columns: ascending,
    nulls first, strings by their UTF-8 bytes (R5). A sliding window's sums are its panes' sums, added in order of time.
    """

    def __init__(
        self,
        name: str,
        input_schema: Schema,
        window_size_us: int,
        window_every_us: int,
        by: tuple[str, ...],
        compute: Mapping[str, str],
    ) -> None:
        field = f"operators.{name}"
        self.name = name
        self.windows = Windows(window_size_us, window_every_us)
        computed = {
            column: parse_aggregation(sql, input_schema, f"{field}.compute.{column}") for column, sql in compute.items()
        }
        self.layout = GroupLayout(
            Keys.of(input_schema, by, f"{field}.by"),
            tuple(make_accumulator(entry) for entry in computed.values()),
        )
        grouped = [(column, input_schema.types[column]) for column in by]
        self.schema = Schema((*grouped, *((column, entry.type) for column, entry in computed.items())), windowed=True)
        self._arguments = Arguments(computed.values())
        self._arrow = self.schema.arrow
        self._nothing = self.schema.empty()
        self._kind = f"aggregate {window_size_us} {window_every_us} {grouped} {dict(compute)}"

    def empty(self) -> Panes[Groups]:
        return Panes(self._kind, Groups.encode)

    def decode(self, blob: bytes) -> Panes[Groups]:
        state = self.empty().decode(blob, partial(Groups.decode, self.layout))
        self.windows.restore(state)
        return state

    def step(self, state: Panes[Groups], batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        whole = self._nothing
        if batch.num_rows:
            begin, end = self.windows.whole(state, batch, upto)
            with np.errstate(all="ignore"):
                for rows in (batch.slice(0, begin), batch.slice(end)):
                    if rows.num_rows:
                        self._take(state, rows)
                if begin < end:
                    whole = self._at_once(batch.slice(begin, end - begin))
        if upto < state.next_close:
            state.upto = upto
            return whole
        with np.errstate(all="ignore"):
            results = [self._result(end, panes) for end, panes in self.windows.close(state, upto)]
        if whole.num_rows:
            results.append(whole)
        return results[0] if len(results) == 1 else pa.concat_batches(results)

    def needs(self, time: int) -> int:
        return min(time, self.windows.first_start(time))

    def _take(self, state: Panes[Groups], batch: pa.RecordBatch) -> None:
        for pane, begin, end in self.windows.split(batch):
            self.windows.open(state, pane)
            rows = batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)
            distinct, codes = self.layout.keys.encode(rows)
            state.change(pane, partial(Groups, self.layout)).fold(distinct, codes, self._arguments.values(rows))

    def _at_once(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The results of windows that open and close within this step, and so leave no state. Groups are (window, key) pairs,
        numbered in the order of the results, and all are folded together."""
        keys, codes = self.layout.keys.encode(rows)
        key_columns = self.layout.keys.arrays(keys)
        if len(keys) > 1:
            order = sorting([(column, False) for column in key_columns], "at_start")
            key_columns = [column.take(pa.array(order)) for column in key_columns]
            rank = np.empty(len(keys), np.intp)
            rank[order] = np.arange(len(keys))
            codes = rank[codes]
        panes = event_times(rows) // self.windows.pane
        is_new = np.concatenate(([False], panes[1:] != panes[:-1]))
        groups, places = _numbered(np.cumsum(is_new) * len(keys) + codes)
        held = [slot.fresh(len(groups)) for slot in self.layout.slots]
        shares = self.layout.shares(held)
        arguments = self._arguments.values(rows)
        for entry, share, (kept, values) in zip(self.layout.accumulators, shares, arguments, strict=True):
            entry.fold(share, places if kept is None else places[kept], values)
        starts = (panes[np.concatenate(([0], np.flatnonzero(is_new)))] * self.windows.pane)[groups // len(keys)]
        ends = starts + self.windows.size
        edges = [pa.array(edge) for edge in (ends - 1, starts, ends)]
        taken = [column.take(pa.array(groups % len(keys))) for column in key_columns]
        computed = [entry.result(share) for entry, share in zip(self.layout.accumulators, shares, strict=True)]
        return pa.RecordBatch.from_arrays([*edges, *taken, *computed], schema=self._arrow)

    def _result(self, end: int, panes: list[Groups]) -> pa.RecordBatch:
        groups = panes[0]
        if self.windows.size != self.windows.every:
            groups = Groups(self.layout)
            for pane in panes:
                groups.combine(pane)
        keys, columns = groups.content()
        key_columns = self.layout.keys.arrays(keys)
        if len(keys) > 1:
            order = sorting([(column, False) for column in key_columns], "at_start")
            key_columns = [column.take(pa.array(order)) for column in key_columns]
            columns = [column[order] for column in columns]
        edges = [pa.array(np.full(len(keys), edge)) for edge in (end - 1, end - self.windows.size, end)]
        shares = zip(self.layout.accumulators, self.layout.shares(columns), strict=True)
        computed = [entry.result(share) for entry, share in shares]
        return pa.RecordBatch.from_arrays([*edges, *key_columns, *computed], schema=self._arrow)


def _numbered(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the distinct codes, ascending; the index of each row's code among them)."""
    limit = int(codes.max()) + 1
    if limit > 8 * len(codes):
        return np.unique(codes, return_inverse=True)
    is_there = np.zeros(limit, bool)
    is_there[codes] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[codes]
