"""Waiting for other threads, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 60.0


def wait(is_so: Callable[[], bool]) -> bool:
    """Whether something has become so in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_so()


def start_until_it_waits(write: Callable[[], None], count: Callable[[], int]) -> threading.Thread:
    """A thread that writes, once what it counts has stood still for half a second, or it has ended."""
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    before = -1
    while writer.is_alive() and count() > before:
        before = count()
        writer.join(0.5)
    return writer
