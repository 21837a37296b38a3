"""Records of a user's topic as a source takes them: by columns, since an object for each record would cost more than its
parsing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import numpy as np

Headers = Sequence[tuple[str, bytes | None]]
"""(name, value) of each header of a record; a header may have no value."""


class UserRecord(Protocol):
    """One record, as Kafka's consumer returns it."""

    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...


def distinct(numbers: np.ndarray) -> list[int]:
    """The different ones of these numbers, rising. Mostly one: numpy would sort, and give the interpreter away."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [int(numbers[0])]
    return sorted(set(numbers.tolist()))


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Records of one partition, in the order of their offsets."""

    offsets: np.ndarray
    """int64, one per record."""
    values: list[bytes | None]
    """One per record."""
    headers: Mapping[int, Headers] = field(default_factory=dict)
    """The headers of each record that has some, by its index; rising."""
    keys: list[bytes | None] | None = None
    """One per record; None if they were not asked for."""
    stamps_ms: np.ndarray | None = None
    """int64, Kafka's time stamp of each record; None if they were not asked for."""

    @staticmethod
    def of(records: Sequence[UserRecord], with_keys: bool = False) -> PartitionRecords:
        """Records that are objects. with_keys: with their keys and time stamps."""
        offsets = np.fromiter((record.offset for record in records), np.int64, len(records))
        headers = {index: record.headers for index, record in enumerate(records) if record.headers}
        found = PartitionRecords(offsets, [record.value for record in records], headers)
        if not with_keys:
            return found
        stamps_ms = np.fromiter((record.timestamp for record in records), np.int64, len(records))
        return replace(found, keys=[record.key for record in records], stamps_ms=stamps_ms)

    @staticmethod
    def joined(parts: Iterable[PartitionRecords]) -> PartitionRecords:
        """Consecutive parts of a partition as one."""
        offsets: list[np.ndarray] = []
        values: list[bytes | None] = []
        headers: dict[int, Headers] = {}
        pieces = [*parts]
        for part in pieces:
            headers.update((len(values) + index, found) for index, found in part.headers.items())
            offsets.append(part.offsets)
            values += part.values
        joined = PartitionRecords(np.concatenate(offsets) if offsets else np.empty(0, np.int64), values, headers)
        keys = [part.keys for part in pieces if part.keys is not None]
        stamps_ms = [part.stamps_ms for part in pieces if part.stamps_ms is not None]
        return replace(joined, keys=[*chain(*keys)], stamps_ms=np.concatenate(stamps_ms)) if keys and stamps_ms else joined

    def __len__(self) -> int:
        return len(self.values)

    @property
    def end(self) -> int:
        """The offset after the last record. At least one record must be there."""
        return int(self.offsets[-1]) + 1

    def before(self, offset: int) -> PartitionRecords:
        """The records before an offset."""
        return self._cut(0, int(np.searchsorted(self.offsets, offset)))

    def since(self, offset: int) -> PartitionRecords:
        """The records at an offset, and after it."""
        if not len(self) or self.offsets[0] >= offset:
            return self
        return self._cut(int(np.searchsorted(self.offsets, offset)), len(self))

    def _cut(self, start: int, stop: int) -> PartitionRecords:
        headers = {index - start: found for index, found in self.headers.items() if start <= index < stop}
        keys = None if self.keys is None else self.keys[start:stop]
        stamps_ms = None if self.stamps_ms is None else self.stamps_ms[start:stop]
        return PartitionRecords(self.offsets[start:stop], self.values[start:stop], headers, keys, stamps_ms)

    def value_at(self, offset: int) -> bytes | None:
        """The value of the record at an offset."""
        return self.values[int(np.searchsorted(self.offsets, offset))]


Records = Mapping[int, PartitionRecords]
"""Records by partition of the user's topic."""
