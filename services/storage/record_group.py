"""Reads the topics of many sources of one site with one consumer of librdkafka. It is no consumer group of Kafka's: partitions
are assigned, and nothing is committed.

A consumer of librdkafka costs four threads, and a request each time that a fetch has gathered what came: some forty a second.
So sources that take what comes share one. A source that does not, since it begins with a backlog or gets more than it can
take, is sent away, and reads with a consumer of its own (services/source/grouped_reader.py): it holds up nobody.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from kafka.errors import KafkaError

from services.kafka.clusters import log_retry

if TYPE_CHECKING:
    import confluent_kafka

FETCH_BYTES = 1 << 20
"""The most that is fetched from a partition at a time: small, so that a backlog is read evenly from all partitions."""
LOOK_BYTES = 64 << 10
"""A fetch returns when so much has come, or after the time to gather."""
AHEAD_KB = 16 << 10
"""The most that librdkafka fetches ahead of its reader."""
_MOST_MESSAGES = 10_000
_POLL_S = 0.05
"""How soon a topic that is new is read, if no other has news."""
_RETRY_S = 0.2
_CLOSE_S = 2.0

Place = tuple[str, int]
"""A topic, and a partition of it."""

_logger = logging.getLogger("boreal.source")


def consumer_options(options: Mapping[str, Any], look_ms: int) -> dict[str, Any]:
    """Those of a consumer of librdkafka that reads what users have committed, from given offsets. options: how the cluster is
    reached. look_ms: for how long a fetch gathers records if few come."""
    return {
        **options,
        "group.id": options["client.id"],  # demanded, and never used: partitions are assigned, and nothing is committed
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "check.crcs": True,
        "allow.auto.create.topics": False,
        "max.partition.fetch.bytes": FETCH_BYTES,
        "fetch.min.bytes": LOOK_BYTES,
        "fetch.wait.max.ms": look_ms,
        "queued.max.messages.kbytes": AHEAD_KB,
    }


def known_end(consumer: confluent_kafka.Consumer, place: Place) -> int | None:
    """The end of a partition, as the last fetch of it said; None before. Asks nobody."""
    from confluent_kafka import TopicPartition

    found = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
    return found[1] if found is not None and found[1] >= 0 else None


class GroupMember(Protocol):
    """Who reads one partition. The group's thread calls; nothing may block."""

    def put(self, messages: Sequence[confluent_kafka.Message], end: int | None) -> bool:
        """Take what came, in order: records, ends of the partition, and its errors. end: of the partition, as far as it is
        known. False: it reads alone from now on."""
        ...

    def send_away(self) -> None:
        """Nothing more comes: read alone."""
        ...


class RecordGroup:
    """See the module's header. All methods return at once, and may be called from any thread."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: of the consumer."""
        self._options = options
        self._changed = threading.Condition()
        self._members: dict[Place, tuple[GroupMember, int]] = {}
        """And the offset from which each reads."""
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def join(self, member: GroupMember, place: Place, offset: int) -> bool:
        """Read a partition from this offset on for a member, until it leaves or is sent away. False: another one reads it."""
        with self._changed:
            if self._is_closed or place in self._members:
                return False
            self._members[place] = member, offset
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="record-group", daemon=True)
                self._thread.start()
            return True

    def leave(self, member: GroupMember, place: Place) -> None:
        """Read a partition no more for a member; nothing happens if it has left."""
        with self._changed:
            if self._members.get(place, (None,))[0] is member:
                del self._members[place]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    # The thread

    def _run(self) -> None:
        import confluent_kafka

        while self._await_any():
            consumer = None
            try:
                consumer = confluent_kafka.Consumer(dict(self._options))
                self._read(consumer)
            except Exception:
                # Whatever it is: the members can go on alone, and report what concerns their topics.
                _logger.exception("topics that were read together are read alone")
                self._dismiss()
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, _RETRY_S)
            finally:
                if consumer is not None:
                    with suppress(RuntimeError):
                        consumer.close()

    def _await_any(self) -> bool:
        """Wait for members; False once this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._members or self._is_closed)
            return not self._is_closed

    def _read(self, consumer: confluent_kafka.Consumer) -> None:
        """Read until there are no members."""
        from confluent_kafka import TopicPartition

        reads: dict[Place, tuple[GroupMember, int]] = {}
        while members := self._wanted():
            gone = [place for place, read in reads.items() if members.get(place) != read]
            if gone:
                consumer.incremental_unassign([TopicPartition(*place) for place in gone])
            new = [place for place, read in members.items() if reads.get(place) != read]
            if new:
                consumer.incremental_assign([TopicPartition(*place, members[place][1]) for place in new])
            reads = members
            if (first := consumer.poll(_POLL_S)) is not None:
                messages = [first, *consumer.consume(_MOST_MESSAGES, timeout=0)]
                for (topic, number), ours in _by_place(messages).items():
                    # What is said of a topic concerns each of its partitions.
                    places = [place for place in reads if place == (topic, number) or (number < 0 and place[0] == topic)]
                    for place in places:
                        member = reads[place][0]
                        if not member.put(ours, known_end(consumer, place)):
                            self.leave(member, place)

    def _wanted(self) -> dict[Place, tuple[GroupMember, int]]:
        with self._changed:
            return {} if self._is_closed else dict(self._members)

    def _dismiss(self) -> None:
        with self._changed:
            members, self._members = self._members, {}
        for member, _ in members.values():
            member.send_away()


def _by_place(messages: Sequence[confluent_kafka.Message]) -> dict[Place, list[confluent_kafka.Message]]:
    """Messages by the partition from which they come, in order; -1 for those of a whole topic. Failures of none are tried again
    by librdkafka."""
    found: defaultdict[Place, list[confluent_kafka.Message]] = defaultdict(list)
    for (topic, number), ours in groupby(messages, lambda message: (message.topic(), message.partition())):
        if topic is not None:
            found[topic, -1 if number is None else number] += ours
            continue
        for message in ours:
            if (error := message.error()) is not None:
                log_retry(_logger, "topics cannot be read", KafkaError(error.str()))
    return found


class RecordGroups:
    """The groups of one site: one for each time that a fetch may gather, so that none makes another one slower."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, RecordGroup] = {}

    def of(self, options: Mapping[str, Any], look_ms: int) -> RecordGroup:
        """The group of topics whose fetches gather for so long. options: how the cluster is reached."""
        with self._lock:
            if look_ms not in self._groups:
                self._groups[look_ms] = RecordGroup(consumer_options(options, look_ms))
            return self._groups[look_ms]

    def close(self) -> None:
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            group.close()
