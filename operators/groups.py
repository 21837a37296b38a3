"""The groups of one pane: key -> accumulators, in numpy columns, with layers like all state (see operators.state)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from operators.accumulator_slots import AccumulatorColumns, AccumulatorSlot
from operators.accumulators import Accumulator
from operators.encoding import decode_batch, encode_batch
from operators.keys import Keys, RowKey

_FIRST_CAPACITY = 16


@dataclass(frozen=True)
class GroupLayout:
    """The columns of a group: its key, then the columns of each accumulator."""

    keys: Keys
    """The key columns."""
    accumulators: tuple[Accumulator, ...]
    """The accumulators, in the order of the output's columns."""

    @property
    def slots(self) -> tuple[AccumulatorSlot, ...]:
        """The types of all accumulators' columns, in order."""
        return tuple(slot for entry in self.accumulators for slot in entry.slots)

    def shares(self, columns: AccumulatorColumns) -> list[AccumulatorColumns]:
        """The columns of each accumulator."""
        shares, place = [], 0
        for entry in self.accumulators:
            shares.append(columns[place : place + len(entry.slots)])
            place += len(entry.slots)
        return shares

    @property
    def arrow(self) -> pa.Schema:
        """Schema of the encoded groups."""
        kinds = [*self.keys.storage, *(slot.arrow for slot in self.slots)]
        return pa.schema([(str(place), kind) for place, kind in enumerate(kinds)])


class Groups:
    """A layer of groups. Its own rows hide the parent's rows with the same keys."""

    __slots__ = ("columns", "layout", "parent", "places", "slots")

    def __init__(self, layout: GroupLayout, parent: Groups | None = None) -> None:
        self.layout = layout
        self.parent = parent
        self.slots: tuple[AccumulatorSlot, ...] = layout.slots if parent is None else parent.slots
        self.places: dict[RowKey, int] = {}
        self.columns: AccumulatorColumns = [np.empty(0, slot.dtype) for slot in self.slots]

    def fold(self, distinct: list[RowKey], codes: np.ndarray, arguments: Sequence[tuple[np.ndarray | None, Any]]) -> None:
        """Add rows. codes: index of each row's key in `distinct`. arguments: the result of `prepare` for each accumulator."""
        rows = self.touch(distinct)
        held = [column[rows] for column in self.columns]
        shares = self.layout.shares(held)
        for entry, share, (kept, values) in zip(self.layout.accumulators, shares, arguments, strict=True):
            entry.fold(share, codes if kept is None else codes[kept], values)
        for column, changed in zip(self.columns, held, strict=True):
            column[rows] = changed

    def combine(self, later: Groups) -> None:
        """Add the groups of a later pane."""
        keys, columns = later.content()
        rows = self.touch(keys)
        mine, theirs = self.layout.shares(self.columns), self.layout.shares(columns)
        for entry, share, other in zip(self.layout.accumulators, mine, theirs, strict=True):
            entry.combine(share, rows, other)

    def touch(self, keys: list[RowKey]) -> np.ndarray:
        """The rows of these keys in this layer; absent ones are created, or copied from the parent."""
        rows = list(map(self.places.get, keys))
        if None in rows:
            missing = [key for key, row in zip(keys, rows, strict=True) if row is None]
            self._add(missing)
            rows = list(map(self.places.__getitem__, keys))
        return np.array(rows, np.intp)

    def _add(self, keys: list[RowKey]) -> None:
        begin = len(self.places)
        end = begin + len(keys)
        self.places.update(zip(keys, range(begin, end), strict=True))
        if end > (len(self.columns[0]) if self.columns else 0):
            self._grow(begin, max(2 * end, _FIRST_CAPACITY))
        for slot, column in zip(self.slots, self.columns, strict=True):
            column[begin:end] = slot.fresh(len(keys))
        self._copy_from_below(keys)

    def _grow(self, used: int, capacity: int) -> None:
        for place, column in enumerate(self.columns):
            larger = np.empty(capacity, column.dtype)
            larger[:used] = column[:used]
            self.columns[place] = larger

    def _copy_from_below(self, keys: list[RowKey]) -> None:
        below = self.parent
        while below is not None and keys:
            found = [key for key in keys if key in below.places]
            if found:
                source = np.array([below.places[key] for key in found], np.intp)
                target = np.array([self.places[key] for key in found], np.intp)
                for slot, mine, theirs in zip(self.slots, self.columns, below.columns, strict=True):
                    mine[target] = [keys.overlay() for keys in theirs[source]] if slot.layered else theirs[source]
                keys = [key for key in keys if key not in below.places]
            below = below.parent

    def content(self) -> tuple[list[RowKey], AccumulatorColumns]:
        """(keys in order of arrival, columns with one row per key), over all layers."""
        size = len(self.places)
        mine = [column[:size] for column in self.columns]
        if self.parent is None:
            return list(self.places), mine
        keys, columns = self.parent.content()
        places = {key: place for place, key in enumerate(keys)}
        hidden = [(places[key], row) for key, row in self.places.items() if key in places]
        new = [(key, row) for key, row in self.places.items() if key not in places]
        replaced, by = [place for place, _ in hidden], [row for _, row in hidden]
        merged = []
        for below, above in zip(columns, mine, strict=True):
            column = np.concatenate((below, above[[row for _, row in new]]))
            column[replaced] = above[by]
            merged.append(column)
        return keys + [key for key, _ in new], merged

    def overlay(self) -> Groups:
        return Groups(self.layout, self)

    def absorb(self, child: Groups) -> None:
        """Overwrite rows with the child's; key sets are absorbed, but for those that the child has begun."""
        keys = list(child.places)
        rows = self.touch(keys)
        for slot, mine, theirs in zip(self.slots, self.columns, child.columns, strict=True):
            if slot.layered:
                for row, keyset in zip(rows.tolist(), theirs[: len(keys)], strict=True):
                    if keyset.parent is None:
                        mine[row] = keyset
                    else:
                        mine[row].absorb(keyset)
            else:
                mine[rows] = theirs[: len(keys)]

    def nbytes(self) -> int:
        total = len(self.places) * (120 + 8 * len(self.slots))
        for slot, column in zip(self.slots, self.columns, strict=True):
            if slot.layered:
                total += sum(keyset.nbytes() for keyset in column[: len(self.places)])
            elif slot.arrow == pa.binary():
                total += sum(map(len, column[: len(self.places)]))
        return total

    def encode(self) -> bytes:
        keys, columns = self.content()
        arrays = self.layout.keys.stored(keys)
        arrays += [slot.to_arrow(column) for slot, column in zip(self.slots, columns, strict=True)]
        return encode_batch(pa.RecordBatch.from_arrays(arrays, schema=self.layout.arrow))

    @staticmethod
    def decode(layout: GroupLayout, blob: bytes) -> Groups:
        batch = decode_batch(blob, layout.arrow)
        width = len(layout.keys.types)
        groups = Groups(layout)
        keys = layout.keys.restored(batch.columns[:width], batch.num_rows)
        groups.places = {key: place for place, key in enumerate(keys)}
        groups.columns = [
            slot.from_arrow(array) for slot, array in zip(groups.slots, batch.columns[width:], strict=True)
        ]
        return groups
