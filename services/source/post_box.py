"""Takes rows that are posted to a source: sends them to the user's topic, or to disk while Kafka does not take them.

All rows enter through the user's topic. There a posted record waits like any other until the source has logged it, with the
same guarantees. So the spool only has to bring records into the topic:

    1. a record gets a number                             below those of all later records
    2. it is sent; or, if earlier ones are spooled or Kafka does not answer, it is spooled
    3. the client that posted it gets its answer          the record survives a crash of this process
    4. spooled records are sent, oldest first             they may have been sent before
    5. records that Kafka has acknowledged leave the spool

A crash between 4 and 5, or a lost acknowledgement, leads to repeated records in the topic, never to gaps; the source takes
each number once (intake.intake). All records go to partition 0, in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from boreal.model.errors import CorruptError
from intake.intake import POSTED_HEADER
from services.kafka.clusters import Cluster, close_producer
from services.source.spool import Spool, SpoolChunk, SpoolFull

STALLED_S = 1.0
"""How long Kafka may take for posted records before they are spooled."""
_PARTITION = 0

_logger = logging.getLogger("boreal.source")


class PostBox:
    """`post` may be called from any thread; the box has a thread that drains the spool."""

    def __init__(self, cluster: Cluster, topic: str, spool: Spool, refuse: Callable[[bytes, str], Any]) -> None:
        """refuse(record, reason): sends a dead letter and returns its future; `refused` counts them. `failure`: why no record
        is taken, while the spool cannot be read; else None. `is_full`: the spool has refused records since it was last
        empty."""
        self._topic = topic
        self._spool = spool
        self._refuse = refuse
        self._cluster = cluster
        self._producer: KafkaProducer | None = None
        self._condition = threading.Condition()
        self._is_closed = False
        self.is_full = False
        self.refused = 0
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._drain, name="spool", daemon=True)
        self._thread.start()

    @property
    def is_empty(self) -> bool:
        """Whether all posted records are in the user's topic."""
        return self._spool.is_empty

    @property
    def spooled_bytes(self) -> int:
        return self._spool.spooled_bytes

    def post(self, records: list[bytes]) -> bool:
        """Return when the records will survive a crash: True if Kafka has them, False if the disk has.

        SpoolFull, or OSError if the disk fails: the records may be lost. KafkaError if Kafka refuses them.
        """
        with self._condition:
            if self.failure is not None:
                raise OSError(self.failure)
            first = self._spool.numbers(len(records))
            is_sending = self._spool.is_empty
            if is_sending and self._send(first, records):
                return True
            try:
                self._spool.add(first, records)
            except (SpoolFull, OSError) as error:
                if is_sending:
                    # The producer would keep these records until Kafka is back, and again each time that they are posted.
                    self._drop_producer()
                if isinstance(error, SpoolFull):
                    if not self.is_full:
                        _logger.error("%s", error)
                    self.is_full = True
                raise
            finally:
                self._condition.notify()
            return False

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join(timeout=2)
        if self._producer is not None:
            close_producer(self._producer, 1)
        with self._condition:
            self._spool.close()

    def _send(self, first: int, records: list[bytes]) -> bool:
        """Whether Kafka has all records within STALLED_S. If not, it may still get them later. KafkaError if it refuses
        them."""
        try:
            return _are_sent(self._hand_over(first, records), time.monotonic() + STALLED_S)
        except OSError:
            return False
        except KafkaError as error:
            if error.retriable:
                return False
            self._drop_producer()
            raise

    def _hand_over(self, first: int, records: list[bytes]) -> list[Any]:
        """Pass the records to the producer, which retries by itself; returns their futures. A retriable KafkaError if the
        producer cannot reach Kafka; KafkaError or OSError if a producer cannot be made."""
        if self._producer is None:
            self._producer = self._cluster.make_producer(max_block_ms=int(STALLED_S * 1_000))
        send = self._producer.send
        return [
            send(self._topic, record, headers=[(POSTED_HEADER, str(number).encode())], partition=_PARTITION)
            for number, record in enumerate(records, start=first)
        ]

    def _deliver(self, chunk: SpoolChunk) -> bool:
        """Send a spooled chunk; whether Kafka has all of it. A record that is larger than the topic takes becomes a dead
        letter, because the client that posted it no longer waits. The chunk is passed to the producer once, however long an
        outage lasts; records that Kafka refuses for other reasons (such as a missing permission) are tried again."""
        try:
            sent = self._hand_over(chunk.first, chunk.records)
            refused: list[tuple[int, bytes]] = []
            taken = -1
            for number, (record, future) in enumerate(zip(chunk.records, sent, strict=True), start=chunk.first):
                try:
                    self._await(future)
                    taken = number
                except MessageSizeTooLargeError:
                    refused.append((number, record))
            if refused:
                self._drop_producer()
            # With such a record the producer may have dropped those after it. The source takes no number after a higher one.
            large = [record for number, record in refused if number < taken or self._is_too_large(number, record)]
            for letter in [self._refuse(record, f"too large for the topic: {len(record)} bytes") for record in large]:
                self._await(letter)
                self.refused += 1
            return True
        except KafkaTimeoutError:
            return False
        except (KafkaError, OSError) as error:
            if isinstance(error, OSError) or not error.retriable:
                _logger.error("Kafka refuses spooled records for %s, they stay spooled: %r", self._topic, error)
                self._drop_producer()
            with self._condition:
                self._pause()
            return False

    def _is_too_large(self, number: int, record: bytes) -> bool:
        """Send one record alone: True if Kafka refuses it as too large; else Kafka has it."""
        try:
            self._await(self._hand_over(number, [record])[0])
        except MessageSizeTooLargeError as error:
            _logger.error("a record of %d bytes is too large for %s: %s", len(record), self._topic, error)
            self._drop_producer()
            return True
        return False

    def _drop_producer(self) -> None:
        """Close the producer, with all that it has not sent; the next record makes a new one. After Kafka has refused a batch
        for good, all later records of that producer fail as well."""
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, 0)

    def _pause(self) -> None:
        """Wait before a retry, at most until we close. The caller holds the lock."""
        self._condition.wait_for(lambda: self._is_closed, STALLED_S)

    def _await(self, future: Any) -> None:
        """Wait until Kafka has a record. KafkaTimeoutError if the producer gives it up, or we close."""
        while not _are_sent([future], time.monotonic() + STALLED_S):
            if self._is_closed or future.failed():
                raise KafkaTimeoutError

    def _drain(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_closed or not self._spool.is_empty)
                if self._is_closed:
                    return
                if not (chunks := self._head()):
                    self._pause()
                    continue
            # Without the lock: records that are posted now are spooled, as long as the spool is not empty.
            for chunk in chunks:
                while not self._deliver(chunk):
                    if self._is_closed:
                        return
            with self._condition:
                try:
                    self._spool.drained(chunks)
                except OSError as error:
                    # Only the next incarnation needs it: it would send them again, and the source takes no number twice.
                    _logger.error("how far the spool for %s is drained cannot be written to disk: %s", self._topic, error)
                if self._spool.is_empty:
                    self.is_full = False
                    _logger.info("the spool is drained")

    def _head(self) -> list[SpoolChunk]:
        """The chunks to be sent next; none while the spool cannot be read."""
        try:
            chunks = self._spool.head()
        except (OSError, CorruptError) as error:
            if self.failure is None:
                self.failure = (
                    f"the spool in {self._spool.directory} cannot be read, and nothing more is taken: {error}; repair "
                    "the disk, or stop the source and move the directory away (its rows are not in Kafka)"
                )
                _logger.error("%s", self.failure)
            return []
        self.failure = None
        return chunks


def _are_sent(futures: list[Any], deadline: float) -> bool:
    """Whether Kafka has all records before the deadline, a time of `time.monotonic`. KafkaError if it refuses one."""
    try:
        for future in futures:
            future.get(timeout=max(deadline - time.monotonic(), 0))
    except KafkaTimeoutError:
        return False
    return True
