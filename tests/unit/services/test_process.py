"""What every process does alike: it says how it is, whatever happens."""

from __future__ import annotations

import itertools
import json
import queue
from contextlib import closing
from typing import Any, cast

from services.clusters import Cluster
from services.process import StatusPublisher


class Kafka:
    """A cluster, and its producer."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def producer(self, **options: Any) -> Kafka:
        return self

    def send(self, topic: str, value: bytes, **options: Any) -> None:
        self.said.put(json.loads(value))

    def close(self, **options: Any) -> None:
        pass


def test_a_status_that_cannot_be_made_once_is_not_the_last() -> None:
    tries = itertools.count()

    def make_status() -> dict[str, Any]:
        if next(tries) == 0:
            raise RuntimeError("dictionary changed size during iteration")
        return {"ready": True}

    kafka = Kafka()
    with closing(StatusPublisher(cast(Cluster, kafka), "node.q.r0", make_status)) as publisher:
        publisher.now()
        assert kafka.said.get(timeout=10)["query"] == "q"
