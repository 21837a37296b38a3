"""What a source knows of its topic beside the records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from services.hosting.connections import TopicClients
from services.source.calm_reader import CalmReader
from services.source.user_topic import UserTopic


def topic_of(ends: Any) -> UserTopic:
    ends.client = None
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
