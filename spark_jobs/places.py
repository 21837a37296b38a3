"""Where an operator host in a Python worker finds its orders again, and where it keeps what it must not lose.

The orders lie in Kafka, snapshots and copies of the state in Redis. What goes to Redis goes there behind, so that a batch never
waits for it (R19); what is asked of either is waited for, for a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from boreal.model.errors import CorruptError
from logs.checkpoints import Checkpoint, CheckpointStore, StoreUnavailableError
from reconcile.remote import Unreachable
from services.kafka.clusters import Cluster

ASK_S = 10.0
"""How long Kafka or Redis may keep us waiting before the batch is given up, and the job begins anew."""

UPLOAD_S = 60.0
"""How long a copy of a state is kept for a store that does not take it."""

RETRY_S = 0.5
SNAPSHOTS_KEPT = 2

_logger = logging.getLogger("boreal.spark.places")


class TopicOrders:
    """The `OrderLog` of one partition. is_order: whether a record is one; others, which were passed over when they came, are
    passed over again."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, is_order: Callable[[int, bytes], bool]) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(topic, partition)
        self._is_order = is_order

    def read(self, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        with closing(self._cluster.make_consumer()) as consumer:
            consumer.assign([self._partition])
            consumer.seek(self._partition, max(first, consumer.beginning_offsets([self._partition])[self._partition]))
            heard = time.monotonic()
            while consumer.position(self._partition) < end:
                for records in consumer.poll(timeout_ms=200).values():
                    heard = time.monotonic()
                    for record in records:
                        if record.offset < end and self._is_order(record.offset, record.value):
                            yield record.offset, record.value
                if time.monotonic() - heard > ASK_S:
                    raise KafkaTimeoutError(f"{self._partition} could not be read up to {end}")


class StoredSnapshots:
    """The `Snapshots` of one host. log: the name of the very log that its orders come from; a snapshot that another log's
    orders have made, under the same owner, is none of ours."""

    def __init__(self, store: CheckpointStore, keeper: Keeper, owner: str, log: str) -> None:
        self._store = store
        self._keeper = keeper
        self._owner = owner
        self._log = log

    def latest(self, offset: int) -> tuple[int, bytes] | None:
        try:
            for number in reversed([number for number in self._store.numbers(self._owner) if number <= offset]):
                found = self._sound(number)
                if found is not None:
                    return number, found.state
        except StoreUnavailableError as error:
            _logger.warning("no snapshot of %s can be had: %s", self._owner, error)
        return None

    def keep(self, offset: int, snapshot: bytes) -> None:
        self._keeper.keep(Checkpoint(self._owner, offset, 0, 0, (), ((self._log, offset),), snapshot), SNAPSHOTS_KEPT)

    def _sound(self, number: int) -> Checkpoint | None:
        try:
            found = self._store.get(self._owner, number)
        except (KeyError, CorruptError) as error:
            _logger.warning("snapshot %d of %s cannot be used: %r", number, self._owner, error)
            return None
        return found if found.inputs == ((self._log, number),) else None


class Keeper:
    """Brings checkpoints to the store, in a thread: the newest of each owner, for UPLOAD_S at most."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._waiting: dict[str, tuple[Checkpoint, int]] = {}
        self._has_news = threading.Condition()
        threading.Thread(target=self._run, name="keeper", daemon=True).start()

    def keep(self, checkpoint: Checkpoint, count: int) -> None:
        """Returns at once. count: how many of the owner's checkpoints the store is to have afterwards."""
        with self._has_news:
            self._waiting[checkpoint.instance] = checkpoint, count
            self._has_news.notify()

    def _run(self) -> None:
        while True:
            with self._has_news:
                self._has_news.wait_for(lambda: self._waiting)
                owner = next(iter(self._waiting))
                checkpoint, count = self._waiting.pop(owner)
            self._bring(checkpoint, count)

    def _bring(self, checkpoint: Checkpoint, count: int) -> None:
        owner, number = checkpoint.instance, checkpoint.number
        given_up = time.monotonic() + UPLOAD_S
        while owner not in self._waiting and time.monotonic() < given_up:
            try:
                self._store.put(checkpoint)
                self._store.drop(owner, below=min(number, *self._store.numbers(owner)[-count:]))
                return
            except StoreUnavailableError as error:
                _logger.warning("checkpoint %d of %s waits for the store: %s", number, owner, error)
                time.sleep(RETRY_S)
        _logger.warning("checkpoint %d of %s is given up", number, owner)


def fetch_from(store: CheckpointStore) -> Callable[[str, int], bytes]:
    """A `reconcile.remote.Fetch`."""

    def fetch(owner: str, number: int) -> bytes:
        given_up = time.monotonic() + ASK_S
        while True:
            try:
                return store.get(owner, number).state
            except StoreUnavailableError as error:
                if time.monotonic() > given_up:
                    raise Unreachable(f"checkpoint {number} of {owner} cannot be asked for: {error}") from None
                _logger.warning("checkpoint %d of %s is waited for: %s", number, owner, error)
                time.sleep(RETRY_S)

    return fetch
