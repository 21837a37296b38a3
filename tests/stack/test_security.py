"""Servers that demand TLS and a password: the services' own clients get in by their settings, and tell nobody the secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from deployment.query_record import QueryRecord
from logs.checkpoints import Checkpoint, StoreUnavailableError
from services.kafka.clusters import Cluster
from services.kafka.queries import QueryRegistry
from services.kafka.settings import load_settings
from services.kafka.topics import ensure, system_topics
from services.stack.servers import KafkaSecurity, KafkaServer, RedisServer
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from tests.servers import Certificates, make_certificates, tls_before

pytestmark = pytest.mark.usefixtures("servers")

SECRET = "tell nobody-7f3a"


def environment(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"BOREAL_{name}", str(value))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, servers: Path, certificates: Certificates) -> Iterator[KafkaServer]:
    security = KafkaSecurity("boreal", SECRET, certificates.certificate, certificates.key, certificates.authority)
    with KafkaServer(tmp_path_factory.mktemp("secured") / "kafka", security=security) as server:
        yield server


def test_kafka_serves_those_who_log_in_over_tls_and_nobody_else(secured: KafkaServer) -> None:
    with closing(KafkaAdminClient(**secured.client)) as admin:
        admin.create_topics([NewTopic("private", 1, 1)])
    with closing(KafkaProducer(**secured.client, acks="all")) as producer:
        producer.send("private", b"in private").get(30)
    reading = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 30_000}
    with closing(KafkaConsumer("private", **secured.client | reading)) as consumer:
        assert next(consumer).value == b"in private"
    for wrong in ({"sasl_plain_password": "guess"}, {"security_protocol": "PLAINTEXT"}):
        with pytest.raises(KafkaError):
            KafkaAdminClient(**secured.client | wrong, bootstrap_timeout_ms=2000).close()


def test_kafka_over_sasl_and_tls(secured: KafkaServer, certificates: Certificates, monkeypatch, caplog) -> None:
    caplog.set_level(logging.DEBUG, "boreal")
    environment(
        monkeypatch,
        SITES__A__BOOTSTRAP=secured.bootstrap,
        SITES__A__SECURITY_PROTOCOL="SASL_SSL",
        SITES__A__USERNAME="boreal",
        SITES__A__PASSWORD=SECRET,
        SITES__A__CA_FILE=certificates.authority,
    )
    settings = load_settings()
    cluster = Cluster("a", settings, "test")
    ensure(cluster, system_topics())
    with closing(QueryRegistry(cluster)) as registry:
        registry.put(QueryRecord("q", {}, 1))
        assert registry.find("q") == QueryRecord("q", {}, 1)
    assert SECRET not in repr(settings) + settings.model_dump_json() + caplog.text
    monkeypatch.setenv("BOREAL_SITES__A__PASSWORD", "wrong")
    with pytest.raises(KafkaError) as refused:
        Cluster("a", load_settings(), "test").make_admin(bootstrap_timeout_ms=2000)
    assert "wrong" not in str(refused.value)


def test_redis_over_tls_with_a_password(tmp_path: Path, certificates: Certificates, monkeypatch) -> None:
    with RedisServer(tmp_path / "redis", password=SECRET) as server, tls_before(server.port, certificates) as port:
        environment(
            monkeypatch,
            SITES__A__BOOTSTRAP="127.0.0.1:1",
            REDIS__URL=f"rediss://127.0.0.1:{port}/0",
            REDIS__PASSWORD=SECRET,
            REDIS__CA_FILE=certificates.authority,
        )
        settings = load_settings()
        store = RedisCheckpointStore(connect_redis(settings.redis), prefix="q")
        checkpoint = Checkpoint("main.r0.0", 1, 2, 3, (), (), b"state")
        store.put(checkpoint)
        assert store.latest("main.r0.0") == checkpoint
        store.close()
        assert SECRET not in repr(settings)
        monkeypatch.setenv("BOREAL_REDIS__PASSWORD", "wrong")
        with pytest.raises(StoreUnavailableError) as refused:
            RedisCheckpointStore(connect_redis(load_settings().redis)).put(checkpoint)
        assert "wrong" not in str(refused.value).replace("wrong password", "")
