"""Hands what a process writes to the logs of one site to those of its own roles that read them, as soon as Kafka has it:
without a fetch, a consumer, or the wait for what comes to other logs.

Only a follower that has read all that Kafka has confirmed may join, so nothing is missing between what it has read and what it
is handed. It reads alone again when its writer ends or finds that another process writes the log too, or when frames come too
fast for it.

    reads alone, or with others ──has read all that was confirmed──> is handed what is confirmed
         ^                                                                  │
         └────── the writer ends, or much comes at a time ──────────────────┘
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafka import TopicPartition

from boreal.model.frames import Frame
from boreal.model.lazy import lazy
from services.storage.log_partition import LogRecord, WrittenRecord, frames_of

_logger = logging.getLogger("boreal.follow")


@dataclass(frozen=True)
class Written:
    """What Kafka has confirmed at one time: the same to all members."""

    records: Sequence[WrittenRecord]
    """The records, in order."""
    end: int
    """The offset after the last one."""

    @lazy
    def frames(self) -> list[tuple[LogRecord, Frame]]:
        """The records, each with its frame: decoded once for all instances that read the log."""
        return frames_of(self.records)


class LocalMember(Protocol):
    """The follower of a log."""

    @property
    def position(self) -> int:
        """Offset of the record that it needs next."""
        ...

    def take_written(self, written: Written) -> bool:
        """Take what Kafka has confirmed; records before `position` are repeated. False: it is to read alone. Must not block."""
        ...

    def read_alone(self) -> None:
        """Read the log alone from `position` on."""
        ...


@dataclass(slots=True)
class _LocalLog:
    """A log that a role of this process writes."""

    writer: object
    """Who writes it."""
    end: int
    """The offset after the last record that Kafka has confirmed."""
    members: tuple[LocalMember, ...] = ()
    """Its followers."""


class LocalLogs:
    """See the module's header. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[TopicPartition, _LocalLog] = {}
        self._followers: Counter[TopicPartition] = Counter()
        self._listeners: dict[TopicPartition, tuple[Callable[[], None], ...]] = {}

    # For those who choose what to follow

    def is_written(self, place: TopicPartition) -> bool:
        """Whether a role of this process writes a log."""
        return place in self._logs

    def tell_of_writer(self, place: TopicPartition, tell: Callable[[], None]) -> None:
        """Call `tell`, which must not block, when a role of this process begins to write a log, or ends."""
        with self._lock:
            self._listeners[place] = (*self._listeners.get(place, ()), tell)

    def forget(self, place: TopicPartition, tell: Callable[[], None]) -> None:
        """Call it no more."""
        with self._lock:
            left = tuple(other for other in self._listeners.pop(place, ()) if other != tell)
            if left:
                self._listeners[place] = left

    # For followers

    def expect(self, place: TopicPartition) -> None:
        """One more follows a log, and may join: its writer is to keep what Kafka has not confirmed yet."""
        with self._lock:
            self._followers[place] += 1

    def join(self, member: LocalMember, place: TopicPartition) -> bool:
        """Hand this member what is confirmed from now on. False if nobody here writes the log, or what is confirmed is not what
        the member has read."""
        with self._lock:
            log = self._logs.get(place)
            if log is None or log.end != member.position:
                return False
            log.members = (*log.members, member)
            return True

    def leave(self, member: LocalMember, place: TopicPartition) -> None:
        """One that was expected follows the log no more, whether it has joined or not."""
        with self._lock:
            self._followers[place] -= 1
            if not self._followers[place]:
                del self._followers[place]
        self._remove(member, place)

    # For writers

    def is_followed(self, place: TopicPartition) -> bool:
        """Whether roles of this process follow a log, and so need what is confirmed next."""
        return place in self._followers

    def confirm(self, writer: object, place: TopicPartition, records: Sequence[WrittenRecord], end: int) -> None:
        """Kafka has confirmed all that this writer has sent up to an offset. records: what was sent since the last call; none
        if it was not kept."""
        members: tuple[LocalMember, ...] = ()
        with self._lock:
            log = self._logs.get(place)
            left = log.members if log is not None else ()
            listeners = self._listeners.get(place, ()) if log is None else ()
            if log is None or log.writer is not writer:
                self._logs[place] = _LocalLog(writer, end)
            elif records:
                log.end, members, left = end, left, ()
            else:
                log.end, log.members = end, ()
        for tell in listeners:
            tell()
        for member in left:
            member.read_alone()
        written = Written(records, end)
        for member in members:
            self._hand(member, place, written)

    def end(self, writer: object, place: TopicPartition) -> None:
        """This writer writes the log no more, or not alone; nothing happens if it has ended."""
        with self._lock:
            log = self._logs.get(place)
            if log is None or log.writer is not writer:
                return
            del self._logs[place]
            listeners = self._listeners.get(place, ())
        for tell in listeners:
            tell()
        for member in log.members:
            member.read_alone()

    def _hand(self, member: LocalMember, place: TopicPartition, written: Written) -> None:
        try:
            goes_on = member.take_written(written)
        except Exception:
            # This is a thread of Kafka's client. The follower can go on alone, and reports what concerns its log.
            _logger.exception("%s is read alone again", place)
            goes_on = False
        if not goes_on:
            # In this order: it may join again as soon as it reads alone.
            self._remove(member, place)
            member.read_alone()

    def _remove(self, member: LocalMember, place: TopicPartition) -> None:
        with self._lock:
            log = self._logs.get(place)
            if log is not None:
                log.members = tuple(other for other in log.members if other is not member)
