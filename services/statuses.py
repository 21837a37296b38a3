"""What processes say of themselves in boreal.status: one JSON object each, the newest counts."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError

from services.clusters import Cluster
from services.topics import STATUS

Status = dict[str, Any]
OnStatus = Callable[[Status], None]
"""Called with each status, in the order in which they were said, in the reader's thread."""

VERSION = 1
EVERY_STATUS_HAS = {"process", "pid", "at_ms", "ready"}
OF_QUERIES = b"query:"
"""What the keys begin with under which the monitor says how queries are."""

_logger = logging.getLogger("boreal.statuses")
_RETRY_S = 0.2


class StatusReader:
    """Follows boreal.status from what it holds on. A cluster that is out of reach is silence. is_current: all that was said
    before has been handed on."""

    def __init__(self, cluster: Cluster, on_status: OnStatus) -> None:
        self._cluster = cluster
        self._on_status = on_status
        self._stopping = threading.Event()
        self._next: int | None = None
        self.is_current = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statuses", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except (KafkaError, OSError) as error:
                _logger.debug("statuses cannot be read now: %r", error)
                self._stopping.wait(_RETRY_S)

    def _follow(self) -> None:
        consumer = self._cluster.consumer()
        partition = TopicPartition(STATUS, 0)
        try:
            consumer.assign([partition])
            # Old ones may be deleted at any time, so a place to go on from may be gone as well.
            first = consumer.beginning_offsets([partition])[partition]
            consumer.seek(partition, max(first, self._next or 0))
            end = consumer.end_offsets([partition])[partition]
            while not self._stopping.is_set():
                if consumer.position(partition) >= end:
                    self.is_current.set()
                for records in consumer.poll(timeout_ms=200).values():
                    for record in records:
                        self._next = record.offset + 1
                        self._take(record.key, record.value)
        finally:
            consumer.close(autocommit=False)

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        if key is None or value is None or key.startswith(OF_QUERIES):
            return
        try:
            status = json.loads(value)
            if status["v"] != VERSION:
                raise ValueError(f"version {status['v']}")
            if absent := EVERY_STATUS_HAS - status.keys():
                raise ValueError(f"without {', '.join(sorted(absent))}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            _logger.warning("the status of %r is not understood, and passed over: %s", key, error)
            return
        self._on_status(status)


class Statuses:
    """The newest status of each process, as this process has heard it; kept current until it is closed."""

    def __init__(self, cluster: Cluster) -> None:
        self._newest: dict[str, Status] = {}
        self._lock = threading.Lock()
        self._reader = StatusReader(cluster, self._take)
        self.is_current = self._reader.is_current

    def newest(self) -> dict[str, Status]:
        """By process name."""
        with self._lock:
            return dict(self._newest)

    def close(self) -> None:
        self._reader.close()

    def _take(self, status: Status) -> None:
        with self._lock:
            self._newest[status["process"]] = status
