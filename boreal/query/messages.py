"""What pydantic finds wrong with a query file, in our words: the dotted path, what stood there, the problem and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from boreal.model.errors import UserError
from boreal.query.columns import SourceColumn
from boreal.query.csv_form import Csv
from boreal.query.fields import plain
from boreal.query.refusals import did_you_mean
from boreal.query.running import FragmentSpec, Policy, Tuning
from boreal.query.shapes import KINDS, Stream, Window, kinds_named

_EXAMPLES = {
    "name": "name: departures",
    "streams": "streams: {ewr: {time: departed_at, schema: {carrier: string}}}",
    "time": "time: departed_at, the column that holds the event time",
    "path": "path: user.id",
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
    "lookup": "both inputs: lookup: [LEFT, TABLE]",
    "union": "union: [ewr, jfk]",
    "order_by": 'order_by: "dep_delay desc"',
    "operators": "operators: [late, by_carrier]",
    "operator": "operator: NAME, under which an installed package registers it",
}
_SHAPES = {
    "string_type": ("is not text", "write text, in quotes if it looks like a number or true or false"),
    "int_type": ("is not a whole number", "write a whole number, such as 2"),
    "dict_type": ("is not a mapping", "write a mapping, such as {name: value}"),
    "model_type": ("is not a mapping", "write a mapping, such as {name: value}"),
    "model_attributes_type": ("is not a mapping", "write a mapping, such as {name: value}"),
    "tuple_type": ("is not a list", "write a list, such as [carrier]"),
}


def user_error(error: ErrorDetails, query: type[BaseModel]) -> UserError:
    """One of pydantic's findings in a file of the model `query`, as a refusal: every kind has a fix of its own."""
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
            fix = did_you_mean(last, _fields_at(place[:-1], query))
            return UserError(field, _plain_value(value), f"{last} is not known here", fix)
        case "union_tag_not_found" | "union_tag_invalid":
            return _kind_error(field, value)
        case "enum" | "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            return UserError(field, _plain_value(value), "is not one of the choices", did_you_mean(value, choices))
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
    """The path in the file: without the tags of operators and columns and the mark of a key, which pydantic puts in."""
    parts = [str(part) for part in place]
    if len(parts) > 2 and parts[0] == "operators":
        del parts[2]
    if len(parts) > 4 and parts[0] == "streams" and parts[2] == "schema" and parts[4] in ("type", "place"):
        del parts[4]
    return ".".join(part for part in parts if part != "[key]")


def _plain_value(value: object) -> object:
    return plain(value) if isinstance(value, BaseModel) else value


def _kind_error(field: str, value: object) -> UserError:
    named = kinds_named(value)
    if len(named) > 1:
        fix = f"keep one of them: {', '.join(named)}"
        return UserError(field, value, f"names {len(named)} kinds of operator", fix)
    if not isinstance(value, Mapping):
        return UserError(field, value, "is not a mapping", 'write an operator, such as {filter: INPUT, where: "..."}')
    near = [(key, get_close_matches(str(key), KINDS, n=1)) for key in value]
    hints = [f"did you mean {matches[0]} instead of {key}? " for key, matches in near if matches]
    fix = f"{''.join(hints[:1])}One key must be the kind, its value the input: {', '.join(KINDS)}"
    return UserError(field, dict(value), "names no kind of operator", fix)


def _fields_at(place: tuple[int | str, ...], query: type[BaseModel]) -> list[str]:
    """The fields that the file may have at this place."""
    model: type[BaseModel]
    match place:
        case ("streams", _, "schema", _, _):
            model = SourceColumn
        case ("streams", _, "csv"):
            model = Csv
        case ("streams", _):
            model = Stream
        case ("operators", _, str(kind)):
            model = KINDS[kind]
        case ("operators", _, _, "window"):
            model = Window
        case ("policy",):
            model = Policy
        case ("tuning",):
            model = Tuning
        case ("fragments", _):
            model = FragmentSpec
        case _:
            model = query
    return [field.alias or name for name, field in model.model_fields.items()]
