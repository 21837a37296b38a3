"""What the tests of logs in Kafka share: frames, places, and the same frames in memory to compare with."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from boreal.model.frames import Anchor, Boundary, Data, Frame, LogId, Origin, RecDone, Start, Undo
from formats.frame_records import encode_record
from logs.memory_log import MemoryLog
from reconcile.events import Frames, Tail
from services.kafka.clusters import Cluster
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.kafka.topics import TopicSpec, ensure
from services.stack.servers import KafkaServer
from services.storage.log_reader import Delivery, LogReader

LOG = LogId("departures", "r0", 0)
ALL = 1 << 30
WIDE = {"max.message.bytes": str(64 << 20)}


def data(first_id: int, rows: int, tentative: bool = False, life: int = 1, at: int = 0) -> Data:
    batch = pa.RecordBatch.from_arrays([pa.array(range(first_id, first_id + rows), pa.int64())], names=["time"])
    return Data(Origin("r0", life), 0, first_id, batch, tentative, ((first_id + rows, at),), first_id + rows)


def boundary(time: int, tentative: bool = False, anchored: bool = False, life: int = 1, sent: int = 6) -> Boundary:
    anchor = Anchor(time, time - 10, ((LOG.key, time),), (("jfk/0", time),)) if anchored else None
    return Boundary(Origin("r0", life), 0, time, tentative, 5, sent, anchor=anchor)


def undo(last_id: int, life: int = 1) -> Undo:
    return Undo(Origin("r0", life), 1, last_id)


def rec_done(life: int = 1) -> RecDone:
    return RecDone(Origin("r0", life), 1)


def start(life: int) -> Start:
    return Start(Origin("r0", life), 0)


def cluster_of(server: KafkaServer) -> Cluster:
    return Cluster("a", ServiceSettings(sites={"a": KafkaSettings(bootstrap=server.bootstrap)}), "test")


@dataclass
class Topic:
    """All logs are partitions of one topic of a cluster."""

    cluster: Cluster
    name: str
    partitions: int = 1

    def __post_init__(self) -> None:
        ensure(self.cluster, [TopicSpec(self.name, self.partitions, WIDE)])

    def site_of(self, log: LogId) -> str:
        return self.cluster.site

    def topic_of(self, log: LogId) -> str:
        return self.name

    def log_ids(self) -> list[LogId]:
        return [LogId(LOG.stream, LOG.replica, partition) for partition in range(self.partitions)]

    def put(self, *values: tuple[bytes, list[tuple[str, bytes]]], partition: int = 0) -> None:
        """Write records as they are, whoever else writes there. A few small ones lie there all at once: a reader that looks
        meanwhile finds none of them or all."""
        producer = self.cluster.make_producer(linger_ms=1_000)
        for value, headers in values:
            producer.send(self.name, value, headers=headers, partition=partition)
        producer.flush()
        producer.close()

    def put_frames(self, frames: Sequence[Frame], next_id: int = 0, partition: int = 0) -> None:
        """As a writer would that opened the log when its next stable id was `next_id`."""
        records = []
        for frame in frames:
            if isinstance(frame, Data) and not frame.tentative:
                next_id = max(next_id, frame.first_id + frame.batch.num_rows)
            records.append(encode_record(frame, next_id, frame.origin.incarnation))
        self.put(*records, partition=partition)


def in_memory(frames: Sequence[Frame]) -> MemoryLog:
    log = MemoryLog(LOG)
    for frame in frames:
        log.append(frame)
    return log


def troubled_history(lives: int = 4, failures: int = 3) -> Iterator[list[Frame]]:
    """What one life after another appends, each with failures, corrections, and what a zombie of it wrote later."""
    next_id = 0
    for life in range(1, lives + 1):
        frames: list[Frame] = [start(life)]
        for failure in range(failures):
            for _ in range(failure + 2):
                frames += [data(next_id, 5, life=life), boundary(next_id + 5, anchored=failure == 1, life=life)]
                next_id += 5
            tentative = [data(next_id + 3 * n, 3, tentative=True, life=life) for n in range(4)]
            frames += [*tentative, boundary(next_id + 12, tentative=True, life=life), boundary(next_id, life=life)]
            if failure < failures - 1 or life == lives:
                frames += [undo(next_id - 1, life), data(next_id, 14, life=life), rec_done(life)]
                next_id += 14
        yield frames
        if life < lives:
            yield [start(life + 1)]
            yield [
                data(next_id, 5, life=life),
                boundary(next_id + 5, life=life),
                data(next_id + 5, 2, True, life),
                undo(1, life),
            ]
    yield [data(next_id, 2, tentative=True, life=lives), boundary(next_id + 2, tentative=True, life=lives)]


@dataclass
class Inbox:
    """Takes what a reader delivers, and what was asked for out of it. reader: to whom `Frames` are acknowledged."""

    events: queue.SimpleQueue[Delivery] = field(default_factory=queue.SimpleQueue)
    reader: LogReader | None = None

    def next(self, kind: Any = object, within_s: float = 60) -> Any:
        event = self.events.get(timeout=within_s)
        assert isinstance(event, kind), event
        return event

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()

    def none(self, within_s: float) -> None:
        try:
            event = self.events.get(timeout=within_s)
        except queue.Empty:
            return
        raise AssertionError(event)

    def frames(self, count: int, log: LogId = LOG, within_s: float = 60) -> list[tuple[int, Frame]]:
        """The next so many frames of a log, each event acknowledged; tails are passed over."""
        assert self.reader is not None
        found: list[tuple[int, Frame]] = []
        deadline = time.monotonic() + within_s
        while len(found) < count:
            event = self.events.get(timeout=max(deadline - time.monotonic(), 0.001))
            if isinstance(event, Tail):
                continue
            assert isinstance(event, Frames), event
            assert event.log == log
            assert all(offset < event.end for offset, _ in event.items)
            found += event.items
            self.reader.taken(log)
        return found
