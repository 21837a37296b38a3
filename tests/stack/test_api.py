"""The API's installation on a real Kafka: two of them on one installation, and while Kafka is away."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from kafka import TopicPartition

from api import create_app
from api import posts as posting
from api import stack as module
from api.installation import ANY, OutputEvent, Precondition, PreconditionError
from api.jobs import Jobs
from api.models import EXAMPLE_SPEC
from api.settings import ApiSettings
from api.stack import StackInstallation
from api.stack_output import OutputTail, StackOutput
from api.tokens import TokenStore
from boreal.query.spec import load_query
from services.kafka import queries
from services.kafka.clusters import Cluster
from services.kafka.settings import ServiceSettings
from services.kafka.topics import STATUS, TopicSpec, create, ensure, system_topics
from services.stack import operations
from services.stack.servers import KafkaServer
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")


def settings_of(server: KafkaServer) -> ServiceSettings:
    settings = ServiceSettings(sites={"a": {"bootstrap": server.bootstrap}})  # type: ignore[dict-item]
    ensure(Cluster("a", settings, "test"), system_topics())
    return settings


def spec_of(name: str) -> dict[str, object]:
    return {**EXAMPLE_SPEC, "name": name, "streams": {"jfk": {**EXAMPLE_SPEC["streams"]["jfk"], "topic": f"{name}.in"}}}


def test_two_apis_of_one_installation_lose_no_update(kafka: KafkaServer, fresh_name: str) -> None:
    settings = settings_of(kafka)
    with closing(StackInstallation(settings)) as one, closing(StackInstallation(settings)) as other:
        one.put(load_query(spec_of(fresh_name)), ANY)

        def change(installation: StackInstallation, seconds: int) -> bool:
            """Whether the change of what this caller has seen was taken."""
            seen = installation.queries((fresh_name, 1))[fresh_name].revision
            try:
                installation.change(fresh_name, {"delay_threshold": f"{seconds}s"}, Precondition(revisions=(seen,)))
            except PreconditionError as refused:
                assert refused.current is not None and refused.current.revision > seen
                return False
            return True

        with ThreadPoolExecutor(2) as both:
            jobs = [both.submit(change, (one, other)[turn % 2], 4 + turn) for turn in range(6)]
            taken = sum(job.result() for job in jobs)
        assert taken >= 1
        for installation in (one, other):
            assert installation.queries((fresh_name, 1 + taken))[fresh_name].revision == 1 + taken


def test_while_kafka_is_away_reads_go_on_marked_stale_and_writes_are_refused(
    own_kafka: KafkaServer, fresh_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(own_kafka)
    installation = StackInstallation(settings)
    path = f"/api/v1/queries/{fresh_name}"
    app = create_app(ApiSettings(), installation, TokenStore(tmp_path, "ours"), Jobs(tmp_path / "jobs"))
    headers = {"Authorization": "Bearer ours"}
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as api, monkeypatch.context() as patch:
        assert api.put(path, json=spec_of(fresh_name)).status_code == 201
        with closing(Cluster("a", settings, "test").make_producer()) as producer:
            status = f'{{"v":1,"process":"monitor","pid":1,"ready":true,"at_ms":{time.time() * 1_000}}}'.encode()
            producer.send(STATUS, status, key=b"monitor", partition=0).get(timeout=10)
        wait_until(lambda: api.get("/api/v1/overview").json()["stale"] is False)
        own_kafka.kill()
        patch.setattr(queries, "ANSWERED_WITHIN_MS", 1_000)
        patch.setattr(operations, "REACHED_WITHIN_S", 1.0)
        patch.setattr(posting, "WITHIN_S", 1.0)
        patch.setattr(module, "SILENT_AFTER_S", 0.5)
        wait_until(lambda: api.get("/api/v1/overview").json()["stale"] is True)
        assert api.get(path).json()["delay_threshold"] == "3s" and api.get(f"{path}/status").json()["stale"] is True
        row = {"departed_at": "2013-01-01T05:15:00Z", "carrier": "AA"}
        for refused in (
            api.patch(path, json={"delay_threshold": "4s"}),
            api.post(f"/api/v1/streams/{fresh_name}.jfk/tuples", json=row),
        ):
            assert refused.status_code == 503 and refused.headers["retry-after"], refused.text
            assert refused.headers["content-type"] == "application/problem+json"
        own_kafka.start()
        patch.setattr(queries, "ANSWERED_WITHIN_MS", 10_000)
        wait_until(lambda: api.patch(path, json={"delay_threshold": "5s"}).status_code == 200)
        assert api.get(path).json()["delay_threshold"] == "5s"


def test_a_place_that_is_no_longer_kept_is_a_gap(kafka: KafkaServer, fresh_name: str) -> None:
    """Whether the ring of the newest records is filled already, or not."""
    cluster, partition = Cluster("a", settings_of(kafka), "test"), TopicPartition(fresh_name, 0)
    with closing(cluster.make_producer()) as producer, closing(cluster.make_admin()) as admin:
        create(cluster, [TopicSpec(fresh_name, 1)])
        for number in range(6):
            producer.send(fresh_name, f'{{"n": {number}}}'.encode(), partition=0).get(timeout=10)
        admin.delete_records({partition: 3})
    tail = OutputTail(cluster, fresh_name, "stable")
    with closing(StackOutput(tail, tail.close)) as reader:
        for _ in range(2):
            page, events = reader.read("a:0", 10), list[OutputEvent]()
            assert page.gap == {"after": "a:0", "first": "a:3"}
            while len(events := [*events, *page.events]) < 3:
                page = reader.read(page.next_id, 10)
                assert page.gap is None
            assert [(event.id, event.data) for event in events] == [(f"a:{n}", f'{{"n": {n}}}') for n in (3, 4, 5)]
            assert reader.read("a:2", 10).gap is None
            wait_until(lambda: tail.events(3, 10) is not None)
