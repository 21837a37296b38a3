"""Trims a process's own logs up to the ids that the monitor publishes. It has a thread, because a trim is a request
to the broker.

From time to time it tries all logs: the boundaries of an idle log can be trimmed without any message from the monitor.

The monitor may also take permissions back, for a query that is to read a log from its first row on. Only once no trim by an
earlier permission can be under way does the process say that it holds the rows for this claim (`deployment.joined_sources`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from kafka.errors import KafkaError

from boreal.model.errors import BorealError
from formats.control_messages import ControlItem
from logs.log import Log
from services.kafka.clusters import log_retry
from services.kafka.mailbox import Mailbox

TRY_ALL_S = 30.0
MOST_HOLDS = 100
"""How many claims are remembered: each is needed for some seconds."""

_logger = logging.getLogger("boreal.trimmer")


class Trimmer:
    """Trims `logs`, those that this process writes, until it is closed."""

    def __init__(self, logs: Iterable[Log], try_all_s: float = TRY_ALL_S) -> None:
        self._logs = list(logs)
        self._try_all_s = try_all_s
        self.on_hold: Callable[[], None] = lambda: None
        """Called in the trimmer's thread when `holds` has changed."""
        self._said: Mailbox[tuple[str, str], int] = Mailbox()
        self._holds: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="trimmer", daemon=True)
        self._thread.start()

    def take(self, item: ControlItem) -> None:
        """Take a trim item of the control topic: for each 'stream/partition', the first id that a reader still needs."""
        said = {("trim", str(key)): int(needed) for key, needed in item["trim"]}
        self._said.put({**said, ("hold", str(item["hold"])): 0} if "hold" in item else said)

    @property
    def holds(self) -> tuple[str, ...]:
        """The last claims for which all rows of their logs are held."""
        return self._holds

    def close(self) -> None:
        self._said.close()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        needed: dict[str, int] = {}
        all_at = time.monotonic() + self._try_all_s
        while (said := self._said.take(max(all_at - time.monotonic(), 0))) is not None:
            needed.update({key: first_id for (kind, key), first_id in said.items() if kind == "trim"})
            if claims := [name for kind, name in said if kind == "hold"]:
                self._holds = (*self._holds, *claims)[-MOST_HOLDS:]
                self.on_hold()
            is_due = time.monotonic() >= all_at
            if is_due:
                all_at = time.monotonic() + self._try_all_s
            for log in self._logs:
                if is_due or ("trim", log.id.key) in said:
                    self._trim(log, needed.get(log.id.key, 0) - 1)

    def _trim(self, log: Log, stable_id: int) -> None:
        try:
            log.trim(stable_id)
        except (KafkaError, OSError) as error:
            # The monitor will send a later id again.
            log_retry(_logger, f"{log.id} is not trimmed", error)
        except BorealError as error:
            # For example a damaged record: the frames before it stay, and the other logs are still trimmed.
            _logger.error("%s cannot be trimmed: %s", log.id, error)
