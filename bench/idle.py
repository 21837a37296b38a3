"""`boreal bench idle`: what a query costs while nothing happens, over a real broker and a real Redis, on this machine.

The departures query of the examples: three streams, two replicas. It is measured with the intervals that follow from its X,
and with closer ones, as a query with a small X has them; once no row has ever come, and once rows came and stopped, so that
the boundaries of the streams follow the clock. Processor time says what it costs; wake-ups and records say why.

Longer intervals may cost delay. So rows pass, once in all streams, and once in one of them, which the idle others hold back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import psutil
from kafka import TopicPartition

from bench.deployment import Deployment
from bench.figures import Figure, as_report
from bench.processor_time import processor_time
from bench.stack import deployed

AIRPORTS = ("ewr", "jfk", "lga")
TUNINGS: dict[str, dict[str, str]] = {
    "stated": {"bucket": "100ms", "boundary_interval": "50ms", "heartbeat": "100ms"},
    "by X": {},
}
"""The intervals of a query with X = 3 s: those that every query had before they followed X, and those that follow."""
SETTLE_S, MEASURE_S = 20.0, 20.0
ROW_EVERY_S = 0.01
IDLE_S = 2
"""After this time without a row, a stream's boundary follows the clock."""
_WAITS = "voluntary_ctxt_switches"


def main() -> dict[str, Any]:
    """Measure all of it; seven minutes."""
    return as_report("idle", [figure for title, tuning in TUNINGS.items() for figure in _by(title, tuning)])


def _by(title: str, tuning: dict[str, str]) -> Iterator[Figure]:
    yield from cost(f"{title}, no row ever", tuning, has_rows=False)
    yield from cost(f"{title}, rows stopped", tuning, has_rows=True)
    yield from delay(f"{title}, rows in all streams", tuning, AIRPORTS)
    yield from delay(f"{title}, rows in one stream of three", tuning, AIRPORTS[:1])


def departures(tuning: dict[str, str], **options: Any) -> dict[str, Any]:
    """The query of examples/flights, whose streams are idle early."""
    schema = {"carrier": "string", "dest": "string", "dep_delay": "double"}
    compute = {"flights": "count(*)", "mean_delay": "avg(dep_delay)"}
    return {
        "name": "departures",
        "streams": {
            name: {"topic": f"in.{name}", "time": "departed_at", "time_unit": "us", "schema": schema, "idle": f"{IDLE_S}s"}
            for name in AIRPORTS
        },
        "operators": {
            "all": {"union": list(AIRPORTS)},
            "late": {"filter": "all", "where": "dep_delay > 15"},
            "by_carrier": {"aggregate": "late", "window": {"tumbling": "10m"}, "by": ["carrier"], "compute": compute},
        },
        "output": "by_carrier",
        "delay_threshold": "3s",
        "replicas": 2,
        "engine": "native",
        "tuning": tuning,
        **options,
    }


def cost(title: str, tuning: dict[str, str], has_rows: bool) -> Iterator[Figure]:
    """What a query takes without rows, by kind of process. has_rows: whether some came before."""
    with deployed(departures(tuning)) as deployment:
        if has_rows:
            _feeder(deployment)(AIRPORTS)
        time.sleep(SETTLE_S)
        records, before = _written(deployment), _taken(deployment)
        time.sleep(MEASURE_S)
        after, records = _taken(deployment), _written(deployment) - records
    cores = {kind: (after[kind][0] - before[kind][0]) / MEASURE_S for kind in after}
    wakes = {kind: (after[kind][1] - before[kind][1]) / MEASURE_S for kind in after}
    yield Figure(f"{title}: all", sum(cores.values()), "cores")
    for kind in sorted(cores):
        yield Figure(f"{title}: {kind}", cores[kind], "cores")
    for kind in sorted(wakes):
        yield Figure(f"{title}: {kind}", wakes[kind], "wake-ups/s")
    yield Figure(f"{title}: written", records / MEASURE_S, "records/s")


def delay(title: str, tuning: dict[str, str], busy: Sequence[str]) -> Iterator[Figure]:
    """From ingest to q.out, while these streams have rows and the others are idle."""
    with deployed(departures(tuning, output="late")) as deployment:
        feed = _feeder(deployment)
        feed(AIRPORTS)
        time.sleep(SETTLE_S)
        seen, until = len(deployment.changes()), time.monotonic() + MEASURE_S
        while time.monotonic() < until:
            feed(busy)
            time.sleep(ROW_EVERY_S)
        time.sleep(IDLE_S)
        given = [record for record in deployment.changes()[seen:] if record["type"] == "stable"]
    delays = [record["emitted_ms"] - record["ingest_ms"] for record in given]
    for percent in (50, 99):
        yield Figure(f"{title}: ingest to q.out, p{percent}", float(np.percentile(delays, percent)), "ms")


def _feeder(deployment: Deployment) -> Callable[[Sequence[str]], None]:
    """Feeds a row into each of some streams, with the current time."""
    producer = confluent_kafka.Producer({"bootstrap.servers": deployment.kafka["a"].bootstrap, "log_level": 0})

    def feed(streams: Sequence[str]) -> None:
        for stream in streams:
            row = b'{"departed_at": %d, "carrier": "AA", "dest": "ORD", "dep_delay": 20}' % (time.time_ns() // 1_000)
            producer.produce(f"in.{stream}", row, partition=0)
        producer.flush()

    return feed


def _taken(deployment: Deployment) -> dict[str, tuple[float, int]]:
    """Of each kind of process, all together: processor time in seconds, and how often their threads have waited."""
    pids = [(name.partition(".")[0], service.pid) for name, service in deployment.services.items()]
    pids += [("broker", server.pid) for server in deployment.kafka.values() if server.pid]
    pids += [("redis", deployment.redis.pid)] if deployment.redis.pid else []
    found: dict[str, tuple[float, int]] = {}
    for kind, pid in pids:
        seconds, waits = found.get(kind, (0.0, 0))
        found[kind] = seconds + processor_time(psutil.Process(pid)), waits + _waits(pid)
    return found


def _waits(pid: int) -> int:
    """How often the threads of a process have begun to wait, and so will have woken up. psutil knows it of one thread only."""
    lines = [line for status in Path(f"/proc/{pid}/task").glob("*/status") for line in status.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith(_WAITS))


def _written(deployment: Deployment) -> int:
    """How many records all topics have got so far."""
    with closing(deployment.clusters["a"].make_consumer()) as consumer:
        places = [TopicPartition(t, number) for t in consumer.topics() for number in consumer.partitions_for_topic(t) or ()]
        return sum(consumer.end_offsets(places).values())
