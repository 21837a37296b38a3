"""The statuses of processes in the topic boreal.status: one JSON object per record; the newest of each process counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from kafka.consumer.fetcher import ConsumerRecord

from services.kafka.clusters import Cluster
from services.kafka.follower import TopicFollower
from services.kafka.topics import STATUS

Status = dict[str, Any]
"""A status record, as parsed from JSON."""
OnStatus = Callable[[Status], None]
"""Called with each status, in order, in the reader's thread."""

VERSION = 1
EVERY_STATUS_HAS = {"process", "pid", "at_ms", "ready"}
"""Fields that every status must have."""
OF_QUERIES = b"query:"
"""Prefix of the keys under which the monitor writes the statuses of queries."""
FORGOTTEN_AFTER_MS = 3_600_000
"""What has said nothing for so long is no process of the installation any more."""
STATUS_REST_MS = 150
"""`rest_ms` of those who follow statuses: each role says its own every second, and whenever it changes."""


class StatusReader:
    """Follows boreal.status from its beginning. An unreachable cluster is silent."""

    def __init__(self, cluster: Cluster, on_status: OnStatus) -> None:
        self._on_status = on_status
        self._follower = TopicFollower(cluster, STATUS, self._take, rest_ms=STATUS_REST_MS)
        self.is_current = self._follower.is_current
        """Set once all earlier statuses have been passed on."""

    def close(self) -> None:
        self._follower.close()

    def _take(self, record: ConsumerRecord) -> None:
        if record.key is None or record.value is None or record.key.startswith(OF_QUERIES):
            return
        status = json.loads(record.value)
        if status["v"] != VERSION:
            raise ValueError(f"version {status['v']}")
        if absent := EVERY_STATUS_HAS - status.keys():
            raise ValueError(f"lacks {', '.join(sorted(absent))}")
        self._on_status(status)


class Statuses:
    """The newest status of each process, if it is not older than the newest of all by FORGOTTEN_AFTER_MS; kept current until
    closed."""

    def __init__(self, cluster: Cluster) -> None:
        self._newest: dict[str, Status] = {}
        self._lock = threading.Lock()
        self._reader = StatusReader(cluster, self._take)
        self.is_current = self._reader.is_current
        """Set once all earlier statuses have been read."""

    def newest(self) -> dict[str, Status]:
        """The newest status by process name."""
        with self._lock:
            return dict(self._newest)

    def close(self) -> None:
        self._reader.close()

    def _take(self, status: Status) -> None:
        with self._lock:
            self._newest.pop(status["process"], None)
            self._newest[status["process"]] = status
            # The first ones are the oldest. Processes of queries that were deleted say nothing more.
            while (oldest := next(iter(self._newest.values())))["at_ms"] < status["at_ms"] - FORGOTTEN_AFTER_MS:
                del self._newest[oldest["process"]]
