"""The dead letters of one stream: the records that its source refuses, with the reason, in the query's dead-letter topic."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from formats.dead_letter import DeadLetterRecord
from intake.letter_rate import LetterRate
from services.hosting.process import now_us
from services.kafka.clusters import Cluster, close_producer
from services.kafka.topics import dead_letter_topic


class Letters:
    """A producer of dead letters; any thread may call its methods."""

    def __init__(self, home: Cluster, query: str, stream: str, topic: str) -> None:
        """topic: the user's topic, which the letters name."""
        self._topic = dead_letter_topic(query)
        self._stream = stream
        self._user_topic = topic
        self._home = home
        self._rate = LetterRate()
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._producer: KafkaProducer | None = None

    def send(self, letter: DeadLetterRecord) -> Any:
        """Send a letter; returns the future of its confirmation."""
        with self._lock:
            self._rate.note(1, now_us())
        return self._made().send(self._topic, letter.to_json(), key=self._stream.encode(), partition=0)

    def refuse(self, record: bytes, reason: str) -> Any:
        """As `send`, for a record that is not in the user's topic."""
        return self.send(DeadLetterRecord.of(self._stream, self._user_topic, 0, -1, reason, record))

    def per_minute(self) -> int:
        """How many were sent within the last minute."""
        with self._lock:
            return self._rate.per_minute(now_us())

    def close(self) -> None:
        if self._producer is not None:
            close_producer(self._producer, 1)

    def _made(self) -> KafkaProducer:
        """The producer: made for the first letter, since most sources never send one. Retries until it exists: a letter waits
        for an unreachable cluster."""
        with self._making:
            while self._producer is None:
                with suppress(KafkaError, OSError):
                    self._producer = self._home.make_producer()
            return self._producer
