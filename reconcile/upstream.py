"""Which replica of an input stream a port reads (DPC, 'Upstream failure', switching between neighbours; R10, R12, R23).

A STABLE replica is preferred, then one in UP_FAILURE, then one in STABILIZATION; one that lags, or is still RECOVERING, only
where no other answers. Switching is the reader's act: it follows the new log from its own last stable id, so nothing stable
is repeated or lost, and takes tentative rows only beyond the highest t_max that it already has. Beside a live replica in
UP_FAILURE, one in STABILIZATION is read as a correction: its stable rows extend the port's stable prefix (R17).

A state says what a replica lacks, not what it gives. So replicas are compared by how far their boundaries have come, too. A
replica lags for as long as another has been ahead of where it stands. A STABLE one whose stable boundary lags by more than
the reader can hold back ranks as one in UP_FAILURE; one whose newest boundary, stable or tentative, lags by more than the
path can afford ranks below all that move on. Of several in UP_FAILURE one that lacks fewer inputs is better, once that has
lasted for as long as counts as silence.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from boreal.model.frames import Boundary, Frame, LogId, Start, State
from reconcile.events import Follow, Unfollow, Watch
from sunion.tape import BEGINNING


class Rank(IntEnum):
    """How good a replica is to read from, worst first."""

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


MOST_STEPS = 256
"""Of a replica's progress, the steps that are remembered."""


@dataclass(slots=True)
class Progress:
    """How far a replica's boundaries were heard to be: (event time, when heard), both rising."""

    steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))

    @property
    def reached(self) -> int:
        return self.steps[-1][0] if self.steps else BEGINNING

    def note(self, time: int, now: int) -> None:
        if time > self.reached:
            self.steps.append((time, now))

    def passed_at(self, time: int) -> int | None:
        """When it was first known to be beyond a time; None if it is not. Those who are compared are close to each other."""
        passed = None
        for reached, heard in reversed(self.steps):
            if reached <= time:
                break
            passed = heard
        return passed

    def discount(self, late_us: int) -> None:
        self.steps = deque(((time, heard + late_us) for time, heard in self.steps), MOST_STEPS)


@dataclass(slots=True, eq=False)
class Candidate:
    """One replica's log of the stream. seen: when it was last heard; heard_since: from when on without falling silent between.
    target: the log's end as noted when we began to read, or to read again (R12). lacking_until: its log lacks rows that we
    need, and is not asked again before then. incarnation: of its newest life, as far as we have read the log; newest_heard:
    as its tail told, which may be far ahead of that. epoch: of the newest boundary heard; stable, visible: how far its stable
    and its newest boundaries have come. missing: the inputs that its newest tentative boundary lacks."""

    log: LogId
    seen: int
    heard_since: int = 0
    lacking_until: int = -1
    state: State = State.STABLE
    incarnation: int = 0
    newest_heard: int = 0
    next_offset: int = 0
    target: int | None = None
    epoch: int = -1
    stable: Progress = field(default_factory=Progress)
    visible: Progress = field(default_factory=Progress)
    missing: tuple[str, ...] = ()

    @property
    def is_behind(self) -> bool:
        return self.target is not None and self.next_offset < self.target


@dataclass(slots=True)
class Upstream:
    """The replicas of one port's stream; `live` is the visible one, `correcting` the one that is read beside it.

    stable_slack_us, slack_us: how much a STABLE replica, or any, may lag another. worse_since:
    since when another has lacked fewer inputs than the live one.
    """

    candidates: list[Candidate]
    silence_us: int
    stable_slack_us: int = 0
    slack_us: int = 0
    worse_since: int | None = None
    live: Candidate = field(init=False)
    correcting: Candidate | None = None
    must_follow: bool = False

    def __post_init__(self) -> None:
        self.live = self.candidates[0]

    def begin(self, now: int, after_id: int) -> list[Follow | Watch]:
        for candidate in self.candidates:
            candidate.seen = candidate.heard_since = now
        watches: list[Follow | Watch] = [Watch(c.log) for c in self.candidates if len(self.candidates) > 1]
        return [*watches, Follow(self.live.log, after_id)]

    def candidate(self, log: LogId) -> Candidate:
        return next(c for c in self.candidates if c.log == log)

    def discount(self, late_us: int) -> None:
        """For so long we could not listen: it is not the others' silence."""
        for candidate in self.candidates:
            candidate.seen += late_us
            candidate.heard_since += late_us
            candidate.stable.discount(late_us)
            candidate.visible.discount(late_us)
        if self.worse_since is not None:
            self.worse_since += late_us

    def forget_targets(self) -> None:
        """We were away ourselves: what each log holds by now is a backlog, to be noted anew."""
        for candidate in self.candidates:
            candidate.target = None

    def hear(self, candidate: Candidate, frame: Frame, now: int) -> bool:
        """Note a frame of a followed log; False where a dead incarnation wrote it (R25). What a backlog says of its
        writer's state is past."""
        if frame.origin.incarnation < candidate.incarnation:
            return False
        candidate.incarnation = frame.origin.incarnation
        self._note(candidate, frame, now)
        return True

    def _note(self, candidate: Candidate, frame: Frame, now: int) -> None:
        if candidate.is_behind:
            pass
        elif isinstance(frame, Boundary):
            candidate.state = frame.state
            self._note_progress(candidate, frame, now)
        elif isinstance(frame, Start):
            candidate.state = State.RECOVERING
        if now - candidate.seen > self.silence_us:
            candidate.heard_since = now
        candidate.seen = now

    def _note_progress(self, candidate: Candidate, frame: Boundary, now: int) -> None:
        """What an UNDO has revoked, or a life that is over had given, is no progress any more."""
        if len(self.candidates) == 1:
            return
        if frame.epoch != candidate.epoch:
            candidate.epoch, candidate.missing = frame.epoch, ()
            candidate.visible = Progress(deque(candidate.stable.steps, MOST_STEPS))
        candidate.visible.note(frame.time, now)
        if frame.tentative:
            candidate.missing = frame.missing
        else:
            candidate.stable.note(frame.time, now)

    def hear_tail(self, log: LogId, frame: Frame, now: int) -> None:
        """Note the newest boundary of a watched log: what was left unread of it when it was followed is no backlog now."""
        candidate = self.candidate(log)
        candidate.target = None
        if frame.origin.incarnation >= max(candidate.incarnation, candidate.newest_heard):
            candidate.newest_heard = frame.origin.incarnation
            self._note(candidate, frame, now)

    def is_read(self, candidate: Candidate) -> bool:
        """Whether its rows are wanted; of a log that was left, some may still be under way."""
        return candidate is self.live or candidate is self.correcting

    def drop(self, candidate: Candidate) -> None:
        """A candidate is no longer read; if it was the visible one, the next `choose` must follow one anew."""
        if self.correcting is candidate:
            self.correcting = None
        candidate.target = None
        self.must_follow = self.must_follow or candidate is self.live

    def rank(self, candidate: Candidate, now: int) -> Rank:
        if now - candidate.seen > self.silence_us or now < candidate.lacking_until:
            return Rank.DEAD
        rank = _RANKS[candidate.state]
        if candidate.is_behind or rank < Rank.UP_FAILURE:
            return rank
        others = [other for other in self.candidates if other is not candidate and now - other.seen <= self.silence_us]
        visible = candidate.visible.reached
        if _lag([other.visible for other in others], visible, now) > self.slack_us:
            return Rank.LAGGING
        stable = candidate.stable.reached
        if _lag([other.stable for other in others], stable, now) > max(self.stable_slack_us, self.silence_us):
            return Rank.UP_FAILURE
        return rank

    def choose(self, now: int, last_id: int) -> tuple[bool, list[Follow | Unfollow]]:
        """Switch if another replica is better. Returns whether the visible suffix is to be revoked first (a switch to a
        STABLE replica, which will give the stable version), and the effects."""
        if len(self.candidates) == 1 and not self.must_follow:
            return False, []
        before = {self.correcting.log} if self.correcting else set()
        if not self.must_follow:
            before.add(self.live.log)
        ranks = {c: self.rank(c, now) for c in self.candidates}
        if ranks[self.live] is Rank.DEAD and now >= self.live.lacking_until and not self._is_survived():
            ranks[self.live] = _RANKS[self.live.state]
        best = max(self.candidates, key=lambda c: (ranks[c], c is self.live, c is self.correcting))
        current = ranks[self.live]
        revoke = False
        if ranks[best] is Rank.STABLE and current is not Rank.STABLE:
            self.live, revoke = best, True
        elif ranks[best] is Rank.UP_FAILURE and current < Rank.UP_FAILURE:
            previous, self.live = self.live, best
            if current is Rank.STABILIZATION:
                self.correcting = previous
        elif current <= Rank.LAGGING and ranks[best] > current:
            self.live = best
        elif current is Rank.UP_FAILURE:
            self.live = self._least_missing(ranks, now)
        else:
            self.worse_since = None
        self._choose_correcting(ranks)
        after = {self.correcting.log} if self.correcting else set()
        self.must_follow = self.must_follow and now < self.live.lacking_until
        if not self.must_follow:
            after.add(self.live.log)
        effects: list[Follow | Unfollow] = [Unfollow(log) for log in sorted(before - after)]
        for log in sorted(after - before):
            candidate = self.candidate(log)
            # What we need may lie before its newest life began: who is dead is told by the log, in its order (R25).
            candidate.target, candidate.next_offset, candidate.incarnation = None, 0, 0
            effects.append(Follow(log, last_id))
        return revoke, effects

    def _least_missing(self, ranks: dict[Candidate, Rank], now: int) -> Candidate:
        """Of the replicas in UP_FAILURE one that lacks fewer inputs than the live one, if that has lasted."""
        equals = [c for c in self.candidates if ranks[c] is Rank.UP_FAILURE]
        best = min(equals, key=lambda c: (len(set(c.missing)), c is not self.live))
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
        """Whether another spoke on while the live one was silent. A broker that stalls, or a cut of our own, silences all at
        once, some a moment before the others: that is nobody's death, nor is it when one is heard again before the rest."""
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


def _lag(others: list[Progress], reached: int, now: int) -> int:
    """For how long one of the others has been ahead of a time."""
    passed = (other.passed_at(reached) for other in others)
    return max((now - at for at in passed if at is not None), default=0)
