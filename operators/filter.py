"""Filter: keeps the rows for which a condition is true."""

from __future__ import annotations

import pyarrow as pa

from boreal.model.errors import UserError
from boreal.model.schema import Schema, Type
from boreal.query.expressions import parse
from operators.expressions import compile_expression
from operators.state import NOTHING, Stateless


class FilterOperator:
    """Rows keep their time and order. A row is dropped if the condition is false or null."""

    def __init__(self, name: str, input_schema: Schema, where: str) -> None:
        self.name = name
        self.schema = input_schema
        condition = parse(where, input_schema, f"operators.{name}.where")
        if condition.type is not Type.BOOL:
            fix = "write a comparison, such as dep_delay > 15"
            raise UserError(f"operators.{name}.where", where, f"is not a condition but of type {condition.type}", fix)
        self._where = compile_expression(condition)

    def empty(self) -> Stateless:
        return NOTHING

    def decode(self, blob: bytes) -> Stateless:
        return Stateless.decode(blob)

    def step(self, state: Stateless, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        if not batch.num_rows:
            return batch
        kept = self._where(batch)
        return batch if kept.true_count == batch.num_rows else batch.filter(kept)

    def needs(self, time: int) -> int:
        return time
