"""A Kafka that was there before boreal, with its own defaults: nothing is created by looking, and all that is wrong is named at
once, with what puts it right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from boreal.model.errors import UserError
from services.kafka.topics import TopicSpec, create, ensure
from services.stack.servers import KafkaServer
from tests.command_line import run_command
from tests.stack.logs import cluster_of
from tests.waiting import wait

QUERY = {
    "name": "sales",
    "streams": {"orders": {"topic": "shop.orders", "time": "at", "schema": {"amount": "double"}}},
    "operators": {"large": {"filter": "orders", "where": "amount > 10"}},
    "output": "large",
    "delay_threshold": "1s",
    "engine": "native",
}


class UsersKafka(KafkaServer):
    """A broker that creates each topic that a client asks for, as Kafka does by default."""

    def _settings(self) -> dict[str, object]:
        return super()._settings() | {"auto.create.topics.enable": "true"}


@pytest.fixture(scope="module")
def users_kafka(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[UsersKafka]:
    with UsersKafka(tmp_path_factory.mktemp("users") / "kafka") as server:
        yield server


@pytest.fixture
def topics(users_kafka: UsersKafka) -> Iterator[KafkaAdminClient]:
    """A client that is there to look; the test begins without topics."""
    with closing(KafkaAdminClient(**users_kafka.client)) as admin:
        left = users_topics(admin)
        if left:
            admin.delete_topics(left)
            # The broker answers before it has forgotten them.
            assert wait(lambda: not users_topics(admin))
        yield admin


def users_topics(admin: KafkaAdminClient) -> list[str]:
    return [name for name in admin.list_topics() if not name.startswith("__")]


def make_topics(admin: KafkaAdminClient, partitions: dict[str, int]) -> None:
    """Create topics, and wait until the broker knows them: it answers before."""
    admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()])
    admin.wait_for_topics(list(partitions))


@pytest.fixture
def query_file(tmp_path: Path) -> Path:
    path = tmp_path / "sales.yaml"
    path.write_text(yaml.safe_dump(QUERY))
    return path


def boreal(kafka: KafkaServer, data: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BOREAL_SITES__A__BOOTSTRAP": kafka.bootstrap, "BOREAL_DATA": str(data)}
    return run_command([str(word) for word in words], environment)


def test_commands_that_look_create_no_topic(
    users_kafka: UsersKafka, topics: KafkaAdminClient, query_file: Path, tmp_path: Path
) -> None:
    status = boreal(users_kafka, tmp_path, "status")
    assert (status.returncode, "nothing is up" in status.stdout, "Traceback" in status.stderr) == (1, True, False)
    assert "Traceback" not in boreal(users_kafka, tmp_path, "query", "list").stderr
    shown = boreal(users_kafka, tmp_path, "init", query_file, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "boreal.queries is absent" in shown.stdout and "sales.stable is absent" in shown.stdout
    assert users_topics(topics) == []


def test_a_dry_run_prints_commands_for_whoever_owns_the_kafka(
    users_kafka: UsersKafka, topics: KafkaAdminClient, query_file: Path, tmp_path: Path
) -> None:
    make_topics(topics, {"boreal.status": 1, "shop.orders": 3})
    found = json.loads(boreal(users_kafka, tmp_path, "init", query_file, "--dry-run", "--json").stdout)["a"]
    assert "shop.orders" not in found["absent"] and "boreal.queries" in found["absent"]
    [wrong] = found["problems"]
    assert wrong["topic"] == "boreal.status" and "cleanup.policy must be compact,delete" in wrong["problem"]
    address = f"--bootstrap-server {users_kafka.bootstrap}"
    create = f"kafka-topics {address} --create --topic boreal.queries --partitions 1 --config cleanup.policy=compact"
    create += " --config segment.index.bytes=262144"
    assert create in found["commands"]
    alter = f"kafka-configs {address} --alter --entity-type topics --entity-name boreal.status --add-config"
    assert any(command.startswith(alter) and "cleanup.policy=[compact,delete]" in command for command in found["commands"])
    read = "--operation Read --operation Write --operation Describe --operation DescribeConfigs --topic shop.orders"
    assert f"kafka-acls {address} --add --allow-principal User:USER {read}" in found["acls"]
    for prefix in ("sales.", "sales-"):
        assert any(f"--topic {prefix} --resource-pattern-type prefixed" in command for command in found["acls"])


def test_all_topics_with_wrong_settings_are_named_at_once_and_nothing_is_created(
    users_kafka: UsersKafka, topics: KafkaAdminClient, query_file: Path, tmp_path: Path
) -> None:
    made = ("boreal.queries", "boreal.status", "sales.stable", "sales.control")
    make_topics(topics, {name: 2 if name == "sales.stable" else 1 for name in made})
    for command in (("init", query_file), ("query", "apply", query_file)):
        refused = boreal(users_kafka, tmp_path, *command, "--json")
        assert refused.returncode == 2, refused.stderr
        error = json.loads(refused.stderr.strip().splitlines()[-1])["error"]
        assert error["value"] == ["boreal.queries", "boreal.status", "sales.control", "sales.stable"], error
        assert "sales.stable has 2 partitions instead of 1" in error["problem"]
        assert "cleanup.policy must be compact,delete, retention.ms must be 3600000" in error["problem"]
        assert "--entity-name boreal.queries --add-config cleanup.policy=compact" in error["fix"]
    assert set(users_topics(topics)) == set(made)


def test_a_topic_that_another_client_creates_meanwhile_with_other_settings_is_refused(
    users_kafka: UsersKafka, topics: KafkaAdminClient
) -> None:
    absent = [
        TopicSpec("sales.out", 1, {"cleanup.policy": "delete"}),
        TopicSpec("sales.latest", 1, {"cleanup.policy": "compact"}),
        TopicSpec("shop.orders", 1, is_users=True),
    ]
    make_topics(topics, {"sales.latest": 1, "shop.orders": 3})
    cluster = cluster_of(users_kafka)
    with pytest.raises(UserError, match=r"cleanup\.policy must be compact"):
        create(cluster, absent)
    create(cluster, [spec for spec in absent if spec.name != "sales.latest"])


def test_topics_that_boreal_creates_have_small_indexes_and_others_may_have_any(
    users_kafka: UsersKafka, topics: KafkaAdminClient
) -> None:
    make_topics(topics, {"sales.stable": 1})
    cluster = cluster_of(users_kafka)
    specs = [TopicSpec("sales.out", 1), TopicSpec("sales.stable", 1), TopicSpec("shop.orders", 1, is_users=True)]
    assert [spec.name for spec in ensure(cluster, specs)] == ["sales.out", "shop.orders"]
    asked = [ConfigResource(ConfigResourceType.TOPIC, spec.name) for spec in specs]
    found = topics.describe_configs(asked, config_filter="all")["topic"]
    sizes = {name: int(config["segment.index.bytes"]["value"]) for name, config in found.items()}
    assert sizes == {"sales.out": 256 << 10, "shop.orders": 256 << 10, "sales.stable": 10 << 20}


def test_init_creates_what_is_missing_and_once_only(
    users_kafka: UsersKafka, topics: KafkaAdminClient, query_file: Path, tmp_path: Path
) -> None:
    created = json.loads(boreal(users_kafka, tmp_path, "init", query_file, "--json").stdout)["created"]["a"]
    assert {"boreal.queries", "boreal.status", "shop.orders", "sales.stable", "sales.out"} <= set(created)
    assert json.loads(boreal(users_kafka, tmp_path, "init", query_file, "--json").stdout) == {"created": {"a": []}}
    nothing = json.loads(boreal(users_kafka, tmp_path, "init", query_file, "--dry-run", "--json").stdout)["a"]
    assert (nothing["absent"], nothing["problems"], nothing["commands"]) == ([], [], [])


def test_a_supervisor_that_finds_wrong_topics_says_so_and_status_still_answers(
    users_kafka: UsersKafka, topics: KafkaAdminClient, tmp_path: Path
) -> None:
    make_topics(topics, {"boreal.queries": 1, "boreal.status": 1})
    environment = {**os.environ, "BOREAL_SITES__A__BOOTSTRAP": users_kafka.bootstrap, "BOREAL_DATA": str(tmp_path)}
    command = [sys.executable, "-m", "services.stack.supervisor"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 1
    assert "the supervisor ends: topics: 2 exist with other settings" in ended.stderr and "Traceback" not in ended.stderr
    status = boreal(users_kafka, tmp_path, "status", "--json")
    # The supervisor may just have said that it starts a monitor.
    names = {process["name"] for process in json.loads(status.stdout)["processes"]}
    assert status.returncode == 1 and names <= {"monitor"}, status.stderr


def test_up_starts_no_second_broker_beside_a_kafka_that_the_environment_names(users_kafka: UsersKafka, tmp_path: Path) -> None:
    refused = boreal(users_kafka, tmp_path, "up", "--json")
    assert refused.returncode == 2
    error = json.loads(refused.stderr.strip().splitlines()[-1])["error"]
    assert error["field"] == "BOREAL_SITES__A__BOOTSTRAP" and "starts one of its own" in error["problem"]
    assert "services.stack.supervisor" in error["fix"] and not (tmp_path / "stack.json").exists()
