"""The driver: one streaming query from a replica's orders to its answers. It publishes its status, and can be stopped.

    orders in Kafka ──> the Python worker's hosts (spark_jobs.worker) ──> answers in Kafka

A crash loses nothing. The position is in a checkpoint on this machine's disk; without it the job begins with the first order
that exists. Repeated answers are dropped by the node. So every error ends the process, and the supervisor restarts it.
spark-submit can run this file directly.
"""

from __future__ import annotations

import logging
import shutil
import time
from functools import partial
from pathlib import Path

import psutil
from pyspark.accumulators import Accumulator

from deployment.query_record import QueryRecord
from services.hosting.connections import Connections, run_query_process
from services.hosting.process import EXIT_STOPPED, StatusDesk, StatusPublisher, StopSignal
from spark_jobs import worker
from spark_jobs.connector import sink_options, source_options
from spark_jobs.job_status import JobStatus
from spark_jobs.order_stream import BATCH_EVERY, JobFailed, OrderPath, OrderStream
from spark_jobs.progress import ProgressAccumulator, ProgressByPartition
from spark_jobs.rehearsal import rehearse
from spark_jobs.replica_topics import ReplicaTopics
from spark_jobs.session import close_session, jvm_pid, open_session

KEEP_WARM_S = 20.0
"""So often a job without orders runs a batch: Spark ends a Python worker that has been idle for a minute."""

_LOOK_S = 0.2
_LOOK_CLOSELY_S = 0.05

_logger = logging.getLogger("boreal.spark")


class JobProcess:
    """`serve` runs until it is stopped or fails, and returns the process's exit code."""

    def __init__(self, connections: Connections, name: str, record: QueryRecord, replica: str) -> None:
        settings = self.settings = connections.settings
        self.name = name
        self.home = connections.home
        self.topics = ReplicaTopics(settings, record, replica)
        self.cluster = connections.clusters[self.topics.site]
        self.place = ((settings.spark.checkpoints or settings.data / "spark") / f"{record.inner}.{replica}").resolve()
        self._status = JobStatus(self.topics, psutil.Process().create_time())
        self._producer = self.cluster.make_producer(patient=False)
        self._hosts: Accumulator[ProgressByPartition] | None = None

    def serve(self, stopping: StopSignal) -> int:
        """See the class. The status is published from the start, also while the job warms up."""
        status, topics = self._status, self.topics
        desk = StatusDesk(self.home, counts_children=True)
        publisher = StatusPublisher(self.home, self.name, status.fields, desk)
        status.note("imports")
        topic_id = topics.wait(self.cluster, stopping)
        if topic_id is None:
            return EXIT_STOPPED
        place = self._own_place(topic_id)
        task, kafka = topics.task(topic_id, self.name), self.settings.sites[topics.site]
        status.note("topics")
        session = open_session(self.name, self.settings, place / "local", len(topics.instances))
        try:
            status.jvm = jvm_pid(session)
            self._hosts = session.sparkContext.accumulator({}, ProgressAccumulator())
            status.note("session")
            send_warm_up = partial(topics.send_warm_up, self._producer)
            rehearse(session, task, kafka, topics, send_warm_up, place / "local" / "rehearsal", stopping)
            status.note("rehearsal")
            source, sink = source_options(kafka, topics.orders), sink_options(kafka, topics.answers)
            path = OrderPath(source, worker.ORDERS, partial(worker.obey, task, self._hosts), worker.ANSWERS, sink)
            stream = OrderStream(session, self.name, path, place / "checkpoint", BATCH_EVERY)
            self._await_hosts(stream, stopping)
            status.note("hosts")
            _logger.info("warm after %.1f s: %s", sum(status.start_s.values()), status.start_s)
            status.ready = not stopping.is_set()
            publisher.now()
            self._watch(stream, stopping)
        finally:
            close_session(session)
        status.ready = False
        publisher.now()
        publisher.close()
        desk.close()
        return EXIT_STOPPED

    # The start

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

    def _await_hosts(self, stream: OrderStream, stopping: StopSignal) -> None:
        """Wait until all existing orders have been executed, so that every host has its state."""
        lasts = None
        while not stopping.is_set() and not self._has_passed(stream, lasts):
            lasts = lasts or self.topics.send_warm_up(self._producer)
            stopping.wait(_LOOK_CLOSELY_S)

    # While it runs

    def _watch(self, stream: OrderStream, stopping: StopSignal) -> None:
        """Watch the query until we are stopped, and keep the Python worker: Spark ends one that has been idle for a minute."""
        while not stopping.wait(_LOOK_S):
            self._look(stream)
            if time.monotonic() - stream.rested_since > KEEP_WARM_S:
                self.topics.send_warm_up(self._producer)
                stream.rested_since = time.monotonic()

    def _has_passed(self, stream: OrderStream, offsets: dict[int, int] | None) -> bool:
        self._look(stream)
        return offsets is not None and stream.has_passed(self.topics.orders, offsets)

    def _look(self, stream: OrderStream) -> None:
        """Read the progress. JobFailed if the query has ended."""
        before = stream.ends.get(self.topics.orders, {})
        stream.look()
        ends = stream.ends.get(self.topics.orders, {})
        if any(ends.get(partition, 0) < offset for partition, offset in before.items()):
            raise JobFailed(f"{self.topics.orders} was deleted and made again")
        self._status.progress = stream.progress
        if self._hosts is not None:
            self._status.hosts = self._hosts.value


def main() -> None:
    run_query_process("spark", JobProcess)


if __name__ == "__main__":
    main()
