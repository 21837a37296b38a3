"""The dead letters of one stream: the records that its source refuses, with the reason, in the dead-letter topics of the
queries that read it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from formats.dead_letter import DeadLetterRecord
from intake.letter_rate import LetterRate
from services.hosting.process import now_us
from services.kafka.clusters import Cluster, close_producer, until_made
from services.kafka.topics import dead_letter_topic

_LOOK_S = 0.2


class SentLetter:
    """A letter on its way to the topics of several queries."""

    def __init__(self, sent: Mapping[str, Any], readers: Callable[[], Sequence[str]]) -> None:
        """sent: the future of the confirmation by each query's topic."""
        self._sent = sent
        self._readers = readers

    def get(self, timeout: float) -> None:
        """Return when all topics have it, but for those of queries that no longer read the stream: they may be gone.
        KafkaTimeoutError if that takes longer than so many seconds; KafkaError if Kafka refuses the record."""
        deadline = time.monotonic() + timeout
        for query, future in self._sent.items():
            while not future.is_done and query in self._readers():
                if (left := deadline - time.monotonic()) <= 0:
                    raise KafkaTimeoutError(f"the dead letters of {query} do not take a record")
                with suppress(KafkaTimeoutError):
                    future.get(timeout=min(left, _LOOK_S))
            if future.is_done and query in self._readers():
                future.get(timeout=0)


class Letters:
    """A producer of dead letters; any thread may call its methods."""

    def __init__(self, home: Cluster, readers: Callable[[], Sequence[str]], stream: str, topic: str) -> None:
        """readers: called for each letter: the queries that read the stream. topic: the user's topic, which the letters
        name."""
        self._readers = readers
        self._stream = stream
        self._user_topic = topic
        self._home = home
        self._rate = LetterRate()
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._producer: KafkaProducer | None = None

    def send(self, letter: DeadLetterRecord) -> SentLetter:
        """Send a letter; returns its confirmation."""
        with self._lock:
            self._rate.note(1, now_us())
        producer, record, key = self._made(), letter.to_json(), self._stream.encode()
        sent = {query: producer.send(dead_letter_topic(query), record, key=key, partition=0) for query in self._readers()}
        return SentLetter(sent, self._readers)

    def refuse(self, record: bytes, reason: str) -> SentLetter:
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
        """The producer: made for the first letter, since most sources never send one. A letter waits for an unreachable
        cluster."""
        with self._making:
            if self._producer is None:
                self._producer = until_made(self._home.make_producer, "dead letters cannot be sent")
            return self._producer
