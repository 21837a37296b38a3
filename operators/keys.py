"""Keys: the values of some columns of a row, used for grouping, joining and finding duplicates.

A key of one column is a plain Python value: int, str, Decimal, or None for null. A key of several columns is a tuple of these.
Doubles are represented by their bits, with one zero and one NaN; timestamps by microseconds; dates by days. So equal keys
compare and hash as equal, and nulls are equal to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.errors import UserError
from boreal.model.schema import Schema, Type
from boreal.query.spec import did_you_mean

RowKey = Any
"""Hashable; keys of the same columns without nulls can be ordered."""

_SMALL = 32
"""Up to this many rows, a loop is faster than Arrow's calls."""


class Keys:
    """Extracts keys from batches, and converts keys back to columns."""

    def __init__(self, positions: Sequence[int], types: Sequence[Type]) -> None:
        self.positions = tuple(positions)
        self.types = tuple(types)

    @staticmethod
    def of(schema: Schema, names: Iterable[str], field: str) -> Keys:
        """The keys made of these attributes of a stream. UserError, naming `field`, if an attribute does not exist."""
        positions, types = [], []
        for name in names:
            if name not in schema.types:
                raise UserError(field, name, "is not a column", did_you_mean(name, schema.names))
            positions.append(schema.arrow.get_field_index(name))
            types.append(schema.types[name])
        return Keys(positions, types)

    def encode(self, batch: pa.RecordBatch) -> tuple[list[RowKey], np.ndarray]:
        """(the batch's distinct keys in order of first appearance, the index of each row's key among them)."""
        if not self.positions:
            return [()], np.zeros(batch.num_rows, np.intp)
        columns = [
            _comparable(batch.column(place), kind) for place, kind in zip(self.positions, self.types, strict=True)
        ]
        if batch.num_rows <= _SMALL:
            values = [column.to_pylist() for column in columns]
            return _count_off(values[0] if len(values) == 1 else list(zip(*values, strict=True)))
        distinct, codes = _encode_column(columns[0])
        if len(columns) == 1:
            return distinct, codes
        rows: list[RowKey] = [(value,) for value in distinct]
        for column in columns[1:]:
            values, more = _encode_column(column)
            pairs, codes = _encode_column(pa.array(codes * len(values) + more))
            rows = [(*rows[pair // len(values)], values[pair % len(values)]) for pair in pairs]
        return rows, codes

    def arrays(self, keys: Sequence[RowKey]) -> list[pa.Array]:
        """The columns that these keys came from."""
        columns = self.stored(keys)
        return [
            column.view(kind.arrow) if column.type != kind.arrow else column
            for column, kind in zip(columns, self.types, strict=True)
        ]

    def stored(self, keys: Sequence[RowKey]) -> list[pa.Array]:
        """The keys as columns of the types `storage`; `restored` is the inverse."""
        columns = [keys] if len(self.types) == 1 else list(zip(*keys, strict=True)) or [()] * len(self.types)
        return [pa.array(column, kind) for column, kind in zip(columns, self.storage, strict=bool(self.types))]

    def restored(self, columns: Sequence[pa.Array], rows: int) -> list[RowKey]:
        """The inverse of `stored`."""
        values: list[list[RowKey]] = [column.to_pylist() for column in columns]
        if len(values) == 1:
            return values[0]
        return list(zip(*values, strict=True)) if values else [()] * rows

    @property
    def storage(self) -> list[pa.DataType]:
        """Arrow types of stored keys: doubles are stored as their bits, timestamps as microseconds, dates as days."""
        return [storage(kind) for kind in self.types]

    def without_nulls(self, keys: list[RowKey], codes: np.ndarray) -> tuple[list[RowKey], np.ndarray]:
        """The result of `encode` without keys that contain a null; their rows get the code -1."""
        single = len(self.types) == 1
        if not (None in keys if single else any(None in key for key in keys)):
            return keys, codes
        whole = [key is not None if single else None not in key for key in keys]
        renumbered = np.cumsum(whole) - 1
        renumbered[~np.array(whole)] = -1
        return [key for key, complete in zip(keys, whole, strict=True) if complete], renumbered[codes]


def comparable_values(array: pa.Array, kind: Type) -> tuple[list[RowKey], np.ndarray]:
    """(the array's distinct values as keys of one column, the index of each row's value among them)."""
    column = _comparable(array, kind)
    return _count_off(column.to_pylist()) if len(column) <= _SMALL else _encode_column(column)


def storage(kind: Type) -> pa.DataType:
    """Arrow type of stored keys of one column."""
    if kind is Type.DATE:
        return pa.int32()
    return pa.int64() if kind in (Type.DOUBLE, Type.TIMESTAMP) else kind.arrow


def sorting(columns: Sequence[tuple[pa.Array, bool]], nulls: str) -> np.ndarray:
    """The stable order of rows by (column, descending) pairs, the most significant first. nulls: at_start or at_end."""
    order: np.ndarray | None = None
    for column, descending in reversed(columns):
        values = column if order is None else column.take(pa.array(order))
        direction = "descending" if descending else "ascending"
        step = pc.array_sort_indices(values, order=direction, null_placement=nulls).to_numpy()
        order = step if order is None else order[step]
    assert order is not None
    return order


def _comparable(column: pa.Array, kind: Type) -> pa.Array:
    """The column with values that can be keys."""
    if kind is Type.TIMESTAMP:
        return column.view(pa.int64())
    if kind is Type.DATE:
        return column.view(pa.int32())
    if kind is not Type.DOUBLE:
        return column
    values = (column.fill_null(0.0) if column.null_count else column).to_numpy() + 0.0
    values[np.isnan(values)] = np.nan
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(values.view(np.int64), mask=mask)


def _count_off(values: list[RowKey]) -> tuple[list[RowKey], np.ndarray]:
    places: dict[RowKey, int] = {}
    codes = [places.setdefault(value, len(places)) for value in values]
    return list(places), np.array(codes, np.intp)


def _encode_column(column: pa.Array) -> tuple[list[RowKey], np.ndarray]:
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.intp)
