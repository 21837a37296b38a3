"""The failure journal of a query: its events, the newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

KEPT = 40
"""Number of entries kept per kind, so that a frequently changing state does not displace a lost claim."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event of a query."""

    at_ms: int
    """Time since the epoch (ms)."""
    kind: str
    """What changed: 'claim', 'progress', 'state', 'input' or 'checkpoint'; 'fault' for a fault on purpose."""
    who: str
    """The affected instance or stream."""
    text: str
    """Description for people."""
    is_bad: bool
    """Whether an operator should look at it."""


class FailureJournal:
    """The newest entries of each kind."""

    def __init__(self) -> None:
        self._entries: dict[str, deque[JournalEntry]] = {}

    def enter(self, entry: JournalEntry) -> JournalEntry:
        """Add an entry, and return it."""
        self._entries.setdefault(entry.kind, deque(maxlen=KEPT)).append(entry)
        return entry

    def resume(self, dumped: Iterable[Mapping[str, Any]]) -> None:
        """Insert the entries that an earlier incarnation dumped, before the present ones. KeyError, TypeError or ValueError if
        `dumped` is not a journal; nothing changes then."""
        earlier = [_read_entry(fields) for fields in dumped]
        since, self._entries = self._entries, {}
        for entry in earlier:
            self.enter(entry)
        for kind in since:
            for entry in since[kind]:
                self.enter(entry)

    def dump(self) -> list[dict[str, Any]]:
        """All entries as JSON objects, ordered by time."""
        entries = [entry for kind in self._entries.values() for entry in kind]
        return [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.at_ms)]


def _read_entry(fields: Mapping[str, Any]) -> JournalEntry:
    at_ms, is_bad = int(fields["at_ms"]), bool(fields["is_bad"])
    return JournalEntry(at_ms, str(fields["kind"]), str(fields["who"]), str(fields["text"]), is_bad)
