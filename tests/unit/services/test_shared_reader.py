"""What the shared reader says of each log that it reads, and where it reads on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import KafkaConsumer, TopicPartition

from services.kafka.clusters import Cluster
from services.storage.shared_reader import LogFetch, SharedReader, _Places

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Consumer:
    """Notes what it is to read, and knows the ends that a test sets."""

    def __init__(self) -> None:
        self.assigned: list[list[TopicPartition]] = []
        self.ends: dict[TopicPartition, int] = {}
        self._subscription = SimpleNamespace(assignment={})

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned.append(sorted(places))
        known = self._subscription.assignment
        self._subscription.assignment = {place: known.get(place, SimpleNamespace(position=None)) for place in places}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._subscription.assignment[place].position = SimpleNamespace(offset=offset)

    def highwater(self, place: TopicPartition) -> int | None:
        return self.ends.get(place)


def record(offset: int) -> Any:
    return SimpleNamespace(offset=offset)


def test_each_fetch_says_from_where_to_where_and_marks_are_news_without_a_record() -> None:
    consumer = Consumer()
    places = _Places(cast(KafkaConsumer, consumer))
    places.choose({A, B}, {A, B}, {A: 3, B: 7}.__getitem__)
    assert consumer.assigned == [[A, B]] and not [*places.news({})], "nothing was fetched yet"
    consumer.ends = {A: 5, B: 7}
    found = [record(3), record(4)]
    consumer.seek(A, 5)
    assert dict(places.news({A: found})) == {A: LogFetch(3, found, 5, 5), B: LogFetch(7, (), 7, 7)}
    assert not [*places.news({})]
    consumer.seek(A, 6)
    assert dict(places.news({})) == {A: LogFetch(5, (), 6, 6)}, "past the mark of a transaction"


def test_one_that_joins_is_told_where_the_log_is_and_may_send_it_back() -> None:
    consumer = Consumer()
    places = _Places(cast(KafkaConsumer, consumer))
    places.choose({A}, {A}, lambda place: 9)
    consumer.ends = {A: 9}
    assert dict(places.news({})) == {A: LogFetch(9, (), 9, 9)}
    places.choose({A}, {A}, lambda place: 4)
    assert consumer.assigned == [[A]]
    assert dict(places.news({})) == {A: LogFetch(4, (), 4, 9)}
    places.choose({B}, {B}, lambda place: 0)
    assert consumer.assigned == [[A], [B]] and not [*places.news({})]
    places.choose({A, B}, {A}, lambda place: 2)
    consumer.ends[B] = 0
    assert dict(places.news({})) == {A: LogFetch(2, (), 2, 9), B: LogFetch(0, (), 0, 0)}


@dataclass
class Member:
    gather_us: int
    position: int = 0
    taken: int = 0

    def take_shared(self, fetched: LogFetch) -> bool:
        self.taken += len(fetched.records)
        return True

    def read_alone(self) -> None:
        raise AssertionError("nothing disturbs the others")


class Polled(Consumer):
    """Gives what a test sets, one batch a poll, and then ends the reader."""

    def __init__(self, batches: list[dict[TopicPartition, list[Any]]], end: Callable[[], None]) -> None:
        super().__init__()
        self.ends = {A: 99, B: 99}
        self.config = {"request_timeout_ms": 1_000}
        self._fetcher = SimpleNamespace(config={"max_partition_fetch_bytes": 1 << 20})
        self._batches, self._end = batches, end

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        if not self._batches:
            self._end()
            return {}
        return self._batches.pop(0)


@pytest.mark.parametrize(("others", "waits"), [(2_000, [0.002, 0.002]), (50_000, [0.01, 0.01]), (0, [])])
def test_what_comes_is_gathered_as_long_as_all_members_allow(
    monkeypatch: pytest.MonkeyPatch, others: int, waits: list[float]
) -> None:
    reader = SharedReader(cast(Cluster, SimpleNamespace(site="a")))
    monkeypatch.setattr(reader, "_thread", threading.current_thread())
    members = {A: Member(10_000), B: Member(others)}
    for place, member in members.items():
        reader.join(member, place)
    waited: list[float] = []

    def wait_for(predicate: Callable[[], bool], timeout: float) -> bool:
        waited.append(timeout)
        return predicate()

    monkeypatch.setattr(reader._changed, "wait_for", wait_for)
    batches: list[dict[TopicPartition, list[Any]]] = [{A: [record(0)]}, {}, {A: [record(1)], B: [record(0)]}]
    reader._read(cast(KafkaConsumer, Polled(batches, lambda: setattr(reader, "_is_closed", True))))
    assert [member.taken for member in members.values()] == [2, 1]
    assert waited == waits, "not after a fetch that has brought nothing"
