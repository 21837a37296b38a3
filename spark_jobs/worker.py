"""The functions that Spark's Python worker runs: the operator hosts of one replica, one for each partition of its orders.

Spark passes a task the next orders of one partition; the host that has executed the orders before them stays in this process
from batch to batch. If it is not here, because the worker, the executor or the whole job is a new one, `OrderedHost` rebuilds
it. A task that Spark repeats gives the same answers, byte for byte, and the node drops repeats by their numbers.
"""

from __future__ import annotations

import gc
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import pyarrow as pa
from pyspark.accumulators import Accumulator

from boreal.model.errors import CorruptError
from boreal.query.spec import Mode, load_query
from deployment.layout import make_layout
from deployment.operator_hosts import copy_owner, host_owner, orders_topic
from logs.checkpoints import Checkpoint
from reconcile.events import InstanceId
from reconcile.orders import Begin, Order, Place, decode_order, encode_order
from reconcile.parts import is_part
from reconcile.remote import OrderedHost, Rebuild, RemoteHost
from services.hosting.log_lines import set_up_logging
from services.kafka.clusters import Cluster
from services.kafka.settings import load_settings
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from spark_jobs.host_storage import ASK_S, CheckpointUploader, StoredSnapshots, TopicOrders, make_fetch
from spark_jobs.progress import HostProgress, ProgressByPartition, WorkerUsage, this_worker
from sunion.steps import Step

ORDERS = ("partition", "offset", "value")
"""The columns that `obey` takes, as Kafka's connector names them."""

ANSWERS = "partition int, value binary"
"""The schema of the rows that `obey` returns."""

WARM_UP = b""
"""A record of the orders topic that is not an order: the job writes it. It makes a host build its state, without an answer."""

REHEARSALS = 5
"""The number of batches of a rehearsal: after them the JVM has compiled its most expensive code."""

PIECE_BYTES = 4 << 20
"""About how large the pieces are in which answers are returned to Spark: the first are sent while others are computed."""

MEASURED_SHARE = 0.01
"""The share of time that measuring the size of a state may take."""

_SCHEMA = pa.schema([("partition", pa.int32()), ("value", pa.binary())])

_logger = logging.getLogger("boreal.spark.worker")


@dataclass(frozen=True, slots=True)
class ReplicaTask:
    """The replica whose operators run here."""

    spec: str
    """The query as JSON."""
    replica: str
    """The replica's name."""
    sites: tuple[str, ...]
    """The names of the sites, the home site first."""
    log: str
    """A unique name of the orders topic: another topic of the same name has another one."""
    inner: str
    """The name of the query's version (`QueryRecord.inner`)."""
    process: str
    """The name of the driver's process, for log lines."""


def obey(
    task: ReplicaTask, progress: Accumulator[ProgressByPartition], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `DataFrame.mapInArrow`. Takes ORDERS, returns ANSWERS. progress: gets the progress of the hosts that had orders."""
    hosts = _hosts(task)
    made: list[tuple[int, bytes]] = []
    for partition, offset, data in _records(batches):
        made += [(partition, answer) for answer in hosts.obey(partition, offset, data)]
        if sum(len(answer) for _, answer in made) >= PIECE_BYTES:
            yield _rows(made)
            made = []
    if made:
        yield _rows(made)
    progress.add(hosts.report())


def rehearse(task: ReplicaTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Like `obey`, but before the first order: it loads and runs all code that orders need. Returns a WARM_UP for each
    partition that had one, which causes the next batch; none after REHEARSALS, so that the rehearsal ends."""
    hosts = _hosts(task)
    for partition in dict.fromkeys(partition for partition, _, data in _records(batches) if data == WARM_UP):
        if hosts.rehearse(partition):
            yield _rows([(partition, WARM_UP)])


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, bytes]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ORDERS)
        for partition, offset, data in zip(*columns, strict=True):
            yield partition, offset, data or WARM_UP


def _rows(answers: list[tuple[int, bytes]]) -> pa.RecordBatch:
    partitions, values = zip(*answers, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(partitions, pa.int32()), pa.array(values, pa.binary())], schema=_SCHEMA)


@cache
def _hosts(task: ReplicaTask) -> ReplicaHosts:
    """The hosts of this process: Spark passes the same task with every batch."""
    set_up_logging(task.process)
    return ReplicaHosts(task)


@dataclass(slots=True)
class _ShardHost:
    """A host, and its progress since its last report."""

    host: OrderedHost
    reported_rows: int = 0
    reported_rebuilds: int = 0
    last_rebuild: Rebuild | None = None  # since the last report
    last_rebuild_s: float | None = None
    held_bytes: tuple[int, int] = (0, 0)  # of the state, and of its copies and overlays
    measure_at: float = 0.0  # when held_bytes is measured next, by `time.monotonic`

    def note(self, rebuild: Rebuild, took_s: float) -> None:
        self.last_rebuild, self.last_rebuild_s = rebuild, round(took_s, 3)

    def report(self, worker: WorkerUsage) -> HostProgress:
        host = self.host
        self._maybe_measure()
        progress = HostProgress(
            worker,
            host.rows - self.reported_rows,
            host.rebuilt - self.reported_rebuilds,
            self.last_rebuild,
            self.last_rebuild_s,
            *self.held_bytes,
        )
        self.reported_rows, self.reported_rebuilds = host.rows, host.rebuilt
        self.last_rebuild = self.last_rebuild_s = None
        return progress

    def _maybe_measure(self) -> None:
        began = time.monotonic()
        if began >= self.measure_at:
            self.held_bytes = self.host.host.host.held_bytes
            ended = time.monotonic()
            self.measure_at = ended + (ended - began) / MEASURED_SHARE


class ReplicaHosts:
    """The hosts of a replica's instances; each is made when its first order comes."""

    def __init__(self, task: ReplicaTask, ask_s: float = ASK_S) -> None:
        """ask_s: how long it is tried to read a checkpoint. Meanwhile no other host of the process obeys."""
        settings = load_settings()
        self._log = task.log
        self._ask_s = ask_s
        self._layout = make_layout(load_query(json.loads(task.spec)), task.sites, task.inner)
        self._instances = self._layout.remote_instances(task.replica)
        query = self._layout.plan.query
        self._topic = orders_topic(query, task.replica, self._layout.plan.own_application)
        self._cluster = Cluster(self._layout.site_of_replica(task.replica), settings, f"spark.{query}.{task.replica}")
        self._store = RedisCheckpointStore(connect_redis(settings.redis), prefix=query)
        self._keeper = CheckpointUploader(self._store)
        self._by_partition: dict[int, _ShardHost] = {}
        self._have_news: set[int] = set()
        self._rehearsed: Counter[int] = Counter()
        # After every task Spark's worker collects garbage among all imported objects: 70 ms, for which the next task waits. The
        # objects that exist now stay for good, so they are excluded.
        gc.collect()
        gc.freeze()

    def obey(self, partition: int, offset: int, data: bytes) -> list[bytes]:
        """Execute one record of the orders topic; returns the records of its answer."""
        if partition not in self._by_partition:
            self._by_partition[partition] = _ShardHost(self._build_host(partition))
        shard, who = self._by_partition[partition], self._instances[partition]
        host = shard.host
        self._have_news.add(partition)
        self._seek(shard, who, offset)
        try:
            if data == WARM_UP:
                host.skip(offset)
                return []
            return host.obey([(offset, data)], partial(self._keep_copy, who))
        except CorruptError:
            if self._is_order(partition, offset, data):
                raise
            host.skip(offset)
            return []  # the node notices the missing answer, and restarts the instance

    def catch_up(self, partition: int, first: int, end: int) -> list[bytes]:
        """Execute the orders of the topic from one offset to before another; returns the records of their answers."""
        records = TopicOrders(self._cluster, self._topic, partition, lambda offset, data: True).read(first, end)
        return [answer for offset, data in records for answer in self.obey(partition, offset, data or WARM_UP)]

    def forget(self, partition: int) -> None:
        """Drop a host, whose state is wrong or half made: its next order makes another one."""
        self._by_partition.pop(partition, None)
        self._have_news.discard(partition)

    def close(self) -> None:
        """Call when no more orders come."""
        self._keeper.close()

    def report(self) -> ProgressByPartition:
        """The progress of the hosts that had orders since the last report."""
        worker = this_worker()
        progress = {partition: self._by_partition[partition].report(worker) for partition in sorted(self._have_news)}
        self._have_news.clear()
        return progress

    def rehearse(self, partition: int) -> bool:
        """Let a temporary host execute two orders; whether to repeat that."""
        fragment = self._layout.plan.fragment(self._instances[partition].fragment)
        host = RemoteHost(fragment, make_fetch(self._store, self._ask_s))
        empty = {entry.name: entry.schema.empty() for entry in fragment.inputs}
        step = Step(empty, upto=0, tentative=False, muted=False, ingest=())
        orders: tuple[Order, ...] = (Begin(1, Mode.OVERLAY_REDO, None, None), step)
        for number, order in enumerate(orders, start=1):
            host.take(encode_order(Place(1, number), order), None)
        self._rehearsed[partition] += 1
        return self._rehearsed[partition] < REHEARSALS

    def _seek(self, shard: _ShardHost, who: InstanceId, offset: int) -> None:
        began = time.monotonic()
        rebuild = shard.host.seek(offset)
        if rebuild is not None:
            took_s = time.monotonic() - began
            shard.note(rebuild, took_s)
            what = f"after {took_s:.3f} s and {rebuild.orders} orders ({rebuild.cause})"
            _logger.info("%s: the state before order %d is ready, %s", who, offset, what)

    def _build_host(self, partition: int) -> OrderedHost:
        who = self._instances[partition]
        fragment = self._layout.plan.fragment(who.fragment)
        fetch = make_fetch(self._store, self._ask_s)
        orders = TopicOrders(self._cluster, self._topic, partition, partial(self._is_order, partition))
        snapshots = StoredSnapshots(self._store, self._keeper, host_owner(who), f"{self._log}/{partition}")
        return OrderedHost(fragment, fetch, orders, snapshots)

    def _is_order(self, partition: int, offset: int, data: bytes) -> bool:
        who = self._instances[partition]
        inputs = self._layout.plan.fragment(who.fragment).inputs
        try:
            if not is_part(data):
                decode_order(data, {entry.name: entry.schema for entry in inputs})
        except CorruptError as error:
            if data != WARM_UP:
                _logger.error("%s skips offset %d of %s/%d: %s", who, offset, self._topic, partition, error)
            return False
        return True

    def _keep_copy(self, who: InstanceId, number: int, state: bytes) -> None:
        self._keeper.keep(Checkpoint(copy_owner(who), number, 0, 0, (), (), state), count=1)
