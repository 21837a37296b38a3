"""Rows that are posted to the API, into the topics that the sources read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from api.installation import BusyError, UnavailableError
from boreal.model.errors import UserError
from services.kafka.clusters import Cluster, close_producer

WITHIN_S = 5.0
"""How long Kafka may take for the rows of one call."""
UNDER_WAY_BYTES = 64 << 20
"""Rows that Kafka has not acknowledged yet, of all calls together."""
_PARTITION = 0


class Posts:
    """Sends records, and waits until Kafka has them. May be called from any thread."""

    def __init__(self, clusters: Mapping[str, Cluster]) -> None:
        self._clusters = clusters
        self._producers: dict[str, KafkaProducer] = {}
        self._lock = threading.Lock()
        self._under_way = 0

    def post(self, site: str, topic: str, records: Sequence[bytes]) -> None:
        """See `Installation.append`. All go to one partition, in their order."""
        with self._room_for(sum(len(record) for record in records)):
            deadline = time.monotonic() + WITHIN_S
            try:
                producer = self._producer(site)
                sent = [producer.send(topic, record, partition=_PARTITION) for record in records]
                for future in sent:
                    future.get(timeout=max(deadline - time.monotonic(), 0))
            except MessageSizeTooLargeError:
                self._drop(site)
                raise UserError("body", None, "has a row that is larger than the topic takes", "send smaller rows") from None
            except (KafkaError, OSError) as error:
                # What it still holds must not be sent later: the caller sends it again.
                self._drop(site)
                what = "does not answer" if isinstance(error, KafkaTimeoutError) else f"refuses rows: {error}"
                problem = f"site {site} {what}; some of the rows may have been taken"
                raise UnavailableError("body", None, problem, "send them again soon") from None

    def close(self) -> None:
        for site in list(self._producers):
            self._drop(site)

    @contextmanager
    def _room_for(self, size: int) -> Iterator[None]:
        with self._lock:
            if self._under_way and self._under_way + size > UNDER_WAY_BYTES:
                raise BusyError("body", None, "comes faster than Kafka takes it", "send it again soon, or less at once")
            self._under_way += size
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= size

    def _producer(self, site: str) -> KafkaProducer:
        with self._lock:
            if site not in self._producers:
                limit_ms = int(WITHIN_S * 1_000)
                self._producers[site] = self._clusters[site].make_producer(max_block_ms=limit_ms, delivery_timeout_ms=limit_ms)
            return self._producers[site]

    def _drop(self, site: str) -> None:
        with self._lock:
            producer = self._producers.pop(site, None)
        if producer is not None:
            close_producer(producer, 0)
