"""Column types and schemas of streams.

A tuple is (kind, id, time, attributes). In a record batch, column `time` (int64, event time in microseconds since the
epoch) comes first, then the attributes in schema order; ids follow from the first id of the frame. A *windowed* stream
(the output of a window operator, also after filters and maps) has two more columns after `time`: `window_start` and
`window_end` (exclusive), both int64 microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import pyarrow as pa

TIME = "time"
WINDOW = ("window_start", "window_end")
RESERVED = (TIME, *WINDOW)

TRACEPARENT = "traceparent"
"""A text column of this name is the header of the same name of a Kafka record: W3C's trace context. A source takes it from the
header where the record's value has none, and results that have the column have the header."""

FIRST_TIME_US = -62_135_596_800_000_000
"""The start of the year 1. An earlier time has no ISO 8601 text; usually its unit is wrong."""
LAST_TIME_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999. A later time has no ISO 8601 text."""


class Type(StrEnum):
    """The column types that a query file knows. Every column is nullable."""

    STRING = "string"
    INT = "int"
    DOUBLE = "double"
    BOOL = "bool"
    TIMESTAMP = "timestamp"

    @property
    def arrow(self) -> pa.DataType:
        return _ARROW[self]


_ARROW = {
    Type.STRING: pa.string(),
    Type.INT: pa.int64(),
    Type.DOUBLE: pa.float64(),
    Type.BOOL: pa.bool_(),
    Type.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True)
class Schema:
    """The attributes of a stream."""

    columns: tuple[tuple[str, Type], ...]
    """The name and type of each attribute, in order."""
    windowed: bool = False
    """Whether the tuples also have the columns `window_start` and `window_end`."""

    @staticmethod
    def of(columns: dict[str, Type | str], windowed: bool = False) -> Schema:
        return Schema(tuple((name, Type(kind)) for name, kind in columns.items()), windowed)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def types(self) -> dict[str, Type]:
        return dict(self.columns)

    @property
    def is_traced(self) -> bool:
        """Whether the tuples have the text column `traceparent`."""
        return self.types.get(TRACEPARENT) is Type.STRING

    @property
    def visible(self) -> dict[str, Type]:
        """The columns that an expression may name: the attributes; and the time and the window's edges, as timestamps."""
        edges = WINDOW if self.windowed else ()
        return {TIME: Type.TIMESTAMP, **dict.fromkeys(edges, Type.TIMESTAMP), **self.types}

    @cached_property
    def arrow(self) -> pa.Schema:
        edges = [(name, pa.int64()) for name in WINDOW] if self.windowed else []
        return pa.schema([(TIME, pa.int64()), *edges, *((name, kind.arrow) for name, kind in self.columns)])

    def empty(self) -> pa.RecordBatch:
        """A batch of this schema without rows."""
        return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in self.arrow.types], schema=self.arrow)
