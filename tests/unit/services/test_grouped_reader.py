"""Sources that take what comes read with one consumer of librdkafka; one that does not reads alone, and misses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast

import confluent_kafka
import pytest
from kafka.errors import OffsetOutOfRangeError

from intake.user_records import PartitionRecords
from services.kafka.timekeeper import steady_us
from services.source import grouped_reader
from services.source.grouped_reader import WINDOW_US, GroupedReader
from services.storage.record_group import RecordGroup, RecordGroups
from tests.librdkafka_messages import Message
from tests.waiting import wait

Place = tuple[str, int]


class Kafka:
    """The partitions of a cluster, and the positions of the only consumer that reads them."""

    def __init__(self) -> None:
        self.ends: dict[Place, int] = {}
        self.positions: dict[Place, int] = {}
        self.failing: dict[Place, int] = {}
        """The errors that are to be told, by the place that they concern."""
        self.failure: Exception | None = None
        self.consumers = 0

    def make(self, options: Mapping[str, Any]) -> Kafka:
        self.consumers += 1
        return self

    def incremental_assign(self, places: list[confluent_kafka.TopicPartition]) -> None:
        for place in places:
            assert (place.topic, place.partition) not in self.positions
            self.positions[place.topic, place.partition] = place.offset

    def incremental_unassign(self, places: list[confluent_kafka.TopicPartition]) -> None:
        for place in places:
            del self.positions[place.topic, place.partition]

    def poll(self, timeout: float) -> Message | None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        messages = self.consume(1, 0)
        if not messages:
            threading.Event().wait(0.005)
        return messages[0] if messages else None

    def consume(self, most: int, timeout: float) -> list[Message]:
        found: list[Message] = []
        for place, position in list(self.positions.items()):
            end = min(self.ends.get(place, 0), position + most - len(found))
            found += [Message(place, offset) for offset in range(position, end)]
            self.positions[place] = max(position, end)
        for place in list(self.failing):
            found.append(Message(place, 0, self.failing.pop(place)))
        return found

    def get_watermark_offsets(self, place: confluent_kafka.TopicPartition, cached: bool) -> tuple[int, int]:
        return 0, self.ends.get((place.topic, place.partition), -1)

    def close(self) -> None:
        self.positions.clear()


class Alone:
    """A client of one source's own, which reads the same cluster."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._offsets: dict[int, int] = {}
        self.is_closed = False

    def read_from(self, offsets: Mapping[int, int]) -> None:
        self._offsets = dict(offsets)

    def poll(self, timeout_ms: int, most: int) -> dict[int, PartitionRecords]:
        found = {}
        for number, offset in self._offsets.items():
            end = min(self._kafka.ends.get((self._topic, number), 0), offset + most)
            if end > offset:
                found[number] = PartitionRecords.of(cast(Any, [_Record(each) for each in range(offset, end)]))
                self._offsets[number] = end
        return found

    def position(self, number: int) -> int:
        return self._offsets[number]

    def known_end(self, number: int) -> int | None:
        return self._kafka.ends.get((self._topic, number))

    def close(self) -> None:
        self.is_closed = True


class _Record:
    def __init__(self, offset: int) -> None:
        self.offset, self.value, self.headers = offset, b"%d" % offset, None


class Sources:
    """Readers of one group, and what each has returned."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.group = RecordGroup({"client.id": "test"})
        self.alone: list[Alone] = []

    def make(self, topic: str, offsets: dict[int, int]) -> GroupedReader:
        def make_alone() -> Alone:
            self.alone.append(Alone(self.kafka, topic))
            return self.alone[-1]

        reader = GroupedReader(self.group, make_alone, topic, with_keys=False)
        reader.read_from(offsets)
        return reader


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    kafka = Kafka()
    monkeypatch.setattr(confluent_kafka, "Consumer", kafka.make)
    made = Sources(kafka)
    yield made
    made.group.close()


def taken(reader: GroupedReader, number: int, until: int) -> list[int]:
    """The offsets that a reader returns of a partition, until it has reached an offset."""
    offsets: list[int] = []

    def has_come() -> bool:
        for of, records in reader.poll(20, 7).items():
            if of == number:
                offsets.extend(records.offsets.tolist())
        return reader.position(number) >= until

    assert wait(has_come)
    return offsets


def pass_windows(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let so many times pass over which records are counted."""
    monkeypatch.setattr(grouped_reader, "steady_us", lambda: steady_us() + count * WINDOW_US)


def test_several_sources_read_with_one_consumer(sources: Sources) -> None:
    one, other = sources.make("a", {0: 5}), sources.make("b", {0: 0, 1: 3})
    assert one.known_end(0) is None
    sources.kafka.ends |= {("a", 0): 30, ("b", 0): 2, ("b", 1): 4}
    assert taken(one, 0, 30) == list(range(5, 30))
    assert taken(other, 1, 4) == [3]
    assert (other.position(0), other.known_end(1), one.known_end(0)) == (2, 4, 30)
    assert sources.kafka.consumers == 1 and not sources.alone
    one.close()
    assert wait(lambda: sources.kafka.positions.keys() == {("b", 0), ("b", 1)})


def test_one_that_does_not_take_what_comes_reads_alone_and_joins_again(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped_reader, "MOST_WAITING", 10)
    slow, other = sources.make("a", {0: 0}), sources.make("b", {0: 0})
    sources.kafka.ends |= {("a", 0): 40}
    assert wait(lambda: ("a", 0) not in sources.kafka.positions)
    sources.kafka.ends |= {("a", 0): 60, ("b", 0): 5}
    assert taken(other, 0, 5) == [0, 1, 2, 3, 4]
    assert taken(slow, 0, 60) == list(range(60)) and slow.is_alone
    pass_windows(monkeypatch, 1)
    slow.poll(0, 7)
    assert not slow.is_alone and sources.alone[0].is_closed
    sources.kafka.ends |= {("a", 0): 63}
    assert taken(slow, 0, 63) == [60, 61, 62]


def test_one_that_gets_much_goes_on_alone(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_reader, "MOST_WAITING", 10)
    monkeypatch.setattr(grouped_reader, "FEW_RECORDS", 10)
    much = sources.make("a", {0: 0})
    sources.kafka.ends |= {("a", 0): 40}
    assert wait(lambda: ("a", 0) not in sources.kafka.positions)
    assert taken(much, 0, 40) == list(range(40))
    sources.kafka.ends |= {("a", 0): 52}
    for windows in (1, 2):
        pass_windows(monkeypatch, windows)
        much.poll(0, 20)
        assert much.is_alone
    pass_windows(monkeypatch, 3)
    much.poll(0, 20)
    assert not much.is_alone


def test_large_records_that_wait_count_by_their_bytes(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_reader, "MOST_WAITING_BYTES", 10)
    sources.make("a", {0: 0})
    sources.kafka.ends |= {("a", 0): 40}
    assert wait(lambda: ("a", 0) not in sources.kafka.positions)


def test_a_partition_that_another_source_reads_is_read_alone(sources: Sources) -> None:
    first, second = sources.make("a", {0: 0, 1: 0}), sources.make("a", {0: 2, 1: 0})
    assert second.is_alone and not first.is_alone
    sources.kafka.ends |= {("a", 0): 4, ("a", 1): 1}
    assert (taken(first, 0, 4), taken(second, 0, 4)) == ([0, 1, 2, 3], [2, 3])


def test_what_is_said_of_one_topic_concerns_its_source_alone(sources: Sources) -> None:
    one, other = sources.make("a", {0: 0, 1: 0}), sources.make("b", {0: 0})
    sources.kafka.failing[("a", -1)] = confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE
    with pytest.raises(OffsetOutOfRangeError):
        assert wait(lambda: bool(one.poll(20, 7)))
    one.read_from({0: 3, 1: 0})
    sources.kafka.ends |= {("a", 0): 5, ("a", 1): 0, ("b", 0): 1}
    assert (taken(one, 0, 5), taken(other, 0, 1)) == ([3, 4], [0])


def test_where_the_consumer_fails_all_read_alone(sources: Sources) -> None:
    one = sources.make("a", {0: 0})
    sources.kafka.ends |= {("a", 0): 3}
    assert taken(one, 0, 3) == [0, 1, 2]
    sources.kafka.failure = RuntimeError("nobody knows why")
    assert wait(lambda: bool(one.poll(5, 7)) or one.is_alone)
    sources.kafka.ends |= {("a", 0): 5}
    assert taken(one, 0, 5) == [3, 4]
    other = sources.make("b", {0: 0})
    sources.kafka.ends |= {("b", 0): 1}
    assert taken(other, 0, 1) == [0] and not other.is_alone


def test_the_end_of_a_partition_is_a_position_too(sources: Sources) -> None:
    one = sources.make("a", {0: 0})
    sources.kafka.ends |= {("a", 0): 2}
    assert taken(one, 0, 2) == [0, 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Message, "offset", lambda self: 9 if self._error else self._offset)
        sources.kafka.failing[("a", 0)] = confluent_kafka.KafkaError._PARTITION_EOF
        assert wait(lambda: not one.poll(20, 7) and one.position(0) == 9)


def test_topics_whose_fetches_gather_for_other_times_have_other_consumers() -> None:
    groups, options = RecordGroups(), {"client.id": "test"}
    assert groups.of(options, 25) is groups.of(options, 25)
    assert groups.of(options, 25) is not groups.of(options, 5)
    groups.close()
