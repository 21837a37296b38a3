"""Follows a topic with one partition, from its beginning or from some records before its end, through all failures of its
cluster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError

from services.kafka.clusters import Cluster, log_retry

RETRY_S = 0.2
_POLL_MS = 500
"""How soon a follower notices that it is closed."""
_FETCH_WAIT_MS = 1_000
"""How long the broker waits for a record before it says that there is none. A record that comes is sent at once."""

_logger = logging.getLogger("boreal.follower")


class TopicFollower:
    """Passes each record to `take`, in order, in a separate thread, until it is closed. An unreachable cluster is silent. A
    record for which `take` raises is logged and skipped, so that it does not block later ones."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        take: Callable[[ConsumerRecord], None],
        rest_ms: int = 0,
        read_committed: bool = False,
        last: int | None = None,
    ) -> None:
        """take: called with each record. rest_ms: after records have come, the next ones gather for so long, since a fetch
        costs as much for one as for many. read_committed: leave out records of transactions that were not committed. last:
        begin with so many records before the end, not at the beginning."""
        self.is_current = threading.Event()
        """Set once all records that the topic held when it was reached have been passed on."""
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._take = take
        self._rest_s = rest_ms / 1_000
        self._options: dict[str, Any] = {"read_committed": read_committed, "fetch_max_wait_ms": _FETCH_WAIT_MS}
        self._last = last
        self._next = 0 if last is None else -1
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follow-{topic}-{cluster.site}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(self._cluster.make_consumer(**self._options)) as consumer:
                    self._follow(consumer)
            except (KafkaError, OSError) as error:
                log_retry(_logger, f"{self._partition.topic} at {self._cluster.site} cannot be read", error)
                self._stopping.wait(RETRY_S)

    def _follow(self, consumer: KafkaConsumer) -> None:
        """Follow until an error occurs."""
        consumer.assign([self._partition])
        first = consumer.beginning_offsets([self._partition])[self._partition]
        end = consumer.end_offsets([self._partition])[self._partition]
        if not first <= self._next <= end:
            # The next record was deleted in the meantime, or the whole topic was created again.
            self._next = first if self._last is None else max(first, end - self._last)
        consumer.seek(self._partition, self._next)
        while not self._stopping.is_set():
            if consumer.position(self._partition) >= end:
                self.is_current.set()
            found = consumer.poll(timeout_ms=_POLL_MS)
            for records in found.values():
                for record in records:
                    self._next = record.offset + 1
                    self._hand_on(record)
            if found and self.is_current.is_set():
                self._stopping.wait(self._rest_s)

    def _hand_on(self, record: ConsumerRecord) -> None:
        try:
            self._take(record)
        except Exception as error:  # whatever it is, the thread must go on
            where = f"offset {record.offset} of {self._partition.topic}"
            _logger.warning("the record at %s is malformed and skipped: %r", where, error)
