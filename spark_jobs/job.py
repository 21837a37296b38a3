"""The driver: one streaming query from a replica's orders to its answers, which says how it is, and is told when to stop.

    orders in Kafka ──> the Python worker's hosts (spark_jobs.worker) ──> answers in Kafka

Nothing is lost with it. Where it was is in a checkpoint on this machine's disk, and where that is gone it begins with the
first order there is; answers that were given before are given again, and whoever listens drops them. So whatever goes wrong
ends the process: the supervisor starts it anew. spark-submit takes this file as it is.
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
from deployment.layout import make_layout
from deployment.operator_hosts import answers_topic, orders_topic
from services.hosting.process import EXIT_STOPPED, StatusPublisher, run_part
from services.kafka.clusters import FORGET_AFTER_MS, make_clusters
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from spark_jobs import worker
from spark_jobs.connector import sink_options, source_options
from spark_jobs.progress import AddedUp, Told, rss_bytes
from spark_jobs.session import close_session, is_on_one_core, jvm_pid, open_session

AT_REST_S = 0.3
"""A rehearsal without a batch for so long is over."""

KEEP_WARM_S = 20.0

BATCH_EVERY = "200 milliseconds"
"""How often a batch begins, unless the one before takes longer. What a batch costs the JVM, some 60 ms of a core, it costs with
one row too: as often as can be, a job with hardly a row to do took a core."""

AT_ONCE = "0 seconds"
"""Batches of a rehearsal begin as soon as the one before is over."""

RATE_S = 10.0
"""Rows a second are taken over so long."""

_LOOK_S = 0.2
_LOOK_CLOSELY_S = 0.05

_logger = logging.getLogger("boreal.spark")


Act = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class JobFailed(BorealError):
    """The streaming query has ended. The message begins with what was raised in Python, where it was Python that failed."""


class Job:
    """`serve` runs until it is stopped or broken, and returns the process's exit code."""

    def __init__(self, settings: ServiceSettings, name: str, query: str, replica: str) -> None:
        self.settings = settings
        self.name = name
        self.replica = replica
        clusters_ = make_clusters(settings, name)
        self.home = clusters_[settings.home]
        self.record = QueryRegistry(self.home).find(query)
        self.layout = make_layout(self.record.query, settings.site_names)
        self.instances = self.layout.remote_instances(replica)
        if not self.instances:
            raise UserError("replica", replica, f"{query} has nothing there for Spark to run", "name another")
        self.site = self.layout.site_of_replica(replica)
        self.cluster = clusters_[self.site]
        self.orders, self.answers = orders_topic(query, replica), answers_topic(query, replica)
        self.place = ((settings.spark.checkpoints or settings.data / "spark") / f"{query}.{replica}").resolve()
        self.ready = False
        self.start_s: dict[str, float] = {}
        self._noted = psutil.Process().create_time()
        self._producer = self.cluster.make_producer(patient=False)
        self._progress: StreamingQueryProgress | None = None
        self._ends: dict[str, int] = {}
        self._hosts: Accumulator[Told] | None = None
        self._jvm: int | None = None
        self._rows: deque[tuple[float, int]] = deque()

    def serve(self, stopping: threading.Event) -> int:
        """The status is published from the beginning: that a job warms up is worth knowing."""
        publisher = StatusPublisher(self.home, self.name, self._status)
        self._note("imports")
        topic_id = self._await_topics(stopping)
        if topic_id is None:
            return EXIT_STOPPED
        place = self._own_place(topic_id)
        task = worker.Task(json.dumps(self.record.spec), self.replica, self.layout.sites, f"{self.orders}@{topic_id}")
        self._note("topics")
        session = open_session(self.name, self.settings, place / "local", len(self.instances))
        try:
            self._jvm = jvm_pid(session)
            self._hosts = session.sparkContext.accumulator({}, AddedUp())
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

    # Making ready

    def _note(self, part: str) -> None:
        """How long this part of the start has taken: since the one before, or since the process began."""
        now = time.time()
        self.start_s[part], self._noted = round(now - self._noted, 3), now

    def _await_topics(self, stopping: threading.Event) -> str | None:
        """What Kafka calls the orders topic, once both topics are there; None if we are stopped before."""
        while not stopping.is_set():
            try:
                with closing(self.cluster.make_admin()) as admin:
                    found = {topic["name"]: topic for topic in admin.describe_topics([self.orders, self.answers])}
            except KafkaError as error:
                _logger.debug("topics cannot be looked for: %r", error)
            else:
                if [len(topic["partitions"]) for topic in found.values()] == 2 * [len(self.instances)]:
                    return str(found[self.orders]["topic_id"])
            stopping.wait(_LOOK_S)
        return None

    def _own_place(self, topic_id: str) -> Path:
        """Where this job notes how far it has read this very topic. What it noted of an earlier one of this name is removed,
        and what a killed job has left."""
        own = self.place / topic_id
        for other in self.place.glob("*"):
            if other != own:
                shutil.rmtree(other)
        shutil.rmtree(own / "local", ignore_errors=True)
        (own / "local").mkdir(parents=True)
        return own

    def _rehearse(self, session: SparkSession, task: worker.Task, place: Path, stopping: threading.Event) -> None:
        """Have batches go the whole way before there is an order in one: of records that are no orders, each of which the
        worker answers with another, to the topic that it came from. The first batch takes seconds, the fifth a moment.

        It is let come to rest: Spark would kill a worker that is stopped at its task, and all that it has loaded."""
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
        self, session: SparkSession, act: Act, to: str, place: Path, every: str, firsts: dict[str, int] | None = None
    ) -> StreamingQuery:
        """From the orders, from the first one or from `firsts` on, through the worker to a topic."""
        kafka = self.settings.sites[self.site]
        orders = session.readStream.format("kafka").options(**source_options(kafka, self.orders, firsts)).load()
        orders = orders.select(*worker.ORDERS)
        if is_on_one_core(session):
            # Tasks come one after the other there, each for so many ms: one for all shards does the same sooner.
            orders = orders.coalesce(1)
        answers = orders.mapInArrow(act, worker.ANSWERS)
        writer = answers.writeStream.format("kafka").options(**sink_options(kafka, to))
        # The place is written behind, once a second: no batch waits for the disk, and a restart answers so much again.
        writer = writer.option("checkpointLocation", str(place)).option("asyncProgressTrackingEnabled", "true")
        self._progress, self._ends = None, {}
        return writer.queryName(self.name).trigger(processingTime=every).start()

    def _await_hosts(self, query: StreamingQuery, stopping: threading.Event) -> None:
        """Until all orders that there are have been obeyed, and so every host has its state."""
        lasts = None
        while not stopping.is_set() and not self._has_passed(query, lasts):
            lasts = lasts or self._send_warm_up()
            stopping.wait(_LOOK_CLOSELY_S)

    # Going on

    def _watch(self, query: StreamingQuery, stopping: threading.Event) -> None:
        """Until we are stopped, keep the Python worker: Spark would end one that has had nothing to do for a minute."""
        batch, since = -1, time.monotonic()
        while not stopping.wait(_LOOK_S):
            self._look(query)
            if self._progress is not None and self._progress.batchId != batch:
                batch, since = self._progress.batchId, time.monotonic()
            elif time.monotonic() - since > KEEP_WARM_S:
                self._send_warm_up()
                since = time.monotonic()

    def _send_warm_up(self) -> dict[str, int] | None:
        """A record to each host. By partition, where it is; None where Kafka does not take them now."""
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
        """Take note of how the query is; JobFailed says what has ended it."""
        failure = query.exception()
        if failure is not None:
            raise JobFailed(_told(str(failure)))
        self._progress = query.lastProgress
        if self._progress is None:
            return
        ends = json.loads(self._progress.sources[0].endOffset)[self.orders]
        if any(ends.get(partition, 0) < offset for partition, offset in self._ends.items()):
            raise JobFailed(f"{self.orders} is another topic than it was")
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
        told = self._hosts.value if self._hosts is not None else {}
        # An instance whose state is in another worker now has told of that one.
        workers = {host.worker.name: host.worker.rss_bytes for host in told.values()}
        return {
            "rows_per_s": self._rate(sum(host.rows for host in told.values())),
            "shards": [
                {"fragment": who.fragment, "shard": who.shard, **told[partition].facts()}
                for partition, who in enumerate(self.instances)
                if partition in told
            ],
            "rss_bytes": {
                "driver": rss_bytes(),
                "jvm": rss_bytes(self._jvm) if self._jvm is not None else None,
                "workers": sum(workers.values()),
            },
        }

    def _rate(self, rows: int) -> float:
        """So many rows a second lately, as this is called about once a second with all that were taken so far."""
        now = time.monotonic()
        self._rows.append((now, rows))
        while now - self._rows[0][0] > RATE_S:
            self._rows.popleft()
        since, before = self._rows[0]
        return round((rows - before) / (now - since), 1) if now > since else 0.0


def _told(failure: str) -> str:
    """What an exception of Spark says, without the plan; and without Java's frames where Python's tell all."""
    message, _, rest = failure.partition("\n=== Streaming Query ===")
    _, _, frames = rest.partition("\nJVM stacktrace:\n")
    return message if "Traceback (most recent call last)" in message else f"{message}\n{frames}"


def main() -> None:
    run_part("spark", Job)


if __name__ == "__main__":
    main()
