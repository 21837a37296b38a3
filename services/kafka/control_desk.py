"""The control topics of many queries at one site, written and read by one producer and one consumer of a process: clients cost
threads and requests, also while nothing happens.

A message that comes alone is handed on at once. The next fetch waits for the time that the listeners allow, so that the
messages of many queries come together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from services.kafka.clusters import Cluster, log_retry
from services.kafka.load import LoadDegree
from services.kafka.mailbox import Outbox

WAITING = 256
"""Maximum number of records that wait to be sent; older ones are dropped."""
_POLL_MS = 500
"""How soon a topic that is new is read, if no other has news."""
_LINGER_MS = 2
_BLOCK_MS = 100
"""How long a record waits for the leader of its topic at most, since others wait behind it."""
_LOADED_MS = 20
"""While the process is loaded, the next fetch begins, and the next records are sent, so much later at least, or as the
listeners allow: well within a heartbeat."""
_RETRY_S = 0.2
_ASK_REFUSED_AGAIN_S = 10.0
_CLOSE_S = 2.0

_logger = logging.getLogger("boreal.control")


@dataclass(frozen=True, eq=False)
class Listener:
    """Who hears what a topic says from now on."""

    topic: str
    """The name of the topic."""
    take: Callable[[ConsumerRecord], None]
    """Called with each record, in a thread of the desk. What it raises is logged."""
    gather_ms: Callable[[], int]
    """Asked for how long messages may wait for others, in milliseconds."""


class ControlDesk:
    """All methods return at once, and may be called from any thread. An unreachable site is silent."""

    def __init__(self, cluster: Cluster, load: LoadDegree = lambda: 0) -> None:
        """load: of the process; while it is loaded, messages wait for others a little longer."""
        self._cluster = cluster
        self._load = load
        self._changed = threading.Condition()
        self._listeners: Mapping[str, tuple[Listener, ...]] = {}
        """By topic; replaced as a whole."""
        self._refused: dict[str, float] = {}
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._outbox: Outbox | None = None

    def send(self, topic: str, value: bytes) -> None:
        """Send a record to a topic's only partition, or drop it."""
        (self._outbox or self._open_outbox(topic)).put(value, topic=topic)

    def listen(self, listener: Listener) -> None:
        """Hand on the records that are written from now on, until `leave`."""
        with self._changed:
            of_topic = (*self._listeners.get(listener.topic, ()), listener)
            self._listeners = {**self._listeners, listener.topic: of_topic}
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"control-{self._cluster.site}", daemon=True)
                self._thread.start()

    def leave(self, listener: Listener) -> None:
        with self._changed:
            of_topic = tuple(other for other in self._listeners.get(listener.topic, ()) if other is not listener)
            others = {topic: listeners for topic, listeners in self._listeners.items() if topic != listener.topic}
            self._listeners = {**others, listener.topic: of_topic} if of_topic else others

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._outbox is not None:
            self._outbox.close()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _open_outbox(self, topic: str) -> Outbox:
        with self._changed:
            if self._outbox is None:
                options = {"linger_ms": _LINGER_MS, "max_block_ms": _BLOCK_MS}
                self._outbox = Outbox(self._cluster, topic, WAITING, lambda: self._send_rest_ms() / 1_000, **options)
            return self._outbox

    # The thread

    def _run(self) -> None:
        while not self._is_closed:
            with self._changed:
                self._changed.wait_for(lambda: self._listeners or self._is_closed)
            try:
                with closing(self._cluster.make_consumer(fetch_max_wait_ms=_POLL_MS)) as consumer:
                    self._follow(consumer)
            except (KafkaError, OSError) as error:
                log_retry(_logger, f"control topics of {self._cluster.site} cannot be read", error)
                if isinstance(error, TopicAuthorizationFailedError):
                    # The others go on without it.
                    (topics,) = error.args
                    self._refused.update(dict.fromkeys(topics, time.monotonic() + _ASK_REFUSED_AGAIN_S))
                self._pause(_RETRY_S)

    def _follow(self, consumer: KafkaConsumer) -> None:
        """Follow until nobody listens, or an error occurs."""
        followed: set[TopicPartition] = set()
        while (listeners := self._listeners) and not self._is_closed:
            now = time.monotonic()
            wanted = {TopicPartition(topic, 0) for topic in listeners if self._refused.get(topic, 0.0) <= now}
            if wanted != followed:
                consumer.assign(sorted(wanted))
                if new := wanted - followed:
                    consumer.seek_to_end(*new)
                followed = wanted
            try:
                found = consumer.poll(timeout_ms=_POLL_MS)
            except OffsetOutOfRangeError:
                # Retention was faster, or a topic was made again: what is old is out of date.
                consumer.seek_to_end(*followed)
                continue
            if found:
                self._hand_on(listeners, found)
                self._pause(self._fetch_rest_ms() / 1_000)

    def _fetch_rest_ms(self) -> int:
        """How long what comes next gathers: as long as all listeners allow."""
        gather_ms = min((one.gather_ms() for of_topic in self._listeners.values() for one in of_topic), default=0)
        return max(gather_ms, _LOADED_MS) if self._load() else gather_ms

    def _send_rest_ms(self) -> int:
        """The same of what is sent next: nothing while the process has time."""
        return self._fetch_rest_ms() if self._load() else 0

    def _hand_on(self, listeners: Mapping[str, Iterable[Listener]], found: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        for place, records in found.items():
            for listener in listeners.get(place.topic, ()):
                for record in records:
                    try:
                        listener.take(record)
                    except Exception as error:  # whatever it is, the thread must go on
                        where = f"offset {record.offset} of {place.topic}"
                        _logger.warning("the record at %s is malformed and skipped: %r", where, error)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, seconds)
