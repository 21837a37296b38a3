"""For how long messages of many queries gather."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from kafka.errors import KafkaConnectionError

from services.kafka.clusters import Cluster
from services.kafka.control_desk import ControlDesk, Listener


class Away:
    """A cluster out of reach."""

    site = "a"

    def make_consumer(self, **options: Any) -> Any:
        raise KafkaConnectionError("out of reach")


@pytest.fixture
def load() -> list[int]:
    """The degrees to which the process is loaded; empty: not at all."""
    return []


@pytest.fixture
def desk(load: list[int]) -> Iterator[ControlDesk]:
    made = ControlDesk(cast(Cluster, Away()), lambda: sum(load))
    yield made
    made.close()


def listen(desk: ControlDesk, topic: str, gather_ms: list[int]) -> None:
    desk.listen(Listener(topic, lambda record: None, lambda: gather_ms[-1]))


def test_the_next_fetch_waits_as_long_as_all_listeners_allow_at_that_moment(desk: ControlDesk, load: list[int]) -> None:
    one, other = [10], [50]
    listen(desk, "p", one)
    listen(desk, "q", other)
    assert desk._fetch_rest_ms() == 10
    one.append(70)
    assert desk._fetch_rest_ms() == 50
    load.append(1)
    assert desk._fetch_rest_ms() == 50
    one.append(5)
    assert desk._fetch_rest_ms() == 20, "at least so long while the process is loaded"


def test_what_is_sent_gathers_only_in_a_loaded_process(desk: ControlDesk, load: list[int]) -> None:
    listen(desk, "p", [70])
    assert desk._send_rest_ms() == 0
    load.append(2)
    assert desk._send_rest_ms() == 70


def test_without_listeners_nothing_is_waited_for(desk: ControlDesk, load: list[int]) -> None:
    assert desk._send_rest_ms() == desk._fetch_rest_ms() == 0
    load.append(1)
    assert desk._send_rest_ms() == 20
