"""Roles of one process work one after the other, as long as each needs a moment only.

Python runs one thread at a time, and each call into Arrow or a Kafka client lets another one run. Where many roles get rows at
one moment, they would interrupt each other at every such call: all would be ready at the end of it, and each interruption costs
time. So a role takes a turn for the rows that it has. Nobody waits for long: whoever has a long turn, since it has much to do
or waits for Kafka, shares the processor from then on, as threads do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.03
"""For how long a role waits for its turn at most, and for how long one keeps others waiting."""


class Turns:
    """The turns of one process. Any thread may take one, but none within another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_at = 0.0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Do the work of a turn."""
        if is_mine := self._lock.acquire(timeout=self._patience_s):
            self._taken_at = time.monotonic()
        try:
            yield
        finally:
            if is_mine:
                self._lock.release()

    @property
    def _patience_s(self) -> float:
        return max(self._taken_at + PATIENCE_S - time.monotonic(), 0) if self._lock.locked() else PATIENCE_S
