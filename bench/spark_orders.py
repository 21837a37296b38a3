"""A node's part towards a Spark job, played for a measurement: orders are given, and it is noted when each was answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import confluent_kafka
import numpy as np
import pyarrow as pa

from bench.deployment import Deployment
from boreal.query.spec import Mode
from deployment.operator_hosts import answers_topic, orders_topic
from reconcile.orders import Begin, Order, Place, decode_answer, encode_order
from services.kafka.clusters import MAX_FRAME_BYTES
from sunion.steps import Step

KEYS = 1_000
ROW_US = 10
"""Event time between two rows of a shard."""

_GIVE = {
    "message.max.bytes": MAX_FRAME_BYTES, "queue.buffering.max.kbytes": 2_000_000, "linger.ms": 0, "enable.idempotence": True,
    "log_level": 0,
}
_HEAR = {
    "group.id": "bench", "enable.auto.commit": False, "fetch.message.max.bytes": MAX_FRAME_BYTES, "log_level": 0,
}


@dataclass(frozen=True, slots=True)
class Given:
    """One order, encoded."""

    shard: int
    place: Place
    data: bytes


@dataclass(slots=True)
class _Shard:
    incarnation: int = 0
    number: int = 0
    upto: int = 0


@dataclass
class Orders:
    """Of all shards of one replica. Kafka's clients here are in C, so that giving and hearing take little of what is measured.
    given, answered: when, by `time.perf_counter`. As a context: it hears answers from the beginning on, until its end."""

    deployment: Deployment
    replica: str = "r0"
    given: dict[tuple[int, Place], float] = field(default_factory=dict)
    answered: dict[tuple[int, Place], float] = field(default_factory=dict)

    def __enter__(self) -> Orders:
        plan, query = self.deployment.layout.plan, self.deployment.spec.name
        instances = self.deployment.layout.remote_instances(self.replica)
        fragment = plan.fragment(instances[0].fragment)
        [self.input] = fragment.inputs
        self._outputs = {entry.operator: entry.schema for entry in fragment.outputs}
        self._shards = [_Shard() for _ in instances]
        self._orders, self._answers = orders_topic(query, self.replica), answers_topic(query, self.replica)
        bootstrap = self.deployment.kafka["a"].bootstrap
        self._chance = np.random.default_rng(0)
        self._failure = ""
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **_GIVE})
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, **_HEAR})
        self._consumer.assign([confluent_kafka.TopicPartition(self._answers, at, 0) for at in range(len(instances))])
        self._stopping = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._listener.join()
        self._producer.flush(5)

    # Making orders

    def begin(self, shard: int, mode: Mode = Mode.CHECKPOINT_REDO) -> Given:
        """A new life, with no state."""
        found = self._shards[shard]
        found.incarnation, found.number, found.upto = found.incarnation + 1, 0, 0
        return self.order(shard, Begin(found.incarnation, mode, None, None))

    def order(self, shard: int, order: Order) -> Given:
        """The next order of a shard's life."""
        found = self._shards[shard]
        found.number += 1
        place = Place(found.incarnation, found.number)
        return Given(shard, place, encode_order(place, order))

    def step(self, shard: int, rows: int, tentative: bool = False) -> Given:
        """The shard's next rows, ROW_US apart, each of one of KEYS keys."""
        found = self._shards[shard]
        times = found.upto + ROW_US * np.arange(rows)
        found.upto += ROW_US * rows
        return self._step_of(shard, times, self._chance.integers(0, KEYS, rows), tentative)

    def touch(self, shard: int, keys: np.ndarray) -> Given:
        """A row for each of these keys, all at one moment, which is the next: no window ends for long."""
        self._shards[shard].upto += 1
        times = np.full(len(keys), self._shards[shard].upto - 1)
        return self._step_of(shard, times, keys, tentative=False)

    def back_to(self, shard: int, upto: int) -> None:
        """The next step begins at this event time: a rollback's."""
        self._shards[shard].upto = upto

    def upto(self, shard: int) -> int:
        return self._shards[shard].upto

    def _step_of(self, shard: int, times: np.ndarray, keys: np.ndarray, tentative: bool) -> Given:
        columns = {"time": times, "key": keys, "value": self._chance.random(len(keys))}
        schema = self.input.schema.arrow
        batch = pa.RecordBatch.from_arrays([pa.array(columns[c.name]).cast(c.type) for c in schema], schema=schema)
        return self.order(shard, Step({self.input.name: batch}, self._shards[shard].upto, tentative, False, ()))

    # Giving and hearing

    def give(self, orders: Iterable[Given]) -> None:
        """All at once, in their order; returns when they are on their way."""
        for order in orders:
            self.given[order.shard, order.place] = time.perf_counter()
            self._producer.produce(self._orders, order.data, partition=order.shard)
            self._producer.poll(0)

    def take(self, orders: Iterable[Given], within_s: float = 120.0) -> float:
        """Give them, and wait until all are answered; the seconds from the first one given to the last answer."""
        orders = list(orders)
        self.give(orders)
        deadline = time.monotonic() + within_s
        last = orders[-1]
        while (last.shard, last.place) not in self.answered:
            assert not self._failure, self._failure
            assert time.monotonic() < deadline, f"no answer to {last.place}\n{self.deployment.explain()}"
            time.sleep(0.001)
        return self.answered[last.shard, last.place] - self.given[orders[0].shard, orders[0].place]

    def latency(self, order: Given) -> float:
        """Milliseconds from giving an order to its answer, which has come."""
        key = order.shard, order.place
        return 1e3 * (self.answered[key] - self.given[key])

    def _listen(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now, value, shard = time.perf_counter(), message.value(), message.partition()
            if value is not None and shard is not None:
                place, answer = decode_answer(value, self._outputs)
                self._failure = self._failure or answer.failed or ""
                self.answered.setdefault((shard, place), now)
        self._consumer.close()
