"""The logs of a whole query, looked up by event time: where rows of a time begin, and from which time on no row is deleted.

A log that was trimmed lacks rows, and a row's id says nothing about its time. But readers acknowledge the rows that they need
in anchors, which lie in their own logs: no row before an anchor's places has a time at or after its `needs`. So the first
anchor that needs none of the deleted rows gives the time from which on every row still exists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from boreal.model.codec import Head
from boreal.model.frames import INFINITY, Boundary
from boreal.query.plan import EGRESS
from deployment.layout import Layout
from services.kafka.clusters import Cluster
from services.storage.log_partition import LOOK_BEHIND, LogPartition, windows
from services.storage.log_partitions import LogPartitions
from sunion.tape import BEGINNING


class HistoryLogs(LogPartitions):
    """All logs of a query, looked up by event time."""

    def __init__(self, clusters: Mapping[str, Cluster], layout: Layout) -> None:
        super().__init__(clusters, layout)
        self._layout = layout
        self._readers = layout.readers()

    def reach(self, key: str, first_id: int) -> int:
        """The least known time such that no row at or after it lies before an id of 'stream/partition'; INFINITY if none is
        known."""
        return min((_first_anchor(partition, key, first_id) for partition in self._of_readers(key)), default=INFINITY)

    def place_of(self, key: str, time: int) -> int:
        """An id of 'stream/partition' before which no row has this time or a later one, by the log of a reader that tells one;
        0 if none does."""
        if time <= BEGINNING:
            return 0
        return next((place for partition in self._of_readers(key) if (place := _place(partition, key, time))), 0)

    def _of_readers(self, key: str) -> Iterator[LogPartition]:
        """A log of each instance that reads 'stream/partition'. The anchors of an egress are in no log."""
        for who in self._readers[key]:
            if who.fragment != EGRESS:
                yield self.open(self._layout.own_logs(who)[0])


def _place(partition: LogPartition, key: str, time: int) -> int:
    """As `HistoryLogs.place_of`, by one reader's log."""
    start, end = partition.bounds()
    beyond = first_boundary(partition, start, end, time + 1)
    for first in windows(start, beyond):
        anchors = [head.anchor for head in heads(partition, first, beyond) if isinstance(head, Boundary) and head.anchor]
        places = [dict(anchor.inputs).get(key, 0) for anchor in anchors if anchor.needs <= time]
        if places:
            return max(places)
    return 0


def first_boundary(partition: LogPartition, start: int, end: int, time: int) -> int:
    """The offset of a log's first stable boundary of this time or a later one, or one a few later; its end if there is none."""

    def has_come(offset: int) -> bool:
        found = heads(partition, max(start, offset - LOOK_BEHIND), offset + 1)
        return any(isinstance(head, Boundary) and not head.tentative and head.time >= time for head in found)

    return bisect_left(range(start, end), True, key=has_come) + start


def _first_anchor(partition: LogPartition, key: str, first_id: int) -> int:
    """The `needs` of a log's first anchor that needs no row before an id; INFINITY if there is none."""
    for head in heads(partition, *partition.bounds()):
        if isinstance(head, Boundary) and head.anchor and dict(head.anchor.inputs).get(key, 0) >= first_id:
            return head.anchor.needs
    return INFINITY


def heads(partition: LogPartition, start: int, end: int) -> Iterator[Head]:
    for records in partition.read(start, end):
        yield from map(partition.head, records)
