"""Finds where the former incarnation of the egress stopped, from the ends of its topics (R28).

The end is read in windows that grow until they hold enough: a stable boundary, which carries all that a restart needs,
and the records after it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from boreal.model.frames import INFINITY, Anchor
from boreal.model.schema import TRACEPARENT
from formats.changelog import ChangelogPlace
from formats.client_headers import ANCHOR, ID, INCARNATION, PLACE, STABLE_ID, VERSION, decode_anchor, decode_place
from formats.json_text import moment, time_us
from logs.egress_restart import OutTail
from services.kafka.clusters import ANSWERED_WITHIN_MS, Cluster
from services.kafka.reading import read_range
from services.storage.log_partition import windows
from sunion.tape import BEGINNING

_DECODER = json.JSONDecoder()


class StableRow(NamedTuple):
    """A stable row as q.stable holds it. Thousands are made every second, hence no dataclass."""

    id: int
    """The row's stable id, from 0."""
    key: bytes | None
    """The record's key; None if the output has no key."""
    value: bytes
    """The row as JSON text."""
    epoch: int
    """The epoch in which it became stable."""
    trace: bytes | None = None
    """Its trace context, if it has one."""
    version: bytes | None = None
    """The version of the query that gave it, as the header says it; None for the first, before the query has evolved."""

    @property
    def version_number(self) -> int:
        return 1 if self.version is None else int(self.version)


def read_stable_tail(cluster: Cluster, topic: str, out_topic: str) -> int:
    """The next id of q.stable: one more than that of the last committed row. If Kafka has deleted all rows by age, the id is
    taken from q.out, which may hold records longer."""
    partition = TopicPartition(topic, 0)
    with closing(cluster.make_consumer(read_committed=True)) as consumer:
        consumer.assign([partition])
        first, end = _range(consumer, partition)
        for start in windows(first, end):
            last = deque(read_range(consumer, partition, start, end), maxlen=1)
            if last:
                return int(dict(last[0].headers)[ID]) + 1
    return _stable_id_in_out(cluster, out_topic) if end else 0


def _stable_id_in_out(cluster: Cluster, out_topic: str) -> int:
    """The next id of q.stable according to the newest boundaries of q.out; 0 if none has it."""
    partition = TopicPartition(out_topic, 0)
    with closing(cluster.make_consumer()) as consumer:
        consumer.assign([partition])
        first, end = _range(consumer, partition)
        for start in windows(first, end):
            headers = (dict(record.headers) for record in read_range(consumer, partition, start, end))
            ids = [int(found[STABLE_ID]) for found in headers if STABLE_ID in found]
            if ids:
                return max(ids)
    return 0


def read_out_tail(cluster: Cluster, topic: str, needed: int | None) -> OutTail:
    """The end of q.out. needed: the first stable id that q.stable or q.latest lacks; None if this egress writes neither."""
    partition = TopicPartition(topic, 0)
    with closing(cluster.make_consumer()) as consumer:
        consumer.assign([partition])
        first, end = _range(consumer, partition)
        if end == 0:
            return OutTail(None, 0, None, BEGINNING, 0, 0)
        for start in windows(first, end):
            fold = _Fold(ChangelogPlace() if start == 0 else None, needed)
            for record in read_range(consumer, partition, start, end):
                fold.take(record)
            if fold.place is not None and fold.anchor is not None and fold.lacking_from is not None:
                break
        lacking_from = start if fold.lacking_from is None else fold.lacking_from
        # If all records were deleted by age, the end offset is a safe bound: incarnations and epochs are no more than records.
        place = fold.place or ChangelogPlace(seq=end, epoch=end, next_stable_id=max(needed or 0, fold.next_id))
        return OutTail(place, fold.incarnation or end, fold.anchor, fold.written_to, end, lacking_from, fold.version)


def stable_rows(cluster: Cluster, topic: str, start: int, end: int) -> Iterator[StableRow]:
    """The stable rows that q.out holds at offsets from `start` up to `end`; ids may repeat if a zombie wrote."""
    partition = TopicPartition(topic, 0)
    with closing(cluster.make_consumer()) as consumer:
        consumer.assign([partition])
        for record in read_range(consumer, partition, max(start, _range(consumer, partition)[0]), end):
            headers = dict(record.headers)
            id_ = headers.get(ID)
            if id_ is not None:
                value, epoch = _data_of(record.value.decode())
                yield StableRow(int(id_), record.key, value, epoch, headers.get(TRACEPARENT), headers.get(VERSION))


def _range(consumer: KafkaConsumer, partition: TopicPartition) -> tuple[int, int]:
    first = consumer.beginning_offsets([partition], timeout_ms=ANSWERED_WITHIN_MS)
    return first[partition], consumer.end_offsets([partition], timeout_ms=ANSWERED_WITHIN_MS)[partition]


class _Fold:
    """Computes the place after a series of records of q.out."""

    def __init__(self, place: ChangelogPlace | None, needed: int | None) -> None:
        self.place = place
        self.incarnation = 0
        self.anchor: Anchor | None = None
        self.written_to = BEGINNING
        self.next_id = 0
        self.version: int | None = None
        self.lacking_from = 0 if needed is None else None
        self._needed = needed

    def take(self, record: ConsumerRecord) -> None:
        headers = dict(record.headers)
        incarnation = int(headers[INCARNATION])
        if incarnation < self.incarnation:
            return
        self.incarnation = incarnation
        if VERSION in headers:
            self.version = int(headers[VERSION])
        fields = json.loads(record.value)
        if fields["type"] == "stable":
            self.next_id = int(headers[ID]) + 1
            self.written_to = time_us(fields["event_time"])
        if ANCHOR in headers:
            self.anchor = decode_anchor(headers[ANCHOR])
            self.place = decode_place(headers[PLACE])
            self.next_id = self.place.next_stable_id
        elif self.place is not None:
            self.place = self._after(self.place, fields)
        if self._needed is not None and self.next_id <= self._needed and (self.place or self.next_id):
            self.lacking_from = record.offset + 1

    def _after(self, place: ChangelogPlace, fields: dict[str, Any]) -> ChangelogPlace:
        given = {"seq": fields["seq"], "stable_seq": fields["stable_seq"], "epoch": fields["epoch"]}
        is_tentative_end = fields.get("tentative", False) and fields["t_max"] == moment(INFINITY)
        if "t_max" in fields and not is_tentative_end:
            t_max = time_us(fields["t_max"])
            given["highest_t_max"] = t_max if place.highest_t_max is None else max(place.highest_t_max, t_max)
        match fields["type"]:
            case "stable":
                given |= {"next_stable_id": self.next_id, "n_stable": place.n_stable + 1}
            case "tentative":
                given |= {"outstanding": place.outstanding + 1, "n_tentative": place.n_tentative + 1}
            case "undo":
                given |= {"outstanding": 0, "n_undone": place.n_undone + place.outstanding}
        return replace(place, **given)


def _data_of(record: str) -> tuple[bytes, int]:
    """The text of a record's `data`, byte for byte, and its epoch."""
    name = '"data":'
    start = record.index(name) + len(name)
    _, end = _DECODER.raw_decode(record, start)
    return record[start:end].encode(), json.loads(record)["epoch"]
