"""How far a stream's boundary may advance. A machine without a clock and without Kafka: time and evidence in, a boundary out.

A partition's *floor* is what its own records allow: no later row of the partition is accepted with a smaller time. With the
policies `data` and `producer`, the boundary is the smallest floor. Two cases would stop it for ever, or move it too far: an
idle partition, and an unreachable one. From outside both are silent. *Evidence* distinguishes them: the end of a partition
was asked at clock T, and all records before that end have since been taken. So everything that was written before T has
been taken, and what was not seen was not written.

| a partition                                     | allows                                                           |
|-------------------------------------------------|------------------------------------------------------------------|
| with recent rows                                | its floor                                                        |
| without a row for `idle`, by evidence           | what the active partitions allowed when its end was asked        |
| the same, and all others are idle or ended      | T minus the rows' usual delay, `disorder` and a margin, if the   |
|                                                 | rows arrived live; otherwise what it allowed before              |
| that never had a row                            | what the partitions with rows allowed when its end was asked     |
| with the policy `clock`                         | T minus `disorder`                                               |
| without evidence (its broker is unreachable)    | what it allowed before                                           |

Only accepted rows and heartbeats show that a producer works. A producer whose rows are all rejected holds back no partition.

A partition that was silent for longer than `outage_us` was unreachable. Its producers may have been cut off as well, and then
their records arrive late through no fault of theirs. So `idle` is counted from the first evidence after the outage, and with
the policy `clock` the partition does not advance for a grace period: twice the length of the outage, at most `idle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from boreal.model.frames import INFINITY
from boreal.query.spec import Stream
from intake.place import PartitionPlace
from sunion.tape import BEGINNING

LIVE_US = 600_000_000
"""Rows that arrive within this time, plus `disorder`, after their event time are live; older ones are a replay."""
RECENT_US = 60_000_000
"""The rows' usual delay is the longest delay in the last one or two periods of this length in which rows arrived."""
LEAST_OUTAGE_US = 2_000_000
"""A silence shorter than this is no outage."""
OUTAGE_INTERVALS = 5
"""A silence of this many boundary intervals is an outage, if it is longer than LEAST_OUTAGE_US."""
LONGEST_MARGIN_US = 250_000
"""Upper limit of the margin that is subtracted from T when all partitions are idle."""
MARGINS_OF_X = 8
"""The margin is at most X divided by this."""
EVIDENCE_US = 500_000
"""Interval between questions when no boundary waits for evidence. Much shorter than an outage."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question for the ends of partitions, with what the partitions allowed when it was asked."""

    asked_at: int
    """Time of the source's clock (us)."""
    moving: int | None
    """Event time (us) that the partitions allowed that were neither idle nor ended; None if there were none."""
    known: int
    """Event time (us) that the partitions allowed that ever had a row; BEGINNING if there were none."""


@dataclass(slots=True)
class _PartitionProgress:
    """What is known of one partition, apart from its floor."""

    seen_at: int
    """Time of the last record or evidence (us)."""
    covered: int = BEGINNING
    """Everything that was written before this time of the clock (us) has been taken."""
    allows: int = BEGINNING
    """Event time (us) that the evidence allows."""
    quiet_since: int | None = None
    """Time (us) from which `idle` is counted; None until there is evidence."""
    still_until: int = BEGINNING
    """End of the grace period after an outage (us)."""


@dataclass(slots=True)
class _Delay:
    """The longest delay from a row's event time to its arrival, over one or two periods in which rows arrived."""

    since: int = 0
    """Begin of the current period (us)."""
    longest: int | None = None
    """Longest delay in the current period (us); None before the first row."""
    before: int | None = None
    """Longest delay in the previous period (us); None if there was none."""

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
    """The progress of one stream, in one incarnation of its source. Times are microseconds of the source's clock, or event time
    where this is said."""

    def __init__(self, stream: Stream, delay_threshold_us: int, boundary_interval_us: int) -> None:
        self._policy = stream.boundary
        self._disorder = stream.disorder
        self._idle = stream.idle
        self._margin = self._interval = self._outage = 0
        self.set_threshold(delay_threshold_us, boundary_interval_us)
        self._watched: dict[int, _PartitionProgress] = {}
        self._delay = _Delay()
        self._is_live = False
        self._brought_at: int | None = None

    def set_threshold(self, delay_threshold_us: int, boundary_interval_us: int) -> None:
        """Go on with this X, and this interval between boundaries (us)."""
        self._margin = min(LONGEST_MARGIN_US, delay_threshold_us // MARGINS_OF_X)
        self._interval = boundary_interval_us
        self._outage = max(LEAST_OUTAGE_US, OUTAGE_INTERVALS * boundary_interval_us)

    # Events

    def begin(self, newest: int, promise: int, now: int) -> None:
        """A new incarnation begins. newest: the newest event time that the former one accepted. promise: its last boundary.
        Call `watch` first."""
        if max(newest, promise) <= BEGINNING:
            return
        reached = max(newest, promise + self._disorder) if promise < INFINITY else newest
        self._is_live = now - reached <= LIVE_US + self._disorder
        if self._policy == "clock" and (away := now - reached) > self._outage:
            # With this policy `reached` tells when the former incarnation was last alive. Kafka may have been down with it.
            for watched in self._watched.values():
                watched.still_until = now + self._grace(away)

    def watch(self, partitions: Iterable[int], now: int) -> None:
        """These partitions are read from now on."""
        for number in partitions:
            self._watched.setdefault(number, _PartitionProgress(now))

    def take(self, partition: int, now: int) -> None:
        """Records of a partition were taken, accepted or not."""
        self._see(self._of(partition, now), now)

    def bring(self, partition: int, now: int, oldest: int | None = None, newest: int | None = None) -> None:
        """A partition had accepted rows or a heartbeat. oldest, newest: event times of the rows that raised the partition's
        floor; None if there were none."""
        watched = self._of(partition, now)
        self._brought_at = now
        if watched.quiet_since is not None:
            watched.quiet_since = now
        if oldest is None or newest is None:
            return
        self._is_live = now - newest <= LIVE_US + self._disorder
        if watched.quiet_since is not None and now >= watched.still_until:
            # Before the first evidence, and after an outage, the rows are a backlog: their delay is not the producers'.
            self._delay.note(max(now - oldest, 0), now)

    def ask(self, partitions: Mapping[int, PartitionPlace], now: int) -> Question:
        """A question for the ends of partitions, as of now."""
        bounds = {number: self._bound(number, known) for number, known in partitions.items() if known.floor > BEGINNING}
        moving = [bound for number, bound in bounds.items() if bound < INFINITY and not self.is_idle(number)]
        return Question(now, min(moving, default=None), min(bounds.values(), default=BEGINNING))

    def answer(self, partition: int, known: PartitionPlace | None, question: Question, now: int) -> None:
        """Everything that was written to a partition before the question was asked has been taken. known: None if the
        partition never held a record."""
        watched = self._of(partition, now)
        self._see(watched, now)
        if watched.quiet_since is None:
            watched.quiet_since = now
        watched.covered = max(watched.covered, question.asked_at)
        watched.allows = max(watched.allows, self._allowed(partition, known, question, now))

    # Results

    def reach(self, partitions: Mapping[int, PartitionPlace]) -> int:
        """Event time that the boundary may advance to. It may be smaller than before; then the boundary stays where it is."""
        bounds = [self._bound(number, known) for number, known in partitions.items()]
        if self._policy != "producer":
            bounds += [watched.allows for number, watched in self._watched.items() if number not in partitions]
        return min(bounds, default=BEGINNING)

    def is_idle(self, partition: int) -> bool:
        """Whether the partition had no row or heartbeat for `idle`, by evidence."""
        watched = self._watched.get(partition)
        if watched is None or watched.quiet_since is None:
            return False
        return watched.covered - watched.quiet_since >= self._idle

    @property
    def idle_partitions(self) -> list[int]:
        """The idle partitions, sorted."""
        return [number for number in sorted(self._watched) if self.is_idle(number)]

    def unheard(self, now: int) -> list[int]:
        """The partitions that have been silent for so long that they count as unreachable."""
        return [number for number, watched in sorted(self._watched.items()) if now - watched.seen_at > self._outage]

    def brings(self, now: int) -> bool:
        """Whether rows or heartbeats were accepted in this incarnation, and less than `idle` ago."""
        return self._brought_at is not None and now - self._brought_at < self._idle

    def evidence_interval_us(self, partitions: Mapping[int, PartitionPlace]) -> int:
        """How often to ask for evidence: at every boundary if the boundary depends on it."""
        if self._policy == "producer":
            return EVIDENCE_US
        floors = {number: known.floor for number, known in partitions.items() if known.floor > BEGINNING}
        is_waited_for = self._policy == "clock" or (
            # Without any row there is no boundary to move on.
            bool(floors) and any(number not in floors or self.is_idle(number) for number in self._watched)
        )
        return self._interval if is_waited_for else max(self._interval, min(EVIDENCE_US, self._idle // 4))

    def to_ask(self, numbers: Iterable[int], interval_us: int, now: int) -> list[int]:
        """The partitions whose ends are worth a question, where one is asked every `interval_us`. Only silence needs evidence:
        one that had rows in this interval is not idle, and its own records say what it allows."""
        return [number for number in numbers if self._policy == "clock" or not self._had_rows(number, now - interval_us)]

    def _had_rows(self, number: int, since: int) -> bool:
        watched = self._watched.get(number)
        return watched is not None and watched.quiet_since is not None and watched.quiet_since > since

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
        """Event time that the evidence allows a partition, apart from its floor."""
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
        # Without a measured delay, allow the longest delay that would not have made the partition idle.
        return question.asked_at - (self._idle if delay is None else delay) - self._disorder - self._margin
