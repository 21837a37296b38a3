"""Where topics end: each leader is asked alone, once for all. One that is silent, or a topic that is gone, delays no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, TopicAuthorizationFailedError

from intake.end_questions import ASK_SILENT_AGAIN_US, PATIENCE_MS, SILENT_PATIENCE_MS, Place
from services.kafka.clusters import Cluster
from services.kafka.end_desk import STUCK_US, EndDesk

STEP_US = 1_000


class Broker:
    """A client of two brokers: partitions of even numbers are led by broker 0, others by broker 1."""

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self.gone: set[str] = set()
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        self.asked: list[tuple[int, list[Place], int]] = []
        self.updates = 0
        self.assigned: set[str] = set()
        self.on_request: Callable[[], None] = lambda: None
        cluster = SimpleNamespace(leader_for_partition=self._leader, request_update=self._update)
        self._client = SimpleNamespace(cluster=cluster)
        self._fetcher = SimpleNamespace(_send_list_offsets_request=self._answer)
        self._manager = SimpleNamespace(call_soon=lambda *call: call, wait_for=None, cluster=cluster)
        self._net = SimpleNamespace(run=lambda _, call, patience_ms: call[0](*call[1:], patience_ms))

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = {place.topic for place in places}

    def close(self, **_: Any) -> None:
        self.assigned = set()

    def _leader(self, place: TopicPartition) -> int | None:
        return None if place.topic in self.unknown else place.partition % 2

    def _update(self) -> None:
        self.updates += 1

    def _answer(self, leader: int, stamps: dict[TopicPartition, Any], patience_ms: float) -> tuple[dict[Any, Any], set[Any]]:
        self.on_request()
        self.asked.append((leader, sorted((of.topic, of.partition) for of in stamps), round(patience_ms)))
        if leader in self.silent:
            raise KafkaTimeoutError
        if refused := self.refused & {of.topic for of in stamps}:
            raise TopicAuthorizationFailedError(refused)
        found = {of: SimpleNamespace(offset=10 * of.partition) for of in stamps if of.topic not in self.gone}
        return found, stamps.keys() - found.keys()


class Desk:
    def __init__(self) -> None:
        self.broker = Broker()
        self.clients = 0
        self.now = 0
        self.desk = EndDesk(cast(Cluster, SimpleNamespace(make_consumer=self._make_client)), lambda: self.now)

    def _make_client(self, **_: Any) -> Broker:
        self.clients += 1
        return self.broker

    def ends(self, *places: Place) -> dict[Place, int]:
        """The ends as of the next moment."""
        self.now += STEP_US
        self.broker.asked.clear()
        return self.desk.ends(places, self.now)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    for topic in ("p", "q"):
        made.desk.follow(topic)
    yield made
    made.desk.close()


def test_a_silent_leader_is_asked_seldom_and_briefly_and_the_other_as_ever(desk: Desk) -> None:
    places = [("p", number) for number in range(4)]
    whole = {place: 10 * place[1] for place in places}
    half = {place: end for place, end in whole.items() if not place[1] % 2}
    assert desk.ends(*places) == whole
    desk.broker.silent = {1}
    assert desk.ends(*places) == half
    assert desk.broker.asked == [(0, places[::2], PATIENCE_MS), (1, places[1::2], PATIENCE_MS)]
    assert desk.ends(*places) == half and [leader for leader, _, _ in desk.broker.asked] == [0]
    desk.now += ASK_SILENT_AGAIN_US
    assert desk.ends(*places) == half and desk.broker.asked[-1] == (1, places[1::2], SILENT_PATIENCE_MS)
    desk.broker.silent = set()
    desk.now += ASK_SILENT_AGAIN_US
    assert desk.ends(*places) == whole
    assert desk.ends(*places) == whole and desk.broker.asked[-1][2] == PATIENCE_MS


def test_a_topic_that_is_gone_costs_its_neighbour_nothing(desk: Desk) -> None:
    desk.broker.gone = {"q"}
    assert desk.ends(("p", 2), ("q", 2)) == {("p", 2): 20} and desk.broker.updates == 1
    desk.broker.unknown = {"q"}
    desk.now += 1_000_000
    for _ in range(9):
        assert desk.ends(("p", 2), ("q", 2)) == {("p", 2): 20}
    assert desk.broker.updates == 2, "it is not looked for at every tick"


def test_a_topic_that_may_not_be_read_costs_its_neighbour_nothing(desk: Desk) -> None:
    desk.broker.refused = {"q"}
    for requests in (2, 1):
        assert desk.ends(("p", 2), ("q", 2)) == {("p", 2): 20}
        assert len(desk.broker.asked) == requests, "what is refused is not asked at every tick"
    desk.broker.refused, desk.now = set(), desk.now + ASK_SILENT_AGAIN_US
    assert desk.ends(("p", 2), ("q", 2)) == {("p", 2): 20, ("q", 2): 20}


def test_sources_that_ask_at_the_same_tick_are_answered_by_one_request(desk: Desk) -> None:
    for place in (("p", 0), ("q", 0)):
        desk.desk.ends([place], 0)
    desk.now = 100
    for place in (("p", 0), ("q", 0)):
        desk.desk.ends([place], 100)
    desk.now, found, others = 200, [], []
    desk.broker.asked.clear()

    def ask_too() -> None:
        others.append(threading.Thread(target=lambda: found.append(desk.desk.ends([("q", 0)], 200))))
        others[-1].start()

    desk.broker.on_request = ask_too
    found.append(desk.desk.ends([("p", 0)], 200))
    others[0].join()
    assert found == [{("p", 0): 0}, {("q", 0): 0}] and desk.broker.asked == [(0, [("p", 0), ("q", 0)], PATIENCE_MS)]


def test_the_leaders_of_open_topics_are_known_and_of_no_others(desk: Desk) -> None:
    assert desk.desk.ask(lambda client: client) is desk.broker
    desk.desk.follow("p")
    desk.desk.leave("p")
    desk.desk.leave("q")
    assert desk.broker.assigned == {"p"}


def test_a_client_that_nobody_answers_is_replaced_and_one_that_a_leader_answers_is_not(desk: Desk) -> None:
    desk.ends(("p", 0), ("p", 1))
    desk.broker.silent = {1}
    for _ in range(3):
        desk.now += STUCK_US
        desk.ends(("p", 0), ("p", 1))
    assert desk.clients == 1
    desk.broker.silent = {0, 1}
    desk.now += STUCK_US
    desk.ends(("p", 0), ("p", 1))
    desk.broker.silent = set()
    desk.now += ASK_SILENT_AGAIN_US
    assert len(desk.ends(("p", 0), ("p", 1))) == 2 and desk.clients == 2
    assert desk.broker.assigned == {"p", "q"}


def test_who_asks_a_client_that_is_replaced_meanwhile_is_told_to_ask_again_and_asks_the_new_one(desk: Desk) -> None:
    """kafka-python's says only that it is closed, which would end the source."""

    def close_and_ask(client: Broker) -> None:
        desk.desk.close()
        raise RuntimeError("NetworkSelector closed!")

    with pytest.raises(KafkaConnectionError) as raised:
        desk.desk.ask(close_and_ask)
    assert raised.value.retriable
    assert desk.desk.ask(lambda client: client.assigned) == {"p", "q"} and desk.clients == 2

    def fail(client: Broker) -> None:
        raise RuntimeError("another one")

    with pytest.raises(RuntimeError, match="another one"):
        desk.desk.ask(fail)


def test_one_that_is_replaced_while_it_looks_for_ends_looks_again(desk: Desk) -> None:
    closes = iter([True])

    def close_once() -> None:
        if next(closes, False):
            desk.desk.close()
            raise RuntimeError("NetworkSelector closed!")

    desk.broker.on_request = close_once
    assert desk.ends(("p", 2)) == {("p", 2): 20} and desk.clients == 2
