"""Ranges of a topic of results: which offsets there are, and their records, the same ones each time.

An incarnation of the writer that was taken for dead may still write to q.out, and a new one may repeat stable rows. Such
records are void (R25, R28). Which ones are depends on what came before them, so a place has, with its offset, what has to be
known of the records below it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from boreal.client.kafka_clients import all_topics, make_client, topic_id
from boreal.model.errors import UserError

if TYPE_CHECKING:
    from kafka import KafkaConsumer

FIRST_LOOK_MS = 1_000
POLL_MS = 500
IDLE_MS = 200
"""How long a look at an idle topic waits for a record, so that Spark does not ask a hundred times a second."""
STALL_S = 30.0


@dataclass(frozen=True, slots=True)
class ResultTopic:
    """A topic, and how to read it."""

    name: str
    """The name of the topic."""
    query: str
    """The name of the query."""
    options: dict[str, Any]
    """The options of kafka-python's consumer."""

    @property
    def has_void_records(self) -> bool:
        """q.stable is written in transactions, so a zombie's rows are never committed; q.latest is corrected by its writer."""
        return not self.name.endswith((".stable", ".latest"))


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A place in a topic. Spark keeps it as the offset of a stream."""

    offset: int
    """The offset of the next record."""
    topic_id: str = ""
    """The id of the topic; '' if Kafka gives none. A topic that was created again has another one."""
    incarnation: int = 0
    """The highest incarnation of a writer below the offset."""
    next_id: int = 0
    """The id after that of the last stable row below the offset."""

    def after(self, record: Any) -> tuple[TopicPlace, bool]:
        """The place after a record of q.out, and whether the record counts."""
        headers = dict(record.headers)
        incarnation, id_ = int(headers["incarnation"]), int(headers.get("id", -1))
        counts = incarnation >= self.incarnation and (id_ < 0 or id_ >= self.next_id)
        if not counts:
            return replace(self, offset=record.offset + 1), False
        return TopicPlace(record.offset + 1, self.topic_id, incarnation, max(self.next_id, id_ + 1)), True


@contextmanager
def reading(topic: ResultTopic) -> Iterator[TopicReader]:
    """A connection to the topic, closed at the end. UserError if there is no such topic."""
    with closing(TopicReader(topic)) as reader:
        yield reader


class TopicReader:
    """A connection to a topic. UserError if there is no such topic; KafkaError if Kafka cannot be reached."""

    def __init__(self, topic: ResultTopic) -> None:
        from kafka import KafkaConsumer, TopicPartition
        from kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError

        self._topic = topic
        self._partition = TopicPartition(topic.name, 0)
        self._consumer: KafkaConsumer = make_client(KafkaConsumer, _options(topic))
        try:
            self._consumer.assign([self._partition])
            self._first_offset(FIRST_LOOK_MS)
        except (KafkaTimeoutError, UnknownTopicOrPartitionError):
            if topic.name not in all_topics(self._consumer):
                self.close()
                fix = "see `boreal query list`; of several sites, name one: .option('site', NAME)"
                if topic.name.endswith(".latest"):
                    fix = "give the query `latest: true`, or read view changes"
                raise UserError("query", topic.query, f"has no topic {topic.name}", fix) from None

    def close(self) -> None:
        self._consumer.close(autocommit=False)

    def first(self) -> TopicPlace:
        """The place of the first record that is kept."""
        return TopicPlace(self._first_offset(), topic_id(self._consumer, self._topic.name))

    def end(self) -> int:
        """The offset after the last record; of q.stable, after the last that is committed."""
        return int(self._consumer.end_offsets([self._partition])[self._partition])

    def look_ahead(self, start: TopicPlace, end: int, max_records: float) -> TopicPlace:
        """The place after the records between `start` and the offset `end`, or after the first `max_records` of them. `start`
        if there is none."""
        place = start
        for taken, record in enumerate(self._records(start, end), 1):
            place, _ = self._after(place, record)
            if taken >= max_records:
                break
        return place

    def wait(self, start: TopicPlace) -> None:
        """Return when there is a record at `start`, or after IDLE_MS."""
        self._consumer.seek(self._partition, start.offset)
        self._consumer.poll(timeout_ms=IDLE_MS, max_records=1)

    def between(self, start: TopicPlace, end: int) -> Iterator[Any]:
        """The records between `start` and the offset `end` that count. UserError if not all are kept any longer."""
        place = start
        for record in self._records(start, end):
            place, counts = self._after(place, record)
            if counts:
                yield record

    def _after(self, place: TopicPlace, record: Any) -> tuple[TopicPlace, bool]:
        if self._topic.has_void_records:
            return place.after(record)
        return replace(place, offset=record.offset + 1), True

    def _records(self, start: TopicPlace, end: int) -> Iterator[Any]:
        from kafka.errors import KafkaTimeoutError

        self._check(start)
        self._consumer.seek(self._partition, start.offset)
        moved = time.monotonic()
        while (position := self._consumer.position(self._partition)) < end:
            for record in self._consumer.poll(timeout_ms=POLL_MS).get(self._partition, []):
                if record.offset >= end:
                    return
                yield record
                moved = time.monotonic()
            if self._consumer.position(self._partition) > position:
                moved = time.monotonic()
            elif time.monotonic() - moved > STALL_S:
                raise KafkaTimeoutError(f"{self._topic.name} gives nothing at offset {position}, for {STALL_S:.0f} s")

    def _check(self, start: TopicPlace) -> None:
        first = self.first()
        begin_anew = "begin with a new checkpoint"
        if start.topic_id and first.topic_id and start.topic_id != first.topic_id:
            raise UserError("topic", self._topic.name, "was deleted and made again since this place", begin_anew)
        if first.offset > start.offset:
            lost = f"no longer keeps the records from offset {start.offset} to {first.offset - 1}"
            raise UserError("topic", self._topic.name, lost, f"{begin_anew}, and a longer retention.ms for the topic")

    def _first_offset(self, timeout_ms: int | None = None) -> int:
        return int(self._consumer.beginning_offsets([self._partition], timeout_ms=timeout_ms)[self._partition])


def _options(topic: ResultTopic) -> dict[str, Any]:
    return {
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed" if topic.name.endswith(".stable") else "read_uncommitted",
        "max_poll_records": 2_000,
        "fetch_max_wait_ms": 100,
        "request_timeout_ms": 10_000,
        "bootstrap_timeout_ms": 10_000,
        "metrics_enabled": False,
        "allow_auto_create_topics": False,
        **topic.options,
    }
