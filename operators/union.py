"""Union of results inside a fragment. SUnion merges streams from outside, in the same order."""

from __future__ import annotations

import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.errors import UserError
from boreal.model.schema import Schema
from operators.state import NOTHING, Stateless


class UnionOperator:
    """Merges rows by (time, input, position in the input). All inputs must have the same columns, in any order."""

    def __init__(self, name: str, input_schemas: tuple[Schema, ...]) -> None:
        self.name = name
        self.schema = input_schemas[0]
        for schema in input_schemas[1:]:
            if schema.types != self.schema.types or schema.windowed != self.schema.windowed:
                problem, fix = "merges streams of different columns", "give all the same columns by a map before it"
                raise UserError(f"operators.{name}.union", [list(entry.names) for entry in input_schemas], problem, fix)
        self._names = self.schema.arrow.names
        self._reordered = [schema.columns != self.schema.columns for schema in input_schemas]

    def empty(self) -> Stateless:
        return NOTHING

    def decode(self, blob: bytes) -> Stateless:
        return Stateless.decode(blob)

    def step(self, state: Stateless, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        parts = [
            batch.select(self._names) if reordered else batch
            for batch, reordered in zip(batches, self._reordered, strict=True)
            if batch.num_rows
        ]
        if not parts:
            return batches[0]
        if len(parts) == 1:
            return parts[0]
        merged = pa.concat_batches(parts)
        times = event_times(merged)
        if (times[1:] >= times[:-1]).all():
            return merged
        return merged.take(pa.array(times.argsort(kind="stable")))

    def needs(self, time: int) -> int:
        return time
