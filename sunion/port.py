"""A SUnion port: one input stream partition, as seen through whichever replica it is read from.

It holds a stable prefix (the tape, which any replica of the stream may extend, since stable ids are the same in all)
and a tentative suffix (from the visible branch only). By time, the stable prefix counts up to the stable boundary, and
the suffix after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from boreal.model.frames import INFINITY, Boundary, Data, ingest_at
from sunion.buckets import bucket_end, bucket_floor
from sunion.tape import BEGINNING, Chunk, Tape, bounded

EARLY = "early"
"""The cause of a tentative answer for which no input is missing: it was due before all that may still come for it."""


class Arrival(NamedTuple):
    """What has come for the buckets up to a time. ingest: what they count from; not_before: they are not overdue sooner (R8).
    is_edge: rows, and none of the stream's had a later time. is_leap: they are far ahead of the rows before them, by more than
    the time that has passed since these."""

    upto: int
    ingest: int
    not_before: int
    is_edge: bool = False
    is_leap: bool = False

    def takes_along(self, other: Arrival) -> bool:
        """Whether the other is due as soon as this one is."""
        is_sooner = self.ingest <= other.ingest and self.not_before <= other.not_before
        return is_sooner and self.upto >= other.upto and not (self.is_leap or other.is_leap)


class Blame(NamedTuple):
    """What tentative rows lack, from where the one before it ends up to a time."""

    through: int
    missing: tuple[str, ...]


@dataclass(slots=True)
class Port:
    """One input partition. `key`: 'stream/partition'; `name`: what tuples lacking it name as missing.

    unreachable: nothing was heard for so long that its replica counts as silent. silent: the same, and more was to come.
    failed: silent, or tentative, or its producer is not STABLE. corrected: stable rows come from another replica than the
    visible, tentative ones (R17). t_max: the highest t_max taken (R23). data_end: the end of the last bucket known of;
    reach: through where rows may have come as of reach_ingest; stable_reach, stable_reach_ingest: the same, of what is stable.
    arrivals: what is overdue when (R8). Stable rows are never overdue sooner than grace_us after they arrived, so that a
    backlog is not overdue at once; tentative ones have been held back already, by whoever sent them.
    early: the buckets of arrivals that were overdue while far ahead of their time; ahead_us: how far is far, in event time, of
    which a bucket takes bucket_run_us to pass.
    blames: what the tentative suffix lacks.
    boundaries: (time, ingest) of those that count and are not yet released; where there are many, more coarsely. ended:
    (ingest, not before) of the end.
    """

    key: str
    name: str
    bucket_us: int
    grace_us: int
    tape: Tape = field(default_factory=Tape)
    suffix: list[Chunk] = field(default_factory=list)
    suffix_nbytes: int = 0
    suffix_boundary: int = BEGINNING
    t_max: int = BEGINNING
    corrected: bool = False
    unreachable: bool = False
    silent: bool = False
    failed: bool = False
    blames: deque[Blame] = field(default_factory=deque)
    upstream_cause: str = ""
    arrivals: deque[Arrival] = field(default_factory=deque)
    early: list[int] = field(default_factory=list)
    ahead_us: int = INFINITY
    bucket_run_us: int = 1
    disorder_us: int = 0
    boundaries: deque[tuple[int, int]] = field(default_factory=deque)
    boundary_ingest: int = 0
    ended: tuple[int, int] | None = None
    data_end: int = BEGINNING
    reach: int = BEGINNING
    reach_ingest: int = 0
    stable_reach: int = BEGINNING
    stable_reach_ingest: int = 0

    @property
    def is_early(self) -> bool:
        """Whether what is tentative here was answered early, while nothing has failed."""
        return self.upstream_cause == EARLY and self.suffix_boundary > self.tape.boundary

    @property
    def boundary(self) -> int:
        """Through where this port's rows are known, be it tentatively."""
        return max(self.tape.boundary, self.suffix_boundary)

    def expect(self, ahead_us: int, bucket_run_us: int, disorder_us: int) -> None:
        """How the stream's rows are to be judged from now on; see `sunion.sunion.Settings`."""
        self.ahead_us, self.bucket_run_us, self.disorder_us = ahead_us, bucket_run_us, disorder_us

    def observe(self, unreachable: bool, corrected: bool, is_stable: bool) -> None:
        """What is known now of the replicas that the stream is read from. is_stable: the visible one says that it is STABLE."""
        is_over = self.tape.boundary >= INFINITY
        is_tentative = self.suffix_boundary > self.tape.boundary and not self.is_early
        self.unreachable, self.corrected = unreachable, corrected
        self.silent = unreachable and not is_over
        self.failed = self.silent or ((is_tentative or not is_stable) and not is_over)

    def take_stable(self, frame: Data, now: int) -> None:
        chunk = self.tape.append(frame.first_id, frame.batch, frame.ingest)
        if chunk is not None:
            self._arrived(chunk, False, now + self.grace_us)

    def take_tentative(self, frame: Data) -> None:
        """Take rows of the visible branch whose t_max is new here (R23)."""
        chunk = Chunk.of(frame.first_id, frame.batch, BEGINNING, frame.ingest)
        rows = chunk.between(max(self.t_max, self.tape.boundary), INFINITY)
        if rows is None:
            return
        if rows[0].num_rows < frame.batch.num_rows:
            chunk = Chunk.of(frame.first_id, rows[0], BEGINNING, frame.ingest)
        self.suffix.append(chunk)
        self.suffix_nbytes += chunk.nbytes
        self.t_max = max(self.t_max, frame.t_max)
        self._blame(frame.t_max, frame)
        self._arrived(chunk, True, BEGINNING)

    def take_boundary(self, frame: Boundary, now: int) -> None:
        """Take a boundary; a tentative one holds until it is revoked."""
        if frame.tentative:
            if frame.time <= self.boundary:
                return
            self.suffix_boundary = frame.time
            self.t_max = max(self.t_max, bucket_floor(frame.time, self.bucket_us))
            self._blame(frame.time, frame)
        elif not self.tape.advance(frame.time):
            return
        elif self.suffix:
            self.suffix = self.suffix_from(frame.time)
            self.suffix_nbytes = sum(chunk.nbytes for chunk in self.suffix)
        not_before = BEGINNING if frame.tentative else now + self.grace_us
        if frame.time >= INFINITY:
            self.ended = self.ended or (frame.ingest, not_before)
        else:
            upto = bucket_floor(frame.time, self.bucket_us)
            self.note(Arrival(upto, frame.ingest, not_before))
            self.data_end = max(self.data_end, upto)
            # A stable boundary waits for what is out of order.
            self._reach(upto if frame.tentative else upto + self.disorder_us, frame.ingest, frame.tentative)
        self.boundaries.append((frame.time, frame.ingest))
        self.boundaries = bounded(self.boundaries, self.tape.most_notes)
        self.boundary_ingest = frame.ingest

    def revoke(self) -> None:
        """The tentative suffix, rows and boundary, is undone."""
        self.suffix.clear()
        self.suffix_nbytes = 0
        self.suffix_boundary = BEGINNING
        self.t_max = BEGINNING
        self.boundaries = deque(known for known in self.boundaries if known[0] <= self.tape.boundary)
        self.data_end = self._stable_end()
        self.reach, self.reach_ingest = self.stable_reach, self.stable_reach_ingest
        # What is undone is about to come again, or never will: no bucket is overdue for it meanwhile.
        while self.arrivals and self.arrivals[-1].upto > self.data_end:
            undone = self.arrivals.pop()
            if not self.arrivals or self.arrivals[-1].upto < self.data_end:
                self.arrivals.append(undone._replace(upto=self.data_end))
        self.early = [early for early in self.early if early <= self.data_end]
        self.blames.clear()
        self.upstream_cause = ""
        if self.tape.boundary < INFINITY:
            self.ended = None

    def missing_in(self, since: int, upto: int) -> tuple[str, ...]:
        """What the tentative rows of [since, upto) lack, by whoever sent them."""
        since, names = max(since, self.tape.boundary), dict[str, None]()
        for blame in self.blames if since < upto else ():
            if blame.through > since:
                names.update(dict.fromkeys(blame.missing))
            if blame.through >= upto:
                break
        return tuple(names)

    def blamed_through(self, since: int) -> int | None:
        """Where what the tentative rows from a time on lack changes for the first time; None where it does not."""
        since = max(since, self.tape.boundary)
        first = next((at for at, blame in enumerate(self.blames) if blame.through > since), len(self.blames))
        return self.blames[first].through if first + 1 < len(self.blames) else None

    def released(self, upto: int) -> None:
        """Every row before `upto` has left: what waited for it waits no more."""
        self.forget_arrivals(upto)
        while self.boundaries and self.boundaries[0][0] <= upto:
            self.boundaries.popleft()

    def forget_arrivals(self, upto: int) -> None:
        """What arrived for buckets up to this time is not overdue any more: they have been handed on."""
        while self.arrivals and self.arrivals[0].upto <= upto:
            self.arrivals.popleft()
        if self.early:
            self.early = [early for early in self.early if early > upto]

    def suffix_from(self, time: int) -> list[Chunk]:
        """The tentative chunks that may hold rows at or after a time. Released ones are kept until corrected: after a
        partial heal (R16) they are handed on once more."""
        return self.suffix[bisect_left(self.suffix, time, key=lambda chunk: chunk.high) :]

    def evict(self, limit: int, released: int) -> None:
        """Forget the oldest rows in memory, down to a bound of bytes: stable ones (the log has them), and tentative ones
        that were handed on before `released`."""
        self.tape.evict(limit)
        while self.suffix_nbytes > limit and self.suffix[0].high < released:
            self.suffix_nbytes -= self.suffix.pop(0).nbytes

    def _stable_end(self) -> int:
        """The end of the last bucket known of by what is stable."""
        if not BEGINNING < self.tape.boundary < INFINITY:
            return self.data_end
        last = max((chunk.high for chunk in self.tape.chunks[-1:]), default=BEGINNING)
        return max(bucket_floor(self.tape.boundary, self.bucket_us), bucket_end(last, self.bucket_us))

    def _arrived(self, chunk: Chunk, tentative: bool, not_before: int) -> None:
        upto = bucket_end(chunk.high, self.bucket_us)
        ingest, is_edge = ingest_at(chunk.ingest, chunk.low), upto >= self.data_end
        leaps_from = self._leaps_from(chunk, upto)
        if leaps_from is not None and leaps_from >= chunk.low:
            self.note(Arrival(bucket_end(leaps_from, self.bucket_us), ingest, not_before, is_edge))
        # The producer's step may have passed buckets without rows of ours: they count from when it knew their ends.
        known = self.boundaries[-1][0] if self.boundaries else self.tape.boundary
        passed = [run for run in chunk.ingest if known < run[0] < INFINITY]
        self.boundaries.extend(passed)
        for through, at in passed:
            if through <= chunk.low:
                self.note(Arrival(bucket_floor(through, self.bucket_us), at, not_before))
        self.note(Arrival(upto, ingest, not_before, is_edge, leaps_from is not None))
        self.data_end = max(self.data_end, upto)
        self._reach(upto, ingest_at(chunk.ingest, chunk.high), tentative)

    def note(self, arrival: Arrival) -> None:
        """Arrivals lie in the order of their buckets and of their deadlines: where rows are out of order, what has come for
        later buckets may be due sooner, and takes along what lies before."""
        while self.arrivals and arrival.takes_along(self.arrivals[-1]):
            taken = self.arrivals.pop()
            arrival = arrival._replace(is_edge=arrival.is_edge or taken.is_edge)
        at = len(self.arrivals)
        while at and self.arrivals[at - 1].upto > arrival.upto and self.arrivals[at - 1].ingest > arrival.ingest:
            at -= 1
        self.arrivals.insert(at, arrival)

    def _reach(self, upto: int, ingest: int, tentative: bool) -> None:
        if upto > self.reach:
            self.reach, self.reach_ingest = upto, ingest
        if not tentative and upto > self.stable_reach:
            self.stable_reach, self.stable_reach_ingest = upto, ingest

    def _leaps_from(self, chunk: Chunk, upto: int) -> int | None:
        """The last time before a gap of more than ahead_us and what has passed meanwhile; None where there is no such gap, or
        no row before it. A stream may be sparse: a row whose time has come is no leap, however long ago the last was."""
        is_known = self.reach > BEGINNING
        ahead_us = self.ahead_us if is_known else self.ahead_us + self.disorder_us
        if upto - (self.reach if is_known else chunk.low) <= ahead_us:
            return None
        times = chunk.times if chunk.ordered else np.sort(chunk.times)
        throughs, logged = (np.array(part, dtype=np.int64) for part in zip(*chunk.ingest, strict=True))
        ingest = logged[np.minimum(np.searchsorted(throughs, times, side="right"), len(logged) - 1)]
        if is_known:
            later = times > self.reach
            times = np.concatenate([[min(self.reach, chunk.high)], times[later]])
            ingest = np.concatenate([[self.reach_ingest], ingest[later]])
        passed = np.maximum(np.diff(ingest), 0) * self.bucket_us // self.bucket_run_us
        gaps = np.diff(times) - passed
        return int(times[gaps.argmax()]) if len(gaps) and int(gaps.max()) > ahead_us else None

    def _blame(self, through: int, frame: Data | Boundary) -> None:
        self.upstream_cause = frame.cause
        while self.blames and self.blames[0].through <= self.tape.boundary:
            self.blames.popleft()
        if self.blames and self.blames[-1].missing == frame.missing:
            self.blames.pop()
        self.blames.append(Blame(through, frame.missing))
