"""The little of Kafka that a reader needs: clients that are made quickly and leave nothing behind, and a topic's identity.

Importing this module imports kafka-python; the client's other modules do so when they first read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient

METADATA_PAUSE_MS = 20
"""A client's pause between two questions about the cluster. The first asks who is there, the second about a topic: for want
of this setting, which kafka-python does not pass on, every client waits for 100 ms before it does anything."""

Client = TypeVar("Client")


def make_client(kind: Callable[..., Client], options: dict[str, Any]) -> Client:
    """A client of this kind. One that cannot be made leaves its network thread and sockets behind: they are closed here."""
    made: list[KafkaNetClient] = []

    def net_client(**settings: Any) -> KafkaNetClient:
        made.append(KafkaNetClient(**settings))
        made[-1].cluster.config["retry_backoff_ms"] = METADATA_PAUSE_MS
        return made[-1]

    try:
        return kind(kafka_client=net_client, **options)
    except KafkaError:
        for client in made:
            client.close()
        raise


def topic_id(consumer: KafkaConsumer, topic: str) -> str:
    """What tells a topic from a later one of its name, as far as the consumer knows by now; '' where it does not know, or Kafka
    (before 2.8) does not say."""
    return str(consumer._client.cluster.topic_id(topic) or "")
