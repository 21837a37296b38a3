"""How much of the processor a process has taken."""

from __future__ import annotations

import psutil


def processor_time(process: psutil.Process) -> float:
    """The processor time of a process so far, in seconds. NoSuchProcess if it has ended."""
    times = process.cpu_times()
    return float(times.user + times.system)
