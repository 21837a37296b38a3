"""What librdkafka returns beside records: a failure must not take the records of its poll with it."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from kafka.errors import OffsetOutOfRangeError

from services.source.record_readers import LibrdkafkaReader
from tests.librdkafka_messages import Message


class Consumer:
    """Returns these messages in one poll."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.assigned: list[tuple[int, int]] = []

    def poll(self, _: float) -> Message:
        return self._messages[0]

    def consume(self, _: int, timeout: float) -> list[Message]:
        return self._messages[1:]

    def assign(self, places: list[confluent_kafka.TopicPartition]) -> None:
        self.assigned = [(place.partition, place.offset) for place in places]


def reading(monkeypatch: pytest.MonkeyPatch, messages: list[Message]) -> LibrdkafkaReader:
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: Consumer(messages))
    reader: Any = LibrdkafkaReader({"client.id": "test"}, "in", 10)
    reader.read_from({0: 5, 1: 7})
    return reader


def test_records_beside_a_position_that_was_deleted_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = Message(("in", 1), 7, confluent_kafka.KafkaError._AUTO_OFFSET_RESET)
    reader = reading(monkeypatch, [Message(("in", 0), 5), Message(("in", 0), 6), deleted])
    with pytest.raises(OffsetOutOfRangeError):
        reader.poll(10, 100)
    assert (reader.position(0), reader.position(1)) == (5, 7)


def test_the_end_of_a_partition_moves_its_position_past_what_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    end = confluent_kafka.KafkaError._PARTITION_EOF
    reader = reading(monkeypatch, [Message(("in", 0), 5), Message(("in", 0), 8, end), Message(("in", 1), 9, end)])
    assert {number: records.offsets.tolist() for number, records in reader.poll(10, 100).items()} == {0: [5]}
    assert (reader.position(0), reader.position(1)) == (8, 9)
