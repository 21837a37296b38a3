"""An egress as a process goes from one version of a query to the next and back, and is killed on its way: what the topics hold
that are not JSON alone. The replicas of both versions are played."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from bench.warm_processes import AnyProcess
from boreal.query.spec import load_query
from deployment.evolution import evolve
from deployment.layout import Layout, make_layout
from deployment.query_record import Beside, QueryRecord, Takeover
from formats.client_headers import ID, VERSION
from logs.egress_switch import PROMISED
from services.hosting import failpoints
from services.kafka.queries import QueryRegistry
from services.kafka.topics import ensure, query_topics, system_topics
from services.stack.servers import KafkaServer
from tests.registry import RegistryServer
from tests.stack.lives import cluster_of, records_of, replayed, stable_of
from tests.stack.test_debezium import Table
from tests.stack.test_egress import Deployment, Replica, spec_of
from tests.thoroughness import every
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("schema registry")]

BEGIN, BACK = 300_000, 600_000
"""The event times (us) from which on rows are of the second version, and of the first one again."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as server:
        yield server


class Versions:
    """A query with two versions, whose columns differ, and its egress."""

    def __init__(self, server: KafkaServer, name: str, registry: RegistryServer) -> None:
        self.server, self.name, self.registry = server, name, registry
        self.cluster = cluster_of(server)
        old = {**spec_of(name), "debezium": True, "records": "avro"}
        columns = {"name": "string", "m": "int", "n": "int"}
        new = {**old, "streams": {"s": {**old["streams"]["s"], "schema": columns}}}
        first = QueryRecord(name, load_query(old).dump(), 1)
        evolved = evolve(first, load_query(new), "earliest")
        ensure(self.cluster, system_topics())
        self._queries = QueryRegistry(self.cluster)
        self._replicas = []
        for run in evolved.runs():
            layout = make_layout(run.query, ("a",), run.name)
            ensure(self.cluster, query_topics(layout)["a"])
            self._replicas.append(Replica(server, Layout(layout.plan, ("a",))))
        self.first, self.second = self._replicas
        self.deployment = Deployment(server, name, self.first)
        beside = Beside(1, first.spec, "earliest")
        in_charge = replace(evolved, spec=evolved.runs()[1].spec, version=2, since=BEGIN, beside=beside)
        self.records = [
            first,
            replace(evolved, takeover=Takeover(2, BEGIN, agreed=True)),
            replace(in_charge, revision=3, takeover=Takeover(1, BACK, agreed=True)),
        ]

    def begin(self, failpoint: str = "") -> AnyProcess:
        return self.deployment.begin(failpoint, BOREAL_REGISTRIES__MAIN__URL=self.registry.url)

    def put(self, number: int) -> None:
        """Write this record of the query, with which it begins, changes its version, and changes back."""
        self._queries.put(self.records[number])

    def await_version(self, version: int) -> None:
        out = f"{self.name}.out"
        wait_until(
            lambda: dict(records_of(self.cluster, out)[-1].headers).get(VERSION) == b"%d" % version, f"version {version}"
        )

    def await_promise(self, process: AnyProcess) -> None:
        """Wait until the egress says that it ends the version at the time of the record."""

        def has_promised() -> bool:
            said = self.deployment.status(process).get("takeover")
            return said is not None and said["state"] == PROMISED

        wait_until(has_promised, "it promises")

    def give(self, count: int) -> None:
        for replica in self._replicas:
            replica.give(count)

    def close(self) -> None:
        for replica in self._replicas:
            replica.close()
        self._queries.close()
        for process in self.deployment.running:
            if process.poll() is None:
                process.kill()
            process.wait()

    def check(self, count: int) -> None:
        """All topics have each row once, with the columns of the version that gives it."""
        self.deployment.await_rows(count)
        topics = {which: f"{self.name}.{which}" for which in ("out", "stable", "records", "debezium")}
        wait_until(lambda: len(records_of(self.cluster, topics["records"], read_committed=True)) >= count, "q.records")
        versions = [2 if BEGIN <= n * 10_000 < BACK else 1 for n in range(count)]
        ids, lines = stable_of(self.cluster, topics["stable"])
        rows = [json.loads(line) for line in lines]
        assert ids == list(range(count)) and [row["n"] for row in rows] == ids
        assert [row.get("m") for row in rows] == [n if version == 2 else None for n, version in enumerate(versions)]
        assert [json.loads(text) for text in replayed(self.deployment.out())] == rows
        client = SchemaRegistryClient({"url": self.registry.url})
        assert client.get_versions(f"{topics['records']}-value") == [1, 2]
        read, context = AvroDeserializer(client), SerializationContext(topics["records"], MessageField.VALUE)
        found = records_of(self.cluster, topics["records"], read_committed=True)
        assert [int(dict(record.headers)[ID]) for record in found] == ids
        assert [int(dict(record.headers).get(VERSION, b"1")) for record in found] == versions
        decoded = [read(record.value, context) for record in found]
        assert [{**row, "time": None} for row in decoded] == [{**row, "time": None} for row in rows]
        newest = {row["name"]: row for row in rows}

        def is_shown() -> bool:
            table = Table()
            for record in records_of(self.cluster, topics["debezium"]):
                table.take(record)
            return table.rows == newest

        wait_until(is_shown, "q.debezium shows the newest rows")


@pytest.fixture
def versions(kafka: KafkaServer, fresh_name: str, registry: RegistryServer) -> Iterator[Versions]:
    with closing(Versions(kafka, fresh_name, registry)) as made:
        yield made


TAKEOVERS = sorted(name for name in failpoints.NAMES if name.startswith("egress.") and "takeover" in name)


@pytest.mark.parametrize(("name", "times"), every(12, [("", 0), *((name, times) for times in (1, 2) for name in TAKEOVERS)]))
def test_all_topics_go_on_with_another_version_and_back_whenever_the_egress_is_killed(
    versions: Versions, name: str, times: int
) -> None:
    """times: at which change of the version."""
    versions.put(0)
    process = versions.begin(f"{name}:{times}")
    # Each time is ahead of what has been given.
    versions.give(20)
    versions.deployment.await_rows(20)
    for number, version in ((1, 2), (2, 1)):
        versions.put(number)
        versions.await_promise(process)
        versions.give(30)
        if number == times:
            assert process.wait(60) == -signal.SIGKILL
            process = versions.begin()
        versions.await_version(version)
        versions.deployment.await_rows(20 + 30 * number)
    versions.check(80)
    assert process.poll() is None
