"""In which format clients read results, beside JSON."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from boreal.model.errors import UserError
from boreal.model.schema import TIME, WINDOW, Schema
from boreal.query.fields import Model, Name
from boreal.query.refusals import refuse

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""What Avro and Protobuf take for the name of a field."""
REGISTERED = ("avro", "protobuf", "json_schema")
"""The formats whose schema is registered."""


class Records(Model):
    """The final rows in another format than JSON. In a file also on one line, as in `avro`."""

    format: Literal["avro", "protobuf", "json_schema", "csv", "arrow"] = Field(
        description="The format of the records' values, each of which is one row: Avro, Protobuf or JSON with a JSON Schema, "
        "which is registered; a line of CSV (`csv`); or an Arrow IPC stream (`arrow`)."
    )
    registry: Name | None = Field(
        default=None,
        description="The schema registry, by its name in the settings (`BOREAL_REGISTRIES`). By default the first in the order "
        "of their names. CSV and Arrow have none.",
    )

    @model_validator(mode="after")
    def _check(self) -> Records:
        if self.registry is not None and self.format not in REGISTERED:
            fix = f"remove it, or write format: {', '.join(REGISTERED[:-1])} or {REGISTERED[-1]}"
            problem = f"is for formats with a registered schema, and {self.format} has none"
            refuse(problem, fix, field="registry", value=self.registry)
        return self


def records_from_text(value: object) -> object:
    """FORMAT as the fields that it stands for; anything else unchanged."""
    return {"format": value} if isinstance(value, str) else value


def check_records(records: Records, schema: Schema) -> None:
    """UserError if a column of the output cannot be a field of such a record."""
    edges = WINDOW if schema.windowed else (TIME,)
    for name in schema.names:
        if (records.format in REGISTERED and not _NAME.fullmatch(name)) or name in edges:
            problem = f"has no field of the name {name!r}, which is a column of the output"
            fix = f"rename it in a map to letters, digits and underscores, such as {re.sub(r'[^A-Za-z0-9_]', '_', name)}"
            raise UserError("records.format", records.format, problem, fix)
