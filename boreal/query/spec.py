"""The query file: its model, and how it is read (YAML, JSON or a mapping; all the same shape). Its parts are in
`boreal.query.shapes` and `boreal.query.running`, which all others import from here.

What can be judged without knowing column types is judged here, names and the graph above all; `boreal.query.planner` judges
the rest. Durations are microseconds in the model and text in the file; sizes are bytes in the model. Every refusal that
`load_query` makes is a UserError with the dotted path, what stood there, the problem and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from boreal.model.documents import parse_document
from boreal.model.durations import Duration, format_bytes, format_duration
from boreal.model.errors import UserError
from boreal.query.checks import check_acyclic, check_engines, check_fragments, check_inputs, check_names, check_thresholds
from boreal.query.fields import Engine, Engines, Model, Name, QueryName, Replicas, Shards, plain
from boreal.query.messages import user_error
from boreal.query.refusals import did_you_mean, refuse
from boreal.query.running import (
    DEFAULT_FRAGMENT,
    LEAST_SLACK_US,
    FragmentSpec,
    Hold,
    Mode,
    Policy,
    Slo,
    Tuning,
    policy_from_text,
    slo_from_text,
)
from boreal.query.shapes import (
    Aggregate,
    AnyOperator,
    Distinct,
    Filter,
    Join,
    Map,
    OperatorSpec,
    Stream,
    Top,
    Union,
    Window,
)

__all__ = [
    "DEFAULT_FRAGMENT",
    "LEAST_SLACK_US",
    "Aggregate",
    "Distinct",
    "Engine",
    "Engines",
    "Filter",
    "FragmentSpec",
    "Hold",
    "Join",
    "Map",
    "Mode",
    "OperatorSpec",
    "Policy",
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
]


class Query(Model):
    """A whole query file. Names that operators, output and fragments mention are known to exist; there is no cycle."""

    name: QueryName = Field(description="The name of the query. Its topics are named after it.")
    streams: Annotated[dict[Name, Stream], Field(min_length=1)] = Field(description="The source streams, by name.")
    operators: dict[Name, AnyOperator] = Field(
        default={},
        description="The operators, by name. An operator has the key of its kind (`filter`, `map`, `union`, ...), whose value "
        "is its input.",
    )
    output: str = Field(description="The stream or operator whose rows the clients read.")
    delay_threshold: Duration = Field(
        default=3_000_000,
        description="X: no new result takes longer than this, from the log of its source to the client. It must exceed twice "
        "the sum of `tuning.bucket` and `tuning.boundary_interval`.",
    )
    reconcile: Mode = Field(
        default=Mode.CHECKPOINT_REDO,
        description="How a replica returns to the state before a failure, to reprocess from there: by a copy of the state, by "
        "clearing the state and replaying its input, or by dropping a layer above the state.",
    )
    policy: Annotated[Policy, BeforeValidator(policy_from_text)] = Field(
        default=Policy(),
        description="What to do with new input during a failure and during the stabilization after it.",
    )
    replicas: Replicas = Field(
        default=1,
        description="How many replicas run each fragment. With two, one answers while the other corrects.",
    )
    shards: Shards = Field(default=1, description="How many parts the keys of each fragment are divided into.")
    engine: Engines | None = Field(
        default=None,
        description="Where operators run: in the node (`native`) or in a Spark job (`spark`); or a list with one for each "
        "replica. By default `spark` on a stack and `native` in `boreal run`.",
    )
    fragments: Annotated[dict[Name, FragmentSpec], Field(min_length=1)] | None = Field(
        default=None,
        description="The parts that the query is divided into, by name. By default one, called `main`.",
    )
    slo: Annotated[Slo | None, BeforeValidator(slo_from_text)] = Field(
        default=None,
        description="An objective for results within X and for time without tentative results, whose budget is kept. By "
        "default none.",
    )
    tuning: Tuning = Field(default=Tuning(), description="What most queries leave at its default.")
    latest: bool = Field(
        default=False,
        description="Whether, on a stack, the topic NAME.latest holds the current row of each key, for tables and dashboards.",
    )

    @property
    def reaching(self) -> tuple[str, ...]:
        """The operators whose results reach the output, each after all that it reads."""
        graph: dict[str, tuple[str, ...]] = {}
        pending = [self.output]
        while pending:
            name = pending.pop()
            if name in self.operators and name not in graph:
                graph[name] = tuple(source for source in self.operators[name].inputs if source in self.operators)
                pending.extend(reversed(graph[name]))
        in_file_order = {name: graph[name] for name in self.operators if name in graph}
        return tuple(TopologicalSorter(in_file_order).static_order())

    @property
    def unbounded(self) -> tuple[str, ...]:
        """The reaching operators whose state never lets go of anything: distinct without a window."""
        return tuple(name for name in self.reaching if _is_unbounded(self.operators[name]))

    def dump(self) -> dict[str, Any]:
        """The file's shape, defaults filled in; `load_query` reads it back as an equal query."""
        return plain(self)

    def changed(self, **values: object) -> Query:
        """This query with some of its top-level fields, as the file would write them, replaced; UserError as there."""
        return load_query({**self.dump(), **values})

    @model_validator(mode="after")
    def _check(self) -> Query:
        check_names(self.streams, self.operators, self.fragments)
        check_inputs(self.streams, self.operators)
        check_acyclic(self.operators)
        if self.output not in {**self.streams, **self.operators}:
            choices = (*self.operators, *self.streams)
            refuse(
                "names no operator or stream", did_you_mean(self.output, choices), field="output", value=self.output
            )
        if self.fragments is not None:
            check_fragments(self.streams, self.operators, self.fragments, self.reaching)
        check_engines(self.fragments, self.engine, self.replicas)
        check_thresholds(self.delay_threshold, self.tuning)
        if self.reconcile is Mode.UNDO_REDO and self.unbounded:
            name = self.unbounded[0]
            refuse(
                f"undo_redo cannot rebuild {name}: a distinct without a window depends on all input ever",
                f"add a window to operators.{name}, such as {{tumbling: 1h}}, or use checkpoint_redo or overlay_redo",
                field="reconcile",
                value=self.reconcile.value,
            )
        return self


def _is_unbounded(spec: OperatorSpec) -> bool:
    return isinstance(spec, Distinct) and spec.window is None


def load_query(source: Path | str | Mapping[str, Any]) -> Query:
    """The query in a file, in YAML or JSON text, or in a mapping of the file's shape.

    Text with a line break, or that begins with `{`, is the query itself; other text is a path. Raises UserError: the
    first thing wrong, by its dotted path in the file.
    """
    content = source if isinstance(source, Mapping) else parse_document(*_read(source))
    if not isinstance(content, Mapping):
        raise UserError("query", content, "is not a mapping", "begin with `name: ...`, `streams: ...` and so on")
    try:
        return Query.model_validate(dict(content))
    except ValidationError as error:
        raise user_error(error.errors(include_url=False)[0], Query) from None


def _read(source: Path | str) -> tuple[str, str]:
    """(what to call it, its text)."""
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return "query", source
    try:
        return str(source), Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError("query", str(source), f"cannot be read: {reason}", "name a YAML or JSON file") from None


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
