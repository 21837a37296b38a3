"""A node's connection to operator hosts in another process: it writes orders to one topic, and reads answers from another.

Orders are sent as frames are: pipelined, in order, and retried for ever. Answers are read from the end that the topic had when
the node began, since only answers to its own orders matter. The instance drops repeated answers, and those to another
incarnation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from boreal.model.errors import CorruptError
from boreal.query.plan import Plan
from deployment.operator_hosts import answers_topic, host_owner, orders_topic
from logs.checkpoints import CheckpointStore, StoreUnavailableError
from reconcile.events import Answered, InstanceId
from reconcile.orders import Order, Place, decode_answer, encode_order
from reconcile.parts import Parts, in_parts
from services.hosting.process import EXIT_BEGIN_ANEW
from services.kafka.clusters import Cluster, close_producer, log_retry

RETRY_S = 0.2
TRIM_S = 5.0
_POLL_MS = 200

_logger = logging.getLogger("boreal.remote")

AnswerCallback = Callable[[InstanceId, Answered], None]


class OrderChannel:
    """The channel to the operator hosts of a replica's instances; each instance has one partition of both topics.

    Call `begin` before the first order. `exit(code)` ends the process: the loss of an order that Kafka refuses, or of an answer
    that is deleted before it is read, cannot be repaired here.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        replica: str,
        instances: Sequence[InstanceId],
        store: CheckpointStore,
        exit: Callable[[int], None],
    ) -> None:
        self._cluster = cluster
        self._orders = orders_topic(plan.query, replica, plan.own_application)
        self._answers = answers_topic(plan.query, replica)
        self._instances = list(instances)
        self._partition = {who: at for at, who in enumerate(instances)}
        self._outputs = [{e.operator: e.schema for e in plan.fragment(who.fragment).outputs} for who in instances]
        self._store = store
        self._exit = exit
        self._parts = [Parts() for _ in instances]
        self._deliver: AnswerCallback = lambda who, answered: None
        self._producer: KafkaProducer = cluster.make_producer(linger_ms=0)
        self._next: dict[TopicPartition, int] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._listen, "answers"), (self._trim, "orders-trimmer"))
        ]

    def begin(self, deliver: AnswerCallback) -> None:
        """Deliver answers from now on. KafkaError if the cluster is out of reach."""
        self._deliver = deliver
        partitions = [TopicPartition(self._answers, at) for at in range(len(self._instances))]
        with closing(self._cluster.make_consumer()) as consumer:
            self._next = consumer.end_offsets(partitions)
        for thread in self._threads:
            thread.start()

    def give(self, who: InstanceId, place: Place, order: Order) -> None:
        """Send an order to an instance's operator host. Returns without waiting for Kafka."""
        for record in in_parts(place, encode_order(place, order)):
            sent = self._producer.send(self._orders, record, partition=self._partition[who])
            sent.add_errback(self._fail)

    def _fail(self, error: BaseException) -> None:
        if not self._stopping.is_set():
            _logger.error("%s does not take an order: %r", self._orders, error)
            self._exit(1)

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=2)
        close_producer(self._producer, 2)

    # Answers

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(self._cluster.make_consumer()) as consumer:
                    self._follow(consumer)
            except OffsetOutOfRangeError:
                _logger.error("answers in %s were deleted before they were read: restarting", self._answers)
                self._exit(EXIT_BEGIN_ANEW)
                return
            except (KafkaError, OSError) as error:
                log_retry(_logger, f"{self._answers} cannot be read", error)
                self._stopping.wait(RETRY_S)
            except Exception:
                # A node that does not read its hosts' answers would wait for ever.
                _logger.exception("the answers in %s cannot be processed", self._answers)
                self._exit(1)
                return

    def _follow(self, consumer: KafkaConsumer) -> None:
        """Read answers until we stop, or the consumer fails."""
        consumer.assign(list(self._next))
        for partition, offset in self._next.items():
            consumer.seek(partition, offset)
        while not self._stopping.is_set():
            for partition, records in consumer.poll(timeout_ms=_POLL_MS).items():
                for record in records:
                    self._next[partition] = record.offset + 1
                    self._hear(partition.partition, record.offset, record.value or b"")

    def _hear(self, at: int, offset: int, data: bytes) -> None:
        try:
            whole = self._parts[at].take(data)
            if whole is None:
                return
            place, answer = decode_answer(whole, self._outputs[at])
        except CorruptError as error:
            # The instance will notice the missing answer, and restart.
            _logger.error("offset %d of %s/%d is not an answer: %s", offset, self._answers, at, error)
            return
        self._deliver(self._instances[at], Answered(place, answer))

    # Trimming of orders that no host needs again

    def _trim(self) -> None:
        """Delete the orders before the older of the two newest snapshots: a restarted job repeats its last batch, which began
        no earlier."""
        while not self._stopping.wait(TRIM_S):
            needed = {}
            try:
                for who, at in self._partition.items():
                    numbers = self._store.numbers(host_owner(who))
                    if len(numbers) > 1:
                        needed[TopicPartition(self._orders, at)] = numbers[-2]
                if needed:
                    with closing(self._cluster.make_admin()) as admin:
                        admin.delete_records(needed)
            except (KafkaError, OSError, StoreUnavailableError) as error:
                log_retry(_logger, f"{self._orders} is not trimmed", error)
