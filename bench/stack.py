"""`boreal bench stack`: the services over a real broker and a real Redis, all on this machine's cores.

Each figure has a separate deployment, so that none influences the next. Broker, Redis, services, the generator of input and the
reader of output share the cores, and the figures include the work of all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import confluent_kafka
import numpy as np
import psutil
import pyarrow as pa

from bench.deployment import Deployment, KafkaFeeder, wait_until
from bench.figures import Figure, as_report
from bench.processor_time import processor_time
from boreal.model.frames import INFINITY, Boundary, Data, LogId, Origin, Start
from logs.checkpoints import Checkpoint
from services.hosting.process import now_us
from services.kafka.settings import RedisSettings
from services.kafka.topics import out_topic, stable_topic
from services.stack.feed import end
from services.stack.servers import RedisServer
from services.storage.kafka_log import KafkaLogStore
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from sunion.buckets import bucket_end

FRAME_ROWS = 8_192
FRAMES = 1_200
JSON_RECORDS, JSON_BATCH = 3_000_000, 100_000
FIRST_US = 1_700_000_000_000_000
CLIENTS = {"librdkafka": 250_000.0, "kafka-python": 120_000.0}
LATENCY_S = 20.0
DEATHS = 8
BROKER_WARM_UP_S = 20.0
"""Kafka's JVM is slow until it has compiled its most used code."""
WARM_UP_S = 5.0
ISOLATION_S = 15.0
HEARTBEAT_MS = 100
CHECKPOINT_MB = 100

STREAMS = ("one", "two", "three")
SCHEMA = {"key": "int", "value": "double"}

_Headers = list[tuple[str, bytes]]
Arrival = tuple[float, bytes, dict[str, bytes]]
"""When a record came, in ms since the epoch, its value, and its headers."""

_IN_BULK = {"linger.ms": 20, "batch.size": 1 << 20, "queue.buffering.max.messages": 1 << 20, "log_level": 0}
_AS_IT_GROWS = {"group.id": "bench", "enable.auto.commit": False, "isolation.level": "read_committed", "log_level": 0}


def main() -> dict[str, Any]:
    """Measure all, and return the report."""
    figures = [
        *_throughput(replicas=1),
        *_throughput(replicas=2),
        *_json(),
        *_latency(),
        *isolation(),
        *_death(),
        *_up(),
        *_checkpoint(),
    ]
    return as_report("stack", figures)


def make_query(name: str, **options: Any) -> dict[str, Any]:
    """A query over three streams that counts and sums rows per key and second."""
    return {
        "name": name,
        "streams": {stream: _stream(stream) for stream in STREAMS},
        "operators": {
            "all": {"union": list(STREAMS)},
            "counted": {
                "aggregate": "all",
                "window": {"tumbling": "1s"},
                "by": ["key"],
                "compute": {"rows": "count(*)", "total": "sum(value)"},
            },
        },
        "output": "counted",
        "delay_threshold": "3s",
        "replicas": 1,
        "engine": "native",
        **options,
    }


def _stream(name: str) -> dict[str, Any]:
    return {"topic": f"in.{name}", "time": "at", "time_unit": "us", "schema": SCHEMA}


@contextmanager
def deployed(query: dict[str, Any], has_links: bool = False, **options: Any) -> Iterator[Deployment]:
    """A ready deployment, by default without links: they would all run in this process."""
    options["has_links"] = has_links
    with tempfile.TemporaryDirectory() as folder, Deployment(Path(folder), query, **options) as deployment:
        deployment.wait_ready()
        yield deployment


def _throughput(replicas: int) -> list[Figure]:
    """Frames as a source writes them, made beforehand: from the first append to the last row in q.stable."""
    with deployed(make_query("frames", replicas=replicas), without=("source",)) as deployment:
        store = KafkaLogStore(deployment.clusters, deployment.layout)
        logs = {stream: store.open(LogId(stream, "", 0)) for stream in STREAMS}
        rows = FRAME_ROWS * FRAMES
        keys = 1_000
        origin = Origin("", 1)
        bucket_us = deployment.layout.plan.bucket_us
        rng = np.random.default_rng(0)
        per_stream = FRAMES // len(STREAMS)
        step_us = 10
        for log in logs.values():
            log.append_later(Start(origin, 0))
        prepared = []
        for number in range(per_stream):
            for stream in STREAMS:
                first = number * FRAME_ROWS
                times = (first + np.arange(FRAME_ROWS)) * step_us
                columns = [pa.array(times), pa.array(rng.integers(0, keys, FRAME_ROWS)), pa.array(rng.random(FRAME_ROWS))]
                batch = pa.RecordBatch.from_arrays(columns, names=["time", *SCHEMA])
                prepared.append((stream, first, batch, int(times[-1])))
        windows = (per_stream * FRAME_ROWS * step_us + 999_999) // 1_000_000
        expected = windows * keys
        started = time.perf_counter()
        for stream, first, batch, last in prepared:
            now = now_us()
            t_max = bucket_end(last, bucket_us)
            logs[stream].append_later(Data(origin, 0, first, batch, False, ((INFINITY, now),), t_max))
            logs[stream].append_later(Boundary(origin, 0, last, False, now, now))
        for log in logs.values():
            now = now_us()
            log.append_later(Boundary(origin, 0, INFINITY, False, now, now))
        _await_rows(deployment, expected)
        seconds = time.perf_counter() - started
        store.close()
    target = 1_000_000 if replicas == 1 else None
    return [Figure(f"frames to q.stable, {replicas} replica(s)", rows / seconds, "tuples/s", target)]


def _await_rows(deployment: Deployment, expected: int) -> None:
    """Until q.stable holds so many rows, read as they come."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": deployment.kafka["a"].bootstrap, **_AS_IT_GROWS})
    consumer.assign([confluent_kafka.TopicPartition(stable_topic(deployment.spec.name), 0, 0)])
    found, deadline = 0, time.monotonic() + 180
    while found < expected:
        assert time.monotonic() < deadline, f"{found} of {expected} rows\n{deployment.explain()}"
        found += sum(message.error() is None for message in consumer.consume(10_000, timeout=0.1))
    consumer.close()


def _json() -> list[Figure]:
    """JSON records that are in the topics before the sources start; of ten records comes one row. Sources read, and the egress
    writes, with either client."""
    return [figure for client, target in CLIENTS.items() for figure in _json_by(client, target)]


def record_value(number: int) -> bytes:
    """The record of this number."""
    return b'{"at":%d,"key":%d,"value":%.3f}' % (FIRST_US + number * 100, number % 1_000, number * 0.5)


def _json_by(client: str, target: float) -> list[Figure]:
    query = make_query("records")
    with deployed(query, without=("source", "egress")) as deployment:
        for child in deployment.children:
            if child.kind == "egress":
                deployment.add(child, BOREAL_ROW_PRODUCER=client)
        deployment.wait_ready()
        producer = confluent_kafka.Producer({"bootstrap.servers": deployment.kafka["a"].bootstrap, **_IN_BULK})
        for number in range(JSON_RECORDS):
            producer.produce(f"in.{STREAMS[number % len(STREAMS)]}", record_value(number), partition=0)
            if number % JSON_BATCH == 0:
                producer.flush()
        producer.flush()
        for stream in STREAMS:
            end(deployment.clusters["a"], f"in.{stream}")
        windows = (JSON_RECORDS - 1) * 100 // 1_000_000 + 1
        for child in deployment.children:
            if child.kind == "source":
                deployment.add(child, BOREAL_TOPIC_READER=client)
        started = time.perf_counter()
        _await_rows(deployment, windows * 1_000)
        seconds = time.perf_counter() - started
        cpu_s = _processor_s(deployment, "source")
        egress_s = _processor_s(deployment, "egress")
    return [
        Figure(f"JSON records to q.stable, by {client}, sources' start included", JSON_RECORDS / seconds, "tuples/s", target),
        Figure(f"sources' processor time a tuple, by {client}, their start included", cpu_s / JSON_RECORDS * 1e6, "us"),
        Figure(f"the egress's processor time a row, by {client}, its start included", egress_s / (windows * 1_000) * 1e6, "us"),
    ]


def _processor_s(deployment: Deployment, *kinds: str) -> float:
    """The processor time that processes of these kinds (default: all) have taken so far."""
    pids = [service.pid for name, service in deployment.services.items() if not kinds or name.partition(".")[0] in kinds]
    return sum(processor_time(psutil.Process(pid)) for pid in pids)


def _latency() -> list[Figure]:
    """From ingest to a reader of q.out, and of q.stable: 10,000 tuples per second, 10 ms buckets, one tuple in ten passes."""
    query = make_query(
        "latency",
        streams={"one": _stream("one")},
        operators={"kept": {"filter": "one", "where": "key = 0"}},
        output="kept",
        tuning={"bucket": "10ms", "boundary_interval": "10ms"},
    )
    with deployed(query) as deployment, KafkaFeeder(deployment, rows_per_second=10_000, keys=10, period_s=0.005):
        time.sleep(BROKER_WARM_UP_S)
        before = _processor_s(deployment)
        readers = [
            Arrivals(deployment, topic)
            for topic in (out_topic("latency", "a", deployment.layout.sites), stable_topic("latency"))
        ]
        time.sleep(LATENCY_S)
        for reader in readers:
            reader.close()
        busy = (_processor_s(deployment) - before) / LATENCY_S
        out, stable = (reader.by_id() for reader in readers)
    rows = {number: json.loads(value) for number, (_, value) in out.items()}
    of_out = [out[number][0] - row["ingest_ms"] for number, row in rows.items()]
    of_event = [out[number][0] - moment_ms(row["event_time"]) for number, row in rows.items()]
    of_stable = [stable[number][0] - row["ingest_ms"] for number, row in rows.items() if number in stable]
    return [
        Figure("ingest to q.out, p50", float(np.percentile(of_out, 50)), "ms", 35, lower_is_better=True),
        Figure("ingest to q.out, p99", float(np.percentile(of_out, 99)), "ms", 100, lower_is_better=True),
        Figure("ingest to q.stable, p50", float(np.percentile(of_stable, 50)), "ms"),
        Figure("ingest to q.stable, p99", float(np.percentile(of_stable, 99)), "ms"),
        Figure("a record's making to q.out, p50", float(np.percentile(of_event, 50)), "ms"),
        Figure("processor time of source, node, egress and monitor, a second", busy * 1_000, "ms"),
    ]


def moment_ms(text: str) -> float:
    """Milliseconds since the epoch of a time in a record (ISO 8601)."""
    return datetime.fromisoformat(text).timestamp() * 1_000


def isolation() -> list[Figure]:
    """The effect of a query with a dead input on another one beside it: the other's delay, without the failure and with it.
    Both read the same topics, through separate sources."""
    p99 = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        deployed(make_query("failing"), has_links=True) as failing,
        Deployment(Path(folder), make_query("healthy"), beside=failing, has_links=False) as healthy,
    ):
        healthy.wait_ready()
        with KafkaFeeder(healthy, rows_per_second=300):
            time.sleep(BROKER_WARM_UP_S)
            p99["alive"] = _delay_p99(healthy)
            with failing.cut("source.one"):
                p99["dead"] = _delay_p99(healthy)
    limit = 1.2 * p99["alive"] + 5
    return [
        Figure("a query's delay beside a healthy one, p99", p99["alive"], "ms"),
        Figure("the same beside one whose input is dead", p99["dead"], "ms", limit, lower_is_better=True),
    ]


def _delay_p99(deployment: Deployment) -> float:
    """The delay of a query's stable rows in the next seconds, from ingest to the egress, in ms."""
    time.sleep(WARM_UP_S)
    seen = len(deployment.changes())
    time.sleep(ISOLATION_S)
    given = [r for r in deployment.changes()[seen:] if r["type"] == "stable"]
    assert given, f"no stable row within {ISOLATION_S} s\n{deployment.explain()}"
    return float(np.percentile([record["emitted_ms"] - record["ingest_ms"] for record in given], 99))


class Arrivals:
    """Reads a topic as it grows, and notes when each record came. A client in C: it takes little of what is measured."""

    def __init__(self, deployment: Deployment, topic: str) -> None:
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": deployment.kafka["a"].bootstrap, **_AS_IT_GROWS})
        _, end = self._consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0))
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, end)])
        self.arrived: list[Arrival] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                headers = dict(cast(_Headers, message.headers() or []))
                self.arrived.append((time.time() * 1000, message.value() or b"", headers))
        self._consumer.close()

    def by_id(self) -> dict[int, tuple[float, bytes]]:
        """When each stable row came, in ms, and its record's value."""
        return {int(headers["id"]): (now, value) for now, value, headers in self.arrived if "id" in headers}


def _death() -> list[Figure]:
    """The replica that the egress reads is killed, again and again: how long until a client is given output again."""
    gaps = []
    with deployed(make_query("deaths", replicas=2)) as deployment, KafkaFeeder(deployment, rows_per_second=300):
        output = Arrivals(deployment, out_topic("deaths", "a", deployment.layout.sites))
        for _ in range(DEATHS):
            time.sleep(4)
            gaps.append(_gap_of_a_death(deployment, output))
            deployment.wait_ready()
        output.close()
    limit = 5 * HEARTBEAT_MS
    return [Figure("death of a replica to the query's next output, p95", float(np.percentile(gaps, 95)), "ms", limit, True)]


def _gap_of_a_death(deployment: Deployment, output: Arrivals) -> float:
    """In ms, as a client sees it."""
    wait_until(lambda: bool(output.arrived), "the query gives output", deployment.explain)
    replica = json.loads(output.arrived[-1][1])["replica"]
    seen, killed_ms = len(output.arrived), time.time() * 1000
    deployment.kill(f"node.{replica}")
    given: list[float] = []

    def is_given_again() -> bool:
        given.extend(given_after_death(output.arrived[seen:], replica, killed_ms))
        return bool(given)

    wait_until(is_given_again, "the query gives output again", deployment.explain)
    return given[0] - killed_ms


def given_after_death(arrived: list[Arrival], replica: str, killed_ms: float) -> Iterator[float]:
    """When output came that the life which was killed cannot have made: of another replica, or of a later life of the same
    one, whose boundaries are past its death. Tentative output counts, too: it is what a client is given within X."""
    for now, value, _ in arrived:
        record = json.loads(value)
        is_later = record["type"] == "boundary" and moment_ms(record["through"]) > killed_ms
        if record["type"] in ("stable", "tentative", "boundary") and (record["replica"] != replica or is_later):
            yield now


def _up() -> list[Figure]:
    """`boreal up`, after all downloads."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "boreal"]
        started = time.perf_counter()
        subprocess.run([*command, "up", "--data", folder, "--json"], check=True, capture_output=True)
        seconds = time.perf_counter() - started
        subprocess.run([*command, "down", "--data", folder], check=True, capture_output=True)
    return [Figure("boreal up, from warm caches to ready", seconds, "s", 15, lower_is_better=True)]


def _checkpoint() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
        store = RedisCheckpointStore(connect_redis(RedisSettings(url=server.url)))
        state = np.random.default_rng(0).bytes(CHECKPOINT_MB << 20)
        checkpoint = Checkpoint("main.r0.0", 1, 0, 0, (), (), state)
        started = time.perf_counter()
        store.put(checkpoint)
        put_s = time.perf_counter() - started
        started = time.perf_counter()
        assert store.get("main.r0.0", 1) == checkpoint
        get_s = time.perf_counter() - started
        store.close()
    return [
        Figure(f"checkpoint of {CHECKPOINT_MB} MB into Redis", put_s, "s"),
        Figure("the same, as a rate", CHECKPOINT_MB / put_s, "MB/s"),
        Figure("and back", CHECKPOINT_MB / get_s, "MB/s"),
    ]


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
