"""Kafka clients that start quickly and release all their resources, and the id of a topic.

This module imports kafka-python; the other modules of the client import it when they first read.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from kafka import KafkaConsumer, KafkaProducer
from kafka.cluster import ClusterMetadata
from kafka.errors import UnknownTopicOrPartitionError
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector
from kafka.producer.record_accumulator import RecordAccumulator

METADATA_PAUSE_MS = 20
"""A client's pause between two metadata requests. The first request asks for the brokers, the second for a topic. With
kafka-python's default, which no option changes, every client would wait for 100 ms before its first action."""

GONE_PAUSE_MS = 200
"""The same while a topic that a producer has written has no leader, or is gone."""

LOOK_MS = 50
"""How soon a producer that cannot send looks again; sooner when the broker says something."""

_LOOKS = 3
"""How often Kafka is asked for all topics, where the request fails because of another one."""

Client = TypeVar("Client")


class QuickSelector(selectors.DefaultSelector):
    """As the default selector, but that a socket is not registered is said without a text about the socket. kafka-python asks
    before each wait, and mostly gets this answer; the text took a tenth of the time of a client's thread."""

    def get_key(self, fileobj: socket.socket) -> selectors.SelectorKey:  # type: ignore[override]
        """The key of a registered socket; KeyError if there is none."""
        number = fileobj.fileno()
        if number < 0:  # closed, but perhaps still registered
            return super().get_key(fileobj)
        return self._fd_to_key[number]  # type: ignore[attr-defined,no-any-return]


class SteadyWaker(NetworkSelector):  # type: ignore[misc]
    """As kafka-python's, but that a thread which was woken, and has not looked yet, is not woken again. kafka-python does so
    for each log of those that are sent together, and each time costs both threads a system call."""

    _is_woken = False

    def wakeup(self) -> None:
        """Let the thread look for work. May be called from any thread."""
        if not self._is_woken:
            self._is_woken = True
            super().wakeup()

    def _process_events(self, event_list: list[Any]) -> None:
        super()._process_events(event_list)
        # After it has taken the bytes by which it was woken: one that is sent in between would be taken with them, and nothing
        # would wake it any more. And before it looks for work: what came until now is found then.
        self._is_woken = False


class SteadyNetClient(KafkaNetClient):  # type: ignore[misc]
    """As kafka-python's, but its producer sleeps while it cannot send."""

    def connection_delay(self, node_id: int) -> float:
        """For how many milliseconds a producer need not look whether a broker can take a request.

        kafka-python (3.0) says 0 while as many requests are on their way as may be, and seconds otherwise, which its producer
        takes for milliseconds. So it looks without a pause until the broker answers: on a full machine that took a third of a
        core, from the broker among others, and all of what an outage left idle.
        """
        delay_s: float = super().connection_delay(node_id)
        return max(delay_s * 1_000, LOOK_MS)


class SteadyAccumulator(RecordAccumulator):  # type: ignore[misc]
    """What a producer has to send; as kafka-python's, but that its producer sleeps though a topic has no leader.

    kafka-python (3.0) remembers each topic that was ever written, and asks for the leaders of those that have none, though
    nothing is to be sent to them. The question wakes the producer's thread, which asks again. So after a query was deleted, two
    workers and the monitor took a core and a half, until they ended.
    """

    _ask_at = 0.0

    def ready(self, cluster: ClusterMetadata, now: float | None = None) -> tuple[set[int], float, bool]:
        """The brokers that something may be sent to, in how many seconds to look again, and whether to ask for leaders."""
        nodes, look_s, lacks_leaders = super().ready(cluster, now)
        # Its client asks for a topic that is gone as long as it lives.
        cluster.config["retry_backoff_ms"] = GONE_PAUSE_MS if lacks_leaders else METADATA_PAUSE_MS
        if not lacks_leaders or not self._waits_for_leaders(cluster):
            return nodes, look_s, False
        left_s = self._ask_at - time.monotonic()
        if left_s > 0:
            return nodes, min(look_s, left_s), False
        self._ask_at = time.monotonic() + LOOK_MS / 1_000
        return nodes, min(look_s, LOOK_MS / 1_000), True

    def _waits_for_leaders(self, cluster: ClusterMetadata) -> bool:
        """Whether there are records for a partition that has no leader."""
        return any(waiting and cluster.leader_for_partition(to) in (None, -1) for to, waiting in list(self._batches.items()))


def make_client(kind: Callable[..., Client], options: dict[str, Any]) -> Client:
    """A client of this class. If its construction fails, its network thread and sockets are closed here; kafka-python leaves
    them open."""
    made: list[SteadyNetClient] = []

    def net_client(**settings: Any) -> SteadyNetClient:
        made.append(SteadyNetClient(net=SteadyWaker(**settings), **settings))
        made[-1].cluster.config["retry_backoff_ms"] = METADATA_PAUSE_MS
        # kafka-python (3.0) drops this option on its way here. Without it, a broker with its own defaults creates each topic
        # that a client asks about, with settings that lose rows.
        made[-1].cluster.config["allow_auto_create_topics"] = False
        return made[-1]

    try:
        client = kind(kafka_client=net_client, selector=QuickSelector, **options)
        if isinstance(client, KafkaProducer):
            client._accumulator.__class__ = SteadyAccumulator  # no option of a producer names it
        return client
    except BaseException:
        for net in made:
            net.close()
        raise


def topic_id(consumer: KafkaConsumer, topic: str) -> str:
    """The id of a topic: a later topic with the same name has another id. '' if the consumer does not know it yet, or Kafka is
    older than 2.8."""
    return str(consumer._client.cluster.topic_id(topic) or "")


def all_topics(consumer: KafkaConsumer) -> set[str]:
    """All topics. The request for an absent one may still be under way, and kafka-python then fails this one with its error."""
    for _ in range(_LOOKS):
        with suppress(UnknownTopicOrPartitionError):
            return set(consumer.topics())
    return set()
