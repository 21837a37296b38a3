"""One thread that runs all instances of a process that get no rows, or few at a time.

A thread for each of them would cost little while they wait. But they have work at the same moments, when their sources write,
and Python runs one thread at a time: the others wake up again and again to look whether it is their turn. Most of all where
they are all late, for each has more to say then.

As soon as what an instance has to do may take long, or may have to wait for Kafka, it runs in a thread of its own, so that it
holds up no other.

    runs alone ──few rows for a while, and nothing to wait for──> takes turns with the others
         ^                                                            │
         └──────────── many rows, a long turn, or a wait ─────────────┘
"""

from __future__ import annotations

import heapq
import threading
import time
from itertools import count
from typing import Protocol

from services.hosting.process import now_us

_LEAVE_WITHIN_S = 2.0
_NEVER = 1 << 62
_TURNS, _REST_S = 4, 0.002
"""After so many turns the thread rests for so long."""
_LATE_US = 100_000


class SharedHost(Protocol):
    """A host that takes turns."""

    def take_turn(self) -> int | None:
        """Do a little of what there is to do; returns when the next turn is due, by `now_us`. None: it is to run alone. Must
        not block."""
        ...

    def run_alone(self) -> None:
        """Run in a thread of its own, until it joins again."""
        ...


class HostLoop:
    """See the module's header. All methods may be called from any thread. Times are of `now_us`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[SharedHost, int] = {}
        """The members, and when the next turn of each is due."""
        self._dues: list[tuple[int, int, SharedHost]] = []
        """The same as a heap, with entries that no longer hold. The number in between is never the same."""
        self._numbers = count()
        self._running: SharedHost | None = None
        self._waits_until = _NEVER
        """Until when the thread waits."""
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def join(self, host: SharedHost) -> None:
        """Give a host turns, the first one at once; returns at once."""
        with self._changed:
            self._set_due(host, 0)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="host-loop", daemon=True)
                self._thread.start()

    def wake(self, host: SharedHost, by: int) -> None:
        """Something has come for a host: if it is a member, its turn is due by then."""
        with self._changed:
            if by < self._due.get(host, 0):
                self._set_due(host, by)

    def leave(self, host: SharedHost) -> None:
        """Give a host no more turns; returns when it has none, or within two seconds. Not for the thread that gives them."""
        with self._changed:
            self._due.pop(host, None)
            self._changed.wait_for(lambda: self._running is not host, _LEAVE_WITHIN_S)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # The thread

    def _run(self) -> None:
        for turns in count(1):
            if (host := self._next()) is None:
                return
            due = host.take_turn()
            with self._changed:
                self._running = None
                self._changed.notify_all()
                if host not in self._due:
                    continue
                if due is not None:
                    self._set_due(host, min(due, self._due[host]))
                else:
                    del self._due[host]
            if due is None:
                host.run_alone()
            if turns % _TURNS == 0:
                self._rest()

    def _rest(self) -> None:
        """Leave the interpreter to others for a moment, since all members have their turns at one time. Not if turns are
        late."""
        with self._changed:
            is_late = self._first_due() < now_us() - _LATE_US
        if not is_late:
            time.sleep(_REST_S)

    def _next(self) -> SharedHost | None:
        """Wait for the next host whose turn it is; None once this is closed."""
        with self._changed:
            while not self._is_closed:
                now, self._waits_until = now_us(), self._first_due()
                if self._waits_until <= now:
                    self._running = host = self._dues[0][-1]
                    self._due[host] = _NEVER  # until it says when, or is woken
                    return host
                self._changed.wait(None if self._waits_until == _NEVER else (self._waits_until - now) / 1e6)
            return None

    def _first_due(self) -> int:
        """When the first turn is due. Then the first entry of the heap is valid."""
        while self._dues:
            due, _, host = self._dues[0]
            if self._due.get(host) == due:
                return due
            heapq.heappop(self._dues)
        return _NEVER

    def _set_due(self, host: SharedHost, due: int) -> None:
        if self._due.get(host) != due:
            self._due[host] = due
            heapq.heappush(self._dues, (due, next(self._numbers), host))
            if due < self._waits_until:
                self._changed.notify_all()
