"""From a query to its plan: types checked, fragments split, shards and keys worked out, streams laid out.

In order: the overrides are applied; schemas are inferred from the streams on; what does not reach the output is left
out; operators are dealt to fragments, and these split into weakly connected parts (R30); each part gets its shards and
the key of each stream that it reads (R1); each logged stream gets an edge for each layout that a reader needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from math import gcd

from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.model.schema import Schema, Type
from boreal.query import expressions
from boreal.query.plan import EGRESS, Edge, Fragment, Input, Node, Plan
from boreal.query.spec import (
    DEFAULT_FRAGMENT,
    Aggregate,
    Distinct,
    Engine,
    Filter,
    FragmentSpec,
    Hold,
    Join,
    Map,
    Mode,
    OperatorSpec,
    Policy,
    Query,
    Top,
    Union,
    did_you_mean,
)

RANK = "rank"
"""The column that `top` adds: 1 for the first row of its window and group."""

CHECKPOINT_INTERVAL_US = 10_000_000
"""How often state that windows cannot rebuild is checkpointed, where the query does not say (R26)."""


PANE_US = 25
"""What a window that closes takes at least for each piece that it is made of (measured with ten groups)."""

MOST_OF_A_CORE = 0.5
"""A window operator that takes more than this just to close windows will not keep up with live input."""

SPARK_ORDER_US = 750_000
"""What an order to operators in Spark is taken to need, before it was measured."""

HOP_US = 50_000
"""What the way from one fragment to the next is taken to need: some tens of milliseconds where machines have time."""

NOTED_TO_US = 50_000
"""Thresholds that notes propose are whole multiples of this."""

SILENT_AFTER_INTERVALS = 3
"""A port that missed two boundaries is found out before the third is due (R10)."""


def plan(
    query: Query,
    *,
    mode: Mode | None = None,
    policy: Policy | None = None,
    delay_threshold_us: int | None = None,
    replicas: int | None = None,
    shards: int | None = None,
    engine: Engine | None = None,
    default_engine: Engine = "native",
    bucket_us: int | None = None,
    boundary_interval_us: int | None = None,
    heartbeat_us: int | None = None,
    silence_us: int | None = None,
    alpha_x_us: int | None = None,
    stable_lag_max_us: int | None = None,
    checkpoint_interval_us: int | None = None,
) -> Plan:
    """The plan of a query; keyword arguments override what it says, for all its fragments. Raises UserError.

    bucket_us and boundary_interval_us may be scaled to event time (a run at a speed): the delay threshold is judged by
    the query's own. default_engine: where neither the query nor the fragment names one.
    """
    query = _overridden(query, mode, policy, delay_threshold_us, replicas, shards, engine, alpha_x_us)
    graph = _infer(query)
    notes = _pruned(query)
    parts = [_sharded(graph, part, notes) for part in _parts(query, default_engine)]
    edges = _lay_out(graph, parts)
    fragments = (*(_fragment(graph, part, edges) for part in parts), _egress(graph, edges))
    _note_lone_replicas(query, parts, notes)
    tuning = query.tuning
    notes.extend(_held_back(query, fragments, (bucket_us or tuning.bucket) / tuning.bucket))
    notes.extend(_too_many_panes(query))
    interval = boundary_interval_us or tuning.boundary_interval
    checkpoint_interval = checkpoint_interval_us or tuning.checkpoint_interval
    if query.unbounded:
        checkpoint_interval = checkpoint_interval or CHECKPOINT_INTERVAL_US
        every = format_duration(checkpoint_interval)
        notes.extend(
            f"{name} has no window: its state grows without bound and is checkpointed in the background every {every}"
            for name in query.unbounded
        )
    return Plan(
        query=query.name,
        fragments=fragments,
        sources=tuple(edge for edge in edges.in_order if edge.source),
        output=fragments[-1].outputs[0],
        output_key=_natural_key(graph, query.output),
        mode=query.reconcile,
        policy=query.policy,
        delay_threshold_us=query.delay_threshold,
        bucket_us=bucket_us or tuning.bucket,
        bucket_run_us=tuning.bucket,
        boundary_interval_us=interval,
        heartbeat_us=heartbeat_us or tuning.heartbeat,
        silence_us=silence_us or SILENT_AFTER_INTERVALS * interval,
        alpha_x_us=tuning.alpha_x,
        memory_bytes=tuning.memory,
        retention_us=tuning.retention,
        stable_lag_max_us=stable_lag_max_us or tuning.stable_lag_max,
        checkpoint_interval_us=checkpoint_interval,
        notes=tuple(notes),
        latest=query.latest,
        disorder_us=max((stream.disorder for stream in query.streams.values()), default=0),
    )


def _overridden(
    query: Query,
    mode: Mode | None,
    policy: Policy | None,
    delay_threshold_us: int | None,
    replicas: int | None,
    shards: int | None,
    engine: Engine | None,
    alpha_x_us: int | None,
) -> Query:
    """The query as if its file had said so, judged again as a whole."""
    file = query.dump()
    changes: dict[str, object] = {}
    if mode is not None:
        changes["reconcile"] = str(mode)
    if policy is not None:
        changes["policy"] = str(policy)
    if delay_threshold_us is not None:
        changes["delay_threshold"] = format_duration(delay_threshold_us)
    if alpha_x_us is not None:
        changes["tuning"] = {**file["tuning"], "alpha_x": format_duration(alpha_x_us)}
    for_all = {"replicas": replicas, "shards": shards, "engine": engine}
    given = {key: value for key, value in for_all.items() if value is not None}
    changes.update(given)
    if given and query.fragments is not None:
        changes["fragments"] = {
            name: {key: value for key, value in fragment.items() if key not in given}
            for name, fragment in file["fragments"].items()
        }
    return query.changed(**changes) if changes else query


def _pruned(query: Query) -> list[str]:
    used = {source for name in query.reaching for source in query.operators[name].inputs} | {query.output}
    return [
        *(f"stream {name} does not reach the output and is left out" for name in query.streams if name not in used),
        *(
            f"operator {name} does not reach the output and is left out"
            for name in query.operators
            if name not in query.reaching
        ),
    ]


def _note_lone_replicas(query: Query, parts: Iterable[_Part], notes: list[str]) -> None:
    """R21: without a second replica, new input waits for the correction, unless the overlay can go on beside it."""
    if query.policy.stabilization is Hold.SUSPEND or query.reconcile is Mode.OVERLAY_REDO:
        return
    alone = [part.name for part in parts if part.replicas == 1]
    if alone:
        where = f" ({', '.join(alone)})" if query.fragments else ""
        notes.append(f"stabilization acts as suspend: one replica{where}")


def _held_back(query: Query, fragments: Iterable[Fragment], speed: float) -> Iterator[str]:
    """Notes on streams whose boundaries, `disorder` behind their rows, come when every bucket is overdue (R8, R29).

    speed: event time over run time. Nothing to refuse: an answer that comes early, and is right once `disorder` is over, may
    be just what is wanted; and what was recorded may be fed at any pace.
    """
    if query.policy.failure is Hold.SUSPEND:
        return
    tuning = query.tuning
    after = _after_holding(fragments, tuning.bucket + tuning.boundary_interval)
    for name, stream in query.streams.items():
        if name not in after or stream.boundary == "producer" or not stream.disorder:
            continue
        held = round(stream.disorder / speed) + tuning.bucket + tuning.boundary_interval + HOP_US
        if held < _left_to_hold(query, after[name]):
            continue
        if tuning.alpha_x is not None:
            cause = f"tuning.alpha_x, {format_duration(tuning.alpha_x)}"
            least, setting = held + 1, "tuning.alpha_x"
        else:
            cause = f"what delay_threshold, {format_duration(query.delay_threshold)}, leaves"
            least, setting = _least_threshold(query, held + after[name]), "delay_threshold"
        rounded = -(-least // NOTED_TO_US) * NOTED_TO_US
        yield (
            f"stream {name}: disorder {format_duration(stream.disorder)} holds every bucket back for longer than {cause}: "
            f'where rows come as they happen, every answer is given early, within X (tentative, cause "early"), and the final '
            f"one when disorder is over; for none but final ones write a {setting} of {format_duration(rounded)} or more, or a "
            "smaller disorder"
        )


def _after_holding(fragments: Iterable[Fragment], spread: int) -> dict[str, int]:
    """What comes at worst after a SUnion has handed a bucket on, up to the client, by the stream that it reads. spread: how
    much later a bucket may come from one producer than from another."""
    after: dict[str, int] = {}
    for fragment in reversed(tuple(fragments)):
        own = 0 if set(fragment.engines) == {"native"} else SPARK_ORDER_US
        hops = [HOP_US + after.get(edge.operator, 0) for edge in fragment.outputs if fragment.name != EGRESS]
        rest = own + max(hops, default=0)
        for edge in fragment.edges:
            waits = spread if fragment.has_several_producers and not edge.source else 0
            after[edge.operator] = max(after.get(edge.operator, 0), rest + waits)
    return after


def _reserve(query: Query, threshold: int) -> int:
    """What R9 keeps of X."""
    return max(threshold // 10, query.tuning.bucket + query.tuning.boundary_interval)


def _left_to_hold(query: Query, after: int) -> int:
    """How long a SUnion may hold a bucket back, where so much comes after it (R9)."""
    if query.tuning.alpha_x is not None:
        return query.tuning.alpha_x
    threshold = query.delay_threshold
    return max(threshold - after - _reserve(query, threshold), threshold // 4)


def _least_threshold(query: Query, taken: int) -> int:
    """The smallest X of which more than so much is left beside the reserve."""
    return max(taken * 10 // 9, taken + _reserve(query, 0)) + 1


def _too_many_panes(query: Query) -> Iterator[str]:
    """Notes on sliding windows that cannot be closed as fast as time passes. Recorded input is in no hurry."""
    for name in query.reaching:
        spec = query.operators[name]
        if not isinstance(spec, Aggregate | Top):
            continue
        size, every = spec.window.size_us, spec.window.every_us
        panes = size // gcd(size, every)
        if panes > 1 and panes * PANE_US > MOST_OF_A_CORE * every:
            yield (
                f"{name} makes each window of {panes:,} pieces, and one ends every {format_duration(every)}: that takes about "
                f"{format_duration(panes * PANE_US)}, too long to keep up with live input; write a longer `every`, which "
                f"divides {format_duration(size)}"
            )


# -- Types ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Graph:
    """The reaching part of a query, typed. plain: of each map, output column -> the input column that it merely is."""

    query: Query
    schemas: Mapping[str, Schema]
    plain: Mapping[str, Mapping[str, str]]

    def spec(self, name: str) -> OperatorSpec:
        return self.query.operators[name]


def _infer(query: Query) -> _Graph:
    schemas = {name: stream.attributes for name, stream in query.streams.items()}
    plain: dict[str, Mapping[str, str]] = {}
    for name in query.reaching:
        spec = query.operators[name]
        inputs = [schemas[source] for source in spec.inputs]
        if isinstance(spec, Map):
            schemas[name], plain[name] = _map_schema(f"operators.{name}", spec, inputs[0])
        else:
            schemas[name] = _schema(f"operators.{name}", spec, inputs)
    return _Graph(query, schemas, plain)


def _schema(field: str, spec: OperatorSpec, inputs: list[Schema]) -> Schema:
    match spec:
        case Filter():
            return _filter_schema(field, spec, inputs[0])
        case Union():
            return _union_schema(field, spec, inputs)
        case Aggregate():
            return _aggregate_schema(field, spec, inputs[0])
        case Join():
            return _join_schema(field, spec, inputs[0], inputs[1])
        case Distinct():
            _require(f"{field}.on", spec.on, inputs[0])
            return inputs[0]
        case Top():
            return _top_schema(field, spec, inputs[0])
    raise AssertionError(f"{field}: no schema for {spec.kind}")


def _require(field: str, columns: tuple[str, ...], schema: Schema) -> None:
    for column in columns:
        if column not in schema.types:
            problem = f"names {column}, which is not a column of the input"
            raise UserError(field, list(columns), problem, did_you_mean(column, schema.names))


def _filter_schema(field: str, spec: Filter, schema: Schema) -> Schema:
    condition = expressions.parse(spec.where, schema, f"{field}.where")
    if condition.type is not Type.BOOL:
        problem = f"is a value of type {condition.type}, not a condition"
        raise UserError(f"{field}.where", spec.where, problem, 'compare it with something, as in "dep_delay > 15"')
    return schema


def _map_schema(field: str, spec: Map, schema: Schema) -> tuple[Schema, dict[str, str]]:
    columns: list[tuple[str, Type]] = []
    plain: dict[str, str] = {}
    for column, sql in spec.select.items():
        expression = expressions.parse(sql, schema, f"{field}.select.{column}")
        columns.append((column, expression.type))
        source = expression.column
        if source is not None and source in schema.types:
            plain[column] = source
    return Schema(tuple(columns), schema.windowed), plain


def _union_schema(field: str, spec: Union, inputs: list[Schema]) -> Schema:
    """All must have the first one's columns, in whatever order; the result has them in the first one's."""
    first = inputs[0]
    for name, schema in zip(spec.union, inputs, strict=True):
        problem = ""
        if schema.windowed != first.windowed:
            problem = f"of {spec.union[0]} and {name} only one has windows"
        for column in (*first.names, *schema.names):
            ours, theirs = first.types.get(column), schema.types.get(column)
            if ours is not theirs and not problem:
                shapes = f"{column} is {ours or 'absent'} in {spec.union[0]} and {theirs or 'absent'} in {name}"
                problem = f"the inputs differ: {shapes}"
        if problem:
            select = ", ".join(f"{column}: ..." for column in first.names)
            fix = f"give {name} the columns of {spec.union[0]} first: {{map: {name}, select: {{{select}}}}}"
            raise UserError(f"{field}.union", list(spec.union), problem, fix)
    return first


def _aggregate_schema(field: str, spec: Aggregate, schema: Schema) -> Schema:
    _require(f"{field}.by", spec.by, schema)
    columns = [(column, schema.types[column]) for column in spec.by]
    for column, sql in spec.compute.items():
        place = f"{field}.compute.{column}"
        if column in spec.by:
            raise UserError(place, sql, f"{column} is one of the columns of `by`", f"rename it: {column}_computed")
        columns.append((column, expressions.parse_aggregation(sql, schema, place).type))
    return Schema(tuple(columns), windowed=True)


def _join_schema(field: str, spec: Join, left: Schema, right: Schema) -> Schema:
    """The left columns, then the right ones without `on`; a right one whose name is taken gets `_right`."""
    _require(f"{field}.on", spec.on, left)
    _require(f"{field}.on", spec.on, right)
    for column in spec.on:
        if left.types[column] is not right.types[column]:
            sides = [f"{side.types[column]} in {name}" for side, name in zip((left, right), spec.join, strict=True)]
            fix = f"map one side: select: {{{column}: cast({column} as ...)}}"
            raise UserError(f"{field}.on", list(spec.on), f"{column} is {' and '.join(sides)}", fix)
    columns = dict(left.columns)
    for column, kind in right.columns:
        if column in spec.on:
            continue
        name = f"{column}_right" if column in left.types else column
        if name in columns:
            fix = f"rename {name} in one of the inputs, by a map"
            raise UserError(f"{field}.join", list(spec.join), f"the result would have two columns {name}", fix)
        columns[name] = kind
    return Schema(tuple(columns.items()))


def _top_schema(field: str, spec: Top, schema: Schema) -> Schema:
    _require(f"{field}.by", spec.by, schema)
    expressions.parse_order(spec.order_by, schema, f"{field}.order_by")
    if RANK in schema.types:
        fix = f"rename it first: {{map: {spec.top}, select: {{{RANK}_before: {RANK}, ...}}}}"
        raise UserError(f"{field}.top", spec.top, f"its input has a column {RANK}, which top adds", fix)
    return Schema(((RANK, Type.INT), *schema.columns), windowed=True)


# -- Fragments --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A fragment in the making. operators: each after all that it reads. reads: logged streams, each once, in order.

    family: the fragment as the file names it. shards_own: `shards` is said by the fragment itself, not by the query.
    keys: of each logged stream that it reads, once it is known to be sharded.
    """

    name: str
    family: str
    operators: tuple[str, ...]
    reads: tuple[str, ...]
    replicas: int
    shards: int
    shards_own: bool
    engines: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]]


def _parts(query: Query, default_engine: Engine) -> list[_Part]:
    """The fragments' weakly connected parts, each after those that it reads from."""
    fragments = _fragment_specs(query)
    _refuse_circular(query, fragments)
    parts = []
    for family, spec in fragments.items():
        own = tuple(name for name in query.reaching if name in spec.operators)
        replicas = spec.replicas or query.replicas
        engine = spec.engine or query.engine or default_engine
        pieces = _connected(query, own)
        for number, operators in enumerate(pieces, start=1):
            parts.append(
                _Part(
                    name=family if len(pieces) == 1 else _part_name(query, family, number),
                    family=family,
                    operators=operators,
                    reads=_reads(query, operators),
                    replicas=replicas,
                    shards=spec.shards or query.shards,
                    shards_own=spec.shards is not None,
                    engines=engine if isinstance(engine, tuple) else (engine,) * replicas,
                    keys={},
                )
            )
    home = {name: part.name for part in parts for name in part.operators}
    by_name = {part.name: part for part in parts}
    order = {part.name: [home[name] for name in part.reads if name in home] for part in parts}
    return [by_name[name] for name in TopologicalSorter(order).static_order()]


def _fragment_specs(query: Query) -> dict[str, FragmentSpec]:
    if query.fragments is not None:
        return query.fragments
    return {DEFAULT_FRAGMENT: FragmentSpec(operators=query.reaching)} if query.reaching else {}


def _refuse_circular(query: Query, fragments: Mapping[str, FragmentSpec]) -> None:
    home = {name: fragment for fragment, spec in fragments.items() for name in spec.operators}
    order: dict[str, list[str]] = {fragment: [] for fragment in fragments}
    for name in query.reaching:
        sources = [home[source] for source in query.operators[name].inputs if source in home]
        order[home[name]].extend(source for source in sources if source != home[name])
    try:
        TopologicalSorter(order).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        problem = f"the fragments read each other in a circle: {' -> '.join(circle)}"
        fix = f"put the operators of {circle[0]} and {circle[1]} into one fragment, or split one where results come back"
        raise UserError("fragments", list(fragments), problem, fix) from None


def _reads(query: Query, operators: tuple[str, ...]) -> tuple[str, ...]:
    """What the operators read from outside: source streams, and operators of other fragments."""
    sources = (source for name in operators for source in query.operators[name].inputs)
    return tuple(dict.fromkeys(source for source in sources if source not in operators))


def _connected(query: Query, operators: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The weakly connected parts (R30): operators that share a stream, or what is made of it, stay together."""
    group: dict[str, str] = {}
    for name in operators:
        members = (name, *query.operators[name].inputs)
        merged = {group[member] for member in members if member in group}
        group = {member: name if leader in merged else leader for member, leader in group.items()}
        group.update(dict.fromkeys(members, name))
    leaders = dict.fromkeys(group[name] for name in operators)
    return [tuple(name for name in operators if group[name] == leader) for leader in leaders]


def _part_name(query: Query, family: str, number: int) -> str:
    name = f"{family}_{number}"
    if name in {**query.streams, **query.operators, **(query.fragments or {})}:
        problem = f"falls into unconnected parts, one of which would be called {name}, as something else is"
        raise UserError(f"fragments.{family}", name, problem, f"rename {name}, or make a fragment of each part")
    return name


# -- Shards and keys --------------------------------------------------------------------------------------------------

Component = dict[str, str]
"""One column of a partition key, as each logged stream calls it: logged stream -> column."""


def _sharded(graph: _Graph, part: _Part, notes: list[str]) -> _Part:
    """The part with the shards that it can have, and the key of each stream that it reads.

    All rows of a group must meet in one shard, so a key is made of columns by which every stateful operator groups,
    followed back to the streams. Where there is none, one shard it is; refused if the file asked for more right there.
    """
    if part.shards == 1:
        return part
    stateful = [name for name in part.operators if _group(graph.spec(name)) is not None]
    if not stateful:
        keys = {name: _natural_key(graph, name) for name in part.reads}
        if all(keys.values()):
            return replace(part, keys=keys)
        bare = next(name for name in part.reads if not keys[name])
        notes.append(f"{part.name} runs as one shard: {bare} has no key")
        return replace(part, shards=1)
    components, obstacle = _common_components(graph, part, stateful)
    if components:
        return replace(part, keys=_keys(graph, part, stateful, components))
    if part.shards_own:
        problem = f"{part.name} cannot be sharded: {obstacle}"
        fix = "set its shards to 1, or move the operator to a fragment of its own with one shard"
        raise UserError(f"fragments.{part.family}.shards", part.shards, problem, fix)
    notes.append(f"{part.name} runs as one shard: {obstacle}")
    return replace(part, shards=1)


def _group(spec: OperatorSpec) -> tuple[str, ...] | None:
    """The columns whose equal values must meet; None for an operator that looks at each row alone."""
    match spec:
        case Aggregate() | Top():
            return spec.by
        case Join() | Distinct():
            return spec.on
    return None


def _common_components(graph: _Graph, part: _Part, stateful: list[str]) -> tuple[list[Component], str]:
    """The columns that all stateful operators group by; where there is none, why.

    Later operators come first: they read all that the ones before them read, so what these allow only narrows it.
    """
    common: list[Component] | None = None
    for name in reversed(stateful):
        group = _group(graph.spec(name)) or ()
        own = _different(_trace_all(graph, part.reads, graph.spec(name).inputs, column) for column in group)
        if not own:
            reason = f"all rows of {name} are one group" if not group else f"{name} groups by computed columns"
            return [], reason
        common = own if common is None else _different(_merged(left, right) for left in common for right in own)
        if not common:
            return [], f"{name} groups by other columns than the operators after it or beside it"
    return common or [], ""


def _different(components: Iterable[Component | None]) -> list[Component]:
    result: list[Component] = []
    for component in components:
        if component is not None and component not in result:
            result.append(component)
    return result


def _merged(left: Component, right: Component) -> Component | None:
    """Both as one, if they agree on the streams that they share; if they share none, then by the columns' names."""
    shared = [name for name in left if name in right]
    agree = all(left[name] == right[name] for name in shared) if shared else {*left.values()} == {*right.values()}
    return {**left, **right} if agree else None


def _trace_all(graph: _Graph, logged: tuple[str, ...], names: tuple[str, ...], column: str) -> Component | None:
    """The column as it is called in all logged streams behind `names`; None if it is not one thing there."""
    found: Component = {}
    for name in names:
        component = _trace(graph, logged, name, column)
        if component is None or any(found.get(stream, source) != source for stream, source in component.items()):
            return None
        found.update(component)
    return found


def _trace(graph: _Graph, logged: tuple[str, ...], name: str, column: str) -> Component | None:
    """Follow a column of a stream back to the logged streams; None where it is computed on the way."""
    if name in logged:
        return {name: column}
    spec = graph.spec(name)
    match spec:
        case Filter() | Distinct() | Union():
            return _trace_all(graph, logged, spec.inputs, column)
        case Map():
            source = graph.plain[name].get(column)
            return None if source is None else _trace(graph, logged, spec.map, source)
        case Aggregate():
            return _trace(graph, logged, spec.aggregate, column) if column in spec.by else None
        case Top():
            return _trace(graph, logged, spec.top, column) if column != RANK else None
        case Join():
            # One side is enough: the join itself then allows only keys of its `on`, which it follows to both sides.
            left, right = spec.join
            if column in graph.schemas[left].types:
                return _trace(graph, logged, left, column)
            source = column if column in graph.schemas[right].types else column.removesuffix("_right")
            return _trace(graph, logged, right, source)
    raise AssertionError(f"{name}: no lineage for {spec.kind}")


def _keys(graph: _Graph, part: _Part, stateful: list[str], components: list[Component]) -> dict[str, tuple[str, ...]]:
    """The key of each logged stream, in one order of columns for all; a stream's own key is kept to, or refused."""
    for name in part.reads:
        key = graph.query.streams[name].key if name in graph.query.streams else ()
        possible = [component[name] for component in components if name in component]
        if not key or not possible:
            continue
        if not set(key) <= set(possible):
            groups = "; ".join(f"{other} by {', '.join(_group(graph.spec(other)) or ())}" for other in stateful)
            raise UserError(
                f"streams.{name}.key",
                list(key),
                f"this key would tear groups apart over the {part.shards} shards of {part.name} ({groups})",
                f"take the key from: {', '.join(possible)}; or remove it; or set shards to 1",
            )
        components = [component for component in components if component.get(name, key[0]) in key]
    return {
        name: tuple(component[name] for component in components if name in component) or _natural_key(graph, name)
        for name in part.reads
    }


def _natural_key(graph: _Graph, name: str) -> tuple[str, ...]:
    """The columns that identify a stream's rows to its readers: those it was grouped by, else its source's key."""
    if name in graph.query.streams:
        return graph.query.streams[name].key
    spec = graph.spec(name)
    group = _group(spec)
    if group is not None:
        return group
    keys = [_natural_key(graph, source) for source in spec.inputs]
    if any(key != keys[0] for key in keys):
        return ()
    if isinstance(spec, Map):
        renamed = {source: column for column, source in reversed(list(graph.plain[name].items()))}
        return tuple(renamed[column] for column in keys[0]) if set(keys[0]) <= set(renamed) else ()
    return keys[0]


# -- Layout -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Edges:
    """All edges: by reader and logged stream, and each once."""

    read: Mapping[tuple[str, str], Edge]
    in_order: tuple[Edge, ...]


def _lay_out(graph: _Graph, parts: list[_Part]) -> _Edges:
    """One edge for each logged stream and layout; the first reader's has the stream's name, others NAME@READER."""
    producers = {name: part.shards for part in parts for name in part.operators}
    wanted = [(part.name, name, part.shards, part.keys.get(name, ())) for part in parts for name in part.reads]
    wanted.append((EGRESS, graph.query.output, 1, ()))
    made: dict[tuple[str, int, tuple[str, ...]], Edge] = {}
    read: dict[tuple[str, str], Edge] = {}
    named: set[str] = set()
    for reader, name, partitions, key in wanted:
        if (name, partitions, key) not in made:
            made[name, partitions, key] = Edge(
                name=f"{name}@{reader}" if name in named else name,
                operator=name,
                schema=graph.schemas[name],
                producers=producers.get(name, 1),
                partitions=partitions,
                key=key,
                source=name in graph.query.streams,
            )
            named.add(name)
        read[reader, name] = made[name, partitions, key]
    return _Edges(read, tuple(made.values()))


def _fragment(graph: _Graph, part: _Part, edges: _Edges) -> Fragment:
    """A union of logged streams alone is left to SUnion, which merges its inputs anyhow; the rest are nodes."""
    inputs: dict[str, Input] = {}
    nodes = []
    for name in part.operators:
        spec = graph.spec(name)
        if isinstance(spec, Union) and all(source in part.reads for source in spec.inputs):
            merged = tuple(edges.read[part.name, source] for source in spec.inputs)
            inputs[name] = Input(name, merged, graph.schemas[name])
            continue
        for source in spec.inputs:
            if source in part.reads:
                inputs[source] = Input(source, (edges.read[part.name, source],), graph.schemas[source])
        schemas = tuple(graph.schemas[source] for source in spec.inputs)
        nodes.append(Node(name, spec, spec.inputs, schemas, graph.schemas[name]))
    return Fragment(
        name=part.name,
        inputs=tuple(inputs.values()),
        nodes=tuple(nodes),
        outputs=tuple(edge for edge in edges.in_order if edge.operator in part.operators),
        replicas=tuple(f"r{number}" for number in range(part.replicas)),
        shards=part.shards,
        engines=part.engines,
    )


def _egress(graph: _Graph, edges: _Edges) -> Fragment:
    """The fragment that makes the client's one stream of the output's partitions (R1)."""
    query, edge = graph.query, edges.read[EGRESS, graph.query.output]
    taken = {other.name for other in edges.in_order}
    client = Edge(
        name=f"{query.name}@{EGRESS}" if query.name in taken else query.name,
        operator=query.output,
        schema=edge.schema,
        producers=1,
        partitions=1,
        key=(),
        source=False,
    )
    entry = Input(query.output, (edge,), edge.schema)
    return Fragment(EGRESS, (entry,), (), (client,), ("r0",), 1, ("native",))
