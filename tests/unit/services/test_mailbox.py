"""The mailbox: only the newest of each key. The outbox: only the newest of each key, and of many only the last few."""

from __future__ import annotations

import queue
import threading
from contextlib import closing
from typing import Any, cast

import pytest

from services.kafka.clusters import Cluster
from services.kafka.mailbox import Mailbox, Outbox


def test_the_newest_of_each_key_is_taken_once() -> None:
    box: Mailbox[str, int] = Mailbox()
    box.put({"a": 1, "b": 2})
    box.put({"a": 3})
    assert box.take() == {"a": 3, "b": 2}
    assert box.take(timeout_s=0) == {}


Record = tuple[bytes | None, bytes]
"""Key and value."""


class Kafka:
    """A cluster, and its producer, which waits with each record until it is let go."""

    site = "a"

    def __init__(self) -> None:
        self.sent: queue.Queue[Record] = queue.Queue()
        self.room = threading.Semaphore(0)

    def make_producer(self, **options: Any) -> Kafka:
        return self

    def send(self, topic: str, value: bytes, key: bytes | None, partition: int) -> None:
        self.sent.put((key, value))
        self.room.acquire()

    def close(self, timeout: float) -> None:
        pass


@pytest.mark.parametrize(
    ("put", "sent"),
    [
        ([(None, b"1"), (None, b"2"), (None, b"3"), (None, b"4")], [(None, b"3"), (None, b"4")]),
        ([(b"k", b"1"), (b"k", b"2")], [(b"k", b"2")]),
    ],
    ids=["of those without a key the last ones", "the newest of a key"],
)
def test_what_waits_in_an_outbox_is_bounded(put: list[Record], sent: list[Record]) -> None:
    kafka = Kafka()
    with closing(Outbox(cast(Cluster, kafka), "topic", at_most=2)) as outbox:
        outbox.put(b"first")
        assert kafka.sent.get(timeout=10) == (None, b"first")  # the thread waits with it
        for key, value in put:
            outbox.put(value, key)
        kafka.room.release(9)
        assert [kafka.sent.get(timeout=10) for _ in sent] == sent
    assert kafka.sent.empty()


def test_what_comes_while_an_outbox_rests_is_sent_together() -> None:
    kafka, rests = Kafka(), list[str]()
    kafka.room.release(9)
    resting = threading.Event()

    def rest_s() -> float:
        rests.append("rest")
        resting.set()
        return 0.2 if len(rests) == 1 else 0.0

    with closing(Outbox(cast(Cluster, kafka), "topic", rest_s=rest_s)) as outbox:
        outbox.put(b"1")
        assert resting.wait(10)
        outbox.put(b"2")
        outbox.put(b"3")
        assert [kafka.sent.get(timeout=10)[1] for _ in range(3)] == [b"1", b"2", b"3"]
    assert len(rests) == 2


def test_who_waits_is_woken_by_the_next_and_by_the_end() -> None:
    box: Mailbox[str, int] = Mailbox()
    taken: queue.Queue[dict[str, int] | None] = queue.Queue()

    def take_twice() -> None:
        for _ in range(2):
            taken.put(box.take())

    threading.Thread(target=take_twice, daemon=True).start()
    box.put({"a": 1})
    assert taken.get(timeout=10) == {"a": 1}
    box.close()
    assert taken.get(timeout=10) is None
