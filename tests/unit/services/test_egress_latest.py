"""What the egress holds for q.latest while that cannot be written, and what it does where another life has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata

from boreal.model.frames import Data, Frame, Origin, Undo
from boreal.model.schema import Schema
from formats.changelog import Changelog, ChangelogPlace
from formats.client_headers import ID
from formats.frame_records import Headers
from services.egress import latest as latest_module
from services.egress.latest import LatestTopic
from services.egress.tail import StableRow
from services.hosting.process import EXIT_FENCED
from services.kafka.clusters import RECORD_BYTES, Cluster
from services.kafka.row_producers import KafkaPythonRows
from tests.waiting import start_until_it_waits

SCHEMA = Schema.of({"n": "int"})
PLACE = TopicPartition("q.latest", 0)


@dataclass(frozen=True)
class Record:
    key: bytes
    value: bytes | None
    headers: Headers
    offset: int = 0


class Kafka:
    """A cluster, with its consumer of q.latest and its producer, which has a record only when it is told so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Record, FutureProduceResult]] = []
        self.log: list[Record] = []
        self._place = 0
        self._sender = self
        self.is_silent = False
        self.is_closed = False

    def make_consumer(self) -> Kafka:
        return self

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._place = offset

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PLACE: 0}

    def end_offsets(self, partitions: list[TopicPartition], timeout_ms: int | None = None) -> dict[TopicPartition, int]:
        return {PLACE: len(self.log)}

    def position(self, partition: TopicPartition) -> int:
        return self._place

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Record]]:
        start, self._place = self._place, len(self.log)
        return {PLACE: self.log[start:]}

    def close(self) -> None:
        self.is_closed = True

    def make_row_producer(self) -> KafkaPythonRows:
        return KafkaPythonRows(self)

    def force_close(self) -> None:
        self.is_silent = True

    def send(self, topic: str, value: bytes | None, key: bytes, headers: Headers, partition: int) -> FutureRecordMetadata:
        result = FutureProduceResult(PLACE)
        self.waiting.append((Record(key, value, headers), result))
        return FutureRecordMetadata(result, 0, 0, None, -1, -1, -1)

    def take_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for record, result in waiting:
            self.take(record)
            result.success((len(self.log) - 1, 0, None))

    def take(self, record: Record) -> None:
        self.log.append(replace(record, offset=len(self.log)))

    def table(self) -> dict[bytes, bytes]:
        """What a reader of the topic shows."""
        shown = {record.key: record.value for record in self.log}
        return {key: value for key, value in shown.items() if value is not None}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    monkeypatch.setattr(latest_module, "ON_THE_WAY_BYTES", 10 * RECORD_BYTES)
    return Kafka()


def latest_topic(kafka: Kafka, codes: list[int]) -> LatestTopic:
    """codes: with which it would end its process."""
    return LatestTopic(cast(Cluster, kafka), "q.latest", "q.out", codes.append)


def rows(first: int, tentative: bool = False, epoch: int = 0, keys: tuple[int, ...] = (0, 1, 2)) -> Data:
    """One row for each key, whose time is its id."""
    times = pa.array(range(first, first + len(keys)), pa.int64())
    batch = pa.RecordBatch.from_arrays([times, pa.array(keys, pa.int64())], schema=SCHEMA.arrow)
    return Data(Origin("r0", 1), epoch, first, batch, tentative, ((1, 0),), 0)


def give(latest: LatestTopic, changelog: Changelog, frame: Frame) -> None:
    given = changelog.take(frame, 0, "r0")
    assert given is not None
    latest.take(given)


def test_what_kafka_does_not_take_is_bounded_and_beyond_that_the_process_ends(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    codes = list[int]()
    latest, changelog = latest_topic(kafka, codes), Changelog("q", SCHEMA, ("n",), 100)
    for first in range(0, 300, 3):
        give(latest, changelog, rows(first))
    assert codes == [1]
    assert len(kafka.waiting) == 12
    assert "q.latest is too slow for q.out" in caplog.text


def test_what_kafka_takes_is_not_counted_any_more(kafka: Kafka) -> None:
    codes = list[int]()
    latest, changelog = latest_topic(kafka, codes), Changelog("q", SCHEMA, ("n",), 100)
    for first in range(0, 300, 3):
        give(latest, changelog, rows(first))
        kafka.take_all()
    assert codes == [] and latest.next_id == 300


def test_a_new_life_waits_where_it_lacks_more_than_may_be_on_its_way(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [StableRow(id_, b"%d" % id_, b"v", 0) for id_ in range(100)]
    monkeypatch.setattr(latest_module, "stable_rows", lambda *range_: iter(held))
    codes = list[int]()
    latest = latest_topic(kafka, codes)
    writer = start_until_it_waits(lambda: latest.begin(0, 100), lambda: latest.next_id)
    assert writer.is_alive() and latest.next_id <= 10
    while writer.is_alive():
        kafka.take_all()
        writer.join(0.01)
    assert latest.next_id == 100 and codes == []


def test_an_undo_puts_every_key_back_to_its_last_stable_row(kafka: Kafka) -> None:
    """A key that never had one is gone."""
    latest, changelog = latest_topic(kafka, []), Changelog("q", SCHEMA, ("n",), 100)
    give(latest, changelog, rows(0, keys=(0, 1)))
    kafka.take_all()
    right = kafka.table()
    give(latest, changelog, rows(2, tentative=True, keys=(1, 2)))
    kafka.take_all()
    assert kafka.table() != right and len(kafka.table()) == 3
    give(latest, changelog, Undo(Origin("r0", 1), 1, 1))
    kafka.take_all()
    assert kafka.table() == right


def test_a_life_that_dies_between_the_rows_of_a_frame_leaves_them_to_the_next(kafka: Kafka) -> None:
    """Only a frame's last record says that all of it has had its effect: the next life puts all of it again."""
    latest, changelog = latest_topic(kafka, []), Changelog("q", SCHEMA, ("n",), 100)
    give(latest, changelog, rows(0))
    record, _ = kafka.waiting[0]
    kafka.take(record)
    assert latest_topic(kafka, []).next_id == 0
    kafka.log.clear()
    kafka.take_all()
    assert latest_topic(kafka, []).next_id == 3


# Another life.


class Lives:
    """Lives of one egress, of which each begins where the one before has left q.latest."""

    def __init__(self, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(latest_module, "stable_rows", lambda *range_: iter(()))
        self.kafka = kafka
        self.codes: list[int] = []
        self.begin()

    def begin(self) -> None:
        self.latest = latest_topic(self.kafka, self.codes)
        self.latest.begin(0, 0)
        self.kafka.take_all()
        self.changelog = Changelog("q", SCHEMA, ("n",), 100, place=ChangelogPlace(next_stable_id=self.latest.next_id))

    def give(self, *frames: Frame) -> dict[bytes, bytes]:
        """What q.latest then shows."""
        for frame in frames:
            give(self.latest, self.changelog, frame)
        self.kafka.take_all()
        return self.kafka.table()


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Lives:
    return Lives(Kafka(), monkeypatch)


def write_on(lives: Lives) -> None:
    lives.give(rows(6, tentative=True, keys=(3,)))


def stand_idle(lives: Lives) -> None:
    lives.latest.look_for_others()


@pytest.mark.parametrize("go_on", [write_on, stand_idle])
def test_what_a_dead_life_writes_late_is_put_right(lives: Lives, go_on: Callable[[Lives], None]) -> None:
    """Its stable rows, its tentative ones, and the tombstones by which it undoes them."""
    lives.give(rows(0, tentative=True), Undo(Origin("r0", 1), 1, -1), rows(0, epoch=1), rows(3, tentative=True, epoch=1))
    tentative, tombstones, stable, later = (lives.kafka.log[at : at + 3] for at in (0, 3, 6, 9))
    lives.begin()
    right = lives.give(rows(3))
    assert lives.codes == []
    for record in (tombstones[0], tentative[1], stable[2], later[1]):
        lives.kafka.take(record)
    assert lives.kafka.table() != right
    go_on(lives)
    assert lives.codes == [EXIT_FENCED]
    lives.begin()
    assert lives.kafka.table() == right
    lives.give(rows(6))
    lives.latest.look_for_others()
    assert lives.codes == [EXIT_FENCED], "the next life finds nobody else's"


def test_a_dead_life_writes_before_its_successor_does(lives: Lives) -> None:
    """Between what the successor reads, and its first record."""
    lives.give(rows(0))
    old = lives.kafka.log[0]
    right = lives.give(rows(3))
    latest = latest_topic(lives.kafka, lives.codes)
    lives.kafka.take(old)
    latest.look_for_others()
    assert lives.codes == [EXIT_FENCED]
    lives.begin()
    assert lives.kafka.table() == right


def test_records_that_have_no_id_yet_count_by_their_next_id(lives: Lives) -> None:
    lives.give(rows(0))
    right = lives.give(rows(3))
    lives.give(rows(6, tentative=True))
    lives.kafka.take(lives.kafka.log[0])
    lives.kafka.log = [replace(record, headers=[h for h in record.headers if h[0] != ID]) for record in lives.kafka.log]
    lives.begin()
    assert lives.kafka.table() == right
    newer = lives.give(rows(6))
    lives.begin()
    assert lives.kafka.table() == newer and lives.codes == []


def test_a_key_that_was_deleted_by_hand_has_its_row_again(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    """A record without our headers ends no egress for good."""
    right = lives.give(rows(0))
    lives.kafka.take(Record(b"1", None, []))
    lives.kafka.take(Record(next(iter(right)), None, []))
    lives.latest.look_for_others()
    assert lives.codes == [EXIT_FENCED] and lives.kafka.table() != right
    lives.begin()
    assert lives.kafka.table() == right
    assert "record 3 is of no egress" in caplog.text and "record 4 is of no egress" in caplog.text


def test_a_topic_that_cannot_be_read_leaves_no_client_behind(kafka: Kafka) -> None:
    """Its egress is begun again and again, in a worker that goes on."""
    kafka.take(Record(b"0", b"{}", [(latest_module.NEXT_ID, b"no number")]))
    with pytest.raises(ValueError, match="no number"):
        latest_topic(kafka, [])
    assert kafka.is_closed
