"""One side of a join: the rows that may still find partners, in chunks with an index by key.

Chunks are merged as they grow, so that there are few. A state and its overlays share chunks. Only a chunk's flags change, and
only the side that owns it changes them. Rows are ordered by time and numbered consecutively, so a chunk's dead rows are its
first ones. Keys have numbers (codes), from one `Numbering` for both sides. The code -1 stands for a key with a null, which
matches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from operators.keys import RowKey

_SMALL = 512
"""A chunk with fewer rows is always merged with the next one."""

_LARGE = 1 << 17
"""Merged chunks have at most this many rows, so that no single step copies a whole buffer."""

_LOOSE_BATCHES = 32
"""A chunk may hold this many batches before they are concatenated."""


class Numbering:
    """Numbers for keys, from 0; layered (see operators.state)."""

    __slots__ = ("begin", "own", "parent")

    def __init__(self, parent: Numbering | None = None) -> None:
        self.own: dict[RowKey, int] = {}
        self.parent = parent
        self.begin = 0 if parent is None else len(parent)

    def __len__(self) -> int:
        return self.begin + len(self.own)

    def codes(self, keys: Sequence[RowKey], places: np.ndarray) -> np.ndarray:
        """The code of each row; its key is keys[place]. A place of -1 stays -1. places: one per row."""
        numbers = list(map(self.own.get, keys))
        if None in numbers:
            for place, number in enumerate(numbers):
                if number is None:
                    numbers[place] = self._number(keys[place])
        numbers.append(-1)
        codes: np.ndarray = np.array(numbers, np.intp)[places]
        return codes

    def _number(self, key: RowKey) -> int:
        below = None if self.parent is None else self.parent.find(key)
        return self.own.setdefault(key, len(self)) if below is None else below

    def find(self, key: RowKey) -> int | None:
        """The number of a key; None if it has none."""
        number = self.own.get(key)
        return self.parent.find(key) if number is None and self.parent is not None else number

    def absorb(self, child: Numbering) -> None:
        self.own.update(child.own)


class RowChunk:
    """Consecutive rows of one side. first: number of the first row. matched (bool): which rows have found a partner. owner: the
    side that may change `matched`."""

    __slots__ = ("_batches", "_begins", "_order", "_places", "codes", "first", "matched", "owner", "times")

    def __init__(
        self,
        batches: list[pa.RecordBatch],
        times: np.ndarray,
        codes: np.ndarray,
        matched: np.ndarray,
        first: int,
        owner: Side,
    ) -> None:
        self._batches = batches
        self._places: np.ndarray | None = None
        self._order: np.ndarray | None = None
        self._begins: np.ndarray | None = None
        self.times = times
        self.codes = codes
        self.matched = matched
        self.first = first
        self.owner = owner

    def __len__(self) -> int:
        return len(self.times)

    @property
    def rows(self) -> pa.RecordBatch:
        """All rows as one batch."""
        if len(self._batches) > 1:
            self._batches = [pa.concat_batches(self._batches)]
        return self._batches[0]

    def find(self, codes: np.ndarray, times: np.ndarray, within: int) -> tuple[np.ndarray, np.ndarray]:
        """All pairs (row of the probe, row here) with equal codes and times at most `within` apart. times: ascending."""
        if self._order is None or self._places is None:
            self._order, self._places = self._sort()
        near = self.times[0] >= times[-1] - within and self.times[-1] <= times[0] + within
        if near and self._begins is not None:
            probes = np.flatnonzero((codes >= 0) & (codes < len(self._begins) - 1))
            known = codes[probes]
            begin, end = self._begins[known], self._begins[known + 1]
        else:
            # Look-ups in ascending order use the processor's cache well.
            probes = _by_code(codes)[1]
            probes = probes[codes[probes] >= 0]
            low, high = self._near_rows(times[probes], within)
            base = codes[probes] * len(self)
            begin, end = np.searchsorted(self._places, base + low), np.searchsorted(self._places, base + high)
        counts = end - begin
        ahead = np.cumsum(counts)
        total = int(ahead[-1]) if len(ahead) else 0
        if not total:
            return _NO_ROWS, _NO_ROWS
        rows = self._order[np.repeat(begin - ahead + counts, counts) + np.arange(total)]
        return np.repeat(probes, counts), rows

    def _near_rows(self, times: np.ndarray, within: int) -> tuple[np.ndarray, np.ndarray]:
        """For each time, the range [low, high) of rows that are at most `within` apart."""
        low = np.searchsorted(self.times, times - within, "left")
        return low, np.searchsorted(self.times, times + within, "right")

    def _sort(self) -> tuple[np.ndarray, np.ndarray]:
        codes = int(self.codes.max()) + 1
        if codes <= 8 * len(self) + 1024:
            self._begins = np.cumsum(np.bincount(self.codes + 1, minlength=codes + 1))
        places, order = _by_code(self.codes)
        return order, places

    def owned_by(self, side: Side) -> RowChunk:
        """This chunk if the side owns it, otherwise a copy that the side owns."""
        return self if self.owner is side else self.recoded(self.codes, side)

    def recoded(self, codes: np.ndarray, side: Side) -> RowChunk:
        """A copy with other codes, owned by a side."""
        return RowChunk(self._batches, self.times, codes, self.matched.copy(), self.first, side)

    def since(self, time: int) -> tuple[list[pa.RecordBatch], int]:
        """(the rows with a time >= `time`, the number of rows before them)."""
        dead = int(np.searchsorted(self.times, time, "left"))
        return ([self.rows.slice(dead)] if dead else self._batches), dead

    def joined(self, later: RowChunk, alive: int) -> RowChunk:
        """This chunk's rows since `alive`, followed by the later chunk's, as a chunk with the later one's owner."""
        batches, dead = self.since(alive)
        batches = [*batches, *later._batches]
        return RowChunk(
            batches if len(batches) < _LOOSE_BATCHES else [pa.concat_batches(batches)],
            np.concatenate((self.times[dead:], later.times)),
            np.concatenate((self.codes[dead:], later.codes)),
            np.concatenate((self.matched[dead:], later.matched)),
            self.first + dead,
            later.owner,
        )


_NO_ROWS = np.empty(0, np.intp)


def _by_code(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(code * rows + row in ascending order, the rows in that order): by code, then by row.

    Sorting numbers that combine both is many times faster than a stable sort of the codes.
    """
    places = np.sort(codes * len(codes) + np.arange(len(codes)))
    return places, places % len(codes)


class Side:
    """The chunks of one input, the oldest first. Rows before `alive` are dead, and are removed when it is cheap."""

    __slots__ = ("alive", "chunks", "next")

    def __init__(self, alive: int) -> None:
        self.chunks: list[RowChunk] = []
        self.next = 0
        self.alive = alive

    def append(self, batch: pa.RecordBatch, codes: np.ndarray, matched: np.ndarray) -> None:
        """Add rows that are not older than the last row."""
        chunk = RowChunk([batch], event_times(batch), codes, matched, self.next, self)
        self.next += len(chunk)
        while self.chunks and self._belong_together(self.chunks[-1], chunk):
            chunk = self.chunks.pop().joined(chunk, self.alive)
        self.chunks.append(chunk)

    def _belong_together(self, earlier: RowChunk, later: RowChunk) -> bool:
        size = len(earlier)
        return size < _SMALL or (size < 2 * len(later) and size + len(later) <= _LARGE)

    def mark(self, place: int, rows: np.ndarray) -> None:
        """These rows of a chunk have found partners. place: index of the chunk."""
        self.chunks[place] = self.chunks[place].owned_by(self)
        self.chunks[place].matched[rows] = True

    def recode(self, codes: np.ndarray) -> None:
        """Replace each row's code c by codes[c]. The last element of `codes` is -1, so -1 stays -1."""
        self.chunks = [chunk.recoded(codes[chunk.codes], self) for chunk in self.chunks]

    def bury(self, alive: int) -> None:
        """Rows before this time are no longer needed."""
        self.alive = max(self.alive, alive)
        while self.chunks and self.chunks[0].times[-1] < self.alive:
            del self.chunks[0]

    def living(self, schema: pa.Schema) -> tuple[pa.RecordBatch, np.ndarray]:
        """(all rows that are alive, mask of the matched ones)."""
        batches: list[pa.RecordBatch] = []
        flags = [np.zeros(0, bool)]
        for chunk in self.chunks:
            rows, dead = chunk.since(self.alive)
            batches += rows
            flags.append(chunk.matched[dead:])
        whole = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=schema)
        return whole, np.concatenate(flags)

    def overlay(self) -> Side:
        child = Side(self.alive)
        child.chunks, child.next = list(self.chunks), self.next
        return child

    def absorb(self, child: Side) -> None:
        for chunk in child.chunks:
            if chunk.owner is child:
                chunk.owner = self
        self.chunks, self.next, self.alive = child.chunks, child.next, child.alive

    @property
    def own_rows(self) -> int:
        """Number of rows in chunks that this side owns."""
        return sum(len(chunk) for chunk in self.chunks if chunk.owner is self)

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)
