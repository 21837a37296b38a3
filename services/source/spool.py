"""Records on disk, in order, while Kafka cannot take them: a FileLog of this source's own.

Each incarnation begins with a START; records are rows of DATA frames; after each drain a BOUNDARY has an anchor that names the
first offset still to be drained. What was drained just before a crash may be handed out again: records are numbered, and
whoever takes them knows a repetition by its number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from boreal.model.errors import BorealError
from boreal.model.frames import INFINITY, Anchor, Boundary, Data, LogId, Origin, Start
from embedded.file_log import FileLog

_SEGMENT_BYTES = 4 << 20
"""Small: only whole segments are given back to the disk."""
_CHUNKS = 64
_NUMBERS_OF_AN_INCARNATION = 1 << 28
_SCHEMA = pa.schema([("time", pa.int64()), ("record", pa.string())])
_DRAINED = "drained"


@dataclass
class SpoolFull(BorealError):
    """The spool has reached its bound, and Kafka is still out of reach."""

    limit_bytes: int

    def __str__(self) -> str:
        return f"the spool is full ({self.limit_bytes} bytes) and Kafka is out of reach: nothing more is taken until it answers"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that lie together; `first` is the number of the first, `end` the offset after them."""

    first: int
    records: list[bytes]
    end: int

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


class Spool:
    """One stream's spool, for one process at a time. Not safe for several threads."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        """OSError where the directory cannot be used; CorruptError where what it holds is damaged."""
        self.directory = directory
        self._log = FileLog(LogId("posted", "", 0), directory, _SEGMENT_BYTES)
        self._limit_bytes = limit_bytes
        anchor = self._log.last_anchor()
        self._drained = max(dict(anchor.inputs)[_DRAINED] if anchor else 0, self._log.start)
        # Where disk and clock agree to forget former lives, a second has passed since.
        incarnation = max(self._log.last_incarnation + 1, int(time.time()))
        self._origin = Origin("", incarnation)
        self._next = incarnation * _NUMBERS_OF_AN_INCARNATION
        self._log.append(Start(self._origin, 0))
        self._log.sync()
        self._bytes = sum(chunk.size for chunk in self._rest())

    @property
    def is_empty(self) -> bool:
        return self._bytes == 0

    @property
    def spooled_bytes(self) -> int:
        """The records that are still to be drained."""
        return self._bytes

    def numbers(self, count: int) -> int:
        """Reserve so many numbers; returns the first. They are above all that this spool ever gave."""
        first = self._next
        self._next += count
        return first

    def add(self, first: int, records: list[bytes]) -> None:
        """Keep records, of which the first has a number from `numbers`. Returns when they outlast a crash of the machine.
        SpoolFull: nothing is kept; OSError: nothing for sure."""
        size = sum(map(len, records))
        if self._log.nbytes + size > self._limit_bytes:
            raise SpoolFull(self._limit_bytes)
        texts = pa.array([record.decode() for record in records], pa.string())
        batch = pa.RecordBatch.from_arrays([pa.array([0] * len(records), pa.int64()), texts], schema=_SCHEMA)
        self._log.append(Data(self._origin, 0, first, batch, False, ((INFINITY, 0),), 0))
        self._bytes += size
        self._log.sync()

    def head(self) -> list[Chunk]:
        """The oldest records that are still to be drained, some at a time; none if the spool is empty. OSError or CorruptError
        where they cannot be read."""
        return list(islice(self._rest(), _CHUNKS))

    def drained(self, chunks: list[Chunk]) -> None:
        """The records of `head` are safe elsewhere. OSError where the disk does not take that: they are drained all the same,
        but a later incarnation may hand them out again."""
        last = chunks[-1]
        self._drained = last.end
        self._bytes -= sum(chunk.size for chunk in chunks)
        self._log.append(Boundary(self._origin, 0, 0, False, 0, 0, anchor=Anchor(0, 0, (), ((_DRAINED, last.end),))))
        self._log.trim(last.first + len(last.records) - 1)

    def close(self) -> None:
        self._log.close()

    def _rest(self) -> Iterator[Chunk]:
        offset = self._drained
        while frames := self._log.read(offset, _CHUNKS, max_bytes=_SEGMENT_BYTES):
            for offset, frame in frames:
                if isinstance(frame, Data):
                    texts = frame.batch.column(1).to_pylist()
                    yield Chunk(frame.first_id, [text.encode() for text in texts], offset + 1)
            offset += 1
