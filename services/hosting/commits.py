"""How often the egresses of one process commit what they write in transactions.

A transaction costs three requests, and as many writes by the broker, however few its rows. While a process has time, each
egress commits soon what has come. While it has much to do, all of them together commit about ten times a second.
"""

from __future__ import annotations

import threading

from services.kafka.load import LoadDegree

LEAST_S = 0.05
"""The shortest time between two transactions of one writer."""
MORE_S = 0.1
"""How much longer it is for each further writer of a loaded process."""
LONGEST_S = LEAST_S, 0.5, 1.0
"""For how long rows wait for a transaction at most, by how loaded the process is."""


class CommitPace:
    """See the module's header. All methods may be called from any thread."""

    def __init__(self, load: LoadDegree = lambda: 0) -> None:
        """load: of the process."""
        self._load = load
        self._lock = threading.Lock()
        self._writers = 0

    def join(self) -> None:
        """One more writes transactions."""
        with self._lock:
            self._writers += 1

    def leave(self) -> None:
        """One of those who joined writes no more."""
        with self._lock:
            self._writers -= 1

    @property
    def interval_s(self) -> float:
        """The time between two transactions of a writer, in seconds."""
        return min(LEAST_S + MORE_S * max(self._writers - 1, 0), LONGEST_S[self._load()])
