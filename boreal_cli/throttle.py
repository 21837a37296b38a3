"""Lets what is shown while a run lasts cost little: at most one frame, or one line, in so many seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass

FRAME_EVERY_SECONDS = 0.1


@dataclass(slots=True)
class Throttle:
    """Lets a thing happen at most once in so many seconds; not at once, so that a short run shows nothing."""

    seconds: float
    last: float

    @staticmethod
    def every(seconds: float) -> Throttle:
        return Throttle(seconds, time.monotonic())

    def is_due(self) -> bool:
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True
