"""Which roles have rows at present, by the counts that their statuses tell of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COUNTS = {"source": "rows", "egress": "new_rows"}
"""What a role counts its rows by, by its kind."""


class RowCounts:
    """The newest counts of sources and egresses."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._rising: set[str] = set()

    def see(self, status: Mapping[str, Any]) -> None:
        """Take the status of a process; nothing happens if it counts no rows."""
        name, count = str(status["process"]), status.get(_COUNTS.get(str(status.get("kind")), ""))
        if not isinstance(count, int):
            return
        if count > self._counts.get(name, count):
            self._rising.add(name)
        else:
            self._rising.discard(name)
        self._counts[name] = count

    def is_rising(self, role: str) -> bool:
        """Whether a role had rows between its last two statuses."""
        return role in self._rising

    def forget(self, role: str) -> None:
        """A role is no more, or begins anew."""
        self._counts.pop(role, None)
        self._rising.discard(role)
