"""How kafka-python's producer behaves while a topic that it has written does not exist, or has no leader."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any
from unittest.mock import patch

import pytest
from kafka import TopicPartition

from boreal.client.kafka_clients import SteadyAccumulator
from services.kafka.topics import TopicSpec, delete, ensure
from services.stack.servers import KafkaServer
from tests.stack.lives import cluster_of
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")


def test_a_producer_sleeps_after_a_topic_that_it_has_written_is_deleted(kafka: KafkaServer, fresh_name: str) -> None:
    cluster = cluster_of(kafka)
    gone, there = f"{fresh_name}.gone", f"{fresh_name}.there"
    ensure(cluster, [TopicSpec(gone, 1), TopicSpec(there, 1)])
    looks = 0

    def look(self: SteadyAccumulator, *arguments: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return before(self, *arguments, **options)

    before = SteadyAccumulator.ready
    with closing(cluster.make_producer()) as producer, patch.object(SteadyAccumulator, "ready", look):
        for topic in (gone, there):
            producer.send(topic, b"v", partition=0).get(60)
        delete(cluster, [gone])

        def is_gone() -> bool:
            producer._metadata.request_update()
            return producer._metadata.leader_for_partition(TopicPartition(gone, 0)) is None

        wait_until(is_gone, every_s=0.1)
        producer.send(there, b"v", partition=0).get(60)
        looks = 0
        time.sleep(1)  # not a wait for anything: this is what the looks are counted in
        assert looks < 100, "kafka-python's looks ten thousand times"
