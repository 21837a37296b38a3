"""Reads the ends of many calm logs of one site, or of many calm topics of users, with one consumer.

A consumer costs two threads and a request for every fetch, also while nothing happens. So a follower of a log gives up its own
consumer once the log is calm: few records come at a time. As soon as many records come, or the follower's instance takes them
too slowly, the follower reads alone again, so that no log holds up another. A source does the same with the partitions of its
topic (services/source/calm_reader.py).

Each fetch costs time for every log that is read, whether it has news or not. So what comes to many logs one after the other is
gathered: the next fetch begins a moment after one that has brought records, as long after as all members allow. Followers that
allow none have a shared reader for themselves (`CalmReaders`), so that they cost the others nothing.

    reads alone ──few records for calm_s──> is read in both ways ──the shared consumer has caught up──> is shared
         ^                                                                                               │
         └────────────── many records at once, a full event that waits, or an error ─────────────────────┘
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError

from boreal.model.frames import Frame
from boreal.model.lazy import lazy
from services.kafka.clusters import Cluster, log_retry
from services.storage.log_partition import FetchSize, LogRecord, frames_of, make_log_consumer

CALM_S = 0.5
"""How long few records must have come before a log is shared."""
FEW_RECORDS = 16
"""At most so many records come at a time from a calm log."""
MANY_RECORDS = 128
"""If so many come at a time, the log is read alone again. Well above FEW_RECORDS, so that a log does not alternate."""
FETCH_WAIT_MS = 500
"""How long a fetch waits while no log has news. A log that joins is fetched after this time at the latest; until then its
follower reads it too."""
_OPTIONS = {"fetch_max_wait_ms": FETCH_WAIT_MS, "fetch_max_bytes": 4 << 20}
_RETRY_S = 0.1
_CLOSE_S = 2.0

_logger = logging.getLogger("boreal.follow")


@dataclass(frozen=True)
class LogFetch:
    """What a fetch says of a log: the same to all its members."""

    start: int
    """The first offset that was asked for."""
    records: Sequence[ConsumerRecord]
    """The records from there on, in order; none if only `reached` or `end` is news."""
    reached: int
    """The offset up to which everything has been read: what is between it and the last record is no record for readers."""
    end: int
    """The end of the log, as of the fetch."""

    @lazy
    def frames(self) -> list[tuple[LogRecord, Frame]]:
        """The records of a log of ours, each with its frame: decoded once for all instances that read the log. CorruptError if
        one of them is damaged."""
        return frames_of(self.records)


class Member(Protocol):
    """The follower of a calm log."""

    @property
    def position(self) -> int:
        """Offset of the record that it needs next."""
        ...

    @property
    def gather_us(self) -> int:
        """How long what comes may wait for what comes to other logs, in microseconds."""
        ...

    def take_shared(self, fetched: LogFetch) -> bool:
        """Take what was fetched of the log; records before `position` are repeated. False: it is to read alone. Must not
        block."""
        ...

    def read_alone(self) -> None:
        """The log cannot be shared: read it alone from `position` on."""
        ...


class SharedReader:
    """See the module's header. All methods return at once, and may be called from any thread."""

    def __init__(self, cluster: Cluster, calm_s: float = CALM_S, poll_ms: int = FETCH_WAIT_MS, **options: Any) -> None:
        """poll_ms: how soon members learn that `reached` has moved without a record. options: of the consumer."""
        self.calm_s = calm_s
        """How long few records must have come before a log is shared."""
        self._cluster = cluster
        self._poll_ms = poll_ms
        self._options = {**_OPTIONS, **options}
        self._changed = threading.Condition()
        self._members: dict[TopicPartition, tuple[Member, ...]] = {}
        self._joined: set[TopicPartition] = set()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def join(self, member: Member, place: TopicPartition) -> None:
        """Read a log for this member too, until it leaves."""
        with self._changed:
            self._members[place] = (*self._members.get(place, ()), member)
            self._joined.add(place)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"follow-calm-{self._cluster.site}", daemon=True)
                self._thread.start()

    def leave(self, member: Member, place: TopicPartition) -> None:
        """Read the log no more for this member; nothing happens if it has left."""
        with self._changed:
            left = tuple(other for other in self._members.pop(place, ()) if other is not member)
            if left:
                self._members[place] = left

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    # The thread

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._await_any()
                with closing(make_log_consumer(self._cluster, **self._options)) as consumer:
                    self._read(consumer)
            except (KafkaError, OSError) as error:
                log_retry(_logger, f"calm logs of {self._cluster.site} cannot be read", error)
                time.sleep(_RETRY_S)
            except Exception:
                # Whatever it is: the followers can go on alone, and report what concerns their logs.
                _logger.exception("calm logs of %s are read alone again", self._cluster.site)
                self._dismiss()

    def _read(self, consumer: KafkaConsumer) -> None:
        """Read until there are no members, or an error occurs."""
        size = FetchSize(consumer)
        places = _Places(consumer)
        while members := self._choose(places):
            try:
                found = consumer.poll(timeout_ms=self._poll_ms)
            except KafkaError as error:
                if error.retriable and not isinstance(error, OffsetOutOfRangeError | CorruptRecordError):
                    raise
                # kafka-python does not say which log it is. The follower that reads it alone will meet the error again.
                self._dismiss()
                return
            size.suit(bool(found))
            for place, fetched in places.news(found):
                for member in members.get(place, ()):
                    if not member.take_shared(fetched):
                        # In this order: it may join again as soon as it reads alone.
                        self.leave(member, place)
                        member.read_alone()
            if found:
                self._gather(members)

    def _gather(self, members: Mapping[TopicPartition, tuple[Member, ...]]) -> None:
        """Wait for records of other logs. No fetch is under way meanwhile."""
        wait_us = min(member.gather_us for of_place in members.values() for member in of_place)
        if wait_us > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, wait_us / 1e6)

    def _await_any(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._members or self._is_closed)

    def _choose(self, places: _Places) -> Mapping[TopicPartition, tuple[Member, ...]]:
        """Read the logs of all members, each from the first position that one of them needs; returns the members. Empty if the
        thread has nothing to do."""
        with self._changed:
            members = {} if self._is_closed else dict(self._members)
            joined, self._joined = self._joined, set()
        if members:
            places.choose(members.keys(), joined, lambda place: min(member.position for member in members[place]))
        return members

    def _dismiss(self) -> None:
        """Let all followers read alone."""
        with self._changed:
            members, self._members = self._members, {}
        for several in members.values():
            for member in several:
                member.read_alone()


class CalmReaders:
    """The shared readers of one site: one for those who cannot wait, and one for all others."""

    def __init__(self, cluster: Cluster, calm_s: float = CALM_S) -> None:
        self._prompt = SharedReader(cluster, calm_s)
        self._patient = SharedReader(cluster, calm_s)

    def choose(self, gather_us: int) -> SharedReader:
        """The reader for members with this `gather_us`."""
        return self._patient if gather_us > 0 else self._prompt

    def close(self) -> None:
        self._prompt.close()
        self._patient.close()


class _Places:
    """Which logs a consumer reads, and how far its readers know that it has come."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self._reached: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, int | None] = {}

    def choose(self, chosen: Set[TopicPartition], joined: Set[TopicPartition], needed: Callable[[TopicPartition], int]) -> None:
        """Read these logs and no others. joined: those that have a new reader, who may need earlier records. needed: the first
        offset that a reader of a log needs."""
        if chosen != self._reached.keys():
            self._consumer.assign(list(chosen))
        for place in self._reached.keys() - chosen:
            del self._reached[place], self._told[place]
        for place in chosen & (joined | (chosen - self._reached.keys())):
            self._reached[place], self._told[place] = needed(place), None
            self._consumer.seek(place, self._reached[place])

    def news(self, found: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> Iterator[tuple[TopicPartition, LogFetch]]:
        """What a poll says: of logs with records, of those whose position has moved without one (past a mark of a transaction,
        for example), and once of each log that has a new reader."""
        for place, start in self._reached.items():
            # `position` would also look for moved leaders, at every call.
            position = self._consumer._subscription.assignment[place].position
            records, reached = found.get(place, ()), start if position is None else position.offset
            if not records and self._told[place] == reached:
                continue
            end = self._consumer.highwater(place)
            if end is None:
                continue  # It has not been fetched yet.
            self._reached[place] = self._told[place] = reached
            yield place, LogFetch(start, records, reached, max(end, reached))
