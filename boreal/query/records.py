"""In which format clients read results, beside JSON."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from boreal.model.errors import UserError
from boreal.model.schema import TIME, WINDOW, Schema
from boreal.query.fields import Model, Name

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""What Avro and Protobuf take for the name of a field."""


class Records(Model):
    """The final rows in a format with a schema, which is registered. In a file also on one line, as in `avro`."""

    format: Literal["avro", "protobuf", "json_schema"] = Field(
        description="The format of the records' values; `json_schema`: JSON with a JSON Schema."
    )
    registry: Name | None = Field(
        default=None,
        description="The schema registry, by its name in the settings (`BOREAL_REGISTRIES`). By default the first in the order "
        "of their names.",
    )


def records_from_text(value: object) -> object:
    """FORMAT as the fields that it stands for; anything else unchanged."""
    return {"format": value} if isinstance(value, str) else value


def check_records(records: Records, schema: Schema) -> None:
    """UserError if a column of the output cannot be a field of such a record."""
    edges = WINDOW if schema.windowed else (TIME,)
    for name in schema.names:
        if not _NAME.fullmatch(name) or name in edges:
            problem = f"has no field of the name {name!r}, which is a column of the output"
            fix = f"rename it in a map to letters, digits and underscores, such as {re.sub(r'[^A-Za-z0-9_]', '_', name)}"
            raise UserError("records.format", records.format, problem, fix)
