"""A limit on how often progress is shown, so that it takes little time from the run."""

from __future__ import annotations

import time
from dataclasses import dataclass

FRAME_EVERY_SECONDS = 0.1


@dataclass(slots=True)
class Throttle:
    """Allows an action at most once per interval. The first interval must also pass, so that a short run shows nothing."""

    seconds: float
    """The length of the interval, in seconds."""
    last: float
    """The monotonic time of the last action, in seconds."""

    @staticmethod
    def every(seconds: float) -> Throttle:
        return Throttle(seconds, time.monotonic())

    def is_due(self) -> bool:
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True
