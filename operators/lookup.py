"""The lookup: each row of a stream with the newest row of another one, as of its event time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from operators.accumulators import last_rows
from operators.encoding import decode_batch, encode_batch, pack, unpack
from operators.join import attribute_positions, joined_schema
from operators.keys import Keys, RowKey
from operators.state import append_chunk

_SLACK = 4096
"""A layer is cleared of rows that count no more when it has this many rows more than twice those that it kept the last time."""


class NewestRows:
    """The newest right row of each key; with layers. A layer's rows are in the order in which they came, in chunks."""

    __slots__ = ("chunks", "kept", "lookup", "parent", "places", "rows", "upto")

    def __init__(self, lookup: LookupOperator, upto: int, parent: NewestRows | None = None) -> None:
        self.lookup = lookup
        self.upto = upto
        self.parent = parent
        self.chunks: tuple[pa.RecordBatch, ...] = ()
        self.places: dict[RowKey, int] = {}
        """Of the rows that no newer one has replaced, by key. In an overlay also of rows that delete: they hide those below."""
        self.rows = 0
        self.kept = 0

    @property
    def layers(self) -> list[NewestRows]:
        """This one, and those below it."""
        return [self, *([] if self.parent is None else self.parent.layers)]

    def add(self, rows: pa.RecordBatch, keys: Sequence[RowKey]) -> None:
        """Rows, not older than those before, each with a key of its own."""
        if self.parent is None and (gone := self.lookup.deletes(rows)).any():
            # No row to come is older than these, so nothing needs to be kept of them.
            for place in np.flatnonzero(gone).tolist():
                self.places.pop(keys[place], None)
            kept = np.flatnonzero(~gone)
            rows, keys = rows.take(pa.array(kept)), [keys[place] for place in kept.tolist()]
        self.places.update(zip(keys, range(self.rows, self.rows + rows.num_rows), strict=True))
        self.chunks = append_chunk(self.chunks, rows)
        self.rows += rows.num_rows

    def clear_away(self) -> None:
        """Drop the rows that count no more, once they are the majority."""
        if self.rows <= 2 * self.kept + _SLACK:
            return
        rows, keys = self.own()
        self.chunks, self.places, self.rows = (), {}, 0
        if keys:
            self.add(rows, keys)
        self.kept = self.rows

    def own(self) -> tuple[pa.RecordBatch, list[RowKey]]:
        """(this layer's rows that still count, their keys), in the order in which they came."""
        places = np.array(sorted(self.places.values()), np.intp)
        keys = {place: key for key, place in self.places.items()}
        rows = pa.concat_batches([self.lookup.no_rows, *self.chunks]).take(pa.array(places))
        if self.parent is None:  # an overlay's row hides the one below, though it may be too old itself
            counts = event_times(rows) >= self.lookup.oldest(self.upto)
            places, rows = places[counts], rows.filter(pa.array(counts))
        return rows, [keys[place] for place in places.tolist()]

    def content(self) -> tuple[pa.RecordBatch, list[RowKey]]:
        """As `own`, of all layers."""
        rows, keys = self.own()
        if self.parent is None:
            return rows, keys
        below, names = self.parent.content()
        shown = np.array([name not in self.places for name in names], bool)
        seen = [name for name, is_shown in zip(names, shown, strict=True) if is_shown]
        return pa.concat_batches([below.filter(pa.array(shown)), rows]), seen + keys

    def overlay(self) -> NewestRows:
        return NewestRows(self.lookup, self.upto, self)

    def absorb(self, child: NewestRows) -> None:
        self.upto = child.upto
        rows, keys = child.own()
        if keys:
            self.add(rows, keys)
        self.clear_away()

    def encode(self) -> bytes:
        return self.lookup.encode(self)

    def nbytes(self) -> int:
        return self.rows * self.lookup.row_bytes


class LookupOperator:
    """Output rows are the left ones, in their order, each with the columns of one right row: the newest with equal `on` whose
    time is not after the left row's; of several of one time the last. Columns are named as in a join; nulls in `on` match
    nothing.

    within_us: the right row may be older than the left one by this at most; None: by any time. deleted: the right rows' bool
    column that is true in rows that delete their key, which then has no row until the next one; no column of the result. A left
    row that finds none has nulls (left) or is left out (inner). The right rows' windows are dropped, and the left rows' kept.
    """

    def __init__(
        self,
        name: str,
        input_schemas: tuple[Schema, Schema],
        on: tuple[str, ...],
        within_us: int | None,
        how: Literal["inner", "left"],
        deleted: str | None = None,
    ) -> None:
        left, right = input_schemas
        unseen = on if deleted is None else (*on, deleted)
        field = f"operators.{name}.on"
        self.name = name
        self.within = within_us
        self.outer = how == "left"
        self.schema = Schema(joined_schema(left, right, unseen).columns, windowed=left.windowed)
        self.row_bytes = 160 + 24 * len(right.columns)
        self.no_rows = right.empty()
        self._keys = Keys.of(left, on, field), Keys.of(right, on, field)
        self._right_columns = attribute_positions(right, unseen)
        self._arrow = self.schema.arrow
        self._deleted = None if deleted is None else right.arrow.get_field_index(deleted)
        self._kind = f"lookup {how} {within_us} {on} {input_schemas}" + ("" if deleted is None else f" deleted {deleted}")

    def empty(self) -> NewestRows:
        return NewestRows(self, -INFINITY)

    def oldest(self, time: int) -> int:
        """The time from which on right rows count for left rows at `time`."""
        return -INFINITY if self.within is None else max(time - self.within, -INFINITY)

    def deletes(self, rows: pa.RecordBatch) -> np.ndarray:
        """Which right rows (bool) delete the row of their key."""
        if self._deleted is None:
            return np.zeros(rows.num_rows, bool)
        gone: np.ndarray = rows.column(self._deleted).fill_null(False).to_numpy(zero_copy_only=False)
        return gone

    def encode(self, state: NewestRows) -> bytes:
        rows, _ = state.content()
        rows = rows.filter(pa.array((event_times(rows) >= self.oldest(state.upto)) & ~self.deletes(rows)))
        return pack(self._kind, {"upto": state.upto}, [encode_batch(rows)])

    def decode(self, blob: bytes) -> NewestRows:
        facts, parts = unpack(blob, self._kind)
        upto = facts["upto"]
        if not isinstance(upto, int) or len(parts) != 1:
            raise CorruptError("the lookup's state is inconsistent")
        rows = decode_batch(parts[0], self.no_rows.schema)
        state = NewestRows(self, upto)
        if rows.num_rows:
            keys, codes = self._keys[1].encode(rows)
            state.add(rows, [keys[code] for code in codes])
        state.kept = state.rows
        return state

    def step(self, state: NewestRows, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        left, right = batches
        keys, codes = self._keys[1].without_nulls(*self._keys[1].encode(right))
        result = self._joined(state, left, right, keys, codes) if left.num_rows else self.schema.empty()
        state.upto = upto
        if keys:
            known = np.flatnonzero(codes >= 0)
            lasts = np.sort(known[last_rows(codes[known], len(keys))])
            state.add(right.take(pa.array(lasts)), [keys[code] for code in codes[lasts]])
            state.clear_away()
        return result

    def needs(self, time: int) -> int:
        return self.oldest(time)

    def _joined(
        self, state: NewestRows, left: pa.RecordBatch, right: pa.RecordBatch, keys: Sequence[RowKey], codes: np.ndarray
    ) -> pa.RecordBatch:
        """The result. keys, codes: those of the right batch, without nulls."""
        layers = state.layers
        pieces = [*(chunk for layer in layers for chunk in layer.chunks), right]
        begins = np.cumsum([0, *(piece.num_rows for piece in pieces)])
        places = self._places(layers, left, right, keys, codes)
        rows = np.flatnonzero(places >= 0)
        of_piece = np.searchsorted(begins, places[rows], "right") - 1
        order = np.argsort(of_piece, kind="stable")
        parts = [self.no_rows]
        for number in np.unique(of_piece).tolist():
            parts.append(pieces[number].take(pa.array(places[rows[of_piece == number]] - begins[number])))
        partners = np.full(left.num_rows, -1)
        partners[rows[order]] = np.arange(len(rows))
        found = pa.concat_batches(parts)
        if self.within is not None:
            is_old = event_times(left)[rows[order]] - event_times(found) > self.within
            partners[rows[order[is_old]]] = -1
        if self._deleted is not None:
            partners[rows[order[self.deletes(found)]]] = -1
        if not self.outer:
            matched = np.flatnonzero(partners >= 0)
            left, partners = left.take(pa.array(matched)), partners[matched]
        chosen = pa.array(partners, mask=partners < 0)
        columns = [found.column(place).take(chosen) for place in self._right_columns]
        return pa.RecordBatch.from_arrays([*left.columns, *columns], schema=self._arrow)

    def _places(
        self,
        layers: Sequence[NewestRows],
        left: pa.RecordBatch,
        right: pa.RecordBatch,
        keys: Sequence[RowKey],
        codes: np.ndarray,
    ) -> np.ndarray:
        """Of each left row the place of its right row among the layers' rows, one layer after the other, and the right batch's
        after them; -1 if there is none."""
        wanted, left_codes = self._keys[0].without_nulls(*self._keys[0].encode(left))
        begins = np.cumsum([0, *(layer.rows for layer in layers)]).tolist()
        kept = [-1] * (len(wanted) + 1)  # the last one is that of the code -1
        for number, key in enumerate(wanted):
            for begin, layer in zip(begins, layers, strict=False):
                place = layer.places.get(key)
                if place is not None:
                    kept[number] = begin + place
                    break
        places: np.ndarray = np.array(kept)[left_codes]
        if not keys:
            return places
        # The last row of this batch that has the key and is not later. Key and row make one number; these are sorted.
        count, numbers = len(codes), {key: number for number, key in enumerate(keys)}
        known = np.array([*(numbers.get(key, -1) for key in wanted), -1])[left_codes]
        sorted_rows = np.sort(codes * count + np.arange(count))
        not_later = np.searchsorted(event_times(right), event_times(left), "right")
        last = np.searchsorted(sorted_rows, known * count + not_later) - 1
        here = sorted_rows[np.maximum(last, 0)]
        is_here = (known >= 0) & (last >= 0) & (here // count == known)
        return np.where(is_here, begins[-1] + here % count, places)
