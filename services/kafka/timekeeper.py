"""The shared clock of this process (`deployment.clock`), synchronised with the home site's broker.

A question to the broker is a small record, sent to a topic where Kafka sets the timestamps of records. The acknowledgement
contains the timestamp.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from deployment.clock import SharedClock, pause_us
from services.kafka.clusters import Cluster, close_producer, log_retry
from services.kafka.topics import CLOCK

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The steady clock. CLOCK_BOOTTIME also counts while the machine is suspended. Otherwise processes that started before a
suspension would be behind those that started after it."""

RESOLUTION_US = 1_000
"""Resolution of Kafka's timestamps, which are truncated to milliseconds."""

FIRST_SAMPLES = 4
"""Number of measurements before a process takes its first timestamp. The first one includes the connection, so it is poor."""
FIRST_WITHIN_S = 2.0
"""Time limit for these measurements."""

_logger = logging.getLogger("boreal.clock")


def steady_us() -> int:
    """The steady clock, in us."""
    return time.clock_gettime_ns(_STEADY) // 1_000


def wall_us() -> int:
    """The wall clock, in us since the epoch."""
    return time.time_ns() // 1_000


class Timekeeper:
    """The shared clock of one process. All methods are thread-safe.

    All threads read the clock thousands of times a second. If each took a lock for that, all would wait for the one that the
    interpreter has just stopped, and then for each other. So a reader takes the lock only if the clock has changed meanwhile: a
    delayed thread must not use an old correction, and see the clock go back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clock = SharedClock(steady_us(), wall_us())
        self._version = 0  # odd while the clock changes
        self._questions = 0
        self._next_at = 0

    def now_us(self) -> int:
        """The time in us since the epoch; never falls."""
        version = self._version
        if not version & 1:
            now = self._clock.read(steady_us())
            if self._version == version:
                return now
        with self._lock:
            return self._clock.read(steady_us())

    def begin(self, cluster: Cluster) -> None:
        """Set the clock from the broker. Call this before taking any timestamp. While the broker is unreachable, or denies
        access, the wall clock is used."""
        self._follow_wall()  # it may have been set since this process started: a spare process starts early
        try:
            producer = cluster.make_producer(patient=False)
        except (KafkaError, OSError) as error:
            log_retry(_logger, "the home site's clock cannot be read", error)
            return
        given_up = time.monotonic() + FIRST_WITHIN_S
        asked = 0
        while asked < FIRST_SAMPLES and time.monotonic() < given_up:
            with suppress(KafkaError, OSError):
                self._ask(producer).get(timeout=FIRST_WITHIN_S)
            asked += 1
        close_producer(producer, 1)

    def keep(self, producer: KafkaProducer) -> None:
        """Ask the broker through this producer, if the next question is due. Call this about once a second. It does not wait
        for the answer, but blocks as long as the producer does if it has no metadata of the topic."""
        self._follow_wall()
        now = steady_us()
        if now >= self._next_at:
            self._questions += 1
            self._next_at = now + pause_us(self._questions)
            self._ask(producer)

    def status(self) -> dict[str, Any]:
        """Fields for the process's status, in ms; None until the broker has answered. clock_offset_ms: how far this machine's
        wall clock is ahead of the broker's; clock_uncertainty_ms: maximum error of that; clock_error_ms: how far the clock of
        this process is still ahead of the broker's."""
        with self._lock:
            steady = steady_us()
            facts = {
                "clock_offset_ms": self._clock.wall_offset(steady, wall_us()),
                "clock_uncertainty_ms": self._clock.uncertainty(steady),
                "clock_error_ms": self._clock.error(steady),
            }
        return {name: None if micros is None else micros / 1_000 for name, micros in facts.items()}

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """The only one that changes the clock. What it does by the steady clock, it must read inside."""
        with self._lock:
            self._version += 1
            try:
                yield
            finally:
                self._version += 1

    def _follow_wall(self) -> None:
        with self._changing():
            self._clock.follow_wall(steady_us(), wall_us())

    def _ask(self, producer: KafkaProducer) -> Any:
        """Ask the broker; returns the future of the answer, which is processed in the producer's thread."""
        sent = steady_us()
        future = producer.send(CLOCK, b"", partition=0)
        future.add_callback(lambda answer: self._take(sent, answer.timestamp))
        future.add_errback(lambda error: log_retry(_logger, "the home site's clock cannot be read", error))
        return future

    def _take(self, sent: int, stamp_ms: int) -> None:
        with self._changing():
            received = steady_us()
            earliest = stamp_ms * 1_000
            self._clock.take(sent, received, earliest, earliest + RESOLUTION_US - 1, received)
