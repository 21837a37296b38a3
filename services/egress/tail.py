"""Where an earlier life of the egress left off, as the ends of its topics tell (R28).

The end is read in windows that grow until they hold enough: a stable boundary, which carries all that a restart needs,
and what was written after it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from boreal.model.frames import INFINITY, Anchor
from formats.changelog import ChangelogPlace
from formats.client_headers import ANCHOR, ID, INCARNATION, PLACE, STABLE_ID, decode_anchor, decode_place
from formats.json_text import moment
from logs.egress_restart import OutTail
from services.kafka.clusters import Cluster
from sunion.tape import BEGINNING

FIRST_WINDOW = 1_024
_DECODER = json.JSONDecoder()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StableRow:
    """A stable row as q.stable has it."""

    id: int
    key: bytes | None
    value: bytes
    epoch: int


def read_stable_tail(cluster: Cluster, topic: str, out_topic: str) -> int:
    """The next id of q.stable: one more than that of the last committed row; where Kafka has deleted all of them by age, what
    q.out last said of it, since q.out may hold rows longer."""
    partition = TopicPartition(topic, 0)
    with closing(cluster.make_consumer(read_committed=True)) as consumer:
        consumer.assign([partition])
        first, end = _range(consumer, partition)
        for start in windows(first, end):
            last = deque(read_range(consumer, partition, start, end), maxlen=1)
            if last:
                return int(dict(last[0].headers)[ID]) + 1
    return _told_stable_id(cluster, out_topic) if end else 0


def _told_stable_id(cluster: Cluster, out_topic: str) -> int:
    """The next id of q.stable as the newest boundaries of q.out tell it; 0 where none does."""
    partition = TopicPartition(out_topic, 0)
    with closing(cluster.make_consumer()) as consumer:
        consumer.assign([partition])
        first, end = _range(consumer, partition)
        for start in windows(first, end):
            headers = (dict(record.headers) for record in read_range(consumer, partition, start, end))
            told = [int(found[STABLE_ID]) for found in headers if STABLE_ID in found]
            if told:
                return max(told)
    return 0


def read_out_tail(cluster: Cluster, topic: str, needed: int | None) -> OutTail:
    """needed: the first stable row that q.stable or q.latest lacks, None where this egress does not write these."""
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
        # Where all was deleted by age, its end still tells: a record has one offset, and neither lives nor epochs are more.
        place = fold.place or ChangelogPlace(seq=end, epoch=end, next_stable_id=max(needed or 0, fold.next_id))
        return OutTail(place, fold.incarnation or end, fold.anchor, fold.written_to, end, lacking_from)


def stable_rows(cluster: Cluster, topic: str, start: int, end: int) -> Iterator[StableRow]:
    """The stable rows that q.out holds at offsets from `start` up to `end`; where a zombie wrote, some ids come again."""
    partition = TopicPartition(topic, 0)
    with closing(cluster.make_consumer()) as consumer:
        consumer.assign([partition])
        for record in read_range(consumer, partition, max(start, _range(consumer, partition)[0]), end):
            id_ = dict(record.headers).get(ID)
            if id_ is not None:
                value, epoch = _data_of(record.value.decode())
                yield StableRow(int(id_), record.key, value, epoch)


def read_range(consumer: KafkaConsumer, partition: TopicPartition, start: int, end: int) -> Iterator[ConsumerRecord]:
    """The records at offsets from `start` up to `end`, as far as the consumer may see them."""
    consumer.seek(partition, start)
    while consumer.position(partition) < end:
        for record in consumer.poll(timeout_ms=200).get(partition, []):
            if record.offset < end:
                yield record


def _range(consumer: KafkaConsumer, partition: TopicPartition) -> tuple[int, int]:
    return consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]


def windows(first: int, end: int) -> Iterator[int]:
    """Where to begin to read: ever further from the end."""
    window = FIRST_WINDOW
    while end - window > first:
        yield end - window
        window *= 4
    yield first


class _Fold:
    """Records of q.out folded into the place where they leave it."""

    def __init__(self, place: ChangelogPlace | None, needed: int | None) -> None:
        self.place = place
        self.incarnation = 0
        self.anchor: Anchor | None = None
        self.written_to = BEGINNING
        self.next_id = 0
        self.lacking_from = 0 if needed is None else None
        self._needed = needed

    def take(self, record: ConsumerRecord) -> None:
        headers = dict(record.headers)
        incarnation = int(headers[INCARNATION])
        if incarnation < self.incarnation:
            return
        self.incarnation = incarnation
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


def time_us(text: str) -> int:
    """Microseconds since the epoch of a time as records have it."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
