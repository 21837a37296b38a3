"""CSV as text: lines to the fields of a row. Files and records share it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from formats.record_parsing import is_text

LONGEST_QUOTED = csv.field_size_limit()
"""A field in quotes, of a line that is read by itself, has at most so many characters."""


def split_row(lines: Sequence[str], at: int, delimiter: str = ",") -> tuple[list[str] | None, int]:
    """The fields of the row that begins at lines[at] (None if a quote is not closed, or a field in quotes is too long), and the
    index of the line after it. lines: with their ends."""
    if '"' not in lines[at]:
        return lines[at].rstrip("\r\n").split(delimiter), at + 1
    # Within a line, quotes are read as leniently as Arrow does. A row of several lines must not have stray quotes.
    for end, strict in ((at + 1, False), (len(lines), True)):
        reader = csv.reader(_lines_between(lines, at, end), strict=strict, delimiter=delimiter)
        try:
            return next(reader), at + reader.line_num
        except (csv.Error, EOFError):
            continue
    return None, at + 1


def row_problem(fields: Sequence[str] | None, width: int) -> str:
    """Why the fields of a row cannot be used; "" if they can. width: how many fields the header has."""
    if fields is None:
        return "a quote is not closed"
    if len(fields) != width:
        return f"{len(fields)} fields, but the header has {width}"
    return "" if all(map(is_text, fields)) else "not UTF-8"


def with_nulls(column: pa.Array, null: str | None) -> pa.Array:
    """A column of texts with null in place of this text, if there is one."""
    return column if null is None else pc.if_else(pc.equal(column, null), pa.scalar(None, pa.string()), column)


def _lines_between(lines: Sequence[str], at: int, end: int) -> Iterator[str]:
    yield from (lines[place] for place in range(at, end))
    # At the end of its input, the csv module would close an open quote silently.
    raise EOFError
