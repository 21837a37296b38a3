"""Reads logs for one instance from one site's Kafka, and delivers frames, tails and answers to it.

A followed log has its own consumer and thread, so that a slow, damaged or trimmed log does not delay others; while it is calm,
it shares them with all calm logs of the process (services/storage/shared_reader.py). All watched logs share one consumer, or,
while they are calm, the same reader; all single reads share another consumer. Spare consumers are kept for the next switches
(services/storage/log_consumers.py). An unreachable cluster is silent: the threads retry from where they were.

    follow    1. find the offset to begin at, and note the log's end
              2. up to that end, hold back tentative frames (only their offsets); a later UNDO or START drops them. At the
                 end, read the remaining ones again, and deliver them (R23)
              3. after that, deliver frames as they arrive
    watch     the newest boundary every boundary interval, of logs that grow and are not followed, or whose follow has not begun
    read      stable frames, once, up to a number of bytes

Frames with an incarnation below the last START's are always omitted (R25).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from services.storage.local_logs import LocalLogs, Written
from services.storage.log_consumers import LogConsumers
from services.storage.log_ends import FRESH_S, LogEnd, LogEnds
from services.storage.log_partition import Fence, LogPartition, LogRecord, NotRecalledError, make_log_consumer
from services.storage.shared_reader import FETCH_WAIT_MS, FEW_RECORDS, MANY_RECORDS, CalmReaders, LogFetch

EVENT_FRAMES = 256
"""Maximum number of frames in an event."""
EVENT_BYTES = 4 << 20
"""Maximum size of an event, unless a single frame is larger."""
LONGEST_TAIL_MS = 1_000
"""The longest interval between looks at a watched log. A fetch that waits longer could be taken for a broken connection."""
POLL_MS = 200
PROMPT_US = 50_000
"""With boundary intervals up to this, what comes to a calm log is read at once. Of a longer interval, half of what goes beyond
this may pass between two fetches: 25 ms where X is a second or more."""
RETRY_S = 0.1
_TAIL_FETCH_BYTES = 64 << 10

_logger = logging.getLogger("boreal.follow")


@dataclass(frozen=True, slots=True)
class LogGap:
    """A log does not hold the stable rows from a given id on; it is no longer followed (R27)."""

    log: LogId
    """The log."""
    needed: int
    """The first id that was requested."""
    trimmed: bool
    """True: the rows are trimmed. False: the writer skipped them."""


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record of a log is damaged; the log is no longer followed."""

    log: LogId
    """The log."""
    offset: int
    """Offset of the record."""
    error: Exception
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class ReaderFailure:
    """A thread of the reader has ended with an unexpected error: the process cannot continue."""

    error: Exception
    """The error."""


Delivery = Frames | Tail | ReadDone | LogGap | UnreadableRecord | ReaderFailure
OnDelivery = Callable[[Delivery], None]
"""Called with each delivery, in a thread of the reader; must not block."""


class LogTopics(Protocol):
    """The topic of each log (deployment.layout.Layout implements it)."""

    def topic_of(self, log: LogId) -> str:
        """The topic of a log."""
        ...


@dataclass(frozen=True, slots=True)
class LogPath:
    """How a process reaches some logs."""

    cluster: Cluster
    """Their site's Kafka."""
    calm: CalmReaders
    """Read those of them that are calm."""
    consumers: LogConsumers
    """Read each of the others."""
    local: LocalLogs
    """Hand on those that this process writes itself."""
    ends: LogEnds
    """Look at their ends."""

    @staticmethod
    def to(cluster: Cluster, local: LocalLogs | None = None, ends: LogEnds | None = None) -> LogPath:
        """The path to the logs of a site. local: of those who write them in this process; None if nobody does. ends: None: its
        own."""
        return LogPath(cluster, CalmReaders(cluster), LogConsumers(cluster), local or LocalLogs(), ends or LogEnds(cluster))

    def close(self) -> None:
        self.calm.close()
        self.consumers.close()
        self.ends.close()


class LogReaders:
    """The readers of one instance: one for each path, so that a path that is cut holds up no other."""

    def __init__(
        self,
        path_to: Callable[[LogId], LogPath],
        logs: Iterable[LogId],
        places: LogTopics,
        deliver: OnDelivery,
        boundary_interval_us: int,
        gather_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """logs: all that may be read. The other parameters: see `LogReader`."""
        self._path_to = path_to
        self._readers = {
            path: LogReader(path, places, deliver, boundary_interval_us, gather_us)
            for path in dict.fromkeys(path_to(log) for log in logs)
        }

    def of(self, log: LogId) -> LogReader:
        """The reader of a log."""
        return self._readers[self._path_to(log)]

    def watch_every(self, boundary_interval_us: int) -> None:
        """Look this often for the newest boundaries of watched logs."""
        for reader in self._readers.values():
            reader.watch_every(boundary_interval_us)

    def close(self) -> None:
        """Deliver nothing more."""
        for reader in self._readers.values():
            reader.close()


class LogReader:
    """Reads logs from one cluster. All methods return at once. `deliver` is called from the reader's threads and from `taken`.

    For each followed log at most one `Frames` is outstanding: the next is delivered after `taken(log)`.
    """

    def __init__(
        self,
        path: LogPath,
        places: LogTopics,
        deliver: OnDelivery,
        boundary_interval_us: int,
        gather_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """path: to the logs. boundary_interval_us: how often the newest boundary of a watched log is looked for. gather_us:
        asked for how long what comes to a calm log may wait for what comes to others, in microseconds, where the interval
        allows less."""
        self._path = path
        self._places = places
        self._deliver = deliver
        self._boundary_interval_us = boundary_interval_us
        self._least_gather_us = gather_us
        path.consumers.join()
        self._follows: dict[LogId, _LogFollower] = {}
        self._watched: dict[LogId, None] = {}
        self._tails = _TailWatcher(path, places, deliver, self._gather_us, boundary_interval_us)
        self._reads = _ReadWorker(path.cluster, places, deliver)

    def follow(self, log: LogId, after_id: int) -> None:
        """Deliver the log from the frame with stable id after_id + 1 on. At least one `Frames` is delivered, even if empty."""
        self.unfollow(log)
        topic = self._places.topic_of(log)
        self._follows[log] = _LogFollower(
            self._path, log, topic, after_id, self._deliver, self._choose_tails, self._gather_us
        )
        self._choose_tails()

    def unfollow(self, log: LogId) -> None:
        """Deliver nothing more of the log."""
        follow = self._follows.pop(log, None)
        if follow is not None:
            follow.stop()
        self._choose_tails({log: follow.reached} if follow is not None and follow.reached is not None else {})

    def watch(self, log: LogId) -> None:
        """Deliver the newest boundaries of the log as `Tail`."""
        self._watched[log] = None
        self._choose_tails()

    def watch_every(self, boundary_interval_us: int) -> None:
        """Look this often for the newest boundary of a watched log."""
        self._boundary_interval_us = boundary_interval_us
        self._tails.every(boundary_interval_us)

    def read(self, read: Read) -> None:
        """Read rows once. The answer is `ReadDone`, `LogGap` or `UnreadableRecord`. Reads are answered in order."""
        self._reads.put(read)

    def taken(self, log: LogId) -> None:
        """The last `Frames` of the log has been processed."""
        follow = self._follows.get(log)
        if follow is not None:
            follow.taken()

    def close(self) -> None:
        """Deliver nothing more. The reader's threads end once Kafka has answered them."""
        for worker in (*self._follows.values(), self._tails, self._reads):
            worker.stop()
        self._path.consumers.leave()

    def _gather_us(self) -> int:
        return max(max(self._boundary_interval_us - PROMPT_US, 0) // 2, self._least_gather_us())

    def _choose_tails(self, reached: Mapping[LogId, int] | None = None) -> None:
        """reached: up to which offset logs were followed until now."""
        follows = dict(self._follows)
        logs = [log for log in self._watched if log not in follows or not follows[log].has_begun]
        self._tails.choose(logs, reached or {})


class _Worker:
    """A thread that retries after every network failure, and reports any other failure."""

    def __init__(self, name: str, deliver: OnDelivery) -> None:
        self.stopping = threading.Event()
        self._deliver = deliver
        self._name = name
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def start_again(self) -> None:
        """Continue the work, in a new thread, after `work` has returned or while it returns."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    self.work()
                    return
                except (KafkaError, OSError) as error:
                    log_retry(_logger, f"{self._name} cannot read", error)
                    self.stopping.wait(RETRY_S)
        except Exception as error:
            if not self.stopping.is_set():
                _logger.exception("%s has failed", self._name)
                self._deliver(ReaderFailure(error))

    def work(self) -> None:
        """The thread's work; returns when it is done. Called again after a KafkaError or OSError."""
        raise NotImplementedError


@dataclass(slots=True)
class _WaitingFrames:
    """Frames that wait to be delivered."""

    items: deque[tuple[int, Frame, int]] = field(default_factory=deque)
    """(offset, frame, size in bytes)."""
    nbytes: int = 0
    """Sum of the sizes."""

    def add(self, offset: int, frame: Frame, size: int) -> None:
        self.items.append((offset, frame, size))
        self.nbytes += size

    @property
    def is_full(self) -> bool:
        return len(self.items) >= EVENT_FRAMES or self.nbytes >= EVENT_BYTES

    def take(self) -> tuple[tuple[int, Frame], ...]:
        """Remove and return the frames of the next event."""
        taken: list[tuple[int, Frame]] = []
        size = 0
        while self.items and len(taken) < EVENT_FRAMES and (not taken or size + self.items[0][2] <= EVENT_BYTES):
            offset, frame, nbytes = self.items.popleft()
            taken.append((offset, frame))
            size += nbytes
        self.nbytes -= size
        return tuple(taken)


class _LogFollower(_Worker):
    """Follows one log: in a thread of its own, or as a member of the shared reader or of those who are handed what this process
    writes. What it has taken is guarded by `_flow`."""

    def __init__(
        self,
        path: LogPath,
        log: LogId,
        topic: str,
        after_id: int,
        deliver: OnDelivery,
        on_begun: Callable[[], None],
        gather_us: Callable[[], int],
    ) -> None:
        super().__init__(f"follow-{log.key}-{log.replica}", deliver)
        self._consumers = path.consumers
        self._on_begun = on_begun
        self._shared = path.calm.choose(gather_us())
        self._local = path.local
        self._ends = path.ends
        self._gather_us = gather_us
        self._log = log
        self._topic = topic
        self._needed = after_id + 1
        self._position: int | None = None
        self._noted_end = self._end = 0
        self._held: dict[int, int | None] = {}
        self._fence = Fence()
        self._flow = threading.Condition()
        self._waiting = _WaitingFrames()
        self._is_outstanding = False
        self._has_joined = False
        self._is_shared = False
        self._is_local = False
        self._begins_shared = False
        """Whether the log is calm and can wait as it begins, so that others read it from the first."""
        self._has_left = False
        """Whether the thread of its own has ended, or is about to, since others read the log."""
        self.has_begun = False
        self._local.expect(self._place)
        self.start()

    # The reader's side

    def stop(self) -> None:
        with self._flow:
            if self.stopping.is_set():
                return
            super().stop()
            self._flow.notify_all()
        self._shared.leave(self, self._place)
        self._local.leave(self, self._place)

    def taken(self) -> None:
        with self._flow:
            self._is_outstanding = False
            if self._waiting.items:
                self._hand_over()
            self._flow.notify_all()

    @property
    def reached(self) -> int | None:
        """The offset after the last record that was read as it came; None before its end was reached once."""
        return self._position if self._has_joined else None

    # As a member of the shared reader

    @property
    def position(self) -> int:
        assert self._position is not None
        return self._position

    @property
    def gather_us(self) -> int:
        return self._gather_us()

    def take_shared(self, fetched: LogFetch) -> bool:
        with self._flow:
            # A fetch may have begun before the reader let the follower read alone, or before it was handed what comes.
            if self._is_local:
                return True
            if self.stopping.is_set() or not self._has_joined or not self._take_fetched(fetched):
                return False
            self._is_shared = True
            if self._join_local():
                self._shared.leave(self, self._place)
            return True

    def take_written(self, written: Written) -> bool:
        with self._flow:
            return self._is_local and not self.stopping.is_set() and self._take_fetched(written)

    def _take_fetched(self, fetched: LogFetch | Written) -> bool:
        """Take frames; returns whether few enough come."""
        is_calm = len(fetched.records) < MANY_RECORDS
        self._end = max(self._end, fetched.end)
        try:
            for entry, frame in fetched.frames:
                if entry.offset > self.position:
                    raise CorruptError(f"offset {self.position} is missing")
                self._add(entry, frame, self._admitted)
        except CorruptError:
            is_calm = False  # its own thread finds the damage again, and reports it
        self._hand_over_waiting()
        return is_calm and not self._waiting.is_full

    def _join_local(self) -> bool:
        """Be handed what this process writes to the log, if it does and all of it was read. Call with `_flow`."""
        if not self.stopping.is_set() and self._local.join(self, self._place):
            self._has_joined = self._is_shared = self._is_local = True
        return self._is_local

    def read_alone(self) -> None:
        with self._flow:
            self._has_joined = self._is_local = False
            was_shared, self._is_shared = self._is_shared, False
            # While both read, the thread of its own still runs; and until it has looked, also after that.
            if was_shared and self._has_left and not self.stopping.is_set():
                self._has_left = False
                self.start_again()

    @property
    def _place(self) -> TopicPartition:
        return TopicPartition(self._topic, self._log.partition)

    # The thread

    def work(self) -> None:
        with LogPartition(self._log, self._topic).reading(self._consumers.lend) as partition:
            self._work(partition)

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
        known = self._ends.of(self._log, self._topic, FRESH_S)
        try:
            position, has_reached = self._find(known, LogPartition(self._log, self._topic))
            is_known = has_reached and position >= known.first_recalled
        except (NotRecalledError, TrimmedError):
            is_known = False
        if not is_known:
            known = self._ends.of(self._log, self._topic)
            position, _ = self._find(known, partition)
        partition.recall(known.records)
        self._position = position
        self._noted_end = self._end = known.end

    def _find(self, known: LogEnd, partition: LogPartition) -> tuple[int, bool]:
        """Where to begin to read, as the log's end and what is before it say; and whether the log has reached that."""
        partition.recall(known.records)
        next_id = partition.next_stable_id(known.start, known.end)
        pause_us = partition.pause_before(known.end) if self._needed == next_id else None
        self._begins_shared = pause_us is not None and pause_us >= FETCH_WAIT_MS * 1_000 and self._gather_us() > 0
        position = known.end - 1
        if pause_us is None:
            position = partition.offset_after(self._needed - 1, known.start, known.end, next_id)
        self._fence = Fence(partition.incarnation_before(position, known.start))
        return position, self._needed <= next_id

    def _catch_up(self, partition: LogPartition) -> None:
        """Deliver up to the noted end; hold back tentative frames, since they may be revoked."""
        assert self._position is not None
        for records in partition.read(self._position, self._noted_end):
            self._end = max(self._end, partition.known_end)
            self._take(partition, records, self._admitted_firm)
            if self.stopping.is_set():
                return
        with self._flow:
            self._hand_over_waiting()

    def _read_again(self, partition: LogPartition) -> None:
        """Deliver the frames that were held back and not revoked."""
        while self._held and not self.stopping.is_set():
            for records in partition.read(next(iter(self._held)), self._noted_end):
                for record in records:
                    if record.offset in self._held:
                        frame = partition.frame(record)
                        with self._flow:
                            self._await_room()
                            self._wait_for_delivery(record, frame)
                            del self._held[record.offset]
                with self._flow:
                    self._hand_over_waiting()
                if not self._held or self.stopping.is_set():
                    break

    def _keep_up(self, partition: LogPartition) -> None:
        """Deliver what comes, until the shared reader does."""
        assert self._position is not None
        partition.forget()
        if self._begins_shared:
            self._begins_shared = False
            self._share(at_once=True)
            if self._leaves():
                return
        partition.seek(self._position)
        calm_since = time.monotonic()
        while not self._leaves():
            records = partition.poll(EVENT_FRAMES, POLL_MS)
            with self._flow:
                # A fetch may return records that were appended after it looked up the log's end.
                self._end = max(self._end, partition.known_end, partition.offset)
            self._take(partition, records, self._admitted)
            now = time.monotonic()
            if len(records) > FEW_RECORDS:
                calm_since = now
            elif not self._has_joined and now - calm_since >= self._shared.calm_s:
                self._share()

    def _leaves(self) -> bool:
        """Whether its thread ends, since others read the log for it, or it is stopped."""
        with self._flow:
            self._has_left = self._is_shared
            return self._has_left or self.stopping.is_set()

    def _share(self, at_once: bool = False) -> None:
        """Let others read the log for it: who writes it in this process, or who reads all calm logs. at_once: it does not read
        until they do, which is half a second later at most."""
        with self._flow:
            if self._join_local():
                return
            self._has_joined, self._is_shared = True, self._is_shared or at_once
        self._shared.join(self, self._place)

    def _take(
        self, partition: LogPartition, records: Sequence[LogRecord], admitted: Callable[[LogRecord, Frame], bool]
    ) -> None:
        """Take records; blocks while a full event already waits. If a record is damaged, those before it are taken."""
        try:
            for record in records:
                frame = partition.frame(record)
                with self._flow:
                    self._await_room()
                    self._add(record, frame, admitted)
        finally:
            with self._flow:
                self._hand_over_waiting()

    def _add(self, record: LogRecord, frame: Frame, admitted: Callable[[LogRecord, Frame], bool]) -> None:
        """Take the next record, unless it was taken before."""
        if record.offset < self.position:
            return
        if admitted(record, frame):
            self._wait_for_delivery(record, frame)
            if isinstance(frame, Data) and not frame.tentative:
                self._needed = max(self._needed, frame.first_id + frame.batch.num_rows)
        self._position = record.offset + 1

    def _await_room(self) -> None:
        self._flow.wait_for(lambda: not self._waiting.is_full or self.stopping.is_set())

    def _wait_for_delivery(self, record: LogRecord, frame: Frame) -> None:
        self._waiting.add(record.offset, frame, len(record.value))
        if self._waiting.is_full and not self._is_outstanding:
            self._hand_over()

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

    def _hand_over_waiting(self) -> None:
        """Deliver the frames that wait, unless an event is outstanding. The first event is delivered even if it is empty."""
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
        """Deliver the refusal after everything that was read before it."""
        with self._flow:
            self._flow.wait_for(lambda: not self._waiting.items or self.stopping.is_set())
            if not self.stopping.is_set():
                if isinstance(refusal, UnreadableRecord):
                    _logger.error("%s is no longer followed: %s", self._log, refusal.error)
                self._deliver(refusal)


class _TailWatcher(_Worker):
    """Delivers the newest boundaries of all watched logs. A fetch waits for a boundary interval and returns the records since
    the last one. If these are too many for a fetch, the watcher jumps to the log's end. Calm logs are watched by the shared
    reader; while all are, the watcher has no consumer."""

    def __init__(
        self,
        path: LogPath,
        places: LogTopics,
        deliver: OnDelivery,
        gather_us: Callable[[], int],
        boundary_interval_us: int,
    ) -> None:
        super().__init__(f"tails-{path.cluster.site}", deliver)
        self._cluster = path.cluster
        self._places = places
        self.calm = path.calm
        """Watch calm logs."""
        self.gather_us = gather_us
        """How long what comes to a calm log may wait, in microseconds."""
        self.tell = deliver
        """Called with each `Tail`."""
        self._changed = threading.Condition()
        self._tails: dict[TopicPartition, _Tail] = {}
        self._tail_ms = _tail_ms(boundary_interval_us)
        self.start()

    def choose(self, logs: Sequence[LogId], reached: Mapping[LogId, int]) -> None:
        """Watch these logs and no others. reached: the ends of some that are calm, as they were just now: the shared reader
        watches these at once."""
        chosen = {TopicPartition(self._places.topic_of(log), log.partition): log for log in logs}
        with self._changed:
            left = [self._tails.pop(place) for place in self._tails.keys() - chosen.keys()]
            new = {place: _Tail(chosen[place], place, self) for place in chosen.keys() - self._tails.keys()}
            for tail in new.values():
                tail.is_shared = tail.log in reached
            self._tails.update(new)
            self._changed.notify()
        for tail in left:
            tail.leave()
        for tail in new.values():
            if tail.is_shared:
                tail.join(reached[tail.log])

    def every(self, boundary_interval_us: int) -> None:
        self._tail_ms = _tail_ms(boundary_interval_us)

    def stop(self) -> None:
        super().stop()
        self.choose((), {})

    def work(self) -> None:
        while self._await_any():
            self._watch(self._tail_ms)

    def _watch(self, tail_ms: int) -> None:
        """Watch until the interval is another one, or the shared reader watches all logs."""
        options = {"fetch_min_bytes": 1 << 20, "fetch_max_wait_ms": tail_ms, "max_partition_fetch_bytes": _TAIL_FETCH_BYTES}
        with closing(make_log_consumer(self._cluster, **options)) as consumer:
            while self._tail_ms == tail_ms and (tails := self._alone()):
                self._assign(consumer, list(tails))
                found = consumer.poll(timeout_ms=tail_ms)
                now = time.monotonic()
                for place, tail in tails.items():
                    records, end = found.get(place, ()), consumer.highwater(place)
                    tail.take(records, now)
                    tail.is_heard_alone = True
                    if records and end is not None and end > records[-1].offset + 1:
                        consumer.seek(place, end - 1)
                    elif end is not None and tail.is_calm(now):
                        tail.join(consumer.position(place))

    def _alone(self) -> dict[TopicPartition, _Tail]:
        """The logs that the shared reader does not watch yet."""
        with self._changed:
            return {place: tail for place, tail in self._tails.items() if not tail.is_shared}

    def _await_any(self) -> bool:
        """Wait until a log is to be watched here; False when the watcher is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopping.is_set() or not all(tail.is_shared for tail in self._tails.values()))
            return not self.stopping.is_set()

    def _assign(self, consumer: KafkaConsumer, places: list[TopicPartition]) -> None:
        known = consumer.assignment()
        if set(places) != known:
            consumer.assign(places)
            new = [place for place in places if place not in known]
            if new:
                consumer.seek_to_end(*new)

    @property
    def interval_s(self) -> float:
        """A boundary interval, in seconds."""
        return self._tail_ms / 1_000

    def watch_again(self) -> None:
        """A log is to be watched here again."""
        with self._changed:
            self._changed.notify()


class _Tail:
    """The end of one watched log: read by the watcher, or as a member of the shared reader."""

    def __init__(self, log: LogId, place: TopicPartition, watcher: _TailWatcher) -> None:
        self.log = log
        """The log."""
        self._place = place
        self._watcher = watcher
        self._shared = watcher.calm.choose(watcher.gather_us())
        self._lock = threading.Lock()
        self._fence = Fence()
        self._told = -1
        self._since = self._counted_since = time.monotonic()
        self._counted = 0
        self._position: int | None = None
        self._is_busy = self._has_left = False
        self.is_shared = False
        """Whether the shared reader alone reads it."""
        self.is_heard_alone = False
        """Whether the watcher has read it since it became busy."""

    def take(self, records: Sequence[ConsumerRecord], now: float) -> bool:
        """Tell of the newest boundary among records. now: `time.monotonic()`. Returns whether few records come."""
        with self._lock:
            if now - self._counted_since >= self._watcher.interval_s:
                self._counted, self._counted_since = 0, now
            self._counted += len(records)
            few = self._counted <= FEW_RECORDS and sum(len(record.value or b"") for record in records) < _TAIL_FETCH_BYTES
            if not few:
                self._since = now
            newest = next((record for record in reversed(records) if is_control(record.headers)), None)
            if newest is None or newest.offset <= self._told or self._has_left:
                return few
            self._told = newest.offset
            try:
                frame, incarnation = codec.decode(newest.value or b""), incarnation_of(newest.headers)
            except CorruptError as error:
                _logger.warning("%s, offset %d is skipped: %s", self.log, newest.offset, error)
                return few
            if self._fence.admits(frame, incarnation) and isinstance(frame, Boundary):
                self._watcher.tell(Tail(self.log, frame))
            return few

    def is_calm(self, now: float) -> bool:
        """Whether few records have come for long enough, and it has not joined the shared reader. now: `time.monotonic()`."""
        return self._position is None and now - self._since >= self._shared.calm_s

    def join(self, position: int) -> None:
        """Let the shared reader read it from an offset on."""
        self._position = position
        self._shared.join(self, self._place)
        if self._has_left:
            self._shared.leave(self, self._place)

    def leave(self) -> None:
        """Tell nothing more."""
        with self._lock:
            self._has_left = True
        self._shared.leave(self, self._place)

    # As a member of the shared reader

    @property
    def position(self) -> int:
        assert self._position is not None
        return self._position

    @property
    def gather_us(self) -> int:
        return self._watcher.gather_us()

    def take_shared(self, fetched: LogFetch) -> bool:
        records = [record for record in fetched.records if record.offset >= self.position]
        self._position = max(self.position, fetched.reached)
        if self._has_left or (self._is_busy and self.is_heard_alone):
            return False
        if self.take(records, time.monotonic()):
            self.is_shared = not self._is_busy
        elif not self._is_busy:
            # The shared reader goes on until the watcher does: a log that is not heard for that long would count as silent.
            self._is_busy, self.is_shared, self.is_heard_alone = True, False, False
            self._watcher.watch_again()
        return True

    def read_alone(self) -> None:
        self._since = time.monotonic()
        self._position, self._is_busy, self.is_shared = None, False, False
        self._watcher.watch_again()


def _tail_ms(boundary_interval_us: int) -> int:
    return min(max(boundary_interval_us // 1_000, 1), LONGEST_TAIL_MS)


@dataclass(slots=True)
class _ReadPosition:
    """How far a log has been read."""

    next_id: int
    """Id of the next row."""
    offset: int
    """Offset of the next record."""
    end: int
    """The log's end when it was last asked for."""
    fence: Fence
    """State of the fence at `offset`."""


class _ReadWorker(_Worker):
    """Answers single reads, in order."""

    def __init__(self, cluster: Cluster, places: LogTopics, deliver: OnDelivery) -> None:
        super().__init__(f"reads-{cluster.site}", deliver)
        self._cluster = cluster
        self._places = places
        self._asked: queue.SimpleQueue[Read | None] = queue.SimpleQueue()
        self._current: Read | None = None
        # Where the last answer of each log ended. Most reads continue from there.
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
        partition = LogPartition(read.log, self._places.topic_of(read.log), consumer)
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
            # An idle log may have been trimmed beyond this offset, although the rows after it are there.
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
        """Where to read after a row; None if there is no later row."""
        start, end = partition.bounds()
        next_stable_id = partition.next_stable_id(start, end)
        if next_stable_id <= after_id + 1:
            return None
        offset = partition.offset_after(after_id, start, end, next_stable_id)
        return _ReadPosition(after_id + 1, offset, end, Fence(partition.incarnation_before(offset, start)))
