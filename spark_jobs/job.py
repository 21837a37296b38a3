"""The driver: one streaming query from a replica's orders to its answers. It publishes its status, and can be stopped.

    orders in Kafka ──> the Python worker's hosts (spark_jobs.worker) ──> answers in Kafka

A crash loses nothing. The position is in a checkpoint on this machine's disk; without it the job begins with the first order
that exists. Repeated answers are dropped by the node. So every error ends the process, and the supervisor restarts it.
spark-submit can run this file directly.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from kafka.errors import KafkaError
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from boreal.model.errors import BorealError, UserError
from deployment.layout import layout_of
from deployment.operator_hosts import answers_topic, orders_topic
from deployment.query_record import QueryRecord
from services.hosting.connections import Connections, run_query_process
from services.hosting.process import EXIT_STOPPED, StatusPublisher
from services.kafka.clusters import FORGET_AFTER_MS
from spark_jobs import worker
from spark_jobs.connector import sink_options, source_options
from spark_jobs.progress import ProgressAccumulator, ProgressByPartition, rss_bytes
from spark_jobs.session import close_session, is_on_one_core, jvm_pid, open_session

AT_REST_S = 0.3
"""A rehearsal ends when no batch has come for this time."""

KEEP_WARM_S = 20.0

BATCH_EVERY = "200 milliseconds"
"""The shortest time between the starts of batches. A batch costs the JVM some 60 ms of a core even with one row: without this,
a job with few rows took a whole core."""

AT_ONCE = "0 seconds"
"""A batch of a rehearsal begins as soon as the one before has ended."""

RATE_S = 10.0
"""The time over which rows per second are averaged."""

_LOOK_S = 0.2
_LOOK_CLOSELY_S = 0.05

_logger = logging.getLogger("boreal.spark")


BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class JobFailed(BorealError):
    """The streaming query has ended. The message begins with the Python traceback, if Python failed."""


class JobProcess:
    """`serve` runs until it is stopped or fails, and returns the process's exit code."""

    def __init__(self, connections: Connections, name: str, record: QueryRecord, replica: str) -> None:
        settings = self.settings = connections.settings
        self.name = name
        self.replica = replica
        self.home = connections.home
        self.record, query = record, record.inner
        self.layout = layout_of(record, settings.site_names)
        self.instances = self.layout.remote_instances(replica)
        if not self.instances:
            raise UserError("replica", replica, f"{query} has no fragment there that runs in Spark", "name another")
        self.site = self.layout.site_of_replica(replica)
        self.cluster = connections.clusters[self.site]
        self.orders, self.answers = orders_topic(query, replica), answers_topic(query, replica)
        self.place = ((settings.spark.checkpoints or settings.data / "spark") / f"{query}.{replica}").resolve()
        self.ready = False
        self.start_s: dict[str, float] = {}
        self._noted = psutil.Process().create_time()
        self._producer = self.cluster.make_producer(patient=False)
        self._progress: StreamingQueryProgress | None = None
        self._ends: dict[str, int] = {}
        self._hosts: Accumulator[ProgressByPartition] | None = None
        self._jvm: int | None = None
        self._rows: deque[tuple[float, int]] = deque()

    def serve(self, stopping: threading.Event) -> int:
        """See the class. The status is published from the start, also while the job warms up."""
        publisher = StatusPublisher(self.home, self.name, self._status)
        self._note("imports")
        topic_id = self._await_topics(stopping)
        if topic_id is None:
            return EXIT_STOPPED
        place = self._own_place(topic_id)
        spec, log = json.dumps(self.record.spec), f"{self.orders}@{topic_id}"
        task = worker.ReplicaTask(spec, self.replica, self.layout.sites, log, self.record.inner)
        self._note("topics")
        session = open_session(self.name, self.settings, place / "local", len(self.instances))
        try:
            self._jvm = jvm_pid(session)
            self._hosts = session.sparkContext.accumulator({}, ProgressAccumulator())
            self._note("session")
            self._rehearse(session, task, place / "local" / "rehearsal", stopping)
            self._note("rehearsal")
            obey = partial(worker.obey, task, self._hosts)
            query = self._start(session, obey, self.answers, place / "checkpoint", BATCH_EVERY)
            self._await_hosts(query, stopping)
            self._note("hosts")
            _logger.info("warm after %.1f s: %s", sum(self.start_s.values()), self.start_s)
            self.ready = not stopping.is_set()
            publisher.now()
            self._watch(query, stopping)
        finally:
            close_session(session)
        self.ready = False
        publisher.now()
        publisher.close()
        return EXIT_STOPPED

    # The start

    def _note(self, part: str) -> None:
        """Note how long a part of the start has taken: since the part before, or since the process began."""
        now = time.time()
        self.start_s[part], self._noted = round(now - self._noted, 3), now

    def _await_topics(self, stopping: threading.Event) -> str | None:
        """Wait until both topics exist. Returns Kafka's id of the orders topic; None if we are stopped before."""
        while not stopping.is_set():
            try:
                with closing(self.cluster.make_admin()) as admin:
                    found = {topic["name"]: topic for topic in admin.describe_topics([self.orders, self.answers])}
            except KafkaError as error:
                _logger.debug("topics cannot be described: %r", error)
            else:
                if [len(topic["partitions"]) for topic in found.values()] == 2 * [len(self.instances)]:
                    return str(found[self.orders]["topic_id"])
            stopping.wait(_LOOK_S)
        return None

    def _own_place(self, topic_id: str) -> Path:
        """The directory for this job's read position in this topic. Those for earlier topics of the same name are removed, and
        so are the temporary files of a killed job."""
        own = self.place / topic_id
        for other in self.place.glob("*"):
            if other != own:
                shutil.rmtree(other)
        shutil.rmtree(own / "local", ignore_errors=True)
        (own / "local").mkdir(parents=True)
        return own

    def _rehearse(self, session: SparkSession, task: worker.ReplicaTask, place: Path, stopping: threading.Event) -> None:
        """Run batches of warm-up records before the first order; the worker answers each with another one, written to the same
        topic. The first batch takes seconds, the fifth a fraction of one.

        The rehearsal must end by itself: Spark would kill a worker that is stopped during a task, with all that it has loaded.
        """
        firsts = None
        while firsts is None and not stopping.is_set():
            firsts = self._send_warm_up()
        query = self._start(session, partial(worker.rehearse, task), self.orders, place, AT_ONCE, firsts)
        batch, since = -1, time.monotonic()
        while not stopping.wait(_LOOK_CLOSELY_S) and (batch < 0 or time.monotonic() - since < AT_REST_S):
            self._look(query)
            if self._progress is not None and self._progress.batchId != batch:
                batch, since = self._progress.batchId, time.monotonic()
        query.stop()

    def _start(
        self, session: SparkSession, act: BatchFunction, to: str, place: Path, every: str, firsts: dict[str, int] | None = None
    ) -> StreamingQuery:
        """Start a query from the orders, from the first one or from the offsets `firsts` on, through `act` to a topic."""
        kafka = self.settings.sites[self.site]
        orders = session.readStream.format("kafka").options(**source_options(kafka, self.orders, firsts)).load()
        orders = orders.select(*worker.ORDERS)
        if is_on_one_core(session):
            # Tasks run one after the other there, with some ms of overhead each: one task for all shards is faster.
            orders = orders.coalesce(1)
        answers = orders.mapInArrow(act, worker.ANSWERS)
        writer = answers.writeStream.format("kafka").options(**sink_options(kafka, to))
        # The position is written asynchronously, once a second: no batch waits for the disk, and a restart repeats some
        # answers.
        writer = writer.option("checkpointLocation", str(place)).option("asyncProgressTrackingEnabled", "true")
        self._progress, self._ends = None, {}
        return writer.queryName(self.name).trigger(processingTime=every).start()

    def _await_hosts(self, query: StreamingQuery, stopping: threading.Event) -> None:
        """Wait until all existing orders have been executed, so that every host has its state."""
        lasts = None
        while not stopping.is_set() and not self._has_passed(query, lasts):
            lasts = lasts or self._send_warm_up()
            stopping.wait(_LOOK_CLOSELY_S)

    # While it runs

    def _watch(self, query: StreamingQuery, stopping: threading.Event) -> None:
        """Watch the query until we are stopped, and keep the Python worker: Spark ends one that has been idle for a minute."""
        batch, since = -1, time.monotonic()
        while not stopping.wait(_LOOK_S):
            self._look(query)
            if self._progress is not None and self._progress.batchId != batch:
                batch, since = self._progress.batchId, time.monotonic()
            elif time.monotonic() - since > KEEP_WARM_S:
                self._send_warm_up()
                since = time.monotonic()

    def _send_warm_up(self) -> dict[str, int] | None:
        """Send a record to each host. Returns the offsets by partition; None if Kafka does not take them now."""
        try:
            sent = [self._producer.send(self.orders, worker.WARM_UP, partition=p) for p in range(len(self.instances))]
            return {str(p): record.get(timeout=FORGET_AFTER_MS / 1_000).offset for p, record in enumerate(sent)}
        except KafkaError as error:
            _logger.debug("a warm-up could not be sent: %r", error)
            return None

    def _has_passed(self, query: StreamingQuery, offsets: dict[str, int] | None) -> bool:
        self._look(query)
        return offsets is not None and all(self._ends.get(partition, 0) > offset for partition, offset in offsets.items())

    def _look(self, query: StreamingQuery) -> None:
        """Read the progress of the query. JobFailed if it has ended."""
        failure = query.exception()
        if failure is not None:
            raise JobFailed(_failure_text(str(failure)))
        self._progress = query.lastProgress
        if self._progress is None:
            return
        ends = json.loads(self._progress.sources[0].endOffset)[self.orders]
        if any(ends.get(partition, 0) < offset for partition, offset in self._ends.items()):
            raise JobFailed(f"{self.orders} was deleted and made again")
        self._ends = ends

    def _status(self) -> dict[str, Any]:
        progress = self._progress
        return {
            "ready": self.ready,
            "site": self.site,
            "replica": self.replica,
            "start_s": self.start_s,
            "batch_ms": progress and progress.batchDuration,
            "batch_parts_ms": progress and progress.durationMs,
            "batch_orders": progress and progress.numInputRows,
            "orders_per_s": progress and progress.inputRowsPerSecond,
            **self._hosts_status(),
        }

    def _hosts_status(self) -> dict[str, Any]:
        hosts = self._hosts.value if self._hosts is not None else {}
        # If an instance has moved to another worker, its report names the new one.
        workers = {host.worker.name: host.worker.rss_bytes for host in hosts.values()}
        return {
            "rows_per_s": self._rate(sum(host.rows for host in hosts.values())),
            "shards": [
                {"fragment": who.fragment, "shard": who.shard, **hosts[partition].facts()}
                for partition, who in enumerate(self.instances)
                if partition in hosts
            ],
            "rss_bytes": {
                "driver": rss_bytes(),
                "jvm": rss_bytes(self._jvm) if self._jvm is not None else None,
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


def _failure_text(failure: str) -> str:
    """The text of an exception of Spark without the plan, and without Java's frames if there is a Python traceback."""
    message, _, rest = failure.partition("\n=== Streaming Query ===")
    _, _, frames = rest.partition("\nJVM stacktrace:\n")
    return message if "Traceback (most recent call last)" in message else f"{message}\n{frames}"


def main() -> None:
    run_query_process("spark", JobProcess)


if __name__ == "__main__":
    main()
