"""Whether a process has so much to do that what can wait is gathered.

What a source logs, what an instance appends and what is fetched of a control topic costs nearly as much for one row as for
many. While a machine has time, each of them is done at once. When it has not, all of them wait a moment for what comes next,
well within X: then there is less to do, and results come sooner than in a queue.

    0, not loaded ──this process takes half of a core, or the machine is three quarters busy──> 1, loaded
          ^                                                                                     │
          └───────────────────────── both are well below that ──────────────────────────────────┘

The same leads on to degree 2, a quarter above these shares: sources gather longer. A loaded process in which many logs have
rows also lets each of its threads run for longer.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import psutil

SAMPLE_S = 0.5
OWN_SHARE = 0.5
"""Python runs one thread at a time, so a process that takes half of a core makes its threads wait for each other."""
MACHINE_SHARE = 0.75
DEGREES = 1.0, 1.25
"""How much of these shares is taken from each degree on, up to MOST_LOADED."""
CALM_FACTOR = 0.75
"""A degree ends when less than so much of its share is taken: gathering itself takes a quarter of the load away."""

THREAD_SWITCH_S, CROWDED_SWITCH_S = 0.0005, 0.005
"""After how long a thread hands the interpreter to another that waits for it; and in a loaded process in which many logs have
rows. Readers, instances and producers share it: with 5 ms a frame may wait as long as a whole hop takes, for each thread that
has much to do. But each time costs something, and where many threads always have work, it would be much."""

LoadDegree = Callable[[], int]
"""Says how loaded a process is: 0 if it is not, 1 or 2."""


class LoadGauge:
    """The decision."""

    def __init__(self) -> None:
        self.degree = 0

    def note(self, own_share: float, machine_share: float) -> None:
        """Take what was used lately: of one core by this process, and of all cores by the whole machine."""
        level = max(own_share / OWN_SHARE, machine_share / MACHINE_SHARE)
        while self.degree < len(DEGREES) and level >= DEGREES[self.degree]:
            self.degree += 1
        while self.degree and level < CALM_FACTOR * DEGREES[self.degree - 1]:
            self.degree -= 1


class Load:
    """The load of this process and its machine, measured when it is asked for. May be asked by any thread. It sets how long the
    threads of the process run; several of one process measure, and set, the same."""

    def __init__(self, is_crowded: Callable[[], bool] = lambda: True) -> None:
        """is_crowded: whether many logs of the process have rows."""
        self._is_crowded = is_crowded
        self._lock = threading.Lock()
        self._gauge = LoadGauge()
        self._at = time.monotonic()
        self._own_s, self._busy_s = used_seconds()
        sys.setswitchinterval(THREAD_SWITCH_S)

    def degree(self) -> int:
        """See `LoadDegree`."""
        if time.monotonic() - self._at >= SAMPLE_S and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._gauge.degree

    def _look(self) -> None:
        now = time.monotonic()
        past_s = now - self._at
        if past_s < SAMPLE_S:
            return  # another thread was faster
        own_s, busy_s = used_seconds()
        self._gauge.note((own_s - self._own_s) / past_s, (busy_s - self._busy_s) / past_s)
        self._at, self._own_s, self._busy_s = now, own_s, busy_s
        is_long = self._gauge.degree > 0 and self._is_crowded()
        sys.setswitchinterval(CROWDED_SWITCH_S if is_long else THREAD_SWITCH_S)


def used_seconds() -> tuple[float, float]:
    """The processor time of this process, and that of all processes of the machine divided by its cores, since some moment."""
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    return time.process_time(), (sum(times[:8]) - idle_s) / (psutil.cpu_count() or 1)
