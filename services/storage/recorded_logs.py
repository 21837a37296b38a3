"""The logs of a query's sources, read from the time that is asked for back: what a failure is replayed from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from boreal.model.codec import DataHead, Head
from boreal.model.frames import Boundary, Frame, LogId
from logs.log import TrimmedError
from services.storage.log_partition import Fence, LogPartition
from services.storage.log_partitions import LogPartitions

PIECE_BYTES = 4 << 20
"""About how much of a log is read at once."""
PIECE_FRAMES = 4_096
"""At most so many frames are read at once."""

_FIRST_PIECE_FRAMES = 64
_STEP_BACK_US = 1_000_000
_LOOK_AHEAD = 16


class RecordedLogs(LogPartitions):
    """Logs, read backwards. For one thread."""

    def newest_first(self, until: int, log: LogId) -> Iterator[list[Frame]]:
        """The frames of a log in pieces: the newest piece first, each in its order, without those of dead incarnations (R25).
        It begins soon after the last frame that came by `until`, a clock value in microseconds. What is trimmed meanwhile is
        left out. KafkaError if the log's site does not answer, CorruptError for a record that is no frame."""
        partition = self.open(log)
        start, end = partition.bounds()
        stop, count = _first_after(partition, until + _STEP_BACK_US, start, end), _FIRST_PIECE_FRAMES
        while stop > start:
            begin = max(stop - count, start)
            try:
                frames, size = _piece(partition, begin, stop, start)
            except TrimmedError as trimmed:
                start = trimmed.start
                continue
            yield frames
            stop, count = begin, max(min(count * PIECE_BYTES // max(size, 1), PIECE_FRAMES), 1)


def _piece(partition: LogPartition, begin: int, stop: int, start: int) -> tuple[list[Frame], int]:
    """The frames of some records, and their size in bytes. start: of the log."""
    fence, size = Fence(partition.incarnation_before(begin, start)), 0
    frames: list[Frame] = []
    for records in partition.read(begin, stop):
        for record in records:
            frame = partition.frame(record)
            size += len(record.value)
            if fence.admits(frame, record.incarnation):
                frames.append(frame)
    return frames, size


def _first_after(partition: LogPartition, time: int, start: int, end: int) -> int:
    """The offset of the first frame that came after a clock value, or of one a few frames later; the end if there is none."""

    def is_after(offset: int) -> bool:
        for records in partition.read(offset, min(offset + _LOOK_AHEAD, end)):
            for head in map(partition.head, records):
                if (came := _came(head)) is not None:
                    return came > time
        return True

    try:
        return bisect_left(range(start, end), True, key=is_after) + start
    except TrimmedError as trimmed:
        return _first_after(partition, time, trimmed.start, end)


def _came(head: Head) -> int | None:
    """When a frame came, in microseconds; None if it does not say."""
    match head:
        case DataHead():
            return max(at for _, at in head.ingest)
        case Boundary():
            return head.sent
        case _:
            return None
