"""Reads a partition up to an end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaTimeoutError


def read_range(
    consumer: KafkaConsumer, partition: TopicPartition, start: int, end: int, within_s: float = math.inf
) -> Iterator[ConsumerRecord]:
    """The records at offsets from `start` up to `end`, as far as the consumer may see them, to which the partition is assigned.
    KafkaTimeoutError if Kafka gives none for `within_s` seconds."""
    consumer.seek(partition, start)
    deadline = time.monotonic() + within_s
    while (position := consumer.position(partition)) < end:
        for record in consumer.poll(timeout_ms=200).get(partition, []):
            if record.offset < end:
                yield record
        if consumer.position(partition) > position:
            deadline = time.monotonic() + within_s
        elif time.monotonic() > deadline:
            raise KafkaTimeoutError(f"{partition.topic} could not be read to offset {end}")
