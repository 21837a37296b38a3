"""What a source knows of its topic beside the records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from services.hosting.connections import TopicClients
from services.source.calm_reader import CalmReader
from services.source.user_topic import UserTopic


def topic_of(ends: Any) -> UserTopic:
    clients = SimpleNamespace(cluster=None, ends=ends, groups=None, calm=SimpleNamespace(calm_s=0))
    return UserTopic(cast(TopicClients, clients), "in", 25)


def test_the_ends_are_asked_for_as_of_the_question() -> None:
    asked: list[Any] = []

    def ends(places: list[tuple[str, int]], since: int) -> dict[tuple[str, int], int]:
        asked.append((places, since))
        return {("in", 3): 30}

    assert topic_of(SimpleNamespace(ends=ends)).ends([1, 3], 77) == {3: 30}
    assert asked == [([("in", 1), ("in", 3)], 77)]


def test_the_lag_is_what_the_last_fetches_left_and_unknown_before() -> None:
    topic = topic_of(SimpleNamespace())
    ends: dict[int, int | None] = {0: None, 1: None, 2: None}
    topic._assigned = list(ends)
    topic._reader = cast(CalmReader, SimpleNamespace(known_end=ends.get, position={0: 5, 1: 7, 2: 9}.get))
    assert topic.lag() is None
    ends.update({0: 15, 1: 7})
    assert topic.lag() == 10
    ends[2] = 8  # older than what has been read since
    assert topic.lag() == 10


def test_new_partitions_are_looked_for_with_the_client_that_there_is_now() -> None:
    """One that was replaced remembers those of its time for ever."""
    clients = [SimpleNamespace(partitions_for_topic=lambda name, known=known: known) for known in ({0}, {0, 1})]
    followed: list[str] = []
    topic = topic_of(SimpleNamespace(ask=lambda question: question(clients[0]), follow=followed.append))
    assert topic.partitions() == [0]
    del clients[0]
    assert topic.partitions() == [0, 1] and followed == ["in"]
