"""Queries of users on a local stack, by its commands: one in SQL with sessions, deduplicated rows and a lookup in a compacted
topic, one with operators of a package, which a process may lack, and what is said of a process that a signal has stopped."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from bench.installing import install
from boreal.operators.installed import GROUP
from tests.installing import EXAMPLE, install_example
from tests.stack.test_stack import Commands, call
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.in_order, pytest.mark.xdist_group("servers")]

SITTINGS = """
CREATE STREAM visits (name string, page string) WITH (topic = 'web.visits', time = 'at', time_unit = 's');
CREATE STREAM plans (name string, plan string) WITH (topic = 'web.plans', time = 'at', time_unit = 's');
CREATE VIEW once AS SELECT DISTINCT ON (WITHIN('10s'), name, page) * FROM visits;
CREATE VIEW known AS SELECT * FROM once ASOF LEFT JOIN plans ON once.name = plans.name AND once.time >= plans.time;
CREATE QUERY sittings WITH (delay_threshold = '3s', replicas = 1, engine = 'native') AS
SELECT name, plan, count(*) AS pages FROM known GROUP BY SESSION('30s'), name, plan;
"""
PRICED = """
name: priced
streams:
  orders: {topic: shop.orders, time: at, time_unit: s, schema: {product: string, count: int}}
  prices:
    topic: shop.prices
    time: since
    time_unit: s
    schema:
      product: {type: string, from: key}
      price: "decimal(9, 2)"
      gone: {type: bool, from: tombstone}
operators:
  priced: {lookup: [orders, prices], on: [product], deleted: gone, how: left}
output: priced
delay_threshold: 3s
replicas: 1
engine: native
"""
PLANS = [(0, "ann", "basic"), (0, "bob", "pro"), (100, "ann", "pro")]
VISITS = [
    (10, "ann", "home"), (12, "ann", "home"), (15, "bob", "home"), (20, "ann", "cart"),
    (30, "bob", "home"), (35, "bob", "home"), (110, "ann", "home"),
]  # fmt: skip


@pytest.fixture(scope="module")
def boreal(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[Commands]:
    """A stack whose processes have the package of examples/operators: one for each role, which a fault strikes alone."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("users")
    site = install(folder / "site", project["name"], project["version"], project["entry-points"][GROUP])
    variables = {"PYTHONPATH": os.pathsep.join(map(str, (site, EXAMPLE)))}
    with Commands(folder / "data", variables).up("--allow-chaos") as commands:
        yield commands


def stable_rows(boreal: Commands, query: str, count: int) -> list[dict[str, Any]]:
    """The stable rows of a query, once there are so many."""
    partition, rows = TopicPartition(f"{query}.stable", 0), list[dict[str, Any]]()
    address = boreal.status()["kafka"]["a"]
    with closing(KafkaConsumer(bootstrap_servers=address, isolation_level="read_committed")) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)

        def are_there() -> bool:
            found = consumer.poll(timeout_ms=200).get(partition, [])
            rows.extend(json.loads(record.value) for record in found)
            return len(rows) >= count

        wait_until(are_there, f"{count} rows of {query}")
    return rows


@pytest.mark.soak
def test_a_query_in_sql_finds_sessions_of_rows_that_come_once_with_what_a_compacted_topic_says(
    boreal: Commands, tmp_path: Path
) -> None:
    address = boreal.status()["kafka"]["a"]
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.create_topics([NewTopic("web.plans", 1, 1, topic_configs={"cleanup.policy": "compact"})])
    file = tmp_path / "sittings.sql"
    file.write_text(SITTINGS)
    assert boreal.json("query", "apply", str(file))["live"]
    with closing(KafkaProducer(bootstrap_servers=address)) as producer:
        for at, name, plan in PLANS:
            producer.send("web.plans", json.dumps({"at": at, "name": name, "plan": plan}).encode(), key=name.encode()).get(60)
    visits = tmp_path / "visits.jsonl"
    visits.write_text("".join(json.dumps({"at": at, "name": name, "page": page}) + "\n" for at, name, page in VISITS))
    assert boreal.json("feed", "sittings", f"visits={visits}")["rows"] == len(VISITS)
    assert boreal.json("feed", "sittings", "--end")["ended"]
    rows = stable_rows(boreal, "sittings", 3)
    # bob's page at 30 s comes 15 s after the one before, and counts; that at 35 s does not.
    assert [(row["window_start"][14:19], row["window_end"][14:19], row["name"], row["plan"], row["pages"]) for row in rows] == [
        ("00:10", "00:50", "ann", "basic", 2), ("00:15", "01:00", "bob", "pro", 2), ("01:50", "02:20", "ann", "pro", 1),
    ]  # fmt: skip


@pytest.mark.soak
def test_a_tombstone_in_a_compacted_topic_deletes_a_row_of_the_table_from_its_time_on(boreal: Commands, tmp_path: Path) -> None:
    address = boreal.status()["kafka"]["a"]
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.create_topics([NewTopic("shop.prices", 1, 1, topic_configs={"cleanup.policy": "compact"})])
    file = tmp_path / "priced.yaml"
    file.write_text(PRICED)
    assert boreal.json("query", "apply", str(file))["live"]
    with closing(KafkaProducer(bootstrap_servers=address)) as producer:
        for at_s, product, price in ((0, "tea", "2.50"), (5, "ale", "4.00"), (20, "tea", None), (40, "tea", "3.00")):
            value = None if price is None else json.dumps({"since": at_s, "price": price}).encode()
            producer.send("shop.prices", value, key=product.encode(), timestamp_ms=1_000 * at_s).get(60)
    orders = [(10, "tea"), (19, "tea"), (20, "tea"), (30, "ale"), (39, "tea"), (45, "tea")]
    rows = tmp_path / "orders.jsonl"
    rows.write_text("".join(json.dumps({"at": at, "product": product, "count": 1}) + "\n" for at, product in orders))
    assert boreal.json("feed", "priced", f"orders={rows}")["rows"] == len(orders)
    assert boreal.json("feed", "priced", "--end")["ended"]
    found = [(row["time"][17:19], row["product"], row["price"]) for row in stable_rows(boreal, "priced", len(orders))]
    assert found == [
        ("10", "tea", "2.50"), ("19", "tea", "2.50"), ("20", "tea", None), ("30", "ale", "4.00"), ("39", "tea", None),
        ("45", "tea", "3.00"),
    ]  # fmt: skip
    assert boreal.shown("show", "priced")["streams"]["prices"]["dlq"] == 0


@pytest.mark.soak
def test_operators_of_a_package_run_and_a_process_that_lacks_it_is_named_and_stops_no_other(
    boreal: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_example(tmp_path / "here", monkeypatch)  # the commands run in this process
    file = tmp_path / "vwap.yaml"
    file.write_text((EXAMPLE / "vwap.yaml").read_text().replace("{time: at", "{topic: trades, time: at") + "engine: native\n")
    assert boreal.json("query", "apply", str(file))["live"]
    fed = boreal.json("feed", "vwap", f"trades={EXAMPLE / 'trades.csv'}")
    assert fed["rows"] > 200 and not fed["refused"]
    rows = stable_rows(boreal, "vwap", 2)
    assert rows[0].keys() >= {"window_start", "window_end", "symbol"}

    def replicas() -> dict[str, tuple[str, str]]:
        _, said = call(boreal, "GET", "/queries/vwap/status")
        return {each["replica"]: (each["state"], each["problem"] or "") for each in said["replicas"]}

    # What a process has loaded stays. The one that replaces it does not find the package, as on a machine without.
    [metadata] = Path(boreal.variables["PYTHONPATH"].partition(os.pathsep)[0]).glob("*.dist-info")
    away = metadata.rename(tmp_path / metadata.name)
    psutil.Process(boreal.pid("node.vwap.r1")).kill()
    wait_until(lambda: "operators.tagged.operator" in replicas()["r1"][1], "the status names what is missing")
    assert "is not installed here" in replicas()["r1"][1] and replicas()["r0"][0] != "FAILURE"
    boreal.json("feed", "vwap", "--end")
    count = len(stable_rows(boreal, "vwap", len(rows) + 1))
    assert count > len(rows), "the other replica goes on"
    away.rename(metadata)
    wait_until(lambda: replicas()["r1"][0] == "STABLE", "the replica is back")


def frozen(boreal: Commands) -> list[str]:
    """What `boreal status` calls frozen, where the query says the same."""
    status = boreal.status()
    processes = sorted(process["name"] for process in status["processes"] if process["state"] == "frozen")
    return processes if processes == status["answers"]["vwap"]["frozen"] else ["the monitor has not heard it"]


@pytest.mark.soak
def test_a_process_that_a_signal_has_stopped_is_frozen_in_the_status(boreal: Commands) -> None:
    replica = psutil.Process(boreal.pid("node.vwap.r1"))
    replica.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: frozen(boreal) == ["node.vwap.r1"], "it is seen")
        assert not boreal.status()["ready"]
        assert boreal.shown("show", "vwap")["frozen"] == ["node.vwap.r1"]
    finally:
        replica.send_signal(signal.SIGCONT)
    wait_until(lambda: frozen(boreal) == [], "it goes on")
