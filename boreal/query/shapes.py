"""What a query is made of: its streams, windows and operators, each as the file writes it and judged by itself."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, WithJsonSchema, model_validator

from boreal.model.durations import Duration, DurationOrZero, format_duration
from boreal.model.schema import RESERVED, TIME, Schema
from boreal.query.columns import AnyColumn, Path, SourceColumn, check_places
from boreal.query.csv_form import Csv, check_csv
from boreal.query.fields import Column, Expressions, Model, Name, Names, SomeNames, Topic, plain
from boreal.query.own_operators import own_memory_us
from boreal.query.refusals import did_you_mean, refuse

_WITHOUT_REGISTRY = {"json": "JSON", "csv": "CSV", "arrow": "Arrow"}
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
    format: Literal["json", "csv", "arrow", "avro", "protobuf", "json_schema"] = Field(
        default="json",
        description="What a record of the topic holds: a JSON object (`json`); a line of CSV (`csv`); an Arrow IPC stream of "
        "one row or more (`arrow`); or, as serializers with a schema registry write it, the id of its writer's schema "
        "and then Avro, Protobuf, or JSON with a JSON Schema. Rows that are posted are JSON, so a stream of another format "
        "takes none; files tell their format by their names.",
    )
    csv: Csv | None = Field(
        default=None,
        description="How records in CSV are written, where it is not the columns of the schema with commas between them. A "
        "file of CSV that the stream is run over has this `delimiter` and `nulls`, and its own first line as the header.",
    )
    registry: Name | None = Field(
        default=None,
        description="The schema registry of these ids, by its name in the settings (`BOREAL_REGISTRIES`). By default the first "
        "in the order of their names.",
    )
    lacking: Literal["dead_letter", "nulls"] = Field(
        default="dead_letter",
        description="What becomes of an Avro, Protobuf or Arrow record whose schema does not have a column: it is refused "
        "(`dead_letter`), or the column is null in it (`nulls`), as it always is where a JSON object lacks a field.",
    )
    time: Column = Field(
        description="The column that holds the event time of a row: a timestamp, an ISO 8601 text (without a zone: UTC), or a "
        "whole number in `time_unit` since 1970.",
    )
    time_unit: Literal["s", "ms", "us", "ns"] = Field(default="ms", description="The unit of event times that are numbers.")
    columns: Annotated[dict[Column, AnyColumn], Field(alias="schema", min_length=1)] = Field(
        description="The columns that the query reads, each with its type; or, as `{type: int, path: user.id}`, with its type "
        "and its place in nested data; or, as `{type: string, from: key}`, with its type and another part of a record than its "
        "value. Every column may be null. Fields of the data that are not named here are ignored.",
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

    types: Literal["coerce", "refuse"] = Field(
        default="coerce",
        description="What becomes of a JSON value that has another type than its column, such as a number in quotes: it is "
        "converted if it can be (`coerce`), or its record is refused (`refuse`). A time may be a text or a number. In CSV, "
        "where every value is a text, `refuse` takes only `true` and `false` for a bool, and not 1 and 0.",
    )

    @property
    def attributes(self) -> Schema:
        """The attributes of the stream's tuples: a column `time` that is the tuples' time is not one of them."""
        kinds = {name: of.type if isinstance(of, SourceColumn) else of for name, of in self.columns.items()}
        return Schema(tuple((name, kind) for name, kind in kinds.items() if name != TIME))

    @property
    def paths(self) -> dict[str, Path]:
        """Where the columns are that are not fields of the record under their own names."""
        places = {name: of.steps for name, of in self.columns.items() if isinstance(of, SourceColumn)}
        return {name: path for name, path in places.items() if path is not None}

    @property
    def listed(self) -> tuple[str, ...]:
        """The columns of the schema that are in the value of a record, in its order."""
        origins = self.origins
        return tuple(name for name in self.columns if name not in origins)

    @property
    def origins(self) -> dict[str, str]:
        """The columns that are other parts of a record than its value: which part."""
        parts = {name: of.origin for name, of in self.columns.items() if isinstance(of, SourceColumn)}
        return {name: part for name, part in parts.items() if part is not None}

    @model_validator(mode="after")
    def _check(self) -> Stream:
        for name in RESERVED:
            if name in self.columns and not name == TIME == self.time:
                refuse(
                    "is a reserved column name",
                    "rename the column in the data" + (", or make it the stream's `time`" if name == TIME else ""),
                    field=f"schema.{name}",
                    value=plain(column) if isinstance(column := self.columns[name], SourceColumn) else column.value,
                )
        if self.registry is not None and self.format in _WITHOUT_REGISTRY:
            fix = "remove it, or write format: avro, protobuf or json_schema"
            problem = f"is for records with ids of schemas, and these are plain {_WITHOUT_REGISTRY[self.format]}"
            refuse(problem, fix, field="registry", value=self.registry)
        if self.csv is not None and self.format != "csv":
            problem = f"is for records in CSV, and these are {self.format}"
            refuse(problem, "remove it, or write format: csv", field="csv", value=plain(self.csv))
        paths, origins = self.paths, self.origins
        inside = {name: paths.get(name, (name,)) for name in (*self.columns, self.time) if name not in origins}
        check_places(inside)
        if self.format == "csv":
            check_csv(self.csv or Csv(), inside, self.listed, self.time)
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
    """A window in event time: `tumbling: SIZE`, or `sliding: SIZE` with `every: STEP`, which are aligned to the epoch; or
    `session: GAP`, for an aggregate, in which each group has windows of its own, from a first row to a gap without rows."""

    tumbling: Duration | None = Field(default=None, description="The size of windows that follow each other without overlap.")
    sliding: Duration | None = Field(default=None, description="The size of windows that overlap.")
    every: Duration | None = Field(
        default=None,
        description="The distance between the starts of two sliding windows: at most their size.",
    )

    session: Duration | None = Field(
        default=None,
        description="The gap that ends a session: a row belongs to the session of its group's row before it if it comes less "
        "than this after it. The window is from the first row's time to the last row's plus the gap.",
    )
    longest: Duration | None = Field(
        default=None,
        description="A session also ends at each whole multiple of this, such as midnight (UTC) for `1d`. Without it a session "
        "may go on for ever, so that state depends on all earlier input.",
    )

    @property
    def size_us(self) -> int:
        """The size of a tumbling or sliding window; of a session the most that it can be, 0 if it can be any."""
        return self.tumbling or self.sliding or self.longest or 0

    @property
    def every_us(self) -> int:
        """The distance between the starts of two windows; a tumbling window's is its size."""
        return self.every or self.size_us

    @model_validator(mode="after")
    def _check(self) -> Window:
        kinds = [name for name in ("tumbling", "sliding", "session") if getattr(self, name) is not None]
        if len(kinds) != 1:
            fix = "write {tumbling: 10m}, {sliding: 1h, every: 10m} or {session: 30m}"
            refuse("must be one of tumbling, sliding and session", fix)
        if self.longest is not None and self.session is None:
            refuse(
                f"a {kinds[0]} window has no `longest`",
                "remove `longest`, or write {session: GAP, longest: SPAN}",
                field="longest",
                value=format_duration(self.longest),
            )
        if self.session is not None and self.longest is not None and self.longest < self.session:
            refuse(
                "is shorter than the gap, so that hardly two rows would share a session",
                f"write at least {format_duration(self.session)}",
                field="longest",
                value=format_duration(self.longest),
            )
        if self.sliding is None and self.every is not None:
            refuse(
                f"a {kinds[0]} window has no `every`",
                "remove `every`, or write {sliding: SIZE, every: STEP}",
                field="every",
                value=format_duration(self.every),
            )
        if self.sliding is not None and self.every is None:
            refuse(
                "a sliding window needs `every`", "add every: 10m, the step between windows", field="every", value=None
            )
        if self.session is not None:
            return self
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


class Lookup(Model):
    """Each row of the left input, with the columns of the right input's newest row that has equal values in the columns
    `on`, as of the left row's event time. The right input is a table as a stream of its changes, such as a compacted topic or
    a file: a row counts from its time on, until one with its values replaces it, or one that is `deleted` takes it away. So
    that nobody waits for the next change of a table that seldom changes, its stream has `boundary: clock`, and `late: clamp` if
    changes may come late."""

    kind: ClassVar[Literal["lookup"]] = "lookup"
    lookup: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)] = Field(
        description="The left input, and the table that is looked up: streams or operators.",
    )
    on: SomeNames = Field(description="The columns, present in both inputs, whose values must be equal. A null equals nothing.")
    within: Duration | None = Field(
        default=None,
        description="By how much the table's row may be older than the left row at most. Without it, a row counts until it is "
        "replaced or deleted, and state keeps the newest row of each value until then.",
    )
    deleted: Column | None = Field(
        default=None,
        description="The column of the table, a bool, that is true in rows that delete: from its time on there is no row with "
        "its values in `on`, until the next one. It is no column of the result. In a compacted topic a record without a value "
        "(a tombstone) deletes its key: `schema: {id: {type: string, from: key}, gone: {type: bool, from: tombstone}, ...}` "
        "with `on: [id]` and `deleted: gone`.",
    )
    how: Literal["inner", "left"] = Field(
        default="inner",
        description="What becomes of a left row that finds no row: `inner` leaves it out, `left` gives it with nulls for the "
        "right columns.",
    )

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.lookup


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
        if self.window is not None and self.window.session is not None:
            gap = format_duration(self.window.session)
            refuse(
                "distinct needs a tumbling window",
                f"write {{tumbling: {gap}}}; or, for values that have not come for {gap}, a deduplicate with within: {gap}",
                field="window",
                value=plain(self.window),
            )
        return self


class Deduplicate(Model):
    """Leaves out each row that has the values of another row in the columns `on` and came less than `within` after it. It does
    not matter whether the other row was left out itself: values that come again and again are given once, until they have not
    come for `within`."""

    kind: ClassVar[Literal["deduplicate"]] = "deduplicate"
    deduplicate: str = Field(description="The input: a stream or an operator.")
    on: SomeNames = Field(description="The columns whose values are compared. Nulls are equal to each other.")
    within: Duration = Field(description="How long in event time a value must not have come, so that its row is given.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.deduplicate,)


class Top(Model):
    """The first k rows of each window and group, in the order of `order_by`, with their `rank` from 1."""

    kind: ClassVar[Literal["top"]] = "top"
    top: str = Field(description="The input: a stream or an operator.")
    k: Annotated[int, Field(strict=True, ge=1)] = Field(description="The number of rows to keep in each window and group.")
    order_by: str = Field(
        description="SQL expressions, each with `asc` (the default) or `desc`, such as `dep_delay desc, carrier`: each breaks "
        "the ties of those before it. In both directions nulls come last, and NaN before them. Rows that are equal in all of "
        "them are ranked in the order (time, port, id), which is the same on all replicas.",
    )
    window: Window = Field(description="The windows that rows are grouped in.")
    by: Names = Field(default=(), description="The columns whose values make a group. Without any, a window is one group.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.top,)

    @model_validator(mode="after")
    def _check(self) -> Top:
        if self.window.session is not None:
            refuse(
                "top needs a tumbling or a sliding window",
                "write {tumbling: 10m}; or take the top of an aggregate with session windows",
                field="window",
                value=plain(self.window),
            )
        return self


class Python(Model):
    """An operator of your own: a class of an installed Python package, found by the name under which the package registers it
    ([extending.md](extending.md)). What is not installed and registered in a process cannot be named there."""

    kind: ClassVar[Literal["python"]] = "python"
    python: str = Field(description="The input: a stream or an operator.")
    operator: Annotated[str, Field(min_length=1)] = Field(
        description="The name of the operator: of an entry point of the group `boreal.operators`.",
    )
    parameters: Annotated[
        dict[str, JsonValue], WithJsonSchema({"type": "object", "title": "parameters", "additionalProperties": True})
    ] = Field(default={}, alias="with", description="The operator's parameters, which its class checks.")
    version: str | None = Field(
        default=None,
        description="The version that its package must have: a process in which it has another refuses the query. Without it "
        "each process takes the version that is installed; replicas with different versions may answer differently.",
    )

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.python,)


OperatorSpec = Filter | Map | Union | Aggregate | Join | Lookup | Distinct | Deduplicate | Top | Python
KINDS: dict[str, type[Model]] = {
    model.kind: model for model in (Filter, Map, Union, Aggregate, Join, Lookup, Distinct, Deduplicate, Top, Python)
}


def unbounded_by(name: str, spec: OperatorSpec) -> tuple[str, str] | None:
    """(What makes an operator's state depend on all input ever, what to add to bound it); None if its windows bound it."""
    match spec:
        case Distinct(window=None):
            return "a distinct without a window", f"a window to operators.{name}, such as {{tumbling: 1h}}"
        case Aggregate(window=Window(session=int(), longest=None)):
            return "an aggregate over sessions of any length", f"longest: 1d to operators.{name}.window"
        case Lookup(within=None):
            return "a lookup of rows of any age", f"within: 1d to operators.{name}"
        case Python(operator=operator, parameters=parameters) if own_memory_us(operator, parameters) is None:
            return "an operator with state for ever", f"a window to the state of {operator}"
    return None


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
    | Annotated[Lookup, Tag("lookup")]
    | Annotated[Distinct, Tag("distinct")]
    | Annotated[Deduplicate, Tag("deduplicate")]
    | Annotated[Top, Tag("top")]
    | Annotated[Python, Tag("python")],
    Discriminator(_kind_of),
]
