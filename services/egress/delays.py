"""Delays of new rows, which one thread adds and another one sums up."""

from __future__ import annotations

import threading

import numpy as np

from deployment.delay_window import DelayWindow


class RecentDelays(DelayWindow):
    """A DelayWindow for several threads."""

    def __init__(self, x_us: int) -> None:
        super().__init__(x_us)
        self._lock = threading.Lock()

    def add(self, now_us: int, delays_us: np.ndarray) -> None:
        with self._lock:
            super().add(now_us, delays_us)

    def summary_ms(self, now_us: int) -> dict[str, float | None]:
        with self._lock:
            return super().summary_ms(now_us)
