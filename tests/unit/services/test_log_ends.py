"""The end of a log is asked for once by all who want to know it at one moment, and a reader of a calm log begins there."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError

from boreal.model.frames import Boundary, Data, Frame, LogId, Origin, Start, State, Undo
from formats.frame_records import encode_record
from reconcile.events import Frames
from services.kafka.clusters import Cluster
from services.storage import log_ends
from services.storage.local_logs import LocalLogs
from services.storage.log_ends import RECENT, LogEnds
from services.storage.log_partition import LOOK_BEHIND
from services.storage.log_reader import LogPath, _LogFollower
from tests.waiting import start_until_it_waits, wait

LOG, SOURCE = LogId("out", "r0", 0), LogId("rows", "", 0)
PLACE = TopicPartition("q.log", 0)
WRITER = Origin("r0", 1)
MANY = 3 * RECENT


def boundary(time: int, pause: int = 700_000, tentative: bool = False, incarnation: int = 1) -> Boundary:
    return Boundary(Origin("r0", incarnation), 0, time, tentative, 0, 0, State.STABLE, pause=pause)


def rows(first_id: int, count: int = 1, tentative: bool = False) -> Data:
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(count), pa.int64())})
    return Data(WRITER, 0, first_id, batch, tentative, ((1, 0),), 0)


CALM = [boundary(time) for time in range(2, LOOK_BEHIND + 2)]


class Kafka:
    """A cluster with one log, and its consumer."""

    site = "a"

    def __init__(self, *frames: Frame) -> None:
        self.config = {"request_timeout_ms": 3_000}
        self._fetcher = SimpleNamespace(config={"max_partition_fetch_bytes": 1 << 20})
        self.asked = self.fetched = self.start = 0
        self.is_deaf = False
        self.answers = threading.Event()
        self.answers.set()
        self.records: list[Any] = []
        self.next_id = 0
        self.incarnation = 1
        self._position = 0
        self.append(*frames)

    def append(self, *frames: Frame) -> None:
        for frame in frames:
            if isinstance(frame, Data) and not frame.tentative:
                self.next_id = frame.first_id + frame.batch.num_rows
            if isinstance(frame, Start):
                self.incarnation = frame.origin.incarnation
            value, headers = encode_record(frame, self.next_id, self.incarnation)
            self.records.append(SimpleNamespace(offset=len(self.records), value=value, headers=headers))

    def make_consumer(self, **options: Any) -> Kafka:
        return self

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    def assign(self, places: list[TopicPartition]) -> None: ...

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._position = offset

    def beginning_offsets(self, places: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        self.asked += 1
        assert self.answers.wait(10)
        if self.is_deaf:
            raise KafkaTimeoutError("no answer")
        return dict.fromkeys(places, self.start)

    def end_offsets(self, places: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, len(self.records))

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        self.fetched += 1
        if self._position < self.start:
            raise OffsetOutOfRangeError({PLACE: self._position})
        found = self.records[self._position :][:max_records]
        self._position += len(found)
        return {PLACE: found}

    def highwater(self, place: TopicPartition) -> int:
        return len(self.records)

    def close(self, **options: Any) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of the module: `now` seconds."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(log_ends, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def ends_of(kafka: Kafka) -> LogEnds:
    return LogEnds(cast(Cluster, kafka))


def test_what_is_known_is_as_old_as_one_may_be_told_and_no_older(clock: SimpleNamespace) -> None:
    kafka = Kafka(boundary(1), boundary(2))
    ends = ends_of(kafka)
    first = ends.of(LOG, "q.log")
    assert (first.start, first.end) == (0, 2) and [record.offset for record in first.records] == [0, 1]
    kafka.append(boundary(3))
    clock.now += 0.9
    assert ends.of(LOG, "q.log", 1.0) is first and kafka.asked == 1
    assert ends.of(LOG, "q.log").end == 3 and kafka.asked == 2
    clock.now += 1.1
    assert ends.of(LOG, "q.log", 1.0).end == 3 and kafka.asked == 3


def test_those_who_ask_at_one_moment_get_one_answer_and_one_who_asks_later_a_new_one() -> None:
    kafka, found = Kafka(boundary(1)), list[Any]()
    ends = ends_of(kafka)
    kafka.answers.clear()
    threads = [
        start_until_it_waits(lambda: found.append(ends.of(LOG, "q.log", 60.0)), lambda: kafka.asked) for _ in range(3)
    ]
    # It begins after the question was asked, and must not be told what was so before.
    late = start_until_it_waits(lambda: found.append(ends.of(LOG, "q.log")), lambda: kafka.asked)
    kafka.append(boundary(2))
    kafka.answers.set()
    for thread in (*threads, late):
        thread.join(10)
    assert kafka.asked == 2 and len(found) == 4 and len({id(end) for end in found}) == 2


def test_all_who_wait_for_a_question_hear_that_it_has_failed_and_the_next_one_asks_again() -> None:
    """If each asked again, the last of many would wait for minutes, and so would the threads of readers that were stopped."""
    kafka, failed = Kafka(boundary(1)), list[BaseException]()
    ends = ends_of(kafka)
    kafka.answers.clear()
    kafka.is_deaf = True

    def ask() -> None:
        try:
            ends.of(LOG, "q.log", 60.0)
        except KafkaTimeoutError as error:
            failed.append(error)

    threads = [start_until_it_waits(ask, lambda: kafka.asked) for _ in range(3)]
    kafka.answers.set()
    for thread in threads:
        thread.join(10)
    assert len(failed) == 3 and kafka.asked == 1
    kafka.is_deaf = False
    assert ends.of(LOG, "q.log", 60.0).end == 1


def test_only_the_last_records_are_kept_and_fewer_of_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(*(boundary(time) for time in range(MANY)))
    assert [record.offset for record in ends_of(kafka).of(LOG, "q.log").records] == list(range(MANY - RECENT, MANY))
    size = len(kafka.records[-1].value)
    monkeypatch.setattr(log_ends, "RECENT_BYTES", 3 * size)
    assert [record.offset for record in ends_of(kafka).of(LOG, "q.log").records] == list(range(MANY - 3, MANY))
    monkeypatch.setattr(log_ends, "RECENT_BYTES", size // 2)
    assert [record.offset for record in ends_of(kafka).of(LOG, "q.log").records] == [MANY - 1]


def test_of_a_log_whose_end_is_damaged_only_the_bounds_are_told() -> None:
    kafka = Kafka(boundary(1), boundary(2))
    kafka.records[0].headers = []
    end = ends_of(kafka).of(LOG, "q.log")
    assert (end.start, end.end, end.records) == (0, 2, ())


def test_the_ends_of_a_limited_number_of_logs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ends, "MOST_KEPT", 2)
    kafka = Kafka()
    ends = ends_of(kafka)
    for topic in ("a", "b", "a", "c"):
        ends.of(LOG, topic)
    asked = kafka.asked
    ends.of(LOG, "a", 60.0)
    ends.of(LOG, "c", 60.0)
    assert kafka.asked == asked
    ends.of(LOG, "b", 60.0)
    assert kafka.asked == asked + 1


def test_whether_a_log_holds_rows_is_decided_by_what_was_known_unless_it_lacks_them() -> None:
    kafka = Kafka(rows(0), boundary(1))
    ends = ends_of(kafka)
    assert ends.holds(LOG, "q.log", 0) and ends.holds(LOG, "q.log", 1) and kafka.asked == 1
    kafka.append(rows(1))
    assert ends.holds(LOG, "q.log", 2) and kafka.asked == 2  # as it was known, it had not reached that id
    assert not ends.holds(LOG, "q.log", 3)
    kafka.start = 2
    assert not ends_of(kafka).holds(LOG, "q.log", 0)


@pytest.mark.parametrize("first", [rows(0), boundary(0)], ids=["a row", "no row"])
def test_what_is_before_the_records_that_are_known_is_looked_for_in_the_log_as_it_is_now(first: Frame) -> None:
    """It may be trimmed since then, though the rows that are needed are there, or are still to come."""
    kafka = Kafka(first, *(boundary(time) for time in range(1, MANY)), rows(9, tentative=True))
    ends = ends_of(kafka)
    ends.of(LOG, "q.log")
    kafka.start = RECENT
    assert ends.holds(LOG, "q.log", kafka.next_id)
    ends.of(LOG, "q.log")
    kafka.start = RECENT + 1
    follower = Followed(kafka, kafka.next_id - 1, ends=ends)
    follower.settle()
    assert follower.frames[0] == boundary(RECENT + 1)
    follower.stop()


def test_a_reader_of_rows_that_were_not_known_yet_asks_again() -> None:
    kafka = Kafka(rows(0), *CALM)
    ends = ends_of(kafka)
    ends.of(LOG, "q.log")
    kafka.append(rows(1), *CALM)
    follower = Followed(kafka, after_id=1, ends=ends)
    follower.settle()
    assert follower.frames == [CALM[-1]] and kafka.asked == 2


class Followed(_LogFollower):
    """A follower of the log of a fake, and what it does."""

    def __init__(self, kafka: Kafka, after_id: int, gather_us: int = 1, ends: LogEnds | None = None, log: LogId = LOG) -> None:
        self.delivered: list[Any] = []
        self.joined: list[object] = []
        self.alone = 0
        shared = SimpleNamespace(
            calm_s=60.0, join=lambda member, place: self.joined.append(member), leave=lambda member, place: None
        )
        path = SimpleNamespace(
            consumers=self,
            calm=SimpleNamespace(choose=lambda gather_us: shared),
            local=LocalLogs(),
            ends=ends or ends_of(kafka),
        )
        self._kafka = kafka
        super().__init__(
            cast(LogPath, path), log, "q.log", after_id, self.delivered.append, lambda: None, lambda: gather_us
        )

    def lend(self) -> Any:
        self.alone += 1
        return nullcontext(self._kafka)

    @property
    def frames(self) -> list[Frame]:
        return [frame for event in self.delivered if isinstance(event, Frames) for _, frame in event.items]

    def settle(self) -> None:
        assert wait(lambda: bool(self.delivered) and (not self._thread.is_alive() or self.alone > 0))


def test_a_reader_of_a_calm_log_begins_at_its_last_boundary_and_needs_no_consumer() -> None:
    kafka = Kafka(rows(0), *(boundary(time) for time in range(1, MANY)))
    follower = Followed(kafka, after_id=0)
    follower.settle()
    assert follower.frames == [boundary(MANY - 1)]
    assert follower.joined == [follower] and follower.alone == 0 and follower.position == MANY
    assert kafka.fetched == 1 and not follower._thread.is_alive()


@pytest.mark.parametrize(("log", "pause", "gather_us"), [(LOG, 700_000, 0), (LOG, 200_000, 1), (SOURCE, 0, 1)])
def test_one_that_cannot_wait_for_others_and_one_of_a_log_that_is_not_calm_read_alone_from_there(
    log: LogId, pause: int, gather_us: int
) -> None:
    follower = Followed(Kafka(*(boundary(time, pause) for time in range(MANY))), -1, gather_us, log=log)
    follower.settle()
    assert wait(lambda: follower.alone == 1)
    assert follower.frames == [boundary(MANY - 1, pause)]
    assert follower._thread.is_alive() and not follower.joined
    follower.stop()


def test_a_start_before_the_last_boundary_is_no_reason_to_read_what_comes_before() -> None:
    """It has revoked what was tentative."""
    later = [boundary(99, incarnation=2), boundary(100, incarnation=2)]
    frames: list[Frame] = [rows(0), boundary(1), *CALM, Start(Origin("r0", 2), 1, 1), *later]
    follower = Followed(Kafka(*frames), after_id=0)
    follower.settle()
    assert follower.frames == [later[-1]] and follower.joined == [follower] and follower.alone == 0


def test_one_that_is_to_read_alone_after_all_does_so_until_it_is_calm() -> None:
    """It would join the shared reader again at once, and be sent away, again and again."""
    kafka = Kafka(*(boundary(time) for time in range(MANY)))
    follower = Followed(kafka, after_id=-1)
    follower.settle()
    follower.read_alone()
    assert wait(lambda: kafka.fetched > 1)
    assert follower._thread.is_alive() and follower.joined == [follower]
    follower.stop()


@pytest.mark.parametrize(
    ("frames", "after_id"),
    [
        pytest.param([rows(0), boundary(1), *CALM], -1, id="rows are missing"),
        pytest.param([rows(0), boundary(1), *CALM[:-1]], 1, id="it has not reached the rows that the reader has"),
        pytest.param([rows(0), *CALM[1:]], 0, id="the last records are not all boundaries"),
        pytest.param([rows(0), boundary(1), rows(1, tentative=True), *CALM[1:]], 0, id="of which one is tentative rows"),
        pytest.param([rows(0), boundary(1), boundary(9, tentative=True), *CALM[1:]], 0, id="or a tentative boundary"),
        pytest.param([rows(0), boundary(1), Undo(WRITER, 1, 0), *CALM[1:]], 0, id="or an UNDO"),
        pytest.param([rows(0), boundary(1), *CALM[:-1], Start(Origin("r0", 2), 1, 1)], 0, id="the last one is no boundary"),
        pytest.param(
            [rows(0), boundary(1), rows(1, tentative=True), *[boundary(1, pause=0)] * MANY],
            *(0,),
            id="an instance repeats its stable boundary while it has tentative rows out",
        ),
        pytest.param(
            [rows(0), boundary(1), Start(Origin("r0", 2), 1, 1), *CALM], 0, id="they are a zombie's, of the incarnation before"
        ),
    ],
)
def test_a_reader_of_any_other_log_reads_all_from_its_rows_on(frames: list[Frame], after_id: int) -> None:
    follower = Followed(Kafka(*frames), after_id)
    follower.settle()
    assert wait(lambda: follower.alone == 1)
    assert follower._thread.is_alive() and not follower.joined
    follower.stop()
