"""The window join: pairs of rows of two streams with equal keys and times at most `within` apart; inner or left join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.errors import CorruptError, UserError
from boreal.model.frames import INFINITY
from boreal.model.schema import RESERVED, Schema
from operators.chunks import Numbering, RowChunk, Side
from operators.encoding import decode_batch, encode_batch, pack, unpack
from operators.keys import Keys

_FLAGS = pa.schema([("matched", pa.bool_())])
_NO_CODES = np.empty(0, np.intp)

_FEW_KEYS = 4096
"""Number of unused keys that may keep their numbers."""


class JoinState:
    """The rows of both sides that are alive after the step up to `upto`, and the numbers of their keys."""

    __slots__ = ("join", "left", "numbering", "right", "upto")

    def __init__(self, join: JoinOperator, left: Side, right: Side, numbering: Numbering, upto: int) -> None:
        self.join = join
        self.left = left
        self.right = right
        self.numbering = numbering
        self.upto = upto

    def overlay(self) -> JoinState:
        numbering = Numbering(self.numbering)
        return JoinState(self.join, self.left.overlay(), self.right.overlay(), numbering, self.upto)

    def absorb(self, child: JoinState) -> None:
        self.left.absorb(child.left)
        self.right.absorb(child.right)
        self.numbering.absorb(child.numbering)
        self.upto = child.upto

    def forget_keys(self) -> None:
        """Drop the numbers of unused keys, once they are the majority. Never in an overlay, since its parent uses them."""
        rows = len(self.left) + len(self.right)
        if self.numbering.parent is not None or len(self.numbering) <= 2 * rows + _FEW_KEYS:
            return
        chunks = (*self.left.chunks, *self.right.chunks)
        used = np.unique(np.concatenate([_NO_CODES, *(chunk.codes for chunk in chunks)]))
        used = used[used >= 0]
        codes = np.full(len(self.numbering) + 1, -1)
        codes[used] = np.arange(len(used))
        self.left.recode(codes)
        self.right.recode(codes)
        names = list(self.numbering.own)
        self.numbering = Numbering()
        self.numbering.own = {names[number]: place for place, number in enumerate(used.tolist())}

    def encode(self) -> bytes:
        return self.join.encode(self)

    def nbytes(self) -> int:
        return self.left.own_rows * self.join.row_bytes[0] + self.right.own_rows * self.join.row_bytes[1]


@dataclass(frozen=True, slots=True)
class _RowPairs:
    """Pairs of rows of two batches."""

    left: pa.RecordBatch
    """Left batch."""
    left_rows: np.ndarray
    """int64, one per pair: row in the left batch."""
    left_numbers: np.ndarray
    """int64, one per pair: number of the row in the left stream."""
    right: pa.RecordBatch | None
    """Right batch; None stands for nulls."""
    right_rows: np.ndarray
    """int64, one per pair: row in the right batch."""
    right_numbers: np.ndarray
    """int64, one per pair: number of the row in the right stream; -1 for nulls."""
    times: np.ndarray
    """int64, one per pair: event time of the result (us)."""

    def taken(self, order: np.ndarray) -> _RowPairs:
        return _RowPairs(
            self.left,
            self.left_rows[order],
            self.left_numbers[order],
            self.right,
            self.right_rows[order],
            self.right_numbers[order],
            self.times[order],
        )


class JoinOperator:
    """Output columns: the left's, then the right's except `on`. A name that exists already gets the suffix `_right`.

    A pair's time is the later of its rows' times. In a left join, a left row without a partner is joined with nulls, with
    time = its own + within, once no partner can arrive any more (upto is beyond that time; R6). Results are ordered by (time,
    number of the left row, number of the right row). Nulls in `on` match nothing. The windows of the inputs are dropped.
    """

    def __init__(
        self,
        name: str,
        input_schemas: tuple[Schema, Schema],
        on: tuple[str, ...],
        within_us: int,
        how: Literal["inner", "left"],
    ) -> None:
        left, right = input_schemas
        field = f"operators.{name}.on"
        for column in on:
            kinds = left.types.get(column), right.types.get(column)
            if None not in kinds and kinds[0] is not kinds[1]:
                fix = "cast one side in a map before the join"
                raise UserError(field, column, f"is {kinds[0]} on the left and {kinds[1]} on the right", fix)
        self.name = name
        self.within = within_us
        self.outer = how == "left"
        self.schema = joined_schema(left, right, on)
        self.row_bytes = tuple(160 + 24 * len(schema.columns) for schema in input_schemas)
        self._keys = Keys.of(left, on, field), Keys.of(right, on, field)
        self._inputs = left.arrow, right.arrow
        self._left_columns = attribute_positions(left, ())
        self._right_columns = attribute_positions(right, on)
        self._right_types = [self._inputs[1].field(place).type for place in self._right_columns]
        self._arrow = self.schema.arrow
        self._nothing = self.schema.empty()
        self._kind = f"join {how} {within_us} {on} {input_schemas}"

    def empty(self) -> JoinState:
        return JoinState(self, Side(-INFINITY), Side(-INFINITY), Numbering(), -INFINITY)

    def encode(self, state: JoinState) -> bytes:
        left, matched = state.left.living(self._inputs[0])
        right, _ = state.right.living(self._inputs[1])
        flags = pa.RecordBatch.from_arrays([pa.array(matched, pa.bool_())], schema=_FLAGS)
        return pack(self._kind, {"upto": state.upto}, [encode_batch(batch) for batch in (left, flags, right)])

    def decode(self, blob: bytes) -> JoinState:
        facts, parts = unpack(blob, self._kind)
        schemas = (self._inputs[0], _FLAGS, self._inputs[1])
        left, flags, right = (decode_batch(part, schema) for part, schema in zip(parts, schemas, strict=True))
        upto = facts["upto"]
        if not isinstance(upto, int) or left.num_rows != flags.num_rows:
            raise CorruptError("the join's state is inconsistent")
        state = self.empty()
        state.upto = upto
        matched = np.array(flags.column(0)), np.zeros(right.num_rows, bool)
        for which, (side, batch) in enumerate(((state.left, left), (state.right, right))):
            side.alive = max(upto - self.within, -INFINITY)
            if batch.num_rows:
                side.append(batch, self._codes(state, which, batch), matched[which])
        return state

    def step(self, state: JoinState, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        """New right rows are added first, so that new left rows are compared with all right rows, and new right rows with the
        older left rows only."""
        left, right = batches
        found: list[_RowPairs] = []
        if right.num_rows:
            self._take_right(state, right, found)
        if left.num_rows:
            self._take_left(state, left, found)
        alive = max(upto - self.within, -INFINITY)
        if self.outer:
            for chunk in state.left.chunks:
                self._take_partnerless(chunk, state.left.alive, alive, found)
        state.left.bury(alive)
        state.right.bury(alive)
        state.upto = upto
        state.forget_keys()
        return self._result(found) if found else self._nothing

    def needs(self, time: int) -> int:
        """In a left join, a row of nulls at `time` comes from a left row that is `within` older, and the partners of that row
        may be older by `within` again."""
        return max(time - self.within * (2 if self.outer else 1), -INFINITY)

    def _codes(self, state: JoinState, which: int, batch: pa.RecordBatch) -> np.ndarray:
        keys = self._keys[which]
        return state.numbering.codes(*keys.without_nulls(*keys.encode(batch)))

    def _take_right(self, state: JoinState, batch: pa.RecordBatch, found: list[_RowPairs]) -> None:
        codes, times, first = self._codes(state, 1, batch), event_times(batch), state.right.next
        for place, chunk in enumerate(state.left.chunks):
            probes, rows = chunk.find(codes, times, self.within)
            if len(probes):
                later = np.maximum(chunk.times[rows], times[probes])
                found.append(_RowPairs(chunk.rows, rows, rows + chunk.first, batch, probes, probes + first, later))
                if self.outer:
                    state.left.mark(place, rows)
        state.right.append(batch, codes, np.zeros(batch.num_rows, bool))

    def _take_left(self, state: JoinState, batch: pa.RecordBatch, found: list[_RowPairs]) -> None:
        codes, times, first = self._codes(state, 0, batch), event_times(batch), state.left.next
        matched = np.zeros(batch.num_rows, bool)
        for chunk in state.right.chunks:
            probes, rows = chunk.find(codes, times, self.within)
            if len(probes):
                later = np.maximum(times[probes], chunk.times[rows])
                found.append(_RowPairs(batch, probes, probes + first, chunk.rows, rows, rows + chunk.first, later))
                matched[probes] = True
        state.left.append(batch, codes, matched)

    def _take_partnerless(self, chunk: RowChunk, since: int, alive: int, found: list[_RowPairs]) -> None:
        """Left rows that die now, with times in [since, alive), and have no partner."""
        if chunk.times[0] >= alive:
            return
        begin, end = np.searchsorted(chunk.times, (since, alive)).tolist()
        rows = begin + np.flatnonzero(~chunk.matched[begin:end])
        if len(rows):
            nobody = np.full(len(rows), -1)
            times = chunk.times[rows] + self.within
            found.append(_RowPairs(chunk.rows, rows, rows + chunk.first, None, nobody, nobody, times))

    def _result(self, found: list[_RowPairs]) -> pa.RecordBatch:
        if len(found) == 1:
            (pairs,) = found
            order = _order(pairs.times, pairs.left_numbers, pairs.right_numbers)
            return self._batch(pairs.taken(order))
        order = _order(
            np.concatenate([pairs.times for pairs in found]),
            np.concatenate([pairs.left_numbers for pairs in found]),
            np.concatenate([pairs.right_numbers for pairs in found]),
        )
        return pa.concat_batches([self._batch(pairs) for pairs in found]).take(pa.array(order))

    def _batch(self, pairs: _RowPairs) -> pa.RecordBatch:
        left_rows = pa.array(pairs.left_rows)
        columns = [pa.array(pairs.times)]
        columns += [pairs.left.column(place).take(left_rows) for place in self._left_columns]
        if pairs.right is None:
            columns += [pa.nulls(len(left_rows), kind) for kind in self._right_types]
        else:
            right_rows = pa.array(pairs.right_rows)
            columns += [pairs.right.column(place).take(right_rows) for place in self._right_columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)


def joined_schema(left: Schema, right: Schema, on: tuple[str, ...]) -> Schema:
    """The left columns, then the right ones without `on`; a name that is there already gets the suffix `_right`."""
    columns = dict(left.columns)
    for name, kind in right.columns:
        if name not in on:
            while name in columns:
                name += "_right"
            columns[name] = kind
    return Schema(tuple(columns.items()))


def attribute_positions(schema: Schema, without: tuple[str, ...]) -> list[int]:
    """Positions of the attributes in a batch."""
    return [place for place, name in enumerate(schema.arrow.names) if name not in RESERVED and name not in without]


def _order(times: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The order by (time, left, right); all pairs are distinct. Sorting one number that combines all three is fastest."""
    spans = [int(column.max()) - int(column.min()) + 1 for column in (times, left, right)]
    if spans[0] * spans[1] * spans[2] >= 1 << 62:
        return np.lexsort((right, left, times))
    weight = ((times - times.min()) * spans[1] + (left - left.min())) * spans[2] + (right - right.min())
    return np.argsort(weight)
