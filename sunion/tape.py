"""The stable prefix of a port, and the positions of its readers.

A *tape* is the stable part of one stream partition: a sequence of chunks with contiguous ids, and the stable boundary.
It is logically unbounded and stored in the log. Memory caches its newest part, within a bound of bytes.

A *cursor* is the position of one reader on a tape. Consumption is by time: a cursor at time t has consumed exactly the rows
with time < t, wherever they are on the tape. Therefore a time and the first chunk that is still needed describe it completely.
If that chunk has left the cache, it is read again from the log, because a failure of hours must not need memory of hours.

Times are event time, in microseconds. Ids are stable ids: contiguous in each partition, and equal in all replicas of a stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from boreal.model.columns import batch_bytes, event_times
from boreal.model.errors import ProtocolError
from boreal.model.frames import Ingest

BEGINNING = -(1 << 62)
"""An event time before all rows and boundaries, in microseconds."""

MAX_NOTES = 4096
"""The maximum number of notes in a list. A longer list is made coarser: a failure of hours must not need memory of hours."""


def bounded(notes: deque[tuple[int, int]], most: int) -> deque[tuple[int, int]]:
    """The notes, or a coarser version of them if there are more than `most`.

    A note is (through, value): `value` holds up to the event time `through`, from where the note before it ends. The coarser
    version merges each two neighbours into one note, with the later `through` and the value of the first.
    """
    if len(notes) <= most:
        return notes
    listed = list(notes)
    odd = listed[-1:] if len(listed) % 2 else []
    pairs = zip(listed[0::2], listed[1::2], strict=False)
    return deque([*((max(one, other), said) for (one, said), (other, _) in pairs), *odd])


@dataclass(slots=True, eq=False)
class Chunk:
    """The rows of one stream partition that arrived in one frame. There is at least one row."""

    first_id: int
    """The id of the first row. The ids of the chunk are contiguous."""
    batch: pa.RecordBatch
    """The rows, in id order; the first column holds their times."""
    times: np.ndarray
    """The event times of the rows in microseconds: int64, shape (rows,)."""
    low: int
    """The smallest event time, in microseconds."""
    high: int
    """The largest event time, in microseconds."""
    ordered: bool
    """Whether the times never fall from row to row."""
    floor: int
    """Event time in microseconds. No row in this chunk, or later in the stream, has a smaller time."""
    ingest: Ingest
    """The ingest times of the rows, in runs of event time and clock values."""
    nbytes: int
    """The size of the batch, in bytes."""

    @staticmethod
    def of(first_id: int, batch: pa.RecordBatch, floor: int, ingest: Ingest) -> Chunk:
        """A chunk of a batch that is not empty."""
        times = event_times(batch)
        low, high, ordered = int(times[0]), int(times[-1]), True
        if len(times) > 1 and not (times[1:] >= times[:-1]).all():
            low, high, ordered = int(times.min()), int(times.max()), False
        return Chunk(first_id, batch, times, low, high, ordered, floor, ingest, batch_bytes(batch))

    @property
    def next_id(self) -> int:
        """The id after the last row."""
        return self.first_id + len(self.times)

    def fitting(self, since: int, room: int) -> tuple[int, int]:
        """How far rows from the event time `since` on, in time order, fit into `room` bytes: (time, bytes left).

        `time` is that of the first row that does not fit, or the chunk's largest if all fit. The estimate takes all rows to be
        equally large."""
        if self.nbytes <= room:
            return self.high, room - self.nbytes
        ahead = np.sort(self.times[self.times >= since])
        fit = room * len(self.times) // self.nbytes
        if fit < len(ahead):
            return int(ahead[fit]), 0
        return self.high, room - self.nbytes * len(ahead) // len(self.times)

    def between(self, since: int, upto: int) -> tuple[pa.RecordBatch, np.ndarray] | None:
        """The rows with since <= time < upto, in id order, and their times; None if there are none.

        `since` may be after `upto`, because a correction may already be beyond the end of the next tentative step."""
        if since >= upto:
            return None
        if self.low >= since and self.high < upto:
            return self.batch, self.times
        if self.ordered:
            first, last = self.times.searchsorted((since, upto))
            if first == last:
                return None
            return self.batch.slice(first, last - first), self.times[first:last]
        rows = np.flatnonzero((self.times >= since) & (self.times < upto))
        if not len(rows):
            return None
        return self.batch.take(pa.array(rows)), self.times[rows]


@dataclass(slots=True)
class Tape:
    """The stable prefix of a port."""

    boundary: int = BEGINNING
    """The stable boundary: no stable row that is still to come has an event time (in microseconds) before it."""
    next_id: int = 0
    """The id of the next row to come."""
    nbytes: int = 0
    """The size of the cached chunks, in bytes."""
    chunks: list[Chunk] = field(default_factory=list)
    """The cached chunks, in id order and without gaps, up to `next_id`."""
    places: deque[tuple[int, int]] = field(default_factory=deque)
    """Where chunks begin, cached or not, as (largest event time, first id) in id order."""
    most_notes: int = MAX_NOTES
    """The maximum number of places; beyond it they are made coarser."""
    acknowledged: int = 0
    """No row below this id will be needed again."""

    def begin(self, next_id: int, time: int = BEGINNING, first_id: int | None = None) -> None:
        """Start at an id other than 0: a restarted instance continues from an anchor or a checkpoint.

        time: the event time of the anchor or checkpoint, in microseconds. first_id: the id from which rows before that time are
        still needed; None if none is.
        """
        self.next_id = next_id
        if first_id is not None and first_id < next_id:
            self.places.append((time - 1, first_id))

    @property
    def cached_rows(self) -> int:
        """How many rows are in memory. Other threads may ask: the chunks may change meanwhile."""
        first = self.chunks[:1]
        return self.next_id - first[0].first_id if first else 0

    @property
    def cached_from(self) -> int:
        """The id from which all rows up to next_id are in memory."""
        return self.chunks[0].first_id if self.chunks else self.next_id

    def append(self, first_id: int, batch: pa.RecordBatch, ingest: Ingest) -> Chunk | None:
        """Add stable rows, and return the new ones as a chunk; None if no row is new. Known ids are dropped (I2, I6).

        Raises ProtocolError if ids are missing before the rows, because a stable tuple would be lost, or if a new row is before
        the stable boundary, because the boundary promised that none would come.
        """
        if first_id > self.next_id:
            raise ProtocolError(f"stable ids {self.next_id}..{first_id - 1} are missing")
        skip = self.next_id - first_id
        if skip >= batch.num_rows:
            return None
        chunk = Chunk.of(self.next_id, batch.slice(skip) if skip else batch, self.boundary, ingest)
        if chunk.low < self.boundary:
            raise ProtocolError(f"a stable tuple of time {chunk.low} after the stable boundary {self.boundary}")
        self.chunks.append(chunk)
        self._note_place(chunk)
        self.nbytes += chunk.nbytes
        self.next_id = chunk.next_id
        return chunk

    def advance(self, boundary: int) -> bool:
        """Take a stable boundary. Stable boundaries only rise, so a lower one is ignored (R3). True if it rose."""
        if boundary <= self.boundary:
            return False
        self.boundary = boundary
        return True

    def index_of(self, chunk_id: int) -> int:
        """The index in `chunks` of the first chunk that starts at or after an id."""
        if not self.chunks or self.chunks[0].first_id >= chunk_id:
            return 0  # nearly always
        if self.chunks[-1].first_id < chunk_id:
            return len(self.chunks)
        return bisect_left(self.chunks, chunk_id, key=lambda chunk: chunk.first_id)

    def drop_before(self, chunk_id: int) -> None:
        """Drop the cached chunks that start before an id."""
        count = self.index_of(chunk_id)
        if count:
            self.nbytes -= sum([chunk.nbytes for chunk in self.chunks[:count]])
            del self.chunks[:count]

    def evict(self, limit: int) -> None:
        """Drop the oldest cached chunks, needed or not, until the cache is at most `limit` bytes. The log still has them."""
        while self.nbytes > limit and self.chunks:
            self.nbytes -= self.chunks.pop(0).nbytes

    def place_of(self, time: int) -> int:
        """The id at which a cursor for an event time begins. It is the first id of a chunk, and no row before it is at or after
        that time.

        Acknowledged rows are not at or after that time either, because a requested time is never before the time for which rows
        were acknowledged. So the cursor never begins below `acknowledged`."""
        for high, first_id in self.places:
            if high >= time:
                return max(first_id, self.acknowledged)
        return self.next_id

    def acknowledge(self, first_id: int) -> None:
        """Rows below this id are no longer needed. They may have been trimmed from the log."""
        self.acknowledged = max(self.acknowledged, first_id)

    def forget_places(self, time: int) -> None:
        """Drop the places of chunks that end before an event time: they are not requested again."""
        while self.places and self.places[0][0] < time:
            self.places.popleft()

    def _note_place(self, chunk: Chunk) -> None:
        self.places.append((chunk.high, chunk.first_id))
        self.places = bounded(self.places, self.most_notes)


@dataclass(slots=True)
class Cursor:
    """The position of a view on one tape."""

    next_id: int
    """The first id that the view may still need."""
    replayed: list[Chunk] = field(default_factory=list)
    """Chunks that were read again from the log, in id order. They precede all cached chunks of the tape."""
    replay_boundary: int = BEGINNING
    """The highest stable boundary that was read again from the log: event time in microseconds."""

    def fork(self) -> Cursor:
        """An independent cursor at the same position. The chunks are shared."""
        return Cursor(self.next_id, list(self.replayed), self.replay_boundary)

    @property
    def replayed_to(self) -> int:
        """The id after the rows that were read again: where reading from the log continues."""
        return self.replayed[-1].next_id if self.replayed else self.next_id

    def is_joined(self, tape: Tape) -> bool:
        """Whether all rows that this cursor still needs are in memory."""
        replayed_to = self.replayed[-1].next_id if self.replayed else self.next_id  # asked several times a tick, so spelled out
        return replayed_to >= (tape.chunks[0].first_id if tape.chunks else tape.next_id)

    def boundary(self, tape: Tape) -> int:
        """The stable boundary up to which this cursor has all rows in memory: event time in microseconds."""
        return tape.boundary if self.is_joined(tape) else min(self.replay_boundary, tape.boundary)

    def pending(self, tape: Tape, upto: int) -> Iterator[Chunk]:
        """The chunks in memory that may hold unconsumed rows before the event time `upto`, in id order."""
        for chunk in self.replayed:
            if chunk.floor >= upto:
                return
            yield chunk
        if not self.is_joined(tape):
            return
        for at in range(tape.index_of(self.replayed_to), len(tape.chunks)):
            chunk = tape.chunks[at]
            if chunk.floor >= upto:
                return
            yield chunk

    def consume(self, tape: Tape, upto: int) -> None:
        """Note that all rows before the event time `upto` are consumed: move past the leading chunks without a later row."""
        done = 0
        for chunk in self.replayed:
            if chunk.high >= upto:
                break
            done += 1
            self.next_id = chunk.next_id
        del self.replayed[:done]
        if self.replayed or not tape.chunks or not self.is_joined(tape):
            return
        for at in range(tape.index_of(self.next_id), len(tape.chunks)):
            if tape.chunks[at].high >= upto:
                break
            self.next_id = tape.chunks[at].next_id

    def take_replayed(self, tape: Tape, first_id: int, batch: pa.RecordBatch, ingest: Ingest) -> None:
        """Add stable rows that were read again from the log. Only those from `replayed_to` to the start of the cache are kept.

        Raises ProtocolError if ids are missing before the rows.
        """
        if first_id > self.replayed_to:
            raise ProtocolError(f"replay skips the stable ids {self.replayed_to}..{first_id - 1}")
        first = self.replayed_to
        last = min(first_id + batch.num_rows, tape.cached_from)
        if first < last:
            rows = batch.slice(first - first_id, last - first)
            self.replayed.append(Chunk.of(first, rows, self.replay_boundary, ingest))
