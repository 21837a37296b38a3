"""User-written operators for simulated queries, as an installed package would have them. `simulation.oracle` knows them too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pydantic import BaseModel

from boreal.operators import Keyed, KeyedOperator, KeyState, Schema, WindowOperator
from boreal.operators.installed import provide


class Parameters(BaseModel):
    """Of both operators."""

    by: list[str]
    """The columns of the key."""
    window: str | None = None
    """The length of the windows; None: state for ever."""


class Totals(KeyedOperator):
    """In `v` the sum of v so far, in `n` the number of rows so far, of the row's key in its window."""

    Parameters = Parameters
    deterministic = True

    def state(self) -> Keyed:
        return Keyed(self.parameters.by, {"total": 0.0, "rows": 0}, self.parameters.window)

    def unchanged(self) -> tuple[str, ...]:
        return tuple(name for name in self.given.names if name not in ("v", "n"))

    def process(self, rows: pa.RecordBatch, state: KeyState) -> pa.RecordBatch:
        totals, counts = state["total"], state["rows"]
        made, numbers = np.empty(rows.num_rows), np.empty(rows.num_rows, np.int64)
        for row, (key, value) in enumerate(zip(state.codes.tolist(), rows.column("v").to_pylist(), strict=True)):
            if value is not None:
                totals[key] += value
            counts[key] += 1
            made[row], numbers[row] = totals[key], counts[key]
        return self.output(rows, v=made, n=numbers)


class Newest(WindowOperator):
    """Of each key in each window the number of its rows, `c`, and the last k that was not null, `k_last`."""

    Parameters = Parameters
    deterministic = True

    def output_schema(self, given: Schema) -> Mapping[str, str]:
        return {**{name: given.types[name] for name in self.parameters.by}, "c": "int", "k_last": "string"}

    def state(self) -> Keyed:
        return Keyed(self.parameters.by, {"rows": 0, "last": "", "is_known": False}, self.parameters.window)

    def unchanged(self) -> tuple[str, ...]:
        return tuple(self.parameters.by)

    def collect(self, rows: pa.RecordBatch, state: KeyState) -> None:
        np.add.at(state["rows"], state.codes, 1)
        for key, value in zip(state.codes.tolist(), rows.column("k").to_pylist(), strict=True):
            if value is not None:
                state["last"][key], state["is_known"][key] = value, True

    def result(self, state: KeyState) -> Mapping[str, pa.Array | np.ndarray]:
        last = pa.array(state["last"].tolist(), pa.string(), mask=~state["is_known"])
        return {**state.keys(), "c": state["rows"], "k_last": last}


TOTALS, NEWEST = "simulated_totals", "simulated_newest"
"""Under which names queries have them."""

OPERATORS = {TOTALS: Totals, NEWEST: Newest}

for _name, _operator in OPERATORS.items():
    provide(_name, _operator)
