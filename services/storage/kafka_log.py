"""Logs in Kafka: a log is a topic's partition, a frame a record (formats/frame_records.py), its offset Kafka's own.

Opening costs the tail, not the log: facts come from a window at the log's end that reaches back to the last anchor, and
only there does the log keep an `Index`; it is read when it is first needed. Rows before the window, and all rows of a log
that is asked for nothing else, are searched for (services/storage/log_partition.py).

Appending is pipelined. Each frame expects the offset after the one before it, and an acknowledgement that names another
says that someone else writes this log too: a later life of ours has begun, or a dead one is not quite dead. Either way
this writer is fenced, and its process has to go.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError

from boreal.model.errors import BorealError, ProtocolError
from boreal.model.frames import Anchor, Data, Frame, LogId, Start
from formats.frame_records import encode_record
from logs.index import Index
from logs.log import ControlFrame, TrimmedError
from logs.restart import holds
from services.kafka.clusters import RECORD_BYTES, Cluster, close_producer, silence_producer
from services.storage.log_partition import LogPartition, make_log_consumer

WINDOW_FRAMES = 1024
"""How far back from its end a log is read for its facts, at least."""
INDEXED_FRAMES = 1 << 17
"""Of a log that is written for long, the index keeps between half as many frames and so many."""
UNACKNOWLEDGED_BYTES = 64 << 20
"""What may be on its way to Kafka before `append_later` waits."""
HISTORY_LOOK_S = 10.0
"""So often at most a log that keeps a history asks Kafka where that begins now."""


@dataclass
class AppendRefusedError(BorealError):
    """Kafka has refused a frame for good, and with it all that was appended after it, to any log of the site: the process has
    to begin anew, from what the logs hold. error: what Kafka said."""

    log: LogId
    error: Exception

    def __str__(self) -> str:
        told = f"Kafka refuses what is appended to {self.log}: {self.error!r}"
        if isinstance(self.error, MessageSizeTooLargeError):
            told += "; the rows of one bucket, or batch, are more than a record may hold: take more shards, or fewer columns"
        return told


class LogPlaces(Protocol):
    """Where each log lies (deployment.layout.Layout is one)."""

    def site_of(self, log: LogId) -> str: ...

    def topic_of(self, log: LogId) -> str: ...

    def log_ids(self) -> list[LogId]: ...


class SiteClients:
    """The clients through which one process reads and writes the logs of one site, made when they are first used. refusal: of
    the frame after which no log of the site is written any more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.reading = threading.RLock()
        self.refusal: AppendRefusedError | None = None

    @cached_property
    def consumer(self) -> KafkaConsumer:
        return make_log_consumer(self._cluster)

    @cached_property
    def producer(self) -> KafkaProducer:
        """Made in spite of a cluster that is out of reach: who appends waits until it is back."""
        while True:
            with suppress(KafkaError, OSError):
                return self._cluster.make_producer()

    @cached_property
    def admin(self) -> KafkaAdminClient:
        return self._cluster.make_admin()

    def refuse(self, refusal: AppendRefusedError) -> None:
        """To be called where a send has failed: nothing may follow."""
        self.refusal = self.refusal or refusal
        silence_producer(self.producer)

    def close(self) -> None:
        clients = self.__dict__
        if "consumer" in clients:
            self.consumer.close(autocommit=False)
        if "producer" in clients:
            close_producer(self.producer, 2)
        if "admin" in clients:
            self.admin.close()


@dataclass(slots=True)
class _Window:
    """A log's tail: what is known of its frames, and their sizes in bytes."""

    index: Index
    sizes: deque[int]
    nbytes: int

    def add(self, frame: Frame, size: int) -> int:
        self.sizes.append(size)
        self.nbytes += size
        return self.index.add(frame)

    def forget(self, base: int) -> None:
        """The window is to begin at `base`."""
        for _ in range(base - self.index.start):
            self.nbytes -= self.sizes.popleft()
        self.index.forget(base)


class KafkaLog:
    """A `Log` in a partition. Questions may raise KafkaError; appends never do for a cluster that is out of reach, they
    wait for it. One thread appends; any may ask and trim.

    on_fenced: called once, in a thread of Kafka's, when somebody else has written to this log. history_us: frames that were
    written since so long ago are not trimmed.
    """

    def __init__(
        self, log: LogId, topic: str, site: SiteClients, window_frames: int = WINDOW_FRAMES, history_us: int = 0
    ) -> None:
        self.id = log
        self.on_fenced: Callable[[], None] = lambda: None
        self._site = site
        self._partition = LogPartition(site.consumer, log, topic)
        self._lock = threading.RLock()
        self._flow = threading.Condition()
        self._unacknowledged = self._unacknowledged_bytes = 0
        self._is_fenced = False
        self._window_frames = window_frames
        self._read_window: _Window | None = None
        self._history_us = history_us
        self._history_start, self._look_at = 0, 0.0
        with site.reading:
            self._start, self._opened_at = self._partition.bounds()

    @property
    def _window(self) -> _Window:
        """The log's tail when it was opened, as far back as to the last anchor, and all since."""
        with self._lock:
            count = self._window_frames
            while self._read_window is None:
                base = max(self._start, self._opened_at - count)
                with self._site.reading:
                    index, sizes = self._partition.index(base, self._opened_at, self._start)
                if base == self._start or index.anchor is not None:
                    self._read_window = _Window(index, deque(sizes), sum(sizes))
                count *= 2
            return self._read_window

    @property
    def _index(self) -> Index:
        return self._window.index

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
        """As `Log.append`, once Kafka has the frame. ProtocolError if another writer came between, AppendRefusedError as
        `append_later`."""
        offset = self.append_later(frame)
        self.sync()
        return offset

    def append_later(self, *frames: Frame) -> int:
        """Add frames without waiting for Kafka to have them; returns the offset that the last one will get. Frames that are
        given together go in one request, or in few.

        Waits only while UNACKNOWLEDGED_BYTES are on their way. Raises ProtocolError once this writer is fenced, and
        AppendRefusedError once an append has failed for good.
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
            # Not before all are encoded: the producer begins soon after it has the first.
            place = self._partition.place
            for frame, value, headers in records:
                future = self._site.producer.send(place.topic, value, headers=headers, partition=place.partition)
                with self._flow:
                    self._unacknowledged += 1
                    self._unacknowledged_bytes += len(value) + RECORD_BYTES
                offset = window.add(frame, len(value))
                # Only now: an acknowledgement may be there already, and is then counted at once.
                future.add_callback(self._acknowledge, offset, len(value) + RECORD_BYTES)
                future.add_errback(self._fail)
            if len(window.sizes) > INDEXED_FRAMES:
                window.forget(window.index.end - INDEXED_FRAMES // 2)
            return offset

    @property
    def fenced(self) -> bool:
        """Whether somebody else has written to this log since it was opened."""
        return self._is_fenced

    @property
    def unacknowledged(self) -> int:
        """Frames sent that Kafka has not yet acknowledged. Once fenced or failed, they never will be."""
        return self._unacknowledged

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until all frames are acknowledged; whether they are. None: as long as it takes, or until this writer is
        fenced. AppendRefusedError if one never will be."""
        with self._flow:
            self._flow.wait_for(lambda: self._unacknowledged == 0 or not self._may_write, timeout_s)
            self._check_accepted()
            return self._unacknowledged == 0

    def sync(self) -> None:
        """As `Log.sync`: what is acknowledged lasts as long as Kafka's copies do."""
        self.flush(None)
        self._check()

    @property
    def _may_write(self) -> bool:
        return not self._is_fenced and self._site.refusal is None

    def _check(self) -> None:
        if self._is_fenced:
            raise ProtocolError(f"{self.id} has another writer: a later life has begun, or an earlier one goes on")
        self._check_accepted()

    def _check_accepted(self) -> None:
        if self._site.refusal is not None:
            raise self._site.refusal from self._site.refusal.error

    def _acknowledge(self, expected: int, size: int, record: Any) -> None:
        # A record that Kafka had already, when it was sent again, may come without its offset.
        found_other_writer = record.offset not in (expected, -1) and not self._is_fenced
        with self._flow:
            if found_other_writer:
                self._is_fenced = True
            if self._may_write:
                self._unacknowledged -= 1
                self._unacknowledged_bytes -= size
            self._flow.notify_all()
        if found_other_writer:
            self.on_fenced()

    def _fail(self, error: Exception) -> None:
        with self._flow:
            self._site.refuse(AppendRefusedError(self.id, error))
            self._flow.notify_all()

    # Reading

    def read(
        self, offset: int, max_frames: int, max_bytes: int | None = None, skip_revoked: bool = False
    ) -> list[tuple[int, Frame]]:
        with self._lock:
            if offset < self._start:
                raise TrimmedError(self.id, offset, self._start)
            if offset > self.end:
                raise ProtocolError(f"{self.id} ends at offset {self.end}, and was asked for offset {offset}")
            wanted = self._wanted(offset, max_frames, skip_revoked)
        with self._site.reading:
            return _read_frames(self._partition, wanted, max_frames, max_bytes) if wanted else []

    def _wanted(self, offset: int, max_frames: int, skip_revoked: bool) -> set[int]:
        """The offsets that a read passes over; more than max_frames where those are not known beforehand."""
        if not skip_revoked:
            return set(range(offset, min(offset + max_frames, self.end)))
        index = self._index
        if offset < index.start:
            with self._site.reading:
                index, _ = self._partition.index(offset, index.end, self._start)
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
        # The row lies before the window, or just at its beginning.
        with self._site.reading:
            return self._partition.offset_after(stable_id, start, base + 1, next_stable_id)

    def _search(self, stable_id: int) -> int:
        with self._site.reading:
            last = self._partition.one(self._opened_at - 1).next_id if self._opened_at > self._start else 0
            return self._partition.offset_after(stable_id, self._start, self._opened_at, last)

    def trim(self, stable_id: int) -> None:
        """As `Log.trim`. Raises KafkaError if Kafka does not answer."""
        limit = self._trim_limit(stable_id)
        if limit > self._start and self._history_us:
            limit = min(limit, self._start_of_history())
        if limit <= self._start:
            return
        place = self._partition.place
        start = int(self._site.admin.delete_records({place: limit})[place]["low_watermark"])
        with self._lock:
            self._start = start
            if start > self._index.start:
                self._window.forget(start)

    def _start_of_history(self) -> int:
        """The offset of a frame before which all are old enough to go; it may be one of a while ago, for it only rises."""
        if time.monotonic() >= self._look_at:
            since_ms = (time.time_ns() // 1_000 - self._history_us) // 1_000
            with self._site.reading:
                found = self._partition.offset_since(since_ms)
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
    """The wanted records, up to both limits, but one at least."""
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
    """A `LogStore` over the clusters of all sites; its logs' topics are there already (services/kafka/topics.py). history_us:
    as a `KafkaLog` takes it, for those that are trimmed here."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        places: LogPlaces,
        window_frames: int = WINDOW_FRAMES,
        history_us: int = 0,
    ) -> None:
        self._places = places
        self._window_frames = window_frames
        self._history_us = history_us
        self._sites = {name: SiteClients(cluster) for name, cluster in clusters.items()}
        self._logs: dict[LogId, KafkaLog] = {}

    def open(self, log: LogId) -> KafkaLog:
        """As `LogStore.open`, but damage is found by what is asked. KafkaError if the log's cluster cannot be reached."""
        if log not in self._logs:
            site = self._sites[self._places.site_of(log)]
            self._logs[log] = KafkaLog(log, self._places.topic_of(log), site, self._window_frames, self._history_us)
        return self._logs[log]

    def is_held(self, logs: Sequence[LogId], first_id: int) -> bool:
        """Whether one of these logs can still give the stable rows from an id on. KafkaError if only logs that are out of
        reach may."""
        failure: KafkaError | None = None
        for log in logs:
            try:
                if holds(self.open(log), first_id):
                    return True
            except KafkaError as error:
                failure = error
        if failure is not None:
            raise failure
        return False

    def ids(self) -> list[LogId]:
        return sorted(self._places.log_ids())

    def close(self) -> None:
        for site in self._sites.values():
            with suppress(KafkaError):
                site.close()
        self._logs.clear()
