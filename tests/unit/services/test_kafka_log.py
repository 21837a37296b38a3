"""What a log in Kafka keeps in memory while Kafka takes nothing, and what it does where Kafka has not what was sent."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.errors import IllegalStateError, KafkaTimeoutError, OutOfOrderSequenceNumberError
from kafka.future import Future
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.record_accumulator import RecordAccumulator

from boreal.model import codec
from boreal.model.frames import Boundary, Data, LogId, Origin
from services.kafka.clusters import Cluster
from services.kafka.gathering import FEW_LOGS, GatherPace
from services.storage import kafka_log as kafka_module
from services.storage.kafka_log import CALM_APPENDS, FEW_BYTES, KEPT_BYTES, KafkaLog
from services.storage.local_logs import Written
from services.storage.log_clients import AppendRefusedError, GatheredLogs, SiteClients
from tests.waiting import start_until_it_waits, wait

LIMIT = 2 << 20


class Kafka:
    """A cluster whose topics are empty, and whose producer keeps all that it is given, as kafka-python does."""

    site = "a"

    def __init__(self) -> None:
        self._sender = self
        self.config = {"request_timeout_ms": 3_000}
        self.is_silent = False
        self._kept = RecordAccumulator(batch_size=16_384)

    def make_consumer(self, **options: Any) -> Kafka:
        return self

    def make_producer(self, **options: Any) -> Kafka:
        return self

    def assignment(self) -> set[TopicPartition]:
        return set()

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def seek(self, partition: TopicPartition, offset: int) -> None:
        pass

    def beginning_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    end_offsets = beginning_offsets

    def force_close(self) -> None:
        self.is_silent = True

    def send(self, topic: str, value: bytes, headers: list[Any], partition: int) -> FutureRecordMetadata:
        return self._kept.append(TopicPartition(topic, partition), 0, None, value, headers)[0]


def test_the_client_for_rows_is_made_before_there_are_rows() -> None:
    """Calm frames go by another one, so the first rows would wait until it is made."""
    site = SiteClients(cast(Cluster, Kafka()))
    log = KafkaLog(LogId("out", "r0", 0), "out", site)
    assert "producer" not in site.__dict__
    log.prepare()
    assert "producer" in site.__dict__


def test_boundaries_that_kafka_does_not_take_keep_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_module, "UNACKNOWLEDGED_BYTES", LIMIT)
    log = KafkaLog(LogId("out", "r0", 0), "out", SiteClients(cast(Cluster, Kafka())))
    boundary = Boundary(Origin("r0", 1), 0, 7, False, 0, 0)

    def append() -> None:
        with suppress(AppendRefusedError):
            for _ in range(10_000):
                log.append_later(boundary)

    gc.collect()
    tracemalloc.start()
    writer = start_until_it_waits(append, lambda: log.unacknowledged)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert writer.is_alive() and log.unacknowledged > 500
    assert used < 1.5 * LIMIT
    log._fail(RuntimeError("the test is over"))
    writer.join(10)


def test_nothing_follows_a_frame_that_kafka_refuses_in_any_log_of_the_site() -> None:
    kafka, boundary = Kafka(), Boundary(Origin("r0", 1), 0, 7, False, 0, 0)
    site = SiteClients(cast(Cluster, kafka))
    one, other = (KafkaLog(LogId("out", "r0", partition), "out", site) for partition in (0, 1))
    one.append_later(boundary)
    one._fail(OutOfOrderSequenceNumberError())
    assert kafka.is_silent
    other._fail(IllegalStateError("the producer is closed"))
    for log in (one, other):
        with pytest.raises(AppendRefusedError, match=r"partition=0.*OutOfOrder"):
            log.append_later(boundary)


CALM = Boundary(Origin("r0", 1), 0, 7, False, 0, 0, pause=1)
BUSY = Boundary(Origin("r0", 1), 0, 8, False, 0, 0)
MANY = Data(Origin("r0", 1), 0, 0, pa.record_batch({"time": range(FEW_BYTES // 8)}), False, ((1, 1),), 1)
ROWS = Data(Origin("r0", 1), 0, 0, pa.record_batch({"time": [1]}), False, ((1, 1),), 1)


class Sent(Kafka):
    """A producer that notes what it is given, and when it was asked which topics it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[int, int]] = []
        self.known = {"out"}
        self._metadata = SimpleNamespace(partitions_for_topic=lambda topic: {0} if topic in self.known else None)

    def send(self, topic: str, value: bytes, headers: list[Any], partition: int) -> FutureRecordMetadata:
        frame = codec.decode(value)
        self.sent.append((partition, frame.time if isinstance(frame, Boundary) else 0))
        return super().send(topic, value, headers, partition)


Calm = tuple[Sent, list[KafkaLog], list[KafkaLog]]
"""A producer, two logs, and those of them that wait to be sent with others."""


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> Calm:
    kafka, waiting = Sent(), list[KafkaLog]()
    monkeypatch.setattr(GatheredLogs, "add", lambda self, log, within_s: waiting.append(log))
    site = SiteClients(cast(Cluster, kafka))
    return kafka, [KafkaLog(LogId("out", "r0", partition), "out", site) for partition in (0, 1)], waiting


def test_boundaries_of_calm_logs_wait_for_each_other(calm: Calm) -> None:
    kafka, logs, waiting = calm
    assert [log.append_later(CALM) for log in logs] == [0, 0]
    assert (kafka.sent, waiting, [log.unacknowledged for log in logs]) == ([], logs, [1, 1])
    for log in waiting:
        log.send_gathered()
        log.send_gathered()
    assert kafka.sent == [(0, 7), (1, 7)]


def test_what_is_not_calm_sends_what_waits_in_its_log_and_does_not_overtake_it(calm: Calm) -> None:
    kafka, (log, other), waiting = calm
    other.append_later(CALM)
    assert (log.append_later(CALM), log.append_later(BUSY)) == (0, 1)
    assert kafka.sent == [(0, 7), (0, 8)]
    log.append_later(CALM, BUSY)
    assert kafka.sent[2:] == [(0, 7), (0, 8)], "boundaries that come with others do not wait"
    for each in waiting:
        each.send_gathered()
    assert kafka.sent[4:] == [(1, 7)], "once each"


def test_a_boundary_that_follows_rows_goes_with_them(calm: Calm) -> None:
    """Else its reader would look twice for each batch."""
    kafka, (log, _), waiting = calm
    log.append_later(ROWS)
    log.append_later(CALM)
    assert (kafka.sent, waiting) == ([(0, 0), (0, 7)], [])
    log._acknowledge(0, 0, SimpleNamespace(offset=0))
    log._acknowledge(1, 0, SimpleNamespace(offset=1))
    log.append_later(CALM)
    assert (len(kafka.sent), waiting) == (2, [log])


class Confirming(Kafka):
    """A producer that confirms a record when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: list[Future] = []

    def send(self, topic: str, value: bytes, headers: list[Any], partition: int) -> FutureRecordMetadata:
        self.futures.append(Future())
        return cast(FutureRecordMetadata, self.futures[-1])

    def confirm(self, number: int, offset: int) -> None:
        """Kafka has a record at an offset."""
        self.futures[number].success(SimpleNamespace(offset=offset))


class LocalReader:
    """Follows a log in the process that writes it."""

    position = 0

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.is_alone = False

    def take_written(self, written: Written) -> bool:
        self.taken += [record.offset for record, _ in written.frames]
        return True

    def read_alone(self) -> None:
        self.is_alone = True


Followed = tuple[Confirming, KafkaLog, LocalReader]


@pytest.fixture
def followed() -> Followed:
    """A log that is written and read in this process."""
    kafka, reader = Confirming(), LocalReader()
    site = SiteClients(cast(Cluster, kafka))
    log, place = KafkaLog(LogId("out", "r0", 0), "out", site), TopicPartition("out", 0)
    site.local.expect(place)
    site.local.confirm(log, place, (), 0)
    assert site.local.join(reader, place)
    return kafka, log, reader


def test_frames_are_handed_to_readers_in_the_process_all_of_one_append_when_kafka_has_the_last(
    followed: Followed,
) -> None:
    kafka, log, reader = followed
    log.append_later(ROWS, BUSY)
    log.append_later(BUSY)
    kafka.confirm(0, 0)
    assert reader.taken == []
    kafka.confirm(1, 1)
    assert reader.taken == [0, 1]
    kafka.confirm(2, 2)
    assert (reader.taken, reader.is_alone, log.unacknowledged) == ([0, 1, 2], False, 0)


def test_what_is_sent_behind_much_is_left_to_be_read_from_kafka(followed: Followed) -> None:
    """Else a cut would hold it in memory twice."""
    kafka, log, reader = followed
    log._unacknowledged_bytes = KEPT_BYTES
    log.append_later(BUSY)
    kafka.confirm(0, 0)
    assert (reader.taken, reader.is_alone) == ([], True)


@pytest.mark.parametrize("is_closed", [True, False])
def test_nothing_is_handed_on_of_a_log_that_is_closed_or_has_another_writer(
    followed: Followed, is_closed: bool
) -> None:
    kafka, log, reader = followed
    log.append_later(BUSY)
    if is_closed:
        log.close()
    kafka.confirm(0, offset=0 if is_closed else 1)
    assert (reader.taken, reader.is_alone) == ([], True)


def test_a_log_whose_topic_is_gone_holds_up_no_other(calm: Calm) -> None:
    """The producer would wait for the topic, in the thread that sends for all."""
    kafka, (log, _), waiting = calm
    log.append_later(CALM)
    kafka.known.clear()
    waiting.pop().send_gathered()
    assert (kafka.sent, log.unacknowledged) == ([], 1)
    log.append_later(CALM)
    assert (kafka.sent, waiting) == ([(0, 7), (0, 7)], []), "the next one waits for the topic itself"


def test_a_log_with_rows_has_another_producer_as_soon_as_kafka_has_what_the_first_one_was_given() -> None:
    """Nothing keeps in order what two producers send."""
    with_rows, calm = Sent(), Sent()
    site = SiteClients(cast(Cluster, Kafka()))
    site.producer, site.patient_producer = cast(Any, with_rows), cast(Any, calm)
    log = KafkaLog(LogId("out", "r0", 0), "out", site)

    def has_all() -> None:
        """Kafka has confirmed all frames."""
        for offset in range(log.end - log.unacknowledged, log.end):
            log._acknowledge(offset, 0, SimpleNamespace(offset=offset))

    log.append_later(BUSY)
    log.append_later(ROWS)
    assert (len(calm.sent), len(with_rows.sent)) == (2, 0)
    has_all()
    log.append_later(ROWS)
    log.append_later(BUSY)
    has_all()
    log.append_later(BUSY)
    assert (len(calm.sent), len(with_rows.sent)) == (2, 3), "it may have rows again soon"
    log.append_later(CALM)
    log.send_gathered()
    assert (len(calm.sent), len(with_rows.sent)) == (2, 4)
    has_all()
    log.append_later(CALM)
    log.send_gathered()
    assert (len(calm.sent), len(with_rows.sent)) == (3, 4)
    log._fail(OutOfOrderSequenceNumberError())
    assert calm.is_silent and with_rows.is_silent
    site.gathered.close()


@pytest.fixture
def degree(calm: Calm) -> Iterator[list[int]]:
    """How loaded the process of these logs is, of which many have rows; empty: not at all."""
    degrees: list[int] = []
    calm[1][0]._site.gathering = GatherPace((-1,), lambda: sum(degrees))
    yield degrees


def test_few_rows_wait_for_those_of_other_logs_while_the_process_is_loaded(calm: Calm, degree: list[int]) -> None:
    kafka, (log, other), waiting = calm
    degree.append(1)
    log.append_later(ROWS)
    log.append_later(CALM)
    other.append_later(BUSY)
    assert (kafka.sent, waiting) == ([], [log, other]), "what follows them waits with them"
    for each in waiting:
        each.send_gathered()
    assert kafka.sent == [(0, 0), (0, 7), (1, 8)]
    log.append_later(BUSY)
    degree.clear()
    log.append_later(BUSY)
    assert kafka.sent[3:] == [(0, 8), (0, 8)], "nothing waits where the process has time"
    log.send_gathered()
    assert len(kafka.sent) == 5


def test_rows_wait_for_no_others_where_few_logs_have_some(calm: Calm) -> None:
    """One query alone may fill its machine: then there is nothing that could go with its frames."""
    _, _, waiting = calm
    site = SiteClients(cast(Cluster, Sent()), GatherPace(FEW_LOGS, lambda: 1))
    logs = [KafkaLog(LogId("out", "r0", partition), "out", site) for partition in range(FEW_LOGS[0] + 2)]

    def waits(log: KafkaLog, *frames: Data | Boundary) -> bool:
        """Whether frames that a log appends wait for those of others."""
        waiting.clear()
        log.append_later(*frames)
        is_waiting = log in waiting
        log.send_gathered()
        return is_waiting

    *few, last, quiet = logs
    assert [waits(log, ROWS) for log in (*few, last)] == [False] * len(few) + [True]
    assert waits(few[0], ROWS) and waits(quiet, BUSY)
    for _ in range(CALM_APPENDS):
        waits(few[0], BUSY)
    assert not waits(last, ROWS), "one has no rows any more"
    waits(few[0], ROWS)
    assert waits(last, ROWS)
    few[1].close()
    assert not waits(last, ROWS), "one is closed"


def test_rows_wait_for_no_others_where_they_are_many_or_the_topic_is_unknown(calm: Calm, degree: list[int]) -> None:
    kafka, (log, other), waiting = calm
    degree.append(1)
    log.append_later(MANY)
    kafka.known.clear()
    other.append_later(ROWS)
    assert (kafka.sent, waiting) == ([(0, 0), (1, 0)], [])


def test_what_could_not_be_sent_with_others_is_sent_by_who_waits_for_it(calm: Calm, degree: list[int]) -> None:
    """Else a source would wait for ever, as it appends nothing before Kafka has what it has appended."""
    kafka, (log, _), waiting = calm
    degree.append(1)
    log.append_later(ROWS)
    kafka.known.clear()
    waiting[0].send_gathered()
    assert not kafka.sent
    assert not log.flush(0)
    assert kafka.sent == [(0, 0)]


def test_few_rows_have_the_patient_producer_while_the_process_is_loaded() -> None:
    prompt, patient = Sent(), Sent()
    degree = 0
    site = SiteClients(cast(Cluster, Kafka()), GatherPace((-1,), lambda: degree))
    site.producer, site.patient_producer = cast(Any, prompt), cast(Any, patient)
    sent: list[tuple[int, int]] = []
    for number, (rows, degree) in enumerate([(ROWS, 1), (MANY, 1), (ROWS, 0)]):  # noqa: B007 - the site asks for it
        log = KafkaLog(LogId("out", "r0", number), "out", site)
        log.append_later(rows)
        log.send_gathered()
        sent.append((len(prompt.sent), len(patient.sent)))
    assert sent == [(0, 1), (1, 1), (2, 1)]
    site.gathered.close()


def test_the_thread_of_gathered_logs_sends_all_that_wait_and_ends_when_it_is_closed() -> None:
    kafka = Sent()
    site = SiteClients(cast(Cluster, kafka))
    logs = [KafkaLog(LogId("out", "r0", partition), "out", site) for partition in (0, 1)]
    for log in logs:
        log.append_later(CALM)
    assert wait(lambda: sorted(kafka.sent) == [(0, 7), (1, 7)])
    site.gathered.close()
    assert site.gathered._thread is not None
    site.gathered._thread.join(10)
    assert not site.gathered._thread.is_alive()


def test_a_consumer_that_no_longer_answers_is_replaced() -> None:
    """kafka-python's may never answer again: then no role could begin in its process."""

    class Deaf(Kafka):
        def __init__(self) -> None:
            super().__init__()
            self.made = 0
            self.closed = 0
            self.is_deaf = False

        def make_consumer(self, **options: Any) -> Deaf:
            self.made += 1
            self.is_deaf = self.made == 1
            return self

        def beginning_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
            if self.is_deaf:
                raise KafkaTimeoutError("no offsets")
            return dict.fromkeys(partitions, 0)

        def close(self, **options: Any) -> None:
            self.closed += 1

    kafka = Deaf()
    site = SiteClients(cast(Cluster, kafka))
    with pytest.raises(KafkaTimeoutError):
        KafkaLog(LogId("out", "r0", 0), "out", site)
    assert (kafka.made, kafka.closed) == (1, 1)
    for partition in (0, 1):
        assert KafkaLog(LogId("out", "r0", partition), "out", site).start == 0
    assert (kafka.made, kafka.closed) == (2, 1)


def test_threads_that_need_a_producer_at_one_moment_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two of them, frames of one log would change places."""
    goes_on, made, got = threading.Event(), list[object](), list[object]()
    site = SiteClients(cast(Cluster, Kafka()))

    def make_producer(**options: Any) -> object:
        made.append(object())
        assert goes_on.wait(10)
        return made[-1]

    monkeypatch.setattr(site._cluster, "make_producer", make_producer, raising=False)
    threads = [threading.Thread(target=lambda: got.append(site.producer)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert wait(lambda: len(made) == 1)
    goes_on.set()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1 and got == [made[0]] * 2
