"""The consumers with which followed logs of one site are read alone, kept for the next follower.

Making one takes longer than a reader may be silent, and some 20 ms of processor time. Where a machine has too little of it,
readers are late, and so change from one replica's log to another's again and again: then consumers that are made for each of
them would leave even less.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kafka import KafkaConsumer
from kafka.errors import KafkaError

from services.kafka.clusters import Cluster
from services.storage.log_partition import make_log_consumer

FETCH_WAIT_MS = 250
"""How long a fetch waits at a log's end: longer than an idle log is silent, but short, since it may delay a fetch from another
offset."""
MOST_READY = 8
"""So many are ready at most before they are needed: readers of as many logs may change to another one at one moment."""
MOST_KEPT = 16
"""So many are kept at most after they were needed."""

_logger = logging.getLogger("boreal.follow")


class LogConsumers:
    """See the module's header. All methods may be called from any thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._ready: deque[KafkaConsumer] = deque()
        """Those that nobody uses; the last fetch of the first one is the longest ago."""
        self._readers = 0
        self._being_made = 0
        self._is_closed = False

    def join(self) -> None:
        """One more reads logs of the site, and may soon need a consumer."""
        with self._lock:
            self._readers += 1
            lacks = len(self._ready) + self._being_made < min(self._readers, MOST_READY)
        if lacks:
            self._make_ready()

    def leave(self) -> None:
        """One of those who joined needs none any more."""
        with self._lock:
            self._readers -= 1
            unused = [] if self._readers else self._take_ready()
        _close(unused)

    @contextmanager
    def lend(self) -> Iterator[KafkaConsumer]:
        """A consumer for one thread, which assigns what it reads. KafkaError if none can be made. One with which something has
        failed is not used again."""
        with self._lock:
            consumer = self._ready.popleft() if self._ready else None
            is_last = not self._ready and not self._being_made
        if is_last:
            self._make_ready()
        if consumer is None:
            consumer = self._make()
        try:
            yield consumer
        except BaseException:
            consumer.close(autocommit=False)
            raise
        self._keep(consumer)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            unused = self._take_ready()
        _close(unused)

    def _take_ready(self) -> list[KafkaConsumer]:
        """All that nobody uses. Call with the lock."""
        ready, self._ready = list(self._ready), deque()
        return ready

    def _keep(self, consumer: KafkaConsumer) -> None:
        """Nobody uses a consumer now."""
        with self._lock:
            if not self._is_closed and self._readers and len(self._ready) < MOST_KEPT:
                self._ready.append(consumer)
                return
        consumer.close(autocommit=False)

    def _make(self) -> KafkaConsumer:
        return make_log_consumer(self._cluster, fetch_max_wait_ms=FETCH_WAIT_MS)

    def _make_ready(self) -> None:
        """Make one more, in another thread."""
        with self._lock:
            self._being_made += 1
        threading.Thread(target=self._fill, name=f"spare-{self._cluster.site}", daemon=True).start()

    def _fill(self) -> None:
        consumer: KafkaConsumer | None = None
        try:
            consumer = self._make()
        except (KafkaError, OSError) as error:
            _logger.debug("no spare consumer can be created: %r", error)
        with self._lock:
            self._being_made -= 1
        if consumer is not None:
            self._keep(consumer)


def _close(consumers: Iterable[KafkaConsumer]) -> None:
    for consumer in consumers:
        consumer.close(autocommit=False)
