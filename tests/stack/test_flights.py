"""A month of flights through the real stack: what any Kafka client reads in q.stable is what DuckDB says of the CSV files.

In every run of the tests, tests/spark/test_backfill.py holds that of the month that it feeds; `make soak` takes more layouts
and engines here."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from bench.deployment import Deployment, wait_until
from boreal.query.spec import load_query
from embedded.file_sources import read_source
from embedded.paced_sources import Pace
from examples.flights.prepare import prepare
from services.kafka.topics import stable_topic
from services.stack.feed import feed
from tests.examples.test_flights import DEPARTURES, EXAMPLES, WEATHER, assert_same, oracle

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers"), pytest.mark.soak]


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("month")
    prepare(folder, 1)
    return folder


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[dict[str, Any]]:
    """The first `count` committed rows, by a client that has nothing in common with ours."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + 30
        while len(rows) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                rows.append(json.loads(message.value() or b""))
        return rows
    finally:
        consumer.close()


def _holds(deployment: Deployment, count: int) -> bool:
    time.sleep(0.5)  # each look reads the whole topic
    return len(deployment.stable()) >= count


@pytest.mark.parametrize(
    ("name", "sql", "shards", "engine"),
    [
        ("departures", DEPARTURES, 1, {"engine": "native"}),
        ("weather", WEATHER, 2, {"engine": "native"}),
        ("departures", DEPARTURES, 4, {"engine": "spark", "replicas": 1}),
        ("departures", DEPARTURES, 2, {"engine": "native"}),
        ("weather", WEATHER, 1, {"engine": "native"}),
        ("departures", DEPARTURES, 1, {"engine": "spark"}),
        ("weather", WEATHER, 1, {"engine": "spark"}),
        ("weather", WEATHER, 4, {"engine": "spark"}),
    ],
    ids=[
        "departures",
        "weather, 2 shards",
        "departures, 4 shards in Spark",
        "departures, 2 shards",
        "weather",
        "departures in Spark",
        "weather in Spark",
        "weather, 4 shards in Spark",
    ],
)
def test_a_month(tmp_path: Path, month: Path, name: str, sql: str, shards: int, engine: dict[str, Any]) -> None:
    query = {**load_query(EXAMPLES / f"{name}.yaml").dump(), "shards": shards, **engine}
    expected = oracle(month, sql)
    with Deployment(tmp_path, query, has_links=engine["engine"] == "native") as deployment:
        deployment.wait_ready(within_s=240.0)
        streams = deployment.spec.streams
        rows_of = {name: read_source(name, spec, str(month / f"{name}.csv")) for name, spec in streams.items()}
        feed(dict.fromkeys(rows_of, deployment.clusters["a"]), streams, rows_of, Pace(rate=50_000), ended=True)
        until = partial(_holds, deployment, len(expected))
        wait_until(until, "all rows are stable", deployment.explain)
        rows = deployment.stable()
        if shards == 1:
            assert_same(rows, expected)
        else:
            # Rows of equal time stand in the order of their shards (R1), and not of their keys.
            order = list(expected[0])
            assert_same(sorted(rows, key=lambda row: [row["window_end"], *(row[k] for k in order[2:3])]), expected)
            assert [row["window_end"] for row in rows] == sorted(row["window_end"] for row in rows)
        again = read_with_confluent(deployment.kafka["a"].bootstrap, stable_topic(deployment.spec.name), len(rows))
        assert again == rows
