"""How fast, and how much at once, each token may call. Pure: the time comes in."""

from __future__ import annotations

from collections import Counter

FORGET_EVERY = 1_000
"""After so many requests, callers that have been quiet are forgotten."""


class Rates:
    """A bucket of permits for each caller: it fills at a steady rate, holds those of two seconds, and a request takes one."""

    def __init__(self, per_s: float, open_most: int) -> None:
        """per_s: requests a second; 0: any number. open_most: how many may be open at the same time, streams included."""
        self._per_s = per_s
        self._open_most = open_most
        self._buckets: dict[str, tuple[float, float]] = {}
        self._open: Counter[str] = Counter()
        self._requests = 0

    def begin(self, caller: str, now_s: float) -> float:
        """A request begins: 0, or in how many seconds it may be repeated. Call `end` for one that was let through."""
        if self._open[caller] >= self._open_most:
            return 1.0
        if self._per_s:
            permits = self._permits(caller, now_s)
            if permits < 1:
                return (1 - permits) / self._per_s
            self._buckets[caller] = permits - 1, now_s
        self._open[caller] += 1
        self._requests += 1
        if self._requests % FORGET_EVERY == 0:
            self._forget(now_s)
        return 0.0

    def end(self, caller: str) -> None:
        """A request that was let through is over."""
        self._open[caller] -= 1

    def _permits(self, caller: str, now_s: float) -> float:
        most = 2 * self._per_s
        permits, at_s = self._buckets.get(caller, (most, now_s))
        return min(permits + (now_s - at_s) * self._per_s, most)

    def _forget(self, now_s: float) -> None:
        self._buckets = {name: each for name, each in self._buckets.items() if self._permits(name, now_s) < 2 * self._per_s}
        self._open = Counter({name: count for name, count in self._open.items() if count})
