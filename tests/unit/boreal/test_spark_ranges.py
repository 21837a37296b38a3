"""A topic of results that plain Spark is to read and that does not exist, whatever kafka-python makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError

from boreal.model.errors import UserError
from boreal.spark import ranges
from boreal.spark.ranges import ResultTopic, TopicReader


class Consumer:
    """As kafka-python's: each request has one outcome, a value or an error."""

    def __init__(self, offsets: Any, topics: Any) -> None:
        self.assign = self.close = lambda *_, **__: None
        self.beginning_offsets = answering(offsets)
        self.topics = answering(topics)


def answering(outcome: Any) -> Callable[..., Any]:
    def answer(*_: Any, **__: Any) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return answer


def opened(monkeypatch: pytest.MonkeyPatch, offsets: Any, topics: Any) -> TopicReader:
    monkeypatch.setattr(ranges, "make_client", lambda *_: Consumer(offsets, topics))
    return TopicReader(ResultTopic("q.stable", "q", {}))


@pytest.mark.parametrize("offsets", [KafkaTimeoutError(), UnknownTopicOrPartitionError()])
@pytest.mark.parametrize("topics", [{"other.stable"}, UnknownTopicOrPartitionError()])
def test_a_topic_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch, offsets: Any, topics: Any) -> None:
    with pytest.raises(UserError, match=r"query: has no topic q\.stable"):
        opened(monkeypatch, offsets, topics)


def test_one_that_does_not_answer_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch, KafkaTimeoutError(), {"q.stable"})
