"""Waiting for other threads, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 60.0
LONGEST_S = 240.0


def wait(is_so: Callable[[], object], within_s: float = PATIENCE_S, every_s: float = 0.005) -> bool:
    """Whether something has become so in time. every_s: how often it is looked at."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True


def wait_until(
    condition: Callable[[], object],
    what: str = "it comes about",
    within_s: float = LONGEST_S,
    explain: Callable[[], str] = str,
    every_s: float = 0.01,
) -> None:
    """Wait until a condition holds. AssertionError if that takes longer: it names what, and explains. every_s: how often it is
    looked at; rarely, if that takes a client of Kafka."""
    assert wait(condition, within_s, every_s), f"not within {within_s:.0f} s: {what}\n{explain()}"


def start_until_it_waits(write: Callable[[], None], count: Callable[[], int]) -> threading.Thread:
    """A thread that writes, once what it counts has stood still for half a second, or it has ended."""
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    before = -1
    while writer.is_alive() and count() > before:
        before = count()
        writer.join(0.5)
    return writer
