"""Which replica of an input stream a port reads (DPC, 'Upstream failure', switching between neighbours; R10, R12, R23).

A STABLE replica is preferred, then one in UP_FAILURE, then one in STABILIZATION. A replica that lags, or is still RECOVERING,
is read only if no other one answers. The reader switches without any action of the replicas. It follows the new log from its
own last stable id, so no stable row is repeated or lost. It takes tentative rows only beyond the highest t_max that it already
has. While the live replica is in UP_FAILURE, a replica in STABILIZATION is also read, as a correction: its stable rows extend
the stable prefix of the port (R17).

To read a log from a row on takes time: its place is looked up, and its backlog is read. Where all are slow, replicas look
better and worse by turns, and a reader that followed each turn would never read anything. So each log that is left before its
backlog is read makes the time four times as long for which the next one is not left (`patience_us`).

Of equally good replicas the nearest is the best one to read: what the reader's own process writes reaches it without a fetch,
and what its own site stores without crossing to another. A cut between sites, or the death of another process, then does not
concern it either. A reader that had to leave the nearest returns to it once both have been STABLE for long enough (`approach`).

A state says what a replica lacks, not what it delivers. So replicas are also compared by their boundaries. The lag of a
replica is the time for which another one has been ahead of its boundary. A STABLE replica whose stable boundary lags by more
than the reader can hold back ranks as one in UP_FAILURE. A replica whose newest boundary, stable or tentative, lags by more
than the path can afford ranks below all replicas that make progress. Of several replicas in UP_FAILURE the one that lacks
fewer inputs is preferred, once this has lasted for the silence timeout.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from boreal.model.frames import Boundary, Frame, LogId, Start, State
from reconcile.events import Follow, Unfollow, Watch
from sunion.tape import BEGINNING


class Rank(IntEnum):
    """How good a replica is to read from; a higher rank is better."""

    DEAD = 0
    RECOVERING = 1
    LAGGING = 2
    STABILIZATION = 3
    UP_FAILURE = 4
    STABLE = 5


_RANKS = {
    State.STABLE: Rank.STABLE,
    State.UP_FAILURE: Rank.UP_FAILURE,
    State.STABILIZATION: Rank.STABILIZATION,
    State.RECOVERING: Rank.RECOVERING,
}


class Move(Enum):
    """What a reader does when it compares the replica that it reads with the best one."""

    STAY = "stay"
    """Go on with the visible replica."""
    RESTART = "revoke the tentative suffix, and read the other from the last stable row on"
    """The other one delivers the stable version of what was tentative."""
    TAKE_OVER = "read the other from the last stable row on"
    """Of its tentative rows only those beyond the highest t_max are taken."""
    BESIDE = "read the other, and beside it the former for its corrections"
    """The former one reconciles, and the other one stays live."""
    LEAST_MISSING = "read the one that lacks fewest inputs, once this has lasted for the silence timeout"
    """Both answer without some inputs."""


_UNUSABLE = (Rank.DEAD, Rank.RECOVERING, Rank.LAGGING)
MOVES: dict[tuple[Rank, Rank], Move] = {
    **{(current, current): Move.STAY for current in Rank},
    **{(current, best): Move.TAKE_OVER for current in _UNUSABLE for best in Rank if current < best < Rank.STABLE},
    **{(current, Rank.STABLE): Move.RESTART for current in Rank if current < Rank.STABLE},
    (Rank.STABILIZATION, Rank.UP_FAILURE): Move.BESIDE,
    (Rank.UP_FAILURE, Rank.UP_FAILURE): Move.LEAST_MISSING,
}
"""(rank of the visible replica, rank of the best one): what the reader does. The best one is never below the visible one. The
table in docs/protocol.md is generated from it."""

LONGEST_PATIENCE = 32
"""A log whose backlog is not read yet is not left for at most this number of silence timeouts."""

MOST_STEPS = 256
"""The number of recent boundaries of a replica that are kept to compare its progress."""


@dataclass(slots=True)
class BoundaryHistory:
    """The boundaries of a replica, and when they were heard."""

    steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    """(event time of a boundary in microseconds, clock value when it was heard), both rising."""

    @property
    def reached(self) -> int:
        """The event time of the newest boundary."""
        return self.steps[-1][0] if self.steps else BEGINNING

    def note(self, time: int, now: int) -> None:
        """Note a boundary that is heard now."""
        if time > self.reached:
            self.steps.append((time, now))

    def passed_at(self, time: int) -> int | None:
        """Clock value of the first boundary beyond an event time; None if there is none. The search goes backwards, because
        the replicas that are compared are close to each other."""
        passed = None
        for reached, heard in reversed(self.steps):
            if reached <= time:
                break
            passed = heard
        return passed

    def discount(self, late_us: int) -> None:
        """Exclude a time in which this instance could not read."""
        self.steps = deque(((time, heard + late_us) for time, heard in self.steps), MOST_STEPS)


@dataclass(slots=True, eq=False)
class Candidate:
    """The log of the stream that one replica writes. Clock values are in microseconds."""

    log: LogId
    """The log."""
    seen: int
    """Clock value when it was last heard."""
    pause_us: int = 0
    """How much longer than usual it may be silent now, as its newest boundary says."""
    heard_since: int = 0
    """Clock value since which it was heard without a silence."""
    is_near: bool = False
    """Whether it is one of the nearest to the reader."""
    lacking_until: int = -1
    """The log lacks rows that this instance needs. It is not read again before this clock value."""
    state: State = State.STABLE
    """The state of the replica in its newest boundary."""
    incarnation: int = 0
    """The newest incarnation of the replica, as far as the log was read."""
    newest_heard: int = 0
    """The newest incarnation that its tail has shown. It may be far ahead of `incarnation`."""
    next_offset: int = 0
    """The next offset to read."""
    target: int | None = None
    """The end of the log, as noted when reading began, or began again (R12); None before it is noted."""
    epoch: int = -1
    """The epoch of the newest boundary."""
    stable: BoundaryHistory = field(default_factory=BoundaryHistory)
    """The progress of its stable boundaries."""
    visible: BoundaryHistory = field(default_factory=BoundaryHistory)
    """The progress of all its boundaries, stable or tentative."""
    lacking: tuple[str, ...] = ()
    """The inputs that the replica lacks, by its newest boundary."""

    @property
    def is_behind(self) -> bool:
        """Whether the backlog of its log is not read yet."""
        return self.target is not None and self.next_offset < self.target


@dataclass(slots=True)
class Upstream:
    """The replicas of one port's stream. Clock values and durations are in microseconds."""

    candidates: list[Candidate]
    """The replicas."""
    silence_us: int
    """The silence timeout: a replica that was not heard for longer counts as silent."""
    stable_slack_us: int = 0
    """By how much the stable boundary of a STABLE replica may lag."""
    slack_us: int = 0
    """By how much the newest boundary of any replica may lag."""
    near_silences: int = 0
    """A nearer replica is approached after so many silence timeouts."""
    nearer_since: int | None = None
    """Clock value since which a nearer replica than the live one has been STABLE, as the live one is; None if none is."""
    worse_since: int | None = None
    """Clock value since which another replica has lacked fewer inputs than the live one; None if none does."""
    live: Candidate = field(init=False)
    """The visible replica: its stable and its tentative rows are read."""
    correcting: Candidate | None = None
    """The replica that is also read, for its stable rows; None if there is none."""
    followed_at: int = 0
    """Clock value since which the log of the live replica has been read."""
    patience_us: int = 0
    """For how long it is not left while its backlog is not read; 0 until a log has been left so."""
    must_follow: bool = False
    """Whether the log of the live replica is not followed at present, so that one must be followed again."""

    def __post_init__(self) -> None:
        self.live = self.candidates[0]

    def begin(self, now: int, after_id: int) -> list[Follow | Watch]:
        """Follow the nearest replica, the first of several, from its stable id after_id + 1 on; watch all if there are
        several."""
        for candidate in self.candidates:
            candidate.seen = candidate.heard_since = now
        self.live, self.followed_at = next((c for c in self.candidates if c.is_near), self.candidates[0]), now
        watches: list[Follow | Watch] = [Watch(c.log) for c in self.candidates if len(self.candidates) > 1]
        return [*watches, Follow(self.live.log, after_id)]

    def set_near(self, logs: frozenset[LogId]) -> None:
        """These logs are the nearest from now on."""
        for candidate in self.candidates:
            candidate.is_near = candidate.log in logs

    def candidate(self, log: LogId) -> Candidate:
        """The candidate with this log."""
        for candidate in self.candidates:
            if candidate.log == log:
                return candidate
        raise KeyError(log)

    def discount(self, late_us: int) -> None:
        """Exclude a time in which this instance could not read: the replicas were not silent in it."""
        for candidate in self.candidates:
            candidate.seen += late_us
            candidate.heard_since += late_us
            candidate.stable.discount(late_us)
            candidate.visible.discount(late_us)
        self.followed_at += late_us
        if self.worse_since is not None:
            self.worse_since += late_us
        if self.nearer_since is not None:
            self.nearer_since += late_us

    def forget_targets(self) -> None:
        """This instance was away, so each log has a backlog now. Its end is noted at the next frames."""
        for candidate in self.candidates:
            candidate.target = None

    def hear(self, candidate: Candidate, frame: Frame, now: int) -> bool:
        """Note a frame of a followed log. False if a dead incarnation wrote it (R25). The states in a backlog are ignored,
        because they are out of date."""
        if frame.origin.incarnation < candidate.incarnation:
            return False
        candidate.incarnation = frame.origin.incarnation
        self._note(candidate, frame, now)
        return True

    def _note(self, candidate: Candidate, frame: Frame, now: int) -> None:
        if candidate.is_behind:
            pass
        elif isinstance(frame, Boundary):
            candidate.state, candidate.lacking = frame.state, frame.lacking
            self._note_progress(candidate, frame, now)
        elif isinstance(frame, Start):
            candidate.state, candidate.lacking = State.RECOVERING, ()
        if self.is_silent(candidate, now):
            candidate.heard_since = now
        candidate.seen, candidate.pause_us = now, frame.pause if isinstance(frame, Boundary) else 0

    def _note_progress(self, candidate: Candidate, frame: Boundary, now: int) -> None:
        """Note a boundary. Boundaries that an UNDO has revoked, or that an earlier incarnation wrote as tentative, no longer
        count as progress."""
        if len(self.candidates) == 1:
            return
        if frame.epoch != candidate.epoch:
            candidate.epoch = frame.epoch
            candidate.visible = BoundaryHistory(deque(candidate.stable.steps, MOST_STEPS))
        candidate.visible.note(frame.time, now)
        if not frame.tentative:
            candidate.stable.note(frame.time, now)

    def hear_tail(self, log: LogId, frame: Frame, now: int) -> None:
        """Note the newest boundary of a watched log. The log is not followed, so its unread rest does not count as a
        backlog."""
        candidate = self.candidate(log)
        candidate.target = None
        if frame.origin.incarnation >= max(candidate.incarnation, candidate.newest_heard):
            candidate.newest_heard = frame.origin.incarnation
            self._note(candidate, frame, now)

    def is_silent(self, candidate: Candidate, now: int) -> bool:
        """Whether a candidate was not heard for longer than counts as silence, and than it has said (R24)."""
        return now - candidate.seen > self.silence_us + candidate.pause_us

    @property
    def silent_at(self) -> int:
        """When the live replica will count as silent, if it is not heard until then."""
        return self.live.seen + self.silence_us + self.live.pause_us + 1

    def is_read(self, candidate: Candidate) -> bool:
        """Whether its frames are used. Frames of a log that is no longer followed may still arrive."""
        return candidate is self.live or candidate is self.correcting

    def drop(self, candidate: Candidate) -> None:
        """Note that a candidate is no longer read. If it was the live one, the next `choose` must follow a log again."""
        if self.correcting is candidate:
            self.correcting = None
        candidate.target = None
        self.must_follow = self.must_follow or candidate is self.live

    def rank(self, candidate: Candidate, now: int) -> Rank:
        """The rank of a candidate; see the header of the module."""
        if self.is_silent(candidate, now) or now < candidate.lacking_until:
            return Rank.DEAD
        rank = _RANKS[candidate.state]
        if candidate.is_behind or rank < Rank.UP_FAILURE:
            return rank
        others = [c for c in self.candidates if c is not candidate and not self.is_silent(c, now)]
        visible = candidate.visible.reached
        if _lag([other.visible for other in others], visible, now) > self.slack_us + candidate.pause_us:
            return Rank.LAGGING
        stable, slack_us = candidate.stable.reached, max(self.stable_slack_us, self.silence_us) + candidate.pause_us
        if _lag([other.stable for other in others], stable, now) > slack_us:
            return Rank.UP_FAILURE
        return rank

    def choose(self, now: int, last_id: int) -> tuple[bool, list[Follow | Unfollow]]:
        """Switch if another replica is better.

        `last_id` is the last stable id of the port. Returns whether the tentative suffix must be revoked first, and the
        effects. It is revoked at a switch to a STABLE replica, because this replica delivers the stable version.
        """
        if len(self.candidates) == 1 and not self.must_follow:
            return False, []
        if self.patience_us and not self._is_catching_up:
            self.patience_us = 0
        live_rank = self.rank(self.live, now)
        if live_rank is Rank.STABLE and self.correcting is None and not self.must_follow:
            self.worse_since = None
            return False, []  # nearly always: none is better
        before = {self.correcting.log} if self.correcting else set()
        if not self.must_follow:
            before.add(self.live.log)
        ranks = {c: live_rank if c is self.live else self.rank(c, now) for c in self.candidates}
        if ranks[self.live] is Rank.DEAD and now >= self.live.lacking_until and not self._is_survived():
            ranks[self.live] = _RANKS[self.live.state]
        best = max(self.candidates, key=lambda c: (ranks[c], c is self.live, c is self.correcting, c.is_near))
        move = MOVES[ranks[self.live], ranks[best]]
        if move is Move.LEAST_MISSING:
            best = self._least_missing(ranks, now)
        else:
            self.worse_since = None
        if move is Move.BESIDE:
            self.correcting = self.live
        elif best is not self.live and self._is_catching_up and not self.must_follow:
            if now - self.followed_at < self.patience_us:
                move, best = Move.STAY, self.live
            else:
                self._have_more_patience()
        if best is not self.live:
            self.live, self.followed_at = best, now
        self._choose_correcting(ranks)
        after = {self.correcting.log} if self.correcting else set()
        self.must_follow = self.must_follow and now < self.live.lacking_until
        if not self.must_follow:
            after.add(self.live.log)
        effects: list[Follow | Unfollow] = [Unfollow(log) for log in sorted(before - after)]
        effects += [self._follow(self.candidate(log), last_id) for log in sorted(after - before)]
        return move is Move.RESTART, effects

    def approach(self, now: int, last_id: int, is_firm: bool) -> list[Follow | Unfollow]:
        """Go over to a nearer replica, if it has been STABLE for long enough, as the live one has. To be called after `choose`.

        last_id: as for `choose`. is_firm: whether the port has no tentative suffix, so that there is nothing to revoke.
        """
        nearer = None
        if is_firm and not self.live.is_near and not self.must_follow:
            nearer = next((c for c in self.candidates if c.is_near and self.rank(c, now) is Rank.STABLE), None)
        if nearer is None or self.rank(self.live, now) is not Rank.STABLE:
            self.nearer_since = None
            return []
        if self.nearer_since is None:
            self.nearer_since = now
        if now - self.nearer_since < self.near_silences * self.silence_us:
            return []
        left, self.live, self.followed_at, self.nearer_since = self.live, nearer, now, None
        return [Unfollow(left.log), self._follow(nearer, last_id)]

    def _follow(self, candidate: Candidate, last_id: int) -> Follow:
        # The needed rows may be older than its newest incarnation. So dead incarnations are recognised in the order of the log,
        # from its beginning (R25).
        candidate.target, candidate.next_offset, candidate.incarnation = None, 0, 0
        return Follow(candidate.log, last_id)

    @property
    def _is_catching_up(self) -> bool:
        """Whether the backlog of the live replica's log is not read yet."""
        return self.live.target is None or self.live.is_behind

    def _have_more_patience(self) -> None:
        """The live replica is left before its backlog is read: what was read of it was read in vain."""
        self.patience_us = min(max(4 * self.patience_us, self.silence_us), LONGEST_PATIENCE * self.silence_us)

    def _least_missing(self, ranks: dict[Candidate, Rank], now: int) -> Candidate:
        """The replica in UP_FAILURE to read: one that lacks fewer inputs than the live one, if this has lasted for the silence
        timeout, otherwise the live one."""
        equals = [c for c in self.candidates if ranks[c] is Rank.UP_FAILURE]
        best = min(equals, key=lambda c: (len(c.lacking), c is not self.live))
        if best is self.live:
            self.worse_since = None
            return best
        if self.worse_since is None:
            self.worse_since = now
        if now - self.worse_since <= self.silence_us:
            return self.live
        self.worse_since = None
        return best

    def _is_survived(self) -> bool:
        """Whether another replica was heard while the live one was silent.

        If a broker stalls, or this instance is cut off, all replicas fall silent, some a moment before the others. Then no
        replica is dead. One that is heard again before the others does not show that they are dead, either.
        """
        return any(c.seen - max(self.live.seen, c.heard_since) >= self.silence_us // 2 for c in self.candidates)

    def _choose_correcting(self, ranks: dict[Candidate, Rank]) -> None:
        if ranks[self.live] is not Rank.UP_FAILURE:
            self.correcting = None
            return
        if self.correcting is not None and (
            self.correcting is self.live or ranks[self.correcting] is not Rank.STABILIZATION
        ):
            self.correcting = None
        if self.correcting is None:
            correctors = (c for c in self.candidates if ranks[c] is Rank.STABILIZATION and c is not self.live)
            self.correcting = next(correctors, None)


def _lag(others: list[BoundaryHistory], reached: int, now: int) -> int:
    """For how long at least one of the others has been ahead of an event time, in microseconds; 0 if none is."""
    longest = 0
    for other in others:
        passed = other.passed_at(reached)
        if passed is not None and now - passed > longest:
            longest = now - passed
    return longest
