"""The events of an embedded installation: lines of a file in its directory, the newest ones of bounded size.

    events.jsonl     {"n": 42, "event": {...}} in the order of n      events.1.jsonl     those before

When the file has grown to FILE_BYTES it takes the place of the one before it. An event is there when a crash of the process
comes; a line that the crash of a machine has torn is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from deployment.events import RecordedEvent, read_event

FILE_BYTES = 8 << 20

OnEvent = Callable[[int, RecordedEvent], None]
"""Called with the number of an event, from 1, and the event."""


class EventJournal:
    """The events of an installation. Not for several threads."""

    def __init__(self, data: Path) -> None:
        """Read the events in `data`; the files are made when there is something to write."""
        self._path = data / "events.jsonl"
        self._before = data / "events.1.jsonl"
        self.events: list[tuple[int, RecordedEvent]] = [*_read(self._before), *_read(self._path)]
        """Those that were there at the beginning, with their numbers."""
        self.on_event: OnEvent = lambda number, event: None
        """Called with each later event."""
        self._last = self.events[-1][0] if self.events else 0
        self._is_torn = self._path.is_file() and not self._path.read_bytes().endswith(b"\n")

    def record(self, events: Sequence[RecordedEvent]) -> None:
        """Record events, in order."""
        if not events:
            return
        if self._path.is_file() and self._path.stat().st_size >= FILE_BYTES:
            self._path.replace(self._before)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        numbered = list(enumerate(events, self._last + 1))
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" if self._is_torn else "")
            file.writelines(f'{{"n":{number},"event":{event.to_json()}}}\n' for number, event in numbered)
        self._is_torn = False
        self._last = numbered[-1][0]
        for number, event in numbered:
            self.on_event(number, event)


def _read(path: Path) -> list[tuple[int, RecordedEvent]]:
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            fields = json.loads(line)
            found.append((int(fields["n"]), read_event(json.dumps(fields["event"]))))
        except (KeyError, TypeError, ValueError):
            continue
    return found
