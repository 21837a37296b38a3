"""Functions of texts. Characters are Unicode's code points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boreal.query.expressions import Term
from operators.kernels import Datum, Function, where

TEXT_FUNCTIONS = ("trim", "replace", "position", "split_part", "regexp_matches", "regexp_extract", "regexp_replace")

_TRIM = {"both": pc.utf8_trim, "leading": pc.utf8_ltrim, "trailing": pc.utf8_rtrim}


def text_function(term: Term) -> Function:
    """The function of a term whose operation is one of TEXT_FUNCTIONS."""
    constant: Any = term.value
    match term.operation:
        case "trim":
            side, characters = constant
            return lambda value: _TRIM[side](value, characters=characters)
        case "replace":
            part, by = constant
            return lambda value: pc.replace_substring(value, pattern=part, replacement=by)
        case "position":
            return lambda value: _position(value, constant)
        case "split_part":
            return lambda value: _split_part(value, *constant)
        case "regexp_matches":
            return lambda value: pc.match_substring_regex(value, constant)
        case "regexp_extract":
            pattern, group = constant
            return lambda value: _extract(value, pattern, group)
        case _:
            pattern, by, most = constant
            return lambda value: pc.replace_substring_regex(value, pattern, by, max_replacements=most)


def _position(value: Datum, part: str) -> pa.Array:
    """Arrow finds bytes; the characters before them are what splitting there leaves first."""
    parts = pc.split_pattern(value, part, max_splits=1)
    before = pc.utf8_length(pc.list_element(parts, 0)) if len(value) else pa.array([], pa.int32())
    place = pc.add(pc.cast(before, pa.int64()), 1)
    return pc.if_else(pc.equal(pc.list_value_length(parts), 2), place, pa.scalar(0, pa.int64()))


def _split_part(value: Datum, separator: str, number: int) -> pa.Array:
    parts = pc.split_pattern(value, separator)
    lengths = pc.fill_null(pc.list_value_length(parts), 0).to_numpy()
    ends = np.cumsum(lengths)
    places = ends - lengths + number - 1 if number > 0 else ends + number
    is_there = lengths >= abs(number)
    chosen = parts.flatten().take(pa.array(np.where(is_there, places, 0), mask=~is_there))
    return where(value.is_valid(), pc.fill_null(chosen, ""))


def _extract(value: Datum, pattern: str, group: str) -> pa.Array:
    found = pc.extract_regex(value, pattern)
    # Rows without a match are null as structs, and empty texts in their fields.
    return where(found.is_valid(), found.field(group))
