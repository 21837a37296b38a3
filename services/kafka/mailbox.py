"""Mailboxes for threads that may have to wait for Kafka. Only the newest value of each key is kept."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from kafka import KafkaProducer
from kafka.errors import KafkaError

from services.kafka.clusters import Cluster, close_producer, log_retry

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_logger = logging.getLogger("boreal.mailbox")


class Mailbox(Generic[Key, Value]):
    """The newest value of each key, until it is taken."""

    def __init__(self) -> None:
        self._newest: dict[Key, Value] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, values: Mapping[Key, Value]) -> None:
        """Add values; returns at once."""
        with self._changed:
            self._newest.update(values)
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


class _Waiting(NamedTuple):
    """A record that waits to be sent."""

    topic: str
    key: bytes | None
    value: bytes | None


class Outbox:
    """Sends records to the only partition of a topic from a separate thread, since creating a producer and sending may block
    while the cluster is unreachable. Records that cannot be sent at once are dropped, and hold up no others. Of waiting ones,
    the newest of each key is sent.

    Many threads put records, many times a second. So they share a queue, and no lock that one of them may hold while the
    interpreter has stopped it."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        at_most: int | None = None,
        rest_s: Callable[[], float] = lambda: 0.0,
        **options: Any,
    ) -> None:
        """topic: of records that do not name another. at_most: maximum number of waiting records; the oldest are dropped.
        rest_s: asked after records are sent: for how long the next ones gather, in seconds. options: of the producer."""
        self._cluster = cluster
        self._topic = topic
        self._rest_s = rest_s
        self._options = options
        self._closed = threading.Event()
        self._at_most = at_most
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"outbox-{topic}", daemon=True)
        self._thread.start()

    def put(self, value: bytes | None, key: bytes | None = None, topic: str | None = None) -> None:
        """Send a record; returns at once. A record without a key replaces no other."""
        self._waiting.put(_Waiting(topic or self._topic, key, value))
        while self._at_most is not None and self._waiting.qsize() > self._at_most:
            with suppress(queue.Empty):
                self._waiting.get_nowait()

    def close(self) -> None:
        self._closed.set()
        self._waiting.put(None)
        self._thread.join(timeout=2)

    def _take(self) -> list[_Waiting]:
        """Wait for records, and take all: the newest of each key. Empty once this is closed."""
        taken: dict[Hashable, _Waiting] = {}
        numbers = itertools.count()
        record = self._waiting.get()
        with suppress(queue.Empty):
            while not self._closed.is_set():
                if record is not None:
                    taken[next(numbers) if record.key is None else record.key] = record
                record = self._waiting.get_nowait()
        return [] if self._closed.is_set() else list(taken.values())

    def _run(self) -> None:
        producer: KafkaProducer | None = None
        while waiting := self._take():
            refused: set[str] = set()
            for topic, key, value in waiting:
                try:
                    producer = producer or self._cluster.make_producer(patient=False, **self._options)
                    if topic not in refused:
                        producer.send(topic, value, key=key, partition=0)
                except (KafkaError, OSError) as error:
                    log_retry(_logger, f"{topic} cannot be written", error)
                    refused.add(topic)
                    if producer is None:
                        break
            self._closed.wait(self._rest_s())
        if producer is not None:
            close_producer(producer, 1)
