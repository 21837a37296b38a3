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
