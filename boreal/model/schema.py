"""Column types and schemas of streams.

A tuple is (kind, id, time, attributes). In a record batch, column `time` (int64, event time in microseconds since the
epoch) comes first, then the attributes in schema order; ids follow from the first id of the frame. A *windowed* stream
(the output of a window operator, also after filters and maps) has two more columns after `time`: `window_start` and
`window_end` (exclusive), both int64 microseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from boreal.model.decimals import DECIMAL_DIGITS

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

_DAY_US = 86_400_000_000
FIRST_DAY, LAST_DAY = FIRST_TIME_US // _DAY_US, LAST_TIME_US // _DAY_US
"""The first and the last date with an ISO 8601 text, in days since 1970."""


class Type(str):
    """The type of a column, as a query file writes it: one of PLAIN_TYPES, or `decimal(p, s)` with p digits, s of them after
    the point. Every column is nullable. Equal types are one object, so they may be compared with `is`.

    Type(text): ValueError if there is no such type.
    """

    STRING: ClassVar[Type]
    INT: ClassVar[Type]
    DOUBLE: ClassVar[Type]
    BOOL: ClassVar[Type]
    TIMESTAMP: ClassVar[Type]
    DATE: ClassVar[Type]

    arrow: pa.DataType
    """The type of its columns in record batches."""

    def __new__(cls, text: str) -> Type:
        found = _TYPES.get(text)
        if found is not None:
            return found
        shape = _DECIMAL.fullmatch(text)
        if shape is None:
            raise ValueError(f"{text!r} is not the type of a column")
        return Type.decimal(int(shape["digits"]), int(shape["after"]))

    @staticmethod
    def decimal(digits: int, after: int) -> Type:
        """The decimals of so many digits, `after` of them after the point. ValueError if there is no such type."""
        if not (1 <= digits <= DECIMAL_DIGITS and 0 <= after <= digits):
            raise ValueError(f"decimal({digits}, {after}) is not the type of a column")
        return _typed(f"decimal({digits}, {after})", pa.decimal128(digits, after))

    @property
    def value(self) -> str:
        """The type as plain text."""
        return str(self)

    @property
    def is_decimal(self) -> bool:
        return bool(pa.types.is_decimal(self.arrow))

    @property
    def digits(self) -> int:
        """Of a decimal: the number of its digits."""
        return int(self.arrow.precision)

    @property
    def after(self) -> int:
        """Of a decimal: the number of its digits after the point."""
        return int(self.arrow.scale)

    def __repr__(self) -> str:
        # Checkpoints hold the representation of their operator, which has that of types: it must never change.
        return f"<Type.{self.upper()}: {str(self)!r}>"


def _typed(text: str, arrow: pa.DataType) -> Type:
    if text not in _TYPES:
        made = str.__new__(Type, text)
        made.arrow = arrow
        _TYPES[text] = made
    return _TYPES[text]


_TYPES: dict[str, Type] = {}
_DECIMAL = re.compile(r"decimal\( *(?P<digits>\d{1,3}) *, *(?P<after>\d{1,3}) *\)", re.ASCII)

Type.STRING = _typed("string", pa.string())
Type.INT = _typed("int", pa.int64())
Type.DOUBLE = _typed("double", pa.float64())
Type.BOOL = _typed("bool", pa.bool_())
Type.TIMESTAMP = _typed("timestamp", pa.timestamp("us", tz="UTC"))
Type.DATE = _typed("date", pa.date32())

PLAIN_TYPES = (Type.STRING, Type.INT, Type.DOUBLE, Type.BOOL, Type.TIMESTAMP, Type.DATE)
"""The types that have no parameters."""


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

    @cached_property
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
