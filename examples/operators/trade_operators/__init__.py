"""Three operators over trades (symbol, price, size), one of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field

from boreal.operators import Keyed, KeyedOperator, KeyState, RowOperator, Schema, WindowOperator


class LargeTrades(RowOperator):
    """Adds a column `large`: whether the trade's value is above a limit; null where that is not known."""

    class Parameters(BaseModel):
        above: float = Field(gt=0)

    deterministic = True

    def output_schema(self, given: Schema) -> Mapping[str, str]:
        for column in ("price", "size"):
            if column not in given.types:
                raise ValueError(f"there is no column {column}")
        return {**given.types, "large": "bool"}

    def unchanged(self) -> tuple[str, ...]:
        return self.given.names

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        value = pc.multiply(rows.column("price"), rows.column("size").cast(pa.float64(), safe=False))
        return self.output(rows, large=pc.greater(value, self.parameters.above))


class RunningVolume(KeyedOperator):
    """Adds a column `volume`: how much of the symbol was traded since the window began, this trade included."""

    @dataclass(frozen=True)
    class Parameters:
        window: str = "1d"

    deterministic = True

    def output_schema(self, given: Schema) -> Mapping[str, str]:
        return {**given.types, "volume": "double"}

    def state(self) -> Keyed:
        return Keyed(by=["symbol"], columns={"volume": 0.0}, window=self.parameters.window)

    def unchanged(self) -> tuple[str, ...]:
        return self.given.names

    def process(self, rows: pa.RecordBatch, state: KeyState) -> pa.RecordBatch:
        volumes, made = state["volume"], np.empty(rows.num_rows)
        sizes = rows.column("size").fill_null(0).cast(pa.float64(), safe=False).to_numpy()
        # One row after the other: a sum of doubles depends on the order in which they are added.
        for row, (key, size) in enumerate(zip(state.codes.tolist(), sizes.tolist(), strict=True)):
            volumes[key] += size
            made[row] = volumes[key]
        return self.output(rows, volume=made)


class Vwap(WindowOperator):
    """The mean price of each symbol in each window, weighted by the sizes of the trades; null without a size above zero."""

    @dataclass(frozen=True)
    class Parameters:
        window: str

    deterministic = True

    def output_schema(self, given: Schema) -> Mapping[str, str]:
        return {"symbol": "string", "vwap": "double"}

    def state(self) -> Keyed:
        return Keyed(by=["symbol"], columns={"value": 0.0, "size": 0.0}, window=self.parameters.window)

    def unchanged(self) -> tuple[str, ...]:
        return ("symbol",)

    def collect(self, rows: pa.RecordBatch, state: KeyState) -> None:
        known = pc.and_(rows.column("price").is_valid(), rows.column("size").is_valid()).to_numpy(zero_copy_only=False)
        prices = rows.column("price").fill_null(0.0).to_numpy()[known]
        sizes = rows.column("size").fill_null(0).to_numpy()[known].astype(np.float64)
        # np.add.at adds one by one, in the order of the rows.
        np.add.at(state["value"], state.codes[known], prices * sizes)
        np.add.at(state["size"], state.codes[known], sizes)

    def result(self, state: KeyState) -> Mapping[str, pa.Array | np.ndarray]:
        sizes = state["size"]
        mean = state["value"] / np.where(sizes > 0, sizes, 1.0)
        return {"symbol": state.keys()["symbol"], "vwap": pa.array(mean, mask=~(sizes > 0))}
