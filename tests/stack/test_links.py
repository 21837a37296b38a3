"""Links between a process and its broker: cut, they are black holes; healed, nothing is lost. Real clients, a real broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from services.kafka import clusters
from services.kafka.clusters import Cluster
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.kafka.topics import TopicSpec, ensure
from services.stack.links import ProxyLink
from services.stack.servers import KafkaServer
from services.storage.log_partition import LogPartition, make_log_consumer
from tests.stack.logs import LOG, Topic, cluster_of, data

CUT_S = 2.0
LOOK_S = 0.5
"""How long nothing must come through a link that is cut."""


class Echo:
    """A server that sends back what it is sent, on connections that it counts."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,)).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                pass

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self._thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as server:
        yield server


@pytest.fixture
def link() -> Iterator[ProxyLink]:
    with ProxyLink() as made:
        yield made


def dial(link: ProxyLink, port: int) -> socket.socket:
    """A connection to a local port through the link."""
    connection = socket.create_connection(("127.0.0.1", link.port), 5)
    try:
        connection.sendall(b"\x05\x01\x00")
        assert receive(connection, 2) == b"\x05\x00"
        connection.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2))
        answer = receive(connection, 10)
        if answer[1]:
            raise ConnectionRefusedError(answer[1])
    except BaseException:
        connection.close()
        raise
    return connection


def receive(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        more = connection.recv(size - len(got))
        if not more:
            raise ConnectionAbortedError
        got += more
    return got


def test_what_is_sent_arrives(link: ProxyLink, echo: Echo) -> None:
    sent = bytes(range(256)) * 4096
    with dial(link, echo.port) as connection:
        threading.Thread(target=connection.sendall, args=(sent,)).start()
        assert receive(connection, len(sent)) == sent


def assert_comes_once_healed(link: ProxyLink, connection: socket.socket) -> None:
    """What is sent over a cut link: not before, and whole."""
    connection.sendall(b"late")
    connection.settimeout(LOOK_S)
    with pytest.raises(TimeoutError):
        connection.recv(4)
    link.heal()
    connection.settimeout(5)
    assert receive(connection, 4) == b"late"


def test_a_cut_link_holds_all_back_and_gives_it_once_healed(link: ProxyLink, echo: Echo) -> None:
    with dial(link, echo.port) as connection:
        link.cut()
        assert_comes_once_healed(link, connection)


def test_a_new_connection_hangs_while_the_link_is_cut(link: ProxyLink, echo: Echo) -> None:
    """Beyond the link, that is: a client that is kept waiting for the link itself asks again and again, without a rest."""
    link.cut()
    with dial(link, echo.port) as connection:
        assert_comes_once_healed(link, connection)


def test_a_connection_made_while_the_link_is_cut_ends_where_nobody_listens(link: ProxyLink) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    link.cut()
    with dial(link, port) as connection:
        link.heal()
        connection.settimeout(5)
        assert connection.recv(1) == b""


def test_a_reset_link_breaks_connections_and_refuses_new_ones(link: ProxyLink, echo: Echo) -> None:
    with dial(link, echo.port) as connection:
        link.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        dial(link, echo.port)
    link.heal()
    with dial(link, echo.port) as connection:
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"


def test_a_link_that_is_cut_can_still_be_reset(link: ProxyLink, echo: Echo) -> None:
    with dial(link, echo.port) as connection:
        link.cut()
        connection.sendall(b"never")
        link.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_slow_link_delays_each_way(link: ProxyLink, echo: Echo) -> None:
    with dial(link, echo.port) as connection:

        def there_and_back_s() -> float:
            begun = time.monotonic()
            connection.sendall(b"x")
            receive(connection, 1)
            return time.monotonic() - begun

        link.slow(0.2)
        assert there_and_back_s() >= 0.4
        link.heal()
        assert any(there_and_back_s() < 0.2 for _ in range(10)), "not in any of ten tries: others may have the machine in one"


def test_a_port_that_nobody_listens_on_is_refused(link: ProxyLink) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        dial(link, port)


def test_a_peer_that_ends_ends_the_connection(link: ProxyLink, echo: Echo) -> None:
    with dial(link, echo.port) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_kafka_clients_lose_nothing_over_a_cut(link: ProxyLink, kafka: KafkaServer, fresh_name: str) -> None:
    """Producer and consumer both speak through the link; what was sent before, during and after arrives once, in order."""
    sites = {"a": KafkaSettings(bootstrap=kafka.bootstrap)}
    near = Cluster("a", ServiceSettings(sites=sites), "test")
    cut_off = Cluster("a", ServiceSettings(sites=sites, proxies={"a": link.url}), "test")
    ensure(near, [TopicSpec(fresh_name, 1)])
    partition = TopicPartition(fresh_name, 0)
    producer: KafkaProducer
    consumer: KafkaConsumer
    with (
        closing(cut_off.make_producer()) as producer,
        closing(cut_off.make_consumer()) as consumer,
        closing(near.make_consumer()) as beside,
    ):
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        beside.assign([partition])

        def send(numbers: range) -> None:
            for number in numbers:
                producer.send(fresh_name, b"%d" % number, partition=0)

        def receive_all(until: int) -> list[int]:
            got: list[int] = []
            deadline = time.monotonic() + 30
            while len(got) < until and time.monotonic() < deadline:
                got += [int(record.value) for record in consumer.poll(timeout_ms=200).get(partition, [])]
            return got

        send(range(100))
        assert receive_all(100) == list(range(100))
        link.cut()
        begun = time.monotonic()
        before = beside.end_offsets([partition])[partition]
        send(range(100, 200))
        while time.monotonic() - begun < CUT_S:
            assert not consumer.poll(timeout_ms=100)
        assert beside.end_offsets([partition])[partition] == before, "something got through"
        link.heal()
        send(range(200, 300))
        assert receive_all(200) == list(range(100, 300))
        producer.flush(10)
        assert beside.end_offsets([partition])[partition] == 300


def test_a_log_is_read_through_a_link_that_takes_longer_for_a_fetch_than_a_request_may(
    kafka: KafkaServer, link: ProxyLink, fresh_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [data(40_000 * n, 40_000) for n in range(4)]
    Topic(cluster_of(kafka), fresh_name).put_frames(frames)
    monkeypatch.setattr(clusters, "REQUEST_TIMEOUT_MS", 1_000)
    settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)}, proxies={"a": link.url})
    with closing(make_log_consumer(Cluster("a", settings, "test"))) as consumer:
        partition = LogPartition(LOG, fresh_name, consumer)
        assert partition.bounds() == (0, len(frames))
        link.narrow(700_000)
        found = [record for records in partition.read(0, len(frames)) for record in records]
    assert [partition.frame(record) for record in found] == frames
