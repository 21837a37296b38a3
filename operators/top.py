"""Top-k: when a window closes, the first k rows of each group in a given order, with their ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from boreal.model.errors import UserError
from boreal.model.schema import Schema, Type
from boreal.query.expressions import parse_order
from boreal.query.schemas import RANK
from operators.encoding import decode_batch, encode_batch
from operators.expressions import compile_expression
from operators.keys import Keys, sorting
from operators.state import Panes, append_chunk
from operators.windows import Windows

_SLACK = 4096
"""A pane is reduced when it has this many rows more than twice the rows that the last reduction kept."""


class Candidates:
    """A pane: all rows that may be among the first k, and some others. Chunks are shared with overlays."""

    __slots__ = ("chunks", "kept", "reduce", "rows")

    def __init__(self, reduce: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self.reduce = reduce
        self.chunks: tuple[pa.RecordBatch, ...] = ()
        self.rows = 0
        self.kept = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.chunks = append_chunk(self.chunks, batch)
        self.rows += batch.num_rows
        if self.rows > 2 * self.kept + _SLACK:
            reduced = self.reduce(self.content())
            self.chunks = (reduced,)
            self.rows = self.kept = reduced.num_rows

    def content(self) -> pa.RecordBatch:
        return self.chunks[0] if len(self.chunks) == 1 else pa.concat_batches(self.chunks)

    def overlay(self) -> Candidates:
        child = Candidates(self.reduce)
        child.absorb(self)
        return child

    def absorb(self, child: Candidates) -> None:
        self.chunks, self.rows, self.kept = child.chunks, child.rows, child.kept

    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self.chunks)


class TopOperator:
    """The first k rows by `order_by` (nulls last, ties by arrival) for each window and value of `by`.

    The output is windowed, with the columns `rank` and those of the input, ordered by (time, `by` ascending with nulls first,
    rank).
    """

    def __init__(
        self,
        name: str,
        input_schema: Schema,
        k: int,
        order_by: str,
        window_size_us: int,
        window_every_us: int,
        by: tuple[str, ...],
    ) -> None:
        field = f"operators.{name}"
        if RANK in input_schema.types:
            raise UserError(field, RANK, "the input has a column `rank` already", "rename it in a map before")
        self.name = name
        self.k = k
        self.windows = Windows(window_size_us, window_every_us)
        self.schema = Schema(((RANK, Type.INT), *input_schema.columns), windowed=True)
        order = parse_order(order_by, input_schema, f"{field}.order_by")
        self._order = [(compile_expression(expression), descending) for expression, descending in order]
        self._by = Keys.of(input_schema, by, f"{field}.by")
        self._input = input_schema.arrow
        self._attributes = len(input_schema.arrow) - len(input_schema.columns)
        self._arrow = self.schema.arrow
        self._nothing = self.schema.empty()
        self._kind = f"top {k} {order_by} {window_size_us} {window_every_us} {by} {input_schema}"

    def empty(self) -> Panes[Candidates]:
        return Panes(self._kind, self._write)

    def decode(self, blob: bytes) -> Panes[Candidates]:
        state = self.empty().decode(blob, self._read)
        self.windows.restore(state)
        return state

    def step(self, state: Panes[Candidates], batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        if batch.num_rows:
            for pane, begin, end in self.windows.split(batch):
                self.windows.open(state, pane)
                rows = batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)
                state.change(pane, partial(Candidates, self._reduce)).add(rows)
        if upto < state.next_close:
            state.upto = upto
            return self._nothing
        results = [self._result(end, panes) for end, panes in self.windows.close(state, upto)]
        return results[0] if len(results) == 1 else pa.concat_batches(results)

    def needs(self, time: int) -> int:
        return self.windows.first_start(time)

    def _ranked(self, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """(the first k rows of each group, their ranks), ordered by group and rank."""
        order = sorting([(run(rows), descending) for run, descending in self._order], "at_end")
        distinct, codes = self._by.encode(rows)
        codes = self._in_key_order(distinct)[codes][order]
        by_group = np.argsort(codes, kind="stable")
        order, codes = order[by_group], codes[by_group]
        begins = np.searchsorted(codes, np.arange(len(distinct)))
        ranks = np.arange(len(codes)) - begins[codes]
        best = ranks < self.k
        return order[best], ranks[best] + 1

    def _in_key_order(self, distinct: list[object]) -> np.ndarray:
        """The position of each key in ascending order."""
        places = np.zeros(len(distinct), np.intp)
        if len(distinct) > 1:
            order = sorting([(column, False) for column in self._by.arrays(distinct)], "at_start")
            places[order] = np.arange(len(distinct))
        return places

    def _reduce(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Remove rows that cannot be among the first k. Ties stay in order of arrival."""
        return rows.take(pa.array(self._ranked(rows)[0]))

    def _result(self, end: int, panes: list[Candidates]) -> pa.RecordBatch:
        rows = pa.concat_batches([pane.content() for pane in panes])
        chosen, ranks = self._ranked(rows)
        edges = [pa.array(np.full(len(chosen), edge)) for edge in (end - 1, end - self.windows.size, end)]
        columns = rows.take(pa.array(chosen)).columns[self._attributes :]
        return pa.RecordBatch.from_arrays([*edges, pa.array(ranks), *columns], schema=self._arrow)

    def _write(self, pane: Candidates) -> bytes:
        return encode_batch(self._reduce(pane.content()))

    def _read(self, blob: bytes) -> Candidates:
        pane = Candidates(self._reduce)
        batch = decode_batch(blob, self._input)
        pane.chunks, pane.rows, pane.kept = (batch,), batch.num_rows, batch.num_rows
        return pane
