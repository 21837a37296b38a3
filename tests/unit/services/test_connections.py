"""What the roles of one process share: one that fails must not take it from the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from boreal.model.frames import LogId
from deployment.query_record import QueryRecord
from services.hosting.process import StatusDesk, StatusPublisher
from services.kafka.clusters import Cluster
from services.kafka.queries import OnChange, QueryRegistry, SharedWatch
from services.storage.log_clients import AppendRefusedError, LogClients, SiteClients
from tests.unit.services.test_process import Kafka


class Clients:
    """A cluster that makes producers, and says which of them are open."""

    site = "a"

    def __init__(self) -> None:
        self.open: list[object] = []

    def make_producer(self, **options: Any) -> Any:
        producer = SimpleNamespace(_sender=SimpleNamespace(force_close=lambda: None))
        producer.close = lambda timeout: self.open.remove(producer)
        self.open.append(producer)
        return producer


def made() -> tuple[Clients, LogClients]:
    cluster = Clients()
    return cluster, LogClients({"a": cast(Cluster, cluster)})


def reject(clients: SiteClients, topic: str) -> None:
    clients.refuse(AppendRefusedError(LogId("s", "", 0), topic, ValueError("too large")))


def test_roles_share_the_clients_of_a_site_until_all_have_ended() -> None:
    cluster, logs = made()
    one, other = logs.lease({"p"}), logs.lease({"q"})
    assert one["a"] is other["a"] and one["a"].producer is other["a"].producer
    logs.give_back(one.values())
    assert len(cluster.open) == 1
    logs.give_back(other.values())
    assert len(cluster.open) == 1, "the next role finds them warm"
    logs.close()
    assert not cluster.open


def test_after_a_rejected_append_others_get_new_clients_and_the_query_its_own() -> None:
    cluster, logs = made()
    bad, good = logs.lease({"p.log"}), logs.lease({"q.log"})
    assert bad["a"].producer is good["a"].producer
    reject(bad["a"], "p.log")
    logs.give_back(bad.values())
    good_again = logs.lease({"q.log"})
    assert good_again["a"].refusal is None and good_again["a"] is not good["a"]
    bad_again = logs.lease({"p.log"})
    assert bad_again["a"] is not good_again["a"]
    assert bad_again["a"].producer is not good_again["a"].producer
    reject(bad_again["a"], "p.log")
    assert logs.lease({"q.log"})["a"] is good_again["a"], "it cannot stop the others again"
    logs.give_back(good.values())
    logs.give_back(bad_again.values())
    assert len(cluster.open) == 1, "what nobody uses is closed"


def test_after_a_rejected_append_clients_that_nobody_uses_any_more_are_closed() -> None:
    cluster, logs = made()
    bad = logs.lease({"p.log"})
    assert bad["a"].producer
    reject(bad["a"], "p.log")
    logs.give_back(bad.values())
    assert len(cluster.open) == 1, "the next role may find them warm"
    logs.lease({"q.log"})
    assert not cluster.open


class Registry:
    """Records of queries whose changes a test makes."""

    def __init__(self) -> None:
        self.watchers: list[OnChange] = []

    def watch(self, on_change: OnChange) -> Any:
        self.watchers.append(on_change)
        return SimpleNamespace(close=lambda: None)


def test_each_listener_hears_of_all_queries_and_one_that_raises_disturbs_no_other() -> None:
    registry = Registry()
    watch = SharedWatch(cast(QueryRegistry, registry))
    heard: list[tuple[str, str, bool]] = []

    def listener(who: str) -> OnChange:
        def hear(name: str, record: QueryRecord | None) -> None:
            heard.append((who, name, record is not None))
            if who == "bad":
                raise KeyError(name)

        return hear

    first, bad, last = listener("first"), listener("bad"), listener("last")
    watch.add(first)
    watch.add(bad)
    [tell] = registry.watchers
    record = cast(QueryRecord, object())
    tell("p", record)
    tell("q", record)
    tell("q", None)
    watch.add(last)
    watch.remove(first)
    tell("p", None)
    assert [what for who, *what in heard if who == "first"] == [["p", True], ["q", True], ["q", False]]
    assert [what for who, *what in heard if who == "last"] == [["p", True], ["p", False]]
    assert ("bad", "p", False) in heard
    watch.close()


def test_a_desk_publishes_each_status_and_a_closed_one_no_more() -> None:
    kafka = Kafka()
    desk = StatusDesk(cast(Cluster, kafka))
    cluster = cast(Cluster, kafka)
    one = StatusPublisher(cluster, "node.q.r0", lambda: {"ready": True}, desk)
    other = StatusPublisher(cluster, "source.q.s", lambda: {"ready": False}, desk)
    found = {said["process"]: said for said in (kafka.said.get(timeout=10) for _ in range(4))}
    assert {name: (said["kind"], said["ready"]) for name, said in found.items()} == {
        "node.q.r0": ("node", True),
        "source.q.s": ("source", False),
    }
    one.close()
    while not kafka.said.empty():
        kafka.said.get()
    other.now()
    assert kafka.said.get(timeout=10)["process"] == "source.q.s"
    other.close()
    desk.close()


def test_a_status_that_cannot_be_made_leaves_the_others() -> None:
    kafka = Kafka()
    desk = StatusDesk(cast(Cluster, kafka))

    def broken() -> dict[str, Any]:
        raise RuntimeError("dictionary changed size during iteration")

    StatusPublisher(cast(Cluster, kafka), "node.p.r0", broken, desk)
    StatusPublisher(cast(Cluster, kafka), "node.q.r0", lambda: {"ready": True}, desk)
    assert kafka.said.get(timeout=10)["process"] == "node.q.r0"
    desk.close()
