"""Logs in Kafka: a log is a topic's partition, a frame is a record (formats/frame_records.py), with Kafka's offset.

Opening a log reads only its tail: a window at the end that reaches back to the last anchor. The log keeps an `Index` of the
window, which is read when it is first needed. Rows before the window are found by search; so are all rows of a log whose
window is not needed (services/storage/log_partition.py).

Appends are pipelined. Each frame expects the offset after the frame before it. If an acknowledgement has another offset,
another process writes this log too: a later incarnation has begun, or an earlier one is still alive. In both cases this
writer is fenced, and its process must end.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from kafka import KafkaProducer
from kafka.errors import KafkaError

from boreal.model.errors import ProtocolError
from boreal.model.frames import Anchor, Boundary, Data, Frame, LogId, Start
from formats.frame_records import encode_record
from logs.index import Index
from logs.log import ControlFrame, TrimmedError
from services.kafka.clusters import RECORD_BYTES, Cluster, knows_topic
from services.storage.log_clients import AppendRefusedError, LogClients, SiteClients
from services.storage.log_ends import RECENT
from services.storage.log_partition import LOOK_BEHIND, LogPartition, WrittenRecord

WINDOW_FRAMES = RECENT - LOOK_BEHIND
"""Minimum size of the window at the end of a log. All of it is read as the log is opened."""
INDEXED_FRAMES = 1 << 17
"""Maximum size of the window; when it is reached, the older half is dropped."""
UNACKNOWLEDGED_BYTES = 64 << 20
"""Size of unacknowledged frames above which `append_later` waits."""
KEPT_BYTES = 4 << 20
"""What is sent while more is unacknowledged is not kept for its followers in this process: they read it from Kafka."""
GATHER_S, SOURCE_GATHER_S = 0.1, 0.02
"""How long a boundary of a calm instance, and of a calm source, may wait for those of other logs. No reader waits for it, and a
request costs nearly as much for one log as for many. But a source takes no rows before Kafka has its boundary."""
LOADED_GATHER_S = 0.02
"""How long few rows, and what comes with them, may wait for those of other logs where the logs of the process gather."""
FEW_BYTES = 32 << 10
"""An append of more gains nothing by waiting for others."""
CALM_APPENDS = 16
"""A log has rows if one of so many appends brings some."""
RESEND_S = 1.0
"""After so long `flush` sends itself what still waits."""
HISTORY_LOOK_S = 10.0
"""Minimum interval between questions to Kafka where the history of a log begins."""


class LogPlaces(Protocol):
    """The location of each log (deployment.layout.Layout implements it)."""

    def site_of(self, log: LogId) -> str:
        """The site whose Kafka stores a log."""
        ...

    def topic_of(self, log: LogId) -> str:
        """The topic of a log."""
        ...

    def log_ids(self) -> list[LogId]:
        """All logs."""
        ...


@dataclass(slots=True)
class _Window:
    """The newest frames of a log."""

    index: Index
    """Index of the frames."""
    sizes: deque[int]
    """Size of each frame in bytes, in order."""
    nbytes: int
    """Sum of the sizes."""

    def add(self, frame: Frame, size: int) -> int:
        self.sizes.append(size)
        self.nbytes += size
        return self.index.add(frame)

    def forget(self, base: int) -> None:
        """Drop the frames before `base`."""
        for _ in range(base - self.index.start):
            self.nbytes -= self.sizes.popleft()
        self.index.forget(base)


class KafkaLog:
    """A `Log` in a partition. Reads may raise KafkaError. Appends wait for an unreachable cluster instead. One thread appends;
    any thread may read and trim."""

    def __init__(
        self, log: LogId, topic: str, site: SiteClients, window_frames: int = WINDOW_FRAMES, history_us: int = 0
    ) -> None:
        """history_us: frames that were written within this time are not trimmed."""
        self.id = log
        self.on_fenced: Callable[[], None] = lambda: None
        """Called once, in a thread of the Kafka client, when another process has written to this log."""
        self._site = site
        self._lock = threading.RLock()
        self._searching = threading.Lock()
        self._flow = threading.Condition()
        self._unacknowledged = self._unacknowledged_bytes = 0
        self._unsent: list[WrittenRecord] = []
        self._is_gathering = False
        """Whether what is appended while logs gather waits with what is unsent."""
        self._is_prompt = False
        self._since_rows = CALM_APPENDS
        """How many appends brought no rows, since one that did."""
        self._is_fenced = self._is_closed = False
        self._handing_on = threading.Lock()
        """A confirmation that is under way when the log is closed must not make it a writer again."""
        self._window_frames = window_frames
        self._read_window: _Window | None = None
        self._history_us = history_us
        self._history_start, self._look_at = 0, 0.0
        self._partition = LogPartition(log, topic)
        opened = site.ends.of(log, topic)
        self._start, self._opened_at = opened.start, opened.end
        self._partition.recall(opened.records)

    @contextmanager
    def _reading(self) -> Iterator[LogPartition]:
        """The log's partition, to be read by this thread alone."""
        with self._searching, self._partition.reading(self._site.ends.consumers.lend) as partition:
            yield partition

    @property
    def _window(self) -> _Window:
        """The newest frames: from the last anchor before the log was opened, or further back."""
        with self._lock:
            count = self._window_frames
            while self._read_window is None:
                base = max(self._start, self._opened_at - count)
                try:
                    with self._reading() as partition:
                        index, sizes = partition.index(base, self._opened_at, self._start)
                        partition.forget()
                except TrimmedError as error:
                    if error.start >= self._opened_at:
                        raise  # nothing is left of what the log held when it was opened
                    self._start = error.start  # its writer has trimmed it since then
                    continue
                if base == self._start or index.anchor is not None:
                    self._read_window = _Window(index, deque(sizes), sum(sizes))
                count *= 4
            return self._read_window

    @property
    def _index(self) -> Index:
        return self._window.index

    def prepare(self) -> None:
        """Make the client with which rows are appended: the first ones would wait for it. Waits for an unreachable cluster."""
        _ = self._site.producer

    # Facts

    @property
    def start(self) -> int:
        return self._start

    @property
    def end(self) -> int:
        return self._index.end if self._read_window is not None else self._opened_at

    @property
    def nbytes(self) -> int:
        with self._lock:
            window = self._window
            before = window.index.start - self._start
            return window.nbytes + before * window.nbytes // max(len(window.sizes), 1)

    @property
    def next_stable_id(self) -> int:
        return self._index.next_stable_id

    @property
    def last_incarnation(self) -> int:
        return self._index.incarnation

    def last_anchor(self) -> Anchor | None:
        return self._index.anchor

    def tail(self) -> ControlFrame | None:
        return self._index.tail

    # Writing

    def append(self, frame: Frame) -> int:
        """As `Log.append`; returns when Kafka has stored the frame. ProtocolError if another process has written to the log,
        AppendRefusedError as in `append_later`."""
        offset = self.append_later(frame)
        self.sync()
        return offset

    def append_later(self, *frames: Frame) -> int:
        """Append frames without waiting for the acknowledgement; returns the offset of the last one. The frames of one call go
        in one request, or in few.

        Waits only while UNACKNOWLEDGED_BYTES are unacknowledged. ProtocolError once this writer is fenced; AppendRefusedError
        once an append has been rejected.
        """
        with self._flow:
            self._flow.wait_for(lambda: self._unacknowledged_bytes < UNACKNOWLEDGED_BYTES or not self._may_write)
        self._check()
        with self._lock:
            window = self._window
            facts = window.index.next_stable_id, window.index.incarnation
            records = []
            for frame in frames:
                facts = _facts_after(*facts, frame)
                records.append((frame, *encode_record(frame, *facts)))
            is_calm = all(isinstance(frame, Boundary) and frame.pause for frame in frames)
            brings_rows = any(isinstance(frame, Data) for frame in frames)
            self._since_rows = 0 if brings_rows else self._since_rows + 1
            may_gather = self._site.gathering.degree(self, self._since_rows < CALM_APPENDS) > 0
            is_few = may_gather and sum(len(value) for _, value, _ in records) < FEW_BYTES
            self._choose_producer(brings_rows, is_calm or is_few)
            gather_s = self._gather_s(is_calm, is_few)
            for frame, value, headers in records:
                with self._flow:
                    self._unacknowledged += 1
                    self._unacknowledged_bytes += len(value) + RECORD_BYTES
                offset = window.add(frame, len(value))
                self._unsent.append(WrittenRecord(value, headers, offset))
            if gather_s is None:
                self._send()
            elif not self._is_gathering:
                self._is_gathering = is_few
                self._site.gathered.add(self, gather_s)
            if len(window.sizes) > INDEXED_FRAMES:
                window.forget(window.index.end - INDEXED_FRAMES // 2)
            return offset

    @property
    def _producer(self) -> KafkaProducer:
        return self._site.producer if self._is_prompt else self._site.patient_producer

    def _gather_s(self, is_calm: bool, is_few: bool) -> float | None:
        """For how long the next frames may wait for those of other logs; None if they do not. is_few: they are small, and the
        logs of the process gather."""
        if is_few and not self.may_wait and (self._is_gathering or not self._unsent):
            return LOADED_GATHER_S
        # What waits already has waited long enough; and nothing overtakes it. What follows rows goes with them: for a reader it
        # is the same look then.
        if is_calm and not self._unsent and not self._unacknowledged:
            return GATHER_S if self.id.replica else SOURCE_GATHER_S
        return None

    def _choose_producer(self, brings_rows: bool, may_wait: bool) -> None:
        """The producer for the next frames, which may wait for those of other logs or not. The other one takes over when Kafka
        has all that the present one was given, since nothing keeps what two producers send in order."""
        if self._unacknowledged == 0:
            self._is_prompt = (brings_rows or self._is_prompt) and not may_wait

    @property
    def may_wait(self) -> bool:
        """Whether the next append may wait: for room, or until the producer knows the topic (again)."""
        has_room = self._unacknowledged_bytes < UNACKNOWLEDGED_BYTES // 2
        return not has_room or not knows_topic(self._producer, self._partition.place.topic)

    def send_gathered(self) -> None:
        """Send what has waited for what other logs append, if that is not to wait for Kafka: then the next append does it, or
        `flush`."""
        self._is_gathering = False
        if not self._may_write or self.may_wait:
            return
        try:
            with self._lock:
                self._send()
        except Exception as error:
            self._fail(error)

    def _send(self) -> None:
        """Send what is unsent. All records of an append are encoded by now, since the producer sends the first one soon after
        it gets it."""
        unsent, self._unsent, self._is_gathering = self._unsent, [], False
        place = self._partition.place
        kept = unsent if self._unacknowledged_bytes < KEPT_BYTES and self._site.local.is_followed(place) else ()
        for record in unsent:
            future = self._producer.send(place.topic, record.value, headers=record.headers, partition=place.partition)
            if record is unsent[-1]:
                # Before it is counted: what is sent next, by another producer perhaps, must not be handed on before it.
                future.add_callback(self._hand_on, kept, record.offset)
            # Add the callbacks last: if the acknowledgement is there already, it is counted at once.
            future.add_callback(self._acknowledge, record.offset, len(record.value) + RECORD_BYTES)
            future.add_errback(self._fail)

    @property
    def fenced(self) -> bool:
        """Whether another process has written to this log since it was opened."""
        return self._is_fenced

    @property
    def unacknowledged(self) -> int:
        """Number of frames that Kafka has not acknowledged yet. Once this writer is fenced or refused, it never falls again."""
        return self._unacknowledged

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until all frames are acknowledged; returns whether they are. timeout_s: None for no limit; the wait also ends
        when this writer is fenced. AppendRefusedError if an append was rejected."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._flow:
                within_s = min(until - time.monotonic(), RESEND_S)
                self._flow.wait_for(lambda: self._unacknowledged == 0 or not self._may_write, within_s)
                self._check_accepted()
                if self._unacknowledged == 0 or self._is_fenced:
                    return self._unacknowledged == 0
            with self._lock:
                self._send()  # what could not be sent with that of other logs
            if time.monotonic() >= until:
                return False

    def sync(self) -> None:
        """As `Log.sync`: acknowledged frames are as durable as Kafka's replicas."""
        self.flush(None)
        self._check()

    @property
    def _may_write(self) -> bool:
        return not self._is_fenced and self._site.refusal is None

    def _check(self) -> None:
        if self._is_fenced:
            raise ProtocolError(f"{self.id} has another writer: a later or an earlier incarnation of this process")
        self._check_accepted()

    def _check_accepted(self) -> None:
        if self._site.refusal is not None:
            raise self._site.refusal from self._site.refusal.error

    def _acknowledge(self, expected: int, size: int, record: Any) -> None:
        # The acknowledgement of a record that was sent twice may lack the offset.
        found_other_writer = record.offset not in (expected, -1) and not self._is_fenced
        with self._flow:
            if found_other_writer:
                self._is_fenced = True
            had_room = self._unacknowledged_bytes < UNACKNOWLEDGED_BYTES
            if self._may_write:
                self._unacknowledged -= 1
                self._unacknowledged_bytes -= size
            if self._unacknowledged == 0 or not had_room or not self._may_write:
                self._flow.notify_all()  # nobody waits for anything else
        if found_other_writer:
            self.on_fenced()

    def _hand_on(self, kept: Sequence[WrittenRecord], expected: int, record: Any) -> None:
        """Kafka has what was sent at one time, up to an offset: hand it to those who read it in this process."""
        with self._handing_on:
            if self._may_write and not self._is_closed and record.offset in (expected, -1):
                self._site.local.confirm(self, self._partition.place, kept, expected + 1)
            else:
                self._site.local.end(self, self._partition.place)

    def _fail(self, error: Exception) -> None:
        with self._flow:
            self._site.refuse(AppendRefusedError(self.id, self._partition.place.topic, error))
            self._flow.notify_all()

    def close(self) -> None:
        """Hand on nothing more of what is written. Call when nothing more is appended."""
        with self._handing_on:
            self._is_closed = True
        self._site.gathering.leave(self)
        self._site.local.end(self, self._partition.place)

    # Reading

    def read(
        self, offset: int, max_frames: int, max_bytes: int | None = None, skip_revoked: bool = False
    ) -> list[tuple[int, Frame]]:
        with self._lock:
            if offset < self._start:
                raise TrimmedError(self.id, offset, self._start)
            if offset > self.end:
                raise ProtocolError(f"{self.id} ends at offset {self.end}, but offset {offset} was requested")
            wanted = self._wanted(offset, max_frames, skip_revoked)
        with self._reading() as partition:
            return _read_frames(partition, wanted, max_frames, max_bytes) if wanted else []

    def _wanted(self, offset: int, max_frames: int, skip_revoked: bool) -> set[int]:
        """The offsets that a read returns; more than max_frames if revoked frames have to be found first."""
        if not skip_revoked:
            return set(range(offset, min(offset + max_frames, self.end)))
        index = self._index
        if offset < index.start:
            with self._reading() as partition:
                index, _ = partition.index(offset, index.end, self._start)
        return set(index.offsets_from(offset, skip_revoked))

    def offset_after(self, stable_id: int) -> int:
        if self._read_window is None:
            return self._search(stable_id)
        with self._lock:
            index, start = self._index, self._start
            base, next_stable_id, is_whole = index.start, index.next_stable_id, index.start == start
            try:
                found = index.offset_after(stable_id)
            except TrimmedError:
                if is_whole:
                    raise
                found = base
        if is_whole or found > base:
            return found
        # The row is before the window, or exactly at its beginning.
        with self._reading() as partition:
            return partition.offset_after(stable_id, start, base + 1, next_stable_id)

    def _search(self, stable_id: int) -> int:
        with self._reading() as partition:
            next_id = partition.next_stable_id(self._start, self._opened_at)
            return partition.offset_after(stable_id, self._start, self._opened_at, next_id)

    def trim(self, stable_id: int) -> None:
        """As `Log.trim`. KafkaError if Kafka does not answer."""
        limit = self._trim_limit(stable_id)
        if limit > self._start and self._history_us:
            limit = min(limit, self._start_of_history())
        if limit <= self._start:
            return
        place = self._partition.place
        found = int(self._site.admin.delete_records({place: limit})[place]["low_watermark"])
        with self._lock:
            # A later incarnation may have trimmed frames of its own, which this one has never heard of.
            self._start = start = min(found, self.end)
            if start > self._index.start:
                self._window.forget(start)

    def _start_of_history(self) -> int:
        """The offset where the history begins: all frames before it may be trimmed. The value may be some seconds old, since it
        only rises."""
        if time.monotonic() >= self._look_at:
            since_ms = (time.time_ns() // 1_000 - self._history_us) // 1_000
            with self._reading() as partition:
                found = partition.offset_since(since_ms)
            self._history_start = self.end if found is None else found
            self._look_at = time.monotonic() + HISTORY_LOOK_S
        return self._history_start

    def _trim_limit(self, stable_id: int) -> int:
        with self._lock:
            index = self._index
            limit, ceiling = index.trim_limit(stable_id), index.trim_limit(index.next_stable_id)
            if limit > index.start or index.start == self._start:
                return limit
            stable_id = min(stable_id, index.next_stable_id - 1)
        try:
            return min(self._after_whole(stable_id), ceiling) if stable_id >= 0 else self._start
        except TrimmedError:
            return self._start

    def _after_whole(self, stable_id: int) -> int:
        """The offset after the last stable frame without a row above `stable_id`."""
        holder = self.offset_after(stable_id - 1)
        [(_, frame)] = self.read(holder, 1)
        assert isinstance(frame, Data)
        if frame.first_id + frame.batch.num_rows <= stable_id + 1:
            return holder + 1
        return self._start if frame.first_id == 0 else self.offset_after(frame.first_id - 2) + 1


def _facts_after(next_id: int, incarnation: int, frame: Frame) -> tuple[int, int]:
    """The next stable id and the incarnation that a log will have with one more frame."""
    if frame.origin.incarnation >= incarnation:
        if isinstance(frame, Data) and not frame.tentative:
            next_id = max(next_id, frame.first_id + frame.batch.num_rows)
        elif isinstance(frame, Start):
            incarnation = frame.origin.incarnation
    return next_id, incarnation


def _read_frames(partition: LogPartition, wanted: set[int], max_frames: int, max_bytes: int | None) -> list[tuple[int, Frame]]:
    """The wanted records, up to both limits, but at least one."""
    found: list[tuple[int, Frame]] = []
    size = 0
    for records in partition.read(min(wanted), max(wanted) + 1):
        for record in records:
            if record.offset not in wanted:
                continue
            size += len(record.value)
            if len(found) == max_frames or (found and max_bytes is not None and size > max_bytes):
                return found
            found.append((record.offset, partition.frame(record)))
    return found


class KafkaLogStore:
    """A `LogStore` over the clusters of all sites. The topics must exist (services/kafka/topics.py)."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        places: LogPlaces,
        window_frames: int = WINDOW_FRAMES,
        history_us: int = 0,
        clients: LogClients | None = None,
    ) -> None:
        """clusters: by site. window_frames, history_us: as for `KafkaLog`. clients: those of the process; None: its own."""
        self._places = places
        self._window_frames = window_frames
        self._history_us = history_us
        self._clients = clients or LogClients(clusters)
        self._has_own_clients = clients is None
        self._sites = self._clients.lease({places.topic_of(log) for log in places.log_ids()})
        self._logs: dict[LogId, KafkaLog] = {}

    def open(self, log: LogId) -> KafkaLog:
        """As `LogStore.open`, but damage is found only when the log is read. KafkaError if the log's cluster is unreachable."""
        if log not in self._logs:
            site = self._sites[self._places.site_of(log)]
            self._logs[log] = KafkaLog(log, self._places.topic_of(log), site, self._window_frames, self._history_us)
        return self._logs[log]

    def is_held(self, logs: Sequence[LogId], first_id: int) -> bool:
        """Whether one of these logs still holds the stable rows from an id on. KafkaError if no reachable log does, and some
        logs are unreachable."""
        failure: KafkaError | None = None
        for log in logs:
            try:
                if self._sites[self._places.site_of(log)].ends.holds(log, self._places.topic_of(log), first_id):
                    return True
            except KafkaError as error:
                failure = error
        if failure is not None:
            raise failure
        return False

    def ids(self) -> list[LogId]:
        return sorted(self._places.log_ids())

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        with suppress(KafkaError):
            self._clients.give_back(self._sites.values())
            if self._has_own_clients:
                self._clients.close()
