"""The implementations that every contract suite runs against: to try another, add it to the table.

A factory is called once a test (or once an example of a property) and gives a fresh, empty backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.log.base import LogStore
from services.log.file import FileLogStore
from services.log.memory import MemoryLogStore
from services.store.base import CheckpointStore
from services.store.file import FileCheckpointStore
from services.store.memory import MemoryCheckpointStore

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


def memory_logs(_: Path) -> LogBackend:
    store = MemoryLogStore()
    return LogBackend(lambda: store, trims_each_frame=True)


def file_logs(root: Path) -> LogBackend:
    return LogBackend(lambda: FileLogStore(root), trims_each_frame=False)


def file_logs_of_short_segments(root: Path) -> LogBackend:
    return LogBackend(lambda: FileLogStore(root, ONE_RECORD), trims_each_frame=True)


def memory_checkpoints(_: Path) -> CheckpointBackend:
    store = MemoryCheckpointStore()

    def damage(instance: str, number: int, change: Callable[[bytes], bytes]) -> None:
        store.blobs[instance][number] = change(store.blobs[instance][number])

    return CheckpointBackend(lambda: store, damage)


def file_checkpoints(root: Path) -> CheckpointBackend:
    def damage(instance: str, number: int, change: Callable[[bytes], bytes]) -> None:
        path = root / f"{instance}.checkpoints" / f"{number:020d}.checkpoint"
        path.write_bytes(change(path.read_bytes()))

    return CheckpointBackend(lambda: FileCheckpointStore(root), damage)


LOGS = {"memory": memory_logs, "file": file_logs, "file, short segments": file_logs_of_short_segments}
CHECKPOINTS = {"memory": memory_checkpoints, "file": file_checkpoints}


@pytest.fixture(scope="session", params=LOGS.values(), ids=LOGS)
def fresh_logs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], LogBackend]:
    return lambda: request.param(tmp_path_factory.mktemp("logs"))


@pytest.fixture
def logs(fresh_logs: Callable[[], LogBackend]) -> Iterator[LogBackend]:
    with closing(fresh_logs()) as backend:
        yield backend


@pytest.fixture(params=CHECKPOINTS.values(), ids=CHECKPOINTS)
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointBackend:
    return request.param(tmp_path / "checkpoints")
