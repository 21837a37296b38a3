"""How the records of a stream in CSV are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from boreal.query.columns import Path, path_text
from boreal.query.fields import Model, SomeNames
from boreal.query.refusals import did_you_mean, refuse


def _delimiter(value: str) -> str:
    if len(value) != 1 or not value.isascii() or value.isalnum() or value in '"\r\n\0':
        fix = 'write one character that is no letter, digit or quote, such as ";" or "\\t"'
        refuse("is not a character between fields", fix, value=value)
    return value


class Csv(Model):
    """How records in CSV are written. A record is one row, as RFC 4180 has it; an end of line after it may be there. A field in
    quotes may hold anything; a quote in it is doubled."""

    header: SomeNames | None = Field(
        default=None,
        description="The names of a record's fields, in their order. By default those of the schema's columns, without those "
        "that are `from` another part of the record. Fields that are no columns are not read. A record that holds just "
        "these names is the header of a file that was sent line by line: it is no row, and not refused.",
    )
    delimiter: Annotated[str, AfterValidator(_delimiter)] = Field(
        default=",", description='The character between two fields, such as `";"` or `"\\t"`, a tab.'
    )
    nulls: str | None = Field(
        default=None,
        description="A text that stands for null, such as `\\N`, beside those that do so in all formats: the empty one, `NA` "
        "and `null`.",
    )


def check_csv(csv: Csv, inside: Mapping[str, Path], listed: tuple[str, ...], time: str) -> None:
    """Refuse what CSV cannot give. inside: where each column is that is in the value of a record. listed: those of them that
    the schema names, in its order. time: the column of the event time."""
    for name, path in inside.items():
        if path != (name,):
            fix = f"write its type alone, and name its field in csv: header: [..., {name}, ...]"
            refuse("is a path, and CSV has no nested values", fix, field=f"schema.{name}.path", value=path_text(path))
    if csv.header is None:
        if time in inside and time not in listed:
            fix = f"name all fields in their order: csv: {{header: {_listing((time, *listed))}}}"
            refuse(f"has no header, and the schema does not say where {time} is", fix, field="csv", value=None)
        return
    for name in inside:
        if name not in csv.header:
            fix = did_you_mean(name, csv.header)
            refuse(f"has no field {name}, which is a column", fix, field="csv.header", value=list(csv.header))


def _listing(names: tuple[str, ...]) -> str:
    return f"[{', '.join(names)}]"
