"""The query file: its model, its validation, and how it is read (YAML, JSON or a mapping; all the same shape).

What can be judged without knowing column types is judged here, names and the graph above all; `boreal.query.planner` judges
the rest. Durations are microseconds in the model and text in the file; sizes are bytes in the model. Every refusal that
`load_query` makes is a UserError with the dotted path, what stood there, the problem and the fix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from math import gcd
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from boreal.model.documents import parse_document
from boreal.model.durations import Bytes, Duration, DurationOrZero, format_bytes, format_duration, parse_duration
from boreal.model.errors import UserError
from boreal.model.schema import RESERVED, TIME, Schema, Type

DEFAULT_FRAGMENT = "main"
"""The one fragment of a query that names none."""

RESERVED_NAMES = ("egress",)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_REPLICA_NAME = re.compile(r"r[0-9]+", re.ASCII)
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)

LEAST_SLACK_US = 1_000
"""What the delay threshold must leave beyond two buckets and two boundary intervals."""

MOST_PANES = 100_000
"""Of a window: so many spans that no window's edge cuts, each with state of its own."""

RETENTION_HEARTBEATS = 10
"""A reader counts as dead after three heartbeats, and is to keep its claim on the logs well beyond (R27)."""

LEAST_RETENTION_US = 1_000_000
LEAST_MEMORY = 1_000


# -- Refusals ---------------------------------------------------------------------------------------------------------


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """A fix for a name that is not among the choices: the nearest one first, then all of them."""
    known = tuple(choices)
    near = get_close_matches(str(name), known, n=1)
    listed = ", ".join(known) if known else "none"
    return f"did you mean {near[0]}? The choices are: {listed}" if near else f"the choices are: {listed}"


def _refuse(problem: str, fix: str, *, field: str = "", **value: object) -> NoReturn:
    """Refuse from inside a validator; `field` is relative to the model, `value` replaces what pydantic would report."""
    raise PydanticCustomError("boreal", "{problem}", {"problem": problem, "fix": fix, "field": field, **value})


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        suggestion = re.sub(r"\W", "_", value, flags=re.ASCII)
        suggestion = f"_{suggestion}" if not _NAME.fullmatch(suggestion) else suggestion
        _refuse(
            "is not a name",
            f"use letters, digits and underscores, not beginning with a digit, such as {suggestion}",
            value=value,
        )
    return value


def _column(value: str) -> str:
    if not value:
        _refuse("is an empty column name", "give the column a name", value=value)
    return value


def _computed_column(value: str) -> str:
    if value in RESERVED:
        _refuse(
            "is a reserved column name",
            f"choose another name: {', '.join(RESERVED)} ride along with every tuple or window by themselves",
            value=value,
        )
    return _column(value)


def _no_repeats(values: tuple[str, ...]) -> tuple[str, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            _refuse(f"names {value} twice", f"name {value} once", value=list(values))
    return values


def _topic(value: str) -> str:
    if not _TOPIC_NAME.fullmatch(value):
        _refuse("is not a Kafka topic name", "use 1 to 249 letters, digits, dots, underscores and dashes", value=value)
    return value


# The longest topic, QUERY.log.STREAM-40FRAGMENT_1.REPLICA, stays with these below the 249 letters that Kafka allows.
_QUERY_NAME_LETTERS, _NAME_LETTERS = 100, 64
_NAME_SCHEMA = {"type": "string", "pattern": f"^{_NAME.pattern}$"}

QueryName = Annotated[
    str,
    Field(max_length=_QUERY_NAME_LETTERS),
    AfterValidator(_name),
    WithJsonSchema({**_NAME_SCHEMA, "maxLength": _QUERY_NAME_LETTERS}),
]
Name = Annotated[
    str,
    Field(max_length=_NAME_LETTERS),
    AfterValidator(_name),
    WithJsonSchema({**_NAME_SCHEMA, "maxLength": _NAME_LETTERS}),
]
Column = Annotated[str, AfterValidator(_column)]
ComputedColumn = Annotated[str, AfterValidator(_computed_column)]
Names = Annotated[tuple[str, ...], AfterValidator(_no_repeats)]
SomeNames = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_no_repeats)]
Expressions = Annotated[dict[ComputedColumn, str], Field(min_length=1)]
Replicas = Annotated[int, Field(strict=True, ge=1, le=64)]
Shards = Annotated[int, Field(strict=True, ge=1, le=1024)]
Engine = Literal["native", "spark"]
_ENGINES: tuple[Engine, ...] = get_args(Engine)


def _known_engines(value: object) -> object:
    """Judged ahead of the types, so that a refusal need not tell one name from a list."""
    for name in value if isinstance(value, list | tuple) else (value,):
        if name not in _ENGINES:
            _refuse("is not one of the choices", did_you_mean(name, _ENGINES), value=name)
    return value


Engines = Annotated[Engine | tuple[Engine, ...], BeforeValidator(_known_engines)]
"""Where replicas run their operators: all of them alike, or one name for each, in order."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


# -- Streams ----------------------------------------------------------------------------------------------------------


class Stream(_Model):
    """A source stream. `columns` is the file's `schema`; `attributes` leaves out what is the tuples' own time.

    site: where its topic is, and so its source, of a stack with several sites; None for the home site, the first of them.
    time_unit: of integer times. boundary: what the source's boundaries are made from (R29). disorder: how far out of
    order event time may be. ahead: how far beyond both its stream and the clock a row's time is still believed. idle: a
    partition that has brought nothing for so long holds its stream back no longer. late: what becomes of a row that is
    older than a boundary which its producer's rows have passed: it is a dead letter, or its time is raised to that boundary
    (`clamp`).
    """

    topic: Annotated[str, AfterValidator(_topic)] | None = None
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
                _refuse(
                    "is a reserved column name",
                    "rename the column in the data" + (", or make it the stream's `time`" if name == TIME else ""),
                    field=f"schema.{name}",
                    value=self.columns[name].value,
                )
        for name in self.key:
            if name not in self.attributes.types:
                _refuse(
                    f"names {name}, which is not a column of the stream",
                    did_you_mean(name, self.attributes.names),
                    field="key",
                    value=list(self.key),
                )
        return self


# -- Operators --------------------------------------------------------------------------------------------------------


class Window(_Model):
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
            _refuse("must be either tumbling or sliding", "write {tumbling: 10m}, or {sliding: 1h, every: 10m}")
        if self.tumbling is not None and self.every is not None:
            _refuse(
                "a tumbling window has no `every`",
                "remove `every`, or write {sliding: SIZE, every: STEP}",
                field="every",
                value=format_duration(self.every),
            )
        if self.sliding is not None and self.every is None:
            _refuse(
                "a sliding window needs `every`", "add every: 10m, the step between windows", field="every", value=None
            )
        if self.every_us > self.size_us:
            _refuse(
                "is longer than the window, so tuples would fall between windows",
                f"write at most {format_duration(self.size_us)}",
                field="every",
                value=format_duration(self.every_us),
            )
        if self.size_us // gcd(self.size_us, self.every_us) > MOST_PANES:
            _refuse(
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


class Filter(_Model):
    """Keeps the rows for which the condition `where` is true."""

    kind: ClassVar[Literal["filter"]] = "filter"
    filter: str
    where: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.filter,)


class Map(_Model):
    """Makes each row anew: output column -> expression."""

    kind: ClassVar[Literal["map"]] = "map"
    map: str
    select: Expressions

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.map,)


class Union(_Model):
    """Merges streams of one shape into one, in the order (time, port, id)."""

    kind: ClassVar[Literal["union"]] = "union"
    union: SomeNames

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.union


class Aggregate(_Model):
    """One row for each window and group: the columns of `by`, then output column -> aggregation."""

    kind: ClassVar[Literal["aggregate"]] = "aggregate"
    aggregate: str
    window: Window
    by: Names = ()
    compute: Expressions

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.aggregate,)


class Join(_Model):
    """Pairs rows of two inputs that agree on the columns `on` and are at most `within` (microseconds) apart."""

    kind: ClassVar[Literal["join"]] = "join"
    join: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
    on: SomeNames
    within: Duration
    how: Literal["inner", "left"] = "inner"

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.join


class Distinct(_Model):
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
            _refuse(
                "distinct needs a tumbling window: in sliding ones a row would be both first and repeated",
                f"write {{tumbling: {format_duration(self.window.size_us)}}}",
                field="window",
                value=_plain(self.window),
            )
        return self


class Top(_Model):
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

_KINDS: dict[str, type[_Model]] = {model.kind: model for model in (Filter, Map, Union, Aggregate, Join, Distinct, Top)}


def _kinds_named(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [kind for kind in _KINDS if kind in value]
    return [value.kind] if isinstance(value, OperatorSpec) else []


def _kind_of(value: object) -> str | None:
    named = _kinds_named(value)
    return named[0] if len(named) == 1 else None


_AnyOperator = Annotated[
    Annotated[Filter, Tag("filter")]
    | Annotated[Map, Tag("map")]
    | Annotated[Union, Tag("union")]
    | Annotated[Aggregate, Tag("aggregate")]
    | Annotated[Join, Tag("join")]
    | Annotated[Distinct, Tag("distinct")]
    | Annotated[Top, Tag("top")],
    Discriminator(_kind_of),
]


# -- How the query runs -----------------------------------------------------------------------------------------------


class Mode(StrEnum):
    """How a replica gets back to the state before the failure, to reprocess from there."""

    CHECKPOINT_REDO = "checkpoint_redo"
    UNDO_REDO = "undo_redo"
    OVERLAY_REDO = "overlay_redo"


class Hold(StrEnum):
    """What to do with new input while some input is missing or being corrected (R11)."""

    SUSPEND = "suspend"
    DELAY = "delay"
    PROCESS = "process"


class Policy(_Model):
    """What to do with new input, during a failure and during the stabilization after it."""

    failure: Hold = Hold.PROCESS
    stabilization: Hold = Hold.PROCESS

    @staticmethod
    def parse(text: str, field: str) -> Policy:
        """The policy written on one line, FAILURE/STABILIZATION, as in "process/delay"."""
        parts = text.split("/")
        known = {hold.value for hold in Hold}
        if len(parts) != 2 or not known.issuperset(parts):
            choices = ", ".join(Hold)
            raise UserError(field, text, "is not a policy", f"write FAILURE/STABILIZATION, each one of: {choices}")
        return Policy(failure=Hold(parts[0]), stabilization=Hold(parts[1]))

    def __str__(self) -> str:
        return f"{self.failure}/{self.stabilization}"


def _policy_from_text(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return Policy.parse(value, "")
    except UserError as error:
        _refuse(error.problem, error.fix, value=value)


def _alpha_x(value: object) -> object:
    if value is None or value == "auto":
        return None
    try:
        return parse_duration(value, "")
    except UserError as error:
        _refuse(error.problem, f"{error.fix}; or write auto", value=value)


AlphaX = Annotated[
    int | None,
    BeforeValidator(_alpha_x),
    PlainSerializer(lambda value: "auto" if value is None else format_duration(value)),
    WithJsonSchema({"type": "string", "title": "auto, or a duration", "examples": ["auto", "2s"]}),
]


class Tuning(_Model):
    """What most queries leave alone. `bucket` and `boundary_interval` are event time, the rest is run time.

    alpha_x: how long a SUnion may hold a bucket back; None (`auto`) lets it be measured (R9). stable_lag_max: by
    default ten times the delay threshold (R16). checkpoint_interval: of periodic checkpoints in the background (R26).
    history: what was logged since so long ago stays in the logs, needed or not, for `boreal backfill` and `boreal verify`.
    """

    bucket: Duration = 100_000
    boundary_interval: Duration = 50_000
    heartbeat: Duration = 100_000
    alpha_x: AlphaX = None
    memory: Bytes = 256_000_000
    retention: Duration = 86_400_000_000
    history: DurationOrZero = 0
    stable_lag_max: Duration | None = None
    checkpoint_interval: Duration | None = None

    @property
    def delay_threshold_least(self) -> int:
        """The smallest delay threshold that leaves room for a bucket to fill, be closed, and be given up (R8, R13)."""
        return 2 * (self.bucket + self.boundary_interval) + LEAST_SLACK_US

    @model_validator(mode="after")
    def _check(self) -> Tuning:
        retention = max(RETENTION_HEARTBEATS * self.heartbeat, LEAST_RETENTION_US)
        if self.retention < retention:
            _refuse(
                f"is too short: readers that live would lose their claim on the logs between two of their heartbeats, "
                f"every {format_duration(self.heartbeat)}",
                f"write at least {format_duration(retention)}",
                field="retention",
                value=format_duration(self.retention),
            )
        if self.checkpoint_interval is not None and self.checkpoint_interval < self.boundary_interval:
            _refuse(
                f"is shorter than boundary_interval, {format_duration(self.boundary_interval)}: nothing new comes sooner",
                f"write at least {format_duration(self.boundary_interval)}",
                field="checkpoint_interval",
                value=format_duration(self.checkpoint_interval),
            )
        if self.memory < LEAST_MEMORY:
            _refuse(
                "is too small for any rows",
                f"write at least {format_bytes(LEAST_MEMORY)}; 256MB, the default, serves most queries",
                field="memory",
                value=format_bytes(self.memory),
            )
        return self


class FragmentSpec(_Model):
    """A part of the query that one replica set runs; what is absent is as in the query."""

    operators: SomeNames
    replicas: Replicas | None = None
    shards: Shards | None = None
    engine: Engines | None = None


# -- The query --------------------------------------------------------------------------------------------------------


class Query(_Model):
    """A whole query file. Names that operators, output and fragments mention are known to exist; there is no cycle.

    latest: on the stack, the topic NAME.latest holds the current value of each key, for tables and dashboards.
    """

    name: QueryName
    streams: Annotated[dict[Name, Stream], Field(min_length=1)]
    operators: dict[Name, _AnyOperator] = {}
    output: str
    delay_threshold: Duration = 3_000_000
    reconcile: Mode = Mode.CHECKPOINT_REDO
    policy: Annotated[Policy, BeforeValidator(_policy_from_text)] = Policy()
    replicas: Replicas = 1
    shards: Shards = 1
    engine: Engines | None = None
    fragments: Annotated[dict[Name, FragmentSpec], Field(min_length=1)] | None = None
    tuning: Tuning = Tuning()
    latest: bool = False

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
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def changed(self, **values: object) -> Query:
        """This query with some of its top-level fields, as the file would write them, replaced; UserError as there."""
        return load_query({**self.dump(), **values})

    @model_validator(mode="after")
    def _check(self) -> Query:
        _check_names(self)
        _check_inputs(self)
        _check_acyclic(self)
        if self.output not in {**self.streams, **self.operators}:
            choices = (*self.operators, *self.streams)
            _refuse(
                "names no operator or stream", did_you_mean(self.output, choices), field="output", value=self.output
            )
        _check_fragments(self)
        _check_engines(self)
        _check_thresholds(self)
        if self.reconcile is Mode.UNDO_REDO and self.unbounded:
            name = self.unbounded[0]
            _refuse(
                f"undo_redo cannot rebuild {name}: a distinct without a window depends on all input ever",
                f"add a window to operators.{name}, such as {{tumbling: 1h}}, or use checkpoint_redo or overlay_redo",
                field="reconcile",
                value=self.reconcile.value,
            )
        return self


def _is_unbounded(spec: OperatorSpec) -> bool:
    return isinstance(spec, Distinct) and spec.window is None


def _plain(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _named_parts(query: Query) -> Iterator[tuple[str, str]]:
    """(group, name) of all that shares the one name space, in the file's order."""
    yield from (("streams", name) for name in query.streams)
    yield from (("operators", name) for name in query.operators)
    yield from (("fragments", name) for name in query.fragments or {})


def _check_names(query: Query) -> None:
    """Faults, plans and status call streams, operators, fragments and replicas by bare names, so none may be shared."""
    taken: dict[str, str] = {}
    if query.fragments is None:
        taken[DEFAULT_FRAGMENT] = "the name of the query's one fragment"
    for group, name in _named_parts(query):
        if name in RESERVED_NAMES:
            owner = "reserved for the fragment that serves the clients"
        elif _REPLICA_NAME.fullmatch(name):
            owner = "the name of a replica (r0, r1, ...)"
        else:
            owner = taken.get(name, "")
        if owner:
            _refuse(
                f"{name} is {owner}",
                f"rename it, for instance to {name}_{group[:-1]}",
                field=f"{group}.{name}",
                value=name,
            )
        taken[name] = f"already the name of {'an' if group == 'operators' else 'a'} {group[:-1]}"


def _check_inputs(query: Query) -> None:
    for name, spec in query.operators.items():
        for source in spec.inputs:
            if source not in query.streams and source not in query.operators:
                choices = tuple(choice for choice in (*query.streams, *query.operators) if choice != name)
                value = list(spec.inputs) if len(spec.inputs) > 1 else source
                _refuse(
                    f"reads {source}, which is no stream or operator",
                    did_you_mean(source, choices),
                    field=f"operators.{name}.{spec.kind}",
                    value=value,
                )


def _check_acyclic(query: Query) -> None:
    graph = {name: [i for i in spec.inputs if i in query.operators] for name, spec in query.operators.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        name, source = cycle[1], cycle[0]
        _refuse(
            f"the operators read each other in a circle: {' -> '.join(cycle)}",
            f"let {name} read something other than {source}",
            field=f"operators.{name}.{query.operators[name].kind}",
            value=source,
        )


def _check_fragments(query: Query) -> None:
    if query.fragments is None:
        return
    home: dict[str, str] = {}
    for fragment, part in query.fragments.items():
        field, value = f"fragments.{fragment}.operators", list(part.operators)
        for name in part.operators:
            if name in query.streams:
                _refuse(
                    f"{name} is a stream", f"remove {name}: fragments list operators only", field=field, value=value
                )
            if name not in query.operators:
                _refuse(
                    f"names {name}, which is no operator", did_you_mean(name, query.operators), field=field, value=value
                )
            if name in home:
                _refuse(
                    f"{name} is already in fragment {home[name]}",
                    f"remove {name} from one of the two",
                    field=field,
                    value=value,
                )
            home[name] = fragment
    for name in query.reaching:
        if name not in home:
            _refuse(
                f"operator {name} is in no fragment",
                f"add {name} to the operators of one of: {', '.join(query.fragments)}",
                field="fragments",
                value=list(query.fragments),
            )


def _check_engines(query: Query) -> None:
    """A list of engines has one for each replica of whoever goes by it."""
    parts: Mapping[str, FragmentSpec] = query.fragments or {}
    for name, part in parts.items():
        if part.engine is not None:
            _check_count(f"fragments.{name}.engine", part.engine, part.replicas or query.replicas, name)
        else:
            _check_count("engine", query.engine, part.replicas or query.replicas, name)
    if not parts:
        _check_count("engine", query.engine, query.replicas, "the query")


def _check_count(field: str, engines: Engines | None, replicas: int, owner: str) -> None:
    if not isinstance(engines, tuple) or len(engines) == replicas:
        return
    wanted = [*engines[:replicas], *("native" for _ in range(replicas - len(engines)))]
    _refuse(
        f"names {len(engines)} {'engine' if len(engines) == 1 else 'engines'}, and {owner} has "
        f"{replicas} {'replica' if replicas == 1 else 'replicas'}",
        f"name one for each replica, such as [{', '.join(wanted)}]; or one for all of them, without a list",
        field=field,
        value=list(engines),
    )


def _check_thresholds(query: Query) -> None:
    tuning, least = query.tuning, query.tuning.delay_threshold_least
    if query.delay_threshold < least:
        _refuse(
            f"is too short for buckets of {format_duration(tuning.bucket)} and boundaries every "
            f"{format_duration(tuning.boundary_interval)}: it must exceed twice their sum",
            f"write at least {format_duration(least)}, or make tuning.bucket and tuning.boundary_interval smaller",
            field="delay_threshold",
            value=format_duration(query.delay_threshold),
        )
    if tuning.heartbeat > query.delay_threshold:
        _refuse(
            f"is longer than the delay threshold, {format_duration(query.delay_threshold)}: whoever died would be found out "
            "too late, after three heartbeats",
            f"write at most {format_duration(query.delay_threshold)}",
            field="tuning.heartbeat",
            value=format_duration(tuning.heartbeat),
        )
    if tuning.alpha_x is not None and tuning.alpha_x >= query.delay_threshold:
        _refuse(
            f"leaves nothing of the delay threshold, {format_duration(query.delay_threshold)}",
            f"write auto, or less than {format_duration(query.delay_threshold)}",
            field="tuning.alpha_x",
            value=format_duration(tuning.alpha_x),
        )


# -- Reading ----------------------------------------------------------------------------------------------------------


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
        raise _user_error(error.errors(include_url=False)[0]) from None


def _read(source: Path | str) -> tuple[str, str]:
    """(what to call it, its text)."""
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return "query", source
    try:
        return str(source), Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError("query", str(source), f"cannot be read: {reason}", "name a YAML or JSON file") from None


# -- What pydantic found, in our words --------------------------------------------------------------------------------

_TYPE_SYNONYMS = {
    "str": Type.STRING, "text": Type.STRING, "varchar": Type.STRING, "integer": Type.INT, "int64": Type.INT,
    "long": Type.INT, "bigint": Type.INT, "float": Type.DOUBLE, "float64": Type.DOUBLE, "number": Type.DOUBLE,
    "boolean": Type.BOOL, "datetime": Type.TIMESTAMP, "date": Type.TIMESTAMP, "time": Type.TIMESTAMP,
}  # fmt: skip

_EXAMPLES = {
    "name": "name: departures",
    "streams": "streams: {ewr: {time: departed_at, schema: {carrier: string}}}",
    "time": "time: departed_at, the column that holds the event time",
    "schema": "schema: {carrier: string, dep_delay: double}",
    "output": "output: OPERATOR, the one whose results the clients read",
    "window": "window: {tumbling: 10m}",
    "compute": "compute: {n: count(*)}",
    "where": 'where: "dep_delay > 15"',
    "select": 'select: {hours: "dep_delay / 60.0"}',
    "on": "on: [carrier]",
    "within": "within: 30m",
    "k": "k: 5",
    "join": "both inputs: join: [LEFT, RIGHT]",
    "union": "union: [ewr, jfk]",
    "order_by": 'order_by: "dep_delay desc"',
    "operators": "operators: [late, by_carrier]",
}

_SHAPES = {
    "string_type": ("is not text", "write text, in quotes if it looks like a number or true or false"),
    "int_type": ("is not a whole number", "write a whole number, such as 2"),
    "dict_type": ("is not a mapping", "write a mapping, such as {name: value}"),
    "model_type": ("is not a mapping", "write a mapping, such as {name: value}"),
    "model_attributes_type": ("is not a mapping", "write a mapping, such as {name: value}"),
    "tuple_type": ("is not a list", "write a list, such as [carrier]"),
}


def _user_error(error: ErrorDetails) -> UserError:
    """One of pydantic's findings as a refusal: every kind has a fix of its own."""
    place, value, context = error["loc"], error["input"], error.get("ctx", {})
    last = str(place[-1]) if place else "query"
    field = _dotted(place)
    match error["type"]:
        case "boreal":
            field = ".".join(part for part in (field, context.get("field", "")) if part)
            return UserError(field, context.get("value", _plain_value(value)), context["problem"], context["fix"])
        case "missing":
            return UserError(field, None, "is missing", f"add {_EXAMPLES.get(last, last)}")
        case "extra_forbidden":
            fix = did_you_mean(last, _fields_at(place[:-1]))
            return UserError(field, _plain_value(value), f"{last} is not known here", fix)
        case "union_tag_not_found" | "union_tag_invalid":
            return _kind_error(field, value)
        case "enum" | "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            synonym = _TYPE_SYNONYMS.get(str(value).lower()) if choices == list(Type) else None
            fix = f"write {synonym}" if synonym else did_you_mean(value, choices)
            return UserError(field, _plain_value(value), "is not one of the choices", fix)
        case "greater_than_equal":
            return UserError(field, value, "is too small", f"write at least {context['ge']}")
        case "less_than_equal":
            return UserError(field, value, "is too large", f"write at most {context['le']}")
        case "too_short":
            return UserError(field, value, "has too few entries", f"add {_EXAMPLES.get(last, 'at least one')}")
        case "tuple_type" if isinstance(value, str):
            return UserError(field, value, "is not a list", f"write a list: [{value}]")
        case "string_too_long":
            fix = f"write at most {context['max_length']} letters, for the topics that are called after it"
            return UserError(field, value, "is too long a name", fix)
        case "too_long":
            return UserError(field, value, "has too many entries", f"keep {context['max_length']}")
        case kind:
            problem, fix = _SHAPES.get(kind, (error["msg"], "compare with docs/query.schema.json"))
            return UserError(field, _plain_value(value), problem, fix)


def _dotted(place: tuple[int | str, ...]) -> str:
    """The path in the file: without the operator's tag and the mark of a key, which pydantic puts in."""
    parts = [str(part) for part in place]
    if len(parts) > 2 and parts[0] == "operators":
        del parts[2]
    return ".".join(part for part in parts if part != "[key]")


def _plain_value(value: object) -> object:
    return _plain(value) if isinstance(value, BaseModel) else value


def _kind_error(field: str, value: object) -> UserError:
    named = _kinds_named(value)
    if len(named) > 1:
        fix = f"keep one of them: {', '.join(named)}"
        return UserError(field, value, f"names {len(named)} kinds of operator", fix)
    if not isinstance(value, Mapping):
        return UserError(field, value, "is not a mapping", 'write an operator, such as {filter: INPUT, where: "..."}')
    near = [(key, get_close_matches(str(key), _KINDS, n=1)) for key in value]
    hints = [f"did you mean {matches[0]} instead of {key}? " for key, matches in near if matches]
    fix = f"{''.join(hints[:1])}One key must be the kind, its value the input: {', '.join(_KINDS)}"
    return UserError(field, dict(value), "names no kind of operator", fix)


def _fields_at(place: tuple[int | str, ...]) -> list[str]:
    """The fields that the file may have at this place."""
    model: type[BaseModel]
    match place:
        case ("streams", _):
            model = Stream
        case ("operators", _, str(kind)):
            model = _KINDS[kind]
        case ("operators", _, _, "window"):
            model = Window
        case ("policy",):
            model = Policy
        case ("tuning",):
            model = Tuning
        case ("fragments", _):
            model = FragmentSpec
        case _:
            model = Query
    return [field.alias or name for name, field in model.model_fields.items()]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the query file; docs/query.schema.json is its published copy."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Query.model_json_schema(by_alias=True, mode="validation"),
    }


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
