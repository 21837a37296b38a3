"""Reads logs for one instance from one site's Kafka, and delivers what an instance takes: frames, tails, answers.

Every log that is followed has a consumer and a thread of its own, so that a slow, damaged or trimmed one holds up no
other; all watched logs share one, and so do all single reads. A spare consumer waits for the next switch, since making
one takes longer than a reader can be silent. An unreachable cluster is silence: the threads go on trying, from where they
were.

    follow    1. the place to begin is searched for, and the log's end noted
              2. up to that end, tentative frames are held back, as offsets only: an UNDO or START in what follows drops
                 them. Those that are left at the end are read again, and delivered (R23)
              3. from there on frames are delivered as they come
    watch     the newest boundary every TAIL_MS, of logs that grow and are not followed, or are not yet delivered
    read      about so many bytes of stable frames, once

Frames of an incarnation below the last START's are left out everywhere (R25).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Protocol

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import CorruptRecordError, KafkaError

from boreal.model import codec
from boreal.model.errors import CorruptError, ProtocolError
from boreal.model.frames import Boundary, Data, Frame, LogId, Start, Undo
from formats.frame_records import incarnation_of, is_control
from logs.log import TrimmedError
from reconcile.events import Frames, Read, ReadDone, Tail
from services.kafka.clusters import Cluster, log_retry
from services.storage.log_partition import LogPartition, LogRecord, make_log_consumer

EVENT_FRAMES = 256
EVENT_BYTES = 4 << 20
"""An event holds no more of either, but for a single larger frame."""
TAIL_MS = 50
FETCH_WAIT_MS = 100
"""How long a fetch waits at a log's end: no longer, since it may be in the way of one from elsewhere."""
POLL_MS = 200
RETRY_S = 0.1
CLOSE_S = 2.0
_TAIL_FETCH_BYTES = 64 << 10

_logger = logging.getLogger("boreal.follow")


@dataclass(frozen=True, slots=True)
class LogGap:
    """A log cannot give its stable rows from id `needed` on; it is followed no more. trimmed: they are gone; otherwise its
    writer skipped them (R27)."""

    log: LogId
    needed: int
    trimmed: bool


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A log's record at `offset` cannot be read, by no fault of the network; the log is followed no more."""

    log: LogId
    offset: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ReaderFailure:
    """A thread of the reader met what nobody foresaw, and has ended: the process cannot go on."""

    error: Exception


Delivery = Frames | Tail | ReadDone | LogGap | UnreadableRecord | ReaderFailure
OnDelivery = Callable[[Delivery], None]


class LogTopics(Protocol):
    """Which topic keeps a log (deployment.layout.Layout is one)."""

    def topic_of(self, log: LogId) -> str: ...


class LogReader:
    """`deliver` is called from the reader's threads, and from within `taken`; it must not block.

    Of a followed log at most one `Frames` is outstanding: the next comes after `taken(log)`. All methods return at once.
    """

    def __init__(self, cluster: Cluster, places: LogTopics, deliver: OnDelivery) -> None:
        self._cluster = cluster
        self._places = places
        self._deliver = deliver
        self._spare = _SpareConsumers(cluster)
        self._follows: dict[LogId, _LogFollower] = {}
        self._watched: dict[LogId, None] = {}
        self._tails = _TailWatcher(cluster, places, deliver)
        self._reads = _ReadWorker(cluster, places, deliver)

    def follow(self, log: LogId, after_id: int) -> None:
        """Deliver the log from the frame that holds stable id after_id + 1 on; one `Frames` comes even if there is none."""
        self.unfollow(log)
        topic = self._places.topic_of(log)
        self._follows[log] = _LogFollower(self._spare.take, log, topic, after_id, self._deliver, self._choose_tails)
        self._choose_tails()

    def unfollow(self, log: LogId) -> None:
        """Nothing of the log is delivered any more."""
        follow = self._follows.pop(log, None)
        if follow is not None:
            follow.stop()
        self._choose_tails()

    def watch(self, log: LogId) -> None:
        self._watched[log] = None
        self._choose_tails()

    def read(self, read: Read) -> None:
        """Answered by `ReadDone`, `LogGap` or `UnreadableRecord`; reads are answered one after the other."""
        self._reads.put(read)

    def taken(self, log: LogId) -> None:
        """The last `Frames` of the log has been dealt with."""
        follow = self._follows.get(log)
        if follow is not None:
            follow.taken()

    def close(self) -> None:
        threads = [*self._follows.values(), self._tails, self._reads]
        for thread in threads:
            thread.stop()
        for thread in threads:
            thread.join(CLOSE_S)
        self._spare.close()

    def _choose_tails(self) -> None:
        follows = dict(self._follows)
        self._tails.choose([log for log in self._watched if log not in follows or not follows[log].has_begun])


class _SpareConsumers:
    """Makes consumers for followed logs; one is always ready, if its cluster is within reach."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ready: list[KafkaConsumer] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._make_ready()

    def take(self) -> KafkaConsumer:
        """A consumer, the taker's to close. KafkaError if none can be made."""
        with self._lock:
            consumer = self._ready.pop() if self._ready else None
        if consumer is None:
            consumer = self._make()
        self._make_ready()
        return consumer

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            ready, self._ready = self._ready, []
        for consumer in ready:
            consumer.close(autocommit=False)

    def _make(self) -> KafkaConsumer:
        return make_log_consumer(self._cluster, fetch_max_wait_ms=FETCH_WAIT_MS)

    def _make_ready(self) -> None:
        threading.Thread(target=self._fill, name=f"spare-{self._cluster.site}", daemon=True).start()

    def _fill(self) -> None:
        try:
            consumer = self._make()
        except (KafkaError, OSError) as error:
            _logger.debug("no spare consumer: %r", error)
            return
        with self._lock:
            if not self._is_closed and not self._ready:
                self._ready.append(consumer)
                return
        consumer.close(autocommit=False)


class _Worker:
    """A thread that goes on through every failure of the network, and never ends in silence."""

    def __init__(self, name: str, deliver: OnDelivery) -> None:
        self.stopping = threading.Event()
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    self.work()
                    return
                except (KafkaError, OSError) as error:
                    log_retry(_logger, f"{self._thread.name} cannot read", error)
                    self.stopping.wait(RETRY_S)
        except Exception as error:
            if not self.stopping.is_set():
                _logger.exception("%s cannot go on", self._thread.name)
                self._deliver(ReaderFailure(error))

    def work(self) -> None:
        """Returns when there is nothing more to do. Called again after a KafkaError or OSError."""
        raise NotImplementedError


class _Fence:
    """Tells the frames of dead incarnations (R25), from wherever in a log the reading began."""

    def __init__(self, incarnation: int = 0) -> None:
        """incarnation: the number of the last START before the first frame, as far as it is known."""
        self._incarnation = incarnation

    def admits(self, frame: Frame, log_incarnation: int) -> bool:
        """Whether the next frame counts; log_incarnation: what its record says of the log (formats/frame_records.py)."""
        incarnation, last = frame.origin.incarnation, self._incarnation
        self._incarnation = max(last, incarnation, log_incarnation)
        return incarnation == self._incarnation and not (isinstance(frame, Start) and incarnation == last)


@dataclass(slots=True)
class _WaitingFrames:
    """Frames that wait to be delivered."""

    items: deque[tuple[int, Frame, int]] = field(default_factory=deque)
    nbytes: int = 0

    def add(self, offset: int, frame: Frame, size: int) -> None:
        self.items.append((offset, frame, size))
        self.nbytes += size

    @property
    def is_full(self) -> bool:
        return len(self.items) >= EVENT_FRAMES or self.nbytes >= EVENT_BYTES

    def take(self) -> tuple[tuple[int, Frame], ...]:
        """The next event's worth."""
        taken: list[tuple[int, Frame]] = []
        size = 0
        while self.items and len(taken) < EVENT_FRAMES and (not taken or size + self.items[0][2] <= EVENT_BYTES):
            offset, frame, nbytes = self.items.popleft()
            taken.append((offset, frame))
            size += nbytes
        self.nbytes -= size
        return tuple(taken)


class _LogFollower(_Worker):
    """A log that is followed."""

    def __init__(
        self,
        take_consumer: Callable[[], KafkaConsumer],
        log: LogId,
        topic: str,
        after_id: int,
        deliver: OnDelivery,
        on_begun: Callable[[], None],
    ) -> None:
        super().__init__(f"follow-{log.key}-{log.replica}", deliver)
        self._take_consumer = take_consumer
        self._on_begun = on_begun
        self._log = log
        self._topic = topic
        self._needed = after_id + 1
        self._position: int | None = None
        self._noted_end = self._end = 0
        self._held: dict[int, int | None] = {}
        self._fence = _Fence()
        self._flow = threading.Condition()
        self._waiting = _WaitingFrames()
        self._is_outstanding = False
        self.has_begun = False
        self.start()

    # The reader's side

    def stop(self) -> None:
        with self._flow:
            super().stop()
            self._flow.notify_all()

    def taken(self) -> None:
        with self._flow:
            self._is_outstanding = False
            if self._waiting.items:
                self._hand_over()
            self._flow.notify_all()

    # The thread

    def work(self) -> None:
        with closing(self._take_consumer()) as consumer:
            self._work(LogPartition(consumer, self._log, self._topic))

    def _work(self, partition: LogPartition) -> None:
        try:
            if self._position is None:
                self._begin(partition)
            self._catch_up(partition)
            self._read_again(partition)
            self._keep_up(partition)
        except TrimmedError as trimmed:
            self._refuse(LogGap(self._log, self._needed, trimmed.offset < trimmed.start))
        except (CorruptError, CorruptRecordError, ProtocolError) as error:
            self._refuse(UnreadableRecord(self._log, partition.offset, error))

    def _begin(self, partition: LogPartition) -> None:
        start, end = partition.bounds()
        partition.recall(start, end)
        next_stable_id = partition.one(end - 1).next_id if end > start else 0
        self._position = partition.offset_after(self._needed - 1, start, end, next_stable_id)
        self._fence = _Fence(partition.incarnation_before(self._position, start))
        self._noted_end = self._end = end

    def _catch_up(self, partition: LogPartition) -> None:
        """Up to the noted end: what may yet be revoked is held back."""
        assert self._position is not None
        for records in partition.read(self._position, self._noted_end):
            self._end = max(self._end, partition.known_end)
            self._take(partition, records, self._admitted_firm)
            if self.stopping.is_set():
                return
        self._offer([])

    def _read_again(self, partition: LogPartition) -> None:
        """What was held back, and is not revoked."""
        while self._held and not self.stopping.is_set():
            for records in partition.read(next(iter(self._held)), self._noted_end):
                self._offer([(r.offset, partition.frame(r), len(r.value)) for r in records if r.offset in self._held])
                for record in records:
                    self._held.pop(record.offset, None)
                if not self._held or self.stopping.is_set():
                    break

    def _keep_up(self, partition: LogPartition) -> None:
        assert self._position is not None
        partition.forget()
        partition.seek(self._position)
        while not self.stopping.is_set():
            records = partition.poll(EVENT_FRAMES, POLL_MS)
            # A fetch may bring records that were appended after it had looked up the log's end.
            self._end = max(self._end, partition.known_end, partition.offset)
            self._take(partition, records, self._admitted)

    def _take(
        self, partition: LogPartition, records: Sequence[LogRecord], admitted: Callable[[LogRecord, Frame], bool]
    ) -> None:
        """Offer those of the records that are admitted; those before a broken one too."""
        items: list[tuple[int, Frame, int]] = []
        try:
            for record in records:
                frame = partition.frame(record)
                if admitted(record, frame):
                    items.append((record.offset, frame, len(record.value)))
                    if isinstance(frame, Data) and not frame.tentative:
                        self._needed = max(self._needed, frame.first_id + frame.batch.num_rows)
                self._position = record.offset + 1
        finally:
            if records:
                self._offer(items)

    def _admitted(self, record: LogRecord, frame: Frame) -> bool:
        return self._fence.admits(frame, record.incarnation)

    def _admitted_firm(self, record: LogRecord, frame: Frame) -> bool:
        if not self._fence.admits(frame, record.incarnation):
            return False
        match frame:
            case Data(tentative=True, first_id=first_id):
                self._held[record.offset] = first_id
                return False
            case Boundary(tentative=True):
                self._held[record.offset] = None
                return False
            case Undo(last_id=last_id):
                self._held = {place: first for place, first in self._held.items() if first is not None and first <= last_id}
            case Start():
                self._held.clear()
        return True

    def _offer(self, items: list[tuple[int, Frame, int]]) -> None:
        """Deliver these, now or after what is outstanding; waits while as much waits already. The first time, deliver
        even nothing."""
        with self._flow:
            for item in items:
                self._flow.wait_for(lambda: not self._waiting.is_full or self.stopping.is_set())
                self._waiting.add(*item)
                if self._waiting.is_full and not self._is_outstanding:
                    self._hand_over()
            if not self._is_outstanding and (self._waiting.items or not self.has_begun):
                self._hand_over()

    def _hand_over(self) -> None:
        if not self.stopping.is_set():
            self._is_outstanding = True
            self._deliver(Frames(self._log, self._waiting.take(), self._end))
            if not self.has_begun:
                self.has_begun = True
                self._on_begun()

    def _refuse(self, refusal: LogGap | UnreadableRecord) -> None:
        """After all that was read before it."""
        with self._flow:
            self._flow.wait_for(lambda: not self._waiting.items or self.stopping.is_set())
            if not self.stopping.is_set():
                if isinstance(refusal, UnreadableRecord):
                    _logger.error("%s is followed no more: %s", self._log, refusal.error)
                self._deliver(refusal)


class _TailWatcher(_Worker):
    """The newest boundaries of all watched logs. A fetch waits for TAIL_MS and brings what has come in meanwhile; where
    that was too much, the log's end is sought again."""

    def __init__(self, cluster: Cluster, places: LogTopics, deliver: OnDelivery) -> None:
        super().__init__(f"tails-{cluster.site}", deliver)
        self._cluster = cluster
        self._places = places
        self._changed = threading.Condition()
        self._chosen: dict[TopicPartition, LogId] = {}
        self._fences: dict[LogId, _Fence] = {}
        self.start()

    def choose(self, logs: Sequence[LogId]) -> None:
        with self._changed:
            self._chosen = {TopicPartition(self._places.topic_of(log), log.partition): log for log in logs}
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            super().stop()
            self._changed.notify()

    def work(self) -> None:
        self._await_any()
        if self.stopping.is_set():
            return
        options = {"fetch_min_bytes": 1 << 20, "fetch_max_wait_ms": TAIL_MS, "max_partition_fetch_bytes": _TAIL_FETCH_BYTES}
        with closing(make_log_consumer(self._cluster, **options)) as consumer:
            while not self.stopping.is_set():
                chosen = self._await_any()
                self._assign(consumer, list(chosen))
                found = consumer.poll(timeout_ms=TAIL_MS)
                chosen = self._chosen
                for place, records in found.items():
                    if place in chosen:
                        self._tell(chosen[place], records)
                        end = consumer.highwater(place)
                        if end is not None and end > records[-1].offset + 1:
                            consumer.seek(place, end - 1)

    def _await_any(self) -> dict[TopicPartition, LogId]:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._chosen) or self.stopping.is_set())
            return self._chosen

    def _assign(self, consumer: KafkaConsumer, places: list[TopicPartition]) -> None:
        known = consumer.assignment()
        if places and set(places) != known:
            consumer.assign(places)
            new = [place for place in places if place not in known]
            if new:
                consumer.seek_to_end(*new)

    def _tell(self, log: LogId, records: Sequence[ConsumerRecord]) -> None:
        newest = next((record for record in reversed(records) if is_control(record.headers)), None)
        if newest is None:
            return
        try:
            frame, incarnation = codec.decode(newest.value or b""), incarnation_of(newest.headers)
        except CorruptError as error:
            _logger.warning("%s, offset %d, is passed over: %s", log, newest.offset, error)
            return
        if self._fences.setdefault(log, _Fence()).admits(frame, incarnation) and isinstance(frame, Boundary):
            self._deliver(Tail(log, frame))


@dataclass(slots=True)
class _ReadPosition:
    """How far a log has been read: the id and the offset to go on from, and its end when that was last asked for."""

    next_id: int
    offset: int
    end: int
    fence: _Fence


class _ReadWorker(_Worker):
    """Single reads, in the order in which they were asked for."""

    def __init__(self, cluster: Cluster, places: LogTopics, deliver: OnDelivery) -> None:
        super().__init__(f"reads-{cluster.site}", deliver)
        self._cluster = cluster
        self._places = places
        self._asked: queue.SimpleQueue[Read | None] = queue.SimpleQueue()
        self._current: Read | None = None
        # Where the last answer from a log ended. Most reads go on from there.
        self._reached: dict[LogId, _ReadPosition] = {}
        self.start()

    def put(self, read: Read) -> None:
        self._asked.put(read)

    def stop(self) -> None:
        super().stop()
        self._asked.put(None)

    def work(self) -> None:
        self._current = self._current or self._asked.get()
        if self._current is None:
            return
        with closing(make_log_consumer(self._cluster)) as consumer:
            while self._current is not None and not self.stopping.is_set():
                self._deliver(self._answer(consumer, self._current))
                self._current = self._asked.get()

    def _answer(self, consumer: KafkaConsumer, read: Read) -> ReadDone | LogGap | UnreadableRecord:
        partition = LogPartition(consumer, read.log, self._places.topic_of(read.log))
        needed = read.after_id + 1
        try:
            return ReadDone(read.log, read.token, tuple(self._items(partition, read)))
        except TrimmedError as trimmed:
            return LogGap(read.log, needed, trimmed.offset < trimmed.start)
        except (CorruptError, CorruptRecordError, ProtocolError) as error:
            _logger.error("%s cannot be read from id %d on: %s", read.log, needed, error)
            return UnreadableRecord(read.log, partition.offset, error)

    def _items(self, partition: LogPartition, read: Read) -> list[tuple[int, Frame]]:
        reached = self._reached.pop(read.log, None)
        if reached is not None and reached.next_id == read.after_id + 1:
            # An idle log may have been trimmed beyond this place, although the rows after it are there.
            with suppress(TrimmedError):
                found = self._read_on(partition, reached, read.max_bytes)
                if reached.next_id > read.after_id + 1:
                    return found
        reached = self._find(partition, read.after_id)
        return self._read_on(partition, reached, read.max_bytes) if reached is not None else []

    def _read_on(self, partition: LogPartition, reached: _ReadPosition, max_bytes: int) -> list[tuple[int, Frame]]:
        found: list[tuple[int, Frame]] = []
        size = 0
        for records in partition.read(reached.offset, reached.end):
            for record in records:
                size += len(record.value)
                if len(found) == EVENT_FRAMES or (found and size > max_bytes):
                    return found
                frame = partition.frame(record)
                reached.offset = record.offset + 1
                is_dead = not reached.fence.admits(frame, record.incarnation)
                if is_dead or (isinstance(frame, Data | Boundary) and frame.tentative):
                    size -= len(record.value)
                    continue
                found.append((record.offset, frame))
                if isinstance(frame, Data):
                    reached.next_id = frame.first_id + frame.batch.num_rows
                    self._reached[partition.log] = reached
        return found

    def _find(self, partition: LogPartition, after_id: int) -> _ReadPosition | None:
        """Where to read on after a row; None if there is no later one."""
        start, end = partition.bounds()
        next_stable_id = partition.one(end - 1).next_id if end > start else 0
        if next_stable_id <= after_id + 1:
            return None
        offset = partition.offset_after(after_id, start, end, next_stable_id)
        return _ReadPosition(after_id + 1, offset, end, _Fence(partition.incarnation_before(offset, start)))
