"""The shop on the real stack, fifteen times as fast: pauses, a row an hour ahead and a frozen broker cost no order, and
q.stable is what DuckDB says."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.deployment import Deployment, read_all, wait_until
from boreal.query.spec import load_query
from examples.shop.generate import PARTITIONS, Record, make, produce
from services.kafka.topics import dead_letter_topic
from sunion.port import EARLY
from tests.examples.test_shop import ACTIVITY, EXAMPLES, REVENUE, lines, oracle

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

SPEED = 15
SECONDS = 200.0
FROZEN_AFTER_S, FROZEN_S = 5.0, 3.0
TIMES = {"disorder": "200ms", "idle": "6s"}
"""At this speed; a pause takes 1.3 seconds, and this machine may be busy. All else is as by default."""
WINDOW_S, WITHIN_S = 4.0, 2.0
SQL = {"revenue": REVENUE, "activity": ACTIVITY}


QUIETLY = {"bucket": "200ms", "boundary_interval": "200ms", "heartbeat": "200ms"}
"""For two jobs beside broker and services on two cores (docs/spark.md)."""


def sped_up(name: str, engine: str) -> dict[str, Any]:
    """An example's query, as its shop runs here."""
    text = (EXAMPLES / f"{name}.yaml").read_text().replace("1m", f"{WINDOW_S}s").replace("30s", f"{WITHIN_S}s")
    query = load_query(text).dump()
    streams = {stream: {**spec, **TIMES} for stream, spec in query["streams"].items()}
    tuning = {**query.get("tuning", {}), **(QUIETLY if engine == "spark" else {})}
    return {**query, "streams": streams, "engine": engine, "tuning": tuning}


@pytest.mark.parametrize(
    ("names", "engine"),
    [
        (["revenue", "activity"], "native"),
        pytest.param(["revenue"], "spark", marks=pytest.mark.soak),
        pytest.param(["activity"], "spark", marks=pytest.mark.soak),
    ],
    ids=["both", "revenue in Spark", "activity in Spark"],
)
def test_the_shop_loses_nothing_and_its_last_windows_close(tmp_path: Path, names: list[str], engine: str) -> None:
    with ExitStack() as running:
        deployments: list[Deployment] = []
        for name in names:
            beside = deployments[0] if deployments else None
            root = tmp_path / name
            root.mkdir()
            deployment = Deployment(root, sped_up(name, engine), beside=beside, has_links=False, partitions=PARTITIONS)
            deployments.append(running.enter_context(deployment))
        for deployment in deployments:
            deployment.wait_ready()
        start = datetime.now(UTC) + timedelta(seconds=0.5)
        streams = {stream for deployment in deployments for stream in deployment.spec.streams}
        records = [record for record in make(1, SECONDS, start, SPEED) if record.stream in streams]
        kafka = deployments[0].kafka["a"]
        sending = threading.Thread(target=produce, args=(kafka.bootstrap, records, start), daemon=True)
        sending.start()
        time.sleep(FROZEN_AFTER_S)
        kafka.pause()
        time.sleep(FROZEN_S)
        kafka.resume()
        sending.join(timeout=120)
        assert not sending.is_alive()
        for deployment in deployments:
            check(deployment, [record for record in records if record.stream in deployment.spec.streams])


def check(deployment: Deployment, records: list[Record]) -> None:
    """Against what was sent to the streams of its query."""
    name = deployment.spec.name
    expected = oracle(deployment.root, records, SQL[name], WINDOW_S, WITHIN_S)
    wait_until(lambda: len(deployment.stable()) >= expected.total(), "all windows are stable", deployment.explain)
    assert lines(deployment.stable()) == expected
    letters = [json.loads(record.value) for record in read_all(deployment.clusters["a"], dead_letter_topic(name))]
    assert Counter(letter["record"] for letter in letters) == Counter(r.value for r in records if not r.counts)
    statuses = deployment.statuses()
    sources = {stream: statuses[f"source.{name}.{stream}"] for stream in deployment.spec.streams}
    assert {stream: source["ahead"] for stream, source in sources.items()} == {
        stream: int(stream == "orders") for stream in sources
    }
    late = [r for r in deployment.changes() if r["type"] == "tentative" and r["cause"] == EARLY and r["missing_inputs"]]
    assert not late, "an early answer lacks no input"
    # Nothing comes any more, and that is no failure.
    wait_until(lambda: {s["state"] for s in _sources(deployment)} == {"idle"}, "all streams are idle", deployment.explain)
    wait_until(lambda: set(deployment.states().values()) == {"STABLE"}, "all replicas are well", deployment.explain)


def _sources(deployment: Deployment) -> list[dict[str, Any]]:
    prefix = f"source.{deployment.spec.name}."
    return [status for process, status in deployment.statuses().items() if process.startswith(prefix)]
