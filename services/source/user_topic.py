"""Reads the user's topic without a consumer group: the source's own logs hold the read position, and not the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from kafka import TopicPartition

from intake.place import SourcePlace
from intake.user_records import PartitionRecords
from services.hosting.connections import TopicClients
from services.kafka.settings import ClientChoice
from services.source.calm_reader import CalmReader
from services.source.grouped_reader import make_reader

_logger = logging.getLogger("boreal.source")


class UserTopic:
    """One topic, with all its partitions. KafkaError if the cluster refuses a request; while it is out of reach, polls return
    nothing."""

    def __init__(
        self,
        clients: TopicClients,
        name: str,
        look_ms: int,
        choice: ClientChoice = "auto",
        with_keys: bool = False,
        since_ms: int | None = None,
    ) -> None:
        """clients: of the topic's site. look_ms: how long a client that reads this topic while it is not calm gathers records
        if few come. One poll costs as much as many records. choice: which client reads the records while they are not few;
        kafka-python's always says where partitions begin and end. with_keys: whether keys and time stamps of the records are
        wanted. since_ms: partitions of which nothing is known are read from the first record on that was written at this time
        or later (milliseconds since the epoch); None: from their beginning."""
        self.name = name
        self._since_ms = since_ms
        self.lost_records = 0
        self._assigned: list[int] = []
        self._ends = clients.ends
        self._exists = False
        make = partial(make_reader, choice, clients.cluster, clients.groups, name, look_ms, with_keys)
        self._reader = CalmReader(make, clients.calm, name, with_keys)

    @property
    def assigned(self) -> list[int]:
        """The partitions that are read now."""
        return self._assigned

    def partitions(self) -> list[int]:
        """All partitions of the topic; none while it does not exist."""
        found = sorted(self._ends.ask(lambda client: client.partitions_for_topic(self.name)) or ())
        if found and not self._exists:
            self._ends.follow(self.name)
        elif self._exists and not found:
            self._ends.leave(self.name)
            self._reader.read_alone()
        self._exists = bool(found)
        return found

    def begin(self, partitions: list[int], place: SourcePlace) -> dict[int, int]:
        """Read these partitions from the offsets in `place` on. Returns the first offsets of those partitions that hold records
        and are not in `place`."""
        ours = [self._of(number) for number in partitions]
        starts, ends = self._bounds(ours)
        known = {number: place.partitions[number].next_offset for number in partitions if number in place.partitions}
        if self._since_ms is not None:
            found = self._ends.ask(lambda client: client.offsets_for_times(dict.fromkeys(ours, self._since_ms)))
            starts = {of: ends[of] if found.get(of) is None else found[of].offset for of in ours}
        self._reader.read_from({number: known.get(number, starts[self._of(number)]) for number in partitions})
        self._assigned = sorted(partitions)
        return {
            of.partition: starts[of]
            for of in ours
            if of.partition not in place.partitions and (starts[of] < ends[of] or (self._since_ms is not None and starts[of]))
        }

    def poll(self, timeout_ms: int, most: int, gather_s: Callable[[], float] = lambda: 0.0) -> dict[int, PartitionRecords]:
        """The next records, at most `most`. gather_s: for how many seconds the records of a calm topic may wait for others.
        OffsetOutOfRangeError: call `find_again`."""
        return self._reader.poll(timeout_ms, most, gather_s)

    @property
    def waited_us(self) -> int:
        """For how long the oldest record that the last poll returned had waited here, in microseconds."""
        return self._reader.waited_us

    @property
    def is_calm(self) -> bool:
        """Whether few records come: a poll that waits for one ends with `wake`."""
        return self._reader.is_shared

    def wake(self) -> None:
        """Let a poll of a calm topic return. May be called from any thread."""
        self._reader.wake()

    def poll_until(self, until: Mapping[int, int], timeout_ms: int, most: int) -> dict[int, PartitionRecords] | None:
        """Like `poll`, but only records before these offsets, one for each partition that is read; None after all of them were
        returned."""
        if all(self._reader.position(number) >= end for number, end in until.items()):
            return None
        return {number: records.before(until[number]) for number, records in self.poll(timeout_ms, most).items()}

    def lag(self) -> int | None:
        """How many offsets there are between what was returned and the ends of the partitions, by what the last fetches said;
        None before they said it."""
        ends = {number: self._reader.known_end(number) for number in self._assigned}
        known = [max(end - self._reader.position(number), 0) for number, end in ends.items() if end is not None]
        return sum(known) if known else None

    def find_again(self) -> dict[int, int]:
        """Continue with the first records that exist, after unread ones were deleted: by retention, or with the whole topic,
        which was made again. Returns the new offsets by partition; logs the loss, and counts it in `lost_records`."""
        moved: dict[int, int] = {}
        ours = [self._of(number) for number in self._assigned]
        starts, ends = self._bounds(ours)
        positions = {number: self._reader.position(number) for number in self._assigned}
        for of, position in zip(ours, list(positions.values()), strict=True):
            if starts[of] <= position <= ends[of]:
                continue
            positions[of.partition] = moved[of.partition] = starts[of]
            self.lost_records += max(starts[of] - position, 0)
            _logger.error(
                "%s/%d: the next record would be %d, but the topic holds those from %d to %d; the records between are lost, "
                "and reading continues at %d",
                *(self.name, of.partition, position, starts[of], ends[of], starts[of]),
            )
        self._reader.read_from(positions)
        return moved

    def is_gone(self, place: SourcePlace, until: Mapping[int, int]) -> bool:
        """Whether some of the records between `place` and `until` no longer exist: deleted, or of an earlier topic of the same
        name."""
        ours = [self._of(number) for number in until]
        starts, ends = self._bounds(ours)
        return any(
            starts[self._of(number)] > place.partitions[number].next_offset or ends[self._of(number)] < end
            for number, end in until.items()
        )

    def ends(self, numbers: Collection[int], since: int) -> dict[int, int]:
        """The end offsets of these partitions as of `since` or later (us), without those whose broker does
        not answer at once."""
        found = self._ends.ends([(self.name, number) for number in numbers], since)
        return {number: end for (_, number), end in found.items()}

    def has_read(self, number: int, end: int) -> bool:
        """Whether all records of a partition before this offset have been returned."""
        return self._reader.position(number) >= end

    def close(self) -> None:
        self._reader.close()
        if self._exists:
            self._ends.leave(self.name)

    def _bounds(self, places: list[TopicPartition]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The first offsets of partitions, and their ends."""
        return self._ends.ask(lambda client: (client.beginning_offsets(places), client.end_offsets(places)))

    def _of(self, number: int) -> TopicPartition:
        return TopicPartition(self.name, number)

