"""The interface of logs: the frames of one (stream, partition, replica) at rising offsets, and where to begin reading.

A log stores whatever its single writer appends; the reader interprets the frames. Only `offset_after`, `skip_revoked`,
`trim` and the recovery helpers apply the rules of R3, R23 and R25: they ignore frames with an incarnation below the last
START's, and a START that does not raise the incarnation. `read` without `skip_revoked` returns those frames too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from boreal.model.errors import BorealError
from boreal.model.frames import Anchor, Boundary, Frame, LogId, RecDone, Start, Undo

ControlFrame = Boundary | Undo | RecDone | Start
"""Every kind of frame except DATA."""


@dataclass
class TrimmedError(BorealError):
    """The requested frames or rows are trimmed, or the rows were never in the log. The reader has to continue from an anchor
    (R26, R27)."""

    log: LogId
    """The log that was read."""
    offset: int
    """The requested offset; for rows, the last offset before the rows that the log still has."""
    start: int
    """The first retained offset."""

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.log} is trimmed: the log now begins at {self.start}"


class Log(Protocol):
    """One log, with a single writer. Offsets are contiguous from 0, one per frame. Trimming and reopening keep them."""

    @property
    def id(self) -> LogId:
        """Which log this is."""
        ...

    @property
    def start(self) -> int:
        """The first retained offset."""
        ...

    @property
    def end(self) -> int:
        """The offset of the next frame."""
        ...

    @property
    def nbytes(self) -> int:
        """Approximate stored size of the retained frames, in bytes."""
        ...

    @property
    def next_stable_id(self) -> int:
        """The id of the next stable row: the highest id ever written plus one."""
        ...

    @property
    def last_incarnation(self) -> int:
        """The incarnation of the last START, 0 if there was none. A new writer takes the next number (R25)."""
        ...

    def append(self, frame: Frame) -> int:
        """Append a frame; returns its offset. If the frame cannot be written, an error is raised and the log is unchanged."""
        ...

    def sync(self) -> None:
        """Wait until all appended frames survive a crash of the machine, as far as this kind of log supports it."""
        ...

    def read(
        self, offset: int, max_frames: int, max_bytes: int | None = None, skip_revoked: bool = False
    ) -> list[tuple[int, Frame]]:
        """The frames from `offset` on, with their offsets, in order; none at the end of the log.

        max_bytes limits their size, measured as in `nbytes`, but at least one frame is returned. skip_revoked omits tentative
        DATA and BOUNDARY frames that a later UNDO or START in this log has revoked, and fenced frames (R23, R25); the UNDO or
        START itself is returned. TrimmedError if offset < start. ProtocolError if offset > end, for example if the log lost
        frames that this reader has seen.
        """
        ...

    def offset_after(self, stable_id: int) -> int:
        """The offset from which to read all stable rows with an id above `stable_id` (-1: all).

        This is the offset of the stable DATA frame with row stable_id + 1; the frame may also hold older rows. If there is no
        later row yet, it is the offset after the last stable DATA frame, so that the boundaries and tentative frames since
        then are read. TrimmedError if row stable_id + 1 is trimmed, or was skipped by the writer.
        """
        ...

    def trim(self, stable_id: int) -> None:
        """Allow the log to remove frames that hold only stable rows with ids up to `stable_id`, and all frames before them. If
        the log holds no later row, old control frames may be removed too (all but the last `index.IDLE_FRAMES` frames).

        Never removed: a frame with a later stable row, tentative frames that are not revoked, the last stable BOUNDARY with an
        anchor (without one, the last control frame), and all frames after these. A log may keep more than it must. The cost is
        proportional to what is removed.
        """
        ...

    def last_anchor(self) -> Anchor | None:
        """The anchor of the last stable BOUNDARY that has one (R26); None if there is none."""
        ...

    def tail(self) -> ControlFrame | None:
        """The newest control frame; None if there is none."""
        ...


class LogStore(Protocol):
    """A set of logs. Opening the same id twice returns the same log."""

    def open(self, log: LogId) -> Log:
        """The log with this id, created if absent. CorruptError if its stored frames are damaged."""
        ...

    def ids(self) -> list[LogId]:
        """The ids of all existing logs, sorted."""
        ...

    def close(self) -> None:
        """Close files and connections. The logs must not be used afterwards. Their frames are kept."""
        ...
