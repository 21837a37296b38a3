"""Distinct: the first row of each key, per window or for ever."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from operators.accumulators import first_rows
from operators.encoding import decode_batch, encode_batch
from operators.keys import Keys
from operators.state import KeySet, Panes
from operators.windows import Windows, open_panes


class DistinctOperator:
    """Rows keep their time and order. Nulls are equal to each other. window_us: size of the tumbling windows; None for one
    endless window."""

    def __init__(self, name: str, input_schema: Schema, on: tuple[str, ...], window_us: int | None) -> None:
        self.name = name
        self.schema = input_schema
        self.windows = None if window_us is None else Windows(window_us, window_us)
        self._keys = Keys.of(input_schema, on, f"operators.{name}.on")
        self._stored = pa.schema([(str(place), kind) for place, kind in enumerate(self._keys.storage)])
        self._kind = f"distinct {window_us} {[(column, input_schema.types[column]) for column in on]}"

    def empty(self) -> Panes[KeySet]:
        return Panes(self._kind, self._write)

    def decode(self, blob: bytes) -> Panes[KeySet]:
        state = self.empty().decode(blob, self._read)
        if self.windows is not None:
            self.windows.restore(state)
        return state

    def step(self, state: Panes[KeySet], batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        result = self._first(state, batch) if batch.num_rows else batch
        if self.windows is not None and upto >= state.next_close:
            self.windows.close(state, upto)
        state.upto = upto
        return result

    def needs(self, time: int) -> int:
        return -INFINITY if self.windows is None else self.windows.first_start(time)

    def _first(self, state: Panes[KeySet], batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = []
        for pane, begin, end in open_panes(self.windows, state, batch):
            rows = batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)
            distinct, codes = self._keys.encode(rows)
            seen = state.change(pane, KeySet)
            new = [place for place, key in enumerate(distinct) if seen.add(key)]
            kept.append(begin + np.sort(first_rows(codes, len(distinct))[new]))
        chosen = kept[0] if len(kept) == 1 else np.concatenate(kept)
        return batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))

    def _write(self, keys: KeySet) -> bytes:
        return encode_batch(pa.RecordBatch.from_arrays(self._keys.stored(list(keys)), schema=self._stored))

    def _read(self, blob: bytes) -> KeySet:
        batch = decode_batch(blob, self._stored)
        return KeySet(tuple(self._keys.restored(batch.columns, batch.num_rows)))
