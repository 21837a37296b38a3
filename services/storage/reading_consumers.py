"""The consumers with which the roles of one process search the logs of a site.

Each serves one thread at a time. Where many roles begin at one moment, each asks Kafka a dozen times where its logs end and
what they hold: with one consumer they would wait for each other's answers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaConsumer
from kafka.errors import KafkaTimeoutError

from services.kafka.clusters import Cluster
from services.storage.log_partition import make_log_consumer

MOST = 4
"""So many are made at most."""
CLOSE_MS = 500
"""How long closing one may take, in milliseconds."""


class ReadingConsumers:
    """See the module's header. All methods may be called from any thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self._free: list[KafkaConsumer] = []
        self._made = 0
        self._is_closed = False

    @contextmanager
    def lend(self) -> Iterator[KafkaConsumer]:
        """A consumer for one thread, which must not ask for another one meanwhile. KafkaError if none can be made. One that has
        not answered in time is not used again: kafka-python's may never answer, though Kafka does."""
        consumer, is_broken = self._take(), False
        try:
            yield consumer
        except KafkaTimeoutError:
            is_broken = True
            raise
        finally:
            self._give_back(consumer, is_broken)

    def close(self) -> None:
        """Close those that nobody uses; the others once they are given back."""
        with self._changed:
            self._is_closed = True
            free, self._free = self._free, []
        for consumer in free:
            _close(consumer)

    def _take(self) -> KafkaConsumer:
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._made < MOST)
            if self._free:
                return self._free.pop()  # the one that was used last, so that no more are made than are needed
            self._made += 1
        try:
            return make_log_consumer(self._cluster)
        except BaseException:
            self._forget()
            raise

    def _give_back(self, consumer: KafkaConsumer, is_broken: bool) -> None:
        with self._changed:
            is_kept = not is_broken and not self._is_closed
            if is_kept:
                self._free.append(consumer)
                self._changed.notify()
        if not is_kept:
            self._forget()
            _close(consumer)

    def _forget(self) -> None:
        with self._changed:
            self._made -= 1
            self._changed.notify()


def _close(consumer: KafkaConsumer) -> None:
    consumer.close(autocommit=False, timeout_ms=CLOSE_MS)
