"""`boreal_testing`: an operator that keeps the contract passes, and each way of breaking it is caught."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from boreal.model.errors import UserError
from boreal.model.schema import Schema
from boreal.operators import Keyed, KeyedOperator, KeyState, RowOperator, WindowOperator
from boreal_testing import ContractError, check_operator, run_operator, sample_rows

COLUMNS = {"k": "string", "v": "double", "n": "int", "day": "date", "at": "timestamp", "b": "bool", "d": "decimal(5, 2)"}


class Everything(KeyedOperator):
    """State of all types."""

    deterministic = True

    def state(self) -> Keyed:
        return Keyed(["k", "b"], {"n": 0, "v": 0.0, "b": False, "s": "", "x": b""}, "9us")

    def output_schema(self, given: Schema) -> dict[str, str]:
        return {"k": "string", "n": "int", "v": "double", "s": "string"}

    def unchanged(self) -> tuple[str, ...]:
        return ("k",)

    def process(self, rows: pa.RecordBatch, state: KeyState) -> pa.RecordBatch:
        made: dict[str, list[Any]] = {"n": [], "v": [], "s": []}
        for key, value in zip(state.codes.tolist(), rows["v"].to_pylist(), strict=True):
            state["n"][key] += 1
            state["v"][key] += value or 0.0
            state["b"][key] = not state["b"][key]
            state["s"][key] += "ab"[int(state["b"][key])]
            state["x"][key] = state["s"][key].encode()[-2:]
            for name in made:
                made[name].append(state[name][key])
        return self.output(rows, **made)


class Forever(Everything):
    def state(self) -> Keyed:
        return Keyed([], {"n": 0, "v": 0.0, "b": False, "s": "", "x": b""})


class ByBatch(KeyedOperator):
    """Its sum is added batch by batch."""

    deterministic = True

    def state(self) -> Keyed:
        return Keyed([], {"v": 0.0})

    def output_schema(self, given: Schema) -> dict[str, str]:
        return {"v": "double"}

    def process(self, rows: pa.RecordBatch, state: KeyState) -> pa.RecordBatch:
        state["v"] = state["v"] + np.array(rows["v"].fill_null(0.0)).sum()
        return self.output(rows, v=np.full(rows.num_rows, state["v"][0]))


class BesideTheState(RowOperator):
    """Counts rows in the class."""

    deterministic = True
    counted: ClassVar[list[int]] = [0]

    def output_schema(self, given: Schema) -> dict[str, str]:
        return {"n": "int"}

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self.counted[0] += rows.num_rows
        return self.output(rows, n=[self.counted[0]] * rows.num_rows)


class OrderOfASet(WindowOperator):
    """Joins the names of a window in the order of a set, which depends on hashes."""

    deterministic = True

    def state(self) -> Keyed:
        return Keyed([], {"names": ""}, "40us")

    def output_schema(self, given: Schema) -> dict[str, str]:
        return {"names": "string"}

    def collect(self, rows: pa.RecordBatch, state: KeyState) -> None:
        state["names"][0] += "".join(name or "" for name in rows["k"].to_pylist())

    def result(self, state: KeyState) -> dict[str, Any]:
        return {"names": ["".join(set(state["names"][0]))]}


class Liar(RowOperator):
    deterministic = True

    def unchanged(self) -> tuple[str, ...]:
        return ("n",)

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self.output(rows, n=[12345] * rows.num_rows)


@pytest.mark.parametrize("operator", [Everything, Forever])
def test_what_keeps_the_contract_passes(operator: Any) -> None:
    check_operator(operator, COLUMNS, rounds=25)


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (ByBatch, "depends on where steps are cut"),
        (BesideTheState, "what comes out depends on where steps are cut"),
        (OrderOfASet, "another process, with another PYTHONHASHSEED, gives other results"),
        (Liar, "says that n are unchanged, and gives a row that no input row is like"),
    ],
)
def test_what_breaks_it_is_caught(operator: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        check_operator(operator, COLUMNS, rounds=25)


def test_an_operator_that_cannot_be_imported_is_not_run_elsewhere() -> None:
    class Local(Everything):
        pass

    with pytest.raises(UserError, match="cannot be imported in another process"):
        check_operator(Local, COLUMNS, rounds=1)
    check_operator(Local, COLUMNS, rounds=1, is_repeated_elsewhere=False)


def test_rows_are_the_same_for_a_seed_and_hard() -> None:
    assert sample_rows(COLUMNS, 3).equals(sample_rows(COLUMNS, 3))
    rows = [row for seed in range(20) for row in sample_rows(Schema.of(COLUMNS, windowed=True), seed).to_pylist()]
    assert all(any(row[name] is None for row in rows) for name in COLUMNS)
    doubles = [row["v"] for row in rows if row["v"] is not None]
    assert any(value != value for value in doubles) and any(str(value) == "-0.0" for value in doubles)
    assert any(one["time"] == other["time"] for one, other in itertools.pairwise(rows))
    assert {"time", "window_start", "window_end"} < set(rows[0])


def test_results_of_windows_come_when_they_are_over() -> None:
    rows = sample_rows(COLUMNS, 1, values={"k": ["a"]}, span_us=80)
    made = run_operator(OrderOfASet, rows, cuts=[41]).to_pylist()
    assert [(row["time"], row["window_end"], row["names"]) for row in made] == [(39, 40, "a"), (79, 80, "a")]
