"""Writes recorded rows to the users' topics at a given rate: the work of `boreal feed`.

Each row is one JSON object; rows are in event-time order over all streams. Because the time reached is known here, every
partition also gets heartbeat records (header `boundary`), so that a stream with few rows does not delay the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer

from boreal.model.errors import UserError
from boreal.model.frames import INFINITY
from boreal.model.schema import TIME
from boreal.query.spec import Stream
from embedded.file_sources import SourceRows, merge_schedule
from embedded.paced_sources import Pace
from formats.json_text import column_texts, encoded, joined, key_parts, moment
from formats.nested import nested_parts
from intake.intake import BOUNDARY_HEADER, END
from services.kafka.clusters import Cluster, close_producer

HEARTBEAT_S = 0.1
UNDER_WAY_MAX = 100_000
"""The most records that Kafka has not acknowledged yet."""
_TICK_S = 0.01
_ENDED_WITHIN_S = 1.0
"""A user who interrupts feeding waits only this long for a Kafka that is out of reach."""
_SLICE_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class _Topic:
    """A stream's topic, and the rows for it."""

    producer: _Producer  # of the topic's cluster
    stream: Stream
    name: str  # of the topic
    partitions: list[int]
    rows: SourceRows  # in event-time order


class _Producer:
    """A producer that raises Kafka's refusal of a record, at the next record or at the end, and waits if Kafka is too slow:
    kafka-python's own producer would keep all records in memory."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer
        self._changed = threading.Condition()
        self._under_way = 0
        self._refusal: BaseException | None = None

    def send(self, topic: str, value: bytes, **options: Any) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < UNDER_WAY_MAX or self._refusal is not None)
            self._check()
            self._under_way += 1
        self._producer.send(topic, value, **options).add_callback(self._note, None).add_errback(self._note)

    def flush(self) -> None:
        """Return when Kafka has all records."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way or self._refusal is not None)
            self._check()

    def _note(self, refusal: BaseException | None, _: object = None) -> None:
        with self._changed:
            self._under_way -= 1
            self._refusal = self._refusal or refusal
            self._changed.notify_all()

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal


def feed(
    clusters: Mapping[str, Cluster],
    streams: Mapping[str, Stream],
    rows: Mapping[str, SourceRows],
    pace: Pace,
    *,
    ended: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Write the rows of each stream, by name, to its topic, which is in its cluster; returns how many, once Kafka has them.

    ended: the last record of every partition marks the end of the stream, so that all windows close. on_progress is called
    with the number of rows written so far. UserError: a stream whose records are not JSON, or that has no topic, or whose topic
    does not exist. KafkaError if Kafka refuses a record; while it is out of reach, feeding waits.
    """
    for name in rows:
        stream = streams[name]
        if stream.format != "json":
            fix = "write its records with a producer of your own"
            raise UserError(f"streams.{name}.format", stream.format, "is not JSON, as fed rows are", fix)
        for column, part in stream.origins.items():
            fix = "write its records with a producer of your own"
            raise UserError(f"streams.{name}.schema.{column}", part, "is a part of records that rows of a file have not", fix)
    schedule = merge_schedule(dict(rows))
    with ExitStack() as stack:
        producers = {
            cluster: _Producer(_make_producer(stack, cluster, linger_ms=5)) for cluster in {clusters[name] for name in rows}
        }
        topics = {name: _make_topic(clusters[name], producers, name, streams[name], found) for name, found in rows.items()}
        sent = dict.fromkeys(topics, 0)
        started = time.monotonic()
        heartbeat_at = 0.0
        while True:
            elapsed = time.monotonic() - started
            count, reached = pace.cut(schedule, int(elapsed * 1e6))
            for name, topic in topics.items():
                until = schedule.rows_within(name, count)
                for first in range(sent[name], until, _SLICE_ROWS):
                    _send(topic, first, min(first + _SLICE_ROWS, until))
                sent[name] = until
            if on_progress:
                on_progress(count)
            if reached >= INFINITY:
                break
            if elapsed >= heartbeat_at:
                heartbeat_at = elapsed + HEARTBEAT_S
                for topic in topics.values():
                    _send_boundary(topic.producer, topic.name, topic.partitions, moment(reached))
            time.sleep(_TICK_S)
        for topic in topics.values() if ended else ():
            _send_boundary(topic.producer, topic.name, topic.partitions, END)
        for producer in producers.values():
            producer.flush()
    return sum(sent.values())


def end(cluster: Cluster, topic: str) -> None:
    """Mark the end of the stream in every partition of a topic. UserError: there is no such topic. KafkaError as `feed`."""
    partitions = _partitions(cluster, topic, "topic")
    with ExitStack() as stack:
        producer = _Producer(_make_producer(stack, cluster))
        _send_boundary(producer, topic, partitions, END)
        producer.flush()


def json_records(stream: Stream, batch: pa.RecordBatch) -> list[bytes]:
    """Rows as the stream's producers would write them: `formats.record_parsing` reads the same rows from these records."""
    texts = column_texts(stream.attributes, batch)
    moments = texts.pop(TIME)
    columns = texts if stream.time in texts else {stream.time: moments, **texts}
    places = {stream.paths.get(name, (name,)): column for name, column in columns.items()}
    return encoded(joined(nested_parts(places)))


def _keys(stream: Stream, batch: pa.RecordBatch) -> list[bytes] | list[None]:
    if not stream.key:
        return [None] * batch.num_rows
    texts = column_texts(stream.attributes, batch)
    return encoded(joined(key_parts(stream.key, texts)))


def _make_producer(stack: ExitStack, cluster: Cluster, **options: Any) -> KafkaProducer:
    """A producer that is closed with `stack`. Unless feeding is interrupted, it has been flushed by then."""
    producer = cluster.make_producer(**options)
    stack.callback(close_producer, producer, _ENDED_WITHIN_S)
    return producer


def _make_topic(
    cluster: Cluster, producers: Mapping[Cluster, _Producer], name: str, stream: Stream, rows: SourceRows
) -> _Topic:
    field = f"streams.{name}.topic"
    if stream.topic is None:
        raise UserError(field, None, "is not given", "name the topic that holds the stream's records")
    return _Topic(producers[cluster], stream, stream.topic, _partitions(cluster, stream.topic, field), rows)


def _partitions(cluster: Cluster, topic: str, field: str) -> list[int]:
    with closing(cluster.make_consumer()) as consumer:
        partitions = consumer.partitions_for_topic(topic)
    if not partitions:
        raise UserError(field, topic, "does not exist", "apply the query first")
    return sorted(partitions)


def _send(topic: _Topic, first: int, until: int) -> None:
    batch = topic.rows.batch.slice(first, until - first)
    for key, record in zip(_keys(topic.stream, batch), json_records(topic.stream, batch), strict=True):
        topic.producer.send(topic.name, record, key=key)


def _send_boundary(producer: _Producer, topic: str, partitions: list[int], text: str) -> None:
    for partition in partitions:
        # With a key, since a compacted topic takes no record without one.
        key, headers = BOUNDARY_HEADER.encode(), [(BOUNDARY_HEADER, text.encode())]
        producer.send(topic, b"", key=key, headers=headers, partition=partition)
