"""What runs in Spark's Python worker: the operator hosts of one replica, one for each partition of its orders.

Spark hands a task the next orders of one partition; the host that has obeyed all before them is kept in this process, from
batch to batch. If it is not here, because the worker, the executor or the whole job is another one, `OrderedHost` makes it
anew. A task that Spark gives again answers again, byte for byte, and the node drops the repeats by their numbers.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
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
from services.kafka.clusters import Cluster
from services.kafka.settings import load_settings
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from spark_jobs.places import Keeper, StoredSnapshots, TopicOrders, fetch_from
from spark_jobs.progress import HostProgress, Told, Worker, this_worker
from sunion.steps import Step

ORDERS = ("partition", "offset", "value")
"""The columns that `obey` takes, as Kafka's connector names them."""

ANSWERS = "partition int, value binary"
"""The columns that it makes, as Spark writes a schema."""

WARM_UP = b""
"""A record of the orders topic that is no order: the job writes it to itself. It has a host's state made, and no answer."""

REHEARSALS = 5
"""Batches of a rehearsal: by then the JVM has compiled what costs most."""

PIECE_BYTES = 4 << 20
"""Answers are handed to Spark in pieces of about so many bytes, so that the first are sent while others are made."""

MEASURED_SHARE = 0.01
"""How much of the time may pass in measuring how large a state is."""

_SCHEMA = pa.schema([("partition", pa.int32()), ("value", pa.binary())])

_logger = logging.getLogger("boreal.spark.worker")


@dataclass(frozen=True, slots=True)
class Task:
    """Whose operators these are. spec: the query as JSON; log: what tells the orders topic from one of the same name."""

    spec: str
    replica: str
    sites: tuple[str, ...]
    log: str


def obey(task: Task, progress: Accumulator[Told], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `DataFrame.mapInArrow`: ORDERS in, ANSWERS out. progress: is told how those hosts get on that have obeyed."""
    hosts = _hosts(task)
    made: list[tuple[int, bytes]] = []
    for partition, offset, data in _records(batches):
        made += [(partition, answer) for answer in hosts.obey(partition, offset, data)]
        if sum(len(answer) for _, answer in made) >= PIECE_BYTES:
            yield _rows(made)
            made = []
    if made:
        yield _rows(made)
    progress.add(hosts.tell())


def rehearse(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As `obey`, before there is anything to obey: all code that it needs is loaded, and has run. A WARM_UP for each partition
    that had one, which makes the next batch; none after REHEARSALS, so that the job comes to rest."""
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
def _hosts(task: Task) -> Hosts:
    """Those of this process: Spark hands us the same task with every batch."""
    return Hosts(task)


@dataclass(slots=True)
class _Shard:
    """A host, and what it has yet to tell."""

    host: OrderedHost
    told_rows: int = 0
    told_rebuilds: int = 0
    last_rebuild: Rebuild | None = None
    last_rebuild_s: float | None = None
    held_bytes: tuple[int, int] = (0, 0)
    measure_at: float = 0.0

    def note(self, rebuild: Rebuild, took_s: float) -> None:
        self.last_rebuild, self.last_rebuild_s = rebuild, round(took_s, 3)

    def tell(self, worker: Worker) -> HostProgress:
        host = self.host
        self._maybe_measure()
        progress = HostProgress(
            worker,
            host.rows - self.told_rows,
            host.rebuilt - self.told_rebuilds,
            self.last_rebuild,
            self.last_rebuild_s,
            *self.held_bytes,
        )
        self.told_rows, self.told_rebuilds = host.rows, host.rebuilt
        self.last_rebuild = self.last_rebuild_s = None
        return progress

    def _maybe_measure(self) -> None:
        began = time.monotonic()
        if began >= self.measure_at:
            self.held_bytes = self.host.host.host.held_bytes
            ended = time.monotonic()
            self.measure_at = ended + (ended - began) / MEASURED_SHARE


class Hosts:
    """The hosts of a replica's instances, each made when its first order comes."""

    def __init__(self, task: Task) -> None:
        logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
        settings = load_settings()
        self._log = task.log
        self._layout = make_layout(load_query(json.loads(task.spec)), task.sites)
        self._instances = self._layout.remote_instances(task.replica)
        query = self._layout.plan.query
        self._topic = orders_topic(query, task.replica)
        self._cluster = Cluster(self._layout.site_of_replica(task.replica), settings, f"spark.{query}.{task.replica}")
        self._store = RedisCheckpointStore(connect_redis(settings.redis), prefix=query)
        self._keeper = Keeper(self._store)
        self._by_partition: dict[int, _Shard] = {}
        self._have_news: set[int] = set()
        self._rehearsed: Counter[int] = Counter()
        # After every task Spark's worker has Python look for garbage, through all that was ever imported: 70 ms, for which the
        # next task waits. What is here by now stays for good, and need not be looked through.
        gc.collect()
        gc.freeze()

    def obey(self, partition: int, offset: int, data: bytes) -> list[bytes]:
        """The records that answer one of the orders topic."""
        if partition not in self._by_partition:
            self._by_partition[partition] = _Shard(self._host(partition))
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
            return []  # whoever gave it misses the answer, and begins a new life

    def tell(self) -> Told:
        """How those hosts are that have obeyed since they last told."""
        worker = this_worker()
        told = {partition: self._by_partition[partition].tell(worker) for partition in sorted(self._have_news)}
        self._have_news.clear()
        return told

    def rehearse(self, partition: int) -> bool:
        """Have a host that is thrown away obey two orders. Whether that should be done again."""
        fragment = self._layout.plan.fragment(self._instances[partition].fragment)
        host = RemoteHost(fragment, fetch_from(self._store))
        empty = {entry.name: entry.schema.empty() for entry in fragment.inputs}
        step = Step(empty, upto=0, tentative=False, muted=False, ingest=())
        orders: tuple[Order, ...] = (Begin(1, Mode.OVERLAY_REDO, None, None), step)
        for number, order in enumerate(orders, start=1):
            host.take(encode_order(Place(1, number), order), None)
        self._rehearsed[partition] += 1
        return self._rehearsed[partition] < REHEARSALS

    def _seek(self, shard: _Shard, who: InstanceId, offset: int) -> None:
        began = time.monotonic()
        rebuild = shard.host.seek(offset)
        if rebuild is not None:
            took_s = time.monotonic() - began
            shard.note(rebuild, took_s)
            what = f"after {took_s:.3f} s and {rebuild.orders} orders ({rebuild.cause})"
            _logger.info("%s: the state before order %d is here, %s", who, offset, what)

    def _host(self, partition: int) -> OrderedHost:
        who = self._instances[partition]
        fragment = self._layout.plan.fragment(who.fragment)
        fetch = fetch_from(self._store)
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
                _logger.error("%s passes over offset %d of %s/%d: %s", who, offset, self._topic, partition, error)
            return False
        return True

    def _keep_copy(self, who: InstanceId, number: int, state: bytes) -> None:
        self._keeper.keep(Checkpoint(copy_owner(who), number, 0, 0, (), (), state), count=1)
