"""The clock that all services of an installation share, as one process keeps it. Pure: it reads no clock itself.

Three clocks are told apart. The *steady* one counts this machine's time from an arbitrary moment, and nobody sets it. The
*wall* says what this machine takes for the time of day; it may be wrong, and be set at any moment. The *reference* is the
home site's broker, which all processes can ask. The shared clock is the steady one plus an offset that follows the reference:

    1. Before anything has been stamped, the offset is set to what is measured.
    2. From then on it moves by no more than a tenth of the time that passes. So the clock never jumps and never goes back,
       and two seconds are made good within twenty.
    3. Until the reference has answered for the first time, the wall is followed, by the same rule. A reference that has
       answered and is out of reach is not replaced by the wall: the steady clock alone goes wrong far more slowly.

A measurement is a question to the reference and its answer, whose time lies between asking and having the answer. So each
bounds the offset from both sides, the better the faster the answer came. Bounds are intersected; as time passes they widen by
what two clocks drift apart. Where a new measurement contradicts the older ones, a clock has been set, and the new one counts.
"""

from __future__ import annotations

from dataclasses import dataclass

SLEW = 10
"""The clock is corrected by no more than the time that passes, divided by this."""

DRIFT = 5_000
"""Two clocks go apart by no more than the time that passes, divided by this: 200 millionths."""

_SOON_US, _SOON_QUESTIONS = 1_000_000, 10
_LATER_US = 5_000_000
"""While the reference is being set, two processes that ask it so often differ by no more than a tenth of that."""


def pause_us(questions: int) -> int:
    """How long to wait after so many questions to the reference, before the next one."""
    return _SOON_US if questions < _SOON_QUESTIONS else _LATER_US


@dataclass(frozen=True, slots=True)
class _Course:
    """From the steady moment `since` on, the offset moves from `offset` towards `target`."""

    since: int
    offset: int
    target: int

    def offset_at(self, steady: int) -> int:
        most = max(steady - self.since, 0) // SLEW
        return self.offset + min(max(self.target - self.offset, -most), most)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """At the steady moment `since`, the reference was ahead of the steady clock by `low` to `high`."""

    since: int
    low: int
    high: int

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def at(self, steady: int) -> _Bounds:
        """As they are some time later."""
        more = max(steady - self.since, 0) // DRIFT
        return _Bounds(steady, self.low - more, self.high + more)


class SharedClock:
    """See the module's header. All times are microseconds; `steady` never falls from call to call."""

    def __init__(self, steady: int, wall: int) -> None:
        self._course = _Course(steady, wall - steady, wall - steady)
        self._bounds: _Bounds | None = None
        self._is_read = False

    def read(self, steady: int) -> int:
        """The time, since the epoch. It rises at least nine tenths as fast as `steady`, and at most eleven tenths."""
        self._is_read = True
        return steady + self._course.offset_at(steady)

    def take(self, sent: int, received: int, earliest: int, latest: int, steady: int) -> None:
        """A measurement: the reference was asked at `sent` and the answer was here at `received`, of the steady clock;
        meanwhile the reference passed a moment that is not before `earliest` and not after `latest`, in its own time."""
        new = _Bounds(received, earliest - received, latest - sent)
        if self._bounds is not None:
            old = self._bounds.at(received)
            low, high = max(old.low, new.low), min(old.high, new.high)
            if low <= high:
                new = _Bounds(received, low, high)
        self._bounds = new
        self._aim(steady, new.middle)

    def follow_wall(self, steady: int, wall: int) -> None:
        """What the wall says now; it counts as long as the reference has not answered."""
        if self._bounds is None:
            self._aim(steady, wall - steady)

    def _aim(self, steady: int, target: int) -> None:
        offset = self._course.offset_at(steady) if self._is_read else target
        self._course = _Course(steady, offset, target)

    # What is known

    def wall_offset(self, steady: int, wall: int) -> int | None:
        """How far this machine's wall clock is ahead of the reference; None if that has not answered yet."""
        return None if self._bounds is None else wall - steady - self._bounds.middle

    def uncertainty(self, steady: int) -> int | None:
        """By how much the reference's time, as it is measured here, may be wrong to either side."""
        if self._bounds is None:
            return None
        bounds = self._bounds.at(steady)
        return (bounds.high - bounds.low + 1) // 2

    def error(self, steady: int) -> int | None:
        """How far this clock is still ahead of the reference: what is left to be made good."""
        return None if self._bounds is None else self._course.offset_at(steady) - self._bounds.middle
