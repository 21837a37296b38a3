"""`boreal bench worker_deaths`: a worker of a local stack is killed: how long the clients of five queries wait, and how soon
its roles run again.

Two workers share five queries with rows (100 a second each, X = 1 s, two replicas) and as many calm ones as bring each worker
to fifty roles. They are killed in turn. Some queries lose a replica only, others their source or their egress too.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from kafka import KafkaConsumer, TopicPartition

from bench.busy_queries import busy_query, feeding
from bench.commands import make_topics
from bench.departures_stack import DeparturesStack, departures_stack
from bench.deployment import wait_until
from bench.figures import Figure, as_report
from bench.scale import HOSTING, WORKERS
from services.kafka.reading import read_range

BUSY, CALM = 5, 26
ROWS_PER_S = 100
DEATHS = 6
SETTLE_S, SEEN_S = 32.0, 8.0
"""Each role has been up for longer than half a minute: otherwise it would be held back (`deployment.supervision`)."""
BACK_WITHIN_S = 60.0


def main(deaths: int = DEATHS) -> dict[str, Any]:
    """Measure it; seven minutes. deaths: how many workers are killed."""
    with (
        tempfile.TemporaryDirectory(prefix="boreal-bench-") as folder,
        departures_stack(DeparturesStack, Path(folder), WORKERS) as (stack, bootstrap),
    ):
        return as_report("worker_deaths", list(_figures(stack, bootstrap, deaths)))


def _figures(stack: DeparturesStack, bootstrap: str, deaths: int) -> Iterator[Figure]:
    names = [f"busy{number}" for number in range(BUSY)]
    make_topics(bootstrap, names)
    for name in names:
        stack.apply_query(busy_query(name))
    for number in range(CALM):
        stack.apply(f"calm{number}", {})
    lost_replica, lost_more, back, counts = list[float](), list[float](), list[float](), list[int]()
    with feeding(bootstrap, names, ROWS_PER_S):
        for number in range(deaths):
            time.sleep(SETTLE_S)
            workers = _workers(stack)
            killed = sorted(workers)[number % len(workers)]
            roles, killed_at = workers[killed], time.time()
            counts.append(len(roles))
            os.kill(killed, signal.SIGKILL)
            back.append(_seconds_until_back(stack, roles, killed))
            time.sleep(max(killed_at + SEEN_S - time.time(), 0))
            for name in names:
                is_more = not roles.isdisjoint({f"source.{name}.rows", f"egress.{name}.a"})
                (lost_more if is_more else lost_replica).append(_gap_ms(bootstrap, name, killed_at))
    yield Figure("roles of a worker that is killed", float(np.mean(counts)), "roles")
    yield from _of(lost_replica, "only a replica was lost", 500)
    yield from _of(lost_more, "the source or the egress was lost too", 1_500)
    yield Figure("all its roles run again, longest", max(back), "s", 3, lower_is_better=True)
    yield Figure("all its roles run again, median", float(np.median(back)), "s")


def _of(gaps: Sequence[float], title: str, target: float) -> Iterator[Figure]:
    yield Figure(f"{title}: deaths seen by a query", len(gaps), "deaths")
    if gaps:
        yield Figure(f"{title}: longest time without a row for clients, median", float(np.median(gaps)), "ms")
        yield Figure(f"{title}: the same, p95", float(np.percentile(gaps, 95)), "ms", target, lower_is_better=True)


def _workers(stack: DeparturesStack) -> dict[int, set[str]]:
    """The roles of each worker, by its process id."""
    found: dict[int, set[str]] = {}
    for process in stack.state["processes"]:
        if process["kind"] in HOSTING:
            found.setdefault(process["pid"], set()).add(process["name"])
    return found


def _seconds_until_back(stack: DeparturesStack, roles: set[str], killed: int) -> float:
    """How long until each of these roles runs in another process, and is ready."""

    def are_back() -> bool:
        states = {process["name"]: process for process in stack.state["processes"]}
        return all(states[role]["pid"] != killed and states[role]["state"] == "running" for role in roles)

    return wait_until(are_back, "all roles of the worker run again", within_s=BACK_WITHIN_S)


def _gap_ms(bootstrap: str, name: str, killed_at: float) -> float:
    """The longest time between two rows for clients after a death."""
    place = TopicPartition(f"{name}.out", 0)
    since_ms = int((killed_at - 0.5) * 1_000)
    with closing(KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        consumer.assign([place])
        start = consumer.offsets_for_times({place: since_ms})[place].offset
        records = read_range(consumer, place, start, consumer.end_offsets([place])[place])
        times = [record.timestamp for record in records if json.loads(record.value)["type"] in ("stable", "tentative")]
    return max(after - before for before, after in pairwise(times) if after / 1_000 >= killed_at)
