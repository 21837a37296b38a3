"""The query file, and how it is read: YAML, JSON, SQL or a mapping, all the same shape. Its parts are in `boreal.query.query`,
`boreal.query.shapes` and `boreal.query.running`, which rooms above import from here.

What can be judged without knowing column types is judged as a query is made, names and the graph above all;
`boreal.query.planner` judges the rest. Durations are microseconds in the model and text in the file; sizes are bytes in the
model. Every refusal that `load_query` makes is a UserError with the dotted path, what stood there, the problem and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from boreal.model.documents import parse_document
from boreal.model.durations import format_bytes, format_duration
from boreal.model.errors import UserError
from boreal.query.fields import Engine, Engines, plain
from boreal.query.planner import plan
from boreal.query.query import Query, read_mapping
from boreal.query.refusals import did_you_mean
from boreal.query.running import (
    DEFAULT_FRAGMENT,
    LEAST_SLACK_US,
    FragmentSpec,
    Hold,
    Intervals,
    Mode,
    Policy,
    Slo,
    Tuning,
)
from boreal.query.shapes import (
    Aggregate,
    Deduplicate,
    Distinct,
    Filter,
    Join,
    Lookup,
    Map,
    OperatorSpec,
    Python,
    Stream,
    Top,
    Union,
    Window,
    unbounded_by,
)
from boreal.query.sql_reading import is_sql, read_sql

__all__ = [
    "DEFAULT_FRAGMENT",
    "LEAST_SLACK_US",
    "Aggregate",
    "Deduplicate",
    "Distinct",
    "Engine",
    "Engines",
    "Filter",
    "FragmentSpec",
    "Hold",
    "Intervals",
    "Join",
    "Lookup",
    "Map",
    "Mode",
    "OperatorSpec",
    "Policy",
    "Python",
    "Query",
    "Slo",
    "Stream",
    "Top",
    "Tuning",
    "Union",
    "Window",
    "did_you_mean",
    "json_schema",
    "load_query",
    "unbounded_by",
]


def load_query(source: Path | str | Mapping[str, Any]) -> Query:
    """The query in a file, in YAML, JSON or SQL text, or in a mapping of the file's shape.

    Text with a line break, or that begins with `{` or `create`, is the query itself; other text is a path. Raises UserError:
    the first thing wrong, by its dotted path in the file; in SQL, with its line and column, types included.
    """
    if isinstance(source, Mapping):
        return read_mapping(source)
    name, text = _read(source)
    if is_sql(text):
        return _load_sql(text)
    content = parse_document(name, text)
    if not isinstance(content, Mapping):
        raise UserError("query", content, "is not a mapping", "begin with `name: ...`, `streams: ...` and so on")
    return read_mapping(content)


def _load_sql(text: str) -> Query:
    """It is planned too: nobody knows the lines of the text later."""
    document = read_sql(text)
    try:
        query = read_mapping(document.content)
        plan(query)
    except UserError as error:
        raise document.located(error) from None
    return query


def _read(source: Path | str) -> tuple[str, str]:
    """(what to call it, its text)."""
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{") or is_sql(source)):
        return "query", source
    try:
        return str(source), Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError("query", str(source), f"cannot be read: {reason}", "name a YAML, JSON or SQL file") from None


class _SchemaOfFile(GenerateJsonSchema):
    """Defaults are written as the file writes them: durations and sizes with their units."""

    def encode_default(self, dft: Any) -> Any:
        return plain(dft) if isinstance(dft, BaseModel) else super().encode_default(dft)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = super().default_schema(schema)
        write = _WRITTEN.get(found.get("title", ""))
        return {**found, "default": write(found["default"])} if write and "default" in found else found


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "duration": format_duration,
    "size": format_bytes,
    "auto, or a duration": lambda value: "auto" if value is None else format_duration(value),
}
"""By the title of the type in the schema."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the query file; docs/query.schema.json is its published copy."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Query.model_json_schema(by_alias=True, mode="validation", schema_generator=_SchemaOfFile),
    }
