"""What a query is made of: its streams, windows and operators, each as the file writes it and judged by itself."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from boreal.model.durations import Duration, DurationOrZero, format_duration
from boreal.model.schema import RESERVED, TIME, Schema, Type
from boreal.query.fields import Column, Expressions, Model, Name, Names, SomeNames, Topic, plain
from boreal.query.refusals import did_you_mean, refuse

MOST_PANES = 100_000
"""Of a window: so many spans that no window's edge cuts, each with state of its own."""


class Stream(Model):
    """A source stream: where its rows come from, what they look like, and how their event time behaves."""

    topic: Topic | None = Field(
        default=None,
        description="The Kafka topic that the stream's source reads. A query on a stack needs one for each stream; a run over "
        "files ignores it.",
    )
    site: Name | None = Field(
        default=None,
        description="The site of the topic, and so of the stream's source, in an installation with several sites. By default "
        "the home site, which is the first in the order of their names.",
    )
    time: Column = Field(
        description="The column that holds the event time of a row: a timestamp, an ISO 8601 text (without a zone: UTC), or a "
        "whole number in `time_unit` since 1970.",
    )
    time_unit: Literal["s", "ms", "us", "ns"] = Field(default="ms", description="The unit of event times that are numbers.")
    columns: Annotated[dict[Column, Type], Field(alias="schema", min_length=1)] = Field(
        description="The columns that the query reads, each with its type. Every column may be null. Fields of the data that "
        "are not named here are ignored.",
    )
    key: Names = Field(
        default=(),
        description="The columns that identify what a row is about. Shards divide the rows by them, and clients' records have "
        "them as their key, where no operator groups the rows otherwise.",
    )
    boundary: Literal["data", "clock", "producer"] = Field(
        default="data",
        description="What moves the stream's boundary: the rows (`data`), the source's clock (`clock`), or only what "
        "producers send (`producer`).",
    )
    disorder: DurationOrZero = Field(
        default=0,
        description="How far behind the newest row of its partition a row may be. The boundary stays so far behind the rows, "
        "or the clock.",
    )
    ahead: DurationOrZero = Field(
        default=60_000_000,
        description="How far beyond both its stream and the source's clock the time of a row is believed. A row further ahead "
        "is a dead letter.",
    )
    idle: Duration = Field(
        default=30_000_000,
        description="A partition that has brought no row for so long is idle: it holds back the boundary of its stream no "
        "longer.",
    )
    late: Literal["dead_letter", "clamp"] = Field(
        default="dead_letter",
        description="What becomes of a row that is older than a boundary it had to precede: it is refused (`dead_letter`), or "
        "its time is raised to that boundary (`clamp`).",
    )

    @property
    def attributes(self) -> Schema:
        """The attributes of the stream's tuples: a column `time` that is the tuples' time is not one of them."""
        return Schema(tuple((name, kind) for name, kind in self.columns.items() if name != TIME))

    @model_validator(mode="after")
    def _check(self) -> Stream:
        for name in RESERVED:
            if name in self.columns and not name == TIME == self.time:
                refuse(
                    "is a reserved column name",
                    "rename the column in the data" + (", or make it the stream's `time`" if name == TIME else ""),
                    field=f"schema.{name}",
                    value=self.columns[name].value,
                )
        for name in self.key:
            if name not in self.attributes.types:
                refuse(
                    f"names {name}, which is not a column of the stream",
                    did_you_mean(name, self.attributes.names),
                    field="key",
                    value=list(self.key),
                )
        return self


class Window(Model):
    """A window in event time, aligned to the epoch: `tumbling: SIZE`, or `sliding: SIZE` with `every: STEP`."""

    tumbling: Duration | None = Field(default=None, description="The size of windows that follow each other without overlap.")
    sliding: Duration | None = Field(default=None, description="The size of windows that overlap.")
    every: Duration | None = Field(
        default=None,
        description="The distance between the starts of two sliding windows: at most their size.",
    )

    @property
    def size_us(self) -> int:
        return self.tumbling or self.sliding or 0

    @property
    def every_us(self) -> int:
        """The distance between the starts of two windows; a tumbling window's is its size."""
        return self.every or self.size_us

    @model_validator(mode="after")
    def _check(self) -> Window:
        if (self.tumbling is None) == (self.sliding is None):
            refuse("must be either tumbling or sliding", "write {tumbling: 10m}, or {sliding: 1h, every: 10m}")
        if self.tumbling is not None and self.every is not None:
            refuse(
                "a tumbling window has no `every`",
                "remove `every`, or write {sliding: SIZE, every: STEP}",
                field="every",
                value=format_duration(self.every),
            )
        if self.sliding is not None and self.every is None:
            refuse(
                "a sliding window needs `every`", "add every: 10m, the step between windows", field="every", value=None
            )
        if self.every_us > self.size_us:
            refuse(
                "is longer than the window, so tuples would fall between windows",
                f"write at most {format_duration(self.size_us)}",
                field="every",
                value=format_duration(self.every_us),
            )
        if self.size_us // gcd(self.size_us, self.every_us) > MOST_PANES:
            refuse(
                f"cuts the window into more than {MOST_PANES:,} pieces, of the length that divides both",
                f"write {format_duration(self._nearest_step())}, which divides {format_duration(self.size_us)}",
                field="every",
                value=format_duration(self.every_us),
            )
        return self

    def _nearest_step(self) -> int:
        """The smallest allowed step, of at least `every`, that divides the window."""
        count = min(self.size_us // self.every_us, MOST_PANES)
        while self.size_us % count:
            count -= 1
        return self.size_us // count


class Filter(Model):
    """Keeps the rows for which the condition `where` is true."""

    kind: ClassVar[Literal["filter"]] = "filter"
    filter: str = Field(description="The input: a stream or an operator.")
    where: str = Field(description="A condition: an SQL expression of type bool. A row for which it is null is left out.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.filter,)


class Map(Model):
    """Computes the columns of each row. Only the columns that it names remain."""

    kind: ClassVar[Literal["map"]] = "map"
    map: str = Field(description="The input: a stream or an operator.")
    select: Expressions = Field(description="Each output column with the SQL expression that computes it.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.map,)


class Union(Model):
    """Merges streams of one shape into one, in the order (time, port, id)."""

    kind: ClassVar[Literal["union"]] = "union"
    union: SomeNames = Field(description="The inputs: streams or operators with the same columns.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.union


class Aggregate(Model):
    """One row for each window and group: the columns of `by`, then those of `compute`."""

    kind: ClassVar[Literal["aggregate"]] = "aggregate"
    aggregate: str = Field(description="The input: a stream or an operator.")
    window: Window = Field(description="The windows that rows are grouped in.")
    by: Names = Field(default=(), description="The columns whose values make a group. Without any, a window is one group.")
    compute: Expressions = Field(description="Each output column with the aggregation that computes it, such as `count(*)`.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.aggregate,)


class Join(Model):
    """Pairs rows of two inputs that have equal values in the columns `on` and event times at most `within` apart."""

    kind: ClassVar[Literal["join"]] = "join"
    join: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)] = Field(
        description="The left and the right input: streams or operators.",
    )
    on: SomeNames = Field(description="The columns, present in both inputs, whose values must be equal. A null equals nothing.")
    within: Duration = Field(description="The longest distance in event time between the two rows of a pair.")
    how: Literal["inner", "left"] = Field(
        default="inner",
        description="`inner` gives the pairs; `left` gives in addition each left row without a partner, with nulls for the "
        "right columns.",
    )

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.join


class Distinct(Model):
    """The first row for each value of the columns `on`, in each window, or ever where there is none."""

    kind: ClassVar[Literal["distinct"]] = "distinct"
    distinct: str = Field(description="The input: a stream or an operator.")
    on: SomeNames = Field(description="The columns whose values are compared.")
    window: Window | None = Field(
        default=None,
        description="The tumbling windows in which a value may occur once. Without it a value may occur once ever, and the "
        "state grows without bound.",
    )

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.distinct,)

    @model_validator(mode="after")
    def _check(self) -> Distinct:
        if self.window is not None and self.window.sliding is not None:
            refuse(
                "distinct needs a tumbling window: in sliding ones a row would be both first and repeated",
                f"write {{tumbling: {format_duration(self.window.size_us)}}}",
                field="window",
                value=plain(self.window),
            )
        return self


class Top(Model):
    """The first k rows of each window and group, in the order of `order_by`, with their `rank` from 1."""

    kind: ClassVar[Literal["top"]] = "top"
    top: str = Field(description="The input: a stream or an operator.")
    k: Annotated[int, Field(strict=True, ge=1)] = Field(description="The number of rows to keep in each window and group.")
    order_by: str = Field(
        description="SQL expressions, each with `asc` (the default) or `desc`, such as `dep_delay desc, carrier`. Nulls come "
        "last.",
    )
    window: Window = Field(description="The windows that rows are grouped in.")
    by: Names = Field(default=(), description="The columns whose values make a group. Without any, a window is one group.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.top,)


OperatorSpec = Filter | Map | Union | Aggregate | Join | Distinct | Top
KINDS: dict[str, type[Model]] = {model.kind: model for model in (Filter, Map, Union, Aggregate, Join, Distinct, Top)}


def kinds_named(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [kind for kind in KINDS if kind in value]
    return [value.kind] if isinstance(value, OperatorSpec) else []


def _kind_of(value: object) -> str | None:
    named = kinds_named(value)
    return named[0] if len(named) == 1 else None


AnyOperator = Annotated[
    Annotated[Filter, Tag("filter")]
    | Annotated[Map, Tag("map")]
    | Annotated[Union, Tag("union")]
    | Annotated[Aggregate, Tag("aggregate")]
    | Annotated[Join, Tag("join")]
    | Annotated[Distinct, Tag("distinct")]
    | Annotated[Top, Tag("top")],
    Discriminator(_kind_of),
]
