"""SUnion: puts the tuples of several streams into one deterministic order, and decides when a bucket may leave.

Theory of operation (DPC, sections 'Stable state', 'Upstream failure', 'Stabilization'; rulings R8-R21):

1. Time is cut into buckets. A bucket is stable once the stable boundary of every port has passed its end. Stable
   buckets leave in order, and within a step rows are in (time, port, id) order, so replicas emit the same bytes.
2. A *view* is how far the rows have been handed on: `base` is the stable one. It alone exists while all is well.
3. A bucket may be held back for alpha*X from its ingest. When the deadline of one passes, MARK is emitted once, `live`
   is forked off `base`, and what is there leaves as tentative steps on `live`, while `base` stands still at the mark.
4. When the stable boundary has passed what was handed on tentatively, the failure has healed. At ROLLBACK `live` is
   dropped (or kept beside, R21), and `base` hands on the same buckets again, now stable, reading again from the log
   what memory no longer holds, until it has caught up: Redone. A new failure then makes a new mark, where `base` is.
5. A bucket may be overdue although no input has failed: rows may come out of order for longer than alpha*X, a stream may be
   idle, or behind another. It is answered early, by the same means (the mark is early), and corrected piece by piece as the
   stable boundaries go on. Rows that come for a time that `live` has passed, from a stream that is not out of order, are
   stranded: to answer them within X, `live` is given up, and they are due at their own deadline.

The machine is pure: frames and the time go in, items come out; it never asks what time it is.
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

MOST_AGAIN = 8
"""What is handed on tentatively may be handed on again so many times on average, for the sake of early corrections."""

FEW_ROWS = 1_024
"""So few rows may be handed on tentatively again at any rate."""

NOTED_POSITIONS = 512
"""Of the live view's positions, those of which it is known when they were reached."""

STEP_BYTES = 32 << 20
"""Rows may be wide: a step for a host in another process is a message, of which several are under way."""

REPLAY_BYTES = 8 << 20


class Healed(Enum):
    """How a failure has healed (R16)."""

    FULL = "full"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Merge:
    """One input of the fragment's DAG: the union, in this order, of these ports, whose streams have the same columns;
    `reordered` are the ports that have them in another order than the schema."""

    name: str
    ports: tuple[int, ...]
    schema: Schema
    reordered: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Settings:
    """SUnion's constants. bucket_us is event time, the rest run time; memory_bytes bounds each port's cache; step_rows and
    step_bytes are about how much one step may hold, so that no call takes long. grace_us: after a redo, what became overdue
    in its midst waits so long at most, since what arrived meanwhile has not been looked at (R8). ahead_us: a row that is
    more event time than this ahead of all boundaries is not overdue before its time has come; bucket_run_us: how long a
    bucket takes in run time; disorder_us: how far boundaries may be behind their rows, in event time;
    threshold_us: X.
    """

    bucket_us: int
    grace_us: int
    stable_lag_max_us: int
    memory_bytes: int
    step_rows: int = STEP_ROWS
    step_bytes: int = STEP_BYTES
    replay_bytes: int = REPLAY_BYTES
    ahead_us: int = INFINITY
    bucket_run_us: int = 1
    disorder_us: int = 0
    threshold_us: int = 0


@dataclass(slots=True)
class View:
    """How far rows have been handed on: all with time < position, on every port."""

    position: int
    cursors: list[Cursor]

    def fork(self) -> View:
        return View(self.position, [cursor.fork() for cursor in self.cursors])


@dataclass(slots=True)
class SUnion:
    """The machine. Feed its ports, then call `advance` until it returns nothing.

    policy: for a failure, and for its stabilization. The second one holds for what goes on while a replica reconciles: a kept
    live branch, or the peer that stands in for it (`standing_in`). eager_from: before this time `process` hands on only what is
    overdue, since a correction is about to begin. most_rows: as settings.step_rows, for now. horizon: H (R16), the end of
    what was handed on tentatively. is_early: nothing had failed when that was done, and mark_is_early: when the mark was made.
    stranded_at: when rows that came behind the live view are overdue. fixed_alpha_x_us: what the user has
    fixed, where others have held rows back for it before they came here: a bucket leaves once that is over, if every port
    that is there has passed it; alpha_x_us is then how long the others are waited for (R9).
    """

    ports: list[Port]
    merges: tuple[Merge, ...]
    settings: Settings
    name: str
    policy: Policy
    alpha_x_us: int
    base: View = field(init=False)
    live: View | None = None
    mark_number: int = 0
    marked_at: int = 0
    fixed_alpha_x_us: int | None = None
    due: int = BEGINNING
    muted_until: int = BEGINNING
    redoing: bool = False
    standing_in: bool = False
    eager_from: int = BEGINNING
    most_rows: int = STEP_ROWS
    rest: int = BEGINNING
    quiet_until: int = BEGINNING
    quiet_through: int = BEGINNING
    cause: str = ""
    horizon: int = BEGINNING
    is_early: bool = False
    mark_is_early: bool = False
    stranded_at: int = INFINITY
    _stranded: dict[int, int] = field(default_factory=dict)
    _behind: dict[int, Arrival] = field(default_factory=dict)
    _passed: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=NOTED_POSITIONS))
    _live_rows: int = 0
    _fresh_rows: int = 0
    _kept_from: int = INFINITY
    _kept: list[int] = field(default_factory=list)
    _empty: dict[str, pa.RecordBatch] = field(init=False)

    def __post_init__(self) -> None:
        self.base = View(BEGINNING, [Cursor(port.tape.next_id) for port in self.ports])
        self._tell_ports()
        self._empty = {merge.name: merge.schema.empty() for merge in self.merges}

    # What is known of the inputs

    @property
    def leading(self) -> View:
        """The view that is ahead: what clients were given so far."""
        return self.live if self.live is not None else self.base

    @property
    def stable_through(self) -> int:
        """S (R16): the smallest stable boundary over the ports, down to a bucket's start."""
        return self._floor(min(port.tape.boundary for port in self.ports))

    def missing(self) -> tuple[str, ...]:
        """Ports that a tentative step goes on without: silent ones, and failed ones behind what was already handed on (R11)."""
        return tuple(port.name for port in self.ports if self._is_missing(port))

    def healed(self, now: int, replay_from: int) -> Healed | None:
        """Whether what was handed on tentatively can now be corrected (R16), giving rows again from a time on."""
        if self.live is None or self.redoing or not self._can_redo(replay_from):
            return None
        stable, waited = self.stable_through, now - self.marked_at
        is_soon = self.is_early and waited < self._early_lag_us and stable < INFINITY
        if stable >= self._horizon() and not is_soon:
            return Healed.FULL
        if self.stranded_at <= now and self._is_cheap():
            return Healed.PREFIX
        if is_soon or stable < self.base.position + self.settings.bucket_us:
            return None
        if waited > self.settings.stable_lag_max_us or (self.is_early and self._is_cheap()):
            return Healed.PREFIX
        return None

    def _horizon(self) -> int:
        """H (R16), less what inputs have revoked since."""
        return min(self.horizon, max(port.data_end for port in self.ports))

    @property
    def _early_lag_us(self) -> int:
        """How long early answers stand at least, lest those that come just before their final ones are undone one by one."""
        return min(self.alpha_x_us, self.settings.stable_lag_max_us)

    def _is_cheap(self) -> bool:
        """Whether handing on again what is tentative is in proportion to what was new in it."""
        return self._live_rows <= max(MOST_AGAIN * self._fresh_rows, FEW_ROWS)

    def to_redo(self, replay_from: int) -> int:
        """How many rows that are here a rollback would hand on, giving rows again from a time on."""
        is_before = replay_from < self.base.position
        return sum(
            port.tape.next_id - (port.tape.place_of(replay_from) if is_before else cursor.next_id)
            for cursor, port in zip(self.base.cursors, self.ports, strict=True)
        )

    def _can_redo(self, replay_from: int) -> bool:
        """Whether all rows from a time on can be had: those that memory does not hold come from logs within reach."""
        is_before = replay_from < self.base.position
        return all(
            not port.unreachable
            or (port.tape.place_of(replay_from) >= port.tape.cached_from if is_before else cursor.is_joined(port.tape))
            for cursor, port in zip(self.base.cursors, self.ports, strict=True)
        )

    # Orders from the consistency manager

    def set_threshold(self, threshold_us: int, stable_lag_max_us: int, ahead_us: int) -> None:
        """A new X, and what follows from it."""
        self.settings = replace(
            self.settings, threshold_us=threshold_us, stable_lag_max_us=stable_lag_max_us, ahead_us=ahead_us
        )
        self._tell_ports()

    def _tell_ports(self) -> None:
        for port in self.ports:
            port.expect(self.settings.ahead_us, self.settings.bucket_run_us, self.settings.disorder_us)

    def begin_at(self, position: int, muted_until: int) -> None:
        """Start at a place other than the beginning: rows from `position` on, output thrown away up to `muted_until`."""
        self.base = View(position, [Cursor(port.tape.next_id) for port in self.ports])
        self.muted_until = muted_until

    def roll_back(self, now: int, replay_from: int, keep_live: bool) -> None:
        """ROLLBACK: return to the mark, and hand on stable rows from there, until `Redone`.

        What was handed on tentatively stays due: after a partial heal the rest leaves again at once (R16).

        replay_from: the time from which the host's restored state must be given rows again; where that is before the
        mark, steps up to the mark are muted. keep_live: tentative steps go on beside them, on a branch of their own (R21).
        """
        assert self.live is not None and not self.redoing, "a rollback needs a mark"
        horizon, is_more_due = self._horizon(), self.due > self.live.position
        self.rest, self.due = horizon, max(self.due, horizon)
        if self._stranded:
            # What is beyond the streams that are behind was given already; handed on at once, it would strand them again. What
            # they have is due at its own deadline, and by then it may be stable. Where rows are out of order anyway, what they
            # have leaves at once, and so does what a reader may have held back until now.
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
            self.base = View(replay_from, [Cursor(port.tape.place_of(replay_from)) for port in self.ports])
        self.redoing = True

    def _held_back_after(self, now: int) -> int:
        """Through where readers may hold back what was handed on tentatively: it came less than X ago."""
        since = now - self.settings.threshold_us
        return max((upto for upto, _, ingest in self._passed if ingest > since), default=BEGINNING)

    def drop_live(self) -> None:
        """Give up the live branch beside a correction: its output can no longer be held back."""
        self._end_live()
        self._forget_stranded()

    def _end_live(self) -> None:
        """From here on what came behind the live view waits for its own deadline."""
        self.live = None
        for at, arrival in self._behind.items():
            self.ports[at].note(arrival)
        self._behind.clear()

    def _forget_stranded(self) -> None:
        self.stranded_at = INFINITY
        self._stranded.clear()

    # The loop

    def advance(self, now: int, overdue_counts: bool) -> list[Item]:
        """The next items: at most one step (with the MARK before it), or Redone. Empty when nothing may leave now.

        overdue_counts: False while the instance is catching up, when no deadline holds (R12).
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
        """When the next held-back bucket becomes overdue, on the run clock; None where nothing is held back."""
        waits = [self._overdue_at(*port.arrivals[0][1:3]) for port in self.ports if port.arrivals]
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
        """(is live view, port, next id): places where a view must read on from the log, its replay queue being low."""
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
        """Keep memory within its bound: forget rows that every view is past and that no rollback would want again, which
        starts at `replay_from`; then, beyond the bound, the oldest."""
        released = INFINITY if self.policy.failure is Hold.SUSPEND else self.leading.position
        needed = [cursor.next_id for cursor in self.base.cursors]
        if self.live is not None:
            for at, (cursor, port) in enumerate(zip(self.live.cursors, self.ports, strict=True)):
                cursor.consume(port.tape, self.live.position)  # rows that came too late for it
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
        through = self._floor(min(cursor.boundary(port.tape) for cursor, port in zip(view.cursors, self.ports, strict=True)))
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
        self.quiet_through = self._due_through(now)

    def _has_caught_up(self) -> bool:
        """Nothing stable is left to redo, or what is left lies in a log out of reach."""
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
        for at, port in enumerate(self.ports):
            if self.live is not None:
                self._note_stranded(at, port)
            port.forget_arrivals(self.leading.position)  # else their grace would hold back what came after them
            while port.arrivals and self._overdue_at(*port.arrivals[0][1:3]) <= now:
                arrival = port.arrivals.popleft()
                if arrival.is_leap and self._is_ahead(arrival.upto):
                    port.early.append(arrival.upto)
                else:
                    self.due = max(self.due, arrival.upto)
            if port.early:
                self.due = max([self.due, *(upto for upto in port.early if self._awaited_until(upto) <= now)])

    def _note_stranded(self, at: int, port: Port) -> None:
        """Rows at a stream's edge that were ingested after the live view had passed their time are new, and nobody has spoken
        for them (R14). They are due sooner than others, since what is due is then handed on once more."""
        for arrival in port.arrivals:
            if arrival.upto > self.leading.position:
                break
            if arrival.is_edge and arrival.ingest > self._passed_at(arrival.upto):
                self._stranded.setdefault(at, arrival.ingest)
                self.stranded_at = min(self.stranded_at, max(arrival.ingest + self.alpha_x_us // 2, arrival.not_before))

    def _passed_at(self, upto: int) -> int:
        """When the live view handed on the bucket that ends here."""
        first = bisect_right(self._passed, upto - 1, key=lambda note: note[0])
        return self._passed[min(first, len(self._passed) - 1)][1] if self._passed else self.marked_at

    def _lead(self) -> Port | None:
        """The port that is furthest, of those that have not ended; None where that says nothing of the time."""
        lead = max((port for port in self.ports if port.boundary < INFINITY), key=lambda port: port.boundary, default=None)
        return lead if lead is not None and lead.boundary > BEGINNING else None

    def _is_ahead(self, upto: int) -> bool:
        """Whether rows up to a time are far ahead of all boundaries. They would make all of their stream's due that are still
        to come, and these would be too late for the live view."""
        lead = self._lead()
        return lead is not None and upto - lead.boundary > self.settings.ahead_us

    def _awaited_until(self, upto: int) -> int:
        """When rows ahead are overdue: alpha*X after the inputs should have come there by themselves."""
        lead = self._lead()
        if lead is None:
            return BEGINNING
        left_us = (upto - lead.boundary) * self.settings.bucket_run_us // self.settings.bucket_us
        return lead.boundary_ingest + left_us + self.alpha_x_us

    def _overdue_at(self, ingest: int, not_before: int) -> int:
        return max(ingest + self.alpha_x_us, not_before)

    def _due_through(self, now: int) -> int:
        """Through where what is held back is overdue, open windows with it."""
        return max(self.due, self._flush_through(now))

    def _is_quiet(self, now: int) -> bool:
        """What became overdue in the midst of a redo is held back a little longer, for its input may be here by now; but
        no longer than until the next deadline, which is met like any other (R8)."""
        return now < self.quiet_until and self._due_through(now) <= self.quiet_through

    def _flush_at(self) -> int | None:
        """When the open windows are due: every port that is there has ended, though another is missing, or the end of one
        is tentative."""
        if all(port.ended is None for port in self.ports):
            return None
        present = [port for port in self.ports if not self._is_missing(port)]
        if not present or self.leading.position >= INFINITY or self.stable_through >= INFINITY:
            return None
        ends = [port.ended for port in present if port.ended is not None]
        if len(ends) < len(present):
            return None
        return max(self._overdue_at(*end) for end in ends)

    def _flush_through(self, now: int) -> int:
        flush = self._flush_at()
        return INFINITY if flush is not None and flush <= now else BEGINNING

    def _all_present_through(self, now: int) -> int:
        """R11: through where every port that is not missing is known. One that is behind by less than alpha*X is waited for,
        that its rows may join: buckets then leave at their deadlines."""
        position = self.leading.position
        known = [
            port.boundary
            for port in self.ports
            if not port.silent and (port.boundary >= position or now - port.boundary_ingest <= self.alpha_x_us)
        ]
        # Open windows of streams that have ended wait for a missing one as long as any bucket does.
        return self._floor(min(known)) if known and min(known) < INFINITY else BEGINNING

    def _complete_through(self, now: int) -> int:
        """Through where the time that the user has fixed is over, and nobody else is waited for."""
        if self.fixed_alpha_x_us is None:
            return BEGINNING
        alpha_x_us = self.fixed_alpha_x_us
        over = (upto for port in self.ports for upto, at, least, *_ in port.arrivals if max(at + alpha_x_us, least) <= now)
        return min(max(over, default=BEGINNING), self._all_present_through(now))

    def _complete_at(self) -> list[int]:
        """When that time is over, for what nobody else is waited for."""
        if self.fixed_alpha_x_us is None:
            return []
        alpha_x_us, through = self.fixed_alpha_x_us, self._all_present_through(INFINITY)
        if through <= self.leading.position:
            return []
        firsts = [port.arrivals[0] for port in self.ports if port.arrivals and port.arrivals[0][0] <= through]
        return [max(at + alpha_x_us, least) for _, at, least, *_ in firsts]

    def _readable_through(self, view: View) -> int:
        """A port within reach whose rows must be read again from the log is waited for: its rows are not missing."""
        waits = [
            self._floor(cursor.boundary(port.tape))
            for cursor, port in zip(view.cursors, self.ports, strict=True)
            if not port.unreachable and not cursor.is_joined(port.tape)
        ]
        return min(waits, default=INFINITY)

    def _is_missing(self, port: Port) -> bool:
        """One that is merely behind what was answered early goes on."""
        return port.silent or (port.failed and port.boundary < self.leading.position)

    # Making a step

    def _step(self, view: View, through: int, tentative: bool) -> Step:
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

    def _limited(self, view: View, through: int, tentative: bool) -> int:
        """A bucket's end at which the step holds about step_rows, or step_bytes, each port having an equal share of them; a
        tentative one ends where what its rows lack changes."""
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
        """Buckets' ends after a position, at which what tentative rows lack may change: where what is known of a port ends, and
        where its own rows begin to lack something else."""
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

    def _take(self, view: View, at: int, since: int, upto: int, tentative: bool) -> _Taken:
        """The rows of one port in [since, upto), in id order: the stable prefix, then the tentative suffix."""
        port = self.ports[at]
        stable_upto = min(upto, port.tape.boundary) if tentative and port.corrected else upto
        taken = _Taken([], [], True, [])
        for chunk in view.cursors[at].pending(port.tape, stable_upto):
            taken.add(chunk.between(since, stable_upto), chunk.ordered, chunk.ingest)
        if tentative:
            for chunk in port.suffix_from(since):
                taken.add(chunk.between(max(since, port.tape.boundary), upto), chunk.ordered, chunk.ingest)
        return taken

    def _merge(self, merge: Merge, taken: Sequence[_Taken]) -> pa.RecordBatch:
        """Rows of several ports in (time, port, id) order: runs in port order, put in order by a stable sort on time."""
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
        return merged.take(pa.array(np.argsort(times, kind="stable")))

    def _ingest(self, taken: Sequence[_Taken], upto: int) -> Ingest:
        """What each bucket of the step counts from (R8): its oldest row, or the first boundary past its end. One that is far
        past it, or the end of a stream, does not say how far time is in the others: it counts where nothing else does."""
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
    """Rows taken from one port: pieces with their times, and (highest time, ingest) of each."""

    batches: list[pa.RecordBatch]
    times: list[np.ndarray]
    ordered: bool
    ingest: list[tuple[int, Ingest]]

    def add(self, piece: tuple[pa.RecordBatch, np.ndarray] | None, ordered: bool, ingest: Ingest) -> None:
        if piece is None:
            return
        batch, times = piece
        self.batches.append(batch)
        self.times.append(times)
        self.ordered = self.ordered and ordered
        self.ingest.append((int(times[-1]) if ordered else int(times.max()), ingest))
