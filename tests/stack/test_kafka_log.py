"""Logs in a real Kafka: what the contract cannot see, because it needs several writers, long logs or a broker that dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from types import SimpleNamespace

import pytest
from kafka.consumer.fetcher import ConsumerRecord
from kafka.producer.sender import Sender

from boreal.model.errors import CorruptError, ProtocolError
from boreal.model.frames import Frame, LogId
from logs.log import TrimmedError
from logs.memory_log import MemoryLog
from services.kafka.topics import TopicSpec, ensure
from services.stack.servers import KafkaServer
from services.storage import kafka_log as kafka_module
from services.storage import log_ends
from services.storage.kafka_log import KafkaLog, KafkaLogStore
from services.storage.log_clients import AppendRefusedError
from services.storage.log_partition import LogPartition, LogRecord
from tests.stack.logs import (
    ALL,
    LOG,
    Topic,
    boundary,
    cluster_of,
    data,
    in_memory,
    start,
    troubled_history,
)
from tests.thoroughness import every

pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture
def topic(kafka: KafkaServer, fresh_name: str) -> Topic:
    return Topic(cluster_of(kafka), fresh_name, partitions=2)


@pytest.fixture
def store(topic: Topic) -> Iterator[KafkaLogStore]:
    with closing(store_of(topic)) as opened:
        yield opened


def store_of(topic: Topic, window_frames: int = 1024) -> KafkaLogStore:
    return KafkaLogStore({topic.cluster.site: topic.cluster}, topic, window_frames)


def reopened(topic: Topic, window_frames: int = 1024) -> closing[KafkaLogStore]:
    return closing(store_of(topic, window_frames))


def test_pipelined_frames_keep_their_order_and_are_there_after_reopening(topic: Topic, store: KafkaLogStore) -> None:
    frames: list[Frame] = [start(1), *(frame for n in range(1500) for frame in (data(n, 1), boundary(n + 1)))]
    log = store.open(LOG)
    assert [log.append_later(frame) for frame in frames] == list(range(3001))
    assert log.flush(30)
    assert (log.unacknowledged, log.fenced, log.next_stable_id, log.end) == (0, False, 1500, 3001)
    with reopened(topic) as again:
        other = again.open(LOG)
        assert (other.end, other.next_stable_id, other.last_incarnation) == (3001, 1500, 1)
        assert other.read(0, ALL) == list(enumerate(frames))


def test_frames_that_are_given_together_lie_together(topic: Topic, store: KafkaLogStore) -> None:
    frames: list[Frame] = [start(1), data(0, 3), boundary(1), data(3, 2), boundary(2)]
    log = store.open(LOG)
    assert [log.append_later(*frames[:3]), log.append_later(*frames[3:])] == [2, 4]
    assert log.flush(30)
    assert (log.unacknowledged, log.next_stable_id, log.end) == (0, 5, 5)
    with reopened(topic) as again:
        other = again.open(LOG)
        assert (other.end, other.next_stable_id, other.last_incarnation) == (5, 5, 1)
        assert other.read(0, ALL) == list(enumerate(frames))


def test_frames_of_several_megabytes_are_written_and_read(topic: Topic, store: KafkaLogStore) -> None:
    frames: list[Frame] = [start(1), data(0, 700_000), boundary(1), data(700_000, 700_000), boundary(2)]
    log = store.open(LOG)
    for frame in frames:
        log.append_later(frame)
    assert log.flush(30)
    with reopened(topic) as again:
        assert again.open(LOG).read(0, ALL) == list(enumerate(frames))


def test_unacknowledged_frames_are_bounded_in_bytes(store: KafkaLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_module, "UNACKNOWLEDGED_BYTES", 1 << 20)
    log = store.open(LOG)
    for n in range(30):
        log.append_later(data(20_000 * n, 20_000))
        assert log.unacknowledged <= 7
    assert log.flush(30)


def test_a_frame_that_kafka_refuses_raises_and_leaves_the_log_as_it_was(kafka: KafkaServer, fresh_name: str) -> None:
    cluster = cluster_of(kafka)
    ensure(cluster, [TopicSpec(fresh_name, 1, {"max.message.bytes": "100000"})])
    topic = Topic.__new__(Topic)
    topic.cluster, topic.name, topic.partitions = cluster, fresh_name, 1
    with reopened(topic) as store:
        log = store.open(LOG)
        log.append(start(1))
        with pytest.raises(AppendRefusedError, match="MessageSizeTooLarge"):
            log.append(data(0, 100_000))
        with pytest.raises(AppendRefusedError):
            log.append_later(data(0, 1))
    with reopened(topic) as store:
        log = store.open(LOG)
        log.append_later(data(0, 100_000))
        for timeout_s in (10, None):
            with pytest.raises(AppendRefusedError, match="MessageSizeTooLarge"):
                log.flush(timeout_s)
        assert not log.fenced
    with reopened(topic) as store:
        assert store.open(LOG).read(0, ALL) == [(0, start(1))]


def test_a_sources_anchor_is_found_behind_any_number_of_lives(topic: Topic) -> None:
    """A source that comes no further than its START, again and again, must not lose its place by that."""
    log = LogId("jfk", "", 0)
    topic.put_frames([data(0, 5), boundary(5, anchored=True), *(start(life) for life in range(1, 1100))], next_id=5)
    with reopened(topic) as store:
        found = store.open(log)
        assert found.last_anchor() == boundary(5, anchored=True).anchor
        assert (found.next_stable_id, found.last_incarnation) == (5, 1099)


def test_a_zombie_is_fenced_by_the_next_life(topic: Topic, store: KafkaLogStore) -> None:
    zombie = store.open(LOG)
    fenced = threading.Event()
    zombie.on_fenced = fenced.set
    zombie.append(start(1))
    zombie.append(data(0, 3))
    with reopened(topic) as later:
        log = later.open(LOG)
        log.append(start(log.last_incarnation + 1))
        offset = zombie.append_later(data(3, 3))
        assert fenced.wait(10)
        assert zombie.fenced
        assert zombie.unacknowledged == 1
        assert not zombie.flush(10)
        for write in (zombie.append, zombie.append_later):
            with pytest.raises(ProtocolError, match="another writer"):
                write(data(6, 3))
        assert offset == 2
    with reopened(topic) as last:
        log = last.open(LOG)
        assert (log.end, log.last_incarnation, log.next_stable_id) == (4, 2, 3)
        assert [place for place, _ in log.read(0, ALL, skip_revoked=True)] == [0, 1, 2]


def test_a_log_that_is_trimmed_after_it_was_opened_and_before_it_is_read_begins_later(
    topic: Topic, store: KafkaLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "RECENT_BYTES", 0)
    log = store.open(LOG)
    for frame in (start(1), data(0, 3), boundary(3), data(3, 3), boundary(6), data(6, 3), boundary(9)):
        log.append(frame)
    with reopened(topic) as reading:
        other = reading.open(LOG)
        log.trim(5)
        assert (other.start, other.next_stable_id) == (0, 9)
        assert other.start == log.start > 3
        assert [place for place, _ in other.read(log.start, ALL)] == list(range(log.start, log.end))


def test_what_a_later_life_has_trimmed_of_its_own_disturbs_no_zombie(topic: Topic, store: KafkaLogStore) -> None:
    zombie = store.open(LOG)
    for frame in (start(1), data(0, 3), boundary(3)):
        zombie.append(frame)
    with reopened(topic) as later:
        log = later.open(LOG)
        for frame in (start(2), data(3, 3, life=2), boundary(6, life=2), data(6, 3, life=2), boundary(9, life=2)):
            log.append(frame)
        log.trim(5)
        assert log.start > zombie.end
        zombie.trim(2)
    assert zombie.start == zombie.end == 3


def test_two_logs_of_one_store_do_not_mix(store: KafkaLogStore) -> None:
    one, two = store.open(LOG), store.open(LogId(LOG.stream, LOG.replica, 1))
    for n in range(20):
        one.append_later(data(n, 1))
        two.append_later(data(10 * n, 10))
    assert one.flush(10)
    assert two.flush(10)
    for _ in range(2):
        assert (one.next_stable_id, two.next_stable_id) == (20, 200)
        assert one.read(7, 1) == [(7, data(7, 1))]
        assert two.read(7, 1) == [(7, data(70, 10))]


@pytest.mark.parametrize("window_frames", every(2, [1, 8, 1024]))
def test_rows_are_found_among_tentative_runs_and_zombies(topic: Topic, window_frames: int) -> None:
    frames: list[Frame] = []
    for part in troubled_history():
        next_id = in_memory(frames).next_stable_id
        topic.put_frames(part, next_id)
        frames += part
    with reopened(topic, window_frames) as store:
        log = store.open(LOG)
        assert_alike(log, in_memory(frames))
        trimmed = in_memory(frames)
        for stable_id in (40, 41, 90):
            trimmed.trim(stable_id)
            log.trim(stable_id)
            assert log.start <= trimmed.start
        assert log.start > 0
        for row in range(91, log.next_stable_id, 9):
            assert log.offset_after(row - 1) == trimmed.offset_after(row - 1)


def test_a_zombies_copy_of_a_row_is_not_taken_for_the_row(topic: Topic) -> None:
    topic.put_frames([start(1), data(0, 5), start(2)])
    topic.put_frames([data(5, 5), boundary(10)], next_id=5)
    topic.put_frames([start(3), data(5, 5, life=3), *(boundary(10 + n, life=3) for n in range(5))], next_id=5)
    for window_frames in (1, 1024):
        with reopened(topic, window_frames) as store:
            assert [store.open(LOG).offset_after(stable_id) for stable_id in (3, 4, 8, 9)] == [1, 6, 6, 7]


def test_a_row_of_a_long_log_is_found_in_a_few_steps(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.put_frames([start(1), *(frame for n in range(2000) for frame in (data(3 * n, 3), boundary(3 * n + 3)))])
    looked_at: list[int] = []
    record_of = LogPartition._record

    def look(partition: LogPartition, record: ConsumerRecord) -> LogRecord:
        looked_at.append(record.offset)
        return record_of(partition, record)

    monkeypatch.setattr(LogPartition, "_record", look)
    with reopened(topic) as store:
        log = store.open(LOG)
        for stable_id in (5998, 5999, 5000, 4999, 300, -1):
            looked_at.clear()
            assert log.offset_after(stable_id) == min(2 * ((stable_id + 1) // 3) + 1, 4000)
            assert len(looked_at) < 50


def assert_alike(log: KafkaLog, expected: MemoryLog) -> None:
    assert (log.end, log.next_stable_id, log.last_incarnation) == (
        expected.end,
        expected.next_stable_id,
        expected.last_incarnation,
    )
    assert (log.last_anchor(), log.tail()) == (expected.last_anchor(), expected.tail())
    for stable_id in (-1, *range(3, expected.next_stable_id, 7), expected.next_stable_id - 1, expected.next_stable_id + 9):
        assert log.offset_after(stable_id) == expected.offset_after(stable_id), stable_id
    for offset in range(0, expected.end, 11):
        assert log.read(offset, ALL, skip_revoked=True) == expected.read(offset, ALL, skip_revoked=True)


def test_rows_that_a_later_life_skipped_are_missed_whatever_the_window(topic: Topic) -> None:
    frames: list[Frame] = [
        start(1),
        data(0, 10),
        boundary(10),
        start(2),
        data(50, 10, life=2),
        *(boundary(60, life=2) for _ in range(9)),
    ]
    topic.put_frames(frames)
    for window_frames in (1, 1024):
        with reopened(topic, window_frames) as store:
            log = store.open(LOG)
            assert (log.offset_after(8), log.offset_after(49), log.offset_after(59)) == (1, 4, 5)
            for stable_id in (9, 20, 48):
                with pytest.raises(TrimmedError):
                    log.offset_after(stable_id)


def test_a_log_that_is_written_for_long_keeps_a_bounded_index(
    topic: Topic, store: KafkaLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_module, "INDEXED_FRAMES", 64)
    log, expected = store.open(LOG), MemoryLog(LOG)
    for n in range(150):
        for frame in (data(3 * n, 3), boundary(3 * n + 3, anchored=n % 50 == 0)):
            log.append_later(frame)
            expected.append(frame)
    assert log.flush(10)
    assert [log.offset_after(row) for row in range(-1, 450, 17)] == [expected.offset_after(row) for row in range(-1, 450, 17)]
    assert log.last_anchor() == expected.last_anchor()
    for row in (100, 200, 440):
        log.trim(row)
        expected.trim(row)
        assert log.start == expected.start
    assert 0.9 < log.nbytes / sum(len(value) for value in values(topic, log)) < 1.1


def values(topic: Topic, log: KafkaLog) -> Iterator[bytes]:
    from formats.frame_records import encode_record

    for _, frame in log.read(log.start, ALL):
        yield encode_record(frame, 0, 1)[0]


def test_damage_in_the_window_is_named(topic: Topic) -> None:
    topic.put_frames([start(1), data(0, 5)])
    topic.put((b"bF\x09 of another version", [("next_id", b"5"), ("incarnation", b"1")]))
    topic.put_frames([boundary(5)], next_id=5)
    with reopened(topic) as store, pytest.raises(CorruptError, match=rf"{topic.name}, partition 0, offset 2: .*version"):
        store.open(LOG).tail()
    with reopened(topic, 1) as store:
        log = store.open(LogId(LOG.stream, "", 0))
        assert log.end == 4
        with pytest.raises(CorruptError, match="offset 2"):
            log.read(0, ALL)
        assert log.read(0, 2) == [(0, start(1)), (1, data(0, 5))]


def test_appends_wait_out_a_dead_broker(own_kafka: KafkaServer, fresh_name: str) -> None:
    topic = Topic(cluster_of(own_kafka), fresh_name)
    with reopened(topic) as store:
        log = store.open(LOG)
        log.append(start(1))
        frames: list[Frame] = [frame for n in range(400) for frame in (data(n, 1), boundary(n + 1))]
        for count, frame in enumerate(frames):
            log.append_later(frame)
            if count == 300:
                own_kafka.kill()
        assert not log.flush(0.5)
        own_kafka.start()
        assert log.flush(30)
        assert not log.fenced
    with reopened(topic) as store:
        assert store.open(LOG).read(0, ALL) == list(enumerate([start(1), *frames]))


@pytest.mark.parametrize("is_frozen", [True, False])
def test_the_producer_sleeps_while_it_can_send_nothing(
    own_kafka: KafkaServer, fresh_name: str, monkeypatch: pytest.MonkeyPatch, is_frozen: bool
) -> None:
    topic = Topic(cluster_of(own_kafka), fresh_name, partitions=20)
    with reopened(topic) as store:
        logs = [store.open(LOG._replace(partition=number)) for number in range(20)]
        for log in logs:
            log.append(start(1))
        looks, run_once = count(), Sender.run_once
        monkeypatch.setattr(Sender, "run_once", lambda sender: (next(looks), run_once(sender)))
        own_kafka.pause() if is_frozen else own_kafka.kill()
        for log in logs:
            log.append_later(boundary(1))
            time.sleep(0.05)  # so that each is a request, until as many are on their way as may be
        found = next(looks)
        own_kafka.resume() if is_frozen else own_kafka.start()
        assert all(log.flush(30) for log in logs)
        assert found < 200, "it looks without a pause whether it may send"


def forget_last(server: KafkaServer, topic: str, batches: int) -> None:
    """What a broker that is down had not yet brought to its disk when the power went."""
    segment = server.data / f"{topic}-0" / f"{0:020d}.log"
    content = segment.read_bytes()
    ends = [0]
    while ends[-1] < len(content):
        ends.append(ends[-1] + 12 + int.from_bytes(content[ends[-1] + 8 : ends[-1] + 12], "big"))
    segment.write_bytes(content[: ends[-1 - batches]])


def test_a_broker_that_loses_a_logs_end_leaves_no_gap_in_it(own_kafka: KafkaServer, fresh_name: str) -> None:
    """Kafka finds that a sequence number is missing, and its client would go on behind what was lost and refused."""
    topic = Topic(cluster_of(own_kafka), fresh_name)
    with reopened(topic) as store:
        log = store.open(LOG)
        log.append(start(1))
        for n in range(10):
            log.append(data(n, 1))
        own_kafka.kill()
        for n in range(10, 400):
            log.append_later(data(n, 1))
        forget_last(own_kafka, fresh_name, 3)
        own_kafka.start()
        with pytest.raises((AppendRefusedError, ProtocolError)):
            log.sync()
    with reopened(topic) as store:
        log = store.open(LOG)
        assert log.read(0, ALL) == list(enumerate([start(1), *(data(n, 1) for n in range(7))]))
        assert log.next_stable_id == 7


def test_a_history_is_kept_though_nobody_needs_it(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[Frame] = [start(1), data(0, 5), boundary(5), data(5, 5), boundary(10), data(10, 5), boundary(15)]
    with reopened(topic) as store:
        log = store.open(LOG)
        for frame in frames[:3]:
            log.append(frame)
        time.sleep(0.01)  # Kafka knows times to the millisecond
        middle = time.time_ns()
        time.sleep(0.01)
        for frame in frames[3:]:
            log.append(frame)
    time.sleep(0.01)
    now = time.time_ns()
    # However long it takes to open a log, what is kept of it is reckoned from this moment on.
    monkeypatch.setattr(kafka_module, "time", SimpleNamespace(time_ns=lambda: now, monotonic=time.monotonic))

    def trimmed(history_us: int) -> int:
        with closing(KafkaLogStore({topic.cluster.site: topic.cluster}, topic, history_us=history_us)) as trimming:
            log = trimming.open(LOG)
            log.trim(14)
            return log.start

    assert trimmed(3_600_000_000) == 0
    assert trimmed((now - middle) // 1_000) == 3
    assert trimmed(1) > 5
