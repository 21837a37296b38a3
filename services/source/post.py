"""Rows that are posted to a source: into the user's topic when Kafka takes them, to disk while it does not.

The user's topic is the one way in. There a posted record waits like any other until the source has logged it, and all
that is promised of records there holds for it. So the spool only has to bring records into the topic:

    1. a record is given a number                         below those of all later records
    2. it is sent; or, if earlier ones are spooled or Kafka does not answer, it is spooled
    3. whoever posted it is answered                      it outlasts our crash
    4. what is spooled is sent, oldest first              it may have been sent before
    5. what Kafka has acknowledged leaves the spool

A crash between 4 and 5, and an answer of Kafka's that was lost, lead to repetitions in the topic, never to gaps; the
source takes no number twice (intake.intake). All go to partition 0, in their order.
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
from services.source.spool import Chunk, Spool, SpoolFull

STALLED_S = 1.0
"""How long Kafka may take for what is posted before it is spooled."""
_PARTITION = 0

_logger = logging.getLogger("boreal.source")


class PostBox:
    """`post` may be called from any thread; the spool is drained in a thread of ours."""

    def __init__(self, cluster: Cluster, topic: str, spool: Spool, refuse: Callable[[bytes, str], Any]) -> None:
        """refuse: makes a dead letter of a record, for a reason; returns its future. `refused` counts them. `failure` says why
        nothing more is taken, while what is spooled cannot be read."""
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
        """Whether all that was posted is in the user's topic."""
        return self._spool.is_empty

    @property
    def spooled_bytes(self) -> int:
        return self._spool.spooled_bytes

    def post(self, records: list[bytes]) -> bool:
        """Returns when the records outlast a crash: True if Kafka has them, False if the disk has.

        Raises SpoolFull, or OSError where the disk fails, and nothing of them is kept for sure; KafkaError where Kafka
        refuses them.
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
                    # It would keep them until Kafka is back, and with them each time that they are posted again.
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
        """Whether Kafka has all records within STALLED_S. It may come to have them later, all the same. KafkaError if it
        refuses them."""
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
        """Give the records to the producer, which goes on trying by itself. A retriable KafkaError where it does not know
        Kafka; that, or OSError, where one has to be made and cannot be."""
        if self._producer is None:
            self._producer = self._cluster.make_producer(max_block_ms=int(STALLED_S * 1_000))
        send = self._producer.send
        return [
            send(self._topic, record, headers=[(POSTED_HEADER, str(number).encode())], partition=_PARTITION)
            for number, record in enumerate(records, start=first)
        ]

    def _deliver(self, chunk: Chunk) -> bool:
        """Whether what is spooled has its place: in Kafka, or, where a record is larger than the topic takes, among the dead
        letters, since nobody is there any more who could be told. It is handed over once, however long an outage lasts; what
        Kafka refuses otherwise (it may not let us write now) is tried again."""
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
            # With such a record what was behind it may have been given up. The source takes no number after a higher one.
            large = [record for number, record in refused if number < taken or self._is_too_large(number, record)]
            for letter in [self._refuse(record, f"too large for the topic: {len(record)} bytes") for record in large]:
                self._await(letter)
                self.refused += 1
            return True
        except KafkaTimeoutError:
            return False
        except (KafkaError, OSError) as error:
            if isinstance(error, OSError) or not error.retriable:
                _logger.error("what is spooled for %s is refused, and stays spooled: %r", self._topic, error)
                self._drop_producer()
            with self._condition:
                self._pause()
            return False

    def _is_too_large(self, number: int, record: bytes) -> bool:
        """Whether Kafka refuses a record on its own; it has it if not."""
        try:
            self._await(self._hand_over(number, [record])[0])
        except MessageSizeTooLargeError as error:
            _logger.error("a record of %d bytes is too large for %s: %s", len(record), self._topic, error)
            self._drop_producer()
            return True
        return False

    def _drop_producer(self) -> None:
        """With what it has not sent yet; the next record has a new one made. Once Kafka has refused a batch of a producer's for
        good, whatever that one sends next fails as well."""
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, 0)

    def _pause(self) -> None:
        """With the lock: before something is tried again, unless we close."""
        self._condition.wait_for(lambda: self._is_closed, STALLED_S)

    def _await(self, future: Any) -> None:
        """Until Kafka has a record, however long that takes. KafkaTimeoutError where that takes too long, or we close."""
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
            # Without the lock: those who post meanwhile spool, as long as there is something to drain.
            for chunk in chunks:
                while not self._deliver(chunk):
                    if self._is_closed:
                        return
            with self._condition:
                try:
                    self._spool.drained(chunks)
                except OSError as error:
                    # Only the next life has to know: it would send them again, and the source takes no number twice.
                    _logger.error("the disk does not take how far the spool for %s is drained: %s", self._topic, error)
                if self._spool.is_empty:
                    self.is_full = False
                    _logger.info("the spool is drained")

    def _head(self) -> list[Chunk]:
        """What is to be sent next; nothing while it cannot be read."""
        try:
            chunks = self._spool.head()
        except (OSError, CorruptError) as error:
            if self.failure is None:
                self.failure = (
                    f"the spool in {self._spool.directory} cannot be read, and nothing more is taken: {error}; mend the disk, "
                    "or stop the source and move the directory away, with the rows that it holds"
                )
                _logger.error("%s", self.failure)
            return []
        self.failure = None
        return chunks


def _are_sent(futures: list[Any], deadline: float) -> bool:
    """Whether Kafka has all records before the deadline. KafkaError for one that it refuses."""
    try:
        for future in futures:
            future.get(timeout=max(deadline - time.monotonic(), 0))
    except KafkaTimeoutError:
        return False
    return True
