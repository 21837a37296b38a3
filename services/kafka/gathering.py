"""To what degree what a process writes gathers: rows in its sources, and frames of its logs.

A batch costs nearly as much for one row as for many, and a request for one log as for many, so a loaded process writes less
often (services/kafka/load.py). But where few of its sources, or logs, have rows, what they write is a small part of what it
does, or nothing else is there that could go with it: gathering would only delay them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from services.kafka.load import LoadDegree

FEW_SOURCES = 1, 3
"""Where at most so many sources have rows, the degree is 0, or 1."""
FEW_LOGS = (3,)
"""The same of logs, which know the degrees 0 and 1. A query with one stream has at most two in each of two workers."""


class GatherPace:
    """See the module's header. All methods may be called from any thread."""

    def __init__(self, few: Sequence[int], load: LoadDegree = lambda: 0) -> None:
        """few: for each degree below the highest, in order, how many of them have rows at most. load: of the process."""
        self._few = few
        self._load = load
        self._lock = threading.Lock()
        self._busy: set[object] = set()

    def degree(self, one: object, has_rows: bool) -> int:
        """The degree for a source, or a log. has_rows: whether it is not calm; taken into account from now on, until it
        leaves."""
        if has_rows != (one in self._busy):
            with self._lock:
                if has_rows:
                    self._busy.add(one)
                else:
                    self._busy.discard(one)
        return min(self._load(), sum(len(self._busy) > few for few in self._few))

    @property
    def has_many(self) -> bool:
        """Whether so many have rows that they gather in a loaded process."""
        return len(self._busy) > self._few[0]

    def leave(self, one: object) -> None:
        """A source ends, or nothing more is appended to a log."""
        with self._lock:
            self._busy.discard(one)
