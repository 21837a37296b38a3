"""A schema registry that is down, on a whole stack: the query answers within X without the stream that needs it, says so, and
all rows are right once the registry is back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka import KafkaConsumer, TopicPartition

from tests.registry import RegistryServer
from tests.stack.test_stack import QUERY, SECOND_US, Commands
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

FIRST_S, SECONDS, PER_S = 1_700_000_000, 3, 10
X_MS = 10_000
"""More than a busy machine needs for anything else."""
AVRO = {
    "type": "record", "name": "Row",
    "fields": [{"name": "at", "type": "long"}, {"name": "key", "type": "string"}, {"name": "value", "type": "long"}],
}  # fmt: skip
ROWS = [
    {"at": FIRST_S * SECOND_US + tick * SECOND_US // PER_S, "key": "k", "value": tick} for tick in range(SECONDS * PER_S)
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="module")
def boreal(tmp_path_factory: pytest.TempPathFactory, registry: RegistryServer) -> Iterator[Commands]:
    data = tmp_path_factory.mktemp("outage") / "data"
    with Commands(data, {"BOREAL_REGISTRIES__MAIN__URL": registry.url}).up() as commands:
        path = data.parent / "counts.yaml"
        path.write_text(QUERY.replace("in.right,", "in.right, format: avro,").replace("threshold: 3s", f"threshold: {X_MS}ms"))
        commands.json("query", "apply", str(path))
        yield commands


def records(kafka: str, topic: str) -> list[dict[str, Any]]:
    """What a topic holds now."""
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka, isolation_level="read_committed")
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end, found = consumer.end_offsets([partition])[partition], []
        while consumer.position(partition) < end:
            found += [json.loads(record.value) for record in consumer.poll(timeout_ms=200).get(partition, [])]
        return found
    finally:
        consumer.close()


@pytest.mark.soak
def test_answers_come_within_x_while_the_registry_of_a_stream_is_down_and_all_are_right_after_it(
    boreal: Commands, registry: RegistryServer
) -> None:
    kafka = boreal.status()["kafka"]["a"]
    serialize = AvroSerializer(SchemaRegistryClient({"url": registry.url}), json.dumps(AVRO))
    context = SerializationContext("in.right", MessageField.VALUE)
    written = [serialize(row, context) for row in ROWS]
    registry.kill()
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka})
    for value in written:
        producer.produce("in.right", value)
    assert producer.flush(60) == 0
    path = boreal.data.parent / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    boreal.json("feed", "counts", f"left={path}")

    def tentative() -> list[dict[str, Any]]:
        return [record for record in records(kafka, "counts.out") if record["type"] == "tentative"]

    wait_until(lambda: len(tentative()) >= SECONDS - 1, "answers without the stream")
    shown = tentative()
    assert {("right" in record["missing_inputs"], record["data"]["rows"]) for record in shown} == {(True, PER_S)}
    assert max(record["emitted_ms"] - record["ingest_ms"] for record in shown) <= X_MS
    assert records(kafka, "counts.stable") == []
    said = boreal.shown("show", "counts")["streams"]["right"]
    assert said["state"] == "failed" and registry.url in said["waits_for"]
    registry.start()
    wait_until(lambda: len(records(kafka, "counts.stable")) >= SECONDS - 1, "the rows that have waited")
    assert {row["rows"] for row in records(kafka, "counts.stable")} == {2 * PER_S}
    wait_until(lambda: boreal.shown("show", "counts")["streams"]["right"]["waits_for"] is None, "nothing is waited for")
