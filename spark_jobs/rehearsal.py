"""What a driver runs before the first order: batches of warm-up records, on the way that orders take."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from services.hosting.process import StopSignal
from services.kafka.settings import KafkaSettings
from spark_jobs import worker
from spark_jobs.connector import sink_options, source_options
from spark_jobs.order_stream import OrderPath, OrderStream
from spark_jobs.replica_topics import ReplicaTopics

AT_ONCE = "0 seconds"
"""A batch of a rehearsal begins as soon as the one before has ended."""

AT_REST_S = 0.3
"""A rehearsal ends when no batch has come for this time."""

_LOOK_CLOSELY_S = 0.05


def rehearse(
    session: SparkSession,
    task: worker.ReplicaTask,
    kafka: KafkaSettings,
    topics: ReplicaTopics,
    send_warm_up: Callable[[], dict[int, int] | None],
    place: Path,
    stopping: StopSignal,
) -> None:
    """Run batches of warm-up records, which the worker answers with others in the same topic, until none comes. The first batch
    takes seconds, the fifth a fraction of one.

    kafka: the site of the topics. send_warm_up: sends the first ones, and returns their offsets by partition; None if Kafka
    does not take them now. place: a directory of this rehearsal.

    A rehearsal must end by itself: Spark would kill a worker that is stopped during a task, with all that it has loaded.
    """
    firsts = None
    while firsts is None and not stopping.is_set():
        firsts = send_warm_up()
    source, sink = source_options(kafka, topics.orders, firsts), sink_options(kafka, topics.orders)
    path = OrderPath(source, worker.ORDERS, partial(worker.rehearse, task), worker.ANSWERS, sink)
    stream = OrderStream(session, task.process, path, place, AT_ONCE)
    while not stopping.wait(_LOOK_CLOSELY_S):
        stream.look()
        if stream.progress is not None and time.monotonic() - stream.rested_since > AT_REST_S:
            break
    stream.stop()
