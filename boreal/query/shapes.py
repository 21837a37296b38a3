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
    """A source stream. `columns` is the file's `schema`; `attributes` leaves out what is the tuples' own time.

    site: where its topic is, and so its source, of a stack with several sites; None for the home site, the first of them.
    time_unit: of integer times. boundary: what the source's boundaries are made from (R29). disorder: how far out of
    order event time may be. ahead: how far beyond both its stream and the clock a row's time is still believed. idle: a
    partition that has brought nothing for so long holds its stream back no longer. late: what becomes of a row that is
    older than a boundary which its producer's rows have passed: it is a dead letter, or its time is raised to that boundary
    (`clamp`).
    """

    topic: Topic | None = None
    site: Name | None = None
    time: Column
    time_unit: Literal["s", "ms", "us", "ns"] = "ms"
    columns: Annotated[dict[Column, Type], Field(alias="schema", min_length=1)]
    key: Names = ()
    boundary: Literal["data", "clock", "producer"] = "data"
    disorder: DurationOrZero = 0
    ahead: DurationOrZero = 60_000_000
    idle: Duration = 30_000_000
    late: Literal["dead_letter", "clamp"] = "dead_letter"

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

    tumbling: Duration | None = None
    sliding: Duration | None = None
    every: Duration | None = None

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
    filter: str
    where: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.filter,)


class Map(Model):
    """Makes each row anew: output column -> expression."""

    kind: ClassVar[Literal["map"]] = "map"
    map: str
    select: Expressions

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.map,)


class Union(Model):
    """Merges streams of one shape into one, in the order (time, port, id)."""

    kind: ClassVar[Literal["union"]] = "union"
    union: SomeNames

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.union


class Aggregate(Model):
    """One row for each window and group: the columns of `by`, then output column -> aggregation."""

    kind: ClassVar[Literal["aggregate"]] = "aggregate"
    aggregate: str
    window: Window
    by: Names = ()
    compute: Expressions

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.aggregate,)


class Join(Model):
    """Pairs rows of two inputs that agree on the columns `on` and are at most `within` (microseconds) apart."""

    kind: ClassVar[Literal["join"]] = "join"
    join: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
    on: SomeNames
    within: Duration
    how: Literal["inner", "left"] = "inner"

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.join


class Distinct(Model):
    """The first row for each value of the columns `on`, in each window, or ever where there is none."""

    kind: ClassVar[Literal["distinct"]] = "distinct"
    distinct: str
    on: SomeNames
    window: Window | None = None

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
    top: str
    k: Annotated[int, Field(strict=True, ge=1)]
    order_by: str
    window: Window
    by: Names = ()

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
