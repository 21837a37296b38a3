"""Which rows q.stable is given, in which order, and what becomes of those that memory cannot hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from formats.client_headers import ID
from services.egress import stable as stable_module
from services.egress.registered import RegisteredForm
from services.egress.stable import StableTopic
from services.egress.tail import StableRow
from services.hosting.commits import CommitPace
from services.hosting.registry import RegistryError
from services.kafka.clusters import Cluster


class Form:
    """Of records of versions that a registry takes, or does not."""

    def __init__(self, *taken: int) -> None:
        self.taken = set(taken)

    def value(self, row: bytes, version: int) -> bytes:
        if version not in self.taken:
            raise RegistryError(f"version {version}")
        return row

    def close(self) -> None:
        pass


class Kafka:
    """A cluster, and its transactional producer: the ids of each transaction's rows. q_out is what q.out holds."""

    def __init__(self) -> None:
        self.transactions: list[list[int]] = []
        self.q_out: list[StableRow] = []
        self._under_way: list[int] = []

    def make_transaction_producer(self, transactional_id: str, **options: Any) -> Kafka:
        return self

    def begin_transaction(self) -> None:
        self._under_way = []

    def send(self, topic: str, value: bytes, headers: list[tuple[str, bytes]], **options: Any) -> None:
        self._under_way.append(int(dict(headers)[ID]))

    def commit_transaction(self) -> None:
        self.transactions.append(self._under_way)


def rows(first: int, upto: int) -> list[StableRow]:
    return [StableRow(id_, None, b"v" * 10, 0) for id_ in range(first, upto)]


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()

    def stable_rows(cluster: object, topic: str, start: int, end: int) -> Iterator[StableRow]:
        """In q.out, here, a row's offset is its id."""
        return iter(kafka.q_out[start:end])

    monkeypatch.setattr(stable_module, "stable_rows", stable_rows)
    monkeypatch.setattr(CommitPace, "interval_s", 0)
    return kafka


def stable_topic(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, next_id: int, form: Form | None = None) -> StableTopic:
    """What its thread does, the tests do themselves: `_work`."""
    monkeypatch.setattr(stable_module, "read_stable_tail", lambda *given: next_id)
    monkeypatch.setattr("threading.Thread.start", lambda thread: None)
    topic = StableTopic(cast(Cluster, kafka), "q.stable", "w", "q.out", lambda code: None, cast(RegisteredForm, form))
    topic.begin(1, 0, 0)
    return topic


def test_rows_that_q_stable_has_already_are_passed_over(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """R28: a life before has committed ids 0 to 4, and q.out gives them once more."""
    topic = stable_topic(kafka, monkeypatch, next_id=5)
    topic.put(rows(0, 3), 0)
    topic.put(rows(3, 8), 3)
    assert topic._work() and kafka.transactions == [[5, 6, 7]]
    assert topic.next_id == 8


def test_rows_that_are_lost_are_counted(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """R27: a gap is never silent."""
    topic = stable_topic(kafka, monkeypatch, next_id=2)
    topic.put(rows(6, 8), 6)
    assert topic._work() and kafka.transactions == [[6, 7]]
    assert (topic.next_id, topic.n_skipped) == (8, 4)


def test_what_memory_does_not_hold_is_read_from_q_out_in_its_place(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """And before what came after it."""
    monkeypatch.setattr(stable_module, "WAITING_BYTES", 35)
    kafka.q_out = rows(0, 6)
    topic = stable_topic(kafka, monkeypatch, next_id=0)
    topic.put(rows(0, 2), 0)
    topic.put(rows(2, 4), 2)
    topic.put(rows(4, 6), 4)
    assert topic._work() and (topic._waiting or topic._is_behind)
    assert topic._work()
    assert kafka.transactions == [[0, 1, 2, 3], [4, 5]]
    assert topic.next_id == 6 and topic.n_skipped == 0


def test_rows_before_those_of_a_version_whose_schema_is_refused_do_not_wait_for_it(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all others wait in their order, also those of a version that the registry knows."""
    form = Form(1)
    topic = stable_topic(kafka, monkeypatch, 0, form)
    topic.put([*rows(0, 2), *(row._replace(version=b"2") for row in rows(2, 4)), *rows(4, 6)], 0)

    def wait(error: RegistryError) -> None:
        assert str(error) == "version 2" and kafka.transactions == [[0, 1]] and topic.next_id == 2
        form.taken.add(2)

    monkeypatch.setattr(topic, "_wait_for", wait)
    assert topic._work() and kafka.transactions == [[0, 1], [2, 3, 4, 5]]
    assert topic.next_id == 6 and topic.n_skipped == 0


@pytest.mark.parametrize(("interval_s", "waits"), [(0, False), (3600, True)])
def test_a_transaction_waits_for_more_rows_as_the_pace_of_the_process_says(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, interval_s: float, waits: bool
) -> None:
    """But not for more than one takes, nor at the end."""
    monkeypatch.setattr(stable_module, "TRANSACTION_ROWS", 4)
    topic = stable_topic(kafka, monkeypatch, 0)
    monkeypatch.setattr(CommitPace, "interval_s", interval_s)
    topic.put(rows(0, 1), 0)
    assert topic._work() and kafka.transactions == [[0]]
    topic.put(rows(1, 3), 1)
    assert (topic._next_at > time.monotonic()) is waits and not topic._has_much
    topic.put(rows(3, 6), 3)
    assert topic._has_much and topic._work() and kafka.transactions == [[0], [1, 2, 3, 4, 5]]
    assert not topic._has_much
    topic.put(rows(6, 7), 6)
    topic._is_closed = True
    assert topic._work() and kafka.transactions[-1] == [6]
