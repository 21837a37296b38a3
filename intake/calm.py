"""When a user's topic is calm, what its source has got of it from the reader that calm topics share, and how often the source
writes boundaries then. Machines: records and time in.

A source that reads alone sends some twenty requests a second, whatever comes. That is worth it if more records come than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from boreal.query.plan import CALM_AFTER_PAUSES, pause_to_say
from intake.user_records import UserRecord

CALM_S = 5.0
FEW_RECORDS = 20
"""A topic is calm if at most so many records came within CALM_S."""
MANY_RECORDS = 100
"""A topic is busy if more came within CALM_S. Well above FEW_RECORDS, so that a topic does not alternate."""
MOST_WAITING = 1_000
MOST_WAITING_BYTES = 1 << 20
"""If more waits for a source, it takes its records too slowly. Well above MANY_RECORDS: a source whose topic is busy takes
them here until it has a client of its own."""

Record = TypeVar("Record", bound=UserRecord)


class Calmness:
    """How many records a topic brings. Times are microseconds of a steady clock."""

    def __init__(self, now: int, calm_us: int, few: int = FEW_RECORDS) -> None:
        """calm_us: over what time records are counted. few: it is calm if at most so many came."""
        self._calm_us, self._few = calm_us, few
        self._since, self._count = now, 0
        self.is_calm = False

    def begin(self, now: int) -> None:
        """Count from now on."""
        self._since, self._count = now, 0
        self.is_calm = False

    def note(self, records: int, now: int) -> None:
        """So many records, or none, have come."""
        if now - self._since >= self._calm_us:
            self.is_calm = self._count <= self._few
            self._since, self._count = now, 0
        self._count += records
        self.is_calm = self.is_calm and self._count <= self._few

    @property
    def is_busy(self) -> bool:
        return self._count > MANY_RECORDS


class CalmPace:
    """How much longer than usual a source is silent (R24). Times are microseconds of one clock."""

    def __init__(self, now: int) -> None:
        self._busy_at = now
        self.pause_us = 0
        """The pause until the next boundary; 0 unless the source is calm."""

    def note_busy(self, now: int) -> None:
        """Records have come, or rows of other streams wait for the boundaries of this one."""
        self._busy_at, self.pause_us = now, 0

    def say(self, now: int, calm_pause_us: int, calm_interval_us: int) -> int:
        """What a boundary says that is written now: for how much longer than usual the source may be silent. calm_pause_us,
        calm_interval_us: of the plan."""
        self.pause_us = calm_pause_us if now - self._busy_at >= CALM_AFTER_PAUSES * calm_pause_us else 0
        return pause_to_say(self.pause_us, calm_interval_us)


@dataclass(slots=True)
class _Partition(Generic[Record]):
    reached: int
    """All records before this offset have come, or are no records of the stream."""
    end: int | None = None
    """The end of the partition, as of the last fetch; None before the first."""
    waiting: list[Record] = field(default_factory=list)


class CalmPartitions(Generic[Record]):
    """The partitions of one source, as the shared reader reads them: what has come, and has not been taken."""

    def __init__(self, positions: Mapping[int, int]) -> None:
        """positions: the first offset that is needed, by partition."""
        self._partitions: dict[int, _Partition[Record]] = {number: _Partition(at) for number, at in positions.items()}
        self._waiting_bytes = 0

    def needed(self, number: int) -> int:
        """The offset from which records are to come next."""
        return self._partitions[number].reached

    def put(self, number: int, start: int, records: Sequence[Record], reached: int, end: int) -> bool:
        """The records of a partition between two offsets have come; those that came before are left out. end: of the partition.
        False: the records before `start` did not come."""
        partition = self._partitions[number]
        if start > partition.reached:
            return False
        new = [record for record in records if record.offset >= partition.reached]
        partition.waiting += new
        partition.reached = max(partition.reached, reached)
        partition.end = end
        self._waiting_bytes += sum(len(record.value or b"") for record in new)
        return True

    @property
    def is_full(self) -> bool:
        """Whether more waits than should."""
        waiting = sum(len(partition.waiting) for partition in self._partitions.values())
        return waiting > MOST_WAITING or self._waiting_bytes > MOST_WAITING_BYTES

    @property
    def has_waiting(self) -> bool:
        return any(partition.waiting for partition in self._partitions.values())

    def has_caught_up(self, positions: Mapping[int, int]) -> bool:
        """Whether all partitions have been read to their ends, and as far as these offsets at least."""
        partitions = [(self._partitions[number], at) for number, at in positions.items()]
        return all(of.end is not None and of.reached >= max(of.end, at) for of, at in partitions)

    def drop_before(self, positions: Mapping[int, int]) -> None:
        """Leave out the records before these offsets: they were read in another way."""
        for number, at in positions.items():
            partition = self._partitions[number]
            partition.waiting = [record for record in partition.waiting if record.offset >= at]
        self._count_bytes()

    def take(self) -> dict[int, list[Record]]:
        """All that waits, by partition."""
        taken = {number: partition.waiting for number, partition in self._partitions.items() if partition.waiting}
        for number in taken:
            self._partitions[number].waiting = []
        self._waiting_bytes = 0
        return taken

    def position(self, number: int) -> int:
        """The offset up to which everything has been taken, or is no record of the stream."""
        partition = self._partitions[number]
        return partition.waiting[0].offset if partition.waiting else partition.reached

    def end(self, number: int) -> int | None:
        """The end of a partition, as of the last fetch; None before the first."""
        return self._partitions[number].end

    def _count_bytes(self) -> None:
        waiting = (record for partition in self._partitions.values() for record in partition.waiting)
        self._waiting_bytes = sum(len(record.value or b"") for record in waiting)
