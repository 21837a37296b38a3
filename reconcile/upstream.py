"""Which replica of an input stream a port reads (DPC, 'Upstream failure', switching between neighbours; R10, R12, R23).

A STABLE replica is preferred, then one in UP_FAILURE, then one in STABILIZATION; one that is still RECOVERING only where
no other answers. Switching is the reader's act: it follows the new log from its own last stable id, so nothing stable is
repeated or lost, and takes tentative rows only beyond the highest t_max that it already has. Beside a live replica in
UP_FAILURE, one in STABILIZATION is read as a correction: its stable rows extend the port's stable prefix (R17).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from boreal.frames import Boundary, Frame, LogId, Start, State
from reconcile.events import Follow, Unfollow, Watch


class Rank(IntEnum):
    """How good a replica is to read from, worst first."""

    DEAD = 0
    RECOVERING = 1
    STABILIZATION = 2
    UP_FAILURE = 3
    STABLE = 4


_RANKS = {
    State.STABLE: Rank.STABLE,
    State.UP_FAILURE: Rank.UP_FAILURE,
    State.STABILIZATION: Rank.STABILIZATION,
    State.RECOVERING: Rank.RECOVERING,
}


@dataclass(slots=True)
class Candidate:
    """One replica's log of the stream. seen: when it was last heard; heard_since: from when on without falling silent between.
    target: the log's end as noted when we began to read, or to read again (R12). lacking_until: its log lacks rows that we
    need, and is not asked again before then. incarnation: of its newest life, as far as we have read the log; newest_heard:
    as its tail told, which may be far ahead of that."""

    log: LogId
    seen: int
    heard_since: int = 0
    lacking_until: int = -1
    state: State = State.STABLE
    incarnation: int = 0
    newest_heard: int = 0
    next_offset: int = 0
    target: int | None = None

    @property
    def is_behind(self) -> bool:
        return self.target is not None and self.next_offset < self.target


@dataclass(slots=True)
class Upstream:
    """The replicas of one port's stream; `live` is the visible one, `correcting` the one that is read beside it."""

    candidates: list[Candidate]
    silence_us: int
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
        elif isinstance(frame, Start):
            candidate.state = State.RECOVERING
        if now - candidate.seen > self.silence_us:
            candidate.heard_since = now
        candidate.seen = now

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
        return _RANKS[candidate.state]

    def choose(self, now: int, last_id: int) -> tuple[bool, list[Follow | Unfollow]]:
        """Switch if another replica is better. Returns whether the visible suffix is to be revoked first (a switch to a
        STABLE replica, which will give the stable version), and the effects."""
        if len(self.candidates) == 1 and not self.must_follow:
            return False, []
        before = {self.correcting.log} if self.correcting else set()
        if not self.must_follow:
            before.add(self.live.log)
        ranks = {c.log: self.rank(c, now) for c in self.candidates}
        if ranks[self.live.log] is Rank.DEAD and now >= self.live.lacking_until and not self._is_survived():
            ranks[self.live.log] = _RANKS[self.live.state]
        best = max(self.candidates, key=lambda c: (ranks[c.log], c is self.live, c is self.correcting, -self._index(c)))
        current = ranks[self.live.log]
        revoke = False
        if ranks[best.log] is Rank.STABLE and current is not Rank.STABLE:
            self.live, revoke = best, True
        elif ranks[best.log] is Rank.UP_FAILURE and current < Rank.UP_FAILURE:
            previous, self.live = self.live, best
            if current is Rank.STABILIZATION:
                self.correcting = previous
        elif current in (Rank.DEAD, Rank.RECOVERING) and ranks[best.log] > current:
            self.live = best
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

    def _is_survived(self) -> bool:
        """Whether another spoke on while the live one was silent. A broker that stalls, or a cut of our own, silences all at
        once, some a moment before the others: that is nobody's death, nor is it when one is heard again before the rest."""
        return any(c.seen - max(self.live.seen, c.heard_since) >= self.silence_us // 2 for c in self.candidates)

    def _choose_correcting(self, ranks: dict[LogId, Rank]) -> None:
        if ranks[self.live.log] is not Rank.UP_FAILURE:
            self.correcting = None
            return
        if self.correcting is not None and (
            self.correcting is self.live or ranks[self.correcting.log] is not Rank.STABILIZATION
        ):
            self.correcting = None
        if self.correcting is None:
            correctors = (c for c in self.candidates if ranks[c.log] is Rank.STABILIZATION and c is not self.live)
            self.correcting = next(correctors, None)

    def _index(self, candidate: Candidate) -> int:
        return self.candidates.index(candidate)
