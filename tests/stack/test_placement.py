"""Placement records in a real topic: one writer for each site, and readers who see what it has committed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from deployment.placement_record import Assignment, PlacementRecord
from services.kafka.clusters import Cluster
from services.kafka.placement import PlacementWriter, follow_placement
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.kafka.topics import PLACEMENT, ensure, system_topics
from services.stack.servers import KafkaServer

PATIENCE_S = 60.0


class Site:
    """A site of the shared broker that no other test has, and what its workers hear."""

    def __init__(self, kafka: KafkaServer, name: str) -> None:
        self.name = name
        self.home = Cluster("a", ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)}), "test")
        ensure(self.home, [spec for spec in system_topics() if spec.name == PLACEMENT])
        self.heard: queue.SimpleQueue[PlacementRecord | str] = queue.SimpleQueue()
        self.follower = follow_placement(self.home, name, self.heard.put, self.heard.put)

    def record(self, number: int) -> PlacementRecord:
        return PlacementRecord(self.name, number, "1", {"node.q.r0": Assignment("w", "id", number, 1, "c")})

    def hear(self) -> PlacementRecord | str:
        return self.heard.get(timeout=PATIENCE_S)


class Writer:
    """A writer, what it has found, and whether it is fenced."""

    def __init__(self, site: Site) -> None:
        self.found: queue.SimpleQueue[PlacementRecord | None] = queue.SimpleQueue()
        self.fenced = threading.Event()
        self.writer = PlacementWriter(site.home, site.name, self.found.put, self.fenced.set)

    def find(self) -> PlacementRecord | None:
        return self.found.get(timeout=PATIENCE_S)


@pytest.fixture
def site(kafka: KafkaServer, fresh_name: str) -> Iterator[Site]:
    made = Site(kafka, fresh_name)
    yield made
    made.follower.close()


def test_a_later_writer_finds_what_the_earlier_one_wrote_and_fences_it(site: Site) -> None:
    first = Writer(site)
    assert first.find() is None
    first.writer.put(site.record(1))
    assert site.hear() == site.record(1)
    second = Writer(site)
    assert second.find() == site.record(1)
    first.writer.put(site.record(99))
    assert first.fenced.wait(PATIENCE_S)
    second.writer.put(site.record(2))
    assert site.hear() == site.record(2)
    assert not second.fenced.is_set()
    second.writer.close()


def test_a_record_that_cannot_be_obeyed_is_told_and_skipped(site: Site) -> None:
    with closing(site.home.make_producer()) as producer:
        for value in (site.record(1).to_json(), b"not JSON", b'{"v": 7}'):
            producer.send(PLACEMENT, value, key=site.name.encode(), partition=0).get(timeout=PATIENCE_S)
        producer.send(PLACEMENT, b"of another site", key=b"other", partition=0).get(timeout=PATIENCE_S)
    assert site.hear() == site.record(1)
    assert str(site.hear()).startswith("is damaged")
    assert site.hear() == "is of version 7, and this program reads version 1"
    writer = Writer(site)
    assert writer.find() == site.record(1)
    writer.writer.put(site.record(2))
    assert site.hear() == site.record(2)
    writer.writer.close()
