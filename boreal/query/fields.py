"""The types of single fields of the query file: names, columns, numbers and engines, each with its own refusals."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from boreal.model.schema import RESERVED
from boreal.query.refusals import did_you_mean, refuse

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        suggestion = re.sub(r"\W", "_", value, flags=re.ASCII)
        suggestion = f"_{suggestion}" if not _NAME.fullmatch(suggestion) else suggestion
        refuse(
            "is not a name",
            f"use letters, digits and underscores, not beginning with a digit, such as {suggestion}",
            value=value,
        )
    return value


def _column(value: str) -> str:
    if not value:
        refuse("is an empty column name", "give the column a name", value=value)
    return value


def _computed_column(value: str) -> str:
    if value in RESERVED:
        refuse(
            "is a reserved column name",
            f"choose another name: {', '.join(RESERVED)} ride along with every tuple or window by themselves",
            value=value,
        )
    return _column(value)


def _no_repeats(values: tuple[str, ...]) -> tuple[str, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            refuse(f"names {value} twice", f"name {value} once", value=list(values))
    return values


def _topic(value: str) -> str:
    if not _TOPIC_NAME.fullmatch(value):
        refuse("is not a Kafka topic name", "use 1 to 249 letters, digits, dots, underscores and dashes", value=value)
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
Topic = Annotated[str, AfterValidator(_topic)]
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
            refuse("is not one of the choices", did_you_mean(name, _ENGINES), value=name)
    return value


Engines = Annotated[Engine | tuple[Engine, ...], BeforeValidator(_known_engines)]
"""Where replicas run their operators: all of them alike, or one name for each, in order."""


class Model(BaseModel):
    """A part of the query file: nothing else may stand there, and it never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


def plain(model: BaseModel) -> dict[str, Any]:
    """As the file would write it, defaults filled in."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
