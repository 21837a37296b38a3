"""SUnion: puts the tuples of several streams into one deterministic order, and decides when a bucket may leave.

Theory of operation (DPC, sections 'Stable state', 'Upstream failure', 'Stabilization'; rulings R8-R21):

1. Event time is divided into buckets. A bucket is stable once the stable boundary of every port has passed its end. Stable
   buckets leave in order, and the rows of a step are in (time, port, id) order. So all replicas emit the same bytes.
2. A *view* is a position in event time: all rows before it have left. The stable view is `base`. Without a failure there is no
   other view.
3. A bucket may be delayed for alpha*X from its ingest. When the first deadline passes, SUnion emits MARK once and forks the
   view `live` off `base`. The rows that have arrived leave as tentative steps on `live`, and `base` stays at the mark.
4. The failure has healed when the stable boundaries have passed all tentative steps. At ROLLBACK, `live` is dropped (or kept
   beside the correction, R21). `base` then emits the same buckets again, now stable, until it has caught up: Redone. It reads
   rows that have left the memory again from the log. A new failure makes a new mark at the position of `base`.
5. A bucket may be overdue although no input has failed: rows may be out of order for longer than alpha*X, or a stream may be
   idle or behind another one. The bucket is then answered early. The means are the same (the mark is early), and early answers
   are corrected piece by piece as the stable boundaries rise. Rows are *stranded* if they arrive for a time that `live` has
   passed, although their stream is in order. To answer them within X, `live` is dropped, and they are due at their own
   deadline.

The machine is pure: frames and clock values are its input, items are its output. It never reads a clock.

Units, unless a field says otherwise: event time in microseconds; clock values and run time in microseconds of the run clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import pyarrow as pa

from boreal.model.frames import INFINITY, Ingest, ingest_suffix_min
from boreal.model.schema import Schema
from boreal.query.spec import Hold, Policy
from sunion.buckets import bucket_end, bucket_floor
from sunion.port import EARLY, Arrival, Port
from sunion.steps import Item, Mark, Redone, Step
from sunion.tape import BEGINNING, Chunk, Cursor

STEP_ROWS = 131_072
"""The default for the number of rows in a step, about."""

MOST_AGAIN = 8
"""How many times, on average, a tentative row may leave again so that corrections come early. It bounds their cost."""

FEW_ROWS = 1_024
"""So few rows may always leave tentatively again, because their cost does not matter."""

OUTWEIGHED = 4
"""Early answers are corrected as soon as S allows it once all rows since the mark are more than so many times theirs."""

NOTED_POSITIONS = 512
"""The number of positions of the live view for which SUnion remembers when they were reached."""

RETURN_SHARE = 20
"""The part of X for which a bucket that is overdue waits for a port that returns after an UNDO: half of the reserve (R9)."""

STEP_BYTES = 32 << 20
"""The default for the size of a step, in bytes, about. Rows may be wide, and for a host in another process each step is a
message, of which several are in transit."""

REPLAY_BYTES = 8 << 20
"""The default for the number of bytes per port that a view reads ahead from the log."""


class Heal(Enum):
    """How a failure has healed (R16)."""

    FULL = "full"
    """All tentative steps can be corrected."""
    PREFIX = "prefix"
    """A prefix of the tentative steps can be corrected. The rest leaves tentatively again."""


@dataclass(frozen=True, slots=True)
class Merge:
    """One input of the fragment's DAG: the union of some ports, whose streams have the same columns."""

    name: str
    """The name of the input."""
    ports: tuple[int, ...]
    """The indices of the ports. Rows of equal time are in this order."""
    schema: Schema
    """The columns of the union."""
    reordered: frozenset[int] = frozenset()
    """The indices of the ports whose columns are in another order than in the schema."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of SUnion."""

    bucket_us: int
    """The length of a bucket, in microseconds of event time."""
    grace_us: int
    """Buckets that became overdue during a redo wait for at most this after it, in microseconds of run time, because input that
    arrived meanwhile has not been processed yet (R8)."""
    stable_lag_max_us: int
    """How far stable output may lag behind stable input, in microseconds of run time. An older mark permits a PREFIX heal
    (R16)."""
    memory_bytes: int
    """The maximum size of the cache of each port, in bytes; it bounds the tape and the suffix separately."""
    step_rows: int = STEP_ROWS
    """The number of rows that one step may hold, about. It is bounded so that no call takes long."""
    step_bytes: int = STEP_BYTES
    """The bytes that one step may hold, about."""
    replay_bytes: int = REPLAY_BYTES
    """A view reads on from the log of a port while fewer bytes than this are queued, or while they do not complete a bucket."""
    ahead_us: int = INFINITY
    """A row that is more than this ahead of all boundaries, in microseconds of event time, is not overdue before its time has
    come."""
    bucket_run_us: int = 1
    """The time that a bucket takes to pass, in microseconds of run time."""
    disorder_us: int = 0
    """How far boundaries may be behind the rows, in microseconds of event time."""
    threshold_us: int = 0
    """X, in microseconds of run time."""


@dataclass(slots=True)
class TapeView:
    """How far rows have left SUnion."""

    position: int
    """Event time: exactly the rows before it have left, on every port."""
    cursors: list[Cursor]
    """The cursor on the tape of each port, in the order of the ports."""

    def fork(self) -> TapeView:
        """An independent view at the same position."""
        return TapeView(self.position, [cursor.fork() for cursor in self.cursors])


@dataclass(slots=True)
class SUnion:
    """The machine. Feed its ports, then call `advance` until it returns nothing."""

    ports: list[Port]
    """The input partitions. Their order is part of the order of rows, so it is the same in all replicas."""
    merges: tuple[Merge, ...]
    """The inputs of the fragment's DAG, as unions of ports."""
    settings: Settings
    """The parameters."""
    name: str
    """The name of the instance. The ids of failures begin with it."""
    policy: Policy
    """The policies for a failure and for its stabilization (R11). The second one applies to tentative steps while a replica
    reconciles: to a live branch beside the correction, and to the peer that stands in for the replica (`standing_in`)."""
    alpha_x_us: int
    """alpha*X: how long a bucket may be delayed from its ingest, in microseconds of run time (R9)."""
    base: TapeView = field(init=False)
    """The stable view."""
    live: TapeView | None = None
    """The tentative view, ahead of `base`; None if there is no mark, or after a ROLLBACK that did not keep it."""
    mark_number: int = 0
    """The number of the last mark; 0 before the first."""
    marked_at: int = 0
    """Clock value at which the last mark was made."""
    fixed_alpha_x_us: int | None = None
    """The alpha*X that the user has fixed, in microseconds of run time, if the fragments before this one have already delayed
    the rows for so long; else None. A bucket then leaves tentatively once this time is over and every port that is not missing
    has passed its end. alpha_x_us is how long SUnion waits for the other ports (R9)."""
    due: int = BEGINNING
    """Event time: the end of the last bucket that is overdue."""
    muted_until: int = BEGINNING
    """Event time: steps up to here are muted."""
    redoing: bool = False
    """Whether a correction is in progress, from ROLLBACK to Redone."""
    standing_in: bool = False
    """Whether this replica answers for a peer that reconciles (R22)."""
    eager_from: int = BEGINNING
    """Clock value: before it, the policy `process` lets only overdue buckets leave, because a correction is about to begin."""
    most_rows: int = STEP_ROWS
    """The limit of rows per step at present. `settings.step_rows` also applies."""
    rest: int = BEGINNING
    """Event time: the end of what had left tentatively at the last ROLLBACK, and leaves again. Tentative rows up to it are not
    counted as new. It is not after the input of a port that had stranded rows."""
    quiet_until: int = BEGINNING
    """Clock value: until then, buckets that became overdue during a redo are delayed (R8)."""
    quiet_through: int = BEGINNING
    """Event time: the end of the last of these buckets."""
    undone_through: int = BEGINNING
    """Event time: the end of the last bucket that was due at the last ROLLBACK."""
    cause: str = ""
    """The id of the current failure, or 'early'."""
    horizon: int = BEGINNING
    """H (R16), event time: the end of the last tentative step, or of the last bucket for which input had arrived then."""
    is_early: bool = False
    """Whether no input had failed when the tentative steps since the mark left."""
    mark_is_early: bool = False
    """Whether no input had failed when the mark was made."""
    stranded_at: int = INFINITY
    """Clock value at which the first stranded rows are overdue; INFINITY if there are none."""
    _stranded: dict[int, int] = field(default_factory=dict)
    """The ingest time (clock value) of stranded rows, by port index."""
    _behind: dict[int, Arrival] = field(default_factory=dict)
    """The arrivals of stranded rows, by port index. They are due again once the live view has ended."""
    _passed: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=NOTED_POSITIONS))
    """The newest tentative steps as (end in event time, clock value at which it left, ingest time of its last bucket)."""
    _live_rows: int = 0
    """The number of tentative rows since the mark."""
    _fresh_rows: int = 0
    """The number of tentative rows since the mark that had not left before."""
    _kept_from: int = INFINITY
    """Event time: the `replay_from` for which `_kept` was computed."""
    _kept: list[int] = field(default_factory=list)
    """The first id of each port that a replay from `_kept_from` needs."""
    _empty: dict[str, pa.RecordBatch] = field(init=False)
    """A batch without rows for each merge, by name."""

    def __post_init__(self) -> None:
        self.base = TapeView(BEGINNING, [Cursor(port.tape.next_id) for port in self.ports])
        self._tell_ports()
        self._empty = {merge.name: merge.schema.empty() for merge in self.merges}

    # Knowledge of the inputs

    @property
    def leading(self) -> TapeView:
        """The view that is ahead. Clients have received results up to its position."""
        return self.live if self.live is not None else self.base

    @property
    def stable_through(self) -> int:
        """S (R16): the smallest stable boundary over the ports, rounded down to the start of a bucket. Event time."""
        return self._floor(min([port.tape.boundary for port in self.ports]))

    def missing(self) -> tuple[str, ...]:
        """The names of the ports that tentative steps omit: silent ones, and failed ones behind the leading view (R11)."""
        return tuple([port.name for port in self.ports if self._is_missing(port)])

    def healed(self, now: int, replay_from: int) -> Heal | None:
        """How tentative steps can be corrected at the clock value `now` (R16); None if they cannot.

        replay_from: the event time from which the correction must process rows again.
        """
        if self.live is None or self.redoing or not self._can_redo(replay_from):
            return None
        stable, waited = self.stable_through, now - self.marked_at
        is_soon = self.is_early and waited < self._early_lag_us and stable < INFINITY
        if stable >= self._horizon() and self._has_news() and (not is_soon or self._is_outweighed()):
            return Heal.FULL
        if self.stranded_at <= now and self._is_cheap():
            return Heal.PREFIX
        if is_soon or stable < self.base.position + self.settings.bucket_us:
            return None
        if waited > self.settings.stable_lag_max_us or (self.is_early and self._is_cheap()):
            return Heal.PREFIX
        return None

    def _horizon(self) -> int:
        """H (R16), lowered by what inputs have revoked since."""
        return min(self.horizon, max(port.data_end for port in self.ports))

    def _has_news(self) -> bool:
        """Whether S has moved since the mark, or inputs have revoked something. Where no row came after the mark, a flush of
        open windows has its horizon there: S has reached it before anything has healed."""
        return self.stable_through > self.base.position or self._horizon() < self.horizon

    @property
    def _early_lag_us(self) -> int:
        """The shortest time for which early answers stay, in microseconds of run time. Otherwise answers that come just
        before their final ones would be undone one by one."""
        return min(self.alpha_x_us, self.settings.stable_lag_max_us)

    def _is_outweighed(self) -> bool:
        """Whether far more rows have come than have left early. They would leave early as well, and be undone with them."""
        return self.to_redo(self.base.position) > OUTWEIGHED * self._live_rows

    def _is_cheap(self) -> bool:
        """Whether the rows that would leave tentatively again are in proportion to those that were new."""
        return self._live_rows <= max(MOST_AGAIN * self._fresh_rows, FEW_ROWS)

    def to_redo(self, replay_from: int) -> int:
        """The number of known rows that a rollback would process, if it replays rows from the event time `replay_from` on."""
        is_before = replay_from < self.base.position
        return sum(
            port.tape.next_id - (port.tape.place_of(replay_from) if is_before else cursor.next_id)
            for cursor, port in zip(self.base.cursors, self.ports, strict=True)
        )

    def _can_redo(self, replay_from: int) -> bool:
        """Whether all rows from an event time on are available: in memory, or in a log that can be reached."""
        is_before = replay_from < self.base.position
        return all(
            not port.unreachable
            or (port.tape.place_of(replay_from) >= port.tape.cached_from if is_before else cursor.is_joined(port.tape))
            for cursor, port in zip(self.base.cursors, self.ports, strict=True)
        )

    # Orders from the consistency manager

    def set_threshold(self, threshold_us: int, stable_lag_max_us: int, ahead_us: int, grace_us: int) -> None:
        """Set X and the settings that depend on it; the units are those of `Settings`."""
        self.settings = replace(
            self.settings,
            threshold_us=threshold_us,
            stable_lag_max_us=stable_lag_max_us,
            ahead_us=ahead_us,
            grace_us=grace_us,
        )
        self._tell_ports()

    def _tell_ports(self) -> None:
        for port in self.ports:
            port.grace_us = self.settings.grace_us
            port.expect(self.settings.ahead_us, self.settings.bucket_run_us, self.settings.disorder_us)

    def begin_at(self, position: int, muted_until: int) -> None:
        """Start at a recovery point: with rows from the event time `position` on, muted up to `muted_until`."""
        self.base = TapeView(position, [Cursor(port.tape.next_id) for port in self.ports])
        self.muted_until = muted_until

    def roll_back(self, now: int, replay_from: int, keep_live: bool) -> None:
        """ROLLBACK: return to the mark, and emit stable steps from there, until `Redone`.

        Buckets that have left tentatively stay due: after a PREFIX heal the rest leaves again at once (R16).

        replay_from: the event time from which the restored state of the host needs rows again. If it is before the mark, steps
        up to the mark are muted. keep_live: whether tentative steps continue beside the correction, on a separate branch (R21).
        """
        assert self.live is not None and not self.redoing, "a rollback needs a mark"
        horizon, is_more_due = self._horizon(), self.due > self.live.position
        self.undone_through = max(self.due, horizon)
        # What inputs have revoked is about to come again, and has no rows yet. It is due when it comes (R8).
        self.rest, self.due = horizon, self.undone_through if horizon == self.horizon else horizon
        if self._stranded:
            # Clients already have results beyond the streams that are behind. If these buckets left again at once, they would
            # strand the next rows of these streams. Rows of these streams are due at their own deadline, and may be stable by
            # then. With disorder their rows leave at once, and so do all buckets that a reader may have delayed until now.
            self.rest = min(horizon, *(self.ports[at].data_end for at in self._stranded))
            if not is_more_due:
                held_back = min(max(self.rest, self._held_back_after(now)), horizon)
                self.due = held_back if self.settings.disorder_us else self.base.position
            for at, ingest in self._stranded.items():
                self._behind[at] = Arrival(min(self.ports[at].data_end, self.live.position), ingest, BEGINNING)
        self._forget_stranded()
        if not keep_live:
            self._end_live()
        if replay_from < self.base.position:
            self.muted_until = self.base.position
            self.base = TapeView(replay_from, [Cursor(port.tape.place_of(replay_from)) for port in self.ports])
        self.redoing = True

    def _held_back_after(self, now: int) -> int:
        """The end (event time) of the last tentative bucket that readers may still delay: it was ingested less than X ago."""
        since = now - self.settings.threshold_us
        return max((upto for upto, _, ingest in self._passed if ingest > since), default=BEGINNING)

    def drop_live(self) -> None:
        """End the live branch beside a correction, because the output of the correction can no longer be held back (R21)."""
        self._end_live()
        self._forget_stranded()

    def _end_live(self) -> None:
        """End the live view. Stranded rows now wait for their own deadline."""
        self.live = None
        for at, arrival in self._behind.items():
            self.ports[at].note(arrival)
        self._behind.clear()

    def _forget_stranded(self) -> None:
        self.stranded_at = INFINITY
        self._stranded.clear()

    # The loop

    def advance(self, now: int, overdue_counts: bool) -> list[Item]:
        """The next items: at most one step (after a MARK, if it needs one), or Redone. Empty if nothing may leave at `now`.

        now: a clock value. overdue_counts: False while the instance catches up, because no deadline applies then (R12).
        """
        if overdue_counts:
            self._collect_due(now)
            tentative = self._tentative_items(now) if self.live is not None else []
            if tentative:
                return tentative
        if self.live is None or self.redoing:
            stable = self._stable_step()
            if stable is not None:
                return [stable]
            if self.redoing and self._has_caught_up():
                self._end_redo(now)
                return [Redone(self.mark_number)]
        if overdue_counts and self.live is None and not self.redoing and not self._is_quiet(now):
            return self._tentative_items(now)
        return []

    def next_deadline(self) -> int | None:
        """The clock value at which a bucket becomes overdue, or early answers may be corrected; None if there is none."""
        returned_by = self._returned_by()
        waits = [self._overdue_at(*port.arrivals[0][1:3], returned_by) for port in self.ports if port.arrivals]
        if self.live is not None and not self.redoing:
            waits.append(self.stranded_at)
            if self.is_early:
                waits.append(self.marked_at + self._early_lag_us)
        flush = self._flush_at()
        if flush is not None:
            waits.append(flush)
        waits += [self._awaited_until(upto) for port in self.ports for upto in port.early]
        waits += self._complete_at()
        if self.due > self.leading.position:
            waits.append(self.quiet_until)
        return min(waits, default=None)

    def reads(self) -> Iterable[tuple[bool, int, int]]:
        """(is live view, port index, next id): where a view must read on from the log, because its replay queue is low."""
        views = [(False, self.base)] if self.redoing or self.live is None else []
        if self.live is not None:
            views.append((True, self.live))
        for is_live, view in views:
            for at, (cursor, port) in enumerate(zip(view.cursors, self.ports, strict=True)):
                if cursor.is_joined(port.tape):
                    continue
                queued = sum(chunk.nbytes for chunk in cursor.replayed)
                if queued < self.settings.replay_bytes or self._floor(cursor.boundary(port.tape)) <= view.position:
                    yield is_live, at, cursor.replayed_to

    def trim(self, replay_from: int) -> None:
        """Keep the memory within its bound.

        First drop the rows that every view has passed and that no rollback needs; a rollback replays rows from the event time
        `replay_from` on. Then, if the bound is still exceeded, drop the oldest rows.
        """
        released = INFINITY if self.policy.failure is Hold.SUSPEND else self.leading.position
        needed = [cursor.next_id for cursor in self.base.cursors]
        if self.live is not None:
            for at, (cursor, port) in enumerate(zip(self.live.cursors, self.ports, strict=True)):
                cursor.consume(port.tape, self.live.position)  # the live view has passed rows that came too late
                needed[at] = min(needed[at], cursor.next_id)
        if replay_from < self.base.position:
            if replay_from != self._kept_from:
                self._kept_from = replay_from
                self._kept = [port.tape.place_of(replay_from) for port in self.ports]
            needed = [min(pair) for pair in zip(needed, self._kept, strict=True)]
        for port, first_id in zip(self.ports, needed, strict=True):
            port.tape.drop_before(first_id)
            port.evict(self.settings.memory_bytes, released)

    # Stable steps

    def _stable_step(self) -> Step | None:
        view = self.base
        if self.stable_through <= view.position:
            return None  # no cursor is beyond its tape
        through = self._floor(min([cursor.boundary(port.tape) for cursor, port in zip(view.cursors, self.ports, strict=True)]))
        if through <= view.position:
            return None
        if view.position < self.muted_until:
            through = min(through, self.muted_until)
        return self._step(view, through, tentative=False)

    def _end_redo(self, now: int) -> None:
        self.redoing = False
        self._end_live()
        self._forget_stranded()
        is_corrected = self.base.position >= self.rest
        self.quiet_until = now + self.settings.grace_us if is_corrected else now
        self.quiet_through = max(self._due_through(now), self.undone_through)

    def _has_caught_up(self) -> bool:
        """Whether no stable rows are left to redo, or only rows in logs that cannot be reached."""
        return all(
            cursor.is_joined(port.tape) or port.unreachable for cursor, port in zip(self.base.cursors, self.ports, strict=True)
        )

    # Tentative steps

    def _tentative_items(self, now: int) -> list[Item]:
        hold = self.policy.stabilization if self.redoing or self.standing_in else self.policy.failure
        if hold is Hold.SUSPEND:
            return []
        target = max(self._due_through(now), self._complete_through(now))
        if hold is Hold.PROCESS and self.live is not None and now >= self.eager_from:
            target = max(target, self._all_present_through(now))
        view = self.leading
        if target <= view.position or view.position < self.muted_until:
            return []
        target = min(target, self._readable_through(view))
        if target <= view.position:
            return []
        items: list[Item] = []
        is_early = not any(port.failed for port in self.ports)
        if self.live is None:
            self.live = self.base.fork()
            self.mark_number += 1
            self.marked_at = now
            self.is_early = self.mark_is_early = is_early
            self._live_rows = self._fresh_rows = 0
            self._passed.clear()
            self.cause = EARLY if is_early else self._cause()
            items.append(Mark(self.mark_number, self.base.position, is_early))
        elif self.is_early and not is_early:
            self.is_early, self.cause = False, self._cause()
        step = self._step(self.live, target, tentative=True)
        self.horizon = min(step.upto, max(port.data_end for port in self.ports))
        self._passed.append((step.upto, now, step.ingest[-1][1]))
        rows = sum(batch.num_rows for batch in step.batches.values())
        self._live_rows += rows
        self._fresh_rows += rows if step.upto > self.rest else 0
        items.append(step)
        return items

    def _cause(self) -> str:
        upstream = (port.upstream_cause for port in self.ports if port.upstream_cause and port.failed and not port.is_early)
        return next(upstream, f"{self.name}-{self.mark_number}")

    def _collect_due(self, now: int) -> None:
        returned_by, position = self._returned_by(), self.leading.position
        for at, port in enumerate(self.ports):
            if not port.arrivals and not port.early:
                continue
            if self.live is not None:
                self._note_stranded(at, port)
            port.forget_arrivals(position)  # otherwise their grace would delay later arrivals
            while port.arrivals and self._overdue_at(*port.arrivals[0][1:3], returned_by) <= now:
                arrival = port.arrivals.popleft()
                if arrival.is_leap and self._is_ahead(arrival.upto):
                    port.early.append(arrival.upto)
                else:
                    self.due = max(self.due, arrival.upto)
            if port.early:
                self.due = max([self.due, *(upto for upto in port.early if self._awaited_until(upto) <= now)])

    def _note_stranded(self, at: int, port: Port) -> None:
        """Note the stranded rows of a port: rows at the edge of the stream, ingested after the live view had passed their time.

        They are new, and no result has spoken for them (R14). Nor has one for rows that were on their way here then. They are
        due after half of alpha*X, sooner than other rows, because what is due then leaves once more.
        """
        under_way_us = self.settings.bucket_run_us
        for arrival in port.arrivals:
            if arrival.upto > self.leading.position:
                break
            if arrival.is_edge and arrival.ingest > self._passed_at(arrival.upto) - under_way_us:
                self._stranded.setdefault(at, arrival.ingest)
                self.stranded_at = min(self.stranded_at, max(arrival.ingest + self.alpha_x_us // 2, arrival.not_before))

    def _passed_at(self, upto: int) -> int:
        """The clock value at which the bucket that ends at the event time `upto` left on the live view."""
        first = bisect_right(self._passed, upto - 1, key=lambda note: note[0])
        return self._passed[min(first, len(self._passed) - 1)][1] if self._passed else self.marked_at

    def _lead(self) -> Port | None:
        """Of the ports that have not ended, the one with the highest boundary; None if no such port has a boundary."""
        lead = max((port for port in self.ports if port.boundary < INFINITY), key=lambda port: port.boundary, default=None)
        return lead if lead is not None and lead.boundary > BEGINNING else None

    def _is_ahead(self, upto: int) -> bool:
        """Whether rows up to an event time are far ahead of all boundaries.

        Such rows must not make their bucket due: buckets leave in order, so all earlier rows of the stream that are still to
        come would be too late for the live view.
        """
        lead = self._lead()
        return lead is not None and upto - lead.boundary > self.settings.ahead_us

    def _awaited_until(self, upto: int) -> int:
        """The clock value at which rows far ahead are overdue: alpha*X after the boundaries are expected to reach them."""
        lead = self._lead()
        if lead is None:
            return BEGINNING
        left_us = (upto - lead.boundary) * self.settings.bucket_run_us // self.settings.bucket_us
        return lead.boundary_ingest + left_us + self.alpha_x_us

    def _overdue_at(self, ingest: int, not_before: int, returned_by: int) -> int:
        """The clock value at which a bucket is overdue. It waits a little longer for a port that returns after an UNDO (R8)."""
        overdue_at = max(ingest + self.alpha_x_us, not_before)
        if returned_by <= overdue_at:
            return overdue_at
        latest = ingest + self.alpha_x_us + self.settings.threshold_us // RETURN_SHARE
        return max(overdue_at, min(latest, returned_by))

    def _returned_by(self) -> int:
        """The clock value by which the ports that return after an UNDO are expected to have their suffixes again."""
        undone_at = BEGINNING
        for port in self.ports:  # asked several times a tick, so without a list
            if port.undone_at > undone_at and port.is_returning:
                undone_at = port.undone_at
        return undone_at + self.settings.grace_us

    def _due_through(self, now: int) -> int:
        """The event time up to which delayed buckets are overdue; INFINITY if open windows are overdue, too."""
        return max(self.due, self._flush_through(now))

    def _is_quiet(self, now: int) -> bool:
        """Whether buckets that became overdue during a redo are delayed a little longer, because their input may have arrived.

        The delay ends with the next deadline, which is met like any other (R8).
        """
        return now < self.quiet_until and self._due_through(now) <= self.quiet_through

    def _flush_at(self) -> int | None:
        """The clock value at which open windows are due; None if they are not, or if they close by stable boundaries.

        They are due if every port that is not missing has ended, while another port is missing, or the end of one is tentative
        (R11).
        """
        for port in self.ports:
            if port.ended is not None:
                break
        else:
            return None
        present = [port for port in self.ports if not self._is_missing(port)]
        if not present or self.leading.position >= INFINITY or self.stable_through >= INFINITY:
            return None
        ends = [port.ended for port in present if port.ended is not None]
        if len(ends) < len(present):
            return None
        returned_by = self._returned_by()
        return max(self._overdue_at(*end, returned_by) for end in ends)

    def _flush_through(self, now: int) -> int:
        flush = self._flush_at()
        return INFINITY if flush is not None and flush <= now else BEGINNING

    def _all_present_through(self, now: int) -> int:
        """R11: the event time up to which every port that is not missing has a boundary.

        A port that is behind by at most alpha*X is waited for, so that its rows can be included. Buckets then leave at their
        deadlines.
        """
        position = self.leading.position
        known = [
            port.boundary
            for port in self.ports
            if not port.silent and (port.boundary >= position or now - port.boundary_ingest <= self.alpha_x_us)
        ]
        # Open windows of ended streams wait for a missing stream as long as any bucket: until their deadline (`_flush_at`).
        return self._floor(min(known)) if known and min(known) < INFINITY else BEGINNING

    def _complete_through(self, now: int) -> int:
        """The event time up to which the fixed alpha*X is over, and no other port is waited for."""
        if self.fixed_alpha_x_us is None:
            return BEGINNING
        alpha_x_us = self.fixed_alpha_x_us
        over = (upto for port in self.ports for upto, at, least, *_ in port.arrivals if max(at + alpha_x_us, least) <= now)
        return min(max(over, default=BEGINNING), self._all_present_through(now))

    def _complete_at(self) -> list[int]:
        """The clock values at which the fixed alpha*X is over, for buckets for which no other port is waited for."""
        if self.fixed_alpha_x_us is None:
            return []
        alpha_x_us, through = self.fixed_alpha_x_us, self._all_present_through(INFINITY)
        if through <= self.leading.position:
            return []
        firsts = [port.arrivals[0] for port in self.ports if port.arrivals and port.arrivals[0][0] <= through]
        return [max(at + alpha_x_us, least) for _, at, least, *_ in firsts]

    def _readable_through(self, view: TapeView) -> int:
        """The event time up to which all rows of reachable ports are in memory.

        A port whose rows must be read again from a reachable log is waited for, because its rows are not missing.
        """
        waits = [
            self._floor(cursor.boundary(port.tape))
            for cursor, port in zip(view.cursors, self.ports, strict=True)
            if not port.unreachable and not cursor.is_joined(port.tape)
        ]
        return min(waits, default=INFINITY)

    def _is_missing(self, port: Port) -> bool:
        """Whether tentative steps do not wait for a port (R11). A port that is only behind early answers is not missing."""
        return port.silent or (port.failed and port.boundary < self.leading.position)

    # Making a step

    def _step(self, view: TapeView, through: int, tentative: bool) -> Step:
        upto = self._limited(view, through, tentative)
        since = view.position
        taken = [self._take(view, at, since, upto, tentative) for at in range(len(self.ports))]
        muted = upto <= self.muted_until
        missing, cause = self._why(since, upto) if tentative else ((), "")
        ingest = self._ingest(taken, upto)
        batches = {merge.name: self._merge(merge, taken) for merge in self.merges}
        view.position = upto
        for cursor, port in zip(view.cursors, self.ports, strict=True):
            cursor.consume(port.tape, upto)
            if view is self.leading:
                port.released(upto)
        return Step(batches, upto, tentative, muted, ingest, missing, cause)

    def _limited(self, view: TapeView, through: int, tentative: bool) -> int:
        """The bucket end, at most `through`, at which a step holds about step_rows or step_bytes. Each port has an equal share.

        A tentative step also ends where the inputs that its rows lack change, so that each bucket names what it lacks (R11).
        """
        if tentative:
            through = min([through, *self._changes(view.position)])
        share_rows = max(min(self.settings.step_rows, self.most_rows) // len(self.ports), 1)
        share_bytes = max(self.settings.step_bytes // len(self.ports), 1)
        for cursor, port in zip(view.cursors, self.ports, strict=True):
            rows, room = 0, share_bytes
            for chunk in self._chunks(cursor, port, through, view.position, tentative):
                rows += len(chunk.times)
                last, room = chunk.fitting(view.position, room)
                if rows >= share_rows or room <= 0:
                    through = min(through, bucket_end(max(last, view.position), self.settings.bucket_us))
                    break
        return through

    def _changes(self, position: int) -> Iterator[int]:
        """Bucket ends after a position at which the inputs that tentative rows lack may change.

        These are the boundary of each port, and the point where the tentative rows of a port begin to lack something else.
        """
        for port in self.ports:
            known = self._floor(port.boundary)
            if known > position:
                yield known
            blamed = port.blamed_through(position)
            if blamed is not None:
                yield max(self._floor(blamed), bucket_end(position, self.settings.bucket_us))

    def _chunks(self, cursor: Cursor, port: Port, through: int, position: int, tentative: bool) -> Iterator[Chunk]:
        yield from cursor.pending(port.tape, through)
        if tentative:
            yield from port.suffix_from(position)

    def _take(self, view: TapeView, at: int, since: int, upto: int, tentative: bool) -> _Taken:
        """The rows of one port in [since, upto), in id order: the stable prefix, then the tentative suffix."""
        port = self.ports[at]
        stable_upto = min(upto, port.stable_counts_until) if tentative else upto
        taken = _Taken([], [], True, [])
        for chunk in view.cursors[at].pending(port.tape, stable_upto):
            taken.add(chunk.between(since, stable_upto), chunk.ordered, chunk.ingest)
        if tentative:
            for chunk in port.suffix_from(since):
                taken.add(chunk.between(max(since, port.tape.boundary), upto), chunk.ordered, chunk.ingest)
        return taken

    def _merge(self, merge: Merge, taken: Sequence[_Taken]) -> pa.RecordBatch:
        """The rows of a merge in (time, port, id) order: joined in port order, then sorted on time by a stable sort."""
        batches = [
            batch.select(merge.schema.arrow.names) if at in merge.reordered else batch
            for at in merge.ports
            for batch in taken[at].batches
        ]
        if not batches:
            return self._empty[merge.name]
        merged = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        parts = [part for at in merge.ports for part in taken[at].times]
        if len(parts) == 1 and all(taken[at].ordered for at in merge.ports):
            return merged
        times = np.concatenate(parts)
        if (times[1:] >= times[:-1]).all():
            return merged
        return merged.take(pa.array(times.argsort(kind="stable")))

    def _ingest(self, taken: Sequence[_Taken], upto: int) -> Ingest:
        """The ingest time from which each bucket of a step counts (R8): the earlier of those of its oldest row and of the first
        boundary past its end.

        A boundary far past the bucket, or the end of a stream, does not say how far time has come in the other streams. It
        counts only if there is nothing else.
        """
        entries: list[tuple[int, int]] = []
        leaps: list[int] = []
        for port, part in zip(self.ports, taken, strict=True):
            for high, ingest in part.ingest:
                end = bucket_end(high, self.settings.bucket_us)
                entries.extend((min(through, end), at) for through, at in ingest)
            for time, at in port.boundaries:
                if time >= upto and time - upto > self.settings.ahead_us:
                    leaps.append(at)
                    break
                if time < INFINITY:
                    entries.append((min(self._floor(time), upto), at))
                if time >= upto:
                    break
        runs = ingest_suffix_min(entries)
        if runs and runs[-1][0] >= upto:
            return runs
        if upto >= INFINITY:
            last = max(port.ended[0] for port in self.ports if port.ended is not None)
        else:
            last = min(leaps, default=max(port.boundary_ingest for port in self.ports))
        return (*runs, (upto, max(last, runs[-1][1]) if runs else last))

    def _why(self, since: int, upto: int) -> tuple[tuple[str, ...], str]:
        if self.is_early:
            return (), self.cause
        missing = dict.fromkeys(port.name for port in self.ports if port.boundary < upto)
        for port in self.ports:
            missing.update(dict.fromkeys(port.missing_in(since, upto)))
        return tuple(missing), self.cause

    def _floor(self, time: int) -> int:
        return bucket_floor(time, self.settings.bucket_us)


@dataclass(slots=True)
class _Taken:
    """The rows of one port for a step, in pieces."""

    batches: list[pa.RecordBatch]
    """The rows of each piece, in id order."""
    times: list[np.ndarray]
    """The event times of the rows of each piece, in microseconds: int64, shape (rows,)."""
    ordered: bool
    """Whether the times within each piece never fall."""
    ingest: list[tuple[int, Ingest]]
    """The highest event time and the ingest times of each piece."""

    def add(self, piece: tuple[pa.RecordBatch, np.ndarray] | None, ordered: bool, ingest: Ingest) -> None:
        if piece is None:
            return
        batch, times = piece
        self.batches.append(batch)
        self.times.append(times)
        self.ordered = self.ordered and ordered
        self.ingest.append((int(times[-1]) if ordered else int(times.max()), ingest))
