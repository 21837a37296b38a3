"""A query that does not exist, as a client asks about it, whatever kafka-python makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError

from boreal.client.site_readers import _check_that_it_exists
from boreal.model.errors import UserError


class Consumer:
    """As kafka-python's, for a topic that does not exist: the request for all topics fails `failures` times."""

    def __init__(self, error: Exception, failures: int) -> None:
        self._error, self._left = error, failures

    def beginning_offsets(self, *_: Any, **__: Any) -> Any:
        raise self._error

    def topics(self) -> set[str]:
        self._left -= 1
        if self._left >= 0:
            raise UnknownTopicOrPartitionError
        return {"sales.stable"}


@pytest.mark.parametrize("error", [KafkaTimeoutError(), UnknownTopicOrPartitionError()])
@pytest.mark.parametrize(("failures", "known"), [(0, "sales"), (2, "sales"), (9, "no query has results yet")])
def test_a_misspelt_query_is_an_error_also_where_the_request_for_all_topics_fails(
    error: Exception, failures: int, known: str
) -> None:
    consumer: Any = Consumer(error, failures)
    with pytest.raises(UserError, match=r"there is no topic sale\.stable") as refused:
        _check_that_it_exists(consumer, TopicPartition("sale.stable", 0))
    assert known in refused.value.fix


def test_a_topic_that_exists_is_read_though_its_offsets_take_long() -> None:
    consumer: Any = Consumer(KafkaTimeoutError(), 1)
    _check_that_it_exists(consumer, TopicPartition("sales.stable", 0))
