"""The registry of queries, on a real Kafka."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from kafka.errors import KafkaError

from boreal.query.spec import load_query
from deployment.query_record import QueryRecord
from services.kafka import queries
from services.kafka.clusters import Cluster
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.topics import QUERIES, STATUS, ensure, system_topics
from services.stack.operations import Operations
from services.stack.servers import KafkaServer

pytestmark = pytest.mark.usefixtures("servers")

SPEC = {
    "name": "departures",
    "streams": {"jfk": {"topic": "flights.jfk", "time": "at", "schema": {"carrier": "string"}}},
    "operators": {"some": {"filter": "jfk", "where": "carrier = 'UA'"}},
    "output": "some",
    "delay_threshold": "3s",
}


def settings_of(server: KafkaServer) -> ServiceSettings:
    return ServiceSettings(sites={"a": {"bootstrap": server.bootstrap}})  # type: ignore[dict-item]


def cluster_of(server: KafkaServer) -> Cluster:
    return Cluster("a", settings_of(server), "test")


@pytest.fixture
def home(kafka: KafkaServer) -> Cluster:
    cluster = cluster_of(kafka)
    ensure(cluster, system_topics())
    return cluster


@pytest.fixture
def registry(home: Cluster) -> Iterator[QueryRegistry]:
    with closing(QueryRegistry(home)) as registry:
        yield registry


def record(name: str, revision: int = 1, **changes: object) -> QueryRecord:
    return QueryRecord(name, load_query({**SPEC, "name": name, **changes}).dump(), revision)


@pytest.fixture
def watched(registry: QueryRegistry) -> Iterator[queue.Queue[tuple[str, QueryRecord | None]]]:
    seen: queue.Queue[tuple[str, QueryRecord | None]] = queue.Queue()
    watch = registry.watch(lambda name, record: seen.put((name, record)))
    yield seen
    watch.close()


def next_of(seen: queue.Queue[tuple[str, QueryRecord | None]], name: str, within_s: float = 60) -> QueryRecord | None:
    """The next change of one query; other tests may change others."""
    deadline = time.monotonic() + within_s
    while True:
        found, change = seen.get(timeout=max(deadline - time.monotonic(), 0.01))
        if found == name:
            return change


def test_what_was_put_is_loaded_and_the_last_put_counts(registry: QueryRegistry, fresh_name: str):
    first, other = record(fresh_name), record(fresh_name + "x")
    registry.put(first)
    registry.put(other)
    changed = QueryRecord(fresh_name, record(fresh_name, delay_threshold="1s").spec, 2, paused=True)
    registry.put(changed)
    found = registry.load()
    assert found[fresh_name] == changed
    assert found[fresh_name].query == load_query({**SPEC, "name": fresh_name, "delay_threshold": "1s"})
    assert found[other.name] == other
    assert list(found) == sorted(found)
    registry.delete(fresh_name)
    registry.delete(fresh_name)
    found = registry.load()
    assert fresh_name not in found
    assert found[other.name] == other


def test_a_watch_tells_what_is_there_and_then_what_changes(registry: QueryRegistry, fresh_name: str, request):
    registry.put(record(fresh_name))
    watched = request.getfixturevalue("watched")
    assert next_of(watched, fresh_name) == record(fresh_name)
    registry.put(record(fresh_name, 2, delay_threshold="1s"))
    assert next_of(watched, fresh_name) == record(fresh_name, 2, delay_threshold="1s")
    registry.delete(fresh_name)
    assert next_of(watched, fresh_name) is None


def test_a_record_that_cannot_be_read_holds_up_no_other(
    registry: QueryRegistry, home: Cluster, watched, fresh_name: str, caplog: pytest.LogCaptureFixture
):
    values = [b"{", b"[]", b'{"v":9,"spec":{},"revision":1,"paused":false}', b'{"v":1}', b'{"v":1,"spec":3}']
    producer = home.make_producer()
    for number, value in enumerate(values):
        producer.send(QUERIES, value, key=f"{fresh_name}bad{number}".encode(), partition=0)
    producer.send(QUERIES, b"{}", key=b"\xff", partition=0).get(timeout=10)
    producer.close()
    registry.put(record(fresh_name))
    assert next_of(watched, fresh_name) == record(fresh_name)
    found = registry.load()
    assert found[fresh_name] == record(fresh_name)
    assert not any(name.startswith(f"{fresh_name}bad") for name in found)
    assert "unknown version of query record: 9" in caplog.text


def test_an_outage_is_an_error_to_a_caller_and_silence_to_a_watch(
    own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, fresh_name: str
):
    home = cluster_of(own_kafka)
    ensure(home, system_topics())
    registry = QueryRegistry(home)
    registry.put(record(fresh_name))
    seen: queue.Queue[tuple[str, QueryRecord | None]] = queue.Queue()
    watch = registry.watch(lambda name, record: seen.put((name, record)))
    try:
        assert next_of(seen, fresh_name) == record(fresh_name)
        own_kafka.kill()
        started = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr(queries, "ANSWERED_WITHIN_MS", 1_000)
            with pytest.raises(KafkaError):
                registry.put(record(fresh_name, 2))
            with pytest.raises(KafkaError):
                registry.load()
        assert time.monotonic() - started < 30
        own_kafka.start()
        registry.put(record(fresh_name, 3))
        while next_of(seen, fresh_name) != record(fresh_name, 3):
            pass
    finally:
        watch.close()
        registry.close()


@pytest.mark.parametrize(("silent_s", "has_processes"), [(10, True), (60, False)])
def test_a_supervisor_that_is_only_slow_still_has_its_processes(
    home: Cluster, kafka: KafkaServer, fresh_name: str, silent_s: float, has_processes: bool
):
    name, node = f"supervisor.{fresh_name}", f"node.{fresh_name}.r0"

    def say(silent_s: float, *processes: str) -> None:
        own = [{"name": process, "query": fresh_name} for process in processes]
        facts = {"v": 1, "process": name, "pid": 1, "ready": True, "processes": own}
        with closing(home.make_producer()) as producer:
            status = json.dumps({**facts, "at_ms": (time.time() - silent_s) * 1_000}).encode()
            producer.send(STATUS, status, key=name.encode(), partition=0).get(timeout=10)

    waited_for: list[Collection[str]] = []

    def on_wait(running: Collection[str]) -> None:
        waited_for.append(running)
        say(0)

    say(silent_s, node)
    with closing(Operations(settings_of(kafka))) as operations:
        operations.await_ended(fresh_name, on_wait)
    assert waited_for[:1] == ([[node]] if has_processes else [])


def test_of_two_updates_at_once_neither_is_lost(home: Cluster, registry: QueryRegistry, fresh_name: str):
    """As by two API processes: each writer that reads before the other commits has to read again."""
    registry.put(record(fresh_name))
    other = QueryRegistry(home)

    def raise_revision(old: QueryRecord | None) -> QueryRecord:
        assert old is not None
        return replace(old, revision=old.revision + 1)

    def interrupted(old: QueryRecord | None) -> QueryRecord:
        if not looks:
            other.update(fresh_name, raise_revision)
        looks.append(old)
        return raise_revision(old)

    looks: list[QueryRecord | None] = []
    assert registry.update(fresh_name, interrupted) == replace(record(fresh_name), revision=3)
    # A test beside this one may fence a writer too: it then looks again, and finds the same.
    assert looks[0] == record(fresh_name) and {look.revision for look in looks[1:] if look} == {2}
    assert registry.load()[fresh_name].revision == 3

    def raised(one: QueryRegistry) -> int:
        """How many updates are confirmed. Kafka may leave one that is fenced without an answer, and then it may be written."""
        confirmed = 0
        for _ in range(3):
            with suppress(KafkaError):
                one.update(fresh_name, raise_revision)
                confirmed += 1
        return confirmed

    with ThreadPoolExecutor(2) as both:
        confirmed = sum(both.map(raised, (registry, other)))
    other.close()
    assert confirmed >= 3 and 3 + confirmed <= registry.load()[fresh_name].revision <= 9


def test_a_writer_stays_for_the_next_update(registry: QueryRegistry, fresh_name: str) -> None:
    """Unless another one begins, as other tests of this run do now and then."""
    looks: list[QueryRecord | None] = []

    def looks_once(revision: int) -> bool:
        def decide(old: QueryRecord | None) -> QueryRecord:
            looks.append(old)
            return replace(record(fresh_name), revision=revision)

        looks.clear()
        registry.update(fresh_name, decide)
        return len(looks) == 1

    registry.put(record(fresh_name))
    assert any(looks_once(revision) for revision in range(2, 12))


def test_a_writer_that_stays_sees_what_others_have_written(home: Cluster, registry: QueryRegistry, fresh_name: str):
    """Its copy of the records may be old: then neither its write nor its refusal counts."""
    with closing(QueryRegistry(home)) as other:
        registry.put(record(fresh_name))
        looks: list[QueryRecord | None] = []

        def raise_revision(old: QueryRecord | None) -> QueryRecord:
            looks.append(old)
            assert old is not None
            return replace(old, revision=old.revision + 1)

        def refuse_but_newest(old: QueryRecord | None) -> QueryRecord:
            looks.append(old)
            assert old is not None
            if old.revision != 4:
                raise ValueError("not the newest")
            return replace(old, revision=5)

        registry.update(fresh_name, raise_revision)
        assert looks[-1] == record(fresh_name)
        other.update(fresh_name, raise_revision)
        registry.update(fresh_name, raise_revision)
        assert looks[-1] == replace(record(fresh_name), revision=3)
        other.update(fresh_name, lambda old: replace(record(fresh_name), revision=4))
        assert registry.update(fresh_name, refuse_but_newest) == replace(record(fresh_name), revision=5)
        other.delete(fresh_name)
        registry.delete(fresh_name)
        registry.put(record(fresh_name))
        other.delete(fresh_name)
        registry.put(record(fresh_name))
        assert registry.load()[fresh_name] == record(fresh_name), "also where the copy says that it is as wanted"


def test_an_update_that_is_given_up_leaves_no_trace(registry: QueryRegistry, watched, fresh_name: str):
    registry.put(record(fresh_name))

    def refuse(old: QueryRecord | None) -> QueryRecord:
        raise ValueError("not like this")

    with pytest.raises(ValueError, match="not like this"):
        registry.update(fresh_name, refuse)
    registry.put(record(fresh_name, 2))
    assert [next_of(watched, fresh_name), next_of(watched, fresh_name)] == [record(fresh_name), record(fresh_name, 2)]
