"""`boreal bench shared_spark`: ten queries whose operators run in Spark, with two replicas each, on a local stack with two
workers: one Spark application for each replica number runs the operators of all.

The departures query of `bench.idle` under ten names, on the same topics, with windows of one second. Rows pass for a minute.
What the processes take is measured then, and what the queries say of their results.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
from kafka import KafkaProducer

from bench.departures_stack import DeparturesStack, departures_stack
from bench.figures import Figure, as_report
from bench.idle import AIRPORTS
from bench.processor_time import processor_time

QUERIES, WORKERS = 10, 2
ROW_EVERY_S = 0.2
FEED_S, SETTLE_S = 60.0, 15.0
X_MS = 3_000.0

COMPUTE = {"flights": "count(*)", "mean_delay": "avg(dep_delay)"}
TUNING = {"bucket": "500ms", "boundary_interval": "500ms", "heartbeat": "1s"}
"""Intervals for many queries on few cores. By default they follow from X alone."""
OPERATORS = {
    "all": {"union": list(AIRPORTS)},
    "late": {"filter": "all", "where": "dep_delay > 15"},
    "by_carrier": {"aggregate": "late", "window": {"tumbling": "1s"}, "by": ["carrier"], "compute": COMPUTE},
}


def main() -> dict[str, Any]:
    """Measure it; four minutes."""
    with (
        tempfile.TemporaryDirectory(prefix="boreal-bench-") as folder,
        departures_stack(_Stack, Path(folder), WORKERS) as (stack, bootstrap),
    ):
        return as_report("shared_spark", list(_figures(stack, bootstrap)))


def _figures(stack: _Stack, bootstrap: str) -> Iterator[Figure]:
    seconds = [stack.apply(f"q{number}", TUNING, engine="spark", operators=OPERATORS) for number in range(QUERIES)]
    yield Figure("query 1: apply until live", seconds[0], "s")
    yield Figure(f"query {QUERIES}: apply until live", seconds[-1], "s", lower_is_better=True)
    time.sleep(SETTLE_S)
    idle = stack.cores_of(SETTLE_S)
    yield Figure("no rows: Spark", idle["spark"], "cores")
    yield Figure("no rows: all processes", sum(idle.values()), "cores")
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        _feed(producer, SETTLE_S)
        began = stack.times()
        _feed(producer, FEED_S)
        busy = stack.cores_since(began, FEED_S)
    yield Figure("rows: Spark", busy["spark"], "cores")
    yield Figure("rows: all processes", sum(busy.values()), "cores")
    families = stack.families("spark")
    names = [process.name() for family in families for process in family]
    memory = sum(process.memory_info().rss for family in families for process in family)
    yield Figure("JVMs of Spark", names.count("java"), "JVMs", 2, lower_is_better=True)
    yield Figure("memory of Spark, resident", memory / 1e9, "GB", 5, lower_is_better=True)
    queries = stack.queries()
    answered = sum(found["delay_ms"]["max"] is not None for found in queries)
    yield Figure("queries that gave results", answered, "queries", QUERIES)
    for field in ("p50", "p99", "max"):
        worst = max(found["delay_ms"][field] or 0.0 for found in queries)
        target = X_MS if field == "max" else None
        yield Figure(f"delay {field} of the slowest query", worst, "ms", target, lower_is_better=True)
    yield Figure("results later than X", sum(found["violations"] or 0 for found in queries), "results", 0, lower_is_better=True)
    tentative = max(found["tentative_share"] or 0.0 for found in queries)
    yield Figure("the largest share of tentative rows", 100 * tentative, "%")


def _feed(producer: KafkaProducer, seconds: float) -> None:
    """Rows of all topics, one every ROW_EVERY_S in each."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        row = {"departed_at": time.time_ns() // 1_000, "carrier": "UA", "dest": "SFO", "dep_delay": 20.0}
        for name in AIRPORTS:
            producer.send(f"in.{name}", json.dumps(row).encode())
        time.sleep(ROW_EVERY_S)
    producer.flush()


class _Stack(DeparturesStack):
    def queries(self) -> list[dict[str, Any]]:
        """What each query says of its results."""
        return [json.loads(self.run("query", "show", f"q{number}")) for number in range(QUERIES)]

    def families(self, kind: str | None = None) -> list[list[psutil.Process]]:
        """The processes of the stack that run roles of a kind, or all, each with those that it has started."""
        pids = {process["pid"] for process in self.state["processes"] if kind in (None, process["kind"])}
        return [[psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] for pid in sorted(pids)]

    def times(self) -> dict[str, float]:
        """The processor time so far, by `spark` and `others`."""
        spark = {process.pid for family in self.families("spark") for process in family}
        found = {"spark": 0.0, "others": 0.0}
        for process in {process for family in self.families() for process in family}:
            with suppress(psutil.NoSuchProcess):  # of a short life: a process that the JVM forks
                found["spark" if process.pid in spark else "others"] += processor_time(process)
        return found

    def cores_since(self, began: dict[str, float], seconds: float) -> dict[str, float]:
        return {kind: (taken - began[kind]) / seconds for kind, taken in self.times().items()}

    def cores_of(self, seconds: float) -> dict[str, float]:
        began = self.times()
        time.sleep(seconds)
        return self.cores_since(began, seconds)
