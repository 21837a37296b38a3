"""A change of a query whose commit Kafka leaves unanswered: it is made once, whether it was written or not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError

from deployment.query_record import QueryRecord, read_query_record
from services.kafka.queries import QueryRegistry


class Topic:
    """boreal.queries with one query, as a home site's cluster. The first commit ends with `error`; is_written: whether it
    counts nevertheless."""

    def __init__(self, error: Exception, is_written: bool) -> None:
        self.error: Exception | None = error
        self.is_written = is_written
        self.record = QueryRecord("q", {}, 1)

    def get(self, timeout: float) -> None:
        """What Kafka says of a record that was sent."""

    def make_writer(self, transactional_id: str, answered_within_ms: int) -> Producer:
        return Producer(self)


class Producer:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.init_transactions = self.begin_transaction = self.close = lambda *_, **__: None

    def send(self, _: str, value: bytes, **__: Any) -> SimpleNamespace:
        _, sent = read_query_record(b"q", value)
        assert sent is not None
        self._sent = sent
        return SimpleNamespace(get=self._topic.get)

    def commit_transaction(self) -> None:
        error, self._topic.error = self._topic.error, None
        if error is None or self._topic.is_written:
            self._topic.record = self._sent
        if error is not None:
            raise error


def restarted(topic: Any, monkeypatch: pytest.MonkeyPatch) -> QueryRecord | None:
    """A change that must not be made twice."""
    registry = QueryRegistry(topic)
    monkeypatch.setattr(registry, "load", lambda: {"q": topic.record})
    return registry.update("q", lambda old: replace(old, restarts=old.restarts + 1) if old else None)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_change_whose_commit_is_not_answered_is_made_once(is_written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(KafkaError("Unhandled error in EndTxnResponse: [Error -1] UnknownError"), is_written)
    changed = restarted(topic, monkeypatch)
    assert changed is not None and (changed.restarts, topic.record.restarts) == (1, 1)


def test_a_commit_that_ends_with_another_error_is_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaTimeoutError):
        restarted(Topic(KafkaTimeoutError("no answer"), True), monkeypatch)


def test_a_record_that_is_not_taken_in_time_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Topic):
        def get(self, timeout: float) -> None:
            raise KafkaTimeoutError("Timeout after waiting for 0 secs.")

    with pytest.raises(KafkaTimeoutError, match=r"boreal\.queries has not taken the record of q within 10 s"):
        restarted(Full(KafkaError(), False), monkeypatch)


def test_a_change_that_is_no_longer_wanted_after_an_unanswered_commit_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    topic: Any = Topic(KafkaError("UnknownError"), is_written=False)
    registry = QueryRegistry(topic)
    monkeypatch.setattr(registry, "load", lambda: {"q": topic.record})
    wanted = iter([replace(topic.record, restarts=1), topic.record])
    assert registry.update("q", lambda old: next(wanted)) == topic.record == QueryRecord("q", {}, 1)
