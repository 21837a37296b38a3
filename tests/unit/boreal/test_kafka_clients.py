"""How clients of Kafka wait for their sockets."""

from __future__ import annotations

import selectors
import socket

import pytest

from boreal.client.kafka_clients import QuickSelector, SteadyWaker


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
