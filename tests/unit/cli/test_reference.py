"""The reference pages: complete, current, and true of the code that they speak of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from sqlglot import exp

from boreal.model.documents import parse_document
from boreal.operators import RowOperator, installed
from boreal.query import expressions
from boreal.query.expressions import parse, parse_aggregation
from boreal.query.language import AGGREGATIONS, FUNCTIONS, OPERATORS
from boreal.query.planner import plan
from boreal.query.spec import json_schema, load_query
from boreal_cli import reference
from boreal_cli.reference import EXAMPLE, EXPRESSIONS_OVER, OPERATOR_EXAMPLES, pages
from embedded.faults import FORMS, check_faults, parse_fault
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings, SparkSettings
from services.source.options import SourceOptions


def document(text: str) -> Any:
    return parse_document("example", text)


ROOT = Path(__file__).parents[3]
PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_current(name: str) -> None:
    """Write them with: python -m boreal_cli.reference"""
    assert (ROOT / reference.DOCS / name).read_text(encoding="utf-8") == PAGES[name]


def undescribed(schema: dict[str, Any], name: str) -> Iterator[str]:
    for field, value in schema.get("properties", {}).items():
        if not value.get("description"):
            yield f"{name}.{field}"


def test_each_property_of_the_query_is_described() -> None:
    schema = json_schema()
    parts = {"Query": schema, **schema["$defs"]}
    assert [missing for name, part in parts.items() for missing in undescribed(part, name)] == []
    assert [name for name, part in parts.items() if not part.get("description")] == []


def test_defaults_in_the_schema_are_as_a_file_writes_them() -> None:
    schema = json_schema()
    assert schema["properties"]["delay_threshold"]["default"] == "3s"
    assert schema["$defs"]["Tuning"]["properties"]["memory"]["default"] == "256MB"
    assert load_query({**document(EXAMPLE), "tuning": schema["properties"]["tuning"]["default"]}) == load_query(EXAMPLE)


@pytest.mark.parametrize("model", [ServiceSettings, KafkaSettings, RedisSettings, SparkSettings, SourceOptions])
def test_each_setting_is_described(model: type[BaseModel]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_each_variable_that_is_read_is_on_the_page() -> None:
    folders = ("boreal", "boreal_cli", "deployment", "services", "spark_jobs")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'environ(?:\.get\(|\[)"(BOREAL_\w+)"', text)}
    assert "BOREAL_CONFIG" in read
    assert {name for name in read if f"`{name}`" not in PAGES["settings.md"]} == set()


class LongDelays(RowOperator):
    class Parameters(BaseModel):
        above: int

    deterministic = True


def test_each_kind_of_operator_has_an_example_that_can_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_loaded", {})
    installed.provide("long_delays", LongDelays)
    assert {kind.capitalize() for kind in OPERATOR_EXAMPLES} == set(reference._OPERATORS) <= set(json_schema()["$defs"])
    plan(load_query(EXAMPLE))
    for kind, text in OPERATOR_EXAMPLES.items():
        [name] = operators = document(text)
        query = load_query({**document(EXAMPLE), "operators": operators, "output": name})
        assert query.operators[name].kind == kind
        plan(query)


def test_all_that_an_expression_may_hold_is_in_the_tables() -> None:
    literals = ("1", "1.5", "'text'", "true", "cast(null as double)", "(x)")
    forms = (*OPERATORS, *(form for form, _ in FUNCTIONS.values()), *literals)
    for form in forms:
        parse(form, EXPRESSIONS_OVER, "expression")
    shown = {type(node) for form in forms for node in expressions._tree(form, "expression").walk()}
    assert {node.__name__ for node in expressions._METHODS} - {node.__name__ for node in shown} == set()
    assert all(form.startswith(f"{name}(") for name, (form, _) in FUNCTIONS.items())
    assert all(isinstance(expressions._tree(form, "f"), exp.Func) for form, _ in FUNCTIONS.values())


def test_all_aggregations_are_in_the_table() -> None:
    shown = {parse_aggregation(form, EXPRESSIONS_OVER, "aggregation").function for form in AGGREGATIONS}
    assert shown == {*expressions._AGGREGATE_CLASSES.values(), "count_distinct"}


def test_each_fault_has_an_example() -> None:
    faults = {form: parse_fault(form.example) for forms in FORMS.values() for form in forms}
    check_faults(faults.values(), plan(load_query(EXAMPLE)))
    assert {fault.kind for fault in faults.values()} == {"cut_stream", "cut_replica", "crash", "freeze", "slow", "stop"}
    assert all(form.text.split()[0] == form.example.split()[0] == verb for verb, forms in FORMS.items() for form in forms)
