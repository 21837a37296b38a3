"""A record that was refused, as a record of q.dlq: its place, the reason, and the record itself."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A record that was refused: a record of q.dlq. source: the stream that it would have been of; offset: -1 for one that was
    posted and never came into the topic."""

    source: str
    topic: str
    partition: int
    offset: int
    reason: str
    record: str

    def to_json(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, ensure_ascii=False).encode()
