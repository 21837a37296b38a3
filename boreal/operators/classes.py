"""What an operator of one's own is derived from.

A class says what it takes (`Parameters`), which columns it makes (`output_schema`), what it remembers (`state`), and that it is
deterministic. All else follows: rows come in the order (time, port, id), which is the same on all replicas, in batches that
may be cut anywhere. What comes out over a run must not depend on these cuts, nor on anything but rows, parameters and state: no
clock, no randomness, no order of a set, no sum whose order follows from the batch. `boreal_testing.check_operator` holds a
class to that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from boreal.model.schema import WINDOW, Schema
from boreal.operators.state import Keyed, KeyState


class NoParameters(BaseModel):
    """The parameters of an operator that takes none."""

    model_config = ConfigDict(extra="forbid")


class Operator:
    """The base of `RowOperator`, `KeyedOperator` and `WindowOperator`, from one of which an operator is derived.

    One object serves any number of instances, so it cannot be changed once it is made: what it remembers is state.
    """

    Parameters: ClassVar[type[Any]] = NoParameters
    """The parameters that `with` in the query gives: a pydantic model or a dataclass."""
    deterministic: ClassVar[bool | None] = None
    """True: the same rows give the same results, to the last bit, in every process. It must be said: replicas that answer
    differently cannot replace each other, and a correction would change what was right. Others are refused."""
    state_version: ClassVar[int] = 1
    """To be raised when the state of earlier versions of the class can no longer be read as its own."""

    parameters: Any
    """The checked parameters, an object of `Parameters`."""
    given: Schema
    """The columns of the input; not known yet in `output_schema` and `state`."""
    schema: Schema
    """The columns of the output; not known yet in `output_schema` and `state`."""
    _kinds: Mapping[str, pa.DataType]
    _arrow: pa.Schema
    _n_edges: int

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    def output_schema(self, given: Schema) -> Mapping[str, str]:
        """The columns of the output with their types, in order. given: those of the input (`given.types`: name -> type). Beside
        them each row has its time. ValueError, with what is wrong, if the operator cannot take such input."""
        return given.types

    def unchanged(self) -> tuple[str, ...]:
        """The columns in which each output row has what the input rows have that it comes from, so that readers may be sharded
        by them. Of a `WindowOperator`, columns of its key."""
        return ()

    def prepare(self) -> None:
        """Called once, when `given` and `schema` are known: the last time that attributes may be set."""

    def output(self, rows: pa.RecordBatch, **columns: Any) -> pa.RecordBatch:
        """Output rows with the times of these input rows: `columns` by their names, and of the others what `rows` has.

        rows: an input batch, or a selection of one in the same order. Columns are Arrow or numpy arrays, one value a row.
        """
        if not columns.keys() <= self._kinds.keys():
            unknown = ", ".join(sorted(columns.keys() - self._kinds.keys()))
            raise KeyError(f"{unknown}: none of the columns {', '.join(self._kinds)} that output_schema declares")
        made = rows.columns[: self._n_edges]
        for name, kind in self._kinds.items():
            column = columns.get(name)
            if column is None:
                made.append(rows.column(name))
            else:
                made.append(column if isinstance(column, pa.Array) else pa.array(column, kind))
        return pa.RecordBatch.from_arrays(made, schema=self._arrow)

    def bind(self, given: Schema, schema: Schema) -> None:
        """Called by boreal: the columns are known, and the operator is complete."""
        self.given, self.schema = given, schema
        self._kinds = {name: kind.arrow for name, kind in schema.columns}
        self._arrow = schema.arrow
        self._n_edges = 1 + len(WINDOW) * given.windowed
        self.prepare()
        object.__setattr__(self, "_is_complete", True)

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_is_complete", False):
            problem = f"{type(self).__name__}.{name} cannot be set: an operator keeps nothing in itself between batches"
            raise AttributeError(f"{problem}; declare it in state()")
        super().__setattr__(name, value)


class RowOperator(Operator):
    """An operator without state: each output row follows from one input row, and has its time."""

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch | pa.BooleanArray:
        """The output of some input rows, of which there is at least one, in their order. `self.output` makes it; or a mask says
        which rows come out as they are."""
        raise NotImplementedError


class KeyedOperator(Operator):
    """An operator with state for each key. Each output row has the time of an input row of the same call."""

    def state(self) -> Keyed:
        """What is remembered of each key. It follows from the parameters alone."""
        raise NotImplementedError

    def process(self, rows: pa.RecordBatch, state: KeyState) -> pa.RecordBatch | pa.BooleanArray:
        """The output of some input rows, of which there is at least one, in the order of their times. With a window they are
        all of one window. state: of the keys that they have, to be changed."""
        raise NotImplementedError


class WindowOperator(Operator):
    """An operator that gives one row for each key of a tumbling window when the window is over, with time = its end - 1."""

    def state(self) -> Keyed:
        """What is remembered of each key in a window, whose length must be given. It follows from the parameters alone."""
        raise NotImplementedError

    def collect(self, rows: pa.RecordBatch, state: KeyState) -> None:
        """Take some rows of one window, of which there is at least one. state: of the keys that they have, to be changed."""
        raise NotImplementedError

    def result(self, state: KeyState) -> Mapping[str, pa.Array | np.ndarray]:
        """The columns of the output, each with one value for each key of the window: `state.keys()` are the keys, in ascending
        order, nulls first."""
        raise NotImplementedError
