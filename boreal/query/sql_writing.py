"""A query as SQL text: what `boreal.query.sql_reading` reads back as an equal query. Fields at their defaults are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.query.query import Query
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
    Top,
    Union,
    Window,
)
from boreal.query.sql_text import expression_text, name_text, text_literal


def write_sql(query: Query) -> str:
    """The statements of a query. Its expressions must be valid, as the planner says."""
    written = query.written()
    streams, options = written.pop("streams"), dict(written)
    for key in ("name", "operators", "output"):
        options.pop(key, None)
    selects = {name: _select(spec) for name, spec in query.operators.items()}
    output = f"SELECT * FROM {name_text(query.output)}"
    if query.output == query.name == next(reversed(selects), None):
        output = selects.pop(query.output)
    statements = [_stream(name, dict(fields)) for name, fields in streams.items()]
    statements += [_view(name, select) for name, select in selects.items()]
    statements.append(f"CREATE QUERY {name_text(query.name)}{_with(options)} AS\n{output}")
    return ";\n\n".join(statements) + ";\n"


def view_text(name: str, spec: OperatorSpec) -> str:
    """The statement of one operator."""
    return _view(name, _select(spec)) + ";"


def _view(name: str, select: str) -> str:
    return f"CREATE VIEW {name_text(name)} AS\n{select}"


def _stream(name: str, fields: dict[str, Any]) -> str:
    columns = ", ".join(f"{name_text(column)} {_column(place)}" for column, place in fields.pop("schema").items())
    return f"CREATE STREAM {name_text(name)} ({columns}){_with(fields)}"


def _column(place: str | Mapping[str, str]) -> str:
    if isinstance(place, str):
        return place
    return place["type"] + "".join(f" {word.upper()} {text_literal(place[word])}" for word in ("path", "from") if word in place)


def _with(options: Mapping[str, Any]) -> str:
    entries = [f"{path} = {_value(value)}" for path, value in _flat(options, "")]
    return f"\nWITH ({', '.join(entries)})" if entries else ""


def _flat(options: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _arguments(parameters: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    """As `_flat`; parameters may have any names. A mapping without entries, which has no path, is left out. UserError for a
    mapping in a list, which SQL has no text for."""
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            yield from _arguments(value, f"{prefix}{name_text(key)}.")
        else:
            yield prefix + name_text(key), value


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        fix = "keep the query in YAML or JSON, or let the operator take this in another way"
        raise UserError("with", dict(value), "is a mapping in a list, which cannot be written in SQL", fix)
    if isinstance(value, list):
        return f"({', '.join(_value(entry) for entry in value)})"
    return text_literal(value) if isinstance(value, str) else str(value)


def _select(spec: OperatorSpec) -> str:
    match spec:
        case Filter():
            return f"SELECT * FROM {name_text(spec.filter)} WHERE {expression_text(spec.where)}"
        case Map():
            return f"SELECT {_columns(spec.select)} FROM {name_text(spec.map)}"
        case Union():
            return "\nUNION ALL ".join(f"SELECT * FROM {name_text(source)}" for source in spec.union)
        case Aggregate():
            shown = ", ".join([*map(name_text, spec.by), _columns(spec.compute)])
            return f"SELECT {shown} FROM {name_text(spec.aggregate)}\nGROUP BY {_listed(spec.window, spec.by)}"
        case Join():
            left, right = map(name_text, spec.join)
            kind, within = "LEFT JOIN" if spec.how == "left" else "JOIN", f"INTERVAL '{format_duration(spec.within)}'"
            same = [f"{left}.{name_text(column)} = {right}.{name_text(column)}" for column in spec.on]
            near = f"{right}.time BETWEEN {left}.time - {within} AND {left}.time + {within}"
            return f"SELECT * FROM {left} {kind} {right}\nON {' AND '.join([*same, near])}"
        case Lookup():
            left, right = map(name_text, spec.lookup)
            kind = "ASOF LEFT JOIN" if spec.how == "left" else "ASOF JOIN"
            same = [f"{left}.{name_text(column)} = {right}.{name_text(column)}" for column in spec.on]
            since = f"{left}.time >= {right}.time"
            if spec.within is not None:
                since = f"{left}.time BETWEEN {right}.time AND {right}.time + INTERVAL '{format_duration(spec.within)}'"
            gone = [f"NOT {right}.{name_text(spec.deleted)}"] if spec.deleted is not None else []
            return f"SELECT * FROM {left} {kind} {right}\nON {' AND '.join([*same, since, *gone])}"
        case Distinct():
            return f"SELECT DISTINCT ON ({_listed(spec.window, spec.on)}) * FROM {name_text(spec.distinct)}"
        case Deduplicate():
            compared = ", ".join([f"WITHIN('{format_duration(spec.within)}')", *map(name_text, spec.on)])
            return f"SELECT DISTINCT ON ({compared}) * FROM {name_text(spec.deduplicate)}"
        case Top():
            over = f"PARTITION BY {_listed(spec.window, spec.by)} ORDER BY {expression_text(spec.order_by)}"
            ranked = f"SELECT *, row_number() OVER ({over}) AS rank"
            return f"{ranked}\nFROM {name_text(spec.top)} QUALIFY rank <= {spec.k}"
        case Python():
            given = [f"{path} => {_value(value)}" for path, value in _arguments(spec.parameters, "")]
            version = f" VERSION {text_literal(spec.version)}" if spec.version is not None else ""
            return f"SELECT * FROM {name_text(spec.operator)}({', '.join([name_text(spec.python), *given])}){version}"


def _columns(expressions: Mapping[str, str]) -> str:
    return ", ".join(
        name if name == sql == name_text(name) else f"{expression_text(sql)} AS {name_text(name)}"
        for name, sql in expressions.items()
    )


def _listed(window: Window | None, columns: Iterable[str]) -> str:
    return ", ".join([*_window(window), *map(name_text, columns)])


def _window(window: Window | None) -> Iterator[str]:
    if window is None:
        return
    if window.session is not None:
        lengths = [window.session, *([window.longest] if window.longest is not None else [])]
        yield f"SESSION({', '.join(text_literal(format_duration(length)) for length in lengths)})"
        return
    size, every = format_duration(window.size_us), format_duration(window.every_us)
    yield f"TUMBLE('{size}')" if window.tumbling is not None else f"HOP('{every}', '{size}')"
