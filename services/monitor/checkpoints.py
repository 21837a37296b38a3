"""Drops the checkpoints that no restart can need: those before the newest sound one. The newest two always stay. A state with
which a version has begun goes once the rows that follow it may be trimmed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable

from redis import Redis

from deployment.carried_states import is_carried
from deployment.watched_query import WatchedQuery
from logs.checkpoints import CheckpointStore, StoreUnavailableError
from services.storage.redis_checkpoints import RedisCheckpointStore

SWEEP_INTERVAL_S = 10.0
RETRY_S = 1.0
"""How soon Redis is tried again that was out of reach."""
KEPT = 2

OnDamage = Callable[[str, str, int], None]
"""Called with (query, instance, number), once for each damaged checkpoint, in the sweeper's thread."""

_logger = logging.getLogger("boreal.monitor")


def drop_old(store: CheckpointStore, instance: str) -> None:
    """Keep the newest sound checkpoint of an instance, all after it, and at least the newest two.

    Reads the newest checkpoint completely, but only if there is one to drop. StoreUnavailable as the store.
    """
    numbers = store.numbers(instance)
    if len(numbers) <= KEPT:
        return
    sound = store.latest(instance)
    if sound is not None:
        store.drop(instance, min(numbers[-KEPT], sound.number))


def drop_carried(store: CheckpointStore, owner: str, needed: Collection[tuple[str, int]]) -> None:
    """Drop the states of an owner with which no version begins. needed: `WatchedQuery.states_to_begin_with`. StoreUnavailable
    as the store."""
    numbers = store.numbers(owner)
    if numbers:
        store.drop(owner, min((number for name, number in needed if name == owner), default=numbers[-1] + 1))


class CheckpointSweeper:
    """A thread that drops old checkpoints of all queries, as long as the process lives. While Redis is out of reach
    `is_reachable` is False, and the thread retries."""

    def __init__(self, client: Redis, queries: Callable[[], Iterable[WatchedQuery]], on_damage: OnDamage) -> None:
        """queries: returns all queries; called in the sweeper's thread."""
        self.is_reachable = True
        self._client = client
        self._queries = queries
        self._on_damage = on_damage
        self._known: set[tuple[str, str, int]] = set()
        threading.Thread(target=self._run, name="checkpoints", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                for query in self._queries():
                    self._sweep(query)
                self.is_reachable = True
            except StoreUnavailableError as error:
                if self.is_reachable:
                    _logger.warning("old checkpoints are kept for now: %s", error)
                self.is_reachable = False
            time.sleep(SWEEP_INTERVAL_S if self.is_reachable else RETRY_S)

    def _sweep(self, watched: WatchedQuery) -> None:
        query, needed = watched.record.name, watched.states_to_begin_with()
        store = RedisCheckpointStore(self._client, prefix=query)
        for instance in store.instances():
            if not is_carried(instance):
                drop_old(store, instance)
            elif needed is not None:
                drop_carried(store, instance, needed)
        for instance, number in store.damaged:
            if (query, instance, number) not in self._known:
                self._known.add((query, instance, number))
                self._on_damage(query, instance, number)
