"""What the egress remembers of what it has given, while q.stable cannot be written."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError, MessageSizeTooLargeError
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata

from boreal.model.frames import Anchor, Boundary, Data, LogId, Origin, State
from boreal.model.schema import Schema
from formats.changelog import Changelog
from formats.client_headers import ANCHOR, PLACE, decode_anchor, decode_place
from services.egress import out as out_module
from services.egress.delays import RecentDelays
from services.egress.out import OutTopic, OutWriter, RowTopics
from services.egress.stable import StableTopic
from services.egress.tail import StableRow
from services.hosting.process import EXIT_FENCED
from services.kafka.clusters import RECORD_BYTES, Cluster
from services.kafka.row_producers import KafkaPythonRows
from services.storage.log_clients import SiteClients
from tests.waiting import start_until_it_waits

SCHEMA = Schema.of({"n": "int"})
LOG = LogId("out", "r0", 0)


class Kafka:
    """A cluster, and its producer, which has everything at once."""

    site = "a"

    def __init__(self, is_away: bool = False) -> None:
        """is_away: it has nothing, ever."""
        self.is_away = is_away
        self._end = 0
        self._sender = self
        self.is_silent = False
        self.refusal: KafkaError | None = None

    def make_producer(self, **options: Any) -> Kafka:
        return self

    def make_row_producer(self, otherwise: Callable[[], Kafka]) -> KafkaPythonRows:
        return KafkaPythonRows(otherwise())

    def force_close(self) -> None:
        self.is_silent = True

    def send(self, topic: str, value: bytes, **options: Any) -> FutureRecordMetadata:
        result = FutureProduceResult(TopicPartition(topic, 0))
        future = FutureRecordMetadata(result, 0, 0, None, -1, -1, -1)
        if self.refusal is not None:
            result.failure(self.refusal)
            return future
        if not self.is_away:
            result.success((self._end, 0, None))
        self._end += 1
        return future

    @property
    def sent(self) -> int:
        """How many records it was given."""
        return self._end


class Stable:
    """A q.stable whose transactions wait: what it was given it can read from q.out again."""

    next_id = 0

    def put(self, rows: list[StableRow], offset: int) -> None:
        pass


def outlet(stable: Stable, codes: list[int], is_away: bool = False, clients: SiteClients | None = None) -> OutTopic:
    """codes: with which it would end its process. clients: those of another one in the process."""
    return OutTopic(
        clients or SiteClients(cast(Cluster, Kafka(is_away))),
        "q.out",
        Changelog("q", SCHEMA, (), 100),
        OutWriter(1, 0),
        RowTopics(cast(StableTopic, stable)),
        RecentDelays(1_000_000),
        lambda: "r0",
        codes.append,
    )


def rows(first: int) -> pa.RecordBatch:
    columns = [pa.array(range(first, first + 3), pa.int64()), pa.array([7, 8, 9], pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.arrow)


def test_rows_that_wait_for_q_stable_take_no_memory() -> None:
    stable, codes, held = Stable(), list[int](), []
    out = outlet(stable, codes)
    for first in range(0, 30, 3):
        batch = rows(first)
        held.append(weakref.ref(batch))
        out.append(LOG, Data(Origin("r0", 1), 0, first, batch, False, ((1, 0),), 0))
    del batch
    gc.collect()
    assert not [ref for ref in held if ref() is not None]
    assert out.confirmed == 0 and codes == []
    stable.next_id = 6
    assert out.confirmed == 2
    stable.next_id = 30
    assert out.confirmed == out.appended == 10


@pytest.mark.parametrize("is_away", [False, True])
def test_only_what_follows_the_first_frame_before_kafka_has_it_may_have_to_wait(is_away: bool) -> None:
    out = outlet(Stable(), [], is_away)
    assert not out.may_wait
    out.append(LOG, Data(Origin("r0", 1), 0, 0, rows(0), False, ((1, 0),), 0))
    assert out.may_wait is is_away


def test_what_fails_in_a_thread_of_kafkas_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rows: list[StableRow], offset: int) -> None:
        raise RuntimeError("nobody sees this")

    stable, codes = Stable(), list[int]()
    monkeypatch.setattr(stable, "put", fail)
    out = outlet(stable, codes)
    out.append(LOG, Data(Origin("r0", 1), 0, 0, rows(0), False, ((1, 0),), 0))
    assert codes == [1] and out.confirmed == 0
    out.append(LOG, Data(Origin("r0", 1), 0, 3, rows(3), False, ((1, 0),), 0))
    kafka = cast(Any, out._clients.producer)
    assert kafka._end == 3, "rows would follow those that clients were not given"
    assert not kafka.is_silent, "other roles write on"


def test_what_kafka_refuses_ends_all_that_write_through_the_same_clients() -> None:
    """Its client leaves out what it cannot write, and goes on with what follows."""
    kafka = Kafka()
    clients, codes = SiteClients(cast(Cluster, kafka)), list[int]()
    one, other = outlet(Stable(), codes, clients=clients), outlet(Stable(), codes, clients=clients)
    other.append(LOG, Boundary(Origin("r0", 1), 0, 1, False, 0, 0, State.STABLE))
    kafka.refusal = MessageSizeTooLargeError()
    one.append(LOG, Data(Origin("r0", 1), 0, 0, rows(0), False, ((1, 0),), 0))
    assert kafka.is_silent and codes == [1]
    assert other.confirmed == 1 and codes == [1, 1]
    kafka.refusal = None
    for out, first in ((one, 3), (other, 0)):
        out.append(LOG, Data(Origin("r0", 1), 0, first, rows(first), False, ((1, 0),), 0))
    assert kafka._end == 1 and codes == [1, 1]


def test_what_kafka_does_not_take_is_bounded_by_all_that_its_client_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_module, "ON_THE_WAY_BYTES", 1 << 20)
    cluster = Kafka()
    out = outlet(Stable(), [], clients=SiteClients(cast(Cluster, cluster)))

    def append() -> None:
        for first in range(0, 3_000, 3):
            out.append(LOG, Data(Origin("r0", 1), 0, first, rows(first), False, ((1, 0),), 0))
            cluster.is_away = True

    writer = start_until_it_waits(append, lambda: out.appended)
    assert 100 < 3 * out.appended < (1 << 20) // RECORD_BYTES
    out._is_closed = True
    with out._changed:
        out._changed.notify_all()
    writer.join(10)


def test_nothing_follows_the_first_frame_before_kafka_has_it() -> None:
    cluster = Kafka(is_away=True)
    out = outlet(Stable(), [], clients=SiteClients(cast(Cluster, cluster)))

    def append() -> None:
        for first in (0, 3):
            out.append(LOG, Data(Origin("r0", 1), 0, first, rows(first), False, ((1, 0),), 0))

    writer = start_until_it_waits(append, lambda: out.appended)
    assert cluster.sent == 3
    out._is_closed = True
    with out._changed:
        out._changed.notify_all()
    writer.join(10)
    assert cluster.sent == 3


def test_a_record_that_came_to_lie_elsewhere_ends_the_process_and_is_not_given() -> None:
    """R25: a later life has written there. What it goes on from has not seen our row, so no client may have."""
    given = list[int]()
    stable, codes = Stable(), list[int]()
    stable.put = lambda rows, offset: given.append(offset)  # type: ignore[method-assign]
    out = outlet(stable, codes)
    cast(Any, out._clients.producer)._end = 7
    out.append(LOG, Data(Origin("r0", 1), 0, 0, rows(0), False, ((1, 0),), 0))
    assert codes == [EXIT_FENCED] and given == [] and out.confirmed == 0


def test_a_boundary_with_an_anchor_says_where_the_next_life_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """R28: where the inputs are read again from, and where the changelog stands after this record."""
    out, sent = outlet(Stable(), []), list[dict[str, bytes]]()
    send = out._clients.producer.send

    def keep(topic: str, value: bytes, **options: Any) -> FutureRecordMetadata:
        sent.append(dict(options["headers"]))
        return cast(FutureRecordMetadata, send(topic, value, **options))

    monkeypatch.setattr(out._clients.producer, "send", keep)
    anchor = Anchor(100, 50, (("out/0", 3),), (("in/0", 2),))
    out.append(LOG, Data(Origin("r0", 1), 0, 0, rows(0), False, ((1, 0),), 0))
    out.append(LOG, Boundary(Origin("r0", 1), 0, 100, False, 0, 0, State.STABLE, anchor))
    assert decode_anchor(sent[-1][ANCHOR]) == anchor
    place = decode_place(sent[-1][PLACE])
    assert place == out.changelog.place and (place.next_stable_id, place.through) == (3, 100)
