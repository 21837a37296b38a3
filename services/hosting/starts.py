"""In what order the roles of one process begin: a few at a time.

A role needs processor time to begin, and Python runs one thread at a time. If fifty began at one moment, the first would be
there when the last one is. So they begin in the order in which they ask for their turn, and clients of the first ones wait for
a moment only. A role that has not begun in time, since it waits for Kafka for example, holds up no other from then on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 3
"""How many begin at a time: while one waits for an answer, others have work."""
PATIENCE_S = 2.0
"""After so long one that has not begun counts no more."""


class Starts:
    """The turns of one process. Any thread may take one, but none within another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._since: dict[object, float] = {}
        """Since when each of those that have their turn has it."""

    @contextmanager
    def take(self) -> Iterator[None]:
        """Begin when it is one's turn."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            while self._waiting[0] is not me or not self._has_room():
                self._changed.wait(self._until_room_s())
            self._waiting.popleft()
            self._since[me] = time.monotonic()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._since[me]
                self._changed.notify_all()

    def _has_room(self) -> bool:
        overdue = time.monotonic() - PATIENCE_S
        return sum(since > overdue for since in self._since.values()) < AT_ONCE

    def _until_room_s(self) -> float | None:
        """How long until there is room, if nobody is ready before; None if it is not the room that is missing."""
        if self._has_room():
            return None
        overdue = time.monotonic() - PATIENCE_S
        return min(since for since in self._since.values() if since > overdue) - overdue
