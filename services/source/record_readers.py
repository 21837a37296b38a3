"""What reads the records of a user's topic: kafka-python's consumer, or librdkafka's, which takes a fraction of its time.

Both read given partitions from given offsets, leave out records of aborted transactions, and give the same records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from intake.user_records import Headers, PartitionRecords, distinct
from services.kafka.clusters import Cluster, log_retry
from services.storage.record_group import FETCH_BYTES, LOOK_BYTES, consumer_options, known_end

if TYPE_CHECKING:
    import confluent_kafka

LONGEST_LOOK_MS = 100
"""A poll returns when LOOK_BYTES have arrived, or after this time at most."""

_logger = logging.getLogger("boreal.source")


class RecordReader(Protocol):
    """Reads the partitions that were last passed to `read_from`."""

    def read_from(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        ...

    def poll(self, timeout_ms: int, most: int) -> dict[int, PartitionRecords]:
        """The next records, at most `most`; waits until there are some. OffsetOutOfRangeError if the records at a position were
        deleted, another KafkaError if the cluster refuses to give records."""
        ...

    def position(self, number: int) -> int:
        """The offset up to which everything in a partition has been returned, or is no record of the stream."""
        ...

    def known_end(self, number: int) -> int | None:
        """The end of a partition, as the last fetch from it said; None before. Asks nobody."""
        ...

    def close(self) -> None: ...


class KafkaPythonReader:
    """Reads with a consumer of kafka-python."""

    def __init__(self, cluster: Cluster, topic: str, look_ms: int, with_keys: bool = False) -> None:
        """look_ms: how long a poll gathers records if few come. with_keys: whether keys and time stamps of the records are
        wanted. KafkaError if the cluster is out of reach."""
        self._consumer: KafkaConsumer = cluster.make_consumer(
            # Records of an aborted transaction are not part of the stream.
            read_committed=True,
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_min_bytes=LOOK_BYTES,
            fetch_max_wait_ms=look_ms,
        )
        self._with_keys = with_keys
        self._topic = topic

    def read_from(self, offsets: Mapping[int, int]) -> None:
        self._consumer.assign([TopicPartition(self._topic, number) for number in offsets])
        for number, offset in offsets.items():
            self._consumer.seek(TopicPartition(self._topic, number), offset)

    def poll(self, timeout_ms: int, most: int) -> dict[int, PartitionRecords]:
        found = self._consumer.poll(timeout_ms, max_records=most)
        return {partition.partition: PartitionRecords.of(records, self._with_keys) for partition, records in found.items()}

    def position(self, number: int) -> int:
        return int(self._consumer.position(TopicPartition(self._topic, number)))

    def known_end(self, number: int) -> int | None:
        end: int | None = self._consumer.highwater(TopicPartition(self._topic, number))
        return end

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=500)


class LibrdkafkaReader:
    """Reads with a consumer of librdkafka (confluent-kafka), which fetches ahead in threads of its own."""

    def __init__(self, options: Mapping[str, Any], topic: str, look_ms: int, with_keys: bool = False) -> None:
        """options: how the cluster is reached (`Cluster.librdkafka_options`). with_keys: as above."""
        import confluent_kafka

        self._kafka = confluent_kafka
        self._topic = topic
        self._with_keys = with_keys
        self._positions: dict[int, int] = {}
        self._consumer = confluent_kafka.Consumer(consumer_options(options, look_ms))

    def read_from(self, offsets: Mapping[int, int]) -> None:
        self._positions = dict(offsets)
        self._consumer.assign([self._kafka.TopicPartition(self._topic, *place) for place in offsets.items()])

    def poll(self, timeout_ms: int, most: int) -> dict[int, PartitionRecords]:
        # `consume` would wait until it has `most` records.
        first = self._consumer.poll(timeout_ms / 1_000)
        if first is None:
            return {}
        messages = [first, *self._consumer.consume(most - 1, timeout=0)]
        return take_messages(messages, self._topic, self._positions, self._with_keys)

    def position(self, number: int) -> int:
        return self._positions[number]

    def known_end(self, number: int) -> int | None:
        return known_end(self._consumer, (self._topic, number))

    def close(self) -> None:
        self._consumer.close()


def take_messages(
    messages: list[confluent_kafka.Message], topic: str, positions: dict[int, int], with_keys: bool
) -> dict[int, PartitionRecords]:
    """The records among what a consumer of librdkafka returned; moves the positions past them, and to the ends of partitions:
    past records of aborted transactions, and marks of transactions, which are not returned. Errors as in
    `RecordReader.poll`; then no position has moved, and all is to be read again."""
    failed = [message for message in messages if message.error() is not None]
    records = [message for message in messages if message.error() is None] if failed else messages
    ends = [message for message in failed if _is_end(message, topic)]
    found = _by_partition(records, with_keys)
    positions.update({number: of_partition.end for number, of_partition in found.items()})
    for message in ends:
        number, offset = message.partition(), message.offset()
        if number is not None and offset is not None and number in positions:
            positions[number] = max(positions[number], offset)
    return found


def _by_partition(messages: list[confluent_kafka.Message], with_keys: bool) -> dict[int, PartitionRecords]:
    if not messages:
        return {}
    message_type = type(messages[0])
    numbers = np.fromiter(map(message_type.partition, messages), np.int64, len(messages))
    found: dict[int, PartitionRecords] = {}
    for number in distinct(numbers):
        ours = [messages[at] for at in np.flatnonzero(numbers == number).tolist()]
        offsets = np.fromiter(map(message_type.offset, ours), np.int64, len(ours))
        # confluent-kafka says that headers may be a dictionary, or texts: those that are sent may, those that come may not.
        all_headers = cast(Iterable[Headers | None], map(message_type.headers, ours))
        headers = {at: headers for at, headers in enumerate(all_headers) if headers}
        found[number] = PartitionRecords(offsets, list(map(message_type.value, ours)), headers)
        if with_keys:
            stamps_ms = np.fromiter((message.timestamp()[1] for message in ours), np.int64, len(ours))
            found[number] = replace(found[number], keys=list(map(message_type.key, ours)), stamps_ms=stamps_ms)
    return found


def _is_end(message: confluent_kafka.Message, topic: str) -> bool:
    """Whether what is no record is the end of a partition. A failure is raised, unless librdkafka itself tries again, since
    it may heal."""
    import confluent_kafka

    error = message.error()
    assert error is not None
    code = error.code()
    if code in (confluent_kafka.KafkaError._AUTO_OFFSET_RESET, confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE):
        raise OffsetOutOfRangeError(f"{topic}/{message.partition()}")
    if code == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise TopicAuthorizationFailedError(topic)
    if code == confluent_kafka.KafkaError._BAD_MSG:
        raise CorruptRecordError(error.str())
    if code != confluent_kafka.KafkaError._PARTITION_EOF:
        log_retry(_logger, f"{topic} cannot be read", KafkaError(error.str()))
    return bool(code == confluent_kafka.KafkaError._PARTITION_EOF)
