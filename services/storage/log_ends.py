"""What the ends of a site's logs hold: asked once for all roles of a process that want to know at one moment.

A role that begins looks at the end of each log that it reads twice: whether the log still has the rows that it needs, and where
its reader begins. Roles that read the same logs often begin together. So what was found is kept for a moment. Whoever is told
what was so a moment ago is as one who asked then, and has been slow since.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from kafka import TopicPartition

from boreal.model.errors import CorruptError, ProtocolError
from boreal.model.frames import LogId
from logs.log import TrimmedError
from services.kafka.clusters import Cluster
from services.storage.log_partition import LogPartition, LogRecord, NotRecalledError
from services.storage.reading_consumers import ReadingConsumers

FRESH_S = 1.0
"""How old the answer may be that one who begins to read is given."""
RECENT = 64
"""So many records at the end of a log are kept, where most searches end."""
RECENT_BYTES = 256 << 10
"""Not more of them than this, but the last one."""
MOST_KEPT = 256
"""The ends of so many logs are kept."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What the end of a log held when it was asked for. Later it is good for who needs no other records: what is before them
    may be trimmed by then, and what came since is missing."""

    asked_at: float
    """When that was, by `time.monotonic()`."""
    start: int
    """The first offset."""
    end: int
    """The offset of the next record."""
    records: tuple[LogRecord, ...]
    """The last records, up to `end`; none if they are damaged, or trimmed meanwhile: who reads them will find out."""

    @property
    def first_recalled(self) -> int:
        """Offset of the first of them."""
        return self.end - len(self.records)


@dataclass(slots=True)
class _Question:
    """One that is under way."""

    is_over: bool = False
    error: BaseException | None = None


class LogEnds:
    """See the module's header. All methods may be called from any thread. They raise KafkaError if Kafka does not answer."""

    def __init__(self, cluster: Cluster) -> None:
        self.consumers = ReadingConsumers(cluster)
        """With which the logs of the site are searched."""
        self._changed = threading.Condition()
        self._asking: dict[TopicPartition, _Question] = {}
        self._known: dict[TopicPartition, LogEnd] = {}

    def of(self, log: LogId, topic: str, age_s: float = 0.0) -> LogEnd:
        """The end of a log. age_s: an answer may be so old; 0: it is asked for now. If Kafka does not answer, all who wait for
        it hear so: one after the other they would wait far too long."""
        place, since = TopicPartition(topic, log.partition), time.monotonic() - age_s
        with self._changed:
            while (under_way := self._asking.get(place)) is not None:
                self._await(under_way)
            known = self._known.get(place)
            if known is not None and known.asked_at >= since:
                return known
            question = self._asking[place] = _Question()
        found: LogEnd | None = None
        try:
            with LogPartition(log, topic).reading(self.consumers.lend) as partition:
                found = _ask(partition)
        except BaseException as error:
            question.error = error
            raise
        finally:
            with self._changed:
                question.is_over = True
                del self._asking[place]
                if found is not None:
                    self._keep(place, found)
                self._changed.notify_all()
        return found

    def holds(self, log: LogId, topic: str, first_id: int) -> bool:
        """As `logs.restart.holds`, without an index of the log."""
        partition = LogPartition(log, topic)
        with suppress(NotRecalledError, TrimmedError):
            if _holds(partition, self.of(log, topic, FRESH_S), first_id):
                return True
        found = self.of(log, topic)
        with partition.reading(self.consumers.lend):
            return _holds(partition, found, first_id)

    def close(self) -> None:
        self.consumers.close()

    def _await(self, question: _Question) -> None:
        """Wait until it is over; its error is raised here too. Call with the lock."""
        self._changed.wait_for(lambda: question.is_over)
        if question.error is not None:
            raise question.error

    def _keep(self, place: TopicPartition, found: LogEnd) -> None:
        """Call with the lock."""
        self._known.pop(place, None)  # so that the oldest one is the first
        self._known[place] = found
        while len(self._known) > MOST_KEPT:
            del self._known[next(iter(self._known))]


def _ask(partition: LogPartition) -> LogEnd:
    asked_at = time.monotonic()
    start, end = partition.bounds()
    try:
        records = [record for records in partition.read(max(start, end - RECENT), end) for record in records]
    except (TrimmedError, CorruptError, ProtocolError):
        records = []
    return LogEnd(asked_at, start, end, _few(records))


def _few(records: Sequence[LogRecord]) -> tuple[LogRecord, ...]:
    """The last of these that are small enough together."""
    first, nbytes = len(records), 0
    while first > 0 and (nbytes := nbytes + len(records[first - 1].value)) <= RECENT_BYTES:
        first -= 1
    return tuple(records[min(first, len(records) - 1) :]) if records else ()


def _holds(partition: LogPartition, found: LogEnd, first_id: int) -> bool:
    partition.recall(found.records)
    next_id = partition.next_stable_id(found.start, found.end)
    if first_id > next_id:
        return False
    try:
        partition.offset_after(first_id - 1, found.start, found.end, next_id)
    except TrimmedError:
        return False
    return True
