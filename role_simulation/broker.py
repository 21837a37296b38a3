"""One site's Kafka: topics, transactions, writers that are fenced, and deletion. It answers at once; what lies between it and
its clients is in `role_simulation.clients`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import OffsetOutOfRangeError, ProducerFencedError, UnknownTopicOrPartitionError

from role_simulation.scheduler import SimulatedThread
from role_simulation.threads import now_us

Headers = Sequence[tuple[str, bytes]]


@dataclass(eq=False)
class Transaction:
    """What one writer has sent since it began, in all partitions."""

    is_committed: bool = False
    """Whether it was committed."""
    places: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions that have records of it, each with the offset of the first."""


class StoredRecord(NamedTuple):
    """A record of a partition, or the mark of a transaction."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    transaction: Transaction | None
    is_mark: bool


class Sent(NamedTuple):
    """A record that a client sends, with its number among those that the client has sent to the partition."""

    place: TopicPartition
    number: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None


@dataclass(eq=False)
class Partition:
    """One partition's records from `start` on."""

    start: int = 0
    """The first offset that exists."""
    records: list[StoredRecord] = field(default_factory=list)
    """All records since the first; those before `start` can no longer be read."""
    offsets_of: dict[tuple[int, int], int] = field(default_factory=dict)
    """The offset of each record, by its writer and number: one that is sent again is not stored again."""
    open: list[Transaction] = field(default_factory=list)
    """Open transactions that have records here."""

    @property
    def end(self) -> int:
        return len(self.records)

    def stable_end(self, place: TopicPartition) -> int:
        """The offset of the first record whose transaction is not decided."""
        return min((transaction.places[place] for transaction in self.open), default=self.end)


class Broker:
    """All topics of a site, and its writers."""

    def __init__(self, site: str) -> None:
        self.site = site
        """The site's name."""
        self.partitions: dict[TopicPartition, Partition] = {}
        """All partitions of all topics."""
        self.is_up = True
        """Whether it answers."""
        self.on_append: list[Callable[[TopicPartition, int], None]] = []
        """Called with each record that is stored, with its offset."""
        self._epochs: defaultdict[str, int] = defaultdict(int)
        self._open: dict[str, Transaction] = {}
        self._waiting: defaultdict[TopicPartition, dict[SimulatedThread, int]] = defaultdict(dict)

    def create(self, topic: str, partitions: int) -> None:
        for number in range(partitions):
            self.partitions.setdefault(TopicPartition(topic, number), Partition())

    def partitions_of(self, topic: str) -> set[int]:
        return {place.partition for place in self.partitions if place.topic == topic}

    def at(self, place: TopicPartition) -> Partition:
        if place not in self.partitions:
            raise UnknownTopicOrPartitionError(place)
        return self.partitions[place]

    # Writing

    def append(self, sent: Sent, writer: int, name: str | None = None, epoch: int = 0) -> int:
        """Store a record, once; returns its offset. name, epoch: of a writer of transactions, as `begin_writer` gave them."""
        partition = self.at(sent.place)
        known = partition.offsets_of.get((writer, sent.number))
        if known is not None:
            return known
        transaction = None
        if name is not None:
            self.check_writer(name, epoch)
            transaction = self._open.setdefault(name, Transaction())
        offset = partition.offsets_of[writer, sent.number] = partition.end
        if transaction is not None and sent.place not in transaction.places:
            transaction.places[sent.place] = offset
            partition.open.append(transaction)
        stamp = now_us() // 1_000 if sent.timestamp_ms is None else sent.timestamp_ms
        partition.records.append(StoredRecord(stamp, sent.key, sent.value, sent.headers, transaction, False))
        for listener in self.on_append:
            listener(sent.place, offset)
        self._wake(sent.place)
        return offset

    def put(self, place: TopicPartition, value: bytes, key: bytes | None = None) -> int:
        """Store a record of a client that is outside of the simulation."""
        return self.append(Sent(place, self.at(place).end, key, value, (), None), writer=-1)

    def delete_before(self, place: TopicPartition, offset: int) -> int:
        """Delete the records before an offset; returns the first offset that exists."""
        partition = self.at(place)
        partition.start = max(partition.start, min(offset, partition.end))
        return partition.start

    # Transactions

    def begin_writer(self, name: str) -> int:
        """A new writer of this name: the one before is fenced, and its transaction aborted. Returns its epoch."""
        self._decide(name, is_committed=False)
        self._epochs[name] += 1
        return self._epochs[name]

    def check_writer(self, name: str, epoch: int) -> None:
        """ProducerFencedError if a later writer of this name has begun."""
        if self._epochs[name] != epoch:
            raise ProducerFencedError(name)

    def end_transaction(self, name: str, epoch: int, is_committed: bool) -> None:
        self.check_writer(name, epoch)
        self._decide(name, is_committed)

    def _decide(self, name: str, is_committed: bool) -> None:
        transaction = self._open.pop(name, None)
        if transaction is None:
            return
        transaction.is_committed = is_committed
        for place in transaction.places:
            partition = self.partitions[place]
            partition.open.remove(transaction)
            partition.records.append(StoredRecord(now_us() // 1_000, None, None, (), transaction, True))
            self._wake(place)

    # Reading

    def read(
        self, place: TopicPartition, offset: int, most: int, most_bytes: int, committed: bool
    ) -> tuple[list[ConsumerRecord], int]:
        """The records from an offset on, and the offset up to which everything has been read. OffsetOutOfRangeError if there is
        no such offset."""
        partition = self.at(place)
        if not partition.start <= offset <= partition.end:
            raise OffsetOutOfRangeError({place: offset})
        end = partition.stable_end(place) if committed else partition.end
        found: list[ConsumerRecord] = []
        size = 0
        while offset < end and len(found) < most and size < most_bytes:
            stored = partition.records[offset]
            is_aborted = committed and stored.transaction is not None and not stored.transaction.is_committed
            if not stored.is_mark and not is_aborted:
                found.append(_consumer_record(place, offset, stored))
                size += len(stored.value or b"")
            offset += 1
        return found, offset

    def committed(self, place: TopicPartition) -> Iterable[ConsumerRecord]:
        """All records that exist and are committed."""
        partition = self.at(place)
        return self.read(place, partition.start, partition.end, 1 << 60, True)[0]

    def end(self, place: TopicPartition, committed: bool) -> int:
        return self.at(place).stable_end(place) if committed else self.at(place).end

    def offset_since(self, place: TopicPartition, time_ms: int) -> tuple[int, int] | None:
        """The first record that was written at this time or later: its offset and its time; None if there is none."""
        partition = self.at(place)
        found = ((at, partition.records[at]) for at in range(partition.start, partition.end))
        return next(((at, each.timestamp_ms) for at, each in found if each.timestamp_ms >= time_ms), None)

    # Waiting

    def await_change(self, thread: SimulatedThread, places: Iterable[TopicPartition]) -> None:
        """Wake this thread when something is stored in one of these partitions."""
        for place in places:
            self._waiting[place][thread] = thread.turn

    def _wake(self, place: TopicPartition) -> None:
        for thread, turn in self._waiting.pop(place, {}).items():
            if thread.turn == turn:  # it has not been woken by another partition, or by the time
                thread.wake()


def _consumer_record(place: TopicPartition, offset: int, stored: StoredRecord) -> ConsumerRecord:
    return ConsumerRecord(
        place.topic,
        place.partition,
        None,
        offset,
        stored.timestamp_ms,
        0,
        stored.key,
        stored.value,
        list(stored.headers),
        None,
        -1,
        -1,
        -1,
    )
