"""The whole query: its model, with what is judged of its parts together; and how a mapping of the file's shape becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from boreal.model.durations import Duration
from boreal.query.checks import check_acyclic, check_engines, check_fragments, check_inputs, check_names, check_thresholds
from boreal.query.fields import Engines, Model, Name, QueryName, Replicas, Shards, plain
from boreal.query.messages import user_error
from boreal.query.records import Records, records_from_text
from boreal.query.refusals import did_you_mean, refuse
from boreal.query.running import (
    FragmentSpec,
    Intervals,
    Mode,
    Policy,
    Slo,
    SparkPart,
    Tuning,
    policy_from_text,
    slo_from_text,
)
from boreal.query.shapes import AnyOperator, Stream, unbounded_by


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
    spark: SparkPart = Field(default=SparkPart(), description="How the operators that run in Spark run there.")
    tuning: Tuning = Field(default=Tuning(), description="What most queries leave at its default.")
    latest: bool = Field(
        default=False,
        description="Whether, on a stack, the topic NAME.latest holds the current row of each key, for tables and dashboards.",
    )
    records: Annotated[Records | None, BeforeValidator(records_from_text)] = Field(
        default=None,
        description="Whether, on a stack, the topic NAME.records holds the final rows in another format: Avro, Protobuf or "
        "JSON, with a schema registry; CSV; or Arrow. By default there is no such topic.",
    )
    debezium: bool = Field(
        default=False,
        description="Whether, on a stack, the topic NAME.debezium holds each change of the current row of each key in the "
        "envelope of Debezium, for Connect, Flink and what else reads changes of tables.",
    )

    @property
    def intervals(self) -> Intervals:
        """How often it does what it does again and again: as `tuning` says, or as follows from its delay threshold."""
        return self.tuning.intervals(self.delay_threshold)

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
        """The reaching operators whose state depends on all input ever: distinct without a window, and others."""
        return tuple(name for name in self.reaching if unbounded_by(name, self.operators[name]))

    def dump(self) -> dict[str, Any]:
        """The file's shape, defaults filled in; `load_query` reads it back as an equal query."""
        return plain(self)

    def written(self) -> dict[str, Any]:
        """The file's shape without what is at its default; `load_query` reads it back as an equal query."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    def changed(self, **values: object) -> Query:
        """This query with some of its top-level fields, as the file would write them, replaced; UserError as there."""
        return read_mapping({**self.dump(), **values})

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
        for name in self.reaching:
            unbounded = unbounded_by(name, self.operators[name])
            if unbounded and self.reconcile is Mode.UNDO_REDO:
                refuse(
                    f"undo_redo cannot rebuild {name}: {unbounded[0]} depends on all input ever",
                    f"add {unbounded[1]}, or use checkpoint_redo or overlay_redo",
                    field="reconcile",
                    value=self.reconcile.value,
                )
        return self


def read_mapping(content: Mapping[str, Any]) -> Query:
    """The query in a mapping of the file's shape. UserError: the first thing wrong, by its dotted path."""
    try:
        return Query.model_validate(dict(content))
    except ValidationError as error:
        raise user_error(error.errors(include_url=False)[0], Query) from None
