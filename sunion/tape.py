"""A port's stable prefix, and places in it.

A *tape* is the stable part of one stream partition: a sequence of chunks with contiguous ids and the stable boundary.
It is logically endless and lives in the log; memory caches its newest part within a bound. A *cursor* is one reader's
place on a tape. Consumption is by time: a cursor at time t has consumed exactly the rows with time < t, wherever in
the tape they stand, so (position, first chunk still needed) says all. A cursor whose next chunk has left the cache
reads it again from the log (a failure of hours must not need memory of hours).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from boreal.model.errors import ProtocolError
from boreal.model.frames import Ingest

BEGINNING = -(1 << 62)
"""The event time before which there is nothing."""

MAX_NOTES = 4096
"""Beyond so many, things are noted more coarsely: a failure of hours must not need memory of hours."""


def bounded(notes: deque[tuple[int, int]], most: int) -> deque[tuple[int, int]]:
    """(through which time, what holds from there back) in order: where there are too many, each two are made one, which
    reaches as far as both and says what the first one said."""
    if len(notes) <= most:
        return notes
    listed = list(notes)
    odd = listed[-1:] if len(listed) % 2 else []
    pairs = zip(listed[0::2], listed[1::2], strict=False)
    return deque([*((max(one, other), said) for (one, said), (other, _) in pairs), *odd])


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows of one stream as they came in one frame. `floor`: no row here or later in the stream has a smaller time."""

    first_id: int
    batch: pa.RecordBatch
    times: np.ndarray
    low: int
    high: int
    ordered: bool
    floor: int
    ingest: Ingest
    nbytes: int

    @staticmethod
    def of(first_id: int, batch: pa.RecordBatch, floor: int, ingest: Ingest) -> Chunk:
        times = batch.column(0).to_numpy()
        low, high, ordered = int(times[0]), int(times[-1]), True
        if len(times) > 1 and not (times[1:] >= times[:-1]).all():
            low, high, ordered = int(times.min()), int(times.max()), False
        return Chunk(first_id, batch, times, low, high, ordered, floor, ingest, batch.nbytes)

    @property
    def next_id(self) -> int:
        return self.first_id + len(self.times)

    def fitting(self, since: int, room: int) -> tuple[int, int]:
        """(the highest time through which rows from `since` on fit into so many bytes, about; how many are then left)."""
        if self.nbytes <= room:
            return self.high, room - self.nbytes
        ahead = np.sort(self.times[self.times >= since])
        fit = room * len(self.times) // self.nbytes
        if fit < len(ahead):
            return int(ahead[fit]), 0
        return self.high, room - self.nbytes * len(ahead) // len(self.times)

    def between(self, since: int, upto: int) -> tuple[pa.RecordBatch, np.ndarray] | None:
        """The rows with since <= time < upto, in id order, and their times; None where there are none, as where `since` is
        beyond `upto`: a correction may have come further than the next tentative step will."""
        if since >= upto:
            return None
        if self.low >= since and self.high < upto:
            return self.batch, self.times
        if self.ordered:
            first, last = np.searchsorted(self.times, (since, upto))
            if first == last:
                return None
            return self.batch.slice(first, last - first), self.times[first:last]
        rows = np.flatnonzero((self.times >= since) & (self.times < upto))
        if not len(rows):
            return None
        return self.batch.take(pa.array(rows)), self.times[rows]


@dataclass(slots=True)
class Tape:
    """The stable prefix of a port: cached chunks, the next id to come, the stable boundary, and old chunks' places, at most
    `most_notes` of them. acknowledged: no row below this id will be asked for."""

    boundary: int = BEGINNING
    next_id: int = 0
    nbytes: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    places: deque[tuple[int, int]] = field(default_factory=deque)
    most_notes: int = MAX_NOTES
    acknowledged: int = 0

    def begin(self, next_id: int, time: int = BEGINNING, first_id: int | None = None) -> None:
        """Start at an id other than 0: a restarted instance goes on from an anchor, or from a checkpoint of a time. What is
        needed from before that time begins at `first_id`, if it is needed."""
        self.next_id = next_id
        if first_id is not None and first_id < next_id:
            self.places.append((time - 1, first_id))

    @property
    def cached_from(self) -> int:
        """The id from which on everything up to next_id is in memory."""
        return self.chunks[0].first_id if self.chunks else self.next_id

    def append(self, first_id: int, batch: pa.RecordBatch, ingest: Ingest) -> Chunk | None:
        """Take stable rows; those already here (by id) are dropped. None where nothing was new (I2, I6).

        Raises ProtocolError where ids are missing in between: a stable tuple would be lost.
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
        """Take a stable boundary; only rising ones count (R3). True where it rose."""
        if boundary <= self.boundary:
            return False
        self.boundary = boundary
        return True

    def index_of(self, chunk_id: int) -> int:
        """The position in `chunks` of the first chunk that starts at or after an id."""
        return bisect_left(self.chunks, chunk_id, key=lambda chunk: chunk.first_id)

    def drop_before(self, chunk_id: int) -> None:
        """Forget cached chunks before the one that starts at an id."""
        count = self.index_of(chunk_id)
        if count:
            self.nbytes -= sum(chunk.nbytes for chunk in self.chunks[:count])
            del self.chunks[:count]

    def evict(self, limit: int) -> None:
        """Forget the oldest cached chunks, needed or not, until the cache is within its bound of bytes."""
        while self.nbytes > limit and self.chunks:
            self.nbytes -= self.chunks.pop(0).nbytes

    def place_of(self, time: int) -> int:
        """Where a cursor for a time begins: the first id of a chunk, with no row at or after that time before it. What was
        acknowledged held no such row either, for a time that is asked for is never before one that was acknowledged for."""
        for high, first_id in self.places:
            if high >= time:
                return max(first_id, self.acknowledged)
        return self.next_id

    def acknowledge(self, first_id: int) -> None:
        """Rows below this id are needed no more, and may be gone."""
        self.acknowledged = max(self.acknowledged, first_id)

    def forget_places(self, time: int) -> None:
        """Places of chunks wholly before a time are not asked for again."""
        while self.places and self.places[0][0] < time:
            self.places.popleft()

    def _note_place(self, chunk: Chunk) -> None:
        self.places.append((chunk.high, chunk.first_id))
        self.places = bounded(self.places, self.most_notes)


@dataclass(slots=True)
class Cursor:
    """A view's place on one tape. `replayed` are chunks read again from the log, which come before all cached ones."""

    next_id: int
    replayed: list[Chunk] = field(default_factory=list)
    replay_boundary: int = BEGINNING

    def fork(self) -> Cursor:
        return Cursor(self.next_id, list(self.replayed), self.replay_boundary)

    @property
    def replayed_to(self) -> int:
        return self.replayed[-1].next_id if self.replayed else self.next_id

    def is_joined(self, tape: Tape) -> bool:
        """Whether all that this cursor still needs is in memory."""
        return self.replayed_to >= tape.cached_from

    def boundary(self, tape: Tape) -> int:
        """The stable boundary as far as this cursor can see."""
        return tape.boundary if self.is_joined(tape) else min(self.replay_boundary, tape.boundary)

    def pending(self, tape: Tape, upto: int) -> Iterator[Chunk]:
        """The chunks that may hold rows before `upto`, in id order."""
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
        """All rows before `upto` are consumed: move past the leading chunks that hold nothing later."""
        done = 0
        for chunk in self.replayed:
            if chunk.high >= upto:
                break
            done += 1
            self.next_id = chunk.next_id
        del self.replayed[:done]
        if self.replayed or not self.is_joined(tape):
            return
        for at in range(tape.index_of(self.next_id), len(tape.chunks)):
            if tape.chunks[at].high >= upto:
                break
            self.next_id = tape.chunks[at].next_id

    def take_replayed(self, tape: Tape, first_id: int, batch: pa.RecordBatch, ingest: Ingest) -> None:
        """Take stable rows read again from the log: those from the cursor's place up to where the cache begins."""
        if first_id > self.replayed_to:
            raise ProtocolError(f"replay skips the stable ids {self.replayed_to}..{first_id - 1}")
        first = self.replayed_to
        last = min(first_id + batch.num_rows, tape.cached_from)
        if first < last:
            rows = batch.slice(first - first_id, last - first)
            self.replayed.append(Chunk.of(first, rows, self.replay_boundary, ingest))
