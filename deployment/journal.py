"""The failure journal of a query: what befell it, the newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

KEPT = 40
"""Of each kind: a state that comes and goes must not drive out a lost claim."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """kind: what changed ('claim', 'progress', 'state', 'input', 'checkpoint'). who: the instance or stream that it befell.
    is_bad: whether somebody should look."""

    at_ms: int
    kind: str
    who: str
    text: str
    is_bad: bool


class FailureJournal:
    """Keeps the newest entries of each kind."""

    def __init__(self) -> None:
        self._entries: dict[str, deque[JournalEntry]] = {}

    def enter(self, entry: JournalEntry) -> JournalEntry:
        self._entries.setdefault(entry.kind, deque(maxlen=KEPT)).append(entry)
        return entry

    def resume(self, dumped: Iterable[Mapping[str, Any]]) -> None:
        """Go on after what an earlier life had dumped. KeyError, TypeError or ValueError where that is no journal, and then all
        is as it was."""
        earlier = [_read_entry(fields) for fields in dumped]
        since, self._entries = self._entries, {}
        for entry in earlier:
            self.enter(entry)
        for kind in since:
            for entry in since[kind]:
                self.enter(entry)

    def dump(self) -> list[dict[str, Any]]:
        """All entries, in the order of their times."""
        entries = [entry for kind in self._entries.values() for entry in kind]
        return [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.at_ms)]


def _read_entry(fields: Mapping[str, Any]) -> JournalEntry:
    at_ms, is_bad = int(fields["at_ms"]), bool(fields["is_bad"])
    return JournalEntry(at_ms, str(fields["kind"]), str(fields["who"]), str(fields["text"]), is_bad)
