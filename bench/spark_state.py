"""`boreal bench spark_state`: two ways to keep an operator host's state under Spark, and the cost of each per batch.

Both have the same operators, orders and answers, through Kafka, on one partition:

    worker     mapInArrow: the host is in the Python worker, and is rebuilt from Redis and the log when it is lost (spark_jobs)
    changes    transformWithStateInPandas: Spark keeps the state, as a list of changes that is compacted (bench.spark_changes)

For a state of 1 MB and one of 32 MB: orders of 8,192 rows are sent, each after the last is answered. `batch` is the duration of
the batch according to Spark, `answer` the time from the order to its answer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.figures import Figure, as_report
from boreal.query.plan import Fragment
from boreal.query.spec import Mode, load_query
from operators.graph import FragmentGraph
from reconcile.host import Host
from reconcile.orders import Begin, Order, Place, encode_order
from sunion.steps import Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from services.kafka.clusters import Cluster
    from services.kafka.settings import ServiceSettings
    from spark_jobs.worker import ReplicaTask

STATES_MB = (1, 32)
ROWS = 8_192
SAMPLES = 40
WARM_UP = 10
BYTES_PER_KEY = 34
QUERY: dict[str, Any] = {
    "name": "state",
    "streams": {"a": {"time": "time", "schema": {"k": "int", "v": "double"}}},
    "operators": {
        "n": {"aggregate": "a", "window": {"tumbling": "1h"}, "by": ["k"], "compute": {"n": "count(*)", "total": "sum(v)"}}
    },
    "output": "n",
    "delay_threshold": "3s",
    "replicas": 1,
    "engine": "spark",
}
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "1",
}
"""The store that transformWithState needs, and the one setting of it that made it faster."""


def main() -> dict[str, Any]:
    """Measure both ways, and return the report. Needs a Java; takes about two minutes."""
    from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings, SparkSettings
    from services.stack.servers import KafkaServer, RedisServer
    from spark_jobs.session import close_session, open_session

    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with KafkaServer(root / "kafka") as kafka, RedisServer(root / "redis") as redis:
            settings = ServiceSettings(
                sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)},
                redis=RedisSettings(url=redis.url),
                spark=SparkSettings(conf=ROCKSDB),
            )
            # The Python workers read their settings from here.
            os.environ |= {"BOREAL_SITES__A__BOOTSTRAP": kafka.bootstrap, "BOREAL_REDIS__URL": redis.url}
            session = open_session("bench", settings, root)
            try:
                for way in (_in_the_worker, _as_changes):
                    for megabytes in STATES_MB:
                        with _running(session, settings, way, megabytes, root) as (query, cluster, names):
                            figures += _measure(query, cluster, names, way.__name__.removeprefix("_"), megabytes)
            finally:
                close_session(session)
    return as_report("spark_state", figures)


def _in_the_worker(task: ReplicaTask, orders: DataFrame) -> DataFrame:
    from spark_jobs import worker
    from spark_jobs.progress import ProgressAccumulator

    progress = orders.sparkSession.sparkContext.accumulator({}, ProgressAccumulator[int]())
    return orders.mapInArrow(partial(worker.obey, task, progress), worker.ANSWERS)


def _as_changes(task: ReplicaTask, orders: DataFrame) -> DataFrame:
    from bench.spark_changes import StateAsChanges

    grouped = orders.groupBy("partition")
    return grouped.transformWithStateInPandas(StateAsChanges(task), "partition int, value binary", "append", "None")


@contextmanager
def _running(
    session: SparkSession, settings: ServiceSettings, way: Any, megabytes: int, root: Path
) -> Iterator[tuple[StreamingQuery, Cluster, tuple[str, str]]]:
    """Run a streaming query over new topics: (the query, the cluster, the names of both topics)."""
    from deployment.operator_hosts import answers_topic, orders_topic
    from services.kafka.clusters import Cluster
    from services.kafka.topics import TopicSpec, ensure
    from spark_jobs.connector import sink_options, source_options
    from spark_jobs.worker import ORDERS, ReplicaTask

    name = f"{QUERY['name']}{way.__name__}_{megabytes}"
    names = orders_topic(name, "r0"), answers_topic(name, "r0")
    cluster, kafka = Cluster("a", settings, "bench"), settings.sites["a"]
    ensure(cluster, [TopicSpec(topic, 1, {"max.message.bytes": str(64 << 20)}) for topic in names])
    task = ReplicaTask(json.dumps({**QUERY, "name": name}), "r0", ("a",), name, name, "bench")
    orders = session.readStream.format("kafka").options(**source_options(kafka, names[0])).load().select(*ORDERS)
    writer = way(task, orders).writeStream.format("kafka").options(**sink_options(kafka, names[1]))
    if way is _in_the_worker:
        writer = writer.option("asyncProgressTrackingEnabled", "true")  # Spark refuses it for a stateful query
    query = writer.option("checkpointLocation", str(root / name)).trigger(processingTime="0 seconds").start()
    try:
        yield query, cluster, names
    finally:
        query.stop()


def _measure(query: StreamingQuery, cluster: Cluster, names: tuple[str, str], way: str, megabytes: int) -> list[Figure]:
    from kafka import TopicPartition

    from deployment.layout import make_layout

    fragment = make_layout(load_query(QUERY), ("a",)).plan.fragment("main")
    keys = (megabytes << 20) // BYTES_PER_KEY
    producer = cluster.make_producer()
    answers: list[float] = []
    batches: dict[int, int] = {}
    with closing(cluster.make_consumer(fetch_max_wait_ms=50)) as consumer:
        place = TopicPartition(names[1], 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        for number, order in enumerate(_orders(fragment, keys), start=1):
            data = encode_order(Place(1, number), order)
            began = time.monotonic()
            producer.send(names[0], data, partition=0)
            while consumer.position(place) < number:
                consumer.poll(timeout_ms=50)
                if (failure := query.exception()) is not None:
                    raise failure
            answers.append(1e3 * (time.monotonic() - began))
            for progress in query.recentProgress:
                if progress.numInputRows:
                    batches[progress.batchId] = progress.batchDuration
    producer.close(timeout=1)
    size = _state_bytes(fragment, keys)
    print(f"{way} {megabytes} MB: state {size / 2**20:.1f} MB, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    taken = [batches[batch] for batch in sorted(batches)][-SAMPLES:]
    figures = {
        "batch, median": float(np.median(taken)),
        "batch, mean": float(np.mean(taken)),
        "batch, longest": float(np.max(taken)),
        "answer, median": float(np.median(answers[-SAMPLES:])),
    }
    return [Figure(f"{way}, state of {megabytes} MB: {what}", value, "ms", None, True) for what, value in figures.items()]


def _orders(fragment: Fragment, keys: int) -> Iterator[Order]:
    """One order that fills the state; then steps that change existing keys."""
    [entry] = fragment.inputs
    chance = np.random.default_rng(1)

    def step(of: np.ndarray, upto: int) -> Step:
        columns = {"time": np.full(len(of), upto - 1), "k": of, "v": chance.random(len(of))}
        arrays = [pa.array(columns[column.name]).cast(column.type) for column in entry.schema.arrow]
        return Step({entry.name: pa.RecordBatch.from_arrays(arrays, schema=entry.schema.arrow)}, upto, False, False, ())

    yield Begin(1, Mode.OVERLAY_REDO, None, None)
    yield step(np.arange(keys), 1)
    for upto in range(2, 2 + WARM_UP + SAMPLES):
        yield step(chance.integers(0, keys, ROWS), upto)


def _state_bytes(fragment: Fragment, keys: int) -> int:
    host = Host(FragmentGraph(fragment), Mode.OVERLAY_REDO)
    for order in list(_orders(fragment, keys))[:2]:
        host.obey(order)
    return len(host.state.encode())


if __name__ == "__main__":
    from bench.figures import print_table

    print_table(main())
