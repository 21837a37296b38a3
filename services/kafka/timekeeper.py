"""The shared clock of this process (`deployment.clock`), kept right by what the home site's broker says.

The broker is asked by a tiny record into a topic where Kafka stamps what it appends: the acknowledgement carries the stamp.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from deployment.clock import SharedClock, pause_us
from services.kafka.clusters import Cluster, close_producer, log_retry
from services.kafka.topics import CLOCK

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's also counts the time that the machine sleeps: otherwise processes that began before would stay behind later ones."""

RESOLUTION_US = 1_000
"""Kafka's stamps are whole milliseconds, cut off."""

FIRST_SAMPLES = 4
"""Before a process stamps anything. The first one also waits for the connection, and tells little."""
FIRST_WITHIN_S = 2.0

_logger = logging.getLogger("boreal.clock")


def steady_us() -> int:
    return time.clock_gettime_ns(_STEADY) // 1_000


def wall_us() -> int:
    return time.time_ns() // 1_000


class Timekeeper:
    """One process's shared clock. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clock = SharedClock(steady_us(), wall_us())
        self._questions = 0
        self._next_at = 0

    def now_us(self) -> int:
        # Under the lock, or a thread that was held up in between would see an older course, and the clock go back.
        with self._lock:
            return self._clock.read(steady_us())

    def begin(self, cluster: Cluster) -> None:
        """To be called before anything is stamped: the clock is set by the broker. Where that cannot be reached, or does not
        let us, the wall has to do until it answers."""
        self._follow_wall()  # it may have been set since this process was started, as a spare one
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
        """To be called about once a second: asks the broker through this producer where it is time to. Does not wait for the
        answer, but for as long as the producer does where it knows nothing of the topic."""
        self._follow_wall()
        now = steady_us()
        if now >= self._next_at:
            self._questions += 1
            self._next_at = now + pause_us(self._questions)
            self._ask(producer)

    def status(self) -> dict[str, Any]:
        """For the process's status, in milliseconds; None until the broker has answered. clock_offset_ms: how far this
        machine's wall clock is ahead of the broker's; clock_uncertainty_ms: by how much that may be wrong; clock_error_ms:
        how far the clock of this process is still ahead of the broker's."""
        with self._lock:
            steady = steady_us()
            facts = {
                "clock_offset_ms": self._clock.wall_offset(steady, wall_us()),
                "clock_uncertainty_ms": self._clock.uncertainty(steady),
                "clock_error_ms": self._clock.error(steady),
            }
        return {name: None if micros is None else micros / 1_000 for name, micros in facts.items()}

    def _follow_wall(self) -> None:
        with self._lock:
            self._clock.follow_wall(steady_us(), wall_us())

    def _ask(self, producer: KafkaProducer) -> Any:
        """Returns the future of the broker's answer, which is taken in the producer's thread."""
        sent = steady_us()
        future = producer.send(CLOCK, b"", partition=0)
        future.add_callback(lambda answer: self._take(sent, answer.timestamp))
        future.add_errback(lambda error: log_retry(_logger, "the home site's clock cannot be read", error))
        return future

    def _take(self, sent: int, stamp_ms: int) -> None:
        with self._lock:
            received = steady_us()
            earliest = stamp_ms * 1_000
            self._clock.take(sent, received, earliest, earliest + RESOLUTION_US - 1, received)
