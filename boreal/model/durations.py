"""Durations and sizes as text: "3s", "250ms", "1m30s", "PT3S"; "256MB".

In the program, a duration is an int in microseconds and a size is an int in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from boreal.model.errors import UserError

_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_ISO_UNITS_US = (7 * _UNITS_US["d"], _UNITS_US["d"], _UNITS_US["h"], _UNITS_US["m"], _UNITS_US["s"])
_LONGEST_US = 36_500 * _UNITS_US["d"]
"""A hundred years. With this limit, sums and products with event times fit in int64."""

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_TEXT_PATTERN = "".join(rf"(?:({_NUMBER}){unit})?" for unit in _UNITS_US)
_TEXT = re.compile(_TEXT_PATTERN, re.ASCII)
_ISO = re.compile(
    rf"P(?:({_NUMBER})W)?(?:({_NUMBER})D)?(?:T(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?", re.ASCII
)

_SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
_SIZE = re.compile(rf"({_NUMBER})\s*([KMGT]I?B|B)", re.ASCII | re.IGNORECASE)

_DURATION_FIX = 'write a number and a unit, such as "3s", "250ms", "10m" or "1h30m" (units: d, h, m, s, ms, us)'
_SIZE_FIX = 'write a number and a unit, such as "256MB" or "1GiB"'


def parse_duration(value: object, field: str, *, allow_zero: bool = False) -> int:
    """The microseconds of a duration: text ("3s", "1m30s", "1.5h", ISO 8601 "PT3S") or a `timedelta`.

    UserError, with `field`, for a number without a unit (it could mean seconds or milliseconds; 0 needs no unit), a
    fraction of a microsecond, a negative duration, more than a hundred years, zero unless `allow_zero`, and any other
    text or type.
    """
    microseconds = _exact_microseconds(value, field)
    if microseconds.denominator != 1:
        raise UserError(field, value, "is not a whole number of microseconds", "round it to the microsecond")
    if microseconds < 0:
        raise UserError(field, value, "is negative", 'write a duration of at least zero, such as "3s"')
    if microseconds == 0 and not allow_zero:
        raise UserError(field, value, "is zero", 'write a duration above zero, such as "3s" or "250ms"')
    if microseconds > _LONGEST_US:
        raise UserError(field, value, "is longer than a hundred years", 'write at most "36500d"')
    return int(microseconds)


def _exact_microseconds(value: object, field: str) -> Fraction:
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1))
    if value == 0 and not isinstance(value, bool):
        return Fraction(0)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise UserError(field, value, "has no unit", f'write the unit: "{value}s" or "{value}ms"')
    if not isinstance(value, str):
        raise UserError(field, value, "is not a duration", _DURATION_FIX)
    text = value.strip()
    sign = -1 if text.startswith("-") else 1
    text = text.removeprefix("-").replace("µs", "us")
    if re.fullmatch(_NUMBER, text):
        if Fraction(text) == 0:
            return Fraction(0)
        raise UserError(field, value, "has no unit", f'write the unit: "{text}s" or "{text}ms"')
    for pattern, units in ((_TEXT, tuple(_UNITS_US.values())), (_ISO, _ISO_UNITS_US)):
        match = pattern.fullmatch(text)
        if match and any(match.groups()):
            return sign * sum(
                (Fraction(part) * unit for part, unit in zip(match.groups(), units, strict=True) if part), Fraction(0)
            )
    raise UserError(field, value, "is not a duration", _DURATION_FIX)


def format_duration(microseconds: int) -> str:
    """The text of a duration (microseconds, at least 0), as `parse_duration` reads it: 90_000_000 is "1m30s"."""
    parts = []
    rest = microseconds
    for unit, size in _UNITS_US.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_bytes(value: object, field: str) -> int:
    """The bytes of a size: "256MB" is 256 million, "256MiB" is 256 * 2**20. UserError for zero and for any other text."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UserError(field, value, "is not a size", _SIZE_FIX)
    size = Fraction(match[1]) * _SIZES[match[2].upper()]
    if size < 1 or size.denominator != 1:
        raise UserError(field, value, "is not a whole number of bytes above zero", _SIZE_FIX)
    return int(size)


def format_bytes(size: int) -> str:
    """The shortest text of a size (bytes), as `parse_bytes` reads it: 256_000_000 is "256MB"."""
    for unit, binary in (("T", 2**40), ("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size % _SIZES[f"{unit}B"] == 0:
            return f"{size // _SIZES[f'{unit}B']}{unit}B"
        if size % binary == 0:
            return f"{size // binary}{unit}iB"
    return f"{size}B"


def _in_model(parse: Callable[[object], int]) -> Callable[[object], int]:
    """A parser for a pydantic model: a UserError becomes a pydantic error, to which pydantic adds the path of the field."""

    def validate(value: object) -> int:
        try:
            return parse(value)
        except UserError as error:
            raise PydanticCustomError(
                "boreal", "{problem}", {"value": value, "problem": error.problem, "fix": error.fix}
            ) from None

    return validate


_DURATION_SCHEMA = WithJsonSchema(
    {"type": "string", "title": "duration", "pattern": rf"^(?:(?=.){_TEXT_PATTERN}|{_ISO.pattern})$",
     "examples": ["3s", "250ms", "1m30s", "PT3S"]}
)  # fmt: skip
_AS_TEXT = PlainSerializer(format_duration, return_type=str)

Duration = Annotated[
    int, BeforeValidator(_in_model(lambda value: parse_duration(value, ""))), _AS_TEXT, _DURATION_SCHEMA
]
"""A model's field: microseconds above zero; text in files."""

DurationOrZero = Annotated[
    int,
    BeforeValidator(_in_model(lambda value: parse_duration(value, "", allow_zero=True))),
    _AS_TEXT,
    _DURATION_SCHEMA,
]
"""A model's field: microseconds, zero included; text in files."""

Bytes = Annotated[
    int,
    BeforeValidator(_in_model(lambda value: parse_bytes(value, ""))),
    PlainSerializer(format_bytes, return_type=str),
    WithJsonSchema({"type": "string", "title": "size", "pattern": rf"^{_NUMBER}\s*[KMGT]?i?B$", "examples": ["256MB"]}),
]
"""A model's field: bytes above zero; text in files."""
