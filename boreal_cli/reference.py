"""The reference pages, made from the code that they speak of: `python -m boreal_cli.reference` writes them to docs/.

    docs/query.md            the query file, its expressions, and faults
    docs/query.schema.json   the JSON Schema of the query file
    docs/settings.md         settings, and the fields of statuses
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any

from pydantic import BaseModel

from api.settings import ApiSettings
from boreal.model.documents import parse_document
from boreal.model.schema import PLAIN_TYPES, Schema
from boreal.query.expressions import parse, parse_aggregation
from boreal.query.language import AGGREGATIONS, FUNCTIONS, OPERATORS
from boreal.query.spec import json_schema, load_query
from boreal.query.sql_writing import view_text, write_sql
from deployment import status_fields
from deployment.status_fields import Fields
from embedded.faults import FORMS
from services.kafka.settings import VARIABLES, ServiceSettings
from services.source.options import SourceOptions

DOCS = Path("docs")

EXAMPLE = """\
name: departures
streams:
  ewr: {topic: flights.ewr, time: departed_at, schema: {carrier: string, dest: string, dep_delay: double}}
  jfk: {topic: flights.jfk, time: departed_at, schema: {carrier: string, dest: string, dep_delay: double}}
operators:
  all: {union: [ewr, jfk]}
  late: {filter: all, where: "dep_delay > 15"}
  by_carrier: {aggregate: late, window: {tumbling: 10m}, by: [carrier], compute: {flights: count(*), mean: avg(dep_delay)}}
output: by_carrier
delay_threshold: 3s
"""
OPERATOR_EXAMPLES = {
    "filter": 'late: {filter: ewr, where: "dep_delay > 15"}',
    "map": 'hours: {map: ewr, select: {carrier: carrier, hours: "dep_delay / 60"}}',
    "union": "all: {union: [ewr, jfk]}",
    "aggregate": "hourly: {aggregate: ewr, window: {sliding: 1h, every: 10m}, by: [carrier], compute: {mean: avg(dep_delay)}}",
    "join": "paired: {join: [ewr, jfk], on: [carrier], within: 30m, how: left}",
    "lookup": "flown: {lookup: [ewr, jfk], on: [carrier], within: 1d, how: left}",
    "distinct": "first: {distinct: ewr, on: [carrier], window: {tumbling: 1h}}",
    "deduplicate": "once: {deduplicate: ewr, on: [carrier, dest], within: 1h}",
    "top": 'worst: {top: ewr, k: 5, order_by: "dep_delay desc, carrier", window: {tumbling: 1h}}',
    "python": "flagged: {python: ewr, operator: long_delays, with: {above: 60}}",
}
"""Each reads streams of EXAMPLE."""

EXPRESSIONS_OVER = Schema.of({
    "x": "double", "y": "double", "z": "double", "s": "string", "t": "string", "p": "bool", "q": "bool",
})  # fmt: skip
"""The columns of the examples of expressions."""

_PARTS = ("Stream", "SourceColumn", "Csv", "Window", "Policy", "Slo", "Records", "SparkPart", "Tuning", "FragmentSpec")
_TITLES = {
    "Stream": "A stream",
    "SourceColumn": "A column",
    "Csv": "CSV",
    "Window": "A window",
    "Policy": "Policy",
    "Slo": "Objective",
    "Records": "Records",
    "SparkPart": "Operators in Spark",
    "Tuning": "Tuning",
    "FragmentSpec": "A fragment",
}
_OPERATORS = ("Filter", "Map", "Union", "Aggregate", "Join", "Lookup", "Distinct", "Deduplicate", "Top", "Python")

_MADE = "<!-- Made by `python -m boreal_cli.reference`: edit the code instead. -->"

Definitions = Mapping[str, dict[str, Any]]


def pages() -> dict[str, str]:
    """The text of each page, by its name in docs/."""
    return {
        "query.md": query_page(),
        "query.schema.json": json.dumps(json_schema(), indent=2) + "\n",
        "settings.md": settings_page(),
    }


# The query


def query_page() -> str:
    schema = json_schema()
    definitions = schema["$defs"]
    return _joined(
        "# Query reference",
        _MADE,
        "The query file, in YAML or JSON, or [in SQL](#in-sql). [query.schema.json](query.schema.json) says the same to "
        "editors and programs, and `boreal.query.builder` makes the same in Python. A wrong query is refused with the field, "
        "the value and a fix.",
        _block("yaml", EXAMPLE),
        "Durations are numbers with units (`3s`, `250ms`, `1m30s`; d, h, m, s, ms, us), or ISO 8601 (`PT3S`). Sizes are a "
        "number and a unit (`256MB`, `1GiB`). Column types are string, int (64 bits), double, bool, timestamp (microseconds, "
        "UTC), date and `decimal(p, s)`: exact, with up to p digits, at most 38, and s of them after the point (in quotes "
        'where braces are around it: `schema: {price: "decimal(18, 2)"}`). In a record a decimal is a number or a text; one '
        "with more digits than its type is refused, not rounded. In results it is a text, since most programs read numbers of "
        "JSON as doubles. A date is a text such as `2013-01-31`, or in a record also the number of days since 1970.",
        "## The query",
        _properties(schema, definitions),
        *(section for name in _PARTS[:3] for section in _part(name, definitions)),
        "## Operators",
        "An operator reads streams and operators by their names. Besides its columns each row has its event `time`; the rows "
        "of a window operator, and of what reads it, also have `window_start` and `window_end`. [protocol.md](protocol.md) "
        "says which time a result has.",
        *(section for name in _OPERATORS for section in _operator(name, definitions)),
        *(section for name in _PARTS[3:] for section in _part(name, definitions)),
        "## Expressions",
        "Conditions and computed columns are SQL expressions over the columns of the input, `time`, and for windows "
        "`window_start` and `window_end`. An expression with a null operand is null, unless the table says otherwise; `and` "
        "and `or` have three-valued logic. A calculation without a finite result (division by zero, an overflow, a text that "
        "is no number) is null. Ints become doubles where the two meet. Beside a decimal, ints and numbers that are written "
        "out (`price * 1.19`) are decimals too, and the result of `+`, `-` and `*` has all its digits, or is null where 38 are "
        "too few; a double makes a double of it. Casts to decimals, and `round`, round halves away from zero. A text becomes a "
        "timestamp or a date only as a literal; a date beside a timestamp is its midnight in UTC, as in "
        "`time > '2013-01-01T05:00:00Z'`. "
        "In the examples p and q are conditions, x, y and z doubles, s and t texts.",
        "### Operators in expressions",
        _table(("expression", "type", "meaning"), ((_code(form), _type_of(form), text) for form, text in OPERATORS.items())),
        "### Functions",
        _table(("function", "type", "meaning"), ((_code(form), _type_of(form), text) for form, text in FUNCTIONS.values())),
        "Where databases differ, a function is as in DuckDB, with these exceptions. What has no finite result is null, and no "
        "error. A comparison with NaN is false, except `<>`; `min` and `max` take NaN for the largest double. `concat` with a "
        "null is null. `cast(x as int)` leaves the fraction out and does not round. `regexp_extract` without a match is null. "
        "`count_if` of nulls is 0. `date_trunc` in a time zone gives a timestamp in UTC. A time zone's rules are those of the "
        "machine's database, so machines that run replicas need the same one; after 2037 its last offset is kept.",
        "### Aggregations",
        "`compute` takes one aggregation for each column; x is any expression. Nulls are left out. A calculation with several "
        "results belongs in a map that reads the aggregate. A sum of decimals is exact, and a decimal of 38 digits; their "
        "`avg` is the double nearest to the exact mean.",
        _table(
            ("aggregation", "type for a double", "meaning"),
            ((_code(form), _type_of_aggregation(form), text) for form, text in AGGREGATIONS.items()),
        ),
        "## In SQL",
        "A query may also be written in SQL, in a file that begins with `create`. All commands take it, as does the REST API "
        "with `Content-Type: application/sql`; `boreal sql FILE` prints a query in the other form. This is the query at the "
        "top:",
        _block("sql", write_sql(load_query(EXAMPLE)).rstrip()),
        "A view is an operator, and the statement of each operator is shown above. The query's own SELECT may be any of "
        "these; its operator then has the query's name. In GROUP BY a window is `TUMBLE('10m')`, `HOP('10m', '1h')`, "
        "`SESSION('30m')`, or `SESSION('30m', '1d')` with a `longest`. A SELECT with several clauses is several operators "
        "(`NAME_joined`, `NAME_where`, then `NAME_grouped` before HAVING). WITH has the other fields of a query or stream, "
        "dotted where they are nested (`tuning.bucket = '50ms'`), lists in parentheses (`key = ('carrier')`). A column of "
        "a stream may have a place: `user_id int PATH 'user.id'`, `shop string FROM 'key'`. Names that are no plain words "
        "stand in double quotes. What a stream cannot give is refused, with line and column: ORDER BY and LIMIT without a "
        "window, GROUP BY or JOIN without one, UNION without ALL.",
        "## Faults",
        "`boreal run`, `compare` and `verify` take any number of `--fault` options. T is the time from the start of the run, "
        "and D a duration, both in run time. The fragment of a query without `fragments` is called `main`, the replicas `r0`, "
        "`r1` and so on.",
        _table(
            ("fault", "meaning", "example"),
            ((_code(form.text), form.meaning, _code(form.example)) for forms in FORMS.values() for form in forms),
        ),
    )


def _part(name: str, definitions: Definitions) -> Iterator[str]:
    part = definitions[name]
    yield f"## {_TITLES[name]}"
    yield part["description"].replace("\n", " ")
    yield _properties(part, definitions)


def _view_of(example: str) -> str:
    """The statement of an operator of EXAMPLE in SQL."""
    made = parse_document("example", example)
    file = parse_document("example", EXAMPLE)
    assert isinstance(made, dict) and isinstance(file, dict)
    [name] = made
    return view_text(name, load_query({**file, "operators": made, "output": name}).operators[name])


def _operator(name: str, definitions: Definitions) -> Iterator[str]:
    kind = name.lower()
    yield f"### {kind}"
    yield definitions[name]["description"]
    yield _block("yaml", OPERATOR_EXAMPLES[kind])
    yield _block("sql", _view_of(OPERATOR_EXAMPLES[kind]))
    yield _properties(definitions[name], definitions)


def _properties(part: Mapping[str, Any], definitions: Definitions) -> str:
    required = part.get("required", ())
    return _table(
        ("field", "type", "default", "meaning"),
        (
            (_code(name), _type(field, definitions), _default(name in required, field), field["description"])
            for name, field in part["properties"].items()
        ),
    )


def _default(required: bool, field: Mapping[str, Any]) -> str:
    return "required" if required else _written(field["default"])


def _type(field: Mapping[str, Any], definitions: Definitions) -> str:
    """The type and the constraints of a field of the JSON Schema, in words."""
    match field:
        case {"$ref": reference}:
            return _type_named(reference.rpartition("/")[2], definitions)
        case {"title": "type"}:
            return " \\| ".join(_code(kind) for kind in (*PLAIN_TYPES, "decimal(p, s)"))
        case {"anyOf": choices} | {"oneOf": choices}:
            if all(choice.get("$ref", "").rpartition("/")[2] in _OPERATORS for choice in choices):
                return "[operator](#operators)"
            return " or ".join(dict.fromkeys(_type(choice, definitions) for choice in choices if choice != {"type": "null"}))
        case {"enum": values}:
            return " \\| ".join(_code(value) for value in values)
        case {"type": "array", "items": items, "minItems": least, "maxItems": most} if least == most:
            return f"list of {least} {_type(items, definitions)}s"
        case {"type": "array", "prefixItems": items}:
            return f"list of {len(items)} {_type(items[0], definitions)}s"
        case {"type": "array", "items": items}:
            return f"list of {_type(items, definitions)}{', at least one' if field.get('minItems') else ''}"
        case {"title": "duration" | "size" | "percentage" | "parameters" | "auto, or a duration" as title}:
            return str(title)
        case {"type": "object"}:
            values = field.get("additionalProperties") or next(iter(field["patternProperties"].values()))
            return f"name: {_type(values, definitions)}{', at least one' if field.get('minProperties') else ''}"
        case {"type": "integer"}:
            return f"int{_bounds(field)}"
        case {"type": "boolean"}:
            return "bool"
        case {"maxLength": most}:
            return f"name, up to {most} letters"
        case {"pattern": _}:
            return "name"
        case _:
            return "text"


def _bounds(field: Mapping[str, Any]) -> str:
    match field:
        case {"minimum": least, "maximum": most}:
            return f", {least} to {most}"
        case {"minimum": least}:
            return f", at least {least}"
        case _:
            return ""


def _type_named(name: str, definitions: Definitions) -> str:
    if name in _TITLES:
        return f"[{_TITLES[name].removeprefix('A ').lower()}](#{_anchor(_TITLES[name])})"
    return _type(definitions[name], definitions)


def _type_of(form: str) -> str:
    return parse(form, EXPRESSIONS_OVER, "expression").type.value


def _type_of_aggregation(form: str) -> str:
    return parse_aggregation(form, EXPRESSIONS_OVER, "aggregation").type.value


# Settings and statuses


def settings_page() -> str:
    return _joined(
        "# Settings and status reference",
        _MADE,
        "## Settings",
        "Processes and commands take their settings from the environment, or from the YAML file that `BOREAL_CONFIG` names. "
        "SITE is the name of a site, in capitals. A local stack (`boreal up`) needs none of them.",
        _table(("variable", "default", "meaning"), _variables()),
        "## `boreal status --json`",
        "What runs. The exit status is 1 where something is not ready, or nothing is up.",
        _fields(status_fields.STACK),
        "## `boreal query show NAME --json`",
        "A query: what it is, and how it is. `boreal query list --json` has the fields up to `engine` for each query; "
        "`boreal query apply` and `set` print those up to `problem`, and `notes`. How it answers is null while "
        "the monitor is silent.",
        _fields(status_fields.SHOWN_QUERY),
        "## Statuses in `boreal.status`",
        "Each process says each second how it is, in a record of the topic `boreal.status` (JSON; the key is the name of the "
        "process). Every status has these fields:",
        _fields(status_fields.PROCESS),
        *(
            section
            for kind, fields in status_fields.PROCESSES.items()
            for section in (f"### {kind}", _fields(fields))
        ),
        "### query",
        "The monitor says of each query how it is, under the key `query:NAME`. All fields are always there.",
        _fields(status_fields.QUERY),
    )


def _variables() -> Iterator[tuple[str, str, str]]:
    """Every variable, its default and its meaning."""
    yield from _of_model(ServiceSettings, "BOREAL_")
    yield from _of_model(SourceOptions, "BOREAL_")
    yield from _of_model(ApiSettings, "BOREAL_API__")
    yield from ((_code(name), "", text) for name, text in VARIABLES.items())


def _of_model(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    defaults = model.model_construct().model_dump(mode="json")
    for name, field in model.model_fields.items():
        variable = prefix + name.upper()
        inner = next((part for part in _types_in(field.annotation) if issubclass(part, BaseModel)), None)
        is_by_site = name in ("sites", "proxies")
        if inner is not None:
            yield from _of_model(inner, f"{variable}__SITE__" if is_by_site else f"{variable}__")
            continue
        default = "required" if field.is_required() else _written(defaults[name])
        yield _code(f"{variable}__SITE" if is_by_site else variable), default, field.description or ""


def _types_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _types_in(part)


def _written(default: object) -> str:
    """A default; empty for null and for what has fields of its own."""
    if default is None or isinstance(default, dict | list):
        return ""
    return _code(default if isinstance(default, str) else json.dumps(default))


def _fields(fields: Fields) -> str:
    return _table(("field", "meaning"), _rows(fields, ""))


def _rows(fields: Fields, path: str) -> Iterator[tuple[str, str]]:
    for name, entry in fields.items():
        text, parts = (entry, {}) if isinstance(entry, str) else entry
        yield _code(path + name), text
        yield from _rows(parts, f"{path}{name}.")


# Markdown


def _joined(*sections: str) -> str:
    """Paragraphs are wrapped; tables, headings and blocks stay as they are."""
    kept = ("#", "|", "<", "```")
    return "\n\n".join(
        section if section.startswith(kept) else fill(section, 128, break_long_words=False, break_on_hyphens=False)
        for section in sections
    ) + "\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (head, ("---",) * len(head), *rows))


def _code(text: object) -> str:
    """A bar would end the cell of a table, and a backslash before it is shown by some readers."""
    shown = str(text)
    return f"<code>{escape(shown, quote=False).replace('|', '&#124;')}</code>" if "|" in shown else f"`{shown}`"


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
