"""How many dead letters a stream had lately."""

from __future__ import annotations

SECONDS = 60


class LetterRate:
    """Counts of the last minute, by the second. Times are in microseconds and never fall."""

    def __init__(self) -> None:
        self._counts = [0] * SECONDS
        self._seconds = [-1] * SECONDS

    def note(self, count: int, now: int) -> None:
        """There were so many now."""
        second = now // 1_000_000
        place = second % SECONDS
        if self._seconds[place] != second:
            self._seconds[place], self._counts[place] = second, 0
        self._counts[place] += count

    def per_minute(self, now: int) -> int:
        """How many there were within the minute before."""
        oldest = now // 1_000_000 - SECONDS
        return sum(count for second, count in zip(self._seconds, self._counts, strict=True) if second > oldest)
