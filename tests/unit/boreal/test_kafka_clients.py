"""How clients of Kafka wait for their sockets."""

from __future__ import annotations

import selectors
import socket

import pytest

from boreal.client.kafka_clients import QuickSelector


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
