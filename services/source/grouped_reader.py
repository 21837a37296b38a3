"""Reads a user's topic with librdkafka: together with others, while its source takes what comes, or alone.

    reads with its group ──more waits for its source than should, or another reads the partition──> reads alone
             ^                                                                                         │
             └──────────────────────── its source takes all that comes, and that is not much ──────────┘

Who changes continues at the offset up to which everything was returned, so nothing is skipped or repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from intake.calm import Calmness
from intake.user_records import PartitionRecords
from services.kafka.clusters import Cluster
from services.kafka.settings import ClientChoice
from services.kafka.timekeeper import steady_us
from services.source.record_readers import (
    LONGEST_LOOK_MS,
    KafkaPythonReader,
    LibrdkafkaReader,
    RecordReader,
    take_messages,
)
from services.storage.record_group import RecordGroup, RecordGroups

if TYPE_CHECKING:
    import confluent_kafka

MOST_WAITING = 20_000
MOST_WAITING_BYTES = 8 << 20
"""If more waits for a source, it reads alone."""
WINDOW_US = 10_000_000
FEW_RECORDS = 50_000
"""A source that reads alone joins the others again if it took at most so many records within WINDOW_US, and all that came."""


class GroupedReader:
    """A `RecordReader`; see the module's header. One thread uses it."""

    def __init__(self, group: RecordGroup, make_alone: Callable[[], RecordReader], topic: str, with_keys: bool) -> None:
        """make_alone: makes the client that reads the topic alone. with_keys: whether keys and time stamps of the records are
        wanted."""
        self._group = group
        self._make_alone = make_alone
        self._topic = topic
        self._with_keys = with_keys
        self._positions: dict[int, int] = {}
        self._share: _Share | None = None
        self._alone: RecordReader | None = None
        self._calmness = Calmness(steady_us(), WINDOW_US, FEW_RECORDS)

    @property
    def is_alone(self) -> bool:
        """Whether it has a client of its own now."""
        return self._alone is not None

    def read_from(self, offsets: Mapping[int, int]) -> None:
        self._leave()
        self._positions = dict(offsets)
        if self._alone is not None:
            self._alone.read_from(offsets)
        elif not self._join():
            self._read_alone()

    def poll(self, timeout_ms: int, most: int) -> dict[int, PartitionRecords]:
        if self._alone is not None:
            found = self._alone.poll(timeout_ms, most)
            self._positions = {number: self._alone.position(number) for number in self._positions}
            self._maybe_join(sum(map(len, found.values())), most)
            return found
        share = self._share
        if share is None:
            return {}
        messages = share.take(timeout_ms / 1_000, most)
        found = take_messages(messages, self._topic, self._positions, self._with_keys)
        if share.is_over:
            self._leave()
            self._read_alone()
        return found

    def position(self, number: int) -> int:
        return self._positions[number]

    def known_end(self, number: int) -> int | None:
        if self._alone is not None:
            return self._alone.known_end(number)
        return None if self._share is None else self._share.ends.get(number)

    def close(self) -> None:
        self._leave()
        if self._alone is not None:
            self._alone.close()

    def _join(self) -> bool:
        """Whether the group reads all partitions for this source from now on."""
        self._share = share = _Share(self._positions)
        for number, seat in share.seats.items():
            if not self._group.join(seat, (self._topic, number), self._positions[number]):
                self._leave()
                return False
        return True

    def _maybe_join(self, records: int, most: int) -> None:
        """Read with the group again, if few records come."""
        self._calmness.note(records, steady_us())
        alone = self._alone
        if alone is None or records >= most or not self._calmness.is_calm:
            return
        if self._join():
            self._alone = None
            alone.close()
        else:
            self._calmness.begin(steady_us())

    def _read_alone(self) -> None:
        self._calmness.begin(steady_us())
        self._alone = self._make_alone()
        self._alone.read_from(self._positions)

    def _leave(self) -> None:
        if self._share is not None:
            self._share.end()
            for number, seat in self._share.seats.items():
                self._group.leave(seat, (self._topic, number))
            self._share = None


class _Share:
    """What the group has read for one source, until one of its partitions is sent away."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        """numbers: the partitions."""
        self.seats = {number: _Seat(self, number) for number in numbers}
        self.ends: dict[int, int] = {}
        """The ends of the partitions, as far as they are known."""
        self._changed = threading.Condition()
        self._waiting: list[confluent_kafka.Message] = []
        self._bytes = 0
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether all that has come was taken, and nothing more comes."""
        with self._changed:
            return self._has_ended and not self._waiting

    def take(self, timeout_s: float, most: int) -> list[confluent_kafka.Message]:
        """What has come, at most so much; waits for something, but not after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._has_ended, timeout_s)
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
            self._bytes = sum(map(len, self._waiting))
            return taken

    def put(self, number: int, messages: Sequence[confluent_kafka.Message], end: int | None) -> bool:
        with self._changed:
            if self._has_ended:
                return False
            self._waiting += messages
            self._bytes += sum(map(len, messages))
            if end is not None:
                self.ends[number] = end
            self._has_ended = len(self._waiting) > MOST_WAITING or self._bytes > MOST_WAITING_BYTES
            self._changed.notify_all()
            return not self._has_ended

    def end(self) -> None:
        """Take nothing more."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


class _Seat:
    """One partition of a share (services.storage.record_group.GroupMember)."""

    def __init__(self, share: _Share, number: int) -> None:
        self._share = share
        self._number = number

    def put(self, messages: Sequence[confluent_kafka.Message], end: int | None) -> bool:
        return self._share.put(self._number, messages, end)

    def send_away(self) -> None:
        self._share.end()


def make_reader(
    choice: ClientChoice, cluster: Cluster, groups: RecordGroups, topic: str, look_ms: int, with_keys: bool
) -> RecordReader:
    """A reader of this topic. groups: of the topic's site. look_ms: how long a poll gathers records if few come. with_keys:
    whether keys and time stamps are wanted. UserError if librdkafka is asked for where it cannot serve; KafkaError if the
    cluster is out of reach."""
    options, look_ms = cluster.librdkafka_options("BOREAL_TOPIC_READER", choice), min(look_ms, LONGEST_LOOK_MS)
    if options is None:
        return KafkaPythonReader(cluster, topic, look_ms, with_keys)
    return GroupedReader(
        groups.of(options, look_ms), lambda: LibrdkafkaReader(options, topic, look_ms, with_keys), topic, with_keys
    )
