"""What the monitor says of each query: in boreal.status, under the key query:NAME, every second. None: it was deleted."""

from __future__ import annotations

import json
import logging
import queue
import threading
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from services.clusters import Cluster
from services.statuses import OF_QUERIES
from services.topics import STATUS

Report = dict[str, Any]
"""As `WatchedQuery.status` gives it."""

_PARTITION = TopicPartition(STATUS, 0)
_RETRY_S = 0.2

_logger = logging.getLogger("boreal.reports")


class ReportWriter:
    """Publishes reports from a thread of its own, as long as the process lives. Only the newest of a query is worth a wait."""

    def __init__(self, home: Cluster) -> None:
        self._cluster = home
        self._said: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="report-writer", daemon=True).start()

    def say(self, query: str, report: Report | None) -> None:
        """Returns at once."""
        self._said.put((query, json.dumps(report).encode() if report is not None else None))

    def _run(self) -> None:
        producer: KafkaProducer | None = None
        while True:
            newest = dict([self._said.get()])
            while not self._said.empty():
                newest.update([self._said.get()])
            try:
                producer = producer or self._cluster.producer(patient=False, compression_type="gzip")
                for query, value in newest.items():
                    producer.send(STATUS, value, key=OF_QUERIES + query.encode(), partition=0)
            except (KafkaError, OSError) as error:
                _logger.debug("reports could not be published: %r", error)


class QueryReports:
    """The newest report of each query, kept current until it is closed. A cluster out of reach is silence. is_current: all
    that was said before is known."""

    def __init__(self, home: Cluster) -> None:
        self.is_current = threading.Event()
        self._cluster = home
        self._newest: dict[str, Report] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def newest(self) -> dict[str, Report]:
        """By the query's name."""
        with self._lock:
            return dict(self._newest)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(self._cluster.consumer()) as consumer:
                    self._follow(consumer)
            except (KafkaError, OSError) as error:
                _logger.debug("reports cannot be read now: %r", error)
                self._stopping.wait(_RETRY_S)

    def _follow(self, consumer: KafkaConsumer) -> None:
        consumer.assign([_PARTITION])
        consumer.seek_to_beginning(_PARTITION)
        end = consumer.end_offsets([_PARTITION])[_PARTITION]
        while not self._stopping.is_set():
            if consumer.position(_PARTITION) >= end:
                self.is_current.set()
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    if record.key is not None and record.key.startswith(OF_QUERIES):
                        self._take(record.key.removeprefix(OF_QUERIES).decode(), record.value)

    def _take(self, query: str, value: bytes | None) -> None:
        with self._lock:
            self._newest.pop(query, None)
            if value is not None:
                self._newest[query] = json.loads(value)
