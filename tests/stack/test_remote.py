"""A node's side of operator hosts elsewhere, on a real broker: what is missed for good ends the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from boreal.query.planner import plan
from boreal.query.spec import Mode, load_query
from deployment.layout import Layout
from deployment.operator_hosts import answers_topic, orders_topic
from logs.memory_checkpoints import MemoryCheckpointStore
from reconcile.events import Answered, InstanceId
from reconcile.orders import Answer, Begin, Place, encode_answer
from reconcile.parts import in_parts
from services.hosting.order_channel import OrderChannel
from services.hosting.process import EXIT_BEGIN_ANEW
from services.kafka.clusters import Cluster
from services.kafka.topics import delete, ensure, query_topics
from services.stack.servers import KafkaServer
from tests.stack.lives import cluster_of
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")


@dataclass
class Remote:
    """The hosts of a replica, which nobody runs. codes: with which it would have ended its process."""

    cluster: Cluster
    layout: Layout
    codes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.orders, self.answers = (name(self.layout.plan.query, "r0") for name in (orders_topic, answers_topic))
        instances = self.layout.remote_instances("r0")
        ensure(self.cluster, [spec for spec in query_topics(self.layout)["a"] if spec.name in (self.orders, self.answers)])
        self.who = instances[0]
        self.hosts = OrderChannel(self.cluster, self.layout.plan, "r0", instances, MemoryCheckpointStore(), self.codes.append)


@pytest.fixture
def remote(kafka: KafkaServer, fresh_name: str) -> Iterator[Remote]:
    spec = {
        "name": fresh_name,
        "streams": {"s": {"topic": "s", "time": "at", "schema": {"n": "int"}}},
        "operators": {"some": {"filter": "s", "where": "n > 1"}},
        "output": "some",
        "delay_threshold": "3s",
        "engine": "spark",
    }
    made = Remote(cluster_of(kafka), Layout(plan(load_query(spec)), ("a",)))
    yield made
    made.hosts.close()


def test_an_order_that_kafka_refuses_ends_the_process(remote: Remote) -> None:
    with closing(remote.cluster.make_admin()) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, remote.orders, {"max.message.bytes": "50"})])
    remote.hosts.begin(lambda who, answered: None)
    remote.hosts.give(remote.who, Place(1, 1), Begin(1, Mode.OVERLAY_REDO, None, None))
    wait_until(lambda: remote.codes == [1], "the refusal is noticed")


def test_an_answer_that_cannot_be_taken_ends_the_process(remote: Remote) -> None:
    """A thread that ends alone would leave a node that waits for its hosts for ever."""

    def refuse(who: InstanceId, answered: Answered) -> None:
        raise KeyError(who)

    remote.hosts.begin(refuse)
    place = Place(1, 1)
    with closing(remote.cluster.make_producer()) as producer:
        for record in in_parts(place, encode_answer(place, Answer({}, None))):
            producer.send(remote.answers, record, partition=0)
        producer.flush()
    wait_until(lambda: remote.codes == [1], "it is noticed")


def test_answers_that_are_gone_before_they_are_heard_begin_a_new_life(remote: Remote) -> None:
    with closing(remote.cluster.make_producer()) as producer:
        for _ in range(5):
            producer.send(remote.answers, b"an answer of another life", partition=0)
        producer.flush()
    remote.hosts.begin(lambda who, answered: None)
    [spec] = [spec for spec in query_topics(remote.layout)["a"] if spec.name == remote.answers]
    delete(remote.cluster, [remote.answers])
    with closing(remote.cluster.make_admin()) as admin:
        wait_until(lambda: remote.answers not in admin.list_topics(), "the topic is gone")
    ensure(remote.cluster, [spec])
    wait_until(lambda: remote.codes == [EXIT_BEGIN_ANEW], "the loss is noticed")
