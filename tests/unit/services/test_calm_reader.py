"""A topic that is read alone, then with others, then alone again: each record once, whatever sends it back."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from intake.calm import MANY_RECORDS, MOST_WAITING
from intake.user_records import PartitionRecords
from services.source.calm_reader import CalmReader
from services.source.record_readers import RecordReader
from services.storage.shared_reader import LogFetch, Member, SharedReader

GATHER_S = 0.02


@dataclass(frozen=True)
class Record:
    offset: int
    value: bytes = b"x"
    headers: tuple[Any, ...] = ()
    key: bytes | None = None
    timestamp: int = 0


class Topic:
    """Topic "in" with two partitions of so many records, the clients that read it alone, and the shared reader."""

    def __init__(self) -> None:
        self.calm_s = 0.0
        self.ends = {0: 0, 1: 0}
        self.failure: Exception | None = None
        self.made: list[Alone] = []
        self.are_clients_slow = False
        """Whether a client that is made from now on fetches nothing until `is_slow` is unset."""
        self.seats: defaultdict[TopicPartition, list[Member]] = defaultdict(list)
        self.reached: dict[TopicPartition, int] = {}

    def make(self) -> RecordReader:
        if self.failure is not None:
            raise self.failure
        self.made.append(Alone(self))
        return self.made[-1]

    @property
    def open(self) -> int:
        return sum(not one.is_closed for one in self.made)

    # As the shared reader

    def join(self, member: Member, place: TopicPartition) -> None:
        self.seats[place].append(member)
        self.reached[place] = min(member.position, self.reached.get(place, member.position))

    def leave(self, member: Member, place: TopicPartition) -> None:
        self.seats[place] = [other for other in self.seats[place] if other is not member]

    def fetch(self) -> None:
        """Give all members what there is."""
        for place in [*self.seats]:
            start, end = self.reached[place], self.ends[place.partition]
            fetched = LogFetch(start, cast(Any, [Record(offset) for offset in range(start, end)]), end, end)
            self.reached[place] = end
            for seat in list(self.seats[place]):
                if not seat.take_shared(fetched):
                    self.leave(seat, place)
                    seat.read_alone()

    @property
    def members(self) -> int:
        return sum(map(len, self.seats.values()))


class Alone:
    """A client that reads the topic alone."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._positions: dict[int, int] = {}
        self.is_closed = False
        self.is_slow = topic.are_clients_slow

    def read_from(self, offsets: Mapping[int, int]) -> None:
        self._positions = dict(offsets)

    def poll(self, timeout_ms: int, most: int) -> dict[int, PartitionRecords]:
        found: dict[int, PartitionRecords] = {}
        if self.is_slow:
            return found
        for number, position in self._positions.items():
            if offsets := range(position, self._topic.ends[number])[:most]:
                found[number] = PartitionRecords(np.array(offsets), [b"x"] * len(offsets))
                self._positions[number] = offsets[-1] + 1
        return found

    def position(self, number: int) -> int:
        return self._positions[number]

    def known_end(self, number: int) -> int | None:
        return None if self.is_slow else self._topic.ends[number]

    def close(self) -> None:
        self.is_closed = True


class Reading:
    """A reader of the topic, and the offsets that it has returned."""

    def __init__(self, topic: Topic) -> None:
        self.reader = CalmReader(topic.make, cast(SharedReader, topic), "in", False)
        self.reader.read_from({0: 0, 1: 0})
        self.seen: dict[int, list[int]] = {0: [], 1: []}

    def poll(self, timeout_ms: int = 0, gather_s: Callable[[], float] = lambda: 0.0) -> int:
        found = self.reader.poll(timeout_ms, 1_000, gather_s)
        for number, records in found.items():
            self.seen[number] += records.offsets.tolist()
            assert self.reader.position(number) == records.end
        return len(found)

    def share(self, topic: Topic) -> None:
        """Go on until it is shared."""
        for _ in range(3):
            self.poll()
            topic.fetch()
        assert self.reader.is_shared and not any(one is self.reader._alone for one in topic.made)

    def check(self, topic: Topic) -> None:
        """All that the topic holds was returned, once."""
        assert self.seen == {number: [*range(end)] for number, end in topic.ends.items()}


@pytest.fixture
def topic() -> Topic:
    return Topic()


def test_a_calm_topic_is_shared_and_its_client_closed(topic: Topic) -> None:
    reading = Reading(topic)
    topic.ends = {0: 3, 1: 1}
    reading.poll()
    reading.share(topic)
    assert topic.open == 0 and topic.members == 2
    for end in (4, 6):
        topic.ends[0] = end
        topic.fetch()
        reading.poll(1_000)
    reading.check(topic)
    reading.reader.close()
    assert topic.members == 0


def test_a_topic_with_many_records_is_not_shared(topic: Topic) -> None:
    topic.calm_s = 3_600.0
    reading = Reading(topic)
    for _ in range(9):
        reading.poll()
    assert topic.members == 0 and topic.open == 1


def test_what_came_in_both_ways_is_returned_once(topic: Topic) -> None:
    reading = Reading(topic)
    reading.poll()
    reading.poll()
    assert topic.members == 2 and topic.open == 1, "it has joined, and reads alone still"
    topic.ends = {0: 5, 1: 2}
    topic.fetch()
    topic.ends = {0: 7, 1: 2}
    reading.poll()
    assert topic.open == 1, "the shared reader is behind"
    topic.fetch()
    topic.ends = {0: 9, 1: 3}
    topic.fetch()
    reading.poll()
    assert reading.reader.is_shared
    reading.poll(1_000)
    reading.check(topic)


def test_two_readers_at_different_places_get_each_record_once(topic: Topic) -> None:
    topic.ends = {0: 4, 1: 4}
    ahead, behind = Reading(topic), Reading(topic)
    ahead.poll()
    ahead.share(topic)
    topic.ends = {0: 8, 1: 4}
    topic.fetch()
    behind.poll()
    behind.share(topic)
    topic.ends = {0: 9, 1: 9}
    topic.fetch()
    for reading in (ahead, behind):
        while reading.poll(100):
            pass
        reading.check(topic)
    ahead.reader.close()
    assert topic.members == 2


def burst(topic: Topic, reading: Reading) -> None:
    topic.ends[0] += MANY_RECORDS + 1
    topic.fetch()


def slowness(topic: Topic, reading: Reading) -> None:
    for _ in range(MOST_WAITING + 1):
        topic.ends[1] += 1
        topic.fetch()


def error(topic: Topic, reading: Reading) -> None:
    topic.ends[0] += 1
    topic.fetch()
    topic.ends[0] += 1
    for seats in [*topic.seats.values()]:
        for seat in list(seats):
            seat.read_alone()


def skipped(topic: Topic, reading: Reading) -> None:
    topic.ends[0] += 2
    topic.reached[TopicPartition("in", 0)] += 1
    topic.fetch()


def absence(topic: Topic, reading: Reading) -> None:
    reading.reader.read_alone()


@pytest.mark.parametrize("cause", [burst, slowness, error, skipped, absence])
def test_it_reads_alone_again_and_loses_and_repeats_nothing(topic: Topic, cause: Callable[[Topic, Reading], None]) -> None:
    reading = Reading(topic)
    reading.share(topic)
    reading.reader._calmness._calm_us = 3_600_000_000
    cause(topic, reading)
    for _ in range(3):
        reading.poll(50)
    assert topic.open == 1 and topic.members == 0 and not reading.reader.is_shared
    topic.ends[0] += 1
    reading.poll()
    reading.check(topic)
    reading.reader._calmness._calm_us = 0
    reading.share(topic)
    topic.ends[1] += 1
    topic.fetch()
    reading.poll(1_000)
    reading.check(topic)


def test_records_come_without_a_pause_until_its_own_client_has_fetched(topic: Topic) -> None:
    reading = Reading(topic)
    reading.share(topic)
    reading.reader._calmness._calm_us = 3_600_000_000
    topic.are_clients_slow = True
    burst(topic, reading)
    for _ in range(5):
        assert reading.poll(50), "what the shared reader brings is returned"
        topic.ends = {number: end + 3 for number, end in topic.ends.items()}
        topic.fetch()
    assert topic.open == 1 and topic.members == 2 and not reading.reader.is_shared
    assert reading.reader.known_end(1) == topic.ends[1], "as the shared reader says"
    topic.made[-1].is_slow = False
    reading.poll()
    assert topic.members == 0
    topic.ends[0] += 1
    for _ in range(3):
        reading.poll()
    reading.check(topic)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_record_comes_once_and_in_order(topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    reading = Reading(topic)
    for _ in range(400):
        match chance.randrange(8):
            case 0 | 1:
                topic.ends[chance.randrange(2)] += chance.choice((1, 5, MANY_RECORDS + 1))
            case 2 | 3:
                topic.fetch()
            case 4:
                topic.are_clients_slow = chance.random() < 0.5
                for one in topic.made:
                    one.is_slow = topic.are_clients_slow
            case 5 if chance.random() < 0.1:
                chance.choice((error, absence, skipped))(topic, reading)
            case _:
                reading.poll()
    topic.are_clients_slow = False
    for one in topic.made:
        one.is_slow = False
    for _ in range(5):
        topic.fetch()
        reading.poll()
    reading.check(topic)


def test_while_no_client_can_be_made_it_stays_where_it_is(topic: Topic) -> None:
    reading = Reading(topic)
    reading.share(topic)
    error(topic, reading)
    topic.failure = KafkaTimeoutError("away")
    for _ in range(3):
        reading.poll(10)
    assert reading.seen == {0: [0], 1: []} and reading.reader.position(0) == 1
    topic.failure = None
    reading.poll()
    reading.check(topic)


def test_a_refusal_is_told(topic: Topic) -> None:
    reading = Reading(topic)
    reading.share(topic)
    error(topic, reading)
    topic.failure = TopicAuthorizationFailedError("in")
    reading.poll(10)
    with pytest.raises(TopicAuthorizationFailedError):
        reading.poll(10)


def test_records_are_gathered_until_the_next_look_and_it_is_told_how_long(topic: Topic) -> None:
    reading = Reading(topic)
    reading.share(topic)
    topic.ends[0] = 1
    topic.fetch()
    began = time.monotonic()
    reading.poll(1_000, gather_s=lambda: GATHER_S)
    assert time.monotonic() - began >= GATHER_S and reading.seen[0] == [0]
    assert reading.reader.waited_us >= 1_000_000 * GATHER_S
    topic.ends[0] = 2
    topic.fetch()
    began = time.monotonic()
    reading.poll(round(1_000 * GATHER_S), gather_s=lambda: 3_600.0)
    assert time.monotonic() - began >= GATHER_S and reading.seen[0] == [0, 1], "not longer than the poll"
    assert reading.poll(0, gather_s=lambda: 3_600.0) == 0 and reading.reader.waited_us == 0
    reading.reader.read_from({0: 2, 1: 0})
    assert topic.members == 0 and topic.open == 1


def test_what_came_before_a_burst_does_not_wait(topic: Topic) -> None:
    reading = Reading(topic)
    reading.share(topic)
    slowness(topic, reading)
    reading.poll(3_600_000, gather_s=lambda: 3_600.0)
    assert len(reading.seen[1]) > MOST_WAITING


def test_a_poll_of_a_shared_topic_that_waits_ends_when_it_is_woken(topic: Topic) -> None:
    reading = Reading(topic)
    reading.share(topic)
    reading.reader.wake()
    assert reading.poll(timeout_ms=600_000) == 0
    topic.ends[0] += 1
    topic.fetch()
    assert reading.poll() == 1
    reading.check(topic)


def test_who_reads_alone_is_not_woken_and_does_not_mind(topic: Topic) -> None:
    reading = Reading(topic)
    reading.reader.wake()
    assert reading.poll() == 0
