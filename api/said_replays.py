"""The last replays of dead letters, in a file: the monitor is told of them until it has recorded them."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from deployment.events import KEPT_MS, RecordedEvent

MOST = 100
"""How many are kept."""
SAID_FOR_MS = KEPT_MS - 24 * 3_600_000
"""For how long they are told: an event that is no longer kept would be recorded again."""


class SaidReplays:
    """A file, which several processes may share."""

    def __init__(self, path: Path) -> None:
        """path: the file; it is made with the first replay."""
        self._path = path

    def add(self, event: RecordedEvent) -> None:
        """Keep one more. It survives a crash when this returns. OSError if the disk does not take it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = [*self._lines(), event.to_json()][-MOST:]
            written = self._path.with_suffix(".new")
            with written.open("w") as file:
                file.write("".join(f"{line}\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
            written.replace(self._path)

    def shown(self) -> list[dict[str, Any]]:
        """Those that are to be told, as JSON objects, the oldest first."""
        since_ms = time.time() * 1_000 - SAID_FOR_MS
        return [event for event in map(json.loads, self._lines()) if event["at_ms"] >= since_ms]

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text().splitlines()
        except FileNotFoundError:
            return []
