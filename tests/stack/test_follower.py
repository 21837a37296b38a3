"""Following a topic, and saying things in one, on a real Kafka."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import closing

import pytest
from kafka.consumer.fetcher import ConsumerRecord

from services.kafka.clusters import Cluster
from services.kafka.follower import TopicFollower
from services.kafka.mailbox import Outbox
from services.kafka.topics import TopicSpec, delete, ensure
from services.stack.servers import KafkaServer
from tests.stack.logs import cluster_of

pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture
def cluster(kafka: KafkaServer, fresh_name: str) -> Cluster:
    cluster = cluster_of(kafka)
    ensure(cluster, [TopicSpec(fresh_name, 1)])
    return cluster


def put(cluster: Cluster, topic: str, *values: bytes) -> None:
    with closing(cluster.make_producer()) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush()


def into(heard: queue.Queue[bytes]) -> Callable[[ConsumerRecord], None]:
    def take(record: ConsumerRecord) -> None:
        if record.value == b"bad":
            raise ValueError("bad")
        heard.put(record.value)

    return take


@pytest.mark.parametrize("rest_ms", [0, 100])
def test_it_hands_on_what_the_topic_holds_and_what_comes_and_passes_over_what_is_not_understood(
    cluster: Cluster, fresh_name: str, rest_ms: int
) -> None:
    heard: queue.Queue[bytes] = queue.Queue()
    put(cluster, fresh_name, b"1", b"bad", b"2")
    with closing(TopicFollower(cluster, fresh_name, into(heard), rest_ms=rest_ms)) as follower:
        assert follower.is_current.wait(30)
        assert [heard.get_nowait() for _ in range(2)] == [b"1", b"2"]
        put(cluster, fresh_name, b"3")
        assert heard.get(timeout=30) == b"3"


def test_a_topic_that_was_made_anew_is_followed_from_its_beginning(cluster: Cluster, fresh_name: str) -> None:
    heard: queue.Queue[bytes] = queue.Queue()
    put(cluster, fresh_name, *(b"old" for _ in range(9)))
    with closing(TopicFollower(cluster, fresh_name, into(heard))):
        assert [heard.get(timeout=30) for _ in range(9)] == [b"old"] * 9
        delete(cluster, [fresh_name])
        ensure(cluster, [TopicSpec(fresh_name, 1)])
        put(cluster, fresh_name, b"new")
        assert heard.get(timeout=60) == b"new"


def test_an_outbox_sends_in_order_and_a_record_without_a_key_replaces_none(cluster: Cluster, fresh_name: str) -> None:
    heard: queue.Queue[bytes] = queue.Queue()
    with closing(TopicFollower(cluster, fresh_name, into(heard))), closing(Outbox(cluster, fresh_name, at_most=8)) as outbox:
        for number in range(5):
            outbox.put(b"%d" % number)
        assert [heard.get(timeout=30) for _ in range(5)] == [b"%d" % number for number in range(5)]
