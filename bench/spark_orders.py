"""Plays the node for a Spark job in a benchmark: sends orders, and notes when each was answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import confluent_kafka
import numpy as np
import pyarrow as pa

from bench.deployment import Deployment
from boreal.model.schema import Schema
from boreal.query.plan import Input
from boreal.query.spec import Mode
from deployment.operator_hosts import answers_topic, orders_topic
from reconcile.orders import Begin, Order, Place, decode_answer, encode_order
from services.kafka.clusters import MAX_FRAME_BYTES
from sunion.steps import Step

KEYS = 1_000
ROW_US = 10
"""Event time between two rows of a shard."""

_PRODUCER = {
    "message.max.bytes": MAX_FRAME_BYTES, "queue.buffering.max.kbytes": 2_000_000, "linger.ms": 0, "enable.idempotence": True,
    "log_level": 0,
}
_CONSUMER = {
    "group.id": "bench", "enable.auto.commit": False, "fetch.message.max.bytes": MAX_FRAME_BYTES, "log_level": 0,
}


@dataclass(frozen=True, slots=True)
class EncodedOrder:
    """One order, encoded."""

    shard: int
    """The shard that it is for, from 0."""
    place: Place
    """Its place among the shard's orders."""
    data: bytes
    """The order's record."""


@dataclass(slots=True)
class _ShardPosition:
    """The last order of a shard."""

    incarnation: int = 0
    number: int = 0
    upto: int = 0  # the event time reached, in microseconds


@dataclass
class Orders:
    """The orders for all shards of one replica, and the times of their answers. Use as a context.

    Kafka's clients here are written in C, so that they take little of the processor time that is measured.
    """

    deployment: Deployment
    """The deployment whose Spark job gets the orders."""
    replica: str = "r0"
    """The replica's name."""
    given: dict[tuple[int, Place], float] = field(default_factory=dict)
    """When each order was sent, in seconds of `time.perf_counter`, by shard and place."""
    answered: dict[tuple[int, Place], float] = field(default_factory=dict)
    """When each order was answered, in the same way."""
    input: Input = field(init=False)
    """The only input of the replica's fragment."""
    _outputs: dict[str, Schema] = field(init=False)
    _shards: list[_ShardPosition] = field(init=False)
    _orders: str = field(init=False)
    _answers: str = field(init=False)
    _chance: np.random.Generator = field(init=False)
    _failure: str = field(init=False)
    _producer: confluent_kafka.Producer = field(init=False)
    _consumer: confluent_kafka.Consumer = field(init=False)
    _stopping: threading.Event = field(init=False)
    _listener: threading.Thread = field(init=False)

    def __enter__(self) -> Orders:
        plan, query = self.deployment.layout.plan, self.deployment.spec.name
        instances = self.deployment.layout.remote_instances(self.replica)
        fragment = plan.fragment(instances[0].fragment)
        [self.input] = fragment.inputs
        self._outputs = {entry.operator: entry.schema for entry in fragment.outputs}
        self._shards = [_ShardPosition() for _ in instances]
        self._orders, self._answers = orders_topic(query, self.replica), answers_topic(query, self.replica)
        bootstrap = self.deployment.kafka["a"].bootstrap
        self._chance = np.random.default_rng(0)
        self._failure = ""
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **_PRODUCER})
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, **_CONSUMER})
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

    def begin(self, shard: int, mode: Mode = Mode.CHECKPOINT_REDO) -> EncodedOrder:
        """The first order of a new incarnation without state."""
        found = self._shards[shard]
        found.incarnation, found.number, found.upto = found.incarnation + 1, 0, 0
        return self.order(shard, Begin(found.incarnation, mode, None, None))

    def order(self, shard: int, order: Order) -> EncodedOrder:
        """Encode the next order of a shard's incarnation."""
        found = self._shards[shard]
        found.number += 1
        place = Place(found.incarnation, found.number)
        return EncodedOrder(shard, place, encode_order(place, order))

    def step(self, shard: int, rows: int, tentative: bool = False) -> EncodedOrder:
        """The shard's next rows, ROW_US apart, each of one of KEYS keys."""
        found = self._shards[shard]
        times = found.upto + ROW_US * np.arange(rows)
        found.upto += ROW_US * rows
        return self._step_of(shard, times, self._chance.integers(0, KEYS, rows), tentative)

    def touch(self, shard: int, keys: np.ndarray) -> EncodedOrder:
        """One row for each of these keys, all at the next microsecond, so that no window ends soon."""
        self._shards[shard].upto += 1
        times = np.full(len(keys), self._shards[shard].upto - 1)
        return self._step_of(shard, times, keys, tentative=False)

    def back_to(self, shard: int, upto: int) -> None:
        """Continue from this event time, in microseconds, after a rollback."""
        self._shards[shard].upto = upto

    def upto(self, shard: int) -> int:
        return self._shards[shard].upto

    def _step_of(self, shard: int, times: np.ndarray, keys: np.ndarray, tentative: bool) -> EncodedOrder:
        columns = {"time": times, "key": keys, "value": self._chance.random(len(keys))}
        schema = self.input.schema.arrow
        batch = pa.RecordBatch.from_arrays([pa.array(columns[c.name]).cast(c.type) for c in schema], schema=schema)
        return self.order(shard, Step({self.input.name: batch}, self._shards[shard].upto, tentative, False, ()))

    # Sending orders and reading answers

    def give(self, orders: Iterable[EncodedOrder]) -> None:
        """Send orders, in their order, without waiting for answers."""
        for order in orders:
            self.given[order.shard, order.place] = time.perf_counter()
            self._producer.produce(self._orders, order.data, partition=order.shard)
            self._producer.poll(0)

    def take(self, orders: Iterable[EncodedOrder], within_s: float = 120.0) -> float:
        """Send orders, and wait until all are answered; returns the seconds from the first order to the last answer."""
        orders = list(orders)
        self.give(orders)
        deadline = time.monotonic() + within_s
        last = orders[-1]
        while (last.shard, last.place) not in self.answered:
            assert not self._failure, self._failure
            assert time.monotonic() < deadline, f"no answer to {last.place}\n{self.deployment.explain()}"
            time.sleep(0.001)
        return self.answered[last.shard, last.place] - self.given[orders[0].shard, orders[0].place]

    def latency(self, order: EncodedOrder) -> float:
        """Milliseconds from an order to its answer, which must have arrived."""
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
