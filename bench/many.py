"""`boreal bench many`: many calm queries on a local stack of this machine, and one busy query among them.

The departures query of `bench.idle` under many names, on the same topics, in two workers. No row ever comes to it. One more
query has a topic of its own, with 1,000 rows a second, and X = 1 s.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from kafka import KafkaConsumer, TopicPartition

from bench.busy_queries import busy_query, feeding
from bench.commands import make_topics
from bench.departures_stack import departures_stack
from bench.figures import Figure, as_report
from bench.scale import WORKERS, ScaleStack
from services.kafka.reading import read_range

QUERIES = 100
BUSY_ROWS_PER_S = 1_000
WARM_UP_S, BUSY_S = 10, 30
ALL_READY_WITHIN_S = 120


def main(queries: int = QUERIES) -> dict[str, Any]:
    """Measure it; ten minutes."""
    with (
        tempfile.TemporaryDirectory(prefix="boreal-bench-") as folder,
        departures_stack(ScaleStack, Path(folder), WORKERS) as (stack, bootstrap),
    ):
        return as_report("many", list(_figures(stack, bootstrap, queries)))


def _figures(stack: ScaleStack, bootstrap: str, queries: int) -> Iterator[Figure]:
    took_s = [stack.apply(f"q{number}", {}) for number in range(queries)]
    yield Figure(f"query {queries}: apply until live", took_s[-1], "s", 5, lower_is_better=True)
    yield Figure(f"{queries} queries: ready", _await_ready(stack, queries), "queries", queries)
    taken = stack.taken()
    for kind, of in taken.items():
        yield Figure(f"{queries} queries: {kind}", of.cores, "cores")
    yield Figure(f"{queries} queries: all", sum(of.cores for of in taken.values()), "cores", 1, lower_is_better=True)
    megabytes = sum(of.megabytes for of in taken.values())
    yield Figure(f"{queries} queries: memory of all", megabytes, "MB", 4_000, lower_is_better=True)
    yield Figure(f"{queries} queries: threads of roles", taken["roles"].threads, "threads")
    make_topics(bootstrap, ["busy"])
    stack.apply_query(busy_query("busy"))
    yield from _busy(stack, bootstrap, queries)


def _await_ready(stack: ScaleStack, queries: int) -> int:
    """How many queries are ready, once all are, or after some time."""
    deadline = time.monotonic() + ALL_READY_WITHIN_S
    while (ready := sum(query["ready"] for query in stack.state["queries"].values())) < queries:
        if time.monotonic() > deadline:
            break
        time.sleep(1)
    return ready


def _busy(stack: ScaleStack, bootstrap: str, queries: int) -> Iterator[Figure]:
    place = TopicPartition("busy.out", 0)
    with closing(KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        consumer.assign([place])
        with feeding(bootstrap, ["busy"], BUSY_ROWS_PER_S):
            time.sleep(WARM_UP_S)
            start = consumer.end_offsets([place])[place]
            time.sleep(BUSY_S)
        time.sleep(2)
        end = consumer.end_offsets([place])[place]
        given = [json.loads(record.value) for record in read_range(consumer, place, start, end)]
    rows = [record for record in given if record["type"] in ("stable", "tentative")]
    delays = [record["emitted_ms"] - record["ingest_ms"] for record in rows]
    title = f"a busy query beside {queries}"
    yield Figure(f"{title}: rows", sum(record["type"] == "stable" for record in rows) / BUSY_S, "rows/s")
    yield Figure(f"{title}: tentative rows", sum(record["type"] == "tentative" for record in rows), "rows")
    yield Figure(f"{title}: ingest to q.out, p50", float(np.percentile(delays, 50)), "ms")
    yield Figure(f"{title}: ingest to q.out, p99", float(np.percentile(delays, 99)), "ms", 150, lower_is_better=True)
    yield Figure(f"{title}: ingest to q.out, longest", max(delays), "ms", 1_000, lower_is_better=True)
