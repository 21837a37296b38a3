"""Waiting for other threads, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 60.0
LONGEST_S = 240.0


def wait(is_so: Callable[[], bool]) -> bool:
    """Whether something has become so in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
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
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}\n{explain()}"
        time.sleep(every_s)


def start_until_it_waits(write: Callable[[], None], count: Callable[[], int]) -> threading.Thread:
    """A thread that writes, once what it counts has stood still for half a second, or it has ended."""
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    before = -1
    while writer.is_alive() and count() > before:
        before = count()
        writer.join(0.5)
    return writer
