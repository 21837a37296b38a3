"""Servers that demand TLS and a password: the services' own clients get in by their settings, and tell nobody the secrets."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from kafka.errors import KafkaError

from deployment.query_record import QueryRecord
from logs.checkpoints import Checkpoint, StoreUnavailableError
from services.kafka.clusters import Cluster
from services.kafka.queries import QueryRegistry
from services.kafka.settings import load_settings
from services.kafka.topics import ensure, system_topics
from services.stack.servers import KafkaSecurity, KafkaServer, RedisServer
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from tests.servers import make_certificates, tls_before

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

SECRET = "tell-nobody-7f3a"


def environment(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"BOREAL_{name}", str(value))


def test_kafka_over_sasl_and_tls(tmp_path: Path, monkeypatch, caplog) -> None:
    caplog.set_level(logging.DEBUG, "boreal")
    certificates = make_certificates(tmp_path / "certificates")
    security = KafkaSecurity("boreal", SECRET, certificates.certificate, certificates.key, certificates.authority)
    with KafkaServer(tmp_path / "kafka", security=security) as server:
        environment(
            monkeypatch,
            SITES__A__BOOTSTRAP=server.bootstrap,
            SITES__A__SECURITY_PROTOCOL="SASL_SSL",
            SITES__A__USERNAME="boreal",
            SITES__A__PASSWORD=SECRET,
            SITES__A__CA_FILE=certificates.authority,
        )
        settings = load_settings()
        cluster = Cluster("a", settings, "test")
        ensure(cluster, system_topics())
        registry = QueryRegistry(cluster)
        registry.put(QueryRecord("q", {}, 1))
        assert registry.load() == {"q": QueryRecord("q", {}, 1)}
        assert SECRET not in repr(settings) + settings.model_dump_json() + caplog.text
        monkeypatch.setenv("BOREAL_SITES__A__PASSWORD", "wrong")
        with pytest.raises(KafkaError) as refused:
            Cluster("a", load_settings(), "test").make_admin(bootstrap_timeout_ms=2000)
        assert "wrong" not in str(refused.value)


def test_redis_over_tls_with_a_password(tmp_path: Path, monkeypatch) -> None:
    certificates = make_certificates(tmp_path / "certificates")
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
