"""What writes results for clients, on a real Kafka: kafka-python's producer and librdkafka's keep the same promises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kafka.errors import KafkaError, MessageSizeTooLargeError

from boreal.model.frames import Boundary, LogId, Origin
from services.kafka.clusters import MAX_FRAME_BYTES, Cluster, close_producer, is_fenced, silence_producer
from services.kafka.row_producers import KafkaPythonRows, LibrdkafkaRows, RowProducer, RowRecord
from services.kafka.settings import ClientChoice, KafkaSettings, ServiceSettings
from services.kafka.topics import TopicSpec, ensure
from services.stack.servers import KafkaServer
from services.storage.kafka_log import KafkaLog
from services.storage.log_clients import AppendRefusedError, LogClients
from tests.stack.lives import cluster_of, records_of
from tests.thoroughness import every
from tests.waiting import wait_until

CLIENTS: tuple[ClientChoice, ...] = ("librdkafka", "kafka-python")
KINDS = {"kafka-python": KafkaPythonRows, "librdkafka": LibrdkafkaRows}

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.parametrize("client", every(2, CLIENTS))]


@contextmanager
def row_producer(cluster: Cluster) -> Iterator[RowProducer]:
    producer = cluster.make_row_producer()
    yield producer
    close_producer(producer, 2)


class Heard:
    """What a producer says of records, from its thread."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.errors: list[Exception] = []
        self.threads: set[threading.Thread] = set()
        self.on_refused: Callable[[], None] = lambda: None

    def store(self, offset: int) -> None:
        self.offsets.append(offset)
        self.threads.add(threading.current_thread())

    def refuse(self, error: Exception) -> None:
        self.errors.append(error)
        self.on_refused()


def records(first: int, count: int) -> list[RowRecord]:
    return [(b"%d" % number, b"key" if number % 2 else None, [("n", b"%d" % number)]) for number in range(first, first + count)]


def test_records_keep_their_order_and_the_last_of_each_call_is_told_of(
    client: ClientChoice, kafka: KafkaServer, fresh_name: str
) -> None:
    cluster, heard = cluster_of(kafka, row_producer=client), Heard()
    ensure(cluster, [TopicSpec(fresh_name, 1)])
    with row_producer(cluster) as producer:
        assert isinstance(producer, KINDS[client])
        for first in range(0, 5_000, 500):
            producer.send_all(fresh_name, records(first, 500), heard.store, heard.refuse)
        wait_until(lambda: len(heard.offsets) == 10, "all are stored")
    assert heard.offsets == list(range(499, 5_000, 500)) and not heard.errors
    assert threading.current_thread() not in heard.threads
    found = records_of(cluster, fresh_name)
    assert [(record.value, record.key, record.headers) for record in found] == records(0, 5_000)


def test_what_was_given_is_sent_before_a_producer_is_closed(client: ClientChoice, kafka: KafkaServer, fresh_name: str) -> None:
    """Also what waits for the records before it, and more than is given to librdkafka at once."""
    cluster, heard = cluster_of(kafka, row_producer=client), Heard()
    ensure(cluster, [TopicSpec(fresh_name, 1)])
    with row_producer(cluster) as producer:
        for first in range(0, 4_500, 1_500):
            producer.send_all(fresh_name, records(first, 1_500), heard.store, heard.refuse)
    assert heard.offsets == [1_499, 2_999, 4_499] and not heard.errors
    assert [record.value for record in records_of(cluster, fresh_name)] == [b"%d" % number for number in range(4_500)]


def test_nothing_follows_a_record_that_kafka_refuses(client: ClientChoice, kafka: KafkaServer, fresh_name: str) -> None:
    """With kafka-python's, who is told of it has to silence it, as the clients of a site do."""
    cluster, heard = cluster_of(kafka, row_producer=client), Heard()
    ensure(cluster, [TopicSpec(fresh_name, 1, {"max.message.bytes": "2000"})])
    with row_producer(cluster) as producer:
        if client == "kafka-python":
            heard.on_refused = lambda: silence_producer(producer)
        producer.send_all(fresh_name, records(0, 1), heard.store, heard.refuse)
        wait_until(lambda: heard.offsets, "the first is stored")
        producer.send_all(fresh_name, [(b"x" * 5_000, None, [])], heard.store, heard.refuse)
        wait_until(lambda: heard.errors, "the second is refused")
        assert isinstance(heard.errors[0], MessageSizeTooLargeError)
        if client == "librdkafka":  # kafka-python's takes nothing more then
            producer.send_all(fresh_name, records(2, 3), heard.store, heard.refuse)
            wait_until(lambda: len(heard.errors) > 1, "those after it are refused, too")
    assert heard.offsets == [0]
    assert [record.value for record in records_of(cluster, fresh_name)] == [b"0"]


def test_a_record_beyond_all_limits_is_refused(client: ClientChoice, kafka: KafkaServer, fresh_name: str) -> None:
    cluster, heard = cluster_of(kafka, row_producer=client), Heard()
    ensure(cluster, [TopicSpec(fresh_name, 1)])
    with row_producer(cluster) as producer:
        producer.send_all(fresh_name, [(bytes(MAX_FRAME_BYTES + 1), None, [])], heard.store, heard.refuse)
        wait_until(lambda: heard.errors, "it is refused")
    assert isinstance(heard.errors[0], MessageSizeTooLargeError) and not heard.offsets


def test_a_transaction_is_whole_and_its_writer_is_fenced_by_the_next(
    client: ClientChoice, kafka: KafkaServer, fresh_name: str
) -> None:
    cluster = cluster_of(kafka, row_producer=client)
    ensure(cluster, [TopicSpec(fresh_name, 1)])
    first = cluster.make_transaction_producer(fresh_name)
    for number in range(3):
        first.begin_transaction()
        for value, key, headers in records(10 * number, 10):
            first.send(fresh_name, value, key=key, headers=list(headers), partition=0)
        first.commit_transaction()
    assert [record.value for record in records_of(cluster, fresh_name, read_committed=True)] == [b"%d" % n for n in range(30)]
    first.begin_transaction()
    first.send(fresh_name, b"lost", key=None, headers=[], partition=0)
    second = cluster.make_transaction_producer(fresh_name)
    with pytest.raises(KafkaError) as refusal:
        first.commit_transaction()
    assert is_fenced(refusal.value)
    second.begin_transaction()
    second.send(fresh_name, b"kept", key=None, headers=[], partition=0)
    second.commit_transaction()
    values = [record.value for record in records_of(cluster, fresh_name, read_committed=True)]
    assert values == [*(b"%d" % number for number in range(30)), b"kept"]
    for producer in (first, second):
        close_producer(producer, 0)


def test_a_broker_that_is_killed_in_mid_transaction_costs_and_repeats_nothing(
    client: ClientChoice, own_kafka: KafkaServer, fresh_name: str
) -> None:
    cluster, heard = cluster_of(own_kafka, row_producer=client), Heard()
    ensure(cluster, [TopicSpec(name, 1) for name in (fresh_name, f"{fresh_name}.out")])
    transactions = cluster.make_transaction_producer(fresh_name)
    with row_producer(cluster) as producer:
        transactions.begin_transaction()
        transactions.send(fresh_name, b"0", key=None, headers=[], partition=0)
        producer.send_all(f"{fresh_name}.out", records(0, 1), heard.store, heard.refuse)
        wait_until(lambda: heard.offsets, "the first is stored")
        own_kafka.kill()
        transactions.send(fresh_name, b"1", key=None, headers=[], partition=0)
        producer.send_all(f"{fresh_name}.out", records(1, 3), heard.store, heard.refuse)
        committed = threading.Thread(target=transactions.commit_transaction, daemon=True)
        committed.start()
        own_kafka.start()
        wait_until(lambda: len(heard.offsets) == 2 and not committed.is_alive(), "all is written")
    assert heard.offsets == [0, 3] and not heard.errors
    values = [record.value for record in records_of(cluster, fresh_name, read_committed=True)]
    assert values == [b"0", b"1"]
    assert [record.value for record in records_of(cluster, f"{fresh_name}.out")] == [b"0", b"1", b"2", b"3"]
    close_producer(transactions, 0)


def test_where_kafka_is_away_a_producer_of_transactions_is_not_made_and_rows_can_be_closed(client: ClientChoice) -> None:
    settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:9")}, row_producer=client)
    cluster, heard = Cluster("a", settings, "test"), Heard()
    with pytest.raises(KafkaError):
        cluster.make_transaction_producer("t")
    if client == "librdkafka":  # kafka-python's is not made either
        with row_producer(cluster) as producer:
            producer.send_all("t", records(0, 2), heard.store, heard.refuse)
        assert not heard.offsets


def test_logs_go_on_when_kafka_refuses_what_clients_read_if_another_client_writes_them(
    client: ClientChoice, kafka: KafkaServer, fresh_name: str
) -> None:
    """And those who begin later get other clients."""
    cluster, refused = cluster_of(kafka, row_producer=client), threading.Event()
    ensure(cluster, [TopicSpec(fresh_name, 1, {"max.message.bytes": "2000"}), TopicSpec(f"{fresh_name}.log", 1)])
    clients = LogClients({"a": cluster})
    [site] = clients.lease({fresh_name}).values()
    log = KafkaLog(LogId("all", "r0", 0), f"{fresh_name}.log", site)
    log.append(Boundary(Origin("r0", 1), 0, 1, False, 0, 0))

    def refuse(error: Exception) -> None:
        site.refuse_rows(AppendRefusedError(fresh_name, fresh_name, error))
        refused.set()

    site.row_producer.send_all(fresh_name, [(b"x" * 5_000, None, [])], lambda offset: None, refuse)
    assert refused.wait(60)
    assert site.row_refusal is not None and site.row_refusal.topic == fresh_name
    if client == "librdkafka":
        log.append(Boundary(Origin("r0", 1), 0, 2, False, 0, 0))
        assert log.end == 2
    else:
        with pytest.raises(AppendRefusedError, match=fresh_name):
            log.append(Boundary(Origin("r0", 1), 0, 2, False, 0, 0))
    [other] = clients.lease({"other"}).values()
    [own] = clients.lease({fresh_name}).values()
    assert len({id(each) for each in (site, other, own)}) == 3, "its writer cannot stop others again"
    for each in (site, other, own):
        clients.give_back([each])
    clients.close()
