"""The source's process on a real broker: rows in are rows in the logs, once, whatever is killed or cut off."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pyarrow.ipc
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, MessageSizeTooLargeError

from bench.warm_processes import AnyProcess, start_process
from boreal.model.frames import INFINITY, Boundary, Data, Start
from boreal.query.planner import plan
from boreal.query.spec import Query, load_query
from deployment.layout import Layout
from deployment.query_record import QueryRecord
from embedded.file_sources import read_source
from embedded.paced_sources import Pace
from formats.control_messages import trim_item
from logs.log import TrimmedError
from services.hosting.process import EXIT_FENCED
from services.kafka.clusters import Cluster, make_clusters
from services.kafka.queries import QueryRegistry
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.kafka.topics import STATUS, TopicSpec, control_topic, dead_letter_topic, ensure, query_topics, system_topics
from services.stack.feed import feed
from services.stack.servers import KafkaServer, free_port
from services.storage.kafka_log import KafkaLogStore
from sunion.tape import BEGINNING
from tests.thoroughness import every

SECONDS = 240.0
TOKEN = "the token of the source"


@dataclass
class Bench:
    """A broker with one query that is applied, and the sources that a test has started."""

    bootstrap: str
    name: str
    data: Path
    stream: dict[str, Any]
    reader: str
    shards: int = 1
    processes: list[AnyProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=self.bootstrap)}, data=self.data)
        self.home: Cluster = make_clusters(self.settings, "test")["a"]
        self.topic = f"in.{self.name}"
        spec = {
            "name": self.name,
            "streams": {"s": {"topic": self.topic, "time": "at", "schema": {"user": "string", "n": "int"}, **self.stream}},
            # Two edges: one by key, for the shards that count, one for what has no key.
            "operators": {
                "counted": {"aggregate": "s", "window": {"tumbling": "1s"}, "by": ["user"], "compute": {"rows": "count(*)"}},
            },
            "output": "counted",
            "delay_threshold": "3s",
            "replicas": 1,
            "shards": self.shards,
            "engine": "native",
            "tuning": {"history": "0s"},
        }
        self.query: Query = load_query(spec)
        self.layout = Layout(plan(self.query), ("a",))
        topics = [*system_topics(), *query_topics(self.layout)["a"], TopicSpec(self.topic, 2)]
        ensure(self.home, topics)
        QueryRegistry(self.home).put(QueryRecord(self.name, self.query.dump(), 1))
        self.producer: KafkaProducer = self.home.make_producer()

    @property
    def log_file(self) -> Path:
        return self.data / "source.log"

    def start(self, **environment: str) -> AnyProcess:
        """A source, running; it says what it does in `log_file`."""
        settings = {
            "BOREAL_SITES__A__BOOTSTRAP": self.bootstrap,
            "BOREAL_DATA": str(self.data),
            "BOREAL_TOPIC_READER": self.reader,
            **environment,
        }
        command = (sys.executable, "-m", "services.source", self.name, "s")
        self.processes.append(start_process(command, {**os.environ, **settings}, self.log_file))
        return self.processes[-1]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.producer.close(timeout=1)
        with suppress(KafkaError):
            QueryRegistry(self.home).delete(self.name)

    def send(self, first: int, count: int, partition: int = 0) -> None:
        """Rows numbered from `first` on, a millisecond apart."""
        for n in range(first, first + count):
            self.send_text(json.dumps(row(n)).encode(), partition)
        self.producer.flush()

    def send_text(self, value: bytes | None, partition: int = 0, headers: tuple[tuple[str, bytes], ...] = ()) -> None:
        self.producer.send(self.topic, value, key=b"any", partition=partition, headers=list(headers))

    def logs(self) -> list[list[Any]]:
        """The frames of each log of the stream, without fenced ones; ids are contiguous and no boundary is passed."""
        with closing(KafkaLogStore({"a": self.home}, self.layout)) as store:
            found = [store.open(log) for _, log in self.layout.source_logs("s")]
            frames = [[frame for _, frame in log.read(log.start, 1 << 30, skip_revoked=True)] for log in found]
        for log in frames:
            check(log)
        return frames

    def rows(self) -> list[int]:
        """The numbers of all rows in the logs, in their order (log by log)."""
        batches = [frame.batch for log in self.logs() for frame in log if isinstance(frame, Data)]
        return [n for batch in batches for n in batch.column("n").to_pylist()]

    def lives(self) -> int:
        """How often a source has begun."""
        return sum(isinstance(frame, Start) for frame in self.logs()[0])

    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.records(dead_letter_topic(self.name))]

    def status(self) -> dict[str, Any]:
        """The last that the source said of itself."""
        name = f"source.{self.name}.s"
        found = [json.loads(value) for value in self.records(STATUS, name.encode())]
        return found[-1] if found else {}

    def records(self, topic: str, key: bytes | None = None) -> list[bytes]:
        partition = TopicPartition(topic, 0)
        consumer: KafkaConsumer = self.home.make_consumer()
        with closing(consumer):
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            end = consumer.end_offsets([partition])[partition]
            found = []
            while consumer.position(partition) < end:
                for records in consumer.poll(timeout_ms=100).values():
                    found += [record.value for record in records if key in (None, record.key)]
        return found

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            said = self.log_file.read_text()[-4000:] if self.processes else ""
            assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}\n{said}"
            assert not [one for one in self.processes if one.poll() == 1], f"the source broke down: {said}"
            time.sleep(0.05)

    def wait_rows_or_end(self, count: int, process: AnyProcess) -> None:
        self.wait(lambda: process.poll() is not None or len(self.rows()) >= count, f"{count} rows, or the end")

    def wait_lives(self, count: int) -> None:
        self.wait(lambda: self.lives() >= count, f"life {count}")

    def wait_rows(self, count: int) -> None:
        self.wait(lambda: len(self.rows()) >= count, f"{count} rows")


def row(n: int) -> dict[str, Any]:
    return {"at": 1_000_000 + n, "user": f"u{n % 7}", "n": n}


def check(frames: list[Any]) -> None:
    next_id: int | None = None
    promise, life = BEGINNING, 0
    for frame in frames:
        assert frame.origin.incarnation >= life
        life = frame.origin.incarnation
        if isinstance(frame, Data):
            assert next_id is None or frame.first_id == next_id
            next_id = frame.first_id + frame.batch.num_rows
            assert frame.batch.column(0)[0].as_py() >= promise
        elif isinstance(frame, Boundary):
            assert frame.time >= promise
            promise = frame.time


@pytest.fixture
def reader() -> str:
    """The client that reads the user's topic."""
    return "kafka-python"


with_both_clients = pytest.mark.parametrize("reader", ["kafka-python", "librdkafka"])
"""Of a test of what the client does: reading, its place, and what its broker does to it."""
with_either_client = pytest.mark.parametrize("reader", every(2, ["kafka-python", "librdkafka"]))
"""The same, where each case takes seconds: with the other client in `make soak`."""


@pytest.fixture
def make_bench(kafka: KafkaServer, fresh_name: str, tmp_path: Path, reader: str) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(shards: int = 1, bootstrap: str | None = None, **stream: Any) -> Bench:
        made.append(Bench(bootstrap or kafka.bootstrap, fresh_name, tmp_path, stream, reader, shards))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@with_both_clients
def test_rows_in_are_rows_in_the_logs(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(shards=2)
    bench.start()
    bench.send(0, 1000)
    bench.wait_rows(1000)
    assert sorted(bench.rows()) == list(range(1000))
    assert len([log for log in bench.logs() if any(isinstance(frame, Data) for frame in log)]) == 2
    bench.wait(lambda: bench.status().get("rows") == 1000, "status")
    assert bench.status()["ready"] and bench.status()["last_boundary"] == "1970-01-01T00:16:40.999000Z"


@with_both_clients
def test_records_that_their_producer_has_compressed_are_read(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.start()
    for place, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
        producer = confluent_kafka.Producer({"bootstrap.servers": bench.bootstrap, "compression.type": codec})
        for n in range(1000 * place, 1000 * (place + 1)):
            producer.produce(bench.topic, json.dumps(row(n)), partition=0)
        assert producer.flush(SECONDS) == 0
        bench.wait_rows(1000 * (place + 1))
    assert bench.rows() == list(range(4000)) and not bench.letters()


@with_both_clients
def test_keys_headers_and_places_of_records_are_columns(make_bench: Callable[..., Bench]) -> None:
    schema = {
        "n": {"type": "int", "from": "header.number"},
        "user": {"type": "string", "from": "key"},
        "at": {"type": "timestamp", "from": "timestamp"},
        "partition": {"type": "int", "from": "partition"},
        "offset": {"type": "int", "from": "offset"},
        "total": {"type": "decimal(6, 2)", "path": "order.items[0].price"},
        "due": "date",
    }
    bench = make_bench(schema=schema, disorder="1h")
    bench.start()
    began_us = time.time() * 1e6
    value = b'{"order": {"items": [{"price": 19.90}]}, "due": "2013-01-31"}'
    for n in range(4):
        bench.send_text(value, n % 2, (("number", b"%d" % n),))
    bench.send_text(value, 0, (("number", b"many"),))
    bench.send_text(b"{", 0, (("number", b"5"),))
    bench.producer.flush()
    bench.wait_rows(4)
    bench.wait(lambda: len(bench.letters()) == 2, "letters")
    rows = [row for log in bench.logs() for frame in log if isinstance(frame, Data) for row in frame.batch.to_pylist()]
    found = [(row["n"], row["partition"], row["offset"], row["user"], row["total"], row["due"]) for row in rows]
    price, due = Decimal("19.90"), date(2013, 1, 31)
    assert sorted(found) == [(n, n % 2, n // 2, "any", price, due) for n in range(4)]
    assert all(row["time"] == round(row["at"].timestamp() * 1e6) > began_us - 1e6 for row in rows)
    assert [letter["reason"].partition(":")[0] for letter in bench.letters()] == ["column n", "not JSON"]


def test_stopping_is_a_matter_of_moments_and_the_next_life_goes_on(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    process = bench.start()
    bench.send(0, 10)
    bench.wait_rows(10)
    process.terminate()
    assert process.wait(timeout=10) == 0
    bench.send(10, 10)
    bench.start()
    bench.wait_rows(20)
    assert bench.rows() == list(range(20))
    assert bench.lives() == 2


# Crashes


@pytest.mark.parametrize(
    "failpoint",
    every(
        2,
        [
            *("source.letters_sent:2", "source.started"),
            *("source.announced:2", "source.between_announcements:2"),
            *("source.between_logs:3", "source.between_logs"),
        ],
    ),
)
@with_either_client
def test_a_source_that_is_killed_between_two_effects_loses_and_repeats_nothing(
    make_bench: Callable[..., Bench], failpoint: str
) -> None:
    bench = make_bench(shards=2)
    process = bench.start(BOREAL_FAILPOINT=failpoint)
    for first in range(0, 400, 100):
        bench.send_text(b"garbage %d" % first)
        bench.send(first, 100)
        if first < 200:
            bench.wait_rows_or_end(first + 100, process)
    assert process.wait(timeout=SECONDS) == -signal.SIGKILL
    bench.start()
    bench.wait_rows(400)
    bench.send(400, 10)
    bench.wait_rows(410)
    assert sorted(bench.rows()) == list(range(410))
    assert {letter["record"] for letter in bench.letters()} == {f"garbage {first}" for first in range(0, 400, 100)}


@with_either_client
def test_a_source_that_is_killed_at_any_time_loses_and_repeats_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(shards=2)
    bench.send(0, 1, partition=1)
    count = 0
    for lives in range(1, 5):
        process = bench.start()
        bench.wait_lives(lives)
        for _ in range(30):
            bench.send(count, 50)
            count += 50
            bench.send(count, 1, partition=1)
        process.kill()
        process.wait()
    bench.start()
    wanted = sorted([*range(count), *range(0, count + 50, 50)])
    bench.wait_rows(len(wanted))
    assert sorted(bench.rows()) == wanted and not bench.letters()


def test_a_second_source_fences_the_first(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    first = bench.start()
    bench.send(0, 10)
    bench.wait_rows(10)
    second = bench.start()
    bench.wait(lambda: first.poll() is not None, "the first one's end")
    assert first.poll() == EXIT_FENCED
    bench.send(10, 10)
    bench.wait(lambda: second.poll() == EXIT_FENCED or len(bench.rows()) == 20, "the second one's rows, or its end")
    if second.poll() == EXIT_FENCED:
        # They wrote at the same time, and neither could tell who came first.
        bench.start()
    bench.wait_rows(20)
    assert bench.rows() == list(range(20))


# Boundaries and dead letters


def boundaries(bench: Bench) -> list[int]:
    return [frame.time for frame in bench.logs()[0] if isinstance(frame, Boundary)]


def test_an_idle_stream_has_boundaries_as_it_has_no_rows(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.start()
    bench.wait(lambda: len(boundaries(bench)) > 5, "boundaries")
    assert set(boundaries(bench)) == {BEGINNING}
    bench.send(0, 10)
    bench.wait_rows(10)
    count = len(boundaries(bench))
    started = time.monotonic()
    bench.wait(lambda: len(boundaries(bench)) >= count + 20, "boundaries of a stream that has become idle")
    assert boundaries(bench)[-1] == 1_000_009_000
    assert time.monotonic() - started < 20 * 10 * bench.layout.plan.boundary_interval_us / 1e6 + 5


@with_both_clients
def test_garbage_and_late_rows_go_to_the_dead_letters_and_cost_others_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(disorder="100ms")
    bench.send(1000, 100)
    bench.send_text(b'{"at": 1000000, "user": "late"}')
    bench.send_text(b"\xff\xfe")
    bench.send_text(None)
    bench.send_text(b"{}", headers=(("boundary", b"whenever"),))
    bench.send(1100, 100)
    bench.start()
    bench.wait(lambda: len(bench.letters()) >= 4, "dead letters")
    bench.wait_rows(200)
    assert bench.rows() == list(range(1000, 1200))
    common = {"source": "s", "topic": bench.topic, "partition": 0}
    late = "late by 1s99ms, disorder allows 100ms"
    assert bench.letters() == [
        {**common, "offset": 100, "reason": late, "record": '{"at": 1000000, "user": "late"}'},
        {**common, "offset": 101, "reason": "not UTF-8", "record": "\\xff\\xfe", "base64": "//4="},
        {**common, "offset": 102, "reason": "no value", "record": ""},
        {**common, "offset": 103, "reason": "header boundary: 'whenever' is neither a time nor 'end'", "record": "{}"},
    ]
    bench.wait(lambda: bench.status().get("dlq") == 4, "status")


@with_both_clients
def test_records_of_arrow_are_rows_or_dead_letters_as_a_whole(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(format="arrow", disorder="100ms")

    def arrow(*numbers: int) -> bytes:
        table = pa.Table.from_pylist([row(n) for n in numbers])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return sink.getvalue().to_pybytes()

    for first in range(0, 1000, 10):
        bench.send_text(arrow(*range(first, first + 10)))
    half_late = arrow(1000, 10)
    for value in (half_late, b"garbage", arrow(1000, 1001), arrow(1002)):
        bench.send_text(value)
    bench.producer.flush()
    bench.start()
    bench.wait(lambda: len(bench.letters()) >= 2, "dead letters")
    bench.wait_rows(1003)
    assert bench.rows() == list(range(1003))
    late, garbage = bench.letters()
    assert (late["offset"], late["reason"]) == (100, "late by 989ms, disorder allows 100ms")
    assert b64decode(late["base64"]) == half_late
    assert garbage["offset"] == 101 and garbage["reason"].startswith("not an Arrow IPC stream: ")


def test_late_rows_are_clamped_where_the_stream_asks_for_it(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(disorder="100ms", late="clamp")
    bench.send(1000, 100)
    bench.send_text(b'{"at": 1000000, "n": 7}')
    bench.start()
    bench.wait_rows(101)
    [times] = {
        tuple(time for frame in log if isinstance(frame, Data) for time in frame.batch.column("time").to_pylist())
        for log in bench.logs()
    }
    assert sorted(times)[:2] == [1_000_999_000, 1_001_000_000] and len(times) == 101
    bench.wait(lambda: bench.status().get("clamped") == 1, "status")
    assert not bench.letters() and bench.status()["dlq"] == 0


@with_both_clients
def test_heartbeat_records_are_the_boundary_and_end_is_the_end(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(boundary="producer")
    bench.start()
    bench.send(0, 10)
    bench.wait_rows(10)
    assert set(boundaries(bench)) == {BEGINNING}
    bench.send_text(b"", headers=(("boundary", b"1970-01-01T00:10:00Z"),))
    bench.wait(lambda: boundaries(bench)[-1] == 600_000_000, "the boundary")
    for partition in (0, 1):
        bench.send_text(b"", partition, (("boundary", b"end"),))
    bench.wait(lambda: boundaries(bench)[-1] == INFINITY, "the end")
    bench.wait(lambda: bench.status().get("last_boundary") == "end", "status")


@with_both_clients
def test_the_clock_is_the_boundary_also_after_a_transaction(make_bench: Callable[..., Bench]) -> None:
    """A transaction ends with a record that no reader sees, and whose offset is passed all the same."""
    bench = make_bench(boundary="clock", disorder="1s")
    bench.start()
    bench.wait(lambda: boundaries(bench)[-1:] != [] and boundaries(bench)[-1] > (time.time() - 5) * 1e6, "the clock")
    with closing(bench.home.make_producer(transactional_id=bench.name)) as producer:
        producer.init_transactions()
        for n, end in enumerate((producer.abort_transaction, producer.commit_transaction)):
            producer.begin_transaction()
            at_ms = int(time.time() * 1000) + 40_000  # ahead, so that it is not late however long the transaction takes
            producer.send(bench.topic, json.dumps({"at": at_ms, "n": n}).encode(), partition=0)
            end()
    bench.wait_rows(1)
    sent = time.time() * 1e6
    bench.wait(lambda: boundaries(bench)[-1] > sent, "the clock goes on")
    assert bench.rows() == [1] and not bench.letters()


# Time as real producers have it


def now_us() -> int:
    return time.time_ns() // 1_000


def send_now(bench: Bench, n: int, partition: int = 0, ahead_s: float = 0.0) -> None:
    """A row of the time that it is."""
    bench.send_text(json.dumps({"at": now_us() // 1_000 + round(ahead_s * 1_000), "n": n}).encode(), partition)
    bench.producer.flush()


def test_a_row_an_hour_ahead_costs_its_stream_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.start()
    for n in range(40):
        send_now(bench, n, ahead_s=3_600 if n == 20 else 0)
        time.sleep(0.01)
    bench.wait_rows(39)
    assert bench.rows() == [n for n in range(40) if n != 20]
    bench.wait(lambda: bench.status().get("ahead") == 1, "status")
    [letter] = bench.letters()
    assert letter["offset"] == 20 and "ahead of the clock and its stream, ahead allows 1m" in letter["reason"]
    assert boundaries(bench)[-1] < now_us() and bench.status()["dlq"] == 1


@with_either_client
def test_a_quiet_partition_follows_the_other_and_a_quiet_topic_the_clock(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(idle="2s")
    bench.start()
    send_now(bench, 0, 0)
    send_now(bench, 1, 1)
    bench.wait_rows(2)
    quiet_since, n = now_us(), 2
    while boundaries(bench)[-1] < quiet_since:
        assert now_us() < quiet_since + SECONDS * 1e6, "partition 1 holds back partition 0 for ever"
        send_now(bench, n, 0)
        n += 1
        time.sleep(0.1)
    assert now_us() > quiet_since + 1_500_000
    bench.wait(lambda: bench.status().get("idle_partitions") == [1], "status")
    over = now_us()
    bench.wait(lambda: boundaries(bench)[-1] > over, "the clock")
    bench.wait(lambda: bench.status()["state"] == "idle", "status")
    bench.wait(lambda: bench.status()["idle_partitions"] == [0, 1], "both partitions are idle")
    assert bench.status()["ready"]
    send_now(bench, n, 1)
    bench.wait_rows(n + 1)
    assert not bench.letters()
    bench.wait(lambda: bench.status()["state"] == "live", "status")


@pytest.mark.parametrize(
    ("reader", "boundary"),
    every(4, [("librdkafka", "clock"), ("kafka-python", "data"), ("kafka-python", "clock"), ("librdkafka", "data")]),
)
def test_what_producers_could_not_send_to_a_frozen_broker_is_not_late(
    own_kafka: KafkaServer, make_bench: Callable[..., Bench], boundary: str
) -> None:
    bench = make_bench(bootstrap=own_kafka.bootstrap, boundary=boundary, idle="2s", disorder="500ms")
    bench.start()
    for n in range(10):
        send_now(bench, n)
    bench.wait_rows(10)
    bench.wait(lambda: boundaries(bench)[-1] > BEGINNING, "a boundary")
    own_kafka.pause()
    for n in range(10, 40):
        at_ms = now_us() // 1_000
        bench.send_text(json.dumps({"at": at_ms, "n": n}).encode())
        time.sleep(0.1)
    own_kafka.resume()
    bench.wait_rows(40)
    assert bench.rows() == list(range(40)) and not bench.letters()
    resumed = now_us()
    bench.wait(lambda: boundaries(bench)[-1] > resumed, "the clock goes on")


def test_what_kafka_refuses_for_good_ends_the_process_and_the_next_life_goes_on(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    process = bench.start()
    bench.send(0, 10)
    bench.wait_rows(10)
    topics = {bench.layout.topic_of(log) for _, log in bench.layout.source_logs("s")}

    def allow(bytes_max: str) -> None:
        with closing(bench.home.make_admin()) as admin:
            change = {"max.message.bytes": bytes_max}
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, change) for topic in sorted(topics)])

    allow("50")
    assert process.wait(timeout=SECONDS) == 1
    assert "Kafka rejects a frame appended" in bench.log_file.read_text()
    bench.processes.remove(process)
    allow(str(64 << 20))
    bench.start()
    bench.send(10, 10)
    bench.wait_rows(20)
    assert bench.rows() == list(range(20))


# Trimming


def test_logs_are_trimmed_when_nobody_needs_them_and_a_new_life_finds_its_place(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    process = bench.start()
    for first in range(0, 100, 10):
        bench.send(first, 10)
        bench.wait_rows(first + 10)
    (_, log_id), *_ = bench.layout.source_logs("s")
    item = json.dumps({"v": 1, "sender": "monitor", "items": [trim_item({log_id.key: 50})]}).encode()

    def is_trimmed() -> bool:
        bench.producer.send(control_topic(bench.name), item, partition=0)
        try:
            return bench.rows()[0] > 0
        except TrimmedError:
            return False  # just now, while we read

    bench.wait(is_trimmed, "a trim")
    assert bench.rows()[-50:] == list(range(50, 100))
    process.kill()
    process.wait()
    bench.send(100, 10)
    bench.start()
    bench.wait(lambda: bench.rows()[-1] == 109, "the rows of the next life")
    assert bench.rows()[-60:] == list(range(50, 110))


@with_either_client
def test_records_that_retention_took_are_told_of(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    process = bench.start()
    bench.send(0, 10)
    bench.wait_rows(10)
    process.terminate()
    process.wait(timeout=10)
    bench.send(10, 10)
    with closing(bench.home.make_admin()) as admin:
        admin.delete_records({TopicPartition(bench.topic, 0): 15})
    bench.start()
    bench.wait_rows(15)
    assert bench.rows() == [*range(10), *range(15, 20)]
    assert "the records between are lost" in bench.log_file.read_text()
    bench.wait(lambda: bench.status().get("lost_records") == 5, "status")


@with_either_client
def test_a_topic_that_was_made_anew_while_the_source_was_away_is_read_from_its_beginning(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    process = bench.start()
    bench.send(0, 10)
    bench.wait_rows(10)
    process.kill()
    process.wait()
    with closing(bench.home.make_admin()) as admin:
        admin.delete_topics([bench.topic])
        bench.wait(lambda: bench.topic not in admin.list_topics(), "the topic to go")
    ensure(bench.home, [TopicSpec(bench.topic, 2)])
    bench.producer.close(timeout=1)
    bench.producer = bench.home.make_producer()
    bench.start()
    bench.wait_lives(2)
    bench.send(10, 5)
    bench.wait_rows(15)
    assert bench.rows() == list(range(15))
    assert "reading continues at 0" in bench.log_file.read_text()


@with_either_client
def test_while_its_topic_does_not_exist_a_source_is_not_ready(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    with closing(bench.home.make_admin()) as admin:
        admin.delete_topics([bench.topic])
        bench.wait(lambda: bench.topic not in admin.list_topics(), "the topic to go")
    bench.start()
    bench.wait(lambda: f"topic {bench.topic} does not exist" in bench.log_file.read_text(), "a look for the topic")
    bench.wait(lambda: bench.status().get("state") == "failed", "status")
    assert bench.status()["ready"] is False
    ensure(bench.home, [TopicSpec(bench.topic, 2)])
    bench.wait(lambda: bench.status()["ready"] and bench.status()["state"] == "idle", "status once it begins")


# Posting, and outages


@dataclass
class Posted:
    status: int
    answer: dict[str, Any]


def post(bench: Bench, port: int, body: bytes, kind: str = "application/json") -> Posted:
    headers = {"content-type": kind, "authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{bench.name}/s/tuples", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return Posted(response.status, json.load(response))
    except urllib.error.HTTPError as error:
        with error:
            return Posted(error.code, json.load(error))


def is_open(bench: Bench, port: int) -> bool:
    try:
        return post(bench, port, b"[]").status == 202
    except urllib.error.URLError:
        return False


def test_rows_may_be_posted_in_every_shape(make_bench: Callable[..., Bench]) -> None:
    import pyarrow as pa

    bench, port = make_bench(), free_port()
    bench.start(BOREAL_HTTP_PORT=str(port), BOREAL_HTTP_TOKEN=TOKEN)
    bench.wait(lambda: is_open(bench, port), "the port")
    assert post(bench, port, json.dumps(row(0)).encode()).answer["accepted"] == 1
    bench.wait_rows(1)  # The source knows Kafka now: making its producer may take longer than a post may wait.
    assert post(bench, port, json.dumps(row(1)).encode()) == Posted(202, {"accepted": 1, "refused": 0, "durable": "kafka"})
    refused = post(bench, port, json.dumps([row(2), {"at": "noon"}, 7, row(3)]).encode())
    reasons = [{"row": 1, "reason": "column at: 'noon' is not a time"}, {"row": 2, "reason": "not a JSON object"}]
    assert refused == Posted(202, {"accepted": 2, "refused": 2, "reasons": reasons, "durable": "kafka"})
    lines = b"\n".join(json.dumps(row(n)).encode() for n in (4, 5)) + b"\n\n{\n"
    assert post(bench, port, lines, "application/x-ndjson").answer["accepted"] == 2
    sink = pa.BufferOutputStream()
    table = pa.table({"at": pa.array([1_000_006], pa.timestamp("ms")), "user": ["x"], "n": [6]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert post(bench, port, sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream").answer["accepted"] == 1
    assert post(bench, port, b"{").status == 422
    assert post(bench, port, b" " * (17 << 20)).status == 413
    bench.wait_rows(7)
    assert bench.rows() == list(range(7)) and not bench.letters()


def test_what_is_posted_while_the_broker_is_down_is_spooled_and_drained_in_order_and_too_large_rows_are_dead_letters(
    own_kafka: KafkaServer, make_bench: Callable[..., Bench]
) -> None:
    bench, port = make_bench(bootstrap=own_kafka.bootstrap), free_port()
    with closing(bench.home.make_admin()) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, bench.topic, {"max.message.bytes": "1000"})])
    process = bench.start(BOREAL_HTTP_PORT=str(port), BOREAL_HTTP_TOKEN=TOKEN)
    bench.wait(lambda: is_open(bench, port), "the port")
    assert post(bench, port, json.dumps([row(0)]).encode()).status == 202
    bench.wait_rows(1)
    large = {"user": "u" * 5_000}
    assert post(bench, port, json.dumps([{**row(1), **large}]).encode()).status == 503
    assert post(bench, port, json.dumps([row(1)]).encode()).answer["durable"] == "kafka"
    bench.wait_rows(2)
    own_kafka.kill()
    for first in (2, 5):
        found = [row(first), {**row(first + 1), **large}, row(first + 2)]
        assert post(bench, port, json.dumps(found).encode()).answer["durable"] == "spool"
    own_kafka.start()

    def refused() -> set[int]:
        return {json.loads(letter["record"])["n"] for letter in bench.letters()}

    bench.wait(lambda: {3, 6} <= refused(), "the dead letters")
    bench.wait(lambda: bench.status().get("spooled_bytes") == 0 and bench.status()["state"] != "spooling", "status")
    letters = bench.letters()
    bench.wait(lambda: bench.status()["dlq"] == len(letters), "the count of dead letters")
    assert all(letter["offset"] == -1 and letter["reason"].startswith("too large") for letter in letters)
    assert post(bench, port, json.dumps([row(8)]).encode()).answer["durable"] == "kafka"
    expected = sorted({*range(9)} - refused())
    bench.wait_rows(len(expected))
    assert bench.rows() == expected and process.poll() is None


@pytest.mark.soak
def test_a_full_spool_refuses_what_is_posted_and_what_is_left_in_it_comes_first_in_the_next_life(
    own_kafka: KafkaServer, make_bench: Callable[..., Bench]
) -> None:
    bench, port = make_bench(bootstrap=own_kafka.bootstrap), free_port()
    variables = {"BOREAL_HTTP_PORT": str(port), "BOREAL_HTTP_TOKEN": TOKEN, "BOREAL_SPOOL_BYTES": "100KB"}
    process = bench.start(**variables)
    bench.wait(lambda: is_open(bench, port), "the port")
    own_kafka.kill()
    count = 0
    while (posted := post(bench, port, json.dumps([row(n) for n in range(count, count + 100)]).encode())).status == 202:
        assert posted.answer["durable"] == "spool"
        count += 100
    assert posted.status == 503 and "the spool is full (100000 bytes)" in posted.answer["detail"]
    assert "the spool is full" in bench.log_file.read_text()
    process.kill()
    process.wait()
    own_kafka.start()
    bench.start(**variables)
    bench.wait(lambda: is_open(bench, port), "the port")
    bench.wait(lambda: post(bench, port, json.dumps(row(count)).encode()).status == 202, "room in the spool")
    bench.wait_rows(count + 1)
    assert bench.rows() == list(range(count + 1)) and not bench.letters()


def test_a_source_whose_spool_is_damaged_goes_on_without_it(make_bench: Callable[..., Bench]) -> None:
    bench, port = make_bench(), free_port()
    spool = bench.data / "spool" / bench.name / "s"
    spool.mkdir(parents=True)
    (spool / f"{0:020d}.log").write_bytes(b"no segment" * 100)
    bench.start(BOREAL_HTTP_PORT=str(port), BOREAL_HTTP_TOKEN=TOKEN)
    bench.send(0, 10)
    bench.wait_rows(10)
    assert bench.rows() == list(range(10)) and not is_open(bench, port)
    assert f"the spool in {spool} cannot be opened" in bench.log_file.read_text()


@with_either_client
def test_a_source_whose_broker_freezes_goes_on_where_it_was(own_kafka: KafkaServer, make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(bootstrap=own_kafka.bootstrap, shards=2)
    process = bench.start()
    for n in range(0, 500, 50):
        bench.send(n, 50)
    bench.wait_rows(1)
    own_kafka.pause()
    time.sleep(4)
    own_kafka.resume()
    bench.send(500, 100)
    bench.wait_rows(600)
    assert sorted(bench.rows()) == list(range(600)) and process.poll() is None


# Feeding


def test_a_file_that_is_fed_is_in_the_logs_and_ended(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench()
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(2000)))
    bench.start()
    stream = bench.query.streams["s"]
    seen: list[int] = []
    rows = {"s": read_source("s", stream, str(path))}
    assert feed({"s": bench.home}, {"s": stream}, rows, Pace(rate=2000), ended=True, on_progress=seen.append) == 2000
    assert seen == sorted(seen) and seen[-1] == 2000 and len(set(seen)) > 2
    bench.wait_rows(2000)
    assert sorted(bench.rows()) == list(range(2000)) and not bench.letters()
    bench.wait(lambda: boundaries(bench)[-1] == INFINITY, "the end")


@pytest.mark.parametrize("lengths", [(5_000,), (1, 5_000, 1)])
def test_a_row_that_kafka_refuses_is_not_said_to_be_fed(
    make_bench: Callable[..., Bench], tmp_path: Path, lengths: tuple[int, ...]
) -> None:
    bench = make_bench()
    with closing(bench.home.make_admin()) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, bench.topic, {"max.message.bytes": "1000"})])
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row(n), "user": "u" * length}) + "\n" for n, length in enumerate(lengths)))
    stream = bench.query.streams["s"]
    with pytest.raises(MessageSizeTooLargeError):
        feed({"s": bench.home}, {"s": stream}, {"s": read_source("s", stream, str(path))}, Pace(rate=2000))
