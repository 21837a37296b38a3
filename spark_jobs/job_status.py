"""What a job says of itself in `boreal.status`."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from spark_jobs.progress import ProgressByPartition, rss_bytes
from spark_jobs.replica_topics import ReplicaTopics

RATE_S = 10.0
"""The time over which rows per second are averaged."""


class JobStatus:
    """The status of the hosts of one replica. Written by the job's thread, read by that which publishes it."""

    def __init__(self, topics: ReplicaTopics, began: float) -> None:
        """began: the wall clock in s when the job began to start."""
        self.ready = False
        """Whether all hosts have their state, and obey orders."""
        self.jvm: int | None = None
        """The process id of the driver's JVM."""
        self.progress: StreamingQueryProgress | None = None
        """Of the last batch."""
        self.hosts: ProgressByPartition = {}
        """Of each host."""
        self.start_s: dict[str, float] = {}
        """How long each part of the start has taken."""
        self._topics = topics
        self._noted = began
        self._rows: deque[tuple[float, int]] = deque()

    def note(self, part: str) -> None:
        """Note how long a part of the start has taken: since the part before, or since the begin."""
        now = time.time()
        self.start_s[part], self._noted = round(now - self._noted, 3), now

    def fields(self) -> dict[str, Any]:
        """As JSON."""
        progress, hosts = self.progress, self.hosts
        # If an instance has moved to another worker, its report names the new one.
        workers = {host.worker.name: host.worker.rss_bytes for host in hosts.values()}
        return {
            "ready": self.ready,
            "site": self._topics.site,
            "replica": self._topics.replica,
            "start_s": self.start_s,
            "batch_ms": progress and progress.batchDuration,
            "batch_parts_ms": progress and progress.durationMs,
            "batch_orders": progress and progress.numInputRows,
            "orders_per_s": progress and progress.inputRowsPerSecond,
            "rows_per_s": self._rate(sum(host.rows for host in hosts.values())),
            "shards": [
                {"fragment": who.fragment, "shard": who.shard, **hosts[partition].facts()}
                for partition, who in enumerate(self._topics.instances)
                if partition in hosts
            ],
            "rss_bytes": {
                "driver": rss_bytes(),
                "jvm": rss_bytes(self.jvm) if self.jvm is not None else None,
                "workers": sum(workers.values()),
            },
        }

    def _rate(self, rows: int) -> float:
        """Rows per second over the last RATE_S. Called about once a second; rows: all that were processed so far."""
        now = time.monotonic()
        self._rows.append((now, rows))
        while now - self._rows[0][0] > RATE_S:
            self._rows.popleft()
        since, before = self._rows[0]
        return round((rows - before) / (now - since), 1) if now > since else 0.0
