"""The monitor's report on each query: in boreal.status, under the key query:NAME, every second. A deleted query's is null."""

from __future__ import annotations

import json
import threading
from typing import Any

from kafka.consumer.fetcher import ConsumerRecord

from services.kafka.clusters import Cluster
from services.kafka.follower import TopicFollower
from services.kafka.mailbox import Outbox
from services.kafka.statuses import OF_QUERIES, STATUS_REST_MS, VERSION
from services.kafka.topics import STATUS

Report = dict[str, Any]
"""As `WatchedQuery.status` returns it."""


class ReportWriter:
    """Publishes reports in a thread. While Kafka is out of reach only the newest report of each query is kept."""

    def __init__(self, home: Cluster) -> None:
        self._outbox = Outbox(home, STATUS, compression_type="gzip")

    def publish(self, query: str, report: Report | None) -> None:
        """Publish a query's report; None: the query was deleted. Returns at once."""
        self._outbox.put(json.dumps(report).encode() if report is not None else None, OF_QUERIES + query.encode())


class QueryReports:
    """The newest report of each query, kept current until it is closed. While the cluster is out of reach nothing changes;
    reports of another version are skipped. is_current is set when all reports of before are known."""

    def __init__(self, home: Cluster) -> None:
        self._newest: dict[str, Report] = {}
        self._lock = threading.Lock()
        self._follower = TopicFollower(home, STATUS, self._take, rest_ms=STATUS_REST_MS)
        self.is_current = self._follower.is_current

    def newest(self) -> dict[str, Report]:
        """By the query's name."""
        with self._lock:
            return dict(self._newest)

    def close(self) -> None:
        self._follower.close()

    def _take(self, record: ConsumerRecord) -> None:
        if record.key is None or not record.key.startswith(OF_QUERIES):
            return
        query = record.key.removeprefix(OF_QUERIES).decode()
        report = json.loads(record.value) if record.value is not None else None
        if report is not None and report["v"] != VERSION:
            raise ValueError(f"version {report['v']}")
        with self._lock:
            self._newest.pop(query, None)
            if report is not None:
                self._newest[query] = report
