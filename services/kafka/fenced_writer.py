"""A thread that writes to a topic which has one writer at a time.

1. A writer begins: Kafka aborts what an earlier one has not committed, and refuses it from then on.
2. What is there is read: only then it is known what remains to be written.
3. What waits is committed in transactions. If it is not known whether one was, the writer begins again.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from kafka import KafkaProducer
from kafka.errors import KafkaError

from services.kafka.clusters import ANSWERED_WITHIN_MS, Cluster, close_producer, is_fenced, log_retry

_RETRY_S = 0.5


class FencedWriter(ABC):
    """While Kafka is out of reach, what is to be written waits. The thread starts at once, so `__init__` is called last."""

    def __init__(
        self, home: Cluster, topic: str, writer: str, successor: str, on_fenced: Callable[[], None], logger: logging.Logger
    ) -> None:
        """writer: the transactional id of all writers: Kafka lets only the last one that began commit. successor: who another
        writer is, for the log. on_fenced: called in the thread if another writer has begun; this one writes nothing more."""
        self._home = home
        self._topic = topic
        self._writer = writer
        self._successor = successor
        self._on_fenced = on_fenced
        self._logger = logger
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=writer, daemon=True)
        self._thread.start()

    @abstractmethod
    def _catch_up(self) -> None:
        """Read what is there. The earlier writers are fenced."""

    @abstractmethod
    def _write(self, producer: KafkaProducer) -> None:
        """Commit what waits, until the writer is closed."""

    def close(self) -> None:
        """Stop when what waits is written, or after two seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while True:
            try:
                producer = self._begin()
                try:
                    return self._write(producer)
                finally:
                    close_producer(producer, 1)
            except (KafkaError, OSError) as error:
                if is_fenced(error):
                    self._logger.error("%s has another writer: a later %s has begun", self._topic, self._successor)
                    return self._on_fenced()
                log_retry(self._logger, f"{self._topic} cannot be written", error)
            with self._changed:
                if self._is_closed:
                    return
                self._changed.wait(_RETRY_S)

    def _begin(self) -> KafkaProducer:
        producer = self._home.make_writer(self._writer, ANSWERED_WITHIN_MS)
        try:
            producer.init_transactions()
            self._catch_up()
        except BaseException:
            close_producer(producer, 0)
            raise
        return producer
