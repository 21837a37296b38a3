"""Readers of users' topics on a real broker: those that share a consumer of librdkafka, and one that reads alone for a while,
return each record once and in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import TopicPartition
from kafka.errors import OffsetOutOfRangeError

from services.kafka.clusters import Cluster
from services.kafka.timekeeper import steady_us
from services.kafka.topics import TopicSpec, ensure
from services.source import grouped_reader
from services.source.grouped_reader import WINDOW_US, GroupedReader, make_reader
from services.stack.servers import KafkaServer
from services.storage.record_group import RecordGroups
from tests.stack.logs import cluster_of
from tests.waiting import wait

pytestmark = pytest.mark.usefixtures("servers")


class Topics:
    """Two topics of two partitions, and readers of them."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.names = [f"{name}.one", f"{name}.other"]
        ensure(cluster, [TopicSpec(topic, 2) for topic in self.names])
        self._groups = RecordGroups()
        self._producer = cluster.make_producer()
        self._readers: list[GroupedReader] = []
        self._written = 0

    def reader(self, topic: int, offsets: dict[int, int]) -> GroupedReader:
        reader = make_reader("librdkafka", self.cluster, self._groups, self.names[topic], 20, with_keys=False)
        assert isinstance(reader, GroupedReader)
        self._readers.append(reader)
        reader.read_from(offsets)
        return reader

    def put(self, topic: int, number: int, count: int) -> None:
        for _ in range(count):
            self._producer.send(self.names[topic], b"%d" % self._written, partition=number)
            self._written += 1
        self._producer.flush()

    def put_in_transaction(self, topic: int, number: int, count: int, is_committed: bool) -> None:
        with closing(self.cluster.make_producer(transactional_id=f"{self.names[topic]}.{self._written}")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for _ in range(count):
                producer.send(self.names[topic], b"in a transaction", partition=number)
            producer.flush()
            (producer.commit_transaction if is_committed else producer.abort_transaction)()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._groups.close()
        self._producer.close()


@pytest.fixture
def topics(kafka: KafkaServer, fresh_name: str) -> Iterator[Topics]:
    made = Topics(cluster_of(kafka), fresh_name)
    yield made
    made.close()


def taken(reader: GroupedReader, until: dict[int, int]) -> dict[int, list[int]]:
    """The offsets that are returned of each partition, until the reader has reached these."""
    offsets: dict[int, list[int]] = {number: [] for number in until}

    def has_come() -> bool:
        for number, records in reader.poll(50, 1_000).items():
            offsets[number] += records.offsets.tolist()
        return all(reader.position(number) >= end for number, end in until.items())

    assert wait(has_come)
    return offsets


def test_several_read_with_one_consumer_what_was_committed(topics: Topics) -> None:
    topics.put(1, 0, 4)
    one, other = topics.reader(0, {0: 0, 1: 0}), topics.reader(1, {0: 2, 1: 0})
    topics.put(0, 0, 5)
    assert taken(one, {0: 5}) == {0: [0, 1, 2, 3, 4]}
    assert taken(other, {0: 4}) == {0: [2, 3]}
    topics.put_in_transaction(0, 1, 3, is_committed=False)
    topics.put_in_transaction(0, 1, 2, is_committed=True)
    assert taken(one, {1: 7}) == {1: [4, 5]}, "and the mark of the second transaction is passed over"
    assert wait(lambda: not one.poll(20, 10) and one.known_end(1) == 7)
    assert not one.is_alone and not other.is_alone


def test_one_with_a_backlog_reads_alone_until_it_has_caught_up(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_reader, "MOST_WAITING", 500)
    topics.put(0, 0, 3_000)
    topics.put(0, 1, 2_000)
    slow, other = topics.reader(0, {0: 10, 1: 0}), topics.reader(1, {0: 0, 1: 0})
    topics.put(1, 1, 3)
    assert taken(other, {1: 3}) == {1: [0, 1, 2]}
    assert wait(lambda: slow._share is not None and slow._share._has_ended)
    assert taken(slow, {0: 3_000, 1: 2_000}) == {0: list(range(10, 3_000)), 1: list(range(2_000))}
    assert slow.is_alone and not other.is_alone
    monkeypatch.setattr(grouped_reader, "steady_us", lambda: steady_us() + WINDOW_US)
    slow.poll(0, 1_000)
    assert not slow.is_alone
    topics.put(0, 1, 4)
    assert taken(slow, {1: 2_004}) == {1: [2_000, 2_001, 2_002, 2_003]}


def test_records_that_were_deleted_are_told_to_who_reads_them_alone(topics: Topics) -> None:
    topics.put(0, 0, 10)
    topics.put(1, 0, 2)
    with closing(topics.cluster.make_admin()) as admin:
        admin.delete_records({TopicPartition(topics.names[0], 0): 6})
    one, other = topics.reader(0, {0: 0, 1: 0}), topics.reader(1, {0: 0, 1: 0})
    with pytest.raises(OffsetOutOfRangeError):
        assert wait(lambda: bool(one.poll(50, 10)))
    assert one.position(0) == 0
    one.read_from({0: 6, 1: 0})
    assert taken(one, {0: 10}) == {0: [6, 7, 8, 9]}
    assert taken(other, {0: 2}) == {0: [0, 1]}
