"""What an egress does before it has rows."""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast

import pytest

import services.egress.egress as egress_module
from deployment.query_record import QueryRecord
from services.egress.egress import EgressProcess
from services.hosting.connections import Connections


class Clients:
    """Those of a site, which say what was made of them."""

    def __init__(self) -> None:
        self.made: list[str] = []

    @cached_property
    def row_producer(self) -> object:
        self.made.append("row_producer")
        return object()


class TailError(Exception):
    """The egress has come to the end of q.out."""


def test_the_client_that_writes_rows_is_made_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's may send only half a second after it was made: the first rows would wait for it."""
    clients, given_back = Clients(), list[Any]()
    logs = SimpleNamespace(lease=lambda topics: {"b": clients}, give_back=lambda leased: given_back.extend(leased))
    record = SimpleNamespace(name="q")
    settings = SimpleNamespace(site_names=["a", "b"], home="a")
    registry = SimpleNamespace(find=lambda name: record)
    connections = SimpleNamespace(settings=settings, clusters={"b": None}, logs=logs, registry=registry)

    def read(*args: Any) -> Any:
        assert clients.made == ["row_producer"]
        raise TailError

    monkeypatch.setattr(egress_module, "read_out_tail", read)
    with pytest.raises(TailError):
        EgressProcess(cast(Connections, connections), "egress.q.b", cast(QueryRecord, record), "b")
    assert given_back == [clients], "one that cannot begin holds no client"
