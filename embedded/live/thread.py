"""The thread that lets time pass for a `LiveEngine`, and its inbox for calls from other threads."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from embedded.live.engine import LiveEngine
from embedded.world import SkipClock

Result = TypeVar("Result")
LONGEST_WAIT_S = 1.0
LATE_TURNS = 64
"""How many turns may come before a call is looked for, while turns are late."""

_logger = logging.getLogger("boreal.live")


class LiveThread:
    """Runs an engine in real time. `engine` must be touched by calls only."""

    def __init__(self, data: Path) -> None:
        """Read the queries in `data`. They run from `start` on."""
        # The wall clock is read once: from then on time passes steadily, whatever is done to that clock.
        self._ahead_ns = time.time_ns() - time.monotonic_ns()
        self.engine = LiveEngine(data, SkipClock())
        self.heard_at = self.now()
        self._inbox: queue.SimpleQueue[tuple[Callable[[LiveEngine, int], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._is_closed = False

    def now(self) -> int:
        """The clock, in microseconds since the Unix epoch."""
        return (time.monotonic_ns() + self._ahead_ns) // 1_000

    def start(self) -> None:
        self._thread.start()

    def call(self, what: Callable[[LiveEngine, int], Result]) -> Result:
        """Call `what(engine, now)` between two turns, and return its result or raise its error. RuntimeError after `close`."""
        if self._is_closed:
            raise RuntimeError("the engine has stopped")
        answer: Future[Result] = Future()
        self._inbox.put((what, answer))
        return answer.result()

    def close(self) -> None:
        """Stop the queries, and return when they have stopped."""
        self._is_closed = True
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        engine = self.engine
        engine.begin(self.now())
        while True:
            turns = 0
            while (at := engine.next_at) is not None and at <= self.now() and turns < LATE_TURNS:
                engine.turn(self.now())
                turns += 1
            self.heard_at = self.now()
            if not self._take_calls(at):
                break
        engine.close()
        self._take_calls(None)

    def _take_calls(self, next_at: int | None) -> bool:
        """Wait for calls until the next turn, and take them; False if the thread is to end."""
        wait_s = LONGEST_WAIT_S if next_at is None else (next_at - self.now()) / 1e6
        try:
            entry = self._inbox.get(timeout=min(wait_s, LONGEST_WAIT_S)) if wait_s > 0 else self._inbox.get_nowait()
            while entry is not None:
                what, answer = entry
                try:
                    answer.set_result(what(self.engine, self.now()))
                except BaseException as error:  # the caller's: the engine goes on
                    answer.set_exception(error)
                entry = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False
