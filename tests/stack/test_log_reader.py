"""Following, watching and reading logs in a real Kafka, as an instance's process does."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from kafka import KafkaConsumer, TopicPartition

from boreal.model.errors import CorruptError, ProtocolError
from boreal.model.frames import Boundary, Data, Frame, LogId
from formats.frame_records import encode_record
from reconcile.events import Frames, Read, ReadDone, Tail
from services.stack.servers import KafkaServer
from services.storage import log_reader
from services.storage.kafka_log import KafkaLog, KafkaLogStore
from services.storage.local_logs import LocalLogs
from services.storage.log_clients import LogClients
from services.storage.log_consumers import LogConsumers
from services.storage.log_ends import LogEnds
from services.storage.log_partition import make_log_consumer
from services.storage.log_reader import EVENT_FRAMES, LogGap, LogPath, LogReader, ReaderFailure, UnreadableRecord
from services.storage.shared_reader import FEW_RECORDS, MANY_RECORDS, CalmReaders, LogFetch
from tests.stack.logs import (
    ALL,
    LOG,
    Inbox,
    Topic,
    boundary,
    cluster_of,
    data,
    in_memory,
    rec_done,
    start,
    troubled_history,
    undo,
)
from tests.thoroughness import every
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")

ALONE = 3600.0
"""A time after which no test shares a log."""

TAIL_US = 50_000
ONE, TWO, THREE = (LogId(LOG.stream, LOG.replica, partition) for partition in range(3))


@pytest.fixture
def topic(kafka: KafkaServer, fresh_name: str) -> Topic:
    return Topic(cluster_of(kafka), fresh_name, partitions=3)


in_either_way = pytest.mark.parametrize("calm_s", every(2, [0.0, ALONE]), ids=["shared", "alone"])
"""For what a follower does: as a member of the shared reader as soon as it has caught up, and reading alone, in `make soak`."""


@pytest.fixture
def calm_s() -> float:
    return ALONE


@pytest.fixture
def inbox(topic: Topic, calm_s: float) -> Iterator[Inbox]:
    with reading(topic, calm_s) as opened:
        yield opened


def path_of(topic: Topic, shared: CalmReaders, local: LocalLogs | None = None) -> LogPath:
    return LogPath(topic.cluster, shared, LogConsumers(topic.cluster), local or LocalLogs(), LogEnds(topic.cluster))


@contextmanager
def reading(topic: Topic, calm_s: float = ALONE) -> Iterator[Inbox]:
    """An inbox and its reader."""
    inbox = Inbox()
    with closing(path_of(topic, CalmReaders(topic.cluster, calm_s))) as path:
        inbox.reader = LogReader(path, topic, inbox.events.put, TAIL_US)
        with closing(inbox):
            yield inbox


def writing(topic: Topic) -> closing[KafkaLogStore]:
    return closing(KafkaLogStore({topic.cluster.site: topic.cluster}, topic))


def follow(inbox: Inbox, log: LogId, after_id: int) -> LogReader:
    assert inbox.reader is not None
    inbox.reader.follow(log, after_id)
    return inbox.reader


def is_tentative(frame: Frame) -> bool:
    return isinstance(frame, Data | Boundary) and frame.tentative


# Following


@in_either_way
def test_an_empty_log_is_followed_from_its_beginning(topic: Topic, inbox: Inbox) -> None:
    reader = follow(inbox, LOG, -1)
    assert inbox.next() == Frames(LOG, (), 0)
    reader.taken(LOG)
    topic.put_frames([start(1), data(0, 3)])
    assert inbox.frames(2) == [(0, start(1)), (1, data(0, 3))]
    inbox.none(0.3)


@in_either_way
@pytest.mark.parametrize("after_id", every(4, [-1, 0, 9, 24, 93, 25, 10_000, 150]))
def test_what_an_undo_has_revoked_is_not_delivered(topic: Topic, inbox: Inbox, after_id: int) -> None:
    frames: list[Frame] = []
    for part in troubled_history():
        topic.put_frames(part, in_memory(frames).next_stable_id)
        frames += part
    log = in_memory(frames)
    expected = log.read(log.offset_after(after_id), ALL, skip_revoked=True)
    follow(inbox, LOG, after_id)
    found = inbox.frames(len(expected))
    firm = [item for item in found if not is_tentative(item[1])]
    assert firm == [item for item in expected if not is_tentative(item[1])]
    assert sorted(found, key=lambda item: item[0]) == expected
    # What is tentative still comes last, and then all as it is written.
    life = log.last_incarnation
    later: list[Frame] = [
        data(log.next_stable_id + 2, 2, True, life),
        undo(log.next_stable_id - 1, life),
        data(log.next_stable_id, 4, life=life),
    ]
    topic.put_frames(later, log.next_stable_id)
    assert inbox.frames(3) == list(enumerate(later, log.end))
    inbox.none(0.2)


@in_either_way
def test_tentative_frames_are_delivered_live_and_so_is_the_undo(topic: Topic, inbox: Inbox) -> None:
    topic.put_frames([start(1), data(0, 5), data(5, 2, tentative=True)])
    follow(inbox, LOG, 4)
    assert inbox.frames(1) == [(2, data(5, 2, tentative=True))]
    later: list[Frame] = [data(7, 2, tentative=True), boundary(9, tentative=True), undo(4), data(5, 5), rec_done()]
    topic.put_frames(later, next_id=5)
    assert inbox.frames(5) == list(enumerate(later, 3))


@in_either_way
def test_only_one_event_is_outstanding_and_it_is_bounded(topic: Topic, inbox: Inbox) -> None:
    frames: list[Frame] = [start(1), *(boundary(n) for n in range(1000))]
    topic.put_frames(frames)
    reader = follow(inbox, LOG, -1)
    found: list[tuple[int, Frame]] = []
    while len(found) < len(frames):
        event = inbox.next(Frames)
        assert len(event.items) <= EVENT_FRAMES
        assert event.end == len(frames)
        found += event.items
        inbox.none(0.05)
        reader.taken(LOG)
    assert found == list(enumerate(frames))


@in_either_way
def test_large_frames_are_bounded_in_bytes(topic: Topic, inbox: Inbox) -> None:
    sizes = [100_000] * 12 + [900_000] + [10]
    frames = [data(sum(sizes[:n]), size) for n, size in enumerate(sizes)]
    topic.put_frames(frames)
    reader = follow(inbox, LOG, -1)
    found: list[tuple[int, Frame]] = []
    while len(found) < len(frames):
        event = inbox.next(Frames)
        rows = [frame.batch.num_rows for _, frame in event.items]
        assert sum(rows) * 8 <= log_reader.EVENT_BYTES or len(rows) == 1
        found += event.items
        reader.taken(LOG)
    assert found == list(enumerate(frames))


@in_either_way
def test_a_slow_log_holds_up_no_other(topic: Topic, inbox: Inbox) -> None:
    for partition in range(3):
        topic.put_frames([start(1), *(boundary(n) for n in range(600))], partition=partition)
    for log in (ONE, TWO, THREE):
        follow(inbox, log, -1)
    assert inbox.reader is not None
    found: dict[LogId, list[tuple[int, Frame]]] = {ONE: [], TWO: [], THREE: []}
    while len(found[TWO]) < 601 or len(found[THREE]) < 601:
        event = inbox.next(Frames)
        found[event.log] += event.items
        if event.log != ONE:
            inbox.reader.taken(event.log)
    assert len(found[ONE]) <= EVENT_FRAMES
    inbox.reader.taken(ONE)
    found[ONE] += inbox.frames(601 - len(found[ONE]), ONE)
    for items in found.values():
        assert items == list(enumerate([start(1), *(boundary(n) for n in range(600))]))


@in_either_way
def test_unfollowed_is_silent_and_followed_again_begins_where_it_is_told(topic: Topic, inbox: Inbox) -> None:
    topic.put_frames([start(1), data(0, 5), data(5, 5)])
    reader = follow(inbox, LOG, -1)
    inbox.frames(2)
    reader.unfollow(LOG)
    topic.put_frames([data(10, 5)], next_id=10)
    inbox.none(0.4)
    follow(inbox, LOG, 6)
    assert inbox.frames(2) == [(2, data(5, 5)), (3, data(10, 5))]


@in_either_way
def test_a_frame_is_delivered_within_milliseconds(topic: Topic, inbox: Inbox) -> None:
    with writing(topic) as store:
        log = store.open(LOG)
        log.append(start(1))
        follow(inbox, LOG, -1)
        inbox.frames(1)
        numbers = count()

        def median_s() -> float:
            taken: list[float] = []
            for _ in range(40):
                begun = time.perf_counter()
                log.append_later(boundary(next(numbers)))
                inbox.frames(1)
                taken.append(time.perf_counter() - begun)
                time.sleep(0.005)
            return sorted(taken)[20]

        assert any(median_s() < 0.05 for _ in range(5)), "not in any of five tries: others may have had the machine in one"


@in_either_way
def test_no_frame_lies_beyond_the_end_that_is_told_with_it(
    topic: Topic, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka looks up a log's end before it reads, and may find records that came in between."""
    follow(inbox, LOG, -1)
    assert inbox.next() == Frames(LOG, (), 0)
    monkeypatch.setattr(log_reader.LogPartition, "known_end", 0)
    assert inbox.reader is not None
    inbox.reader.taken(LOG)
    topic.put_frames([start(1), data(0, 3)])
    assert inbox.frames(2) == [(0, start(1)), (1, data(0, 3))]


def test_a_zombie_is_not_heard_even_where_reading_begins_among_its_frames(topic: Topic, inbox: Inbox) -> None:
    frames: list[Frame] = [
        start(1),
        data(0, 5),
        start(2),
        data(5, 5, life=2),
        boundary(99),
        data(10, 5),
        undo(3),
        boundary(10, life=2),
    ]
    topic.put_frames(frames)
    follow(inbox, LOG, 9)
    assert inbox.frames(1) == [(7, boundary(10, life=2))]
    topic.put_frames([boundary(100), start(1), boundary(11, life=2)], next_id=10)
    assert inbox.frames(1) == [(10, boundary(11, life=2))]


# What a log cannot give


def test_rows_that_are_gone_are_lacking(topic: Topic, inbox: Inbox) -> None:
    with writing(topic) as store:
        log = fill(store.open(LOG), start(1), data(0, 5), data(5, 5), boundary(10), data(10, 5))
        log.trim(7)
        assert log.start == 2
        log.trim(12)
        assert log.start == 3
        follow(inbox, LOG, 3)
        assert inbox.next() == LogGap(LOG, 4, trimmed=True)
        assert inbox.reader is not None
        inbox.reader.read(Read(LOG, 3, 1 << 20, 7))
        assert inbox.next() == LogGap(LOG, 4, trimmed=True)
        follow(inbox, LOG, 9)
        assert inbox.frames(1) == [(4, data(10, 5))]


def fill(log: KafkaLog, *frames: Frame) -> KafkaLog:
    for frame in frames:
        log.append(frame)
    return log


@in_either_way
def test_an_idle_log_that_was_trimmed_behind_a_readers_back_lacks_nothing(topic: Topic, inbox: Inbox) -> None:
    """Boundaries that it had not read are gone, and no rows."""
    with writing(topic) as store, patch("logs.index.IDLE_FRAMES", 100):
        log = fill(store.open(LOG), start(1), data(0, 5))
        assert inbox.reader is not None
        inbox.reader.read(Read(LOG, -1, 1 << 20, 7))
        assert [frame for _, frame in inbox.next(ReadDone).items] == [data(0, 5)]
        for time_us in range(5, 2_000):
            log.append_later(boundary(time_us, anchored=time_us % 10 == 0))
        assert log.flush(30)
        log.trim(4)
        assert log.start == log.end - 100
        log.append(data(5, 5))
        inbox.reader.read(Read(LOG, 4, 1 << 20, 8))
        assert [frame for _, frame in inbox.next(ReadDone).items if isinstance(frame, Data)] == [data(5, 5)]
        follow(inbox, LOG, 4)
        assert inbox.frames(1) == [(log.end - 1, data(5, 5))]
        log.append(boundary(3_000))
        assert inbox.frames(1) == [(log.end - 1, boundary(3_000))]


def test_rows_that_were_skipped_are_lacking(topic: Topic, inbox: Inbox) -> None:
    topic.put_frames([start(1), data(0, 5), boundary(5), start(2), data(50, 5, life=2), boundary(55, life=2)])
    follow(inbox, LOG, 20)
    assert inbox.next() == LogGap(LOG, 21, trimmed=False)


@in_either_way
def test_what_is_trimmed_beneath_a_reader_is_lacking(topic: Topic, inbox: Inbox) -> None:
    frames: list[Frame] = [start(1), *(data(10_000 * n, 10_000) for n in range(400))]
    topic.put_frames(frames)
    reader = follow(inbox, LOG, -1)
    event = inbox.next(Frames)
    with closing(topic.cluster.make_admin()) as admin:
        admin.delete_records({TopicPartition(topic.name, 0): 401})
    needed = 0
    while isinstance(event, Frames):
        needed = max([needed, *(f.first_id + f.batch.num_rows for _, f in event.items if isinstance(f, Data))])
        reader.taken(LOG)
        event = inbox.next((Frames, LogGap))
    assert event == LogGap(LOG, needed, trimmed=True)
    assert needed < 4_000_000
    inbox.none(0.3)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda value: value[:-30],
    "damaged": lambda value: value[:-30] + bytes([value[-30] ^ 1]) + value[-29:],
    "of a future version": lambda value: value[:2] + b"\x63" + value[3:],
    "empty": lambda value: b"",
    "no frame": lambda value: b"hello",
}


@in_either_way
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_broken_record_stops_its_log_and_no_other(topic: Topic, inbox: Inbox, damage: Callable[[bytes], bytes]) -> None:
    value, headers = encode_record(data(5, 5), 10, 1)
    for partition in (0, 1):
        topic.put_frames([start(1), data(0, 5)], partition=partition)
    topic.put((damage(value), headers))
    topic.put_frames([boundary(10)], next_id=10)
    follow(inbox, ONE, -1)
    assert inbox.frames(1, ONE) == [(1, data(0, 5))]
    broken = inbox.next()
    assert (broken.log, broken.offset, type(broken.error)) == (ONE, 2, CorruptError)
    assert f"{topic.name}, partition 0, offset 2" in str(broken.error)
    follow(inbox, TWO, -1)
    assert inbox.frames(1, TWO) == [(1, data(0, 5))]
    assert inbox.reader is not None
    inbox.reader.read(Read(ONE, 4, 1 << 20, 1))
    assert inbox.next(UnreadableRecord).offset == 2
    topic.put_frames([data(5, 5)], partition=1)
    assert inbox.frames(1, TWO) == [(2, data(5, 5))]


@in_either_way
def test_a_record_without_headers_is_broken_too(topic: Topic, inbox: Inbox) -> None:
    topic.put_frames([start(1), data(0, 5)])
    follow(inbox, LOG, -1)
    inbox.frames(1)
    topic.put_frames([boundary(5)], next_id=5)
    topic.put((b"hello", []))
    assert inbox.frames(1) == [(2, boundary(5))]
    broken = inbox.next(UnreadableRecord)
    assert (broken.log, broken.offset) == (LOG, 3)
    assert "no header next_id" in str(broken.error)


def is_shared(inbox: Inbox, log: LogId) -> bool:
    """Whether the shared reader alone reads a followed log."""
    assert inbox.reader is not None
    return inbox.reader._follows[log]._is_shared


def write_until(holds: Callable[[], bool], log: KafkaLog, inbox: Inbox, first: int) -> int:
    """Append boundaries, each after the one before is taken, until something holds; returns the number of the next one."""
    for n in count(first):
        if holds():
            return n
        log.append(boundary(n))
        assert inbox.frames(1, log.id) == [(n, boundary(n))]
    raise AssertionError


def write_until_shared(log: KafkaLog, inbox: Inbox, first: int) -> int:
    """As `write_until` the log is shared. The shared reader takes over with a record that it has read."""
    return write_until(lambda: is_shared(inbox, log.id), log, inbox, first)


@pytest.mark.parametrize("calm_s", [0.0])
def test_a_calm_log_needs_no_thread_and_reads_alone_again_when_many_records_come(topic: Topic, inbox: Inbox) -> None:
    with writing(topic) as store:
        log, end = store.open(ONE), 0
        follow(inbox, ONE, -1)
        for burst in (5 * MANY_RECORDS, 3 * MANY_RECORDS):
            end = write_until_shared(log, inbox, end)
            wait_until(lambda: not any(thread.name == f"follow-{ONE.key}-{ONE.replica}" for thread in threading.enumerate()))
            log.append_later(*(boundary(n) for n in range(end, end + burst)))
            assert inbox.frames(burst, ONE) == [(n, boundary(n)) for n in range(end, end + burst)]
            end += burst


@pytest.mark.parametrize("other_us", [TAIL_US, 2 * TAIL_US], ids=["alike", "one of them can wait"])
def test_two_readers_of_a_log_share_it_and_each_gets_all_of_it(topic: Topic, other_us: int) -> None:
    with closing(CalmReaders(topic.cluster, 0.0)) as shared, writing(topic) as store:
        log = store.open(ONE)
        inboxes = [Inbox(), Inbox()]
        for inbox, interval_us in zip(inboxes, (TAIL_US, other_us), strict=True):
            inbox.reader = LogReader(path_of(topic, shared), topic, inbox.events.put, interval_us)
            follow(inbox, ONE, -1)
        for n in range(100):
            log.append(boundary(n))
        wait_until(lambda: all(is_shared(inbox, ONE) for inbox in inboxes) or log.append(boundary(log.end)) < 0)
        end = log.append(boundary(log.end)) + 1
        readers = {inbox.reader._follows[ONE]._shared for inbox in inboxes if inbox.reader is not None}
        assert len(readers) == (1 if other_us == TAIL_US else 2)
        for inbox in inboxes:
            assert inbox.frames(end, ONE) == [(n, boundary(n)) for n in range(end)]
            inbox.close()


def test_what_comes_to_a_log_may_wait_as_long_as_its_reader_says_at_that_moment(topic: Topic) -> None:
    gather_us = 0
    with closing(CalmReaders(topic.cluster, 0.0)) as shared:
        inbox = Inbox()
        path = path_of(topic, shared)
        inbox.reader = LogReader(path, topic, inbox.events.put, 2 * TAIL_US, lambda: gather_us)
        with closing(inbox):
            member = follow(inbox, ONE, -1)._follows[ONE]
            usual_us = member.gather_us
            assert usual_us > 0
            gather_us = usual_us + 50_000
            assert member.gather_us == gather_us
            gather_us = 0
            assert member.gather_us == usual_us


@contextmanager
def reading_locally(topic: Topic) -> Iterator[tuple[Inbox, KafkaLogStore]]:
    """An inbox with its reader, and who writes in the same process."""
    inbox, clients = Inbox(), LogClients({topic.cluster.site: topic.cluster})
    with closing(CalmReaders(topic.cluster, 0.0)) as shared, closing(clients), closing(inbox):
        path = path_of(topic, shared, clients.local[topic.cluster.site])
        inbox.reader = LogReader(path, topic, inbox.events.put, TAIL_US)
        with closing(KafkaLogStore({topic.cluster.site: topic.cluster}, topic, clients=clients)) as store:
            yield inbox, store


def is_local(inbox: Inbox) -> bool:
    assert inbox.reader is not None
    return inbox.reader._follows[ONE]._is_local


def test_what_this_process_writes_is_handed_to_its_readers_without_a_fetch(topic: Topic) -> None:
    with reading_locally(topic) as (inbox, store):
        log = store.open(ONE)
        follow(inbox, ONE, -1)
        end = write_until(lambda: is_local(inbox), log, inbox, 0)
        assert inbox.reader is not None and not inbox.reader._path.calm.choose(0)._members, "nobody fetches it"
        log.append_later(data(0, 3), boundary(3))
        event = inbox.next(Frames)
        assert event == Frames(ONE, ((end, data(0, 3)), (end + 1, boundary(3))), end + 2), "all of one append come at once"
        inbox.reader.taken(ONE)
        # Much at a time, which the reader does not take: it reads on alone, misses nothing, and is handed what comes later.
        log.append_later(*[boundary(n) for n in range(3 * MANY_RECORDS)])
        wait_until(lambda: not is_local(inbox))
        first = end + 2
        found = inbox.frames(3 * MANY_RECORDS, ONE)
        assert found == [(first + n, boundary(n)) for n in range(3 * MANY_RECORDS)]
        write_until(lambda: is_local(inbox), log, inbox, first + 3 * MANY_RECORDS)


def test_readers_in_the_process_read_kafka_when_their_writer_ends_or_another_one_writes_too(topic: Topic) -> None:
    with reading_locally(topic) as (inbox, store):
        log = store.open(ONE)
        follow(inbox, ONE, -1)
        end = write_until(lambda: is_local(inbox), log, inbox, 0)
        topic.put_frames([boundary(end)])
        log.append_later(boundary(end + 1))
        wait_until(lambda: log.fenced)
        assert inbox.frames(2, ONE) == [(end, boundary(end)), (end + 1, boundary(end + 1))]
        assert not is_local(inbox)
    with reading_locally(topic) as (inbox, store):
        log, end = store.open(ONE), end + 2
        follow(inbox, ONE, -1)
        inbox.frames(end, ONE)
        end = write_until(lambda: is_local(inbox), log, inbox, end)
        log.close()
        assert not is_local(inbox)
        topic.put_frames([boundary(end)])
        assert inbox.frames(1, ONE) == [(end, boundary(end))]


def test_an_error_of_a_shared_log_lets_all_read_alone(topic: Topic) -> None:
    """kafka-python does not say which log an error is about."""
    with closing(CalmReaders(topic.cluster, 0.0)) as shared, writing(topic) as store:
        inbox = Inbox()
        inbox.reader = LogReader(path_of(topic, shared), topic, inbox.events.put, TAIL_US)
        follow(inbox, ONE, -1)
        end = write_until_shared(store.open(ONE), inbox, 0)
        prompt = shared.choose(0)
        prompt.calm_s = 60
        prompt._dismiss()
        assert not is_shared(inbox, ONE)
        # The reader may be in the midst of a fetch then.
        assert not inbox.reader._follows[ONE].take_shared(LogFetch(end, (), end, end))
        assert not is_shared(inbox, ONE)
        prompt.calm_s = 0
        write_until_shared(store.open(ONE), inbox, end)
        inbox.close()


# Watching


def write_until_heard(topic: Topic, inbox: Inbox, frame: Frame, partition: int = 0) -> None:
    def is_heard() -> bool:
        topic.put_frames([frame], partition=partition)
        return not inbox.events.empty()

    wait_until(is_heard, within_s=60)


def test_a_watched_log_tells_its_newest_boundary_only_when_it_grows(topic: Topic, inbox: Inbox) -> None:
    topic.put_frames([start(1), data(0, 5), boundary(5)])
    assert inbox.reader is not None
    inbox.reader.watch(LOG)
    write_until_heard(topic, inbox, boundary(6))
    topic.put_frames([boundary(7)])
    while (tail := inbox.next()) != Tail(LOG, boundary(7)):
        assert tail == Tail(LOG, boundary(6)), "what was there before is told"
    topic.put_frames([data(5, 5), boundary(10), boundary(11), data(10, 5)], next_id=5)
    assert inbox.next() == Tail(LOG, boundary(11))
    inbox.none(0.3)
    topic.put_frames([data(15, 5)], next_id=15)
    inbox.none(0.3)
    topic.put_frames([start(2), boundary(12), boundary(12, life=2)], next_id=20)
    assert inbox.next() == Tail(LOG, boundary(12, life=2))
    topic.put_frames([boundary(13)], next_id=20)
    inbox.none(0.3)


@pytest.mark.parametrize("calm_s", [0.0])
def test_a_calm_log_that_is_left_is_watched_without_a_consumer(
    topic: Topic, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where replicas are late, readers change from one log to another again and again."""
    assert inbox.reader is not None
    with writing(topic) as store:
        log = store.open(ONE)
        inbox.reader.watch(ONE)
        follow(inbox, ONE, -1)
        end = write_until_shared(log, inbox, 0)
        monkeypatch.setattr(log_reader, "make_log_consumer", fail)
        inbox.reader.unfollow(ONE)
        last = log.append_later(boundary(end), boundary(end + 1))
        while inbox.next(Tail).frame != boundary(last):
            pass


def fail(*arguments: Any, **options: Any) -> KafkaConsumer:
    raise AssertionError("no consumer is to be made")


@in_either_way
def test_a_followed_log_gives_no_tails_until_it_is_left(topic: Topic, inbox: Inbox) -> None:
    assert inbox.reader is not None
    for log in (ONE, TWO):
        inbox.reader.watch(log)
    reader = follow(inbox, ONE, -1)
    assert inbox.next() == Frames(ONE, (), 0)
    reader.taken(ONE)
    seen: list[LogId] = []
    stopping = threading.Event()

    def write() -> None:
        n = 0
        while not stopping.wait(0.02):
            for partition in (0, 1):
                topic.put_frames([boundary(n)], partition=partition)
            n += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while seen.count(TWO) < 5:
            event = inbox.next()
            assert not (isinstance(event, Tail) and event.log == ONE)
            seen.append(event.log)
            if isinstance(event, Frames):
                reader.taken(ONE)
        reader.unfollow(ONE)
        wait_until(lambda: inbox.next((Tail, Frames)) and isinstance(inbox.next((Tail, Frames)), Tail))
        while not (isinstance(event := inbox.next((Tail, Frames)), Tail) and event.log == ONE):
            pass
    finally:
        stopping.set()
        writer.join()


def test_a_watched_log_that_grows_fast_is_told_of_its_end(topic: Topic, inbox: Inbox) -> None:
    assert inbox.reader is not None
    inbox.reader.watch(LOG)
    topic.put_frames([boundary(0)])
    write_until_heard(topic, inbox, boundary(1))
    begun = time.monotonic()
    topic.put_frames([frame for n in range(40) for frame in (data(20_000 * n, 20_000), boundary(n + 2))])
    tails = 0
    while inbox.next(Tail).frame != boundary(41):
        tails += 1
    looks = (time.monotonic() - begun) * 1_000_000 / TAIL_US
    assert tails < max(20, looks), "as where the writer is so slow that each is the newest for a while"


@pytest.mark.parametrize("calm_s", [0.0])
def test_a_calm_watched_log_needs_no_consumer_and_is_heard_on_when_many_records_come(
    topic: Topic, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inbox.reader is not None
    consumers: list[KafkaConsumer] = []

    def make(*arguments: Any, **options: Any) -> KafkaConsumer:
        consumers.append(make_log_consumer(*arguments, **options))
        return consumers[-1]

    monkeypatch.setattr(log_reader, "make_log_consumer", make)
    with writing(topic) as store:
        logs = [store.open(one) for one in (ONE, TWO)]
        for log in logs:
            inbox.reader.watch(log.id)
        tails = inbox.reader._tails._tails
        heard: dict[LogId, int] = {}

        def write(log: KafkaLog, count: int) -> None:
            """Append boundaries, and wait until the last one is told; what was written before the log was watched is not."""
            last = log.append_later(*(boundary(n) for n in range(log.end, log.end + count)))
            while heard.get(log.id, -1) < last:
                try:
                    tail = inbox.next(Tail, within_s=5)
                except queue.Empty:
                    last = log.append(boundary(log.end))
                    continue
                assert tail.frame.time >= heard.get(tail.log, -1), "none is told after a later one"
                heard[tail.log] = tail.frame.time

        for _ in range(2):
            while not all(tail.is_shared for tail in tails.values()):
                for log in logs:
                    write(log, 1)
            wait_until(lambda: consumers[-1]._closed)
            for log in logs:
                write(log, 1)
            last = consumers[-1]
            write(logs[0], 5 * FEW_RECORDS)
            wait_until(lambda: consumers[-1] is not last)  # noqa: B023
        inbox.reader.unfollow(ONE)
        inbox.reader._tails.choose([TWO], {})
        assert list(tails) == [TopicPartition(topic.topic_of(TWO), 1)]


# Reading


def test_a_read_gives_stable_frames_from_a_row_on(topic: Topic, inbox: Inbox) -> None:
    frames: list[Frame] = []
    for part in troubled_history():
        topic.put_frames(part, in_memory(frames).next_stable_id)
        frames += part
    log = in_memory(frames)
    assert inbox.reader is not None
    after_id, rows, token = 6, [], 0
    while True:
        inbox.reader.read(Read(LOG, after_id, 2000, token))
        answer = inbox.next(ReadDone)
        assert (answer.log, answer.token) == (LOG, token)
        if not answer.items:
            break
        stable = [frame for _, frame in answer.items if isinstance(frame, Data)]
        assert stable and not any(frame.tentative for frame in stable)
        assert sum(len(encode_record(frame, 0, 1)[0]) for _, frame in answer.items) <= 2000
        rows += [row for frame in stable for row in frame.batch.column(0).to_pylist()]
        after_id, token = stable[-1].first_id + stable[-1].batch.num_rows - 1, token + 1
    assert token > 5
    assert rows[rows.index(7) :] == list(range(7, log.next_stable_id))


def test_a_read_of_a_row_that_is_not_there_yet_is_empty(topic: Topic, inbox: Inbox) -> None:
    assert inbox.reader is not None
    inbox.reader.read(Read(LOG, -1, 1000, 1))
    assert inbox.next() == ReadDone(LOG, 1, ())
    topic.put_frames([start(1), data(0, 5), data(5, 1000)])
    for after_id, items in ((4, ((2, data(5, 1000)),)), (1004, ())):
        inbox.reader.read(Read(LOG, after_id, 1000, 2))
        assert inbox.next() == ReadDone(LOG, 2, items)


# When Kafka is away


@in_either_way
def test_a_broker_that_dies_and_returns_loses_and_repeats_nothing(
    own_kafka: KafkaServer, fresh_name: str, calm_s: float
) -> None:
    topic = Topic(cluster_of(own_kafka), fresh_name, partitions=3)
    with reading(topic, calm_s) as inbox, writing(topic) as store:
        assert inbox.reader is not None
        log = store.open(ONE)
        inbox.reader.watch(TWO)
        follow(inbox, ONE, -1)
        for n in range(200):
            log.append_later(boundary(n))
        found = inbox.frames(200, ONE)
        own_kafka.kill()
        for n in range(200, 400):
            log.append_later(boundary(n))
        inbox.reader.read(Read(ONE, -1, 1000, 1))
        follow(inbox, THREE, -1)
        inbox.none(1.0)
        own_kafka.start()
        others: list[object] = []
        while len(found) < 400 or len(others) < 2:
            event = inbox.next((Frames, ReadDone), within_s=60)
            if isinstance(event, Frames):
                inbox.reader.taken(event.log)
            if isinstance(event, Frames) and event.log == ONE:
                found += event.items
            else:
                others.append(event)
        assert found == list(enumerate(boundary(n) for n in range(400)))
        assert Frames(THREE, (), 0) in others
        assert ReadDone(ONE, 1, ()) in others
        write_until_heard(topic, inbox, boundary(5), partition=1)
        assert inbox.next() == Tail(TWO, boundary(5))


@in_either_way
def test_a_frozen_broker_is_silence(own_kafka: KafkaServer, fresh_name: str, calm_s: float) -> None:
    topic = Topic(cluster_of(own_kafka), fresh_name)
    with reading(topic, calm_s) as inbox:
        topic.put_frames([start(1), data(0, 5)])
        follow(inbox, LOG, -1)
        inbox.frames(1)
        own_kafka.pause()
        inbox.none(5.0)
        own_kafka.resume()
        topic.put_frames([boundary(5)], next_id=5)
        assert inbox.frames(1, within_s=60) == [(2, boundary(5))]


@in_either_way
def test_a_log_that_lost_what_we_had_read_is_broken(own_kafka: KafkaServer, fresh_name: str, calm_s: float) -> None:
    topic = Topic(cluster_of(own_kafka), fresh_name)
    with reading(topic, calm_s) as inbox:
        topic.put_frames([start(1), data(0, 5)])
        follow(inbox, LOG, -1)
        inbox.frames(1)
        own_kafka.wipe()
        Topic(topic.cluster, fresh_name)
        broken = inbox.next(UnreadableRecord, within_s=60)
        assert isinstance(broken.error, ProtocolError)


def test_the_unforeseen_is_delivered_and_not_swallowed(topic: Topic, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.put_frames([start(1)])
    monkeypatch.setattr(log_reader.LogPartition, "frame", lambda *_: 1 // 0)
    follow(inbox, LOG, -1)
    assert inbox.next() == Frames(LOG, (), 1)
    assert isinstance(inbox.next(ReaderFailure).error, ZeroDivisionError)


@in_either_way
def test_close_ends_all_threads(topic: Topic, calm_s: float) -> None:
    before = set(threading.enumerate())
    with reading(topic, calm_s) as inbox:
        assert inbox.reader is not None
        inbox.reader.watch(TWO)
        follow(inbox, ONE, -1)
        inbox.next(Frames)
    wait_until(lambda: set(threading.enumerate()) <= before)
