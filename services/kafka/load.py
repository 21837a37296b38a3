"""Whether a process has so much to do that what can wait is gathered.

What a source logs, what an instance appends and what is fetched of a control topic costs nearly as much for one row as for
many. While a machine has time, each of them is done at once. When it has not, all of them wait a moment for what comes next,
well within X: then there is less to do, and results come sooner than in a queue.

    not loaded ──this process takes half of a core, or the machine is three quarters busy──> loaded
         ^                                                                                     │
         └───────────────────────── both are well below that ──────────────────────────────────┘
"""

from __future__ import annotations

import threading
import time

import psutil

SAMPLE_S = 0.5
OWN_SHARE = 0.5
"""Python runs one thread at a time, so a process that takes half of a core makes its threads wait for each other."""
MACHINE_SHARE = 0.75
CALM_FACTOR = 0.75
"""It is loaded no more when less than so much of these shares is taken: gathering itself takes a quarter of the load away."""


class LoadGauge:
    """The decision."""

    def __init__(self) -> None:
        self.is_high = False

    def note(self, own_share: float, machine_share: float) -> None:
        """Take what was used lately: of one core by this process, and of all cores by the whole machine."""
        level = max(own_share / OWN_SHARE, machine_share / MACHINE_SHARE)
        self.is_high = level >= (CALM_FACTOR if self.is_high else 1.0)


class Load:
    """The load of this process and its machine, measured when it is asked for. May be asked by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gauge = LoadGauge()
        self._at = time.monotonic()
        self._own_s, self._busy_s = used_seconds()

    @property
    def is_high(self) -> bool:
        """Whether what can wait is to be gathered."""
        if time.monotonic() - self._at >= SAMPLE_S:
            with self._lock:
                self._look()
        return self._gauge.is_high

    def _look(self) -> None:
        now = time.monotonic()
        past_s = now - self._at
        if past_s < SAMPLE_S:
            return  # another thread was faster
        own_s, busy_s = used_seconds()
        self._gauge.note((own_s - self._own_s) / past_s, (busy_s - self._busy_s) / past_s)
        self._at, self._own_s, self._busy_s = now, own_s, busy_s


def used_seconds() -> tuple[float, float]:
    """The processor time of this process, and that of all processes of the machine divided by its cores, since some moment."""
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    return time.process_time(), (sum(times[:8]) - idle_s) / (psutil.cpu_count() or 1)
