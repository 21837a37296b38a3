"""Operators of installed packages in queries: found by their registered names alone, judged as they are planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import BaseModel, ConfigDict, Field

from bench.installing import install
from boreal.model.errors import OperatorError, UserError
from boreal.model.schema import Schema
from boreal.operators import Keyed, KeyedOperator, KeyState, RowOperator, WindowOperator, installed
from boreal.query.builder import QueryBuilder
from boreal.query.planner import plan
from boreal.query.spec import load_query
from boreal.query.sql_writing import write_sql
from boreal_testing import run_operator, sample_rows
from embedded.recording import memory_us

TRADES = {"symbol": "string", "price": "double", "size": "int"}


class Tagger(RowOperator):
    class Parameters(BaseModel):
        model_config = ConfigDict(extra="forbid")
        above: float = Field(gt=0)
        labels: list[str] = []
        nested: dict[str, int] = {}

    deterministic = True

    def output_schema(self, given: Schema) -> dict[str, str]:
        if "price" not in given.types:
            raise ValueError("there is no price")
        return {**given.types, "tag": "bool"}

    def unchanged(self) -> tuple[str, ...]:
        return self.given.names

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        above = self.parameters.above
        return self.output(rows, tag=[price is not None and price > above for price in rows["price"].to_pylist()])


class Counter(KeyedOperator):
    @dataclass(frozen=True)
    class Parameters:
        window: str | None = None

    deterministic = True

    def output_schema(self, given: Schema) -> dict[str, str]:
        return {"symbol": "string", "number": "int"}

    def unchanged(self) -> tuple[str, ...]:
        return ("symbol",)

    def state(self) -> Keyed:
        return Keyed(["symbol"], {"count": 0}, self.parameters.window)

    def process(self, rows: pa.RecordBatch, state: KeyState) -> pa.RecordBatch:
        numbers = []
        for key in state.codes.tolist():
            state["count"][key] += 1
            numbers.append(state["count"][key])
        return self.output(rows, number=numbers)


class Undecided(RowOperator):
    pass


class Dicing(RowOperator):
    deterministic = False


class Windowless(WindowOperator):
    deterministic = True

    def state(self) -> Keyed:
        return Keyed(["symbol"], {"count": 0})


class Shapeless(RowOperator):
    deterministic = True

    def output_schema(self, given: Schema) -> dict[str, str]:
        return {"a": "float32"}


class Liar(Tagger):
    def unchanged(self) -> tuple[str, ...]:
        return ("tag",)


HERE = "tests.unit.boreal.test_own_operators"
REGISTERED = {
    "tagger": f"{HERE}:Tagger", "counter": f"{HERE}:Counter", "undecided": f"{HERE}:Undecided", "dicing": f"{HERE}:Dicing",
    "windowless": f"{HERE}:Windowless", "shapeless": f"{HERE}:Shapeless", "liar": f"{HERE}:Liar", "path": f"{HERE}:install",
    "gone": "a_module_that_is_not_there:Gone", "plain": f"{HERE}:Keyed",
}  # fmt: skip


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(installed, "_loaded", {})
    monkeypatch.syspath_prepend(str(install(tmp_path / "one", "some-operators", "1.2.0", REGISTERED)))
    yield tmp_path


def query(operator: dict[str, Any], **more: Any) -> dict[str, Any]:
    streams = {"trades": {"time": "at", "schema": TRADES, "key": ["symbol"]}}
    return {"name": "q", "streams": streams, "operators": {"made": {"python": "trades", **operator}}, "output": "made", **more}


def test_a_plan_has_the_columns_the_key_and_the_package() -> None:
    made = plan(load_query(query({"operator": "tagger", "with": {"above": 3}}, shards=2)))
    [node] = made.fragments[0].nodes
    assert node.schema.types == {**TRADES, "tag": "bool"}
    assert made.output_key == ("symbol",) and made.fragments[0].shards == 2
    assert "made is tagger of some-operators 1.2.0" in made.notes


def test_state_is_sharded_by_its_key_and_bounded_by_its_window() -> None:
    bounded = load_query(query({"operator": "counter", "with": {"window": "1h"}}, shards=2, reconcile="undo_redo"))
    made = plan(bounded)
    assert made.fragments[0].edges[0].key == ("symbol",) and made.output_key == ("symbol",)
    assert memory_us(bounded) == 3_600_000_000
    with pytest.raises(UserError, match="reconcile: undo_redo cannot rebuild made: an operator with state for ever"):
        load_query(query({"operator": "counter"}, reconcile="undo_redo"))
    assert load_query(query({"operator": "counter"})).unbounded == ("made",)


def test_yaml_sql_and_the_builder_say_the_same() -> None:
    parameters = {"above": 2.5, "labels": ["a", "it's"], "nested": {"of first": -3}}
    written = load_query(query({"operator": "tagger", "with": parameters, "version": "1.2.0"}))
    assert load_query(write_sql(written)) == written
    builder = QueryBuilder("q")
    trades = builder.stream("trades", time="at", schema=TRADES, key=["symbol"])
    assert builder.build(builder.python("made", trades, "tagger", parameters, version="1.2.0")) == written
    assert load_query(written.dump()) == written


@pytest.mark.parametrize(
    ("operator", "field", "said"),
    [
        ({"operator": "taggr"}, "operator", "is not installed here (got 'taggr'); did you mean tagger? The choices are: "),
        ({"operator": f"{HERE}:Tagger"}, "operator", "is not installed here"),
        ({"operator": "os.system"}, "operator", "is not installed here"),
        ({"operator": "gone"}, "operator", "of some-operators cannot be imported: ModuleNotFoundError"),
        ({"operator": "path"}, "operator", "which is no operator"),
        ({"operator": "plain"}, "operator", "is Keyed of some-operators, which is no operator"),
        ({"operator": "undecided"}, "operator", "does not say that it is deterministic"),
        ({"operator": "dicing"}, "operator", "denies that it is deterministic"),
        ({"operator": "windowless"}, "operator", "gives results of windows, and declares no window"),
        ({"operator": "shapeless"}, "operator", "a is 'float32', which is no type"),
        ({"operator": "liar", "with": {"above": 1}}, "operator", "says that tag is unchanged"),
        ({"operator": "tagger"}, "with.above", "field required"),
        ({"operator": "tagger", "with": {"above": -1}}, "with.above", "should be greater than 0 (got -1)"),
        ({"operator": "tagger", "with": {"abov": 1}}, "with.abov", "tagger has no parameter abov (got 1); did you mean above?"),
        ({"operator": "counter", "with": {"window": "1x"}}, "operator", "is not a duration"),
        ({"operator": "tagger", "with": {"above": 1}, "version": "1.3"}, "version", "some-operators has version 1.2.0 here"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(operator: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        plan(load_query(query(operator)))
    assert refused.value.field == f"operators.made.{field}"
    assert said in str(refused.value)


def test_an_input_without_what_it_needs_is_refused() -> None:
    file = query({"operator": "tagger", "with": {"above": 1}})
    file["streams"]["trades"] = {"time": "at", "schema": {"size": "int"}}
    with pytest.raises(UserError, match=r"operators.made.python: tagger cannot take these columns: there is no price"):
        plan(load_query(file))
    file["operators"]["made"] = {"python": "trades", "operator": "counter"}
    with pytest.raises(UserError, match=r"operators.made.python: counter keeps state by symbol, which is no column here"):
        plan(load_query(file))


def test_a_refusal_in_sql_has_its_line_and_column() -> None:
    text = (
        "CREATE STREAM trades (symbol string, price double, size int) WITH (time = 'at');\n"
        "CREATE QUERY q AS\nSELECT * FROM tagger(trades, above => 'a lot')"
    )
    with pytest.raises(UserError, match=r"operators.q.with.above: .* \(line 3, column 30\) \(got 'a lot'\)"):
        load_query(text)
    wrong = ("tagger(trades, above)", "tagger(trades, above => 1) LATEST '1'", "tagger()", "tagger(trades, a => 1, a => 2)")
    for source in wrong:
        with pytest.raises(UserError, match="line 3"):
            load_query(text.rpartition("FROM ")[0] + f"FROM {source}")


def test_a_name_that_two_packages_register_is_refused(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(packages / "two", "other-operators", "1.0", {"tagger": f"{HERE}:Undecided"})))
    with pytest.raises(UserError, match="is registered by several packages: other-operators, some-operators"):
        plan(load_query(query({"operator": "tagger", "with": {"above": 1}})))


def test_a_package_that_is_installed_later_is_found(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = load_query(query({"operator": "late", "with": {"above": 1}}))
    with pytest.raises(UserError, match="is not installed here"):
        plan(file)
    monkeypatch.syspath_prepend(str(install(packages / "later", "late-operators", "0.1", {"late": f"{HERE}:Tagger"})))
    assert "made is late of late-operators 0.1" in plan(file).notes


def test_a_query_can_be_read_where_its_operator_is_missing() -> None:
    """So that it can be shown and deleted there; only planning needs the operator."""
    read = load_query(query({"operator": "missing", "with": {"any": [1, {"thing": None}]}}))
    assert read.unbounded == () and load_query(read.dump()) == read


class Raising(RowOperator):
    deterministic = True

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no")


class Early(RowOperator):
    deterministic = True

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.set_column(0, "time", pa.array([time - 1 for time in rows["time"].to_pylist()]))


class Backwards(RowOperator):
    deterministic = True

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))


class Narrow(RowOperator):
    deterministic = True

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(["time", "price"])


class Choosing(RowOperator):
    deterministic = True

    def process(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        return pc.greater(rows["price"], 0.0)


class Misfitting(Choosing):
    def process(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        return pa.array([True])


class Nothing(RowOperator):
    deterministic = True

    def process(self, rows: pa.RecordBatch) -> None:
        return None


class Remembering(RowOperator):
    deterministic = True

    def process(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self.last = rows
        return rows


class Short(WindowOperator):
    deterministic = True

    def state(self) -> Keyed:
        return Keyed(["symbol"], {"count": 0}, "10us")

    def output_schema(self, given: Schema) -> dict[str, str]:
        return {"count": "int"}

    def collect(self, rows: pa.RecordBatch, state: KeyState) -> None:
        pass

    def result(self, state: KeyState) -> dict[str, Any]:
        return {"count": [1]}


def test_a_mask_says_which_rows_come_out() -> None:
    rows = sample_rows(TRADES, 1)
    assert run_operator(Choosing, rows, cuts=[10]).equals(rows.filter(pc.greater(rows["price"], 0.0)))


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (Raising, "has failed: ValueError: no"),
        (Early, "times do not rise from the time of the first row"),
        (Backwards, "times do not rise from the time of the first row"),
        (Misfitting, "returned a mask of 1 rows, for 40 rows"),
        (Narrow, "returned the columns time int64, price double, not time int64, symbol string"),
        (Nothing, "returned NoneType, not a RecordBatch"),
        (Remembering, "Remembering.last cannot be set: an operator keeps nothing in itself"),
        (Short, "gave count as 1 values of int64, not 3 of int64"),
    ],
)
def test_what_breaks_the_contract_is_named_as_it_comes(operator: Any, said: str) -> None:
    rows = sample_rows(TRADES, 1, values={"symbol": ["a", "b", "c"]})
    with pytest.raises(OperatorError, match=r"^operators\.tested: ") as broken:
        run_operator(operator, rows)
    assert said in str(broken.value)
