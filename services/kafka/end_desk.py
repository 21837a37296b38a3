"""Where the topics of one site end: asked for all sources of a process together, by one client.

A client of its own, since a broker answers the requests of a connection in turn, and a fetch waits there for records.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError
from kafka.protocol.consumer import OffsetSpec

from intake.end_questions import EndQuestions, EndRequest, Place
from services.kafka.clusters import Cluster, log_retry

RETRY_S = 0.05
_REFUSED_US = 1_000_000
"""A topic that the site has refused to tell of is asked for again after this time."""
_LOOK_US = 200_000
"""The least time between two looks for leaders that are not known."""
STUCK_US = 20_000_000
"""A client that has had no answer for this time is replaced: kafka-python's may never answer again, though Kafka does."""

Answer = TypeVar("Answer")

_logger = logging.getLogger("boreal.source")


class EndDesk:
    """May be used by any thread; `clock` is the time in us."""

    def __init__(self, cluster: Cluster, clock: Callable[[], int]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._consumer: KafkaConsumer | None = None
        self._silent_since: int | None = None
        self._topics: Counter[str] = Counter()
        self._leaders: defaultdict[int, _Leader] = defaultdict(_Leader)
        self._refused: dict[str, int] = {}
        self._look_at = 0

    @property
    def _client(self) -> KafkaConsumer:
        """KafkaError if the site is out of reach."""
        with self._lock:
            if self._consumer is None:
                self._consumer = self._cluster.make_consumer(read_committed=True)
                self._silent_since = None
                self._assign(self._consumer)
            return self._consumer

    def ask(self, question: Callable[[KafkaConsumer], Answer]) -> Answer:
        """The answer of the client to a single question about topics. KafkaError if the site is out of reach, or the client was
        replaced meanwhile."""
        consumer = self._client
        try:
            return question(consumer)
        except RuntimeError as error:
            if consumer is self._consumer:
                raise
            raise KafkaConnectionError("the client that was asked has been replaced") from error

    def follow(self, topic: str) -> None:
        """Keep the leaders of a topic, which exists, until `leave`. Each source that asks for its ends calls both."""
        self._change(topic, 1)

    def leave(self, topic: str) -> None:
        """A source asks for the ends of this topic no more."""
        self._change(topic, -1)

    def close(self) -> None:
        with self._lock:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=500)

    def ends(self, places: Iterable[Place], since: int) -> dict[Place, int]:
        """The ends of partitions of topics that are followed, as of `since` or later, without those whose leader does not
        answer at once. Each leader is asked alone: the others do not wait for one that is silent."""
        by_leader: defaultdict[int, list[Place]] = defaultdict(list)
        cluster = self._client._client.cluster
        for place in places:
            leader = cluster.leader_for_partition(TopicPartition(*place))
            if leader is not None and leader >= 0:
                by_leader[leader].append(place)
            elif self._clock() >= self._look_at:
                self._look_at = self._clock() + _LOOK_US
                cluster.request_update()
        found: dict[Place, int] = {}
        for leader, ours in by_leader.items():
            found.update(self._ask(leader, ours, since))
        return found

    def _ask(self, leader: int, places: Collection[Place], since: int) -> Mapping[Place, int]:
        of = self._leaders[leader]
        while True:
            with of.changed:
                while (step := of.questions.ask(places, since, self._clock())) is None:
                    of.changed.wait()
                if not isinstance(step, EndRequest):
                    return step
            answers: Mapping[Place, int] | None = None
            try:
                answers = self._send(leader, step)
                self._silent_since = None
            except (KafkaError, OSError) as error:
                log_retry(_logger, f"the ends of {sorted({topic for topic, _ in step.places})} cannot be read", error)
                self._replace_stuck()
            finally:
                with of.changed:
                    of.questions.finish(answers, self._clock())
                    of.changed.notify_all()

    def _replace_stuck(self) -> None:
        """Let the next question make another client, if no leader has answered this one for long."""
        now = self._clock()
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now - self._silent_since >= STUCK_US:
            self.close()

    def _send(self, leader: int, request: EndRequest) -> dict[Place, int]:
        now = self._clock()
        places = [place for place in request.places if self._refused.get(place[0], 0) <= now]
        try:
            return self._list_offsets(leader, places, request.patience_ms)
        except TopicAuthorizationFailedError as error:
            (refused,) = error.args
            log_retry(_logger, f"the ends of {sorted(refused)} cannot be read", error)
            self._refused.update(dict.fromkeys(refused, now + _REFUSED_US))
            return self._list_offsets(leader, [place for place in places if place[0] not in refused], request.patience_ms)

    def _list_offsets(self, leader: int, places: Collection[Place], patience_ms: int) -> dict[Place, int]:
        """The ends that the leader tells. `end_offsets` would return none if one of them does not exist."""
        if not places:
            return {}
        stamps = {TopicPartition(*place): (OffsetSpec.LATEST, -1) for place in places}
        until = time.monotonic() + patience_ms / 1_000

        def send(consumer: KafkaConsumer) -> Any:
            manager, within_ms = consumer._manager, max((until - time.monotonic()) * 1_000, 1)
            asked = manager.call_soon(consumer._fetcher._send_list_offsets_request, leader, stamps)
            return consumer._net.run(manager.wait_for, asked, within_ms)

        while True:
            try:
                found, others = self.ask(send)
                break
            except KafkaError as error:
                # A connection that was lost is opened again at once; a leader that does not answer has had its time.
                if isinstance(error, KafkaTimeoutError) or not error.retriable or time.monotonic() + RETRY_S > until:
                    raise
                time.sleep(RETRY_S)
        if others:
            self._client._client.cluster.request_update()  # they have another leader, or do not exist
        return {(of.topic, of.partition): int(end.offset) for of, end in found.items()}

    def _change(self, topic: str, sources: int) -> None:
        with self._lock:
            self._topics[topic] += sources
            self._topics = +self._topics
            if self._consumer is not None:
                self._assign(self._consumer)

    def _assign(self, consumer: KafkaConsumer) -> None:
        # A client keeps the leaders of what it is to read. Nothing is read, since it is never polled.
        consumer.assign([TopicPartition(topic, 0) for topic in self._topics])


class _Leader:
    """One leader, and who waits for its answers."""

    def __init__(self) -> None:
        self.questions = EndQuestions()
        self.changed = threading.Condition()
