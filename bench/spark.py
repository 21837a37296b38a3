"""`boreal bench spark`: operators in a Spark job; the job, the broker, Redis and the sender of the orders share this
machine's cores.

One job of four shards serves for nearly all figures: those of one shard use only the first, since a shard without orders has no
task. The orders are like a node's and made beforehand; an order is answered when its answer was read from Kafka. Two figures
are of whole nodes: the smallest X, as the node has measured it, and the throughput of a node and its job.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from kafka import TopicPartition

from bench.deployment import Deployment, read_all, wait_until
from bench.figures import Figure, as_report, print_table
from bench.processor_time import processor_time
from bench.spark_orders import KEYS, ROW_US, EncodedOrder, Orders
from bench.spark_plain import rates
from bench.stack import FRAME_ROWS, SCHEMA, STREAMS, make_query
from boreal.model.frames import INFINITY, Boundary, Data, LogId, Origin, Start
from deployment.operator_hosts import orders_topic
from reconcile.orders import EndRedo, RollBack, SetMark, decode_order
from services.hosting.process import now_us
from services.kafka.topics import stable_topic
from services.storage.kafka_log import KafkaLogStore
from sunion.buckets import bucket_end
from sunion.steps import Step

SHARDS = 4
READY_S = 120.0
STEP_ROWS = (FRAME_ROWS, 16 * FRAME_ROWS)
"""The rows of a frame, and about the most rows of a step."""

BULK_ROWS = 10 << 20
WARM_UP_ROWS = 3 << 20
REDO_ROWS = 4 << 20
ORDERS_PER_SECOND = 20
ORDER_ROWS = 100
LATENCY_S = 15.0
WARM_UP_S = 4.0
STATES_MB = (1, 32)
BYTES_PER_KEY = 34
SAMPLES = 40
DEATHS = 2
CALM_S = 10.0
BUSY_FRAMES = 1_200


def main() -> dict[str, Any]:
    """Measure all, and return the report. Needs a Java; takes about four minutes."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        query = make_query("orders", engine="spark", shards=SHARDS)
        with Deployment(Path(folder), query, without=("source", "node", "egress", "monitor"), has_links=False) as job:
            job.wait_ready(READY_S)
            with Orders(job) as orders:
                for shards in (1, SHARDS):
                    figures += _latency(orders, shards)
                for rows in STEP_ROWS:
                    figures += _throughput(orders, rows)
                for rows in STEP_ROWS:
                    figures += _redo(orders, rows)
                figures += _states(orders)
                figures += _memory(job)
                figures += _restart(orders)
            _end(job)
            for engine in ("native", "spark"):
                figures += _node(job, Path(folder) / engine, engine)
            bootstrap = job.kafka["a"].bootstrap
            for source, rate in rates(job.clusters["a"], bootstrap, Path(folder) / "plain").items():
                figures.append(Figure(f"plain Structured Streaming, from {source}, two cores", rate, "tuples/s"))
    return as_report("spark", figures)


def _latency(orders: Orders, shards: int) -> list[Figure]:
    """Small orders at a constant rate, to the shards in turn."""
    for shard in range(shards):
        orders.take([orders.begin(shard)])
    given: list[EncodedOrder] = []
    started = time.perf_counter()
    while time.perf_counter() - started < WARM_UP_S + LATENCY_S:
        given.append(orders.step(len(given) % shards, ORDER_ROWS))
        orders.give(given[-1:])
        time.sleep(max(0.0, started + len(given) / ORDERS_PER_SECOND - time.perf_counter()))
    orders.take([orders.step(shard, ORDER_ROWS) for shard in range(shards)])
    taken = [orders.latency(order) for order in given[int(WARM_UP_S * ORDERS_PER_SECOND) :]]
    what = f"order to answer, {shards} shard(s), {ORDERS_PER_SECOND} a second"
    limits = (300, 600) if shards == 1 else (None, None)
    return [
        Figure(f"{what}, p{part}", float(np.percentile(taken, part)), "ms", limit, True)
        for part, limit in zip((50, 99), limits, strict=True)
    ]


def _throughput(orders: Orders, rows: int) -> list[Figure]:
    """Orders of `rows` rows, as fast as one shard executes them, and the processor time that they take."""
    orders.take([orders.begin(0)])
    orders.take([orders.step(0, rows) for _ in range(WARM_UP_ROWS // rows)])
    prepared = [orders.step(0, rows) for _ in range(BULK_ROWS // rows)]
    before = _processor_s(orders.deployment)
    seconds = orders.take(prepared)
    used = {name: after - before[name] for name, after in _processor_s(orders.deployment).items()}
    million = len(prepared) * rows / 1e6
    return [
        Figure(f"one shard, orders of {rows:,} rows", 1e6 * million / seconds, "tuples/s", 1_500_000),
        *(Figure(f"the same, processor time of the {name}", 1e3 * s / million, "ms/M tuples") for name, s in used.items()),
    ]


def _redo(orders: Orders, rows: int) -> list[Figure]:
    """From ROLLBACK to the answer to REDONE: the tentative rows again, as stable ones."""
    count = REDO_ROWS // rows
    orders.take([orders.begin(0), *(orders.step(0, rows) for _ in range(count))])
    marked = orders.upto(0)
    orders.take([orders.order(0, SetMark(1)), *(orders.step(0, rows, tentative=True) for _ in range(count))])
    orders.back_to(0, marked)
    again = [orders.order(0, RollBack(keep_live=False)), *(orders.step(0, rows) for _ in range(count))]
    seconds = orders.take([*again, orders.order(0, EndRedo())])
    return [Figure(f"redo in orders of {rows:,} rows", count * rows / seconds, "tuples/s", 1_000_000)]


def _states(orders: Orders) -> list[Figure]:
    """Orders in turn to two shards, one with a small state and one with a large one, each after the last is answered."""
    keys = [(megabytes << 20) // BYTES_PER_KEY for megabytes in STATES_MB]
    taken: list[list[float]] = [[] for _ in keys]
    for shard, count in enumerate(keys):
        orders.take([orders.begin(shard), orders.touch(shard, np.arange(count))])
    chance = np.random.default_rng(1)
    for _ in range(SAMPLES):
        for shard, count in enumerate(keys):
            taken[shard].append(1e3 * orders.take([orders.touch(shard, chance.integers(0, count, FRAME_ROWS))]))
    small, large = (float(np.median(times)) for times in taken)
    return [
        Figure(f"order to answer, state of {STATES_MB[0]} MB, median", small, "ms"),
        Figure(f"order to answer, state of {STATES_MB[1]} MB, median", large, "ms"),
        Figure(f"the longest with a state of {STATES_MB[1]} MB", max(taken[1]), "ms"),
        Figure("the larger state's time over the smaller's", large / small, "times", 2, True),
    ]


def _memory(deployment: Deployment) -> list[Figure]:
    """The resident memory after the other measurements."""
    sizes = {name: sum(p.memory_info().rss for p in found) / 1e6 for name, found in _processes(deployment).items()}
    del sizes["broker"]
    return [
        *(Figure(f"memory of the {name}, {SHARDS} shards", size, "MB") for name, size in sizes.items()),
        Figure("all of it, a shard", sum(sizes.values()) / SHARDS, "MB"),
    ]


def _restart(orders: Orders) -> list[Figure]:
    """From the kill of the driver and its JVM to the next answer; they are restarted as by the supervisor."""
    deployment = orders.deployment
    [name] = deployment.services
    taken, parts = [], []
    for _ in range(DEATHS):
        orders.take([orders.begin(0), orders.step(0, FRAME_ROWS)])
        pid = deployment.services[name].pid
        for process in _family(deployment):
            process.kill()
        taken.append(orders.take([orders.step(0, FRAME_ROWS)]))
        wait_until(partial(_is_restarted, deployment, name, pid), "the job is ready again", deployment.explain)
        parts.append(deployment.statuses()[name]["start_s"])
    return [
        Figure("killed driver and JVM, to the next answer", max(taken), "s"),
        *(Figure(f"of a start, {part}", float(np.mean([p[part] for p in parts])), "s") for part in parts[0]),
    ]


def _is_restarted(deployment: Deployment, name: str, pid: int) -> bool:
    status = deployment.statuses().get(name, {})
    return bool(status.get("ready")) and status["pid"] != pid


def _end(deployment: Deployment) -> None:
    """End the processes of a deployment; its servers keep running."""
    family = _family(deployment)
    for service in deployment.services.values():
        service.is_wanted = False
    for process in family:
        process.kill()
    psutil.wait_procs(family)


def _node(beside: Deployment, root: Path, engine: str) -> list[Figure]:
    """A node with its egress, with three inputs: few rows first, then, in Spark, as many as it can take."""
    query = make_query(engine, engine=engine)
    root.mkdir()
    with (
        Deployment(root, query, without=("source",), beside=beside, has_links=False) as deployment,
        closing(_SourceLogs(deployment)) as logged,
    ):
        deployment.wait_ready(READY_S)
        started = time.monotonic()
        while time.monotonic() - started < WARM_UP_S + CALM_S:
            logged.append(ORDER_ROWS)
            time.sleep(1 / ORDERS_PER_SECOND)
        [instance] = deployment.statuses()[f"node.{engine}.r0"]["instances"]
        figures = [Figure(f"smallest X, engine: {engine}", instance["least_x_ms"], "ms")]
        return figures + (_busy(deployment, logged) if engine == "spark" else [])


def _busy(deployment: Deployment, logged: _SourceLogs) -> list[Figure]:
    """The throughput of a node with its job, and the size of the orders under this load."""
    started = time.perf_counter()
    for _ in range(BUSY_FRAMES // len(STREAMS)):
        logged.append(FRAME_ROWS)
    _await_rows(deployment, logged.end())
    seconds = time.perf_counter() - started
    sizes = [rows for rows in _step_sizes(deployment) if rows > ORDER_ROWS * len(STREAMS)]
    return [
        Figure("frames to q.stable through Spark, one replica", FRAME_ROWS * BUSY_FRAMES / seconds, "tuples/s"),
        Figure("rows of an order meanwhile, median", float(np.median(sizes)), "rows"),
        Figure("rows of an order meanwhile, mean", float(np.mean(sizes)), "rows"),
    ]


class _SourceLogs:
    """Writes frames to the logs of a deployment's sources, as a source does; the keys come in turn."""

    def __init__(self, deployment: Deployment) -> None:
        self._store = KafkaLogStore(deployment.clusters, deployment.layout)
        self._logs = {stream: self._store.open(LogId(stream, "", 0)) for stream in STREAMS}
        self._bucket_us = deployment.layout.plan.bucket_us
        self._origin = Origin("", 1)
        self._rows = 0
        for log in self._logs.values():
            log.append_later(Start(self._origin, 0))

    def _batch(self, first: int, rows: int) -> pa.RecordBatch:
        numbers = np.arange(first, first + rows)
        columns = [pa.array(ROW_US * numbers), pa.array(numbers % KEYS), pa.array(numbers * 0.5)]
        return pa.RecordBatch.from_arrays(columns, names=["time", *SCHEMA])

    def append(self, rows: int) -> None:
        """Append `rows` rows to each stream, and the boundary after them."""
        first, self._rows = self._rows, self._rows + rows
        batch, last = self._batch(first, rows), ROW_US * (self._rows - 1)
        now = now_us()
        for log in self._logs.values():
            ingest = ((INFINITY, now),)
            log.append_later(Data(self._origin, 0, first, batch, False, ingest, bucket_end(last, self._bucket_us)))
            log.append_later(Boundary(self._origin, 0, last, False, now, now))

    def end(self) -> int:
        """End the streams; returns how many rows q.stable will have."""
        for log in self._logs.values():
            log.append_later(Boundary(self._origin, 0, INFINITY, False, now_us(), now_us()))
        return KEYS * -(-self._rows * ROW_US // 1_000_000)

    def close(self) -> None:
        self._store.close()


def _await_rows(deployment: Deployment, expected: int) -> None:
    """Wait until q.stable holds the expected number of rows."""
    there = TopicPartition(stable_topic(deployment.spec.name), 0)
    with closing(deployment.clusters["a"].make_consumer(read_committed=True)) as consumer:
        consumer.assign([there])
        consumer.seek_to_beginning(there)
        found, deadline = 0, time.monotonic() + READY_S
        while found < expected:
            assert time.monotonic() < deadline, f"{found} of {expected} rows\n{deployment.explain()}"
            found += sum(len(records) for records in consumer.poll(timeout_ms=100).values())


def _step_sizes(deployment: Deployment) -> list[int]:
    """The number of rows of each step that the node sent to its job, for the orders that still exist."""
    [who] = deployment.layout.remote_instances("r0")
    inputs = {entry.name: entry.schema for entry in deployment.layout.plan.fragment(who.fragment).inputs}
    found = []
    for record in read_all(deployment.clusters["a"], orders_topic(deployment.spec.name, "r0")):
        if record.value:
            _, order = decode_order(record.value, inputs)
            if isinstance(order, Step):
                found.append(sum(batch.num_rows for batch in order.batches.values()))
    return found


def _processes(deployment: Deployment) -> dict[str, list[psutil.Process]]:
    """The processes of the job and of the broker, by kind."""
    found: dict[str, list[psutil.Process]] = {"driver": [], "JVM": [], "Python workers": [], "broker": []}
    driver, *others = _family(deployment)
    found["driver"] = [driver]
    for process in others:
        found["JVM" if process.name() == "java" else "Python workers"].append(process)
    found["broker"] = [psutil.Process(deployment.kafka["a"].pid)]
    return found


def _family(deployment: Deployment) -> list[psutil.Process]:
    [service] = deployment.services.values()
    driver = psutil.Process(service.pid)
    return [driver, *driver.children(recursive=True)]


def _processor_s(deployment: Deployment) -> dict[str, float]:
    """The processor time that each kind of process has taken so far."""
    return {name: sum(map(processor_time, found)) for name, found in _processes(deployment).items()}


if __name__ == "__main__":
    print_table(main())
