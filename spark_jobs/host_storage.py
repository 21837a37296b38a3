"""Storage for an operator host in a Python worker: its orders are in Kafka, snapshots and copies of its state in Redis.

Writes to Redis are done by a thread, so that a batch never waits for them (R19); reads from either wait for a limited time.
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
"""How long a read from Kafka or Redis may take before the batch fails, and the job is restarted."""

UPLOAD_S = 60.0
"""How long writes of a checkpoint are retried."""

RETRY_S = 0.5
SNAPSHOTS_KEPT = 2

_logger = logging.getLogger("boreal.spark.places")


class TopicOrders:
    """The `OrderLog` of one partition. is_order(offset, data): whether a record is an order; other records are skipped, as they
    were the first time."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, is_order: Callable[[int, bytes], bool]) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(topic, partition)
        self._is_order = is_order

    def read(self, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        with closing(self._cluster.make_consumer()) as consumer:
            consumer.assign([self._partition])
            consumer.seek(self._partition, max(first, consumer.beginning_offsets([self._partition])[self._partition]))
            answered_at = time.monotonic()
            while consumer.position(self._partition) < end:
                for records in consumer.poll(timeout_ms=200).values():
                    answered_at = time.monotonic()
                    for record in records:
                        if record.offset < end and self._is_order(record.offset, record.value):
                            yield record.offset, record.value
                if time.monotonic() - answered_at > ASK_S:
                    raise KafkaTimeoutError(f"{self._partition} could not be read up to {end}")


class StoredSnapshots:
    """The `Snapshots` of one host. log: a unique name of the log that its orders come from; snapshots of the same owner that
    were made from another log are ignored."""

    def __init__(self, store: CheckpointStore, keeper: CheckpointUploader, owner: str, log: str) -> None:
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
            _logger.warning("no snapshot of %s can be read: %s", self._owner, error)
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


class CheckpointUploader:
    """Uploads checkpoints in a thread: the newest of each owner, with retries for at most UPLOAD_S."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._waiting: dict[str, tuple[Checkpoint, int]] = {}
        self._has_news = threading.Condition()
        self._is_closed = False
        threading.Thread(target=self._run, name="uploader", daemon=True).start()

    def keep(self, checkpoint: Checkpoint, count: int) -> None:
        """Queue a checkpoint; returns at once. count: how many of the owner's checkpoints the store keeps afterwards."""
        with self._has_news:
            self._waiting[checkpoint.instance] = checkpoint, count
            self._has_news.notify()

    def close(self) -> None:
        """End the thread, once it has uploaded what is queued."""
        with self._has_news:
            self._is_closed = True
            self._has_news.notify()

    def _run(self) -> None:
        while True:
            with self._has_news:
                self._has_news.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                owner = next(iter(self._waiting))
                checkpoint, count = self._waiting.pop(owner)
            self._upload(checkpoint, count)

    def _upload(self, checkpoint: Checkpoint, count: int) -> None:
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
        _logger.warning("checkpoint %d of %s is not stored: the store does not answer", number, owner)


def make_fetch(store: CheckpointStore, within_s: float = ASK_S) -> Callable[[str, int], bytes]:
    """A `reconcile.remote.Fetch` that reads from the store. Its Unreachable: the store did not answer within this time."""

    def fetch(owner: str, number: int) -> bytes:
        given_up = time.monotonic() + within_s
        while True:
            try:
                return store.get(owner, number).state
            except StoreUnavailableError as error:
                if time.monotonic() > given_up:
                    raise Unreachable(f"checkpoint {number} of {owner} cannot be read: {error}") from None
                _logger.warning("checkpoint %d of %s cannot be read yet: %s", number, owner, error)
                time.sleep(RETRY_S)

    return fetch
