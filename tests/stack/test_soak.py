"""Long failures, squeezed: too long for every run of the tests, so they have a target of their own, `make soak`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from bench.deployment import Deployment, Feeder, wait_until
from bench.stack import isolation
from boreal.model.frames import INFINITY, Boundary, Data, LogId, Origin, Start
from services.hosting.process import now_us
from services.storage.kafka_log import KafkaLog, KafkaLogStore
from sunion.buckets import bucket_end
from tests.stack.breaking import Ear

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak]

RATE = 20_000
MINUTES = 30
FRAME_ROWS = 10_000
KEYS = 100
LOADED_S = 600.0
WHY_MS = 2_000
LEAST_ALPHA_X_S = 0.5
"""A quarter of X, below which alpha*X does not go: rows that come later than this may be answered without."""
ORIGIN = Origin("", 1)
QUERY: dict[str, Any] = {
    "name": "soak",
    "streams": {
        name: {"topic": f"in.{name}", "time": "at", "time_unit": "us", "schema": {"key": "int", "value": "int"}}
        for name in ("left", "right")
    },
    "operators": {
        "all": {"union": ["left", "right"]},
        "counted": {
            "aggregate": "all",
            "window": {"tumbling": "10s"},
            "by": ["key"],
            "compute": {"rows": "count(*)", "total": "sum(value)"},
        },
    },
    "output": "counted",
    "delay_threshold": "2s",
    "replicas": 2,
    "engine": "native",
    "tuning": {"memory": "128MB"},
}


class Memory:
    """The most that each process ever held, in MB."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.most: dict[str, float] = {}

    def look(self) -> None:
        for name, service in self._deployment.services.items():
            held = psutil.Process(service.pid).memory_info().rss / 1e6
            self.most[name] = max(self.most.get(name, 0.0), held)


def log_rows(log: KafkaLog, bucket_us: int, look: Callable[[], None]) -> None:
    """Thirty minutes of rows, as fast as the log takes them."""
    keys = pa.array(np.arange(FRAME_ROWS) % KEYS)
    values = pa.array(np.ones(FRAME_ROWS, dtype=np.int64))
    for number in range(RATE * 60 * MINUTES // FRAME_ROWS):
        first = number * FRAME_ROWS
        times = (first + np.arange(FRAME_ROWS)) * (1_000_000 // RATE)
        batch = pa.RecordBatch.from_arrays([pa.array(times), keys, values], names=["time", "key", "value"])
        last, now = int(times[-1]), now_us()
        log.append_later(Data(ORIGIN, 0, first, batch, False, ((INFINITY, now),), bucket_end(last, bucket_us)))
        log.append_later(Boundary(ORIGIN, 0, last, False, now, now))
        if number % 50 == 0:
            look()


def test_thirty_minutes_without_an_input_fit_in_memory_and_are_made_up_for(tmp_path: Path) -> None:
    with Deployment(tmp_path, QUERY, without=("source",)) as deployment:
        deployment.wait_ready()
        memory = Memory(deployment)
        store = KafkaLogStore(deployment.clusters, deployment.layout)
        left, right = (store.open(LogId(name, "", 0)) for name in ("left", "right"))
        for log in (left, right):
            log.append_later(Start(ORIGIN, 0))
        started = time.monotonic()
        log_rows(left, deployment.layout.plan.bucket_us, memory.look)

        def is_given_tentatively() -> bool:
            memory.look()
            now = now_us()
            left.append_later(Boundary(ORIGIN, 0, 60 * MINUTES * 1_000_000, False, now, now))
            changes = deployment.changes()
            return any(r["type"] == "tentative" and r["data"]["window_end"] >= "1970-01-01T00:29:50" for r in changes)

        wait_until(is_given_tentatively, "the cut half hour is answered tentatively", deployment.explain, 300)
        cut_s = time.monotonic() - started
        healed = time.monotonic()
        expected = 60 * MINUTES // 10 * KEYS

        def is_stable() -> bool:
            memory.look()
            now = now_us()
            for log in (left, right):
                log.append_later(Boundary(ORIGIN, 0, INFINITY, False, now, now))
            time.sleep(0.5)
            return len(deployment.stable()) >= expected

        wait_until(is_stable, "the half hour is corrected", deployment.explain, 300)
        print(f"cut for {cut_s:.0f} s, corrected in {time.monotonic() - healed:.0f} s; MB at most: {memory.most}")
        rows = deployment.stable()
        assert len(rows) == expected
        assert {(row["rows"], row["total"]) for row in rows} == {(RATE * 10 // KEYS, RATE * 10 // KEYS)}
        assert all(held < 500 for name, held in memory.most.items() if name.startswith("node")), memory.most
        store.close()


@contextmanager
def busy_cores() -> Iterator[None]:
    """As many processes as there are cores, each of which would take one whole."""
    command = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def unwell_at(log: Path) -> list[float]:
    """When a node said that its instance was not STABLE, in ms since the epoch."""
    said = re.findall(r"^(\S+ \S+),(\d+) .* is (?:UP_FAILURE|RECOVERING)$", log.read_text(), re.MULTILINE)
    return [datetime.fromisoformat(moment).timestamp() * 1_000 + int(ms) for moment, ms in said]


def test_nobody_is_taken_for_dead_in_ten_loaded_minutes(tmp_path: Path) -> None:
    counted = {**QUERY["operators"]["counted"], "window": {"tumbling": "1s"}}
    query = {**QUERY, "operators": {**QUERY["operators"], "counted": counted}}
    with (
        Deployment(tmp_path, query, has_links=False) as deployment,
        Feeder(deployment, rows_per_second=1_500) as feeder,
        Ear(deployment) as ear,
    ):
        deployment.wait_ready()
        seen = len(deployment.changes())
        with busy_cores():
            ear.worst_silence_s = 0.0
            time.sleep(LOADED_S)
        given, stall_s = deployment.changes()[seen:], ear.worst_silence_s
        fed = sum(len(rows) for rows in feeder.rows.values())
        print(f"{len(given)} changes; {fed} rows fed; nothing of an input reached anybody for {stall_s:.3f} s at the longest")
        for left, taken in pairwise(given):
            if taken["replica"] != left["replica"]:
                # Another is read only where the one before has said of itself that it is not STABLE: it was kept from its work.
                log = tmp_path / f"node.soak.{left['replica']}.log"
                assert any(0 <= taken["emitted_ms"] - moment <= WHY_MS for moment in unwell_at(log)), (left, taken)
        assert {name: service.starts for name, service in deployment.services.items() if service.starts > 1} == {}
        if stall_s < LEAST_ALPHA_X_S:
            assert {record["type"] for record in given} == {"stable", "boundary"}
            assert not [record for record in given if record["type"] == "boundary" and record["tentative"]]
            instances = [entry for status in deployment.statuses().values() for entry in status.get("instances", [])]
            assert [entry["reconciliations"] for entry in instances] == [0, 0]


def test_a_query_whose_input_is_dead_does_not_delay_another() -> None:
    alive, dead = isolation()
    print(f"p99 of the other's delay: {alive.value:.0f} ms, then {dead.value:.0f} ms")
    assert dead.holds
