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


def send(producer: confluent_kafka.Producer, topic: str, row: bytes) -> None:
    """Give a producer a row; waits while there is no room."""
    while True:
        try:
            return producer.produce(topic, row, partition=0)
        except BufferError:
            producer.poll(_FEED_S)


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
                    send(producer, f"in.{name}", row)
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
