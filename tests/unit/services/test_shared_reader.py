"""What the shared reader says of each log that it reads, and where it reads on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kafka import KafkaConsumer, TopicPartition

from services.storage.shared_reader import LogFetch, _Places

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
