"""Mailboxes for threads that may have to wait for Kafka. Only the newest value of each key is kept."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

from kafka import KafkaProducer
from kafka.errors import KafkaError

from services.kafka.clusters import Cluster, close_producer, log_retry

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_logger = logging.getLogger("boreal.mailbox")


class Mailbox(Generic[Key, Value]):
    """The newest value of each key, until it is taken. at_most: maximum number of keys; the oldest ones are dropped."""

    def __init__(self, at_most: int | None = None) -> None:
        self._at_most = at_most
        self._newest: dict[Key, Value] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, values: Mapping[Key, Value]) -> None:
        """Add values; returns at once."""
        with self._changed:
            self._newest.update(values)
            while self._at_most is not None and len(self._newest) > self._at_most:
                del self._newest[next(iter(self._newest))]
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> dict[Key, Value] | None:
        """Wait for values, and take all. Empty after the timeout; None once the mailbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest or self._is_closed, timeout_s)
            taken, self._newest = self._newest, {}
            return None if self._is_closed else taken

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()


class Outbox:
    """Sends records to the only partition of a topic from a separate thread, since creating a producer and sending may block
    while the cluster is unreachable. Records that cannot be sent at once are dropped, and hold up no others. Of waiting ones,
    the newest of each key is kept."""

    def __init__(self, cluster: Cluster, topic: str, at_most: int | None = None, **options: Any) -> None:
        """topic: of records that do not name another. at_most: maximum number of waiting records; the oldest are dropped.
        options: of the producer."""
        self._cluster = cluster
        self._topic = topic
        self._options = options
        self._waiting: Mailbox[Hashable, tuple[str, bytes | None, bytes | None]] = Mailbox(at_most)
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name=f"outbox-{topic}", daemon=True)
        self._thread.start()

    def put(self, value: bytes | None, key: bytes | None = None, topic: str | None = None) -> None:
        """Send a record; returns at once. A record without a key replaces no other."""
        self._waiting.put({next(self._numbers) if key is None else key: (topic or self._topic, key, value)})

    def close(self) -> None:
        self._waiting.close()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        producer: KafkaProducer | None = None
        while (waiting := self._waiting.take()) is not None:
            refused: set[str] = set()
            for topic, key, value in waiting.values():
                try:
                    producer = producer or self._cluster.make_producer(patient=False, **self._options)
                    if topic not in refused:
                        producer.send(topic, value, key=key, partition=0)
                except (KafkaError, OSError) as error:
                    log_retry(_logger, f"{topic} cannot be written", error)
                    refused.add(topic)
                    if producer is None:
                        break
        if producer is not None:
            close_producer(producer, 1)
