"""A worker that has joined is killed: how soon its roles run in others, and how long clients wait meanwhile.

Three workers share a query; the one with the egress, for which clients wait, is killed each time, and another joins. Each has
been heard for CALM_S by then, so the supervisor knows how regularly it speaks (`deployment.placer`).
"""

from __future__ import annotations

import signal
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.deployment import KafkaFeeder, read_all, wait_until
from bench.figures import Figure, as_report
from bench.joined_deployment import SUPERVISOR, JoinedDeployment
from deployment.placement_record import worker_process
from services.kafka.topics import out_topic

WORKERS, DEATHS = 3, 4
CALM_S = 45.0
SEEN_S = 8.0
"""The time after a death in which clients wait, at most."""
SCHEMA = {"key": "int", "value": "int"}
QUERY: dict[str, Any] = {
    "name": "moved",
    "streams": {
        name: {"topic": f"in.{name}", "time": "at", "time_unit": "us", "schema": SCHEMA, "boundary": "clock"}
        for name in ("left", "right")
    },
    "operators": {"all": {"union": ["left", "right"]}},
    "output": "all",
    "delay_threshold": "3s",
    "replicas": 2,
    "engine": "native",
}


def main() -> dict[str, Any]:
    """Measure it; five minutes."""
    with tempfile.TemporaryDirectory() as directory, JoinedDeployment(Path(directory), QUERY) as joined:
        joined.begin("supervisor", *SUPERVISOR)
        for number in range(WORKERS):
            joined.join(f"w{number}")
        wait_until(lambda: len(joined.places()) == len(joined.children) - 1, "all roles run", joined.explain)
        joined.wait_ready()
        with KafkaFeeder(joined, rows_per_second=100):
            took = [_kill(joined, WORKERS + number) for number in range(DEATHS)]
    return as_report(
        "takeover",
        [
            Figure("a worker is killed: its egress is elsewhere, longest", max(moved for moved, _ in took), "s"),
            Figure("a worker is killed: clients wait, longest", max(waited for _, waited in took), "s", 1.5, True),
            Figure("a worker is killed: clients wait, shortest", min(waited for _, waited in took), "s"),
        ],
    )


def _kill(joined: JoinedDeployment, number: int) -> tuple[float, float]:
    """How long until the supervisor says that the egress is elsewhere, and the longest time without a record for clients, in
    seconds."""
    time.sleep(CALM_S)
    role = "egress.moved.a"
    name = joined.places()[role]
    worker = joined.services[worker_process("a", name)]
    worker.is_wanted = False
    killed = time.time()
    worker.signal(signal.SIGKILL)
    moved = wait_until(lambda: joined.places().get(role, name) != name, "the egress is elsewhere", joined.explain)
    time.sleep(SEEN_S)
    joined.join(f"w{number}")
    records = read_all(joined.clusters["a"], out_topic("moved", "a", joined.layout.sites))
    times = [record.timestamp / 1_000 for record in records if killed - 0.5 <= record.timestamp / 1_000 <= killed + SEEN_S]
    return moved, max(after - before for before, after in pairwise(times))
