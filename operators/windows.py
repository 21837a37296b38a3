"""Windows in event time, aligned to the Unix epoch, and the panes that they share.

A pane is the largest span without a window's edge inside: its length is the greatest common divisor of the windows' size and
step. Rows are accumulated per pane, and windows consist of whole panes. A tumbling window is one pane.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from operators.state import NEVER, P, Panes

_EVER = 0
"""The only pane of state without windows."""


@dataclass(frozen=True)
class Windows:
    """The windows [k * every, k * every + size) for every integer k."""

    size: int
    """Length of a window (us)."""
    every: int
    """Distance between the starts of two windows (us); at most `size`."""

    def __post_init__(self) -> None:
        assert 0 < self.every <= self.size, "rows would fall between windows"

    @property
    def pane(self) -> int:
        """Length of a pane (us)."""
        return gcd(self.size, self.every)

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, int, int]]:
        """(pane, first row, row after the last) for each pane with rows in the batch. batch: ordered by time."""
        times = event_times(batch)
        first, last = int(times[0]) // self.pane, int(times[-1]) // self.pane
        if first == last:
            return [(first, 0, len(times))]
        panes = times // self.pane
        cuts = np.flatnonzero(panes[1:] != panes[:-1]) + 1
        begins = [0, *cuts.tolist()]
        return list(zip(panes[begins].tolist(), begins, [*begins[1:], len(times)], strict=True))

    def whole(self, state: Panes[P], batch: pa.RecordBatch, upto: int) -> tuple[int, int]:
        """The range [begin, end) of rows in tumbling windows that have no rows yet and close by `upto`: they can be computed
        without state. (0, 0) if there are too few to be worth it."""
        times = event_times(batch)
        if self.size != self.every or int(times[-1]) - int(times[0]) < 2 * self.size:
            return 0, 0
        first = int(times[0]) // self.size
        first += first in state.panes
        begin, end = np.searchsorted(times, (first * self.size, upto // self.size * self.size)).tolist()
        return (begin, end) if begin < end else (0, 0)

    def first_start(self, after: int) -> int:
        """The start of the earliest window that ends after `after`."""
        return ((after - self.size) // self.every + 1) * self.every

    def ends(self, pane: int, after: int, upto: int) -> range:
        """The ends in (after, upto] of the windows that contain the pane."""
        begin = pane * self.pane
        first = max(-((self.size - self.pane - begin) // self.every) * self.every, self.first_start(after))
        last = min(begin // self.every * self.every, upto - self.size)
        return range(first + self.size, last + self.size + 1, self.every)

    def last_end(self, pane: int) -> int:
        """The end of the last window that contains the pane."""
        return pane * self.pane // self.every * self.every + self.size

    def panes(self, end: int) -> range:
        """The panes of the window that ends at `end`, in order."""
        return range((end - self.size) // self.pane, end // self.pane)

    def open(self, state: Panes[P], pane: int) -> None:
        """The pane is about to get rows, so its windows will have to close."""
        if pane not in state.panes:
            state.next_close = min(state.next_close, self.ends(pane, state.upto, self.last_end(pane))[0])

    def close(self, state: Panes[P], upto: int) -> list[tuple[int, list[P]]]:
        """(end, panes) of each window with rows that ends in (last upto, upto], in order. Drops panes without later windows."""
        ends = sorted({end for pane in state.panes for end in self.ends(pane, state.upto, upto)})
        closed = [(end, [state.panes[pane] for pane in self.panes(end) if pane in state.panes]) for end in ends]
        for pane in [pane for pane in state.panes if self.last_end(pane) <= upto]:
            state.drop(pane)
        state.upto = upto
        self.restore(state)
        return closed

    def restore(self, state: Panes[P]) -> None:
        """Recompute `next_close`."""
        state.next_close = min(
            (self.ends(pane, state.upto, self.last_end(pane))[0] for pane in state.panes), default=NEVER
        )


def open_panes(windows: Windows | None, state: Panes[P], batch: pa.RecordBatch) -> list[tuple[int, int, int]]:
    """As `Windows.split`, with all these panes open; without windows there is one pane. batch: ordered by time, not empty."""
    if windows is None:
        return [(_EVER, 0, batch.num_rows)]
    parts = windows.split(batch)
    for pane, _, _ in parts:
        windows.open(state, pane)
    return parts
