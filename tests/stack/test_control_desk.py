"""The control topics of several queries over one client of a process, on a real broker."""

from __future__ import annotations

import queue
import time
from contextlib import closing

import pytest
from kafka.consumer.fetcher import ConsumerRecord

from services.kafka.clusters import Cluster
from services.kafka.control_desk import ControlDesk, Listener
from services.kafka.topics import TopicSpec, delete, ensure
from services.stack.servers import KafkaServer
from tests.stack.logs import cluster_of

pytestmark = pytest.mark.usefixtures("servers")

WITHIN_S = 120.0


class Ear:
    """Hears a topic; "bad" is not understood."""

    def __init__(self, desk: ControlDesk, topic: str) -> None:
        self.desk = desk
        self.listener = Listener(topic, self._take, lambda: 5)
        self.heard: queue.Queue[bytes] = queue.Queue()
        desk.listen(self.listener)

    def _take(self, record: ConsumerRecord) -> None:
        if record.value == b"bad":
            raise ValueError("bad")
        self.heard.put(record.value)

    def hear(self, value: bytes) -> None:
        """Say it until it is heard: what was said before the desk reads a topic is past."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            self.desk.send(self.listener.topic, value)
            try:
                while self.heard.get(timeout=0.2) != value:
                    pass
                return
            except queue.Empty:
                continue
        raise AssertionError(f"{value!r} is not heard")


@pytest.fixture
def topics(kafka: KafkaServer, fresh_name: str) -> list[str]:
    names = [f"{fresh_name}.{number}" for number in range(3)]
    ensure(cluster_of(kafka), [TopicSpec(name, 1) for name in names])
    return names


@pytest.fixture
def cluster(kafka: KafkaServer) -> Cluster:
    return cluster_of(kafka)


def test_each_hears_its_topic_whoever_comes_goes_or_is_not_understood(cluster: Cluster, topics: list[str]) -> None:
    with closing(ControlDesk(cluster)) as desk:
        first, second = Ear(desk, topics[0]), Ear(desk, topics[0])
        first.hear(b"1")
        assert second.heard.get(timeout=WITHIN_S) == b"1"
        other = Ear(desk, topics[1])
        other.hear(b"2")
        desk.send(topics[0], b"bad")
        first.hear(b"3")
        desk.leave(first.listener)
        second.hear(b"4")
        assert b"4" not in list(first.heard.queue)
        assert b"3" not in list(other.heard.queue)


def test_a_topic_that_is_gone_silences_no_other(cluster: Cluster, topics: list[str]) -> None:
    with closing(ControlDesk(cluster)) as desk:
        gone, other = Ear(desk, topics[0]), Ear(desk, topics[1])
        gone.hear(b"1")
        other.hear(b"2")
        delete(cluster, topics[:1])
        for n in range(20):
            desk.send(topics[0], b"to nobody")
            other.hear(b"%d" % n)
        new = Ear(desk, topics[2])
        new.hear(b"3")
