"""Reads a user's topic alone, or, while few records come, with all calm topics of its site by one consumer of the process.

    reads alone ──few records for calm_s──> is read in both ways ──the shared reader has caught up──> is shared
         ^                                                                                               │
         └──── its own client has fetched ──── is read in both ways <──── many records, or an error ─────┘

While a topic is shared, its source has no client of its own. To make one takes time, up to a second where many topics get rows
at one moment, so the shared reader goes on meanwhile, unless more comes than the source takes. Both readers leave out no
record: of the shared one (services/storage/shared_reader.py) each fetch says from which offset to which it went. What was
returned before is left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError

from intake.calm import Calmness, CalmPartitions
from intake.user_records import PartitionRecords
from services.kafka.clusters import log_retry
from services.kafka.timekeeper import steady_us
from services.source.record_readers import RecordReader
from services.storage.shared_reader import LogFetch, SharedReader

_logger = logging.getLogger("boreal.source")


class CalmReader:
    """A `RecordReader`; see the module's header. One thread uses it."""

    def __init__(
        self,
        make_alone: Callable[[], RecordReader],
        shared: SharedReader,
        topic: str,
        with_keys: bool,
    ) -> None:
        """make_alone: makes the client that reads the topic alone."""
        self._make_alone = make_alone
        self._shared = shared
        self._topic = topic
        self._with_keys = with_keys
        self._alone: RecordReader | None = None
        self._offsets: dict[int, int] = {}
        """Up to where records were returned, by partition."""
        self._member: _Member | None = None
        self._is_leaving = False
        """Whether it is read in both ways until its own client has fetched."""
        self._calmness = Calmness(steady_us(), round(shared.calm_s * 1_000_000))
        self._waited_s = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether it has no client of its own now."""
        return self._alone is None and self._member is not None and not self._is_leaving

    @property
    def waited_us(self) -> int:
        """For how long the oldest record that the last poll returned had been here, in microseconds; 0 while read alone."""
        return round(self._waited_s * 1_000_000)

    def read_from(self, offsets: Mapping[int, int]) -> None:
        self._leave()
        self._offsets = dict(offsets)
        self._alone = self._alone or self._make_alone()
        self._alone.read_from(offsets)

    def poll(self, timeout_ms: int, most: int, gather_s: Callable[[], float]) -> dict[int, PartitionRecords]:
        """As `RecordReader.poll`. gather_s: asked when records have come: for how many seconds they may wait here for others,
        since a batch of one costs as much as a batch of many. While the topic is read alone, its client decides."""
        self._waited_s = 0.0
        if self._member is not None and self._is_leaving:
            found = self._poll_both(self._member, timeout_ms, most, gather_s)
        elif self._member is not None and self._alone is None:
            found = self._take(self._member, timeout_ms, gather_s)
        elif (alone := self._maybe_alone()) is not None:
            found = alone.poll(timeout_ms, most)
        else:
            return {}
        found = self._not_returned(found)
        self._calmness.note(sum(map(len, found.values())), steady_us())
        self._choose()
        return found

    def position(self, number: int) -> int:
        return max([self._offsets[number], *(reader.position(number) for reader in self._readers)])

    def known_end(self, number: int) -> int | None:
        ends = [end for reader in self._readers if (end := reader.known_end(number)) is not None]
        return max(ends, default=None)

    def wake(self) -> None:
        """Let a poll that waits for records return, if the topic is shared. May be called from any thread."""
        member = self._member
        if member is not None:
            member.wake()

    def read_alone(self) -> None:
        """Read alone from the next poll on: the topic cannot be found, and should not disturb others."""
        self._calmness.begin(steady_us())
        if self._member is not None:
            self._member.leave()

    def close(self) -> None:
        self._leave()
        if self._alone is not None:
            self._alone.close()

    @property
    def _readers(self) -> list[RecordReader | _Member]:
        return [reader for reader in (self._alone, self._member) if reader is not None]

    def _positions(self) -> dict[int, int]:
        return {number: self.position(number) for number in self._offsets}

    def _take(self, member: _Member, timeout_ms: int, gather_s: Callable[[], float]) -> dict[int, PartitionRecords]:
        found, self._waited_s = member.take(timeout_ms / 1_000, gather_s)
        return {number: PartitionRecords.of(records, self._with_keys) for number, records in found.items()}

    def _poll_both(
        self, member: _Member, timeout_ms: int, most: int, gather_s: Callable[[], float]
    ) -> dict[int, PartitionRecords]:
        """What one of the two readers has. The same records come to both."""
        alone = self._maybe_alone()
        found = {} if alone is None else alone.poll(0, most)
        return found or self._take(member, timeout_ms, gather_s)

    def _not_returned(self, found: dict[int, PartitionRecords]) -> dict[int, PartitionRecords]:
        """Those of these records that were not returned before: now they are."""
        parts = {number: records.since(self._offsets[number]) for number, records in found.items()}
        new = {number: records for number, records in parts.items() if len(records)}
        self._offsets.update({number: records.end for number, records in new.items()})
        return new

    def _choose(self) -> None:
        """Begin to share the topic if it is calm, or end it."""
        alone, member = self._alone, self._member
        if member is None:
            if self._calmness.is_calm and alone is not None:
                self._member = _Member(self._shared, self._topic, self._positions())
        elif self._is_leaving:
            if alone is not None and all(alone.known_end(number) is not None for number in self._offsets):
                member.leave()
            if member.has_left and not member.has_waiting:
                self._leave()
        elif alone is None:
            self._is_leaving = self._calmness.is_busy or member.has_left
        elif member.has_left or self._calmness.is_busy:
            self._leave()
        elif member.begin(self._positions()):
            alone.close()
            self._alone = None

    def _maybe_alone(self) -> RecordReader | None:
        """The client that reads the topic alone; None if the cluster is out of reach now."""
        if self._alone is None:
            try:
                alone = self._make_alone()
            except (KafkaError, OSError) as error:
                if isinstance(error, KafkaError) and not error.retriable:
                    raise
                log_retry(_logger, f"{self._topic} cannot be read", error)
                return None
            alone.read_from(self._positions())
            self._alone = alone
        return self._alone

    def _leave(self) -> None:
        if self._member is not None:
            self._offsets = self._positions()
            self._member.leave()
            self._member = None
        self._is_leaving = False
        self._calmness.begin(steady_us())


class _Member:
    """A topic's partitions at the shared reader, from `join` until one of them has to be read alone."""

    def __init__(self, shared: SharedReader, topic: str, positions: Mapping[int, int]) -> None:
        self._shared = shared
        self._changed = threading.Condition()
        self._partitions: CalmPartitions[ConsumerRecord] = CalmPartitions(positions)
        self._seats = {TopicPartition(topic, number): _Seat(self, number) for number in positions}
        self._came_at = 0.0
        self._is_woken = False
        self.has_left = False
        for place, seat in self._seats.items():
            shared.join(seat, place)

    def begin(self, positions: Mapping[int, int]) -> bool:
        """Whether all that comes after these offsets has come here, or will. What comes before them is left out."""
        with self._changed:
            if self.has_left or not self._partitions.has_caught_up(positions):
                return False
            self._partitions.drop_before(positions)
            return True

    def take(self, timeout_s: float, gather_s: Callable[[], float]) -> tuple[dict[int, list[ConsumerRecord]], float]:
        """What has come, and for how many seconds the first of it has been here. Waits for something, but not after the
        timeout or `wake`. gather_s: for how long it then waits for more, unless the timeout comes first."""
        until = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(lambda: self._partitions.has_waiting or self.has_left or self._is_woken, timeout_s)
            self._is_woken = False
            if self._partitions.has_waiting:
                left_s = min(gather_s(), until - time.monotonic())
                self._changed.wait_for(lambda: self.has_left, max(left_s, 0))
            waited_s = time.monotonic() - self._came_at if self._partitions.has_waiting else 0.0
            return self._partitions.take(), waited_s

    def wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    @property
    def has_waiting(self) -> bool:
        with self._changed:
            return self._partitions.has_waiting

    def position(self, number: int) -> int:
        with self._changed:
            return self._partitions.position(number)

    def known_end(self, number: int) -> int | None:
        with self._changed:
            return self._partitions.end(number)

    def leave(self) -> None:
        """Nothing more comes; what has come can be taken."""
        with self._changed:
            self.has_left = True
            self._changed.notify_all()
        for place, seat in self._seats.items():
            self._shared.leave(seat, place)

    def needed(self, number: int) -> int:
        with self._changed:
            return self._partitions.needed(number)

    def put(self, number: int, fetched: LogFetch) -> bool:
        with self._changed:
            if self.has_left:
                return False
            if not self._partitions.has_waiting:
                self._came_at = time.monotonic()
            has_come = self._partitions.put(number, fetched.start, fetched.records, fetched.reached, fetched.end)
            self.has_left = not has_come or self._partitions.is_full
            self._changed.notify_all()
            return not self.has_left


class _Seat:
    """One partition of a member (services.storage.shared_reader.Member)."""

    def __init__(self, member: _Member, number: int) -> None:
        self._member = member
        self._number = number

    @property
    def position(self) -> int:
        return self._member.needed(self._number)

    @property
    def gather_us(self) -> int:
        return 0  # a source gathers what it takes, and nothing comes to a topic of users while it is calm

    def take_shared(self, fetched: LogFetch) -> bool:
        return self._member.put(self._number, fetched)

    def read_alone(self) -> None:
        self._member.leave()
