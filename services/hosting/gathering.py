"""To what degree the sources of one process let rows gather.

A batch costs nearly as much for one row as for many, so a loaded process takes rows less often (services/kafka/load.py). But
where few of its sources have rows, their batches are a small part of what it does, and gathering would only delay them.
"""

from __future__ import annotations

import threading

from services.kafka.load import LoadDegree

FEW_SOURCES = 1, 3
"""Where at most so many sources have rows, the degree is 0, or 1."""


class GatherPace:
    """See the module's header. All methods may be called from any thread."""

    def __init__(self, load: LoadDegree = lambda: 0) -> None:
        """load: of the process."""
        self._load = load
        self._lock = threading.Lock()
        self._busy: set[object] = set()

    def degree(self, source: object, has_rows: bool) -> int:
        """The degree for a source. has_rows: whether its topic is not calm; taken into account from now on, until `leave`."""
        with self._lock:
            if has_rows:
                self._busy.add(source)
            else:
                self._busy.discard(source)
            least = sum(len(self._busy) > few for few in FEW_SOURCES)
        return min(self._load(), least)

    def leave(self, source: object) -> None:
        """A source ends."""
        with self._lock:
            self._busy.discard(source)
