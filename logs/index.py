"""The index of a log's frames: where the stable rows are, which frames are revoked, and the anchors.

Logs in memory and in files keep one for all frames, a log in Kafka for its newest frames. Each frame, or its head, is added
once, in order. A stable frame that only repeats known rows is not indexed, since the first copy is used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import assert_never

from boreal.model.codec import DataHead, Head
from boreal.model.errors import ProtocolError
from boreal.model.frames import Anchor, Boundary, Data, Frame, LogId, RecDone, Start, Undo
from logs.log import ControlFrame, TrimmedError

IDLE_FRAMES = 4_096
"""Number of frames that are kept of a log whose rows are all released. It is some minutes' worth, so that a reader of an idle
log that is slow, or was cut off, rarely finds its position trimmed."""


class Index:
    """The index of a log's retained frames. `Log` documents the contract of each method.

    start, next_stable_id and incarnation: of the log before the first frame that is added.
    """

    def __init__(self, log: LogId, start: int = 0, next_stable_id: int = 0, incarnation: int = 0) -> None:
        self.log = log
        self.start = start
        self.end = start
        self.next_stable_id = next_stable_id
        self.incarnation = incarnation
        self.anchor: Anchor | None = None
        self.tail: ControlFrame | None = None
        self._anchor_offset = self._tail_offset = start
        # One entry per stable frame, by rising offset: its first new row, its last row, its offset. Entries before
        # _forgotten are trimmed. They are removed once they are the majority, so that a trim costs what it removes.
        self._first_ids: list[int] = []
        self._last_ids: list[int] = []
        self._offsets: list[int] = []
        self._forgotten = 0
        # The tentative suffix: offset and first id of DATA; a BOUNDARY has no id, and any UNDO revokes it.
        self._tentative: list[tuple[int, int | None]] = []
        # Offsets of revoked and fenced frames; used for membership tests only.
        self._hidden: set[int] = set()

    def add(self, frame: Frame | Head) -> int:
        """Add the next frame; returns its offset."""
        offset = self.end
        self.end += 1
        incarnation = frame.origin.incarnation
        if incarnation < self.incarnation or (isinstance(frame, Start) and incarnation == self.incarnation):
            self._hidden.add(offset)
            return offset
        match frame:
            case Data():
                self._add_data(offset, frame.first_id, frame.batch.num_rows, frame.tentative)
            case DataHead():
                self._add_data(offset, frame.first_id, frame.rows, frame.tentative)
            case Boundary() | Undo() | RecDone() | Start():
                self._add_control(offset, frame)
            case _:
                assert_never(frame)
        return offset

    def _add_data(self, offset: int, first_id: int, rows: int, tentative: bool) -> None:
        if tentative:
            self._tentative.append((offset, first_id))
        elif first_id + rows > self.next_stable_id:
            self._first_ids.append(first_id)
            self._last_ids.append(first_id + rows - 1)
            self._offsets.append(offset)
            self.next_stable_id = first_id + rows

    def _add_control(self, offset: int, frame: ControlFrame) -> None:
        self.tail, self._tail_offset = frame, offset
        match frame:
            case Boundary(tentative=True):
                self._tentative.append((offset, None))
            case Boundary(anchor=anchor) if anchor is not None:
                self.anchor, self._anchor_offset = anchor, offset
            case Undo(last_id=last_id):
                self._revoke(last_id)
            case Start():
                self.incarnation = frame.origin.incarnation
                self._revoke(-1)

    def _revoke(self, last_id: int) -> None:
        kept: list[tuple[int, int | None]] = []
        for offset, first_id in self._tentative:
            if first_id is None or first_id > last_id:
                self._hidden.add(offset)
            else:
                kept.append((offset, first_id))
        self._tentative = kept

    def offsets_from(self, offset: int, skip_revoked: bool) -> Iterable[int]:
        """The offsets that a read from `offset` returns, in order. Raises as `Log.read`."""
        if offset < self.start:
            raise TrimmedError(self.log, offset, self.start)
        if offset > self.end:
            raise ProtocolError(f"{self.log} ends at offset {self.end}, but offset {offset} was requested")
        offsets = range(offset, self.end)
        return (place for place in offsets if place not in self._hidden) if skip_revoked else offsets

    def offset_after(self, stable_id: int) -> int:
        """As `Log.offset_after`."""
        entry = bisect_right(self._last_ids, stable_id, self._forgotten)
        if entry < len(self._offsets):
            if self._first_ids[entry] <= stable_id + 1:
                return self._offsets[entry]
            raise TrimmedError(self.log, self._offsets[entry] - 1, self.start)
        if stable_id + 1 < self.next_stable_id:
            raise TrimmedError(self.log, self.start - 1, self.start)
        return self._offsets[-1] + 1 if self._forgotten < entry else self.start

    def trim_limit(self, stable_id: int) -> int:
        """The highest offset at which the log may begin after `Log.trim`."""
        entry = bisect_right(self._last_ids, stable_id, self._forgotten)
        limit = self._offsets[entry - 1] + 1 if entry > self._forgotten else self.start
        if stable_id + 1 >= self.next_stable_id:
            limit = max(limit, self.end - IDLE_FRAMES)
        kept = [offset for offset, _ in self._tentative[:1]]
        if self.anchor is not None:
            kept.append(self._anchor_offset)
        elif self.tail is not None:
            kept.append(self._tail_offset)
        return min([limit, *kept])

    def forget(self, start: int) -> None:
        """Remove the frames before `start`, where the log now begins."""
        self._hidden.difference_update(range(self.start, start))
        self.start = start
        self._forgotten = bisect_left(self._offsets, start, self._forgotten)
        if 2 * self._forgotten > len(self._offsets):
            for entries in (self._first_ids, self._last_ids, self._offsets):
                del entries[: self._forgotten]
            self._forgotten = 0
