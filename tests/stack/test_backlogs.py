"""What a long failure or absence leaves behind, on real processes: many inputs to catch up with, and places to remember."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.deployment import Deployment, KafkaFeeder, wait_until
from tests.stack.breaking import QUERY, Ear, flowing

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak, pytest.mark.xdist_group("servers")]

STREAMS = 8
AWAY_S = 15.0
GROWTH_BYTES = 200 << 20
"""Of a process that holds no more than `memory` in its ports, and as much again in what it reads ahead and writes."""
CUT_S = 320.0


def test_a_node_with_a_backlog_on_many_streams_is_heard_and_keeps_its_memory(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(STREAMS)]
    query: dict[str, Any] = {
        **QUERY,
        "name": "backlog",
        "streams": {name: {**QUERY["streams"]["left"], "topic": f"in.{name}"} for name in names},
        "operators": {**QUERY["operators"], "all": {"union": names}},
        "replicas": 1,
        "tuning": {"memory": "32MB"},
    }
    with Deployment(tmp_path, query) as deployment:
        deployment.wait_ready()
        with KafkaFeeder(deployment, rows_per_second=2_000), Ear(deployment):
            time.sleep(3)
            process = psutil.Process(deployment.service("node.r0").pid)
            before = process.memory_info().rss
            with deployment.frozen("node.r0"):
                time.sleep(AWAY_S)
            most, gaps, last = before, [0.0], time.monotonic()
            position = _position(deployment)
            behind = True
            deadline = time.monotonic() + 60
            while behind and time.monotonic() < deadline:
                most = max(most, process.memory_info().rss)
                if (now_at := _position(deployment)) != position:
                    gaps.append(time.monotonic() - last)
                    position, last = now_at, time.monotonic()
                behind = now_at < (time.time() - 2.0) * 1_000_000
                time.sleep(0.1)
            assert not behind, deployment.explain()
            assert max(gaps) < 3.0, "it says how far it has come while it catches up"
            assert most - before < GROWTH_BYTES
        wait_until(lambda: set(deployment.states().values()) == {"STABLE"}, "all is corrected", deployment.explain)


def _position(deployment: Deployment) -> int:
    """How far the node has come, by its newest status."""
    [position] = (
        entry["position"]
        for name, status in deployment.statuses().items()
        if name.startswith("node.")
        for entry in status["instances"]
        if entry["fragment"] != "egress"
    )
    return int(position)


def test_both_replicas_outlast_a_failure_that_is_long_for_an_unbounded_state(tmp_path: Path) -> None:
    """Periodic checkpoints; the places in the logs are noted ever more coarsely. Neither asks for what it has acknowledged."""
    query = {
        **QUERY,
        "name": "ever",
        "operators": {"all": {"union": ["left", "right"]}, "seen": {"distinct": "all", "on": ["value"]}},
        "output": "seen",
        "delay_threshold": "1s",
        "reconcile": "checkpoint_redo",
    }
    with flowing(tmp_path, query) as bench:
        deployment = bench.deployment
        bench.breathe(60)
        pids = {name: service.pid for name, service in deployment.services.items() if name.startswith("node")}
        with deployment.cut("source.right"):
            bench.breathe(CUT_S)
        wait_until(
            lambda: set(deployment.states().values()) == {"STABLE"}, "both have corrected it", deployment.explain, 120
        )
        assert {name: deployment.services[name].pid for name in pids} == pids, "neither has died"
        until = time.time_ns() // 1000
        due = sum(at <= until for rows in bench.feeder.rows.values() for at, _, _ in rows)
        wait_until(lambda: len(deployment.stable()) >= due, "every value has come", deployment.explain, 60)
        given = [row["value"] for row in deployment.stable()]
        assert len(given) == len(set(given))
