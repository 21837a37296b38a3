"""Map: computes each row's columns from expressions."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from boreal.model.schema import WINDOW, Schema
from boreal.query.expressions import parse
from operators.expressions import compile_expression
from operators.state import NOTHING, Stateless


class MapOperator:
    """select: output column -> expression. A row keeps its time, and its window's edges if it has them."""

    def __init__(self, name: str, input_schema: Schema, select: Mapping[str, str]) -> None:
        self.name = name
        expressions = {
            column: parse(sql, input_schema, f"operators.{name}.select.{column}") for column, sql in select.items()
        }
        columns = tuple((column, expression.type) for column, expression in expressions.items())
        self.schema = Schema(columns, input_schema.windowed)
        self._select = [compile_expression(expression) for expression in expressions.values()]
        self._n_kept = 1 + (len(WINDOW) if input_schema.windowed else 0)
        self._arrow = self.schema.arrow
        self._nothing = self.schema.empty()

    def empty(self) -> Stateless:
        return NOTHING

    def decode(self, blob: bytes) -> Stateless:
        return Stateless.decode(blob)

    def step(self, state: Stateless, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        if not batch.num_rows:
            return self._nothing
        columns = [*batch.columns[: self._n_kept], *(run(batch) for run in self._select)]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def needs(self, time: int) -> int:
        return time
