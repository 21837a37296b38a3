"""Trims a process's own logs when the monitor says how far they may be, in a thread of its own: a trim asks the broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from kafka.errors import KafkaError

from services.control import Item
from services.log.base import Log

_logger = logging.getLogger("boreal.trimmer")


class Trimmer:
    """`logs`: those that this process writes, in any order."""

    def __init__(self, logs: Iterable[Log]) -> None:
        self._logs = list(logs)
        self._needed: dict[str, int] = {}
        self._condition = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="trimmer", daemon=True)
        self._thread.start()

    def take(self, item: Item) -> None:
        """A trim item of the control topic: per 'stream/partition', the first id that somebody still needs."""
        with self._condition:
            self._needed.update((key, needed) for key, needed in item["trim"])
            self._condition.notify()

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._needed and not self._is_closed:
                    self._condition.wait()
                if self._is_closed:
                    return
                needed, self._needed = self._needed, {}
            for log in self._logs:
                if needed.get(log.id.key, 0) > 0:
                    self._trim(log, needed[log.id.key] - 1)

    def _trim(self, log: Log, stable_id: int) -> None:
        try:
            log.trim(stable_id)
        except (KafkaError, OSError) as error:
            # The monitor will say it again, and then further.
            _logger.debug("%s is not trimmed now: %r", log.id, error)
