"""A SUnion port: one input stream partition, independent of the replica from which it is read.

A port holds a stable prefix and a tentative suffix. The prefix is a tape. Any replica of the stream may extend it, because
stable ids are the same in all replicas. The suffix comes from the visible replica only, because tentative ids differ between
replicas (R2). In event time, the prefix counts up to the stable boundary, and the suffix after it.

Units, unless a field says otherwise: event time in microseconds; clock values in microseconds of the run clock.
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
"""The cause of a tentative answer that lacks no input: it was due before its input was known to be complete."""


class Arrival(NamedTuple):
    """Input that has arrived for the buckets up to a time. It says when they are overdue (R8)."""

    upto: int
    """Event time: the end (exclusive) of the last of these buckets."""
    ingest: int
    """Clock value: the ingest time from which the deadline of the buckets counts."""
    not_before: int
    """Clock value: the buckets are not overdue before it, whatever their ingest time."""
    is_edge: bool = False
    """Whether rows arrived, and the stream had no earlier input for a later bucket."""
    is_leap: bool = False
    """Whether rows arrived that are far ahead of the rows before them, even if the time that has passed since is taken off."""

    def takes_along(self, other: Arrival) -> bool:
        """Whether the other arrival is merged into this one. Its buckets leave when this one is due, because buckets leave in
        order. A leap is never merged, because its deadline is judged separately (see `Port.early`).
        """
        is_sooner = self.ingest <= other.ingest and self.not_before <= other.not_before
        return is_sooner and self.upto >= other.upto and not (self.is_leap or other.is_leap)


class Blame(NamedTuple):
    """The inputs that a range of tentative rows lacks. The range begins where that of the blame before it ends."""

    through: int
    """Event time: the end of the range."""
    missing: tuple[str, ...]
    """The names of the inputs."""


@dataclass(slots=True)
class Port:
    """One input partition."""

    key: str
    """'stream/partition'."""
    name: str
    """The name of the input, as tentative tuples that lack it give it in `missing`."""
    bucket_us: int
    """The length of a bucket, in microseconds of event time."""
    grace_us: int
    """The grace of stable input: it is not overdue sooner than this after its arrival, in microseconds of run time. So a
    backlog is not overdue at once. Tentative input has no grace, because its producer has already delayed it. Where the last
    boundary says that the next one may be late (R24), the grace is longer by that, but at most twice as long."""
    tape: Tape = field(default_factory=Tape)
    """The stable prefix."""
    suffix: list[Chunk] = field(default_factory=list)
    """The rows of the tentative suffix, in order of arrival."""
    suffix_nbytes: int = 0
    """The size of the suffix, in bytes."""
    suffix_boundary: int = BEGINNING
    """Event time: the tentative boundary; BEGINNING if there is none."""
    t_max: int = BEGINNING
    """Event time: the highest t_max of the tentative suffix. Tentative rows before it are not taken again (R23)."""
    unreachable: bool = False
    """Whether nothing was heard for longer than the silence timeout."""
    silent: bool = False
    """Whether the port is unreachable, and the stream has not ended."""
    failed: bool = False
    """Whether the stream has not ended, and the port is silent, its producer is not STABLE, or its newest rows are tentative.
    Early answers do not count as a failure."""
    blames: deque[Blame] = field(default_factory=deque)
    """The inputs that the tentative suffix lacks, in time order."""
    upstream_cause: str = ""
    """The cause of the newest tentative frame; '' if there is no tentative suffix."""
    arrivals: deque[Arrival] = field(default_factory=deque)
    """The arrivals whose buckets are not yet overdue, in the order of their buckets and of their deadlines (R8)."""
    early: list[int] = field(default_factory=list)
    """Event times: bucket ends of arrivals whose deadline has passed while they were far ahead of all boundaries. These buckets
    are overdue only alpha*X after their time has come."""
    ahead_us: int = INFINITY
    """Rows are far ahead if they are ahead by more than this, in microseconds of event time."""
    bucket_run_us: int = 1
    """The time that a bucket takes to pass, in microseconds of run time."""
    disorder_us: int = 0
    """How far boundaries may be behind the rows, in microseconds of event time."""
    boundaries: deque[tuple[int, int]] = field(default_factory=deque)
    """The boundaries whose buckets have not left yet, and bucket ends that the producer knew, as (event time, clock value of
    the ingest). A long list is made coarser."""
    boundary_ingest: int = 0
    """Clock value: the ingest time of the newest boundary."""
    pause_us: int = 0
    """What the newest boundary says: for how much longer than usual the stream may be silent, in microseconds (R24)."""
    ended: tuple[int, int] | None = None
    """The end of the stream as (ingest, not before), both clock values; None if it has not ended. A tentative end counts."""
    data_end: int = BEGINNING
    """Event time: the end of the last bucket for which a row or a boundary has arrived."""
    reach: int = BEGINNING
    """Event time: how far the rows of the stream may have come by the ingest time `reach_ingest`."""
    reach_ingest: int = 0
    """Clock value: the ingest time that belongs to `reach`."""
    stable_reach: int = BEGINNING
    """Event time: `reach` by stable input alone. An UNDO restores it."""
    stable_reach_ingest: int = 0
    """Clock value: the ingest time that belongs to `stable_reach`."""
    undone_from: int = BEGINNING
    """Event time: how far the boundary had come before the last UNDO."""
    undone_at: int = BEGINNING
    """Clock value of the last UNDO."""
    corrected_from: int = BEGINNING
    """Event time: how far the early answers had come that the last UNDO revoked; BEGINNING if it revoked others. Stable rows
    before it are no backlog: they replace what was here, and keep its deadline."""

    @property
    def held_rows(self) -> int:
        """How many rows are in memory, stable and tentative. Other threads may ask."""
        return self.tape.cached_rows + sum(len(chunk.times) for chunk in self.suffix[:])

    @property
    def is_early(self) -> bool:
        """Whether the tentative suffix consists of early answers, while no input of the producer has failed."""
        return self.upstream_cause == EARLY and self.suffix_boundary > self.tape.boundary

    @property
    def is_firm(self) -> bool:
        """Whether nothing tentative is in it, neither rows nor a boundary."""
        return not self.suffix and self.suffix_boundary <= self.tape.boundary

    @property
    def boundary(self) -> int:
        """Event time: the higher of the stable and the tentative boundary."""
        stable, tentative = self.tape.boundary, self.suffix_boundary
        return stable if stable >= tentative else tentative

    @property
    def is_returning(self) -> bool:
        """Whether the producer can be heard, and has not yet written again what its last UNDO revoked."""
        return self.undone_from > BEGINNING and self.boundary < self.undone_from and not self.silent

    @property
    def stable_counts_until(self) -> int:
        """Event time: the end of the stable rows that count in a tentative step.

        Stable rows beyond the stable boundary may come from another replica than the tentative ones: from one that is read for
        its corrections (R17), or that was read until now (R23). Both may then hold a version of the same bucket, and only the
        tentative one counts. A replica never has two versions of a bucket, so stable rows before the tentative ones count.
        """
        if not self.suffix:
            return INFINITY
        return max(self.tape.boundary, bucket_floor(self.suffix[0].low, self.bucket_us))

    def expect(self, ahead_us: int, bucket_run_us: int, disorder_us: int) -> None:
        """Set the parameters by which leaps are judged from now on; see `sunion.sunion.Settings`."""
        self.ahead_us, self.bucket_run_us, self.disorder_us = ahead_us, bucket_run_us, disorder_us

    def observe(self, unreachable: bool, is_stable: bool) -> None:
        """Update the flags from the state of the visible replica: whether it is out of reach, and whether it reports STABLE."""
        is_over = self.tape.boundary >= INFINITY
        is_tentative = self.suffix_boundary > self.tape.boundary and not self.is_early
        self.unreachable = unreachable
        self.silent = unreachable and not is_over
        self.failed = self.silent or ((is_tentative or not is_stable) and not is_over)

    def take_stable(self, frame: Data, now: int) -> None:
        """Take stable rows at the clock value `now`. Raises ProtocolError as `Tape.append` does."""
        chunk = self.tape.append(frame.first_id, frame.batch, frame.ingest)
        if chunk is not None:
            if chunk.low < self.corrected_from:
                upto = bucket_end(min(chunk.high, self.corrected_from - 1), self.bucket_us)
                self.note(Arrival(upto, ingest_at(chunk.ingest, chunk.low), BEGINNING, upto >= self.data_end))
            self._arrived(chunk, False, self._not_before(now))

    def take_tentative(self, frame: Data) -> None:
        """Take tentative rows of the visible replica. Only rows that are not before the highest t_max taken are new (R23)."""
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
        """Take a boundary at the clock value `now`; one that does not rise is ignored. A tentative one holds until an UNDO."""
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
        self.pause_us = frame.pause
        not_before = BEGINNING if frame.tentative else self._not_before(now)
        if frame.time >= INFINITY:
            self.ended = self.ended or (frame.ingest, not_before)
        else:
            upto = bucket_floor(frame.time, self.bucket_us)
            self.note(Arrival(upto, frame.ingest, not_before))
            self.data_end = max(self.data_end, upto)
            # A stable boundary is behind the rows by up to the disorder of the stream.
            self._reach(upto if frame.tentative else upto + self.disorder_us, frame.ingest, frame.tentative)
        self.boundaries.append((frame.time, frame.ingest))
        self.boundaries = bounded(self.boundaries, self.tape.most_notes)
        self.boundary_ingest = frame.ingest

    def _not_before(self, now: int) -> int:
        """The clock value before which stable input that arrives now is not overdue."""
        return now + self.grace_us + min(self.pause_us, self.grace_us)

    def revoke(self, now: int) -> None:
        """UNDO at the clock value `now`: drop the tentative suffix, rows and boundary."""
        self.corrected_from = self.boundary if self.is_early else BEGINNING
        self.undone_from, self.undone_at = max(self.undone_from, self.boundary), now
        self.suffix.clear()
        self.suffix_nbytes = 0
        self.suffix_boundary = BEGINNING
        self.t_max = BEGINNING
        self.boundaries = deque(known for known in self.boundaries if known[0] <= self.tape.boundary)
        self.data_end = self._stable_end()
        self.reach, self.reach_ingest = self.stable_reach, self.stable_reach_ingest
        # Revoked input comes again soon, or never. Until then it makes no bucket overdue (R8).
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
        """The names of the inputs that the tentative rows of [since, upto) lack, as their producer reported them."""
        since, names = max(since, self.tape.boundary), dict[str, None]()
        for blame in self.blames if since < upto else ():
            if blame.through > since:
                names.update(dict.fromkeys(blame.missing))
            if blame.through >= upto:
                break
        return tuple(names)

    def blamed_through(self, since: int) -> int | None:
        """The first event time after `since` at which the inputs that the rows lack change; None if there is none. Stable rows
        lack none."""
        stable = self.tape.boundary
        first = next((at for at, blame in enumerate(self.blames) if blame.through > max(since, stable)), len(self.blames))
        if since < stable and first < len(self.blames) and self.blames[first].missing:
            return stable
        return self.blames[first].through if first + 1 < len(self.blames) else None

    def released(self, upto: int) -> None:
        """Note that every row before `upto` has left: drop the arrivals and boundaries up to there."""
        self.forget_arrivals(upto)
        while self.boundaries and self.boundaries[0][0] <= upto:
            self.boundaries.popleft()

    def forget_arrivals(self, upto: int) -> None:
        """Drop the arrivals of buckets up to `upto`. These buckets have left, so they are no longer overdue."""
        while self.arrivals and self.arrivals[0].upto <= upto:
            self.arrivals.popleft()
        if self.early:
            self.early = [early for early in self.early if early > upto]

    def suffix_from(self, time: int) -> list[Chunk]:
        """The tentative chunks that may hold rows at or after a time.

        Rows that have left stay in the suffix until they are corrected, because they leave once more after a PREFIX heal (R16).
        """
        return self.suffix[bisect_left(self.suffix, time, key=lambda chunk: chunk.high) :]

    def evict(self, limit: int, released: int) -> None:
        """Drop the oldest rows of the tape, and of the suffix, while it holds more than `limit` bytes.

        Stable rows can be dropped because the log still has them. Tentative rows are dropped only if they are before the event
        time `released`, that is, if they have already left.
        """
        self.tape.evict(limit)
        while self.suffix_nbytes > limit and self.suffix[0].high < released:
            self.suffix_nbytes -= self.suffix.pop(0).nbytes

    def _stable_end(self) -> int:
        """The end of the last bucket for which stable input has arrived."""
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
        # The step of the producer may have passed buckets that have no rows here. They count from when it knew their ends.
        known = self.boundaries[-1][0] if self.boundaries else self.tape.boundary
        passed = [run for run in chunk.ingest if known < run[0] < INFINITY]
        self.boundaries.extend(passed)
        for through, at in passed:
            if through <= chunk.low:
                self.note(Arrival(bucket_floor(through, self.bucket_us), at, not_before))
        if leaps_from is None:
            # After an UNDO a producer writes many buckets in one frame. Each is due by its own ingest.
            for through, at in chunk.ingest:
                end = bucket_end(through - 1, self.bucket_us)
                if chunk.low < through and end < upto:
                    self.note(Arrival(end, at, not_before, end >= self.data_end))
            ingest = ingest_at(chunk.ingest, max(chunk.low, upto - self.bucket_us))
        self.note(Arrival(upto, ingest, not_before, is_edge, leaps_from is not None))
        self.data_end = max(self.data_end, upto)
        self._reach(upto, ingest_at(chunk.ingest, chunk.high), tentative)

    def note(self, arrival: Arrival) -> None:
        """Add an arrival. The list stays in the order of buckets and of deadlines.

        If rows are out of order, input for a later bucket may be due sooner. It then replaces the arrivals before it, because
        buckets leave in order.
        """
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
        """The last event time before a leap; None if there is no leap, or no row before it.

        A leap is a gap between rows of more than ahead_us plus the time that has passed between their ingest times. The passed
        time is taken off because a stream may be sparse: a row whose time has come is no leap, however old the row before it.
        """
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
