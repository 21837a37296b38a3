"""The user's topic, read without a group: where to go on is in the source's own logs, and not with the broker."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from services.clusters import Cluster
from services.source.place import Place

FETCH_BYTES = 1 << 20
"""A partition at a time: small, so that a backlog is read evenly from all partitions."""
LOOK_BYTES = 64 << 10
LONGEST_LOOK_MS = 100
"""A look at the topic brings at least so many bytes, or what has come within a while."""

_logger = logging.getLogger("boreal.source")

Found = dict[int, list[ConsumerRecord]]
"""Records by partition, in the order of their offsets."""


class UserTopic:
    """One topic, with all its partitions. KafkaError where the cluster says no; out of reach, it has nothing to say."""

    def __init__(self, cluster: Cluster, name: str, look_ms: int) -> None:
        """look_ms: how long records are gathered where few come. One look costs as much as many records."""
        self.name = name
        self.lost_records = 0
        self._consumer = cluster.consumer(
            # What a producer has taken back was never written.
            read_committed=True,
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_min_bytes=LOOK_BYTES,
            fetch_max_wait_ms=min(look_ms, LONGEST_LOOK_MS),
        )

    @property
    def assigned(self) -> int:
        """How many partitions are read."""
        return len(self._consumer.assignment())

    def partitions(self) -> list[int]:
        """Those that there are now; none while the topic is absent."""
        return sorted(self._consumer.partitions_for_topic(self.name) or ())

    def begin(self, partitions: list[int], place: Place) -> dict[int, int]:
        """Read these partitions from where `place` is. Returns those that `place` does not know of, although they hold
        records: where these begin."""
        ours = [self._of(number) for number in partitions]
        self._consumer.assign(ours)
        starts, ends = self._consumer.beginning_offsets(ours), self._consumer.end_offsets(ours)
        for partition in ours:
            known = place.partitions.get(partition.partition)
            self._consumer.seek(partition, known.next_offset if known is not None else starts[partition])
        return {
            partition.partition: starts[partition]
            for partition in ours
            if partition.partition not in place.partitions and starts[partition] < ends[partition]
        }

    def poll(self, timeout_ms: int, most: int) -> Found:
        """The next records, `most` at most. OffsetOutOfRangeError: `find_again` says what to do."""
        return {partition.partition: found for partition, found in self._consumer.poll(timeout_ms, max_records=most).items()}

    def poll_until(self, until: Mapping[int, int], timeout_ms: int, most: int) -> Found | None:
        """Like `poll`, but no record at or after these offsets, one for each partition that is read; None once all before
        them were returned."""
        behind = [number for number, end in until.items() if self._consumer.position(self._of(number)) < end]
        if not behind:
            return None
        found = self.poll(timeout_ms, most)
        return {number: [record for record in records if record.offset < until[number]] for number, records in found.items()}

    def find_again(self) -> dict[int, int]:
        """Records that were not read yet are gone: retention has deleted them, or the topic is a new one of this name. Go
        on with the first that there are; returns where that is, by partition. Says so, and counts them."""
        moved: dict[int, int] = {}
        ours = sorted(self._consumer.assignment())
        starts, ends = self._consumer.beginning_offsets(ours), self._consumer.end_offsets(ours)
        for partition in ours:
            position = self._consumer.position(partition)
            if starts[partition] <= position <= ends[partition]:
                continue
            self._consumer.seek(partition, starts[partition])
            moved[partition.partition] = starts[partition]
            self.lost_records += max(starts[partition] - position, 0)
            _logger.error(
                "%s/%d: the next record would be %d, and the topic has those from %d to %d; what lay between is lost, and "
                "reading goes on at %d",
                *(self.name, partition.partition, position, starts[partition], ends[partition], starts[partition]),
            )
        return moved

    def is_gone(self, place: Place, until: Mapping[int, int]) -> bool:
        """Whether some of the records between `place` and `until` are there no more: deleted, or of an earlier topic of this
        name."""
        ours = [self._of(number) for number in until]
        starts, ends = self._consumer.beginning_offsets(ours), self._consumer.end_offsets(ours)
        return any(
            starts[self._of(number)] > place.partitions[number].next_offset or ends[self._of(number)] < end
            for number, end in until.items()
        )

    def ends(self) -> dict[int, int]:
        """Where each partition ends now. KafkaError if that cannot be found out at once."""
        ends = self._consumer.end_offsets(sorted(self._consumer.assignment()), timeout_ms=1_000)
        return {partition.partition: offset for partition, offset in ends.items()}

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether all records before these offsets have been returned."""
        return all(self._consumer.position(self._of(number)) >= end for number, end in ends.items())

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=500)

    def _of(self, number: int) -> TopicPartition:
        return TopicPartition(self.name, number)

