"""A Spark application that queries share: it runs the operators of all of them, of one replica number.

    python -m spark_jobs.application spark.r0        roles as the supervisor says, whose channel is stdin (services.worker)

It has one JVM, one Python worker, and one streaming query from the topics of orders to the topics of answers. A query costs no
more than its hosts there and a role here. The role waits for its hosts, publishes their status, and ends if one of them has
failed; the supervisor starts it again, as it does with any other role. What fails as a whole ends the process, with all roles.
"""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import threading
import time
import uuid
from functools import partial

from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from deployment.query_record import QueryRecord
from services.hosting.connections import Connections
from services.hosting.process import EXIT_FAILED, EXIT_STOPPED, StatusPublisher, StopSignal, run_process, set_clock
from services.kafka.settings import ServiceSettings, load_settings
from services.worker.worker import Worker
from spark_jobs import shared_worker
from spark_jobs.connector import shared_source_options, sink_options
from spark_jobs.job import KEEP_WARM_S
from spark_jobs.job_status import JobStatus
from spark_jobs.order_stream import BATCH_EVERY, JobFailed, OrderPath, OrderStream
from spark_jobs.progress import ProgressAccumulator
from spark_jobs.rehearsal import rehearse
from spark_jobs.replica_topics import ReplicaTopics
from spark_jobs.session import close_session, jvm_pid, open_session
from spark_jobs.shared_worker import HostsOfAll, TopicStates, TopicStatesAccumulator

UNUSED_S = 60.0
"""An application without roles ends after this time, and its JVM with it."""

END_WITHIN_S = 5.0
"""How long a role that is stopped waits until its last order has been read; less than a worker has to end its roles."""

AGAIN_S = 2.0
"""A warm-up record that no worker has seen by then is sent again."""

_LOOK_S = 0.2
_LOOK_CLOSELY_S = 0.05

_logger = logging.getLogger("boreal.spark")


class SparkApplication:
    """The session and the streaming query, which the first role opens. All methods but `close` may be called in any thread."""

    def __init__(self, settings: ServiceSettings, name: str, ending: StopSignal) -> None:
        """name: spark.REPLICA; ending: set when the process must end."""
        self.settings = settings
        self.name = name
        self.replica = name.removeprefix("spark.")
        self.failure: str | None = None
        """Why it has to end; None: nothing has failed."""
        self.hosts: HostsOfAll = {}
        self.states: TopicStates = {}
        self.jvm: int | None = None
        self.stream: OrderStream | None = None
        self._ending = ending
        self._place = ((settings.spark.checkpoints or settings.data / "spark") / "applications" / self.replica).resolve()
        self._opening = threading.Lock()
        self._jobs: dict[SharedJob, None] = {}
        self._session: SparkSession | None = None
        self._all_hosts: Accumulator[HostsOfAll] | None = None
        self._all_states: Accumulator[TopicStates] | None = None

    def make_job(self, connections: Connections, name: str, record: QueryRecord, replica: str) -> SharedJob:
        """A role of this application."""
        return SharedJob(self, connections, name, record, replica)

    def join(self, job: SharedJob, topic_id: str, stopping: StopSignal) -> bool:
        """A role needs the streaming query. Returns once it runs; False if the role is stopped before."""
        while not self._opening.acquire(timeout=_LOOK_S):
            if stopping.is_set():
                return False
        try:
            self._jobs[job] = None
            if self.stream is None:
                self._open(job, topic_id)
        except Exception as error:
            # A session that is half open cannot be opened again in this process.
            self._fail(str(error))
            raise
        finally:
            self._opening.release()
        return True

    def leave(self, job: SharedJob) -> None:
        """A role ends."""
        self._jobs.pop(job, None)

    @property
    def is_ending(self) -> bool:
        """Whether the process ends."""
        return self._ending.is_set()

    def check(self) -> None:
        """JobFailed if it has to end."""
        if self.failure is not None:
            raise JobFailed(self.failure)

    def close(self) -> None:
        """Call when no role runs any more."""
        if self._session is not None:
            close_session(self._session)

    def _open(self, job: SharedJob, topic_id: str) -> None:
        local, checkpoint = self._place / "local", self._place / "checkpoint"
        shutil.rmtree(local, ignore_errors=True)
        local.mkdir(parents=True)
        self._session = session = open_session(self.name, self.settings, local)
        self.jvm = jvm_pid(session)
        self._all_hosts = session.sparkContext.accumulator({}, ProgressAccumulator())
        self._all_states = session.sparkContext.accumulator({}, TopicStatesAccumulator())
        kafka, task = self.settings.sites[job.topics.site], job.topics.task(topic_id, self.name)
        rehearse(session, task, kafka, job.topics, job.send_warm_up, local / "rehearsal", self._ending)
        obey = partial(shared_worker.obey, self.replica, self._all_hosts, self._all_states)
        source, sink = shared_source_options(kafka, self.replica), sink_options(kafka, None)
        path = OrderPath(source, shared_worker.ORDERS, obey, shared_worker.ANSWERS, sink)
        self.stream = OrderStream(session, self.name, path, checkpoint, BATCH_EVERY)
        threading.Thread(target=self._watch, args=(self.stream,), name="watch", daemon=True).start()

    def _watch(self, stream: OrderStream) -> None:
        """Read what the streaming query and its hosts report, and keep the Python worker: Spark ends one that has been idle for
        a minute."""
        assert self._all_hosts is not None and self._all_states is not None
        unused_since: float | None = None
        while not self._ending.wait(_LOOK_S):
            try:
                stream.look()
            except Exception as error:
                if stream.progress is None:
                    # Perhaps it cannot go on from its position: without one it begins with the first orders that exist.
                    shutil.rmtree(self._place / "checkpoint", ignore_errors=True)
                self._fail(str(error))
                return
            self.hosts, self.states = self._all_hosts.value, self._all_states.value
            now, jobs = time.monotonic(), list(self._jobs)
            if jobs and now - stream.rested_since > KEEP_WARM_S:
                jobs[0].send_warm_up()
                stream.rested_since = now
            unused_since = None if jobs else unused_since or now
            if unused_since is not None and now - unused_since > UNUSED_S:
                _logger.info("%s has no role any more, and ends", self.name)
                self._ending.set()

    def _fail(self, failure: str) -> None:
        if not self._ending.is_set():
            _logger.error("%s has failed: %s", self.name, failure)
            self.failure = failure
            self._ending.set()


class SharedJob:
    """The role of one replica of a query: see the module. `serve` returns the exit code."""

    def __init__(
        self, application: SparkApplication, connections: Connections, name: str, record: QueryRecord, replica: str
    ) -> None:
        self.name = name
        self.topics = ReplicaTopics(application.settings, record, replica)
        self._application = application
        self._connections = connections
        self._cluster = connections.clusters[self.topics.site]
        self._producer = self._cluster.make_producer(patient=False)
        self._life = uuid.uuid4().hex.encode()
        self._has_begun = False
        self._status = JobStatus(self.topics, time.time())

    def serve(self, stopping: StopSignal) -> int:
        """Run until the role is stopped. JobFailed if one of its hosts, or the application, has failed."""
        publisher = StatusPublisher(self._connections.home, self.name, self._status.fields, self._connections.statuses)
        try:
            self._serve(stopping, publisher)
            self._end()
        finally:
            self._application.leave(self)
            self._status.ready = False
            publisher.now()
            publisher.close()
            self._producer.close(timeout=_LOOK_S)
        return EXIT_STOPPED

    def send_warm_up(self) -> dict[int, int] | None:
        """As `ReplicaTopics.send_warm_up`, in this life."""
        return self.topics.send_warm_up(self._producer, self._life)

    def _serve(self, stopping: StopSignal, publisher: StatusPublisher) -> None:
        status = self._status
        topic_id = self.topics.wait(self._cluster, stopping)
        status.note("topics")
        if topic_id is None or not self._application.join(self, topic_id, stopping):
            return
        status.jvm = self._application.jvm
        status.note("application")
        sent_at = -AGAIN_S
        while not stopping.is_set() and not self._is_obeyed():
            if time.monotonic() - sent_at > AGAIN_S:
                self.send_warm_up()
                sent_at = time.monotonic()
            stopping.wait(_LOOK_CLOSELY_S)
        status.note("hosts")
        self._has_begun = True
        status.ready = not stopping.is_set()
        publisher.now()
        _logger.info("%s is ready after %.1f s: %s", self.name, sum(status.start_s.values()), status.start_s)
        while not stopping.wait(_LOOK_S):
            self._is_obeyed()

    def _end(self) -> None:
        """Let the worker drop the hosts, and wait until it has read the last order: once the role has ended, the topics may be
        deleted, and a batch that was to read them would wait in vain."""
        application = self._application
        if application.stream is None or application.is_ending:
            return
        lasts = self.topics.send_warm_up(self._producer, shared_worker.END)
        given_up = time.monotonic() + END_WITHIN_S
        while lasts is not None and time.monotonic() < given_up and not application.is_ending:
            if application.stream.has_passed(self.topics.orders, lasts):
                return
            time.sleep(_LOOK_CLOSELY_S)
        _logger.warning("%s ends before the last of its orders was read", self.name)

    def _is_obeyed(self) -> bool:
        """Read what is reported of its hosts; returns whether they obey this life. JobFailed: see `serve`."""
        application, topic = self._application, self.topics.orders
        application.check()
        if application.stream is not None:
            self._status.progress = application.stream.progress
        hosts = application.hosts
        partitions = range(len(self.topics.instances))
        self._status.hosts = {p: hosts[topic, p] for p in partitions if (topic, p) in hosts}
        state = application.states.get(topic)
        if state is None:
            return False
        # One without a life is of a worker that has replaced another; before our begin, it is news of a life before.
        is_ours = state.life == self._life or (self._has_begun and state.life is None)
        if is_ours and state.failure is not None:
            raise JobFailed(state.failure)
        return state.life == self._life and state.begun.issuperset(partitions)


def main() -> None:
    (name,) = sys.argv[1:]

    def serve(stopping: StopSignal) -> int:
        settings = load_settings()
        set_clock(settings, name)
        application = SparkApplication(settings, name, stopping)
        channel = socket.socket(fileno=sys.stdin.fileno())
        try:
            connections = Connections(settings, name, counts_children=True)
            code = Worker(connections, channel, {"spark": application.make_job}).serve(stopping)
        finally:
            application.close()
        return code if application.failure is None else EXIT_FAILED

    run_process(name, serve)


if __name__ == "__main__":
    main()
