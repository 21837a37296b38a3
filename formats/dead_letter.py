"""The dead letter of a rejected input record: a record of q.dlq with the input record, its position and the reason. And the
note that says which letters were put back into their stream.

    {"source": "jfk", "topic": "flights.jfk", "partition": 0, "offset": 12, "reason": "not a JSON object", "record": "[]"}
    {"source": "jfk", "replayed": [3, 4, 7], "by": "ops (operator)"}

A letter of a record that is no text, such as one of Avro, also has its bytes, as `base64`.

A note is written with the records that it speaks of, in one transaction. It comes after its letters in the topic, so it is
there at least as long as they are.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_TEXT = 100_000
"""Maximum length of the record in a dead letter, in characters; the rest is cut off, since Kafka would reject the letter."""

_ESCAPED = re.compile(r"\\x[0-9a-f]{2}")
"""What stands for a byte that is not UTF-8."""


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
    base64: str | None = None
    """The rejected record in base64, if it is no text, and short enough."""

    @staticmethod
    def of(source: str, topic: str, partition: int, offset: int, reason: str, value: bytes | None) -> DeadLetterRecord:
        """The letter of a record with this value."""
        text = text_of(value)
        coded = b64encode(value).decode() if value and _ESCAPED.search(text) else None
        is_kept = coded is not None and len(coded) <= LONGEST_TEXT
        return DeadLetterRecord(source, topic, partition, offset, reason, text, coded if is_kept else None)

    def to_json(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "base64" or self.base64 is not None}
        return json.dumps(fields, ensure_ascii=False).encode()

    @property
    def value(self) -> bytes | None:
        """The rejected record as it was; None if the letter holds only a part of it, or its text stands for other bytes."""
        if self.base64 is not None:
            return b64decode(self.base64)
        is_whole = 0 < len(self.record) < LONGEST_TEXT and not _ESCAPED.search(self.record)
        return self.record.encode() if is_whole else None


@dataclass(frozen=True, slots=True)
class ReplayNote:
    """Letters of one stream whose records were put back."""

    source: str
    """Name of the stream."""
    replayed: tuple[int, ...]
    """The offsets of the letters in q.dlq."""
    by: str
    """Who has put them back."""

    def to_json(self) -> bytes:
        return json.dumps({"source": self.source, "replayed": list(self.replayed), "by": self.by}).encode()


def read_letter(value: bytes) -> DeadLetterRecord | ReplayNote:
    """What a record of q.dlq holds. KeyError, TypeError or ValueError if it holds neither."""
    fields: Mapping[str, Any] = json.loads(value)
    if "replayed" in fields:
        return ReplayNote(str(fields["source"]), tuple(int(offset) for offset in fields["replayed"]), str(fields["by"]))
    texts = {name: str(fields[name]) for name in ("source", "topic", "reason", "record")}
    coded = fields.get("base64")
    partition, offset = int(fields["partition"]), int(fields["offset"])
    return DeadLetterRecord(partition=partition, offset=offset, base64=None if coded is None else str(coded), **texts)


def text_of(value: bytes | None) -> str:
    """A record's value as its dead letter holds it."""
    return (value or b"").decode("utf-8", "backslashreplace")[:LONGEST_TEXT]


@dataclass(frozen=True, slots=True)
class KeptLetter:
    """A dead letter that can be read."""

    id: str
    """Its place: `SITE:NUMBER`."""
    at_ms: float
    """When the record was refused, in milliseconds since the Unix epoch."""
    letter: DeadLetterRecord
    """The letter."""
    replayed: bool = False
    """Whether its record was put back."""


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """Which dead letters are meant."""

    stream: str | None = None
    """Only of this stream."""
    reason: str = ""
    """Only those whose reason holds this text."""
    since_ms: float | None = None
    """Only those of records that were refused since then, in milliseconds since the Unix epoch."""

    def takes(self, letter: DeadLetterRecord, at_ms: float) -> bool:
        """Whether a letter of this time is meant."""
        is_of_stream = self.stream is None or letter.source == self.stream
        return is_of_stream and self.reason in letter.reason and (self.since_ms is None or at_ms >= self.since_ms)


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some dead letters, the newest first."""

    letters: tuple[KeptLetter, ...]
    """The letters."""
    looked_back_to_ms: float | None = None
    """If there were too many to look at: the time of the oldest that was looked at. None: all were."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What became of the letters that were meant."""

    replayed: int
    """How many records were put back now."""
    left: Mapping[str, int]
    """How many letters were left as they are, by the reason: one of those below."""


PUT_BACK_BEFORE = "was put back before"
NO_RECORD = "the record is no longer in the topic, and the letter has not all of it"
NO_ROW = "is no row: a heartbeat, or a damaged record of a log"
BEYOND_LIMIT = "comes after as many as were asked for"
