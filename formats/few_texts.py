"""The JSON texts that formats.json_text makes with Arrow, made by Python for few rows.

Most calls of Arrow's let another thread have the interpreter. In a process with many threads, and on a machine that is busy,
each of these hand-overs takes longer, and more processor time, than the texts of many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from json.encoder import encode_basestring_ascii
from typing import Any

import pyarrow as pa

from boreal.model.columns import int64_values
from boreal.model.schema import FIRST_TIME_US, LAST_TIME_US, Type

FEW_ROWS = 256
"""For so many, Python takes about as long as Arrow does where no thread waits, and for more it takes longer."""

_EPOCH = datetime(1970, 1, 1)


def few_texts(column: pa.Array, kind: Type) -> list[str] | None:
    """Each value as JSON. None for types of which only Arrow makes the texts."""
    text = _TEXTS.get(kind)
    if text is None:
        return None
    values = int64_values(column).tolist() if kind is Type.INT and not column.null_count else column.to_pylist()
    return ["null" if value is None else text(value) for value in values]


_TEXTS: dict[Type, Callable[[Any], str]] = {
    Type.STRING: encode_basestring_ascii,
    Type.INT: str,
    Type.BOOL: lambda value: "true" if value else "false",
}


def few_moments(times_us: list[int]) -> list[str] | None:
    """As `json_text.moments`; None if there are times that Python's calendar lacks."""
    if times_us and not FIRST_TIME_US <= min(times_us) <= max(times_us) <= LAST_TIME_US:
        return None
    texts = []
    second, text = None, ""
    for time_us in times_us:
        seconds, micros = divmod(time_us, 1_000_000)
        if seconds != second:  # which most rows share with the one before
            second, text = seconds, (_EPOCH + timedelta(seconds=seconds)).isoformat()
        texts.append(f"{text}.{micros:06d}Z")
    return texts


def few_shortened(texts: Sequence[str]) -> list[str]:
    """Times in quotes, without a fraction that is zero."""
    return [f'"{text[:19]}Z"' if text.endswith(".000000Z") else f'"{text}"' for text in texts]


def few_joined(parts: Sequence[list[str] | str]) -> list[str]:
    """As `json_text.joined`."""
    form = "".join(["%s" if isinstance(part, list) else part.replace("%", "%%") for part in parts])
    columns = [part for part in parts if isinstance(part, list)]
    return [form % row for row in zip(*columns, strict=True)]
