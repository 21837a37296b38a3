"""Those who wait for what comes, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class Listeners:
    """Functions to call whenever there is more. Thread-safe. Call `notify` without a lock that a listener may want."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: list[Callable[[], None]] = []

    def add(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify`, from any thread, whenever there is more, until the returned function is called."""
        with self._lock:
            self._functions.append(notify)

        def stop() -> None:
            with self._lock, suppress(ValueError):
                self._functions.remove(notify)

        return stop

    def notify(self) -> None:
        """There is more."""
        with self._lock:
            functions = list(self._functions)
        for function in functions:
            function()
