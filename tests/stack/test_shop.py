"""The shop on the real stack, fifteen times as fast: pauses, a row an hour ahead and a frozen broker cost no order, new rows
come within X, and q.stable is what DuckDB says. `make soak` has it as fast as it is, too, and in Spark.
Nothing runs beside it there, and not one row may be late."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
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

SQL = {"revenue": REVENUE, "activity": ACTIVITY}
QUIETLY = {"bucket": "200ms", "boundary_interval": "200ms", "heartbeat": "200ms"}
"""For two jobs beside broker and services on two cores (docs/spark.md)."""


@dataclass(frozen=True)
class Pace:
    """How fast the shop's time passes."""

    speed: float
    """The shop's seconds in one second."""
    seconds: float
    """How long the shop is open, in its seconds."""
    window_s: float
    within_s: float
    frozen_s: float
    """How long the broker is frozen, in seconds of this machine."""
    freezes_after_s: float
    """The least time from the first record until the broker freezes, in seconds of this machine."""
    freezes_at_s: float
    """The second of a window at which the broker freezes. By then X has passed since the window before: its rows could not come
    in time while the broker is frozen. This window ends meanwhile, and its end is logged afterwards."""
    times: dict[str, str]
    """What streams say of their time, where the defaults do not fit."""


FAST = Pace(15, 200.0, 4.0, 2.0, 3.0, 5.0, 3.5, {"disorder": "200ms", "idle": "6s"})
"""A pause takes 1.3 seconds, and this machine may be busy. All else is as by default."""
AS_IT_IS = Pace(1, 210.0, 60.0, 30.0, 31.0, 30.0, 40.0, {})
"""All is as by default."""


ROWS_OF_A_WINDOW = {"revenue": 5, "activity": 10}
"""Four countries, and null; activity has two kinds. Beside other tests a process may get no core for what is left of X when the
broker is back: then the rows of the window that ended meanwhile are late."""


def slowed(name: str, engine: str, pace: Pace) -> dict[str, Any]:
    """An example's query, as its shop runs here."""
    text = (EXAMPLES / f"{name}.yaml").read_text()
    text = text.replace("1m", f"{pace.window_s}s").replace("30s", f"{pace.within_s}s")
    query = load_query(text).dump()
    streams = {stream: {**spec, **pace.times} for stream, spec in query["streams"].items()}
    tuning = {**query.get("tuning", {}), **(QUIETLY if engine == "spark" else {})}
    return {**query, "streams": streams, "engine": engine, "tuning": tuning}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("names", "engine", "pace"),
    [
        (["revenue", "activity"], "native", FAST),
        (["revenue"], "spark", FAST),
        (["activity"], "spark", FAST),
        (["revenue", "activity"], "native", AS_IT_IS),
        (["revenue"], "spark", AS_IT_IS),
    ],
    ids=["both", "revenue in Spark", "activity in Spark", "both as it is", "revenue in Spark as it is"],
)
def test_the_shop_loses_nothing_answers_within_x_and_closes_its_last_windows(
    tmp_path: Path, names: list[str], engine: str, pace: Pace
) -> None:
    with ExitStack() as running:
        deployments: list[Deployment] = []
        for name in names:
            beside = deployments[0] if deployments else None
            root = tmp_path / name
            root.mkdir()
            query = slowed(name, engine, pace)
            deployment = Deployment(root, query, beside=beside, has_links=False, partitions=PARTITIONS)
            deployments.append(running.enter_context(deployment))
        for deployment in deployments:
            deployment.wait_ready()
        start = datetime.now(UTC) + timedelta(seconds=0.5)
        streams = {stream for deployment in deployments for stream in deployment.spec.streams}
        records = [record for record in make(1, pace.seconds, start, pace.speed) if record.stream in streams]
        kafka = deployments[0].kafka["a"]
        sending = threading.Thread(target=produce, args=(kafka.bootstrap, records, start), daemon=True)
        sending.start()
        time.sleep(pace.freezes_after_s + (pace.freezes_at_s - pace.freezes_after_s - time.time()) % pace.window_s)
        kafka.pause()
        time.sleep(pace.frozen_s)
        kafka.resume()
        sending.join(timeout=120 + pace.seconds / pace.speed)
        assert not sending.is_alive()
        for deployment in deployments:
            check(deployment, [record for record in records if record.stream in deployment.spec.streams], pace)


def check(deployment: Deployment, records: list[Record], pace: Pace) -> None:
    """Against what was sent to the streams of its query."""
    name = deployment.spec.name
    expected = oracle(deployment.root, records, SQL[name], pace.window_s, pace.within_s)
    wait_until(lambda: len(deployment.stable()) >= expected.total(), "all windows are stable", deployment.explain)
    assert lines(deployment.stable()) == expected
    letters = [json.loads(record.value) for record in read_all(deployment.clusters["a"], dead_letter_topic(name))]
    assert Counter(letter["record"] for letter in letters) == Counter(r.value for r in records if not r.counts)
    statuses = deployment.statuses()
    [egress] = [status for process, status in statuses.items() if process.startswith(f"egress.{name}.")]
    print(f"{name}: {egress['new_rows']} new rows, delays in ms {egress['delay_ms']}")
    most = ROWS_OF_A_WINDOW[name] if deployment.spec.engine == "native" and pace is FAST else 0
    assert egress["new_rows"]
    # Beside other tests the machine may keep any process from its work for longer than X: then the time says nothing.
    assert egress["violations"] <= most or "PYTEST_XDIST_WORKER" in os.environ, deployment.explain()
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
