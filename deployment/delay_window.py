"""Delays of new rows from ingest to client: percentiles over the last minute, and how often they exceeded X (R14)."""

from __future__ import annotations

from collections import deque

import numpy as np

KEPT_US = 60_000_000


class DelayWindow:
    """x_us: X, in microseconds. rows: how many delays there were. violations: how many of them have exceeded X."""

    def __init__(self, x_us: int) -> None:
        self.x_us = x_us
        self.rows = 0
        self.violations = 0
        self._kept: deque[tuple[int, np.ndarray]] = deque()
        self._summary_ms: dict[str, float | None] | None = None
        """What `summary_ms` returned last; None if it is out of date. Many readers may ask between two rows."""

    def add(self, now_us: int, delays_us: np.ndarray) -> None:
        """Add the delays, in microseconds, of rows that reached the client at `now_us`."""
        self.rows += len(delays_us)
        self.violations += int((delays_us > self.x_us).sum())
        if len(delays_us):
            self._kept.append((now_us, delays_us))
            self._summary_ms = None
        self._forget(now_us)

    def summary_ms(self, now_us: int) -> dict[str, float | None]:
        """p50, p99 and max, in milliseconds; None if there was no new row in the last minute."""
        self._forget(now_us)
        if self._summary_ms is None:
            self._summary_ms = self._summarize()
        return dict(self._summary_ms)

    def _summarize(self) -> dict[str, float | None]:
        if not self._kept:
            return {"p50": None, "p99": None, "max": None}
        delays = np.concatenate([delays for _, delays in self._kept])
        p50, p99 = np.percentile(delays, (50, 99))
        return {name: round(float(us) / 1_000, 3) for name, us in (("p50", p50), ("p99", p99), ("max", delays.max()))}

    def _forget(self, now_us: int) -> None:
        while self._kept and self._kept[0][0] < now_us - KEPT_US:
            self._kept.popleft()
            self._summary_ms = None
