"""The clock that all services of an installation share, as one process keeps it. Pure: it reads no clock itself.

There are three clocks. The *steady* clock counts this machine's time from an arbitrary moment, and is never set. The *wall*
clock is this machine's time of day; it may be wrong, and may be set at any moment. The *reference* is the home site's broker,
which all processes can ask. The shared clock is the steady clock plus an offset that follows the reference:

    1. Before the first timestamp is taken, the offset is set to the measured one.
    2. After that it changes by at most a tenth of the time that passes. So the clock never jumps and never goes back, and an
       error of two seconds is corrected within twenty.
    3. Until the reference answers for the first time, the offset follows the wall clock, by the same rule. If the reference
       becomes unreachable later, the wall clock does not replace it: the steady clock alone drifts far more slowly.

A measurement is a question to the reference and its answer. The answer's time lies between the question and the receipt of
the answer. So each measurement bounds the offset from both sides, more tightly the faster the answer was. Bounds are
intersected, and widen over time by the drift between two clocks. If a new measurement contradicts the older ones, a clock has
been set, and the new measurement counts.
"""

from __future__ import annotations

from dataclasses import dataclass

SLEW = 10
"""The offset changes by at most the time that passes, divided by this."""

DRIFT = 5_000
"""Two clocks drift apart by at most the time that passes, divided by this: 200 ppm."""

_SOON_US, _SOON_QUESTIONS = 1_000_000, 10
_LATER_US = 5_000_000
"""While the reference is being slewed, two processes that ask at these intervals differ by at most a tenth of the interval."""


def pause_us(questions: int) -> int:
    """How long to wait before the next question to the reference (us). questions: how many were asked so far."""
    return _SOON_US if questions < _SOON_QUESTIONS else _LATER_US


@dataclass(frozen=True, slots=True)
class _Course:
    """The offset moves from `offset` towards `target`. All fields are in us."""

    since: int
    """Begin of the movement, by the steady clock."""
    offset: int
    """Offset at the beginning."""
    target: int
    """Offset to reach."""

    def offset_at(self, steady: int) -> int:
        most = max(steady - self.since, 0) // SLEW
        return self.offset + min(max(self.target - self.offset, -most), most)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds of the reference's time minus the steady clock's. All fields are in us."""

    since: int
    """When the bounds were measured, by the steady clock."""
    low: int
    """Lower bound."""
    high: int
    """Upper bound."""

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def at(self, steady: int) -> _Bounds:
        """The bounds at a later time, widened by the drift."""
        more = max(steady - self.since, 0) // DRIFT
        return _Bounds(steady, self.low - more, self.high + more)


class SharedClock:
    """The shared clock of one process; see the module's docstring. Times are in us. `steady` must not fall between calls."""

    def __init__(self, steady: int, wall: int) -> None:
        self._course = _Course(steady, wall - steady, wall - steady)
        self._bounds: _Bounds | None = None
        self._is_read = False

    def read(self, steady: int) -> int:
        """The time since the Unix epoch. It runs at 0.9 to 1.1 times the speed of `steady`."""
        self._is_read = True
        return steady + self._course.offset_at(steady)

    def take(self, sent: int, received: int, earliest: int, latest: int, steady: int) -> None:
        """A measurement. sent, received: when the question was sent and the answer received, by the steady clock. earliest,
        latest: bounds of the reference's own time at some moment in between."""
        new = _Bounds(received, earliest - received, latest - sent)
        if self._bounds is not None:
            old = self._bounds.at(received)
            low, high = max(old.low, new.low), min(old.high, new.high)
            if low <= high:
                new = _Bounds(received, low, high)
        self._bounds = new
        self._aim(steady, new.middle)

    def follow_wall(self, steady: int, wall: int) -> None:
        """The current wall clock; used until the reference has answered."""
        if self._bounds is None:
            self._aim(steady, wall - steady)

    def _aim(self, steady: int, target: int) -> None:
        offset = self._course.offset_at(steady) if self._is_read else target
        self._course = _Course(steady, offset, target)

    # What is known

    def wall_offset(self, steady: int, wall: int) -> int | None:
        """How far this machine's wall clock is ahead of the reference; None if the reference has not answered yet."""
        return None if self._bounds is None else wall - steady - self._bounds.middle

    def uncertainty(self, steady: int) -> int | None:
        """Maximum error, to either side, of the measured time of the reference; None if it has not answered yet."""
        if self._bounds is None:
            return None
        bounds = self._bounds.at(steady)
        return (bounds.high - bounds.low + 1) // 2

    def error(self, steady: int) -> int | None:
        """How far this clock is still ahead of the reference (the remaining correction); None if it has not answered yet."""
        return None if self._bounds is None else self._course.offset_at(steady) - self._bounds.middle
