"""What every log offers: frames of one (stream, partition, replica) at rising offsets, and where in them to begin.

A log takes what its one writer appends, as it comes; what a frame means for a reader is the reader's business. Only
where a question is about meaning (`offset_after`, `skip_revoked`, `trim` and the recovery helpers) does a log hold the
rules of R3, R23 and R25: frames of an incarnation below the last START's, and a START that does not raise it, count as
never written there, although `read` without `skip_revoked` returns them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from boreal.model.errors import BorealError
from boreal.model.frames import Anchor, Boundary, Frame, LogId, RecDone, Start, Undo

ControlFrame = Boundary | Undo | RecDone | Start
"""Every kind of frame but DATA."""


@dataclass
class TrimmedError(BorealError):
    """What a reader asked for is no longer in the log, or (rows) never was: it has to go on from an anchor (R26, R27).

    offset: what was asked for; for rows, the last offset before those that the log still has. start: the first
    retained offset.
    """

    log: LogId
    offset: int
    start: int

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.log} is gone: the log now begins at {self.start}"


class Log(Protocol):
    """One log, with a single writer. Offsets are contiguous, from 0, one a frame; trimming and reopening keep them."""

    @property
    def id(self) -> LogId: ...

    @property
    def start(self) -> int:
        """The first retained offset."""
        ...

    @property
    def end(self) -> int:
        """The offset that the next frame will get."""
        ...

    @property
    def nbytes(self) -> int:
        """About how many bytes the retained frames take where they are kept."""
        ...

    @property
    def next_stable_id(self) -> int:
        """The id that the next stable row will have: one more than the highest ever written."""
        ...

    @property
    def last_incarnation(self) -> int:
        """The number of the last START, 0 if there was none: a new life takes the next (R25)."""
        ...

    def append(self, frame: Frame) -> int:
        """Add a frame; returns its offset. A frame that could not be written raises, and leaves the log as it was."""
        ...

    def sync(self) -> None:
        """Returns when all that was appended outlasts a crash of the machine, as far as this kind of log can."""
        ...

    def read(
        self, offset: int, max_frames: int, max_bytes: int | None = None, skip_revoked: bool = False
    ) -> list[tuple[int, Frame]]:
        """The frames at `offset` and after it, with their offsets, in order; none at the end of the log.

        max_bytes bounds their size as `nbytes` counts it, but one frame is returned however large it is. skip_revoked
        leaves out tentative DATA and BOUNDARY frames that a later UNDO or START in this log has revoked, and fenced
        frames (R23, R25); the UNDO or START itself is returned. Raises TrimmedError if offset < start; ProtocolError if
        offset > end, as when the log lost frames that this reader had seen.
        """
        ...

    def offset_after(self, stable_id: int) -> int:
        """Where to begin to read all stable rows with an id above `stable_id` (-1: all), and what comes after them.

        It is the offset of the stable DATA frame that holds row stable_id + 1 (which may hold older rows too); if no
        later row is here yet, the offset just after the last stable DATA frame, so that the boundaries and tentative
        frames since then come along. Raises TrimmedError if row stable_id + 1 is gone or was skipped by the writer.
        """
        ...

    def trim(self, stable_id: int) -> None:
        """Allow the log to forget frames that hold only stable rows with ids up to `stable_id`, and all before them; and
        where it holds no later row, control frames too that have long been followed by others (`index.IDLE_FRAMES`).

        Never forgotten are a frame with a later stable row, tentative frames that are not revoked, the last stable
        BOUNDARY with an anchor (without one, the last control frame) and all that follows. A log may keep more than it
        must. Costs what it forgets.
        """
        ...

    def last_anchor(self) -> Anchor | None:
        """The anchor of the last stable BOUNDARY that carries one (R26)."""
        ...

    def tail(self) -> ControlFrame | None:
        """The newest control frame."""
        ...


class LogStore(Protocol):
    """All logs of one place. Opening the same id twice gives the same log."""

    def open(self, log: LogId) -> Log:
        """The log of this id, created if absent. CorruptError if its stored frames are damaged."""
        ...

    def ids(self) -> list[LogId]:
        """The logs that there are, sorted."""
        ...

    def close(self) -> None:
        """Let go of files and connections. The logs must not be used afterwards; their frames are kept."""
        ...
