"""A simulated Redis: the commands of `services.storage.redis_checkpoints`, for the clients of all processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError, TimeoutError

from role_simulation.scheduler import scheduler
from services.storage.redis_checkpoints import COMMAND_TIMEOUT_S

COMMAND_US = 1_000
"""How long a command takes, at most."""


class SimulatedRedis:
    """All keys."""

    def __init__(self) -> None:
        self.is_up = True
        """Whether it takes connections."""
        self.is_silent = False
        """Whether it never answers."""
        self.hashes: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
        self.sets: defaultdict[str, set[bytes]] = defaultdict(set)
        self.version = 0
        """Rises with every change: a transaction fails if it has changed since the keys were read."""


class RedisClient:
    """As `redis.Redis`."""

    def __init__(self, server: SimulatedRedis) -> None:
        self._server = server

    def transaction(self, act: Callable[[Any], None], *watched: str) -> None:
        """As in redis-py: `act` reads, calls `multi`, and gives commands; it is called again if what it has read changes."""
        while True:
            before = self._server.version
            pipe = _Pipe(self)
            act(pipe)
            self._travel()
            if self._server.version == before:
                pipe.execute()
                return

    def close(self) -> None: ...

    def sismember(self, key: str, member: str) -> bool:
        self._travel()
        return member.encode() in self._server.sets[key]

    def smembers(self, key: str) -> set[bytes]:
        self._travel()
        return set(self._server.sets[key])

    def sadd(self, key: str, *members: str) -> None:
        self._change(lambda: self._server.sets[key].update(member.encode() for member in members))

    def srem(self, key: str, *members: str) -> None:
        self._change(lambda: self._server.sets[key].difference_update(member.encode() for member in members))

    def hset(self, key: str, field: str, value: str | bytes | memoryview) -> None:
        stored = value.encode() if isinstance(value, str) else bytes(value)
        self._change(lambda: self._server.hashes[key].update({field.encode(): stored}))

    def hget(self, key: str, field: str) -> bytes | None:
        self._travel()
        return self._server.hashes[key].get(field.encode())

    def hkeys(self, key: str) -> list[bytes]:
        self._travel()
        return list(self._server.hashes[key])

    def hvals(self, key: str) -> list[bytes]:
        self._travel()
        return list(self._server.hashes[key].values())

    def hdel(self, key: str, *fields: str) -> None:
        def delete() -> None:
            for field in fields:
                self._server.hashes[key].pop(field.encode(), None)

        self._change(delete)

    def unlink(self, *keys: str) -> None:
        def delete() -> None:
            for key in keys:
                self._server.hashes.pop(key, None)
                self._server.sets.pop(key, None)

        self._change(delete)

    delete = unlink

    def _change(self, act: Callable[[], None]) -> None:
        self._travel()
        act()
        self._server.version += 1

    def _travel(self) -> None:
        run = scheduler()
        run.sleep(run.rng.randrange(COMMAND_US))
        if not self._server.is_up:
            raise ConnectionError("Redis is down")
        if self._server.is_silent:
            run.sleep(round(COMMAND_TIMEOUT_S * 1e6))
            raise TimeoutError("Redis does not answer")


class _Pipe:
    """The pipeline of a transaction: commands before `multi` are carried out at once, those after it together."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._queued: list[Callable[[], Any]] | None = None

    def multi(self) -> None:
        self._queued = []

    def execute(self) -> None:
        for command in self._queued or ():
            command()

    def __getattr__(self, name: str) -> Any:
        command = getattr(self._client, name)
        if self._queued is None:
            return command
        return lambda *args: self._queued.append(lambda: command(*args))
