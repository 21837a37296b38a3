"""How clients of Kafka wait for their sockets."""

from __future__ import annotations

import selectors
import socket
import time

import pytest
from kafka import TopicPartition
from kafka.producer.record_accumulator import RecordAccumulator

from boreal.client.kafka_clients import (
    GONE_PAUSE_MS,
    LOOK_MS,
    METADATA_PAUSE_MS,
    QuickSelector,
    SteadyAccumulator,
    SteadyWaker,
)


def test_the_selector_knows_what_is_registered_also_after_it_was_closed() -> None:
    with QuickSelector() as selector, socket.socket() as one, socket.socket() as other:
        key = selector.register(one, selectors.EVENT_READ, "data")
        assert selector.get_key(one) == key
        with pytest.raises(KeyError):
            selector.get_key(other)
        one.close()
        assert selector.get_key(one) == key and selector.unregister(one) == key
        with pytest.raises((KeyError, ValueError)):
            selector.get_key(one)


def test_a_thread_that_is_woken_again_before_it_looks_is_woken_once_and_later_again() -> None:
    waker = SteadyWaker()
    try:
        for _ in range(3):
            waker.wakeup()
        assert waker._wakeup_r.recv(16, socket.MSG_PEEK) == b"\0"
        waker.poll(timeout_ms=10_000)
        with pytest.raises(BlockingIOError):
            waker._wakeup_r.recv(16)
        waker.wakeup()
        assert waker._wakeup_r.recv(16) == b"\0"
    finally:
        waker.close()


def test_what_comes_while_a_thread_looks_wakes_it_again() -> None:
    waker = SteadyWaker()

    async def look() -> None:
        waker.wakeup()

    try:
        waker.call_soon(look())
        waker.wakeup()
        waker.poll(timeout_ms=10_000)
        assert waker._wakeup_r.recv(16) == b"\0"
    finally:
        waker.close()


class Interrupted:
    """The socket by which a thread is woken. Another thread comes up just before it is read."""

    def __init__(self, waker: SteadyWaker) -> None:
        self._waker, self._socket = waker, waker._wakeup_r
        self.is_over = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv(self, size: int) -> bytes:
        if not self.is_over:
            self.is_over = True
            self._waker.wakeup()
        return self._socket.recv(size)

    def close(self) -> None:
        self._socket.close()


def test_who_wakes_a_thread_that_is_being_woken_takes_nothing_from_those_who_come_after() -> None:
    """The thread would sleep on with their work, until something else happens: a query was applied a minute late."""
    waker = SteadyWaker()
    try:
        waker.wakeup()
        waker._selector.unregister(waker._wakeup_r)
        waker._wakeup_r = Interrupted(waker)
        waker._selector.register(waker._wakeup_r, selectors.EVENT_READ, (None, None))
        waker.poll(timeout_ms=10_000)
        assert waker._wakeup_r.is_over
        waker.wakeup()
        assert waker._wakeup_r.recv(16) == b"\0"
    finally:
        waker.close()


class Leaders:
    """The leaders of partitions, as a producer knows them."""

    def __init__(self) -> None:
        self.of: dict[TopicPartition, int] = {}
        self.config: dict[str, int] = {}

    def leader_for_partition(self, place: TopicPartition) -> int | None:
        return self.of.get(place)


def test_a_topic_that_is_gone_is_not_looked_for_if_nothing_is_to_be_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And if something is, some twenty times a second: each look wakes the thread that looks."""
    at = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    gone, there = TopicPartition("gone", 0), TopicPartition("there", 0)
    leaders, waiting = Leaders(), RecordAccumulator(linger_ms=0, message_version=2)
    leaders.of[there] = 1
    waiting.__class__ = SteadyAccumulator
    _ = waiting._batches[gone], waiting._batches[there]
    assert waiting.ready(leaders)[::2] == (set(), False)
    for place in (gone, there):
        waiting.append(place, 0, None, b"v", [])
    nodes, look_s, asks = waiting.ready(leaders)
    assert (nodes, asks) == ({1}, True) and look_s <= LOOK_MS / 1_000
    nodes, look_s, asks = waiting.ready(leaders)
    assert (nodes, asks) == ({1}, False) and look_s <= LOOK_MS / 1_000
    at += LOOK_MS / 1_000
    assert waiting.ready(leaders)[2]
    leaders.of[gone] = 2
    assert leaders.config["retry_backoff_ms"] == GONE_PAUSE_MS
    assert waiting.ready(leaders)[::2] == ({1, 2}, False)
    assert leaders.config["retry_backoff_ms"] == METADATA_PAUSE_MS
