"""The logs of a query's sources, read from the time that is asked for back: what a failure is replayed from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

from kafka import KafkaConsumer

from boreal.model.codec import DataHead, Head
from boreal.model.frames import Boundary, Frame, LogId
from logs.log import TrimmedError
from services.kafka.clusters import Cluster
from services.storage.kafka_log import LogPlaces
from services.storage.log_partition import Fence, LogPartition, make_log_consumer

PIECE_BYTES = 4 << 20
"""About how much of a log is read at once."""
PIECE_FRAMES = 4_096
"""At most so many frames are read at once."""

_FIRST_PIECE_FRAMES = 64
_STEP_BACK_US = 1_000_000
_LOOK_AHEAD = 16


class RecordedLogs:
    """Reads logs through one consumer for each site. Use as a context. For one thread."""

    def __init__(self, clusters: Mapping[str, Cluster], places: LogPlaces) -> None:
        """clusters: by site."""
        self._clusters = clusters
        self._places = places
        self._consumers: dict[str, KafkaConsumer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> RecordedLogs:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def newest_first(self, until: int, log: LogId) -> Iterator[list[Frame]]:
        """The frames of a log in pieces: the newest piece first, each in its order, without those of dead incarnations (R25).
        It begins soon after the last frame that came by `until`, a clock value in microseconds. What is trimmed meanwhile is
        left out. KafkaError if the log's site does not answer, CorruptError for a record that is no frame."""
        partition = self._open(log)
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

    def _open(self, log: LogId) -> LogPartition:
        site = self._places.site_of(log)
        if site not in self._consumers:
            self._consumers[site] = self._stack.enter_context(closing(make_log_consumer(self._clusters[site])))
        return LogPartition(self._consumers[site], log, self._places.topic_of(log))


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
