"""The user's topic, read without a group: where to go on is in the source's own logs, and not with the broker."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError

from intake.place import SourcePlace
from services.kafka.clusters import Cluster, log_retry

FETCH_BYTES = 1 << 20
"""A partition at a time: small, so that a backlog is read evenly from all partitions."""
LOOK_BYTES = 64 << 10
LONGEST_LOOK_MS = 100
END_WITHIN_MS = 1_000
"""So long a broker may take to say where partitions end, and then so long once it did not."""
SILENT_END_WITHIN_MS = 100
ASK_SILENT_AGAIN_S = 1.0
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
        self._silent: dict[int | None, float] = {}
        self._consumer = cluster.make_consumer(
            # What a producer has taken back was never written.
            read_committed=True,
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_min_bytes=LOOK_BYTES,
            fetch_max_wait_ms=min(look_ms, LONGEST_LOOK_MS),
        )

    @property
    def assigned(self) -> list[int]:
        """The partitions that are read."""
        return sorted(partition.partition for partition in self._consumer.assignment())

    def partitions(self) -> list[int]:
        """Those that there are now; none while the topic is absent."""
        return sorted(self._consumer.partitions_for_topic(self.name) or ())

    def begin(self, partitions: list[int], place: SourcePlace) -> dict[int, int]:
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

    def is_gone(self, place: SourcePlace, until: Mapping[int, int]) -> bool:
        """Whether some of the records between `place` and `until` are there no more: deleted, or of an earlier topic of this
        name."""
        ours = [self._of(number) for number in until]
        starts, ends = self._consumer.beginning_offsets(ours), self._consumer.end_offsets(ours)
        return any(
            starts[self._of(number)] > place.partitions[number].next_offset or ends[self._of(number)] < end
            for number, end in until.items()
        )

    def ends(self, numbers: Iterable[int]) -> dict[int, int]:
        """Where these partitions end now; without those whose broker does not say so at once. Each leader is asked alone,
        and a silent one seldom and briefly: the partitions of the others must not wait for it."""
        by_leader: defaultdict[int | None, list[TopicPartition]] = defaultdict(list)
        for partition in map(self._of, numbers):
            by_leader[self._consumer._client.cluster.leader_for_partition(partition)].append(partition)
        found: dict[int, int] = {}
        for leader, ours in by_leader.items():
            asked_again_at = self._silent.get(leader)
            if asked_again_at is not None and time.monotonic() < asked_again_at:
                continue
            try:
                ends = self._consumer.end_offsets(ours, END_WITHIN_MS if asked_again_at is None else SILENT_END_WITHIN_MS)
            except KafkaError as error:
                log_retry(_logger, f"{self.name} cannot be looked at", error)
                self._silent[leader] = time.monotonic() + ASK_SILENT_AGAIN_S
                continue
            self._silent.pop(leader, None)
            found.update({partition.partition: offset for partition, offset in ends.items()})
        return found

    def has_read(self, number: int, end: int) -> bool:
        """Whether all records of a partition before this offset have been returned."""
        return bool(self._consumer.position(self._of(number)) >= end)

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=500)

    def _of(self, number: int) -> TopicPartition:
        return TopicPartition(self.name, number)

