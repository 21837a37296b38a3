"""The implementations that every contract suite runs against: to try another, add it to the table.

A factory is called once a test (or once an example of a property) and gives a fresh, empty backend.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

from boreal.model.frames import LogId
from embedded.file_checkpoints import FileCheckpointStore
from embedded.file_log import FileLogStore
from logs.checkpoints import CheckpointStore
from logs.log import LogStore
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.memory_log import MemoryLogStore
from services.kafka.clusters import Cluster
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings
from services.kafka.topics import TopicSpec, ensure
from services.stack.servers import KafkaServer
from services.storage.kafka_log import WINDOW_FRAMES, KafkaLog, KafkaLogStore
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis

ONE_RECORD = 1
"""A segment size that every record fills, so that a trim can be seen to delete."""


@dataclass
class LogBackend:
    """connect: a client of the same logs, as a restarted process would make it. trims_each_frame: a trim forgets all
    that it may, but perhaps the newest frame."""

    connect: Callable[[], LogStore]
    trims_each_frame: bool
    store: LogStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.connect()

    def close(self) -> None:
        self.store.close()

    def reopen(self) -> LogStore:
        self.store.close()
        self.store = self.connect()
        return self.store


@dataclass
class CheckpointBackend:
    """As LogBackend; damage: changes the stored bytes of (instance, number) by a function."""

    connect: Callable[[], CheckpointStore]
    damage: Callable[[str, int, Callable[[bytes], bytes]], None]
    store: CheckpointStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.connect()

    def reopen(self) -> CheckpointStore:
        self.store.close()
        self.store = self.connect()
        return self.store


def memory_logs(_: pytest.FixtureRequest) -> LogBackend:
    store = MemoryLogStore()
    return LogBackend(lambda: store, trims_each_frame=True)


def file_logs(request: pytest.FixtureRequest) -> LogBackend:
    root = fresh_directory(request)
    return LogBackend(lambda: FileLogStore(root), trims_each_frame=False)


def file_logs_of_short_segments(request: pytest.FixtureRequest) -> LogBackend:
    root = fresh_directory(request)
    return LogBackend(lambda: FileLogStore(root, ONE_RECORD), trims_each_frame=True)


def fresh_directory(request: pytest.FixtureRequest) -> Path:
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    return factory.mktemp("logs")


def kafka_logs(request: pytest.FixtureRequest) -> LogBackend:
    cluster: Cluster = request.getfixturevalue("kafka_cluster")
    places = FreshPlaces(cluster)
    return LogBackend(lambda: FreshLogStore({cluster.site: cluster}, places), trims_each_frame=True)


def kafka_logs_of_short_windows(request: pytest.FixtureRequest) -> LogBackend:
    """What is asked of a log that was opened anew lies before its window, and has to be searched for."""
    cluster: Cluster = request.getfixturevalue("kafka_cluster")
    places = FreshPlaces(cluster)
    return LogBackend(lambda: FreshLogStore({cluster.site: cluster}, places, window_frames=2), trims_each_frame=False)


class FreshPlaces:
    """Each log lies in a topic that no other test has. Most are made many at a time, which takes little longer than one."""

    READY_PARTITIONS = 3
    ready: ClassVar[list[str]] = []

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topics: dict[LogId, str] = {}

    def create(self, log: LogId) -> None:
        if log in self._topics:
            return
        if log.partition >= self.READY_PARTITIONS:
            self._topics[log] = self._make(1, log.partition + 1)[0]
            return
        if not self.ready:
            self.ready.extend(self._make(30, self.READY_PARTITIONS))
        self._topics[log] = self.ready.pop()

    def _make(self, count: int, partitions: int) -> list[str]:
        topics = [f"contract-{uuid.uuid4().hex}" for _ in range(count)]
        ensure(self._cluster, [TopicSpec(topic, partitions) for topic in topics])
        return topics

    def site_of(self, log: LogId) -> str:
        return self._cluster.site

    def topic_of(self, log: LogId) -> str:
        return self._topics[log]

    def log_ids(self) -> list[LogId]:
        return list(self._topics)


class WarmCluster(Cluster):
    """Its clients outlive the stores that close them: to make new ones takes ten times as long as an example does."""

    def __init__(self, site: str, settings: ServiceSettings, client_id: str) -> None:
        super().__init__(site, settings, client_id)
        self._clients: dict[str, Any] = {}
        self._closings: list[Callable[[], None]] = []

    def make_consumer(self, **options: Any) -> Any:
        return self._kept("consumer", lambda: super(WarmCluster, self).make_consumer(**options))

    def make_producer(self, **options: Any) -> Any:
        return self._kept("producer", lambda: super(WarmCluster, self).make_producer(**options))

    def make_admin(self, **options: Any) -> Any:
        return self._kept("admin", lambda: super(WarmCluster, self).make_admin(**options))

    def _kept(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._clients:
            client = self._clients[name] = make()
            self._closings.append(client.close)
            client.close = lambda **_: None
        return self._clients[name]

    def close(self) -> None:
        for close in self._closings:
            close()


class FreshLogStore(KafkaLogStore):
    """As the contract wants it, but not the services: a log that is absent is created."""

    def __init__(self, clusters: dict[str, Cluster], places: FreshPlaces, window_frames: int = WINDOW_FRAMES) -> None:
        super().__init__(clusters, places, window_frames)
        self._create = places.create

    def open(self, log: LogId) -> KafkaLog:
        self._create(log)
        return super().open(log)


def memory_checkpoints(_: pytest.FixtureRequest) -> CheckpointBackend:
    store = MemoryCheckpointStore()

    def damage(instance: str, number: int, change: Callable[[bytes], bytes]) -> None:
        store.blobs[instance][number] = change(store.blobs[instance][number])

    return CheckpointBackend(lambda: store, damage)


def file_checkpoints(request: pytest.FixtureRequest) -> CheckpointBackend:
    root = request.getfixturevalue("tmp_path") / "checkpoints"

    def damage(instance: str, number: int, change: Callable[[bytes], bytes]) -> None:
        path = root / f"{instance}.checkpoints" / f"{number:020d}.checkpoint"
        path.write_bytes(change(path.read_bytes()))

    return CheckpointBackend(lambda: FileCheckpointStore(root), damage)


def redis_checkpoints(request: pytest.FixtureRequest) -> CheckpointBackend:
    settings = RedisSettings(url=request.getfixturevalue("redis_server").url)
    query = request.getfixturevalue("fresh_name")

    def damage(instance: str, number: int, change: Callable[[bytes], bytes]) -> None:
        client: Any = connect_redis(settings)
        with closing(client):
            root = f"boreal:{query}:{quote(instance, safe='')}"
            blob = json.loads(client.hget(f"{root}:manifests", str(number)))["blob"]
            client.hset(f"{root}:blob:{blob}", "0", change(client.hget(f"{root}:blob:{blob}", "0")))

    return CheckpointBackend(lambda: RedisCheckpointStore(connect_redis(settings), query), damage)


LOGS = {
    "memory": memory_logs,
    "file": file_logs,
    "file, short segments": file_logs_of_short_segments,
    "kafka": kafka_logs,
    "kafka, short windows": kafka_logs_of_short_windows,
}
CHECKPOINTS = {"memory": memory_checkpoints, "file": file_checkpoints, "redis": redis_checkpoints}


@pytest.fixture(scope="session")
def kafka_cluster(kafka: KafkaServer) -> Iterator[Cluster]:
    settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)})
    with closing(WarmCluster("a", settings, "contract")) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=LOGS.values(), ids=LOGS)
def fresh_logs(request: pytest.FixtureRequest) -> Callable[[], LogBackend]:
    return lambda: request.param(request)


@pytest.fixture
def logs(fresh_logs: Callable[[], LogBackend]) -> Iterator[LogBackend]:
    with closing(fresh_logs()) as backend:
        yield backend


@pytest.fixture(params=CHECKPOINTS.values(), ids=CHECKPOINTS)
def checkpoints(request: pytest.FixtureRequest) -> Iterator[CheckpointBackend]:
    backend = request.param(request)
    yield backend
    backend.store.close()
