"""The columns of a source stream: their types, and where in a record they are found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, PlainSerializer, PlainValidator, Tag, WithJsonSchema, model_validator

from boreal.model.decimals import DECIMAL_DIGITS
from boreal.model.schema import PLAIN_TYPES, Type
from boreal.query.fields import Model
from boreal.query.refusals import did_you_mean, refuse

_SYNONYMS = {
    "str": Type.STRING, "text": Type.STRING, "varchar": Type.STRING, "integer": Type.INT, "int64": Type.INT,
    "long": Type.INT, "bigint": Type.INT, "float": Type.DOUBLE, "float64": Type.DOUBLE, "number": Type.DOUBLE,
    "boolean": Type.BOOL, "datetime": Type.TIMESTAMP, "time": Type.TIMESTAMP,
}  # fmt: skip
_A_DECIMAL = "decimal(p, s)"
DECIMAL_FIX = (
    f'write "decimal(18, 2)", in quotes where braces are around it: how many digits, up to {DECIMAL_DIGITS}, and how many of '
    "them after the point"
)


def _type(value: object) -> Type:
    try:
        return Type(str(value))
    except ValueError:
        pass
    text = str(value).lower()
    if text.startswith(("decimal", "numeric")):
        refuse("is not a decimal type", DECIMAL_FIX, value=value)
    fix = f"write {_SYNONYMS[text]}" if text in _SYNONYMS else did_you_mean(value, (*PLAIN_TYPES, _A_DECIMAL))
    refuse("is not one of the choices", fix, value=value)


ColumnType = Annotated[
    Type,
    PlainValidator(_type),
    PlainSerializer(str),
    WithJsonSchema(
        {
            "title": "type",
            "description": "The types of columns. Every column is nullable.",
            "anyOf": [
                {"type": "string", "enum": [str(kind) for kind in PLAIN_TYPES]},
                {"type": "string", "pattern": "^decimal\\( *[0-9]{1,2} *, *[0-9]{1,2} *\\)$"},
            ],
        }
    ),
]

Path = tuple[str | int, ...]
"""The way from a record to a value in it: the names of fields, and places in arrays, which count from 0."""

TOMBSTONE = "tombstone"
ORIGINS: dict[str, Type | None] = {
    "key": None, "timestamp": Type.TIMESTAMP, "partition": Type.INT, "offset": Type.INT, TOMBSTONE: Type.BOOL,
}  # fmt: skip
"""What a column may be from, and the type that it has; None for any, since a text becomes one. And `header.NAME`, of any."""
HEADER = "header."

MOST_STEPS = 50
"""Of a path."""

_STEP = re.compile(r"(?P<dot>\.?)(?P<name>[^\s.\[\]'\"$*]+)|\[(?P<place>\d{1,6})\]|\['(?P<quoted>[^']+)'\]")


def parse_path(text: str) -> Path | None:
    """The steps of a text such as `user.id`, `items[0].price` or `user['first.name']`; None if it is no path."""
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None or len(steps) == MOST_STEPS:
            return None
        if step["place"] is not None:
            steps.append(int(step["place"]))
        elif step["quoted"] is not None or bool(step["dot"]) == bool(steps):
            steps.append(step["quoted"] or step["name"])
        else:
            return None
        at = step.end()
    return tuple(steps) if steps and isinstance(steps[0], str) else None


def path_text(path: Path) -> str:
    """The text of a path, which `parse_path` reads."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _STEP.fullmatch(step) and not step.startswith((".", "[")):
            text += f".{step}" if text else step
        else:
            text += f"['{step}']"
    return text


def _path(text: str) -> str:
    if parse_path(text) is None:
        fix = "write the way from the record to the value, such as user.id, items[0].price or user['first.name']"
        refuse("is not a path", fix, value=text)
    return text


def _origin(text: str) -> str:
    if text not in ORIGINS and not (text.startswith(HEADER) and text != HEADER):
        fix = f"write one of {', '.join(ORIGINS)}, or header.NAME"
        refuse("is not a part of a record", fix, value=text)
    return text


class SourceColumn(Model):
    """A column that is not the field of the record that has its name: it has a `path`, or is `from` another part of it."""

    type: ColumnType = Field(description="The type of the column.")
    path: Annotated[str, AfterValidator(_path)] | None = Field(
        default=None,
        description="The way to the value in nested data: names of fields with dots between them, places in arrays in "
        "brackets, from 0 (`items[0].price`), names with other letters in brackets and quotes (`user['first.name']`). "
        "Where something on the way is missing or null, the column is null; where something else is in its place, the record "
        "is refused. A file without nested values, such as CSV, has the column under its own name.",
    )
    origin: Annotated[Annotated[str, AfterValidator(_origin)] | None, Field(alias="from")] = Field(
        default=None,
        description="The part of a Kafka record that is the column: `key` or `header.NAME`, in UTF-8; `timestamp`, for a "
        "column of this type; `partition` or `offset`, ints; `tombstone`, a bool: whether the record has no value. Null where "
        "a record has no such header or key, as rows that are posted. With a column from `tombstone`, a record without a value "
        "is a row, in which all columns that would be in the value are null, and the event time, if it is one of them, is "
        "Kafka's time stamp of the record; without it, such a record is refused. A file has the column under its own name.",
    )

    @property
    def steps(self) -> Path | None:
        """The parsed path."""
        return parse_path(self.path) if self.path is not None else None

    @model_validator(mode="after")
    def _check(self) -> SourceColumn:
        if (self.path is None) == (self.origin is None):
            fix = "write {type: int, path: user.id}, or {type: string, from: key}"
            refuse("needs either a path or a part of the record", fix)
        wanted = ORIGINS.get(self.origin or "")
        if wanted is not None and self.type is not wanted:
            refuse(f"is of type {wanted}", f"write type: {wanted}", field="type", value=self.type.value)
        return self


def _form_of(value: object) -> str:
    return "place" if isinstance(value, Mapping | SourceColumn) else "type"


AnyColumn = Annotated[Annotated[ColumnType, Tag("type")] | Annotated[SourceColumn, Tag("place")], Discriminator(_form_of)]
"""A type, for the field that has the column's name; or the type and the place."""


def check_places(columns: Mapping[str, Path]) -> None:
    """Refuse columns that cannot all be in one record. columns: where each is."""
    taken: dict[Path, str] = {}
    inside: dict[Path, tuple[type, str]] = {}
    for name, path in columns.items():
        for end, step in enumerate(path):
            kind, other = inside.setdefault(path[:end], (type(step), name))
            if kind is not type(step):
                _refuse_place(name, path, f"{path_text(path[:end])} would be an object and an array, as {other} says")
            if path[:end] in taken:
                _refuse_place(name, path, f"{path_text(path[:end])} is the column {taken[path[:end]]}, and so a plain value")
        if path in taken:
            _refuse_place(name, path, f"is the column {taken[path]} already")
        if path in inside:
            _refuse_place(name, path, f"holds the column {inside[path][1]}, and so is no plain value")
        taken[path] = name


def _refuse_place(name: str, path: Path, problem: str) -> None:
    fix = "give each column a place of its own; a map can compute a column from another"
    refuse(problem, fix, field=f"schema.{name}", value=path_text(path))
