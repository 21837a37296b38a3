"""The types of a query: the schema of each stream and operator, inferred from the source streams on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from boreal.model.errors import UserError
from boreal.model.schema import Schema, Type
from boreal.query import expressions
from boreal.query.own_operators import OwnOperator, own_operator
from boreal.query.query import Query
from boreal.query.refusals import did_you_mean
from boreal.query.shapes import Aggregate, Deduplicate, Distinct, Filter, Join, Lookup, Map, OperatorSpec, Python, Top, Union

RANK = "rank"
"""The column that `top` adds: 1 for the first row of its window and group."""


@dataclass(frozen=True)
class QueryGraph:
    """The part of a query that reaches its output, typed."""

    query: Query
    """The query."""
    schemas: Mapping[str, Schema]
    """The schema of each stream and of each operator's output, by name."""
    plain: Mapping[str, Mapping[str, str]]
    """For each map, by name: its output columns that are an input column unchanged, and which."""
    own: Mapping[str, OwnOperator]
    """The operators of installed packages, by name."""

    def spec(self, name: str) -> OperatorSpec:
        return self.query.operators[name]


def infer(query: Query) -> QueryGraph:
    """UserError where a column is not there, or has a type that an operator cannot take."""
    schemas = {name: stream.attributes for name, stream in query.streams.items()}
    plain: dict[str, Mapping[str, str]] = {}
    own: dict[str, OwnOperator] = {}
    for name in query.reaching:
        spec = query.operators[name]
        inputs = [schemas[source] for source in spec.inputs]
        if isinstance(spec, Map):
            schemas[name], plain[name] = _map_schema(f"operators.{name}", spec, inputs[0])
        elif isinstance(spec, Python):
            own[name] = own_operator(spec.operator, spec.parameters, spec.version, inputs[0], f"operators.{name}")
            schemas[name] = own[name].schema
        else:
            schemas[name] = _schema(f"operators.{name}", spec, inputs)
    return QueryGraph(query, schemas, plain, own)


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
        case Lookup():
            table = _without_deleted(field, spec, inputs[1])
            return replace(_join_schema(field, spec, inputs[0], table), windowed=inputs[0].windowed)
        case Distinct() | Deduplicate():
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


def _join_schema(field: str, spec: Join | Lookup, left: Schema, right: Schema) -> Schema:
    """The left columns, then the right ones without `on`; a right one whose name is taken gets `_right`."""
    _require(f"{field}.on", spec.on, left)
    _require(f"{field}.on", spec.on, right)
    for column in spec.on:
        if left.types[column] is not right.types[column]:
            sides = [f"{side.types[column]} in {name}" for side, name in zip((left, right), spec.inputs, strict=True)]
            fix = f"map one side: select: {{{column}: cast({column} as ...)}}"
            raise UserError(f"{field}.on", list(spec.on), f"{column} is {' and '.join(sides)}", fix)
    columns = dict(left.columns)
    for column, kind in right.columns:
        if column in spec.on:
            continue
        name = f"{column}_right" if column in left.types else column
        if name in columns:
            fix = f"rename {name} in one of the inputs, by a map"
            raise UserError(f"{field}.{spec.kind}", list(spec.inputs), f"the result would have two columns {name}", fix)
        columns[name] = kind
    return Schema(tuple(columns.items()))


def _without_deleted(field: str, spec: Lookup, table: Schema) -> Schema:
    """The table's columns that the result may have."""
    column = spec.deleted
    if column is None:
        return table
    field = f"{field}.deleted"
    if column not in table.types:
        problem = f"is not a column of {spec.lookup[1]}"
        raise UserError(field, column, problem, did_you_mean(column, table.names))
    if table.types[column] is not Type.BOOL:
        fix = f"compute one first: {{map: {spec.lookup[1]}, select: {{..., gone: \"{column} = ...\"}}}}"
        raise UserError(field, column, f"is a column of type {table.types[column]}, and not a bool", fix)
    if column in spec.on:
        raise UserError(field, column, "is one of the columns of `on`", "name the column that is true in rows that delete")
    return replace(table, columns=tuple((name, kind) for name, kind in table.columns if name != column))


def _top_schema(field: str, spec: Top, schema: Schema) -> Schema:
    _require(f"{field}.by", spec.by, schema)
    expressions.parse_order(spec.order_by, schema, f"{field}.order_by")
    if RANK in schema.types:
        fix = f"rename it first: {{map: {spec.top}, select: {{{RANK}_before: {RANK}, ...}}}}"
        raise UserError(f"{field}.top", spec.top, f"its input has a column {RANK}, which top adds", fix)
    return Schema(((RANK, Type.INT), *schema.columns), windowed=True)
