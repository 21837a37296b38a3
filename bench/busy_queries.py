"""Queries with rows at a steady rate, each with a topic of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka

_FEED_S = 0.01
_BATCHES_PER_S = 400
"""So many batches of rows come in a second at most, of all topics together. A broker takes as much time for a batch of five
rows as for one of fifty: for a batch of each of twenty topics every 10 ms, it takes half a core."""


def busy_query(name: str) -> dict[str, Any]:
    """A filter that all rows of the topic `in.NAME` pass, with X = 1 s and two replicas."""
    schema = {"k": "int"}
    return {
        "name": name,
        "streams": {"rows": {"topic": f"in.{name}", "time": "at", "time_unit": "us", "schema": schema}},
        "operators": {"some": {"filter": "rows", "where": "k >= 0"}},
        "output": "some",
        "delay_threshold": "1s",
        "replicas": 2,
        "engine": "native",
    }


def _is_taken(producer: confluent_kafka.Producer, topic: str, row: bytes) -> bool:
    """Whether there was room for a row."""
    try:
        producer.produce(topic, row, partition=0)
    except BufferError:
        return False
    return True


@contextmanager
def feeding(bootstrap: str, names: Sequence[str], rate: int) -> Iterator[None]:
    """While it holds, each of these queries gets so many rows a second."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 1})
    ended = threading.Event()

    def feed() -> None:
        began, sent = time.monotonic(), 0
        while not ended.wait(max(_FEED_S, len(names) / _BATCHES_PER_S)):
            due = int((time.monotonic() - began) * rate)
            for name in names:
                for number in range(sent, due):
                    row = b'{"at": %d, "k": %d}' % (time.time_ns() // 1_000, number)
                    while not _is_taken(producer, f"in.{name}", row):
                        producer.poll(_FEED_S)
                producer.poll(0)
            sent = due
        producer.flush()

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        ended.set()
        feeder.join()
