"""How far a stream may go: a machine without a clock and without Kafka. Time and evidence come in, a boundary comes out.

A partition's *floor* is what its own records allow: no later row there is accepted with a smaller time. Under the policies
`data` and `producer` the stream goes as far as the least floor. Two things would stop it for ever, or carry it too far: a
partition that has nothing to say, and one that cannot be heard. From outside both are silence. *Evidence* tells them
apart: where a partition ended was asked at clock T, and now all records before that end have been taken. So whatever was
written before T has been taken, and what was not seen was not written.

| a partition                                     | allows                                                           |
|-------------------------------------------------|------------------------------------------------------------------|
| that has brought rows lately                    | its floor                                                        |
| without a row for `idle`, by evidence           | what the others that are not idle allowed when its end was asked |
| the same, and all others are idle or ended      | T less the rows' usual delay, `disorder` and a margin, if the    |
|                                                 | rows came live; else what it allowed before                      |
| that never had a row                            | what those with rows allowed when its end was asked              |
| under the policy `clock`                        | T less `disorder`                                                |
| without evidence, as its broker is out of reach | what it allowed before                                           |

Only accepted rows and heartbeats are signs of a working producer: one whose rows are all refused holds nobody back.

A partition of which nothing was seen for longer than `outage_us` was out of reach, and then its producers may have been
cut off as well: what they could not send comes late through no fault of theirs. So `idle` is counted from the first
evidence after it; and the clock stands still for a grace, twice as long as the partition was away, at most `idle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from boreal.model.frames import INFINITY
from boreal.query.spec import Stream
from intake.place import PartitionPlace
from sunion.tape import BEGINNING

LIVE_US = 600_000_000
"""Rows that come within so long of their time, and `disorder`, are live, and no replay."""
RECENT_US = 60_000_000
"""The rows' usual delay is the longest of the last one or two of such spans in which rows came."""
LEAST_OUTAGE_US = 2_000_000
OUTAGE_INTERVALS = 5
LONGEST_MARGIN_US = 250_000
MARGINS_OF_X = 8
EVIDENCE_US = 500_000
"""So often evidence is looked for where no boundary waits for it. Well within what counts as an outage."""


@dataclass(frozen=True, slots=True)
class Question:
    """Where partitions end was asked at a time of the source's clock. moving: what the partitions that were neither idle nor
    ended allowed then, None without any; known: what all allowed that ever had a row, BEGINNING without any."""

    asked_at: int
    moving: int | None
    known: int


@dataclass(slots=True)
class _PartitionProgress:
    """What is known of one partition beside its floor. covered: all that was written before this time of the clock has been
    taken. allows: how far that lets it go. seen_at: the last record or evidence. quiet_since: from when on `idle` is counted,
    None until there is evidence. still_until: the end of its grace."""

    seen_at: int
    covered: int = BEGINNING
    allows: int = BEGINNING
    quiet_since: int | None = None
    still_until: int = BEGINNING


@dataclass(slots=True)
class _Delay:
    """The longest time from a row's own to its arrival, over one or two spans in which rows came; None before any."""

    since: int = 0
    longest: int | None = None
    before: int | None = None

    def note(self, delay: int, now: int) -> None:
        if self.longest is not None and now - self.since > RECENT_US:
            self.before, self.longest = self.longest, None
        if self.longest is None:
            self.since, self.longest = now, delay
        self.longest = max(self.longest, delay)

    @property
    def usual(self) -> int | None:
        return max((delay for delay in (self.longest, self.before) if delay is not None), default=None)


class StreamProgress:
    """Of one stream, in one life of its source. Times in microseconds of the source's clock, unless they are event time."""

    def __init__(self, stream: Stream, delay_threshold_us: int, boundary_interval_us: int) -> None:
        self._policy = stream.boundary
        self._disorder = stream.disorder
        self._idle = stream.idle
        self._margin = min(LONGEST_MARGIN_US, delay_threshold_us // MARGINS_OF_X)
        self._interval = boundary_interval_us
        self._outage = max(LEAST_OUTAGE_US, OUTAGE_INTERVALS * boundary_interval_us)
        self._watched: dict[int, _PartitionProgress] = {}
        self._delay = _Delay()
        self._is_live = False
        self._brought_at: int | None = None

    # What happens

    def begin(self, newest: int, promise: int, now: int) -> None:
        """A life begins after one that had believed rows up to `newest`, and had promised `promise`. Call `watch` first."""
        if max(newest, promise) <= BEGINNING:
            return
        reached = max(newest, promise + self._disorder) if promise < INFINITY else newest
        self._is_live = now - reached <= LIVE_US + self._disorder
        if self._policy == "clock" and (away := now - reached) > self._outage:
            # Where it went by the clock it was there until then. Kafka may have been away with it.
            for watched in self._watched.values():
                watched.still_until = now + self._grace(away)

    def watch(self, partitions: Iterable[int], now: int) -> None:
        """These are the partitions that are read from now on."""
        for number in partitions:
            self._watched.setdefault(number, _PartitionProgress(now))

    def take(self, partition: int, now: int) -> None:
        """Records of a partition were taken, of whatever kind."""
        self._see(self._of(partition, now), now)

    def bring(self, partition: int, now: int, oldest: int | None = None, newest: int | None = None) -> None:
        """A partition has brought accepted rows, or a heartbeat. oldest, newest: of the rows that were ahead of all before them
        there; None without any."""
        watched = self._of(partition, now)
        self._brought_at = now
        if watched.quiet_since is not None:
            watched.quiet_since = now
        if oldest is None or newest is None:
            return
        self._is_live = now - newest <= LIVE_US + self._disorder
        if watched.quiet_since is not None and now >= watched.still_until:
            # Before the first evidence, and after an outage, it is a backlog, whose delay says nothing of the producers.
            self._delay.note(max(now - oldest, 0), now)

    def ask(self, partitions: Mapping[int, PartitionPlace], now: int) -> Question:
        """What an answer will mean to where partitions end now."""
        bounds = {number: self._bound(number, known) for number, known in partitions.items() if known.floor > BEGINNING}
        moving = [bound for number, bound in bounds.items() if bound < INFINITY and not self.is_idle(number)]
        return Question(now, min(moving, default=None), min(bounds.values(), default=BEGINNING))

    def answer(self, partition: int, known: PartitionPlace | None, question: Question, now: int) -> None:
        """All that was written to a partition before the question was asked has been taken."""
        watched = self._of(partition, now)
        self._see(watched, now)
        if watched.quiet_since is None:
            watched.quiet_since = now
        watched.covered = max(watched.covered, question.asked_at)
        watched.allows = max(watched.allows, self._allowed(partition, known, question, now))

    # What follows

    def reach(self, partitions: Mapping[int, PartitionPlace]) -> int:
        """How far the stream may go, as event time. It may be less than before: a promise that was given stands."""
        bounds = [self._bound(number, known) for number, known in partitions.items()]
        if self._policy != "producer":
            bounds += [watched.allows for number, watched in self._watched.items() if number not in partitions]
        return min(bounds, default=BEGINNING)

    def is_idle(self, partition: int) -> bool:
        """Whether it has brought nothing for `idle`, by evidence."""
        watched = self._watched.get(partition)
        if watched is None or watched.quiet_since is None:
            return False
        return watched.covered - watched.quiet_since >= self._idle

    @property
    def idle_partitions(self) -> list[int]:
        return [number for number in sorted(self._watched) if self.is_idle(number)]

    def unheard(self, now: int) -> list[int]:
        """The partitions of which nothing was seen for so long that they are out of reach."""
        return [number for number, watched in sorted(self._watched.items()) if now - watched.seen_at > self._outage]

    def brings(self, now: int) -> bool:
        """Whether anything was brought in this life, and less than `idle` ago."""
        return self._brought_at is not None and now - self._brought_at < self._idle

    def evidence_interval_us(self, partitions: Mapping[int, PartitionPlace]) -> int:
        """So often evidence is to be looked for: at each boundary where the boundary waits for it."""
        if self._policy == "producer":
            return EVIDENCE_US
        is_waited_for = self._policy == "clock" or any(
            self.is_idle(number) or number not in partitions or partitions[number].floor <= BEGINNING
            for number in self._watched
        )
        return self._interval if is_waited_for else max(self._interval, min(EVIDENCE_US, self._idle // 4))

    def _of(self, partition: int, now: int) -> _PartitionProgress:
        return self._watched.setdefault(partition, _PartitionProgress(now))

    def _see(self, watched: _PartitionProgress, now: int) -> None:
        away = now - watched.seen_at
        if away > self._outage:
            watched.quiet_since = None
            watched.still_until = now + self._grace(away)
        watched.seen_at = now

    def _grace(self, away: int) -> int:
        return min(self._idle, 2 * away)

    def _bound(self, number: int, known: PartitionPlace) -> int:
        watched = self._watched.get(number)
        if watched is None or self._policy == "producer":
            return known.floor
        return max(known.floor, watched.allows)

    def _allowed(self, partition: int, known: PartitionPlace | None, question: Question, now: int) -> int:
        """What the evidence allows a partition beside its floor."""
        watched = self._watched[partition]
        if self._policy == "clock":
            return question.asked_at - self._disorder if now >= watched.still_until else BEGINNING
        if known is None or known.floor <= BEGINNING:
            return question.known
        if not self.is_idle(partition):
            return BEGINNING
        if question.moving is not None:
            return question.moving
        if not self._is_live:
            return BEGINNING
        delay = self._delay.usual
        # A life that has measured none leaves the producers the longest that would not have made them idle.
        return question.asked_at - (self._idle if delay is None else delay) - self._disorder - self._margin
