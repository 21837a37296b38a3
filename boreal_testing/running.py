"""Runs one operator over rows, as an instance would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from boreal.model.errors import UserError
from boreal.model.frames import INFINITY
from boreal.model.schema import PLAIN_TYPES, WINDOW, Schema, Type
from boreal.operators import Operator
from boreal.operators.installed import provide
from boreal.query.own_operators import OwnOperator, own_operator
from operators.operator import OperatorState
from operators.python import make_python_operator


def run_operator(
    operator: type[Operator],
    rows: pa.RecordBatch,
    parameters: Mapping[str, Any] | None = None,
    *,
    cuts: Sequence[int] = (),
) -> pa.RecordBatch:
    """All that the operator makes of these rows, whose stream then ends. rows: with `time` first, in the order of their times,
    as `sample_rows` makes them. cuts: the times at which steps end, in rising order.

    UserError for what a query could not name; OperatorError for what breaks the contract.
    """
    trial = Trial(operator, schema_of(rows), parameters or {})
    return trial.run(trial.empty(), rows, [*cuts, INFINITY])


class Trial:
    """An operator as an instance has it: a new one of its class."""

    def __init__(self, operator: type[Operator], given: Schema, parameters: Mapping[str, Any]) -> None:
        self.own: OwnOperator = _found(operator, given, parameters)
        self.given = given
        self._operator = make_python_operator("tested", self.own, operator.__qualname__, parameters)

    def empty(self) -> OperatorState:
        state: OperatorState = self._operator.empty()
        return state

    def decode(self, blob: bytes) -> OperatorState:
        state: OperatorState = self._operator.decode(blob)
        return state

    def needs(self, time: int) -> int:
        return int(self._operator.needs(time))

    def run(
        self, state: OperatorState, rows: pa.RecordBatch, cuts: Sequence[int], since: int = -INFINITY
    ) -> pa.RecordBatch:
        """Step from `since` to each of the cuts."""
        made = [self.own.schema.empty()]
        times = rows.column(0).to_numpy()
        for upto in cuts:
            begin, end = np.searchsorted(times, (since, upto)).tolist()
            made.append(self._operator.step(state, (rows.slice(begin, end - begin),), upto))
            since = upto
        return pa.concat_batches(made)


def _found(operator: type[Operator], given: Schema, parameters: Mapping[str, Any]) -> OwnOperator:
    name = f"{operator.__module__}:{operator.__qualname__}"
    provide(name, operator)
    return own_operator(name, parameters, None, given, "operators.tested")


def schema_of(rows: pa.RecordBatch) -> Schema:
    """The schema of the stream that these rows are of."""
    windowed = rows.schema.names[1:3] == list(WINDOW)
    columns = {field.name: _type_of(field.type) for field in rows.schema}
    return Schema(tuple((name, columns[name]) for name in rows.schema.names[3 if windowed else 1 :]), windowed)


def _type_of(kind: pa.DataType) -> Type:
    """UserError if no column can have it."""
    if pa.types.is_decimal(kind):
        return Type.decimal(kind.precision, kind.scale)
    for each in PLAIN_TYPES:
        if each.arrow == kind:
            return each
    raise UserError("rows", str(kind), "is not the type of a column", f"use {', '.join(PLAIN_TYPES)} or a decimal128")
