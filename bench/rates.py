"""`boreal bench rates`: many queries with rows on a local stack of this machine, and whether each keeps its X.

Each query has a topic of its own with 500 rows a second, X = 1 s and two replicas; all run in two workers. The delays and
violations are those that the queries say of themselves (`boreal query show`).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.busy_queries import busy_query, feeding
from bench.commands import make_topics
from bench.departures_stack import departures_stack
from bench.figures import Figure, as_report
from bench.scale import MEASURE_S, WORKERS, ScaleStack

QUERIES = 20
ROWS_PER_S = 500
SECONDS = 600


def main(queries: int = QUERIES, rate: int = ROWS_PER_S, seconds: int = SECONDS) -> dict[str, Any]:
    """Measure it; twelve minutes. rate: rows a second of each query."""
    with (
        tempfile.TemporaryDirectory(prefix="boreal-bench-") as folder,
        departures_stack(ScaleStack, Path(folder), WORKERS) as (stack, bootstrap),
    ):
        return as_report("rates", list(_figures(stack, bootstrap, queries, rate, seconds)))


def _figures(stack: ScaleStack, bootstrap: str, queries: int, rate: int, seconds: int) -> Iterator[Figure]:
    names = [f"busy{number}" for number in range(queries)]
    make_topics(bootstrap, names)
    for name in names:
        stack.apply_query(busy_query(name))
    with feeding(bootstrap, names, rate):
        until = time.monotonic() + seconds
        taken = stack.taken()
        while time.monotonic() + MEASURE_S < until:
            taken = stack.taken()
        said = [json.loads(stack.run("query", "show", name)) for name in names]
    for kind, of in taken.items():
        yield Figure(f"{queries} queries, {rate} rows/s each: {kind}", of.cores, "cores")
    title = f"{queries} queries, {rate} rows/s each"
    yield Figure(f"{title}: all", sum(of.cores for of in taken.values()), "cores", 1.6, lower_is_better=True)
    yield Figure(f"{title}: rows later than X", sum(query["violations"] for query in said), "rows", 0, lower_is_better=True)
    for name in ("p50", "p99", "max"):
        yield Figure(f"{title}: delay, {name} of the slowest", max(query["delay_ms"][name] or 0 for query in said), "ms")
