"""The dead letter of a rejected input record: a record of q.dlq with the input record, its position and the reason."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A record of q.dlq."""

    source: str
    """Name of the stream."""
    topic: str
    """Topic of the rejected record."""
    partition: int
    """Partition of the rejected record."""
    offset: int
    """Offset of the rejected record; -1 for a record that was posted and never written to the topic."""
    reason: str
    """Why the record was rejected, for people."""
    record: str
    """The rejected record as text."""

    def to_json(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, ensure_ascii=False).encode()
