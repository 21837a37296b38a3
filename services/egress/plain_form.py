"""The records of q.records in a format without a registry, and what all forms of these records have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from boreal.model.errors import BorealError
from boreal.model.schema import Schema
from formats.plain_rows import arrow_writer, csv_writer


class RecordForm(Protocol):
    """How rows become the records of one topic."""

    def value(self, row: bytes, version: int) -> bytes:
        """The record of a row, as q.stable has it, of a version of the query. ColumnsUnknown or RegistryError if the row must
        wait."""
        ...

    def close(self) -> None: ...


class ColumnsUnknown(BorealError):
    """A version has rows, and the query's record does not say its columns yet."""


def schema_of(schemas: Mapping[int, Schema], version: int) -> Schema:
    """The schema of a version. ColumnsUnknown."""
    if version not in schemas:
        raise ColumnsUnknown(f"the columns of version {version}, which the query's record does not say yet")
    return schemas[version]


class PlainForm:
    """Records in CSV or Arrow."""

    def __init__(self, format: str, schemas: Callable[[], Mapping[int, Schema]]) -> None:
        """format: `csv` or `arrow`. schemas: by version of the query, as far as they are known now."""
        self._make = _WRITERS[format]
        self._schemas = schemas
        self._writers: dict[int, Callable[[bytes], bytes]] = {}

    def value(self, row: bytes, version: int) -> bytes:
        """See `RecordForm`."""
        if version not in self._writers:
            self._writers[version] = self._make(schema_of(self._schemas(), version))
        return self._writers[version](row)

    def close(self) -> None:
        """There is nothing to close."""


_WRITERS = {"csv": csv_writer, "arrow": arrow_writer}
"""How rows of a version are written, by the format."""
