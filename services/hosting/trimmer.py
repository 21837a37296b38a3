"""Trims a process's own logs when the monitor says how far they may be, in a thread of its own: a trim asks the broker.

Now and then it tries them all: an idle log grows by its boundaries, whoever needs its rows, and nobody has to speak for
that to be trimmed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from kafka.errors import KafkaError

from boreal.model.errors import BorealError
from formats.control_messages import ControlItem
from logs.log import Log
from services.kafka.clusters import log_retry
from services.kafka.mailbox import Mailbox

TRY_ALL_S = 30.0

_logger = logging.getLogger("boreal.trimmer")


class Trimmer:
    """`logs`: those that this process writes, in any order."""

    def __init__(self, logs: Iterable[Log], try_all_s: float = TRY_ALL_S) -> None:
        self._logs = list(logs)
        self._try_all_s = try_all_s
        self._said: Mailbox[str, int] = Mailbox()
        self._thread = threading.Thread(target=self._run, name="trimmer", daemon=True)
        self._thread.start()

    def take(self, item: ControlItem) -> None:
        """A trim item of the control topic: per 'stream/partition', the first id that somebody still needs."""
        self._said.put(dict(item["trim"]))

    def close(self) -> None:
        self._said.close()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        needed: dict[str, int] = {}
        all_at = time.monotonic() + self._try_all_s
        while (said := self._said.take(max(all_at - time.monotonic(), 0))) is not None:
            needed.update(said)
            is_due = time.monotonic() >= all_at
            if is_due:
                all_at = time.monotonic() + self._try_all_s
            for log in self._logs:
                if is_due or log.id.key in said:
                    self._trim(log, needed.get(log.id.key, 0) - 1)

    def _trim(self, log: Log, stable_id: int) -> None:
        try:
            log.trim(stable_id)
        except (KafkaError, OSError) as error:
            # The monitor will say it again, and then further.
            log_retry(_logger, f"{log.id} is not trimmed", error)
        except BorealError as error:
            # A damaged record, say: it keeps what is before it, and nothing of the other logs.
            _logger.error("%s cannot be trimmed: %s", log.id, error)
