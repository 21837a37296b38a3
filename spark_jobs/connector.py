"""Options with which Spark's connector reaches a site's Kafka: the same settings as in `services.kafka.clusters`, by the names
of Kafka's Java clients.

The password is neither in a file nor on a command line; Spark and Kafka mask it when they print options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from deployment.operator_hosts import orders_topic
from services.kafka.clusters import FOR_EVER_MS, MAX_FRAME_BYTES, REQUEST_TIMEOUT_MS
from services.kafka.settings import KafkaSettings

BATCH_ORDERS = 1_000
"""The most orders of one batch, over all partitions: a bound for memory when a job begins far behind."""

SHARED_BATCH_ORDERS = 250
"""The same for an application that queries share, where the others wait for the end of the batch."""

SHARED_POLL_MS = 15_000
"""How long such an application waits for records that should be there. After some tries it ends, and is started again."""


def source_options(kafka: KafkaSettings, topic: str, first: Mapping[int, int] | None = None) -> dict[str, str]:
    """Options to read a topic from its first record on, or from these offsets, by partition. Trimmed records are not needed:
    their orders were executed."""
    return {
        **_stream_options(kafka, BATCH_ORDERS),
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: {str(p): offset for p, offset in first.items()}}) if first else "earliest",
    }


def shared_source_options(kafka: KafkaSettings, replica: str) -> dict[str, str]:
    """Options to read the orders of a replica number of all queries; topics that are made later are read from their first
    record on."""
    return {
        **_stream_options(kafka, SHARED_BATCH_ORDERS),
        # One topic that is deleted while a batch is to read it must not stop the others for ever.
        "kafkaConsumer.pollTimeoutMs": str(SHARED_POLL_MS),
        "subscribePattern": f".+{re.escape(orders_topic('', replica))}",
        "startingOffsets": "earliest",
    }


def _stream_options(kafka: KafkaSettings, batch_orders: int) -> dict[str, str]:
    return {
        **_common(kafka),
        "failOnDataLoss": "false",
        "maxOffsetsPerTrigger": str(batch_orders),
        "kafka.max.partition.fetch.bytes": str(MAX_FRAME_BYTES),
        "kafka.fetch.max.bytes": str(MAX_FRAME_BYTES),
        # After the last record the consumer already fetches the next one, while the connector asks for the log's ends: a batch
        # after a pause would wait for half a second, the default of this option. With 0 it does not.
        "kafka.fetch.max.wait.ms": "0",
        # No client ever gives up: while a cluster is out of reach, the job waits.
        "kafkaConsumer.pollTimeoutMs": str(FOR_EVER_MS),
        "fetchOffset.numRetries": str(FOR_EVER_MS),
        "fetchOffset.retryIntervalMs": "1000",
    }


def batch_options(kafka: KafkaSettings, offsets: Mapping[str, Mapping[int, tuple[int, int]]]) -> dict[str, str]:
    """Options to read these records only. offsets: by topic and partition, the first and the one after the last. The job fails
    if one of them is deleted."""

    def listed(place: int) -> str:
        return json.dumps({topic: {str(p): ends[place] for p, ends in found.items()} for topic, found in offsets.items()})

    return {
        **_common(kafka),
        "subscribe": ",".join(offsets),
        "startingOffsets": listed(0),
        "endingOffsets": listed(1),
        "failOnDataLoss": "true",
        "kafka.max.partition.fetch.bytes": str(MAX_FRAME_BYTES),
        "kafka.fetch.max.bytes": str(MAX_FRAME_BYTES),
    }


def sink_options(kafka: KafkaSettings, topic: str | None) -> dict[str, str]:
    """Options to write to a topic; None: to that which each row names."""
    return {
        **_common(kafka),
        **({} if topic is None else {"topic": topic}),
        "kafka.acks": "all",
        "kafka.max.request.size": str(MAX_FRAME_BYTES),
        "kafka.buffer.memory": str(2 * MAX_FRAME_BYTES),
        "kafka.delivery.timeout.ms": str(FOR_EVER_MS),
        "kafka.max.block.ms": str(FOR_EVER_MS),
    }


def _common(kafka: KafkaSettings) -> dict[str, str]:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "kafka.security.protocol": kafka.security_protocol,
        "kafka.request.timeout.ms": str(REQUEST_TIMEOUT_MS),
        "kafka.reconnect.backoff.max.ms": "200",
    }
    if kafka.security_protocol.startswith("SASL"):
        options["kafka.sasl.mechanism"] = kafka.sasl_mechanism
        options["kafka.sasl.jaas.config"] = _login(kafka)
    if kafka.ca_file is not None:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = str(kafka.ca_file)
    return options


def _login(kafka: KafkaSettings) -> str:
    package = "plain.Plain" if kafka.sasl_mechanism == "PLAIN" else "scram.Scram"
    password = kafka.password.get_secret_value() if kafka.password else ""
    # JAAS reads quotes and escapes as JSON writes them.
    user, secret = (json.dumps(text, ensure_ascii=False) for text in (kafka.username or "", password))
    return f"org.apache.kafka.common.security.{package}LoginModule required username={user} password={secret};"
