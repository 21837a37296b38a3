"""What an egress does before it has rows."""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

import services.egress.egress as egress_module
from boreal.model.errors import UserError
from boreal.query.plan import Plan
from deployment.query_record import QueryRecord
from services.egress.egress import EgressProcess
from services.egress.out import RowTopics
from services.hosting.connections import Connections
from services.hosting.process import ExitRequest
from services.hosting.starts import Starts
from services.kafka.clusters import Cluster


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
    connections = SimpleNamespace(settings=settings, clusters={"b": None}, logs=logs, registry=registry, starts=Starts())

    def read(*args: Any) -> Any:
        assert clients.made == ["row_producer"]
        raise TailError

    monkeypatch.setattr(egress_module, "read_out_tail", read)
    with pytest.raises(TailError):
        EgressProcess(cast(Connections, connections), "egress.q.b", cast(QueryRecord, record), "b")
    assert given_back == [clients], "one that cannot begin holds no client"


class Topic:
    """A topic of stable rows, or one that cannot be opened."""

    open: ClassVar[list[Topic]] = []
    refused: ClassVar[str] = ""

    def __init__(self, cluster: object, topic: str, *others: object) -> None:
        if topic == self.refused:
            raise UserError("records.registry", "main", "is not known", "name another one")
        self.open.append(self)

    def close(self) -> None:
        self.open.remove(self)


@pytest.mark.parametrize("refused", ["q.records", "q.debezium"])
def test_an_egress_of_which_one_topic_cannot_be_opened_holds_none(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Topic, "refused", refused)
    for name in ("StableTopic", "LatestTopic"):
        monkeypatch.setattr(egress_module, name, Topic)
    for name in ("DebeziumForm", "schemas"):
        monkeypatch.setattr(egress_module, name, lambda *_: None)
    egress = object.__new__(EgressProcess)
    egress.query, egress.site, egress.clusters = "q", "a", {"a": cast(Cluster, None)}
    egress.exit_request, egress._known = ExitRequest(), cast(QueryRecord, None)
    settings = SimpleNamespace(home="a", site_names=("a",))
    egress.connections = cast(Connections, SimpleNamespace(settings=settings, commits=None, turns=None))
    output = SimpleNamespace(schema=None)
    egress.plan = cast(Plan, SimpleNamespace(latest=True, debezium=True, output=output, output_key=("k",)))
    monkeypatch.setattr(egress, "_record_form", lambda wanted: None)
    record = SimpleNamespace(query=SimpleNamespace(records=object()))
    egress.rows = RowTopics()
    with pytest.raises(UserError):
        egress._open_finals(cast(QueryRecord, record))
        egress._open_tables()
    egress.rows.close()
    assert not Topic.open
