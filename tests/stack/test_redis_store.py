"""What a real Redis adds to the contract of checkpoint stores: size, crashes in mid-put, several processes, an outage."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from boreal.model.errors import CorruptError
from logs.checkpoints import Checkpoint, StoreUnavailableError
from services.kafka.settings import RedisSettings
from services.stack.servers import RedisServer
from services.storage import redis_checkpoints as redis_store
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis

pytestmark = pytest.mark.usefixtures("servers")

NAME = "main.r0.0"
SOON_S = 2.0


def checkpoint(number: int, instance: str = NAME, state: bytes = b"state") -> Checkpoint:
    return Checkpoint(instance, number, 1000 * number, -5, (("out/0", 7),), (("jfk/0", 3),), state)


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    with closing(connect_redis(RedisSettings(url=redis_server.url))) as client:
        yield client


@pytest.fixture
def store(client: Redis, fresh_name: str) -> RedisCheckpointStore:
    return RedisCheckpointStore(client, fresh_name)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "CHUNK_BYTES", 100)


def keys(client: Redis, query: str) -> list[str]:
    return sorted(key.decode() for key in client.scan_iter(f"boreal:{query}:*", count=1000))


def test_a_state_of_many_chunks_comes_back_as_it_was(store: RedisCheckpointStore):
    state = random.Random(1).randbytes(3 * redis_store.CHUNK_BYTES)
    store.put(checkpoint(1, state=state))
    assert store.latest(NAME) == checkpoint(1, state=state)
    store.put(checkpoint(2, state=b""))
    assert store.latest(NAME) == checkpoint(2, state=b"")


class Died(Exception):
    """The process ends here."""


class DyingClient:
    """A client that dies just before its n-th command."""

    def __init__(self, client: Redis, commands: int) -> None:
        self.client = client
        self.left = commands

    def __getattr__(self, name: str) -> object:
        self.left -= 1
        if self.left < 0:
            raise Died(name)
        return getattr(self.client, name)


def put_until_it_dies(client: Redis, query: str, one: Checkpoint, commands: int) -> bool:
    """Whether the put went through."""
    try:
        RedisCheckpointStore(DyingClient(client, commands), query).put(one)  # type: ignore[arg-type]
    except Died:
        return False
    return True


@pytest.mark.usefixtures("small_chunks")
def test_a_put_that_dies_anywhere_leaves_the_older_ones_and_nothing_behind(
    client: Redis, store: RedisCheckpointStore, fresh_name: str
):
    old, new = checkpoint(1, state=b"old" * 300), checkpoint(2, state=b"new" * 300)
    store.put(old)
    clean = len(keys(client, fresh_name))
    for commands in range(100):
        if put_until_it_dies(client, fresh_name, new, commands):
            break
        found = store.numbers(NAME)
        assert store.latest(NAME) == (new if found == [1, 2] else old)
        store.drop(NAME, 1)
        store.put(checkpoint(2, state=b"other"))
        store.put(old)
        assert len(keys(client, fresh_name)) == clean + 1
        client.hdel(f"boreal:{fresh_name}:{NAME}:manifests", "2")
        store.drop(NAME, 3)
        assert [key for key in keys(client, fresh_name) if ":blob" in key] == []
        store.put(old)
    assert commands > 12
    assert store.damaged == []


@pytest.mark.usefixtures("small_chunks")
def test_puts_that_never_finish_do_not_fill_the_store(client: Redis, store: RedisCheckpointStore, fresh_name: str):
    """A Redis that is slow, or full, and a put that is tried again every second."""
    clean = None
    for _ in range(4):
        assert not put_until_it_dies(client, fresh_name, checkpoint(1, state=b"x" * 1_000), commands=10)
        clean = clean or len(keys(client, fresh_name))
        assert len(keys(client, fresh_name)) == clean


@pytest.mark.usefixtures("small_chunks")
def test_a_second_put_of_a_number_that_dies_anywhere_leaves_one_of_the_two(
    client: Redis, store: RedisCheckpointStore, fresh_name: str
):
    old, new = checkpoint(1, state=b"old" * 300), checkpoint(1, state=b"new" * 300)
    for commands in range(100):
        store.put(old)
        done = put_until_it_dies(client, fresh_name, new, commands)
        assert store.get(NAME, 1) in ([new] if done else [old, new])
        store.drop(NAME, 2)
        assert [key for key in keys(client, fresh_name) if ":blob" in key] == []
        if done:
            break
    assert store.damaged == []


@pytest.mark.usefixtures("small_chunks")
def test_a_drop_of_older_ones_leaves_a_put_that_goes_on_alone(client: Redis, store: RedisCheckpointStore, fresh_name: str):
    """The monitor drops while the node puts; but a later life's put ends an older life's."""
    paused = PausingClient(client)
    putting = threading.Thread(target=RedisCheckpointStore(paused, fresh_name).put, args=(checkpoint(5, state=b"x" * 900),))  # type: ignore[arg-type]
    for number in (1, 2, 3):
        store.put(checkpoint(number))
    putting.start()
    assert paused.reached.wait(5)
    store.drop(NAME, 3)
    paused.go_on.set()
    putting.join(5)
    assert store.numbers(NAME) == [3, 5]
    assert store.get(NAME, 5).state == b"x" * 900


@pytest.mark.usefixtures("small_chunks")
def test_a_put_of_an_older_life_fails_once_a_later_one_has_put(client: Redis, store: RedisCheckpointStore, fresh_name: str):
    paused = PausingClient(client)
    failures: list[Exception] = []

    def put() -> None:
        try:
            RedisCheckpointStore(paused, fresh_name).put(checkpoint(5, state=b"x" * 900))  # type: ignore[arg-type]
        except StoreUnavailableError as error:
            failures.append(error)

    putting = threading.Thread(target=put)
    putting.start()
    assert paused.reached.wait(5)
    store.put(checkpoint(6))
    paused.go_on.set()
    putting.join(5)
    assert "a later incarnation has removed the unfinished checkpoint" in str(failures[0])
    assert store.numbers(NAME) == [6]
    store.drop(NAME, 7)
    assert [key for key in keys(client, fresh_name) if ":blob" in key] == []


class PausingClient:
    """A client that waits before its fourth chunk."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def hset(self, key: str, field: str, value: bytes) -> object:
        if field == "3":
            self.reached.set()
            assert self.go_on.wait(5)
        return self.client.hset(key, field, value)

    def __getattr__(self, name: str) -> object:
        return getattr(self.client, name)


@pytest.mark.usefixtures("small_chunks")
def test_a_reader_never_takes_a_replacement_for_damage(client: Redis, store: RedisCheckpointStore):
    """Puts of one number follow each other while another process reads it."""
    store.put(checkpoint(1, state=b"0" * 3000))
    over = threading.Event()

    def put_on() -> None:
        try:
            for turn in range(1, 40):
                store.put(checkpoint(1, state=bytes([turn]) * 3000))
        finally:
            over.set()

    putting = threading.Thread(target=put_on)
    putting.start()
    reads = 0
    while not over.is_set():
        state = store.get(NAME, 1).state
        assert state == state[:1] * 3000
        reads += 1
    putting.join()
    assert reads > 1


def test_lost_and_foreign_chunks_are_damage(client: Redis, store: RedisCheckpointStore, fresh_name: str):
    for number in (1, 2, 3, 4, 5):
        store.put(checkpoint(number, state=bytes([number]) * 100))
    root = f"boreal:{fresh_name}:{NAME}"
    names = [str(blob, "ascii") for blob in client.smembers(f"{root}:blobs")]  # type: ignore[arg-type]
    blobs = {int(name.split(".")[0]): name for name in names}
    client.unlink(f"{root}:blob:{blobs[5]}")
    client.hset(f"{root}:blob:{blobs[4]}", "0", client.hget(f"{root}:blob:{blobs[3]}", "0"))
    client.hset(f"{root}:manifests", "3", b'{"v":9,"blob":"","sizes":[],"sha256":""}')
    client.hset(f"{root}:manifests", "2", b"nonsense")
    assert store.latest(NAME) == checkpoint(1, state=b"\1" * 100)
    assert store.damaged == [(NAME, 5), (NAME, 4), (NAME, 3), (NAME, 2)]
    with pytest.raises(CorruptError, match="chunk 1 of 1 has 0 bytes"):
        store.get(NAME, 5)
    with pytest.raises(CorruptError, match="do not match the manifest"):
        store.get(NAME, 4)
    with pytest.raises(CorruptError, match="unknown version of checkpoint manifest: 9"):
        store.get(NAME, 3)
    with pytest.raises(CorruptError, match="not a checkpoint's manifest"):
        store.get(NAME, 2)


def test_forget_removes_all_of_a_query_and_nothing_else(client: Redis, fresh_name: str):
    store, other = RedisCheckpointStore(client, fresh_name), RedisCheckpointStore(client, fresh_name + "x")
    for instance in ("main.r0.0", "main.r1.0", "merge.r0.0"):
        store.put(checkpoint(1, instance))
        other.put(checkpoint(1, instance))
    put_until_it_dies(client, fresh_name, checkpoint(2, "count.r0.0", b"x"), 3)
    store.forget("main.")
    assert store.instances() == ["count.r0.0", "merge.r0.0"]
    assert store.numbers("main.r0.0") == []
    store.forget()
    assert keys(client, fresh_name) == []
    assert other.numbers("main.r1.0") == [1]
    other.forget()


def test_nothing_expires(client: Redis, store: RedisCheckpointStore, fresh_name: str):
    store.put(checkpoint(1))
    found = keys(client, fresh_name)
    assert found and all(client.ttl(key) == -1 for key in found)


def test_a_wiped_redis_has_no_checkpoints_and_takes_new_ones(tmp_path: Path):
    with RedisServer(tmp_path / "redis") as server, closing(store_at(server.url)) as store:
        store.put(checkpoint(7))
        server.wipe()
        assert store.latest(NAME) is None
        assert store.numbers(NAME) == []
        store.drop(NAME, 7)
        store.put(checkpoint(8))
        assert store.latest(NAME) == checkpoint(8)


def store_at(url: str, password: str | None = None) -> RedisCheckpointStore:
    return RedisCheckpointStore(connect_redis(RedisSettings.model_validate({"url": url, "password": password})), "q")


def within(seconds: float, action: Callable[[], object]) -> None:
    """The action ends as StoreUnavailableError, in time: in one of three tries, since others may have the machine in one."""

    def taken_s() -> float:
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            action()
        return time.monotonic() - started

    assert any(taken_s() < seconds for _ in range(3))


def test_an_outage_is_told_soon_and_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redis_store, "COMMAND_TIMEOUT_S", 0.3)
    with RedisServer(tmp_path / "redis") as server, closing(store_at(server.url)) as store:
        actions: list[Callable[[], object]] = [
            lambda: store.put(checkpoint(2)),
            lambda: store.latest(NAME),
            lambda: store.get(NAME, 1),
            lambda: store.drop(NAME, 1),
            lambda: store.forget(),
        ]
        store.put(checkpoint(1))
        server.pause()
        for action in actions:
            within(SOON_S, action)
        server.resume()
        assert store.latest(NAME) in (checkpoint(1), checkpoint(2))
        server.kill()
        for action in actions:
            within(1.0, action)
        server.start()
        assert store.latest(NAME) in (checkpoint(1), checkpoint(2))


def test_a_password_is_used_and_never_told(tmp_path: Path):
    with RedisServer(tmp_path / "redis", password="tell-nobody") as server:
        address = f"redis://127.0.0.1:{server.port}/0"
        with closing(store_at(address, "tell-nobody")) as store:
            store.put(checkpoint(1))
            assert store.numbers(NAME) == [1]
        with closing(store_at(address, "tell-other")) as store, pytest.raises(StoreUnavailableError) as caught:
            store.numbers(NAME)
        assert "tell" not in str(caught.value)


def test_a_full_redis_is_unavailable_and_keeps_what_it_has(tmp_path: Path):
    with RedisServer(tmp_path / "redis") as server:
        client = connect_redis(RedisSettings(url=server.url))
        with closing(RedisCheckpointStore(client, "q")) as store:
            store.put(checkpoint(1))
            client.config_set("maxmemory", client.info("memory")["used_memory"] + (6 << 20))
            within(SOON_S, lambda: store.put(checkpoint(2, state=os.urandom(20 << 20))))
            assert store.latest(NAME) == checkpoint(1)
            client.config_set("maxmemory", 0)
            store.put(checkpoint(3))
            assert store.numbers(NAME) == [1, 3]


def test_other_errors_of_redis_are_told_as_such(store: RedisCheckpointStore, client: Redis, fresh_name: str):
    client.set(f"boreal:{fresh_name}:{NAME}:manifests", "not a hash")
    with pytest.raises(StoreUnavailableError, match="WRONGTYPE") as caught:
        store.numbers(NAME)
    assert isinstance(caught.value.__cause__, RedisError)
