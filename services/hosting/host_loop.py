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

import threading
import time
from itertools import count
from typing import Protocol

from services.hosting.process import now_us
from services.hosting.turn_queue import NEVER, TurnQueue

_LEAVE_WITHIN_S = 2.0
_TURNS, _REST_S = 4, 0.002
"""After so many turns the thread rests for so long."""


class SharedHost(Protocol):
    """A host that takes turns."""

    @property
    def is_patient(self) -> bool:
        """Whether those that are not go first. Any thread may ask this."""
        ...

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
        self._queue = TurnQueue[SharedHost]()
        self._running: SharedHost | None = None
        self._waits_until = NEVER
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
            if host in self._queue and by < self._queue.due(host):
                self._set_due(host, by)

    def leave(self, host: SharedHost) -> None:
        """Give a host no more turns; returns when it has none, or within two seconds. Not for the thread that gives them."""
        with self._changed:
            self._queue.remove(host)
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
                if host not in self._queue:
                    continue
                if due is not None:
                    self._set_due(host, min(due, self._queue.due(host)))
                else:
                    self._queue.remove(host)
            if due is None:
                host.run_alone()
            if turns % _TURNS == 0:
                self._rest()

    def _rest(self) -> None:
        """Leave the interpreter to others for a moment, since all members have their turns at one time. Not if turns are
        late."""
        with self._changed:
            is_late = self._queue.is_late(now_us())
        if not is_late:
            time.sleep(_REST_S)

    def _next(self) -> SharedHost | None:
        """Wait for the next host whose turn it is; None once this is closed."""
        with self._changed:
            while not self._is_closed:
                now = now_us()
                if (host := self._queue.take(now)) is not None:
                    self._running, self._waits_until = host, 0
                    return host
                self._waits_until = self._queue.first_due()
                self._changed.wait(None if self._waits_until == NEVER else (self._waits_until - now) / 1e6)
            return None

    def _set_due(self, host: SharedHost, due: int) -> None:
        self._queue.set_due(host, due, host.is_patient)
        if due < self._waits_until:
            self._changed.notify_all()
