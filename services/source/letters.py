"""The dead letters of one stream: the records that its source refuses, with the reason, in the query's dead-letter topic."""

from __future__ import annotations

from typing import Any

from formats.dead_letter import DeadLetterRecord
from intake.intake import text_of
from services.kafka.clusters import Cluster, close_producer
from services.kafka.topics import dead_letter_topic


class Letters:
    """A producer of dead letters; any thread may call `send` and `refuse`."""

    def __init__(self, home: Cluster, query: str, stream: str, topic: str) -> None:
        """topic: the user's topic, which the letters name."""
        self._topic = dead_letter_topic(query)
        self._stream = stream
        self._user_topic = topic
        self._producer = home.make_producer()

    def send(self, letter: DeadLetterRecord) -> Any:
        """Send a letter; returns the future of its confirmation."""
        return self._producer.send(self._topic, letter.to_json(), key=self._stream.encode(), partition=0)

    def refuse(self, record: bytes, reason: str) -> Any:
        """As `send`, for a record that is not in the user's topic."""
        return self.send(DeadLetterRecord(self._stream, self._user_topic, 0, -1, reason, text_of(record)))

    def close(self) -> None:
        close_producer(self._producer, 1)
