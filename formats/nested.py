"""Values in objects and arrays, by their paths (`boreal.query.columns`): in Arrow columns, in parsed JSON, in JSON texts."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from boreal.query.columns import Path
from formats.json_text import Texts


def type_holding(leaves: Mapping[Path, pa.DataType]) -> pa.DataType | None:
    """The type of a value with these values inside of it. None if there is none: Arrow's arrays have items of one type only."""
    if () in leaves:
        return leaves[()] if len(leaves) == 1 else None
    inner: dict[str | None, dict[Path, pa.DataType]] = {}
    for path, kind in leaves.items():
        step = path[0] if isinstance(path[0], str) else None
        if inner.setdefault(step, {}).setdefault(path[1:], kind) != kind:
            return None
    kinds = {step: type_holding(found) for step, found in inner.items()}
    if None in kinds.values():
        return None
    if None in kinds:
        return pa.list_(kinds[None]) if len(kinds) == 1 else None
    return pa.struct(list(kinds.items()))


def column_at(column: pa.Array, path: Path) -> pa.Array:
    """The values at a path inside of those of a column, which have a type of `type_holding`, or one that holds more; null where
    something on the way is null or missing. pa.ArrowInvalid if the column's type has no such values."""
    for step in path:
        if isinstance(step, str):
            if not pa.types.is_struct(column.type):
                raise pa.ArrowInvalid(f"{column.type} is not an object")
            place = column.type.get_field_index(step)
            # `flatten` is null where the object is.
            column = column.flatten()[place] if place >= 0 else pa.nulls(len(column))
        else:
            if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
                raise pa.ArrowInvalid(f"{column.type} is not an array")
            is_there = pc.greater(pc.list_value_length(column), step)
            items = pc.add(column.offsets[:-1], pa.scalar(step, column.offsets.type))
            column = column.values.take(pc.if_else(is_there, items, pa.scalar(None, items.type)))
    return column


def value_at(value: object, path: Path) -> object:
    """The value at a path inside of parsed JSON; None where something on the way is null or missing. TypeError, with the value,
    where something else is in the place of an object or array."""
    for step in path:
        if value is None:
            return None
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list):
            value = value[step] if step < len(value) else None
        else:
            raise TypeError("an object" if isinstance(step, str) else "an array", value)
    return value


def nested_parts(texts: Mapping[Path, Texts]) -> list[Texts | str]:
    """JSON that holds these texts of JSON values at their paths, one per row, as parts for `formats.json_text.joined`."""
    if () in texts:
        return [texts[()]]
    inner: dict[str | int, dict[Path, Texts]] = {}
    for path, column in texts.items():
        inner.setdefault(path[0], {})[path[1:]] = column
    parts: list[Texts | str] = []
    if any(isinstance(step, int) for step in inner):
        for place in range(1 + max(step for step in inner if isinstance(step, int))):
            parts += ["," if place else "[", *(nested_parts(inner[place]) if place in inner else ["null"])]
        return [*parts, "]"]
    for number, (step, columns) in enumerate(inner.items()):
        parts += ["," if number else "{", f"{json.dumps(step)}:", *nested_parts(columns)]
    return [*parts, "}"]
