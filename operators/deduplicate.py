"""Deduplicate: leaves out a row whose key another row had less than a stated time before it."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from operators.accumulators import first_rows, last_rows
from operators.encoding import decode_batch, encode_batch
from operators.keys import Keys, RowKey
from operators.state import Panes
from operators.windows import Windows


class LastTimes:
    """A pane: when each of its keys came last (us), in the order in which they did; with layers."""

    __slots__ = ("own", "parent")

    def __init__(self, parent: LastTimes | None = None) -> None:
        self.own: dict[RowKey, int] = {}
        self.parent = parent

    def get(self, key: RowKey) -> int | None:
        time = self.own.get(key)
        return self.parent.get(key) if time is None and self.parent is not None else time

    def note(self, key: RowKey, time: int) -> None:
        """The key came once more."""
        self.own.pop(key, None)
        self.own[key] = time

    def content(self) -> dict[RowKey, int]:
        if self.parent is None:
            return self.own
        below = {key: time for key, time in self.parent.content().items() if key not in self.own}
        return dict(chain(below.items(), self.own.items()))

    def overlay(self) -> LastTimes:
        return LastTimes(self)

    def absorb(self, child: LastTimes) -> None:
        for key, time in child.own.items():
            self.note(key, time)

    def nbytes(self) -> int:
        return 64 + 160 * len(self.own)


class DeduplicateOperator:
    """Rows keep their time and order. Nulls are equal to each other. within_us: a row is left out if one with equal values in
    `on` came less than this before it, whether that one was left out itself or not.

    So what is left out follows from the last `within_us` alone, and state can be rebuilt from there (R20). Times are kept in
    panes of this length: a row can only repeat one of its own pane, which is always too near, or of the pane before.
    """

    def __init__(self, name: str, input_schema: Schema, on: tuple[str, ...], within_us: int) -> None:
        self.name = name
        self.schema = input_schema
        self.within = within_us
        self._panes = Windows(within_us, within_us)
        self._keys = Keys.of(input_schema, on, f"operators.{name}.on")
        kinds = [*self._keys.storage, pa.int64()]
        self._stored = pa.schema([(str(place), kind) for place, kind in enumerate(kinds)])
        self._kind = f"deduplicate {within_us} {[(column, input_schema.types[column]) for column in on]}"

    def empty(self) -> Panes[LastTimes]:
        return Panes(self._kind, self._write)

    def decode(self, blob: bytes) -> Panes[LastTimes]:
        return self.empty().decode(blob, self._read)

    def step(self, state: Panes[LastTimes], batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        result = self._first(state, batch) if batch.num_rows else batch
        for pane in [pane for pane in state.panes if (pane + 2) * self.within <= upto]:
            state.drop(pane)
        state.upto = upto
        return result

    def needs(self, time: int) -> int:
        return max(time - self.within + 1, -INFINITY)

    def _first(self, state: Panes[LastTimes], batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = []
        for pane, begin, end in self._panes.split(batch):
            rows = batch.slice(begin, end - begin)
            times = event_times(rows)
            keys, codes = self._keys.encode(rows)
            firsts = first_rows(codes, len(keys))
            here, before = state.change(pane, LastTimes), state.panes.get(pane - 1)
            new = []
            for place, (key, time) in enumerate(zip(keys, times[firsts].tolist(), strict=True)):
                earlier = None if before is None else before.get(key)
                if here.get(key) is None and (earlier is None or time - earlier >= self.within):
                    new.append(place)
            kept.append(begin + np.sort(firsts[new]))
            lasts = last_rows(codes, len(keys))
            for place in np.argsort(lasts).tolist():
                here.note(keys[place], int(times[lasts[place]]))
        chosen = kept[0] if len(kept) == 1 else np.concatenate(kept)
        return batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))

    def _write(self, pane: LastTimes) -> bytes:
        last = pane.content()
        columns = [*self._keys.stored(list(last)), pa.array(last.values(), pa.int64())]
        return encode_batch(pa.RecordBatch.from_arrays(columns, schema=self._stored))

    def _read(self, blob: bytes) -> LastTimes:
        batch = decode_batch(blob, self._stored)
        *columns, times = batch.columns
        pane = LastTimes()
        pane.own = dict(zip(self._keys.restored(columns, batch.num_rows), times.to_pylist(), strict=True))
        return pane
