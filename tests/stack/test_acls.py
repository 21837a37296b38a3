"""A Kafka that authorises its users: what `boreal init --dry-run` prints is all that boreal needs there, and what is left
out of it is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from services.stack.servers import KafkaSecurity, KafkaServer, RedisServer
from tests.command_line import run_command
from tests.servers import make_certificates

pytestmark = pytest.mark.usefixtures("servers")

USER, PASSWORD = "boreal", "of-boreal"
SCHEMA = {"shop": "string", "amount": "int"}
QUERY: dict[str, Any] = {
    "name": "sales",
    "streams": {"orders": {"topic": "shop.orders", "time": "at", "schema": SCHEMA, "key": ["shop"]}},
    "operators": {"large": {"filter": "orders", "where": "amount > 10"}},
    "output": "large",
    "delay_threshold": "2s",
    "engine": "native",
    "replicas": 1,
    "latest": True,
    "debezium": True,
}
OTHER = {**QUERY, "operators": {"large": {"filter": "orders", "where": "amount > 5"}}}


class AuthorisingKafka(KafkaServer):
    """Its administrator may do all; USER only what ACLs say."""

    def _settings(self) -> dict[str, object]:
        settings = super()._settings()
        login = "listener.name.clients.plain.sasl.jaas.config"
        assert self.security is not None
        return settings | {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # The controller's listener asks for no name.
            "super.users": f"User:{self.security.user};User:ANONYMOUS",
            login: str(settings[login]).replace(";", f' user_{USER}="{PASSWORD}";'),
        }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[AuthorisingKafka]:
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    security = KafkaSecurity("admin", "of-admin", certificates.certificate, certificates.key, certificates.authority)
    with AuthorisingKafka(tmp_path_factory.mktemp("acls") / "kafka", security=security) as server:
        yield server


def acls_of(command: str) -> list[ACL]:
    """What a command of Kafka's own tool adds."""
    program, *arguments = command.split()
    assert program == "kafka-acls"
    parser = ArgumentParser()
    for option in ("--bootstrap-server", "--allow-principal", "--topic", "--transactional-id"):
        parser.add_argument(option)
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--operation", action="append", required=True)
    parser.add_argument("--resource-pattern-type", choices=["prefixed"])
    said = parser.parse_args(arguments)
    kind = ResourceType.TOPIC if said.topic else ResourceType.TRANSACTIONAL_ID
    pattern = ACLResourcePatternType.PREFIXED if said.resource_pattern_type else ACLResourcePatternType.LITERAL
    resource = ResourcePattern(kind, said.topic or said.transactional_id, pattern)
    names = {each.name.replace("_", ""): each for each in ACLOperation}
    operations = [names[operation.upper()] for operation in said.operation]
    return [ACL(said.allow_principal, "*", operation, ACLPermissionType.ALLOW, resource) for operation in operations]


class Installation:
    """Boreal on that Kafka, as USER."""

    def __init__(self, broker: AuthorisingKafka, redis: RedisServer, data: Path) -> None:
        assert broker.security is not None
        self.broker, self.data = broker, data
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("BOREAL_") or name == "BOREAL_CACHE"},
            "BOREAL_SITES__A__BOOTSTRAP": broker.bootstrap,
            "BOREAL_SITES__A__SECURITY_PROTOCOL": "SASL_SSL",
            "BOREAL_SITES__A__USERNAME": USER,
            "BOREAL_SITES__A__PASSWORD": PASSWORD,
            "BOREAL_SITES__A__CA_FILE": str(broker.security.authority),
            "BOREAL_REDIS__URL": redis.url,
            "BOREAL_DATA": str(data),
        }
        self.log = data / "supervisor.log"
        self.file = data / "sales.yaml"
        data.mkdir()
        self.write(QUERY)

    def write(self, query: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(query))

    def boreal(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return run_command([*(str(word) for word in words), "--json"], self.environment)

    def done(self, *words: str | Path) -> dict[str, Any]:
        run = self.boreal(*words)
        assert run.returncode == 0, f"{words}: {run.stdout}\n{run.stderr}\n{self.logs()}"
        return dict(json.loads(run.stdout))

    def refused(self, *words: str | Path) -> str:
        """The problem with a command."""
        run = self.boreal(*words)
        assert run.returncode == 2, f"{words}: {run.stdout}\n{run.stderr}\n{self.logs()}"
        error = json.loads(run.stderr.strip().splitlines()[-1])["error"]
        assert "boreal init --dry-run" in error["fix"]
        return str(error["problem"])

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.data.rglob("*.log")))

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "services.stack.supervisor"], env=self.environment, stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def admin(broker: AuthorisingKafka) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(**broker.client)) as client:
        yield client


@pytest.fixture
def installation(broker: AuthorisingKafka, redis_server: RedisServer, tmp_path: Path) -> Installation:
    return Installation(broker, redis_server, tmp_path / "data")


@contextmanager
def lacking(admin: KafkaAdminClient, acls: list[ACL], operation: str, kind: ResourceType, name: str) -> Iterator[None]:
    """Without one of these ACLs."""
    of_name = [acl for acl in acls if acl.resource_pattern.resource_name == name and acl.resource_pattern.resource_type == kind]
    [left_out] = [acl for acl in of_name if acl.operation.name == operation]
    resource = left_out.resource_pattern
    of_resource = ResourcePatternFilter(resource.resource_type, resource.resource_name, resource.pattern_type)
    admin.delete_acls([ACLFilter(left_out.principal, left_out.host, left_out.operation, ACLPermissionType.ALLOW, of_resource)])
    yield
    admin.create_acls([left_out])


@contextmanager
def feeding(broker: AuthorisingKafka) -> Iterator[None]:
    """A row in the present every 50 ms, by the administrator, who owns the topic."""
    is_over = threading.Event()

    def feed(producer: KafkaProducer) -> None:
        for number in count():
            row = {"at": int(time.time() * 1_000), "shop": "ab"[number % 2], "amount": number}
            producer.send("shop.orders", json.dumps(row).encode())
            if is_over.wait(0.05):
                return

    with closing(KafkaProducer(**broker.client)) as producer:
        thread = threading.Thread(target=feed, args=(producer,))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


@pytest.mark.soak
def test_what_is_printed_is_enough_and_what_is_left_out_of_it_is_named(
    broker: AuthorisingKafka, admin: KafkaAdminClient, installation: Installation, tmp_path: Path
) -> None:
    commands = installation.done("init", installation.file, "--dry-run")["a"]["acls"]
    acls = [acl for command in commands for acl in acls_of(command)]
    assert {acl.principal for acl in acls} == {f"User:{USER}"}
    admin.create_acls(acls)
    with lacking(admin, acls, "CREATE", ResourceType.TOPIC, "shop.orders"):
        assert "topic shop.orders cannot be created" in installation.refused("init", installation.file)
    installation.done("init", installation.file)
    with installation.running():
        with lacking(admin, acls, "WRITE", ResourceType.TRANSACTIONAL_ID, "boreal."):
            problem = installation.refused("query", "apply", installation.file)
            assert "TransactionalIdAuthorizationFailedError, for ids that begin with boreal." in problem
        installation.done("query", "apply", installation.file)
        rows = tmp_path / "rows.jsonl"
        rows.write_text(json.dumps({"at": int(time.time() * 1_000), "shop": "c", "amount": 99}))
        with lacking(admin, acls, "WRITE", ResourceType.TOPIC, "shop.orders"):
            assert "shop.orders" in installation.refused("feed", "sales", f"orders={rows}")
        installation.done("feed", "sales", f"orders={rows}")
        with feeding(broker):
            installation.write(OTHER)
            evolved = installation.done("query", "apply", "--evolve", installation.file)
        assert (evolved["version"], evolved["evolution"]["state"]) == (2, "taken_over")
        with closing(KafkaConsumer("sales.stable", **broker.client, auto_offset_reset="earliest")) as consumer:
            first = next(consumer)
        assert json.loads(first.value)["shop"] == "c"
        installation.done("query", "settle", "sales")
        with lacking(admin, acls, "DELETE", ResourceType.TOPIC, "sales."):
            assert "sales.stable" in installation.refused("query", "delete", "sales")
        installation.done("query", "delete", "sales")
    own = ("boreal.", "shop.orders", "__")
    assert [topic for topic in admin.list_topics() if not topic.startswith(own)] == []
    assert "ERROR" not in installation.logs()
