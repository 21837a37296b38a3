"""A query that runs gets other operators: its clients read on, and lose and repeat nothing. In the order of the file: each test
goes on with the stack as the one before left it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka import KafkaProducer

from boreal.client import CorrectedStream, Stable
from deployment.evolution import BUILDING, ROLLING_BACK, TAKING_OVER, state_of
from deployment.query_record import QueryRecord
from formats.client_headers import ID, VERSION
from formats.json_text import moment, time_us
from services.kafka.clusters import Cluster
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from tests.registry import RegistryServer
from tests.stack.lives import records_of, replayed, values_of
from tests.stack.test_stack import PATIENCE_S, Commands
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.in_order, pytest.mark.xdist_group("servers")]

SPEC: dict[str, Any] = {
    "name": "counts",
    "streams": {
        side: {"topic": f"in.{side}", "time": "at", "time_unit": "us", "schema": {"key": "string", "value": "int"}}
        for side in ("left", "right")
    },
    "operators": {
        "all": {"union": ["left", "right"]},
        "per_key": {"aggregate": "all", "window": {"tumbling": "1s"}, "by": ["key"], "compute": {"rows": "count(*)"}},
    },
    "output": "per_key",
    "delay_threshold": "6s",
    "shards": 2,
    "engine": "native",
    "records": "avro",
    "debezium": True,
    "tuning": {"boundary_interval": "400ms", "heartbeat": "400ms"},
}
KEYS: tuple[str, ...] = ("a", "b", "c")
SECOND_US = 1_000_000


def without_other_topics(spec: dict[str, Any]) -> dict[str, Any]:
    """The query with no topics of results but q.out and q.stable."""
    return {key: value for key, value in spec.items() if key not in ("records", "debezium")}


def spec_of(**compute: str) -> dict[str, Any]:
    """The query with other columns."""
    per_key = {**SPEC["operators"]["per_key"], "compute": compute}
    return {**SPEC, "operators": {**SPEC["operators"], "per_key": per_key}}


FIRST, SECOND = spec_of(rows="count(*)"), spec_of(rows="count(*)", total="sum(value)")
THIRD = {**spec_of(rows="count(*)", least="min(value)"), "shards": 1}
FOURTH = {**SECOND, "delay_threshold": "3s"}
COLUMNS = {1: {"rows"}, 2: {"rows", "total"}, 3: {"rows", "least"}, 4: {"rows", "total"}}
"""Of each version."""
STALL_S = 0.5


class Feed:
    """Writes rows into both streams, in the present, for as long as it is not closed. `rows`: those that were written; `keys`:
    theirs, in turn; `repeats`: whether former rows come again beside them, with another time; `stall_s`: how long the machine
    has stopped it at most, since that was set to 0. bootstraps: of the left stream's Kafka, and of the right one's if that is
    another."""

    def __init__(self, *bootstraps: str) -> None:
        self.rows: list[tuple[int, str, int]] = []
        self.keys = KEYS
        self.repeats = False
        self.stall_s = 0.0
        self._producers = [KafkaProducer(bootstrap_servers=bootstrap, linger_ms=0) for bootstrap in bootstraps]
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._closing.wait(0.02):
            self.stall_s = max(self.stall_s, time.monotonic() - last)
            last = time.monotonic()
            with self._lock:
                value = len(self.rows)
                at, key = time.time_ns() // 1_000, self.keys[value % len(self.keys)]
                self._send(at, key, value)
                self.rows.append((at, key, value))
                if self.repeats:
                    self._send(at, *self.rows[value // 2][1:])

    def _send(self, at: int, key: str, value: int) -> None:
        record = json.dumps({"at": at, "key": key, "value": value}).encode()
        if value % 2:
            self._producers[0].send("in.left", record)
        else:
            self._producers[-1].send("in.right", record)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What was written is in Kafka, and nothing more is written meanwhile."""
        with self._lock:
            for producer in self._producers:
                producer.flush()
            yield

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for producer in self._producers:
            producer.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="module")
def boreal(tmp_path_factory: pytest.TempPathFactory, servers: Path, registry: RegistryServer) -> Iterator[Commands]:
    variables = {"BOREAL_REGISTRIES__MAIN__URL": registry.url}
    with Commands(tmp_path_factory.mktemp("evolution") / "data", variables).up("--allow-chaos") as commands:
        yield commands


@pytest.fixture(scope="module")
def cluster(boreal: Commands) -> Cluster:
    return home_of(boreal)


@pytest.fixture(scope="module")
def feed(boreal: Commands, cluster: Cluster) -> Iterator[Feed]:
    apply(boreal, FIRST)
    with closing(Feed(boreal.status()["kafka"]["a"])) as feeding:
        yield feeding


def settings_of(boreal: Commands) -> ServiceSettings:
    """Those by which a stack's servers are reached."""
    status = boreal.status()
    sites = {site: {"bootstrap": bootstrap} for site, bootstrap in status["kafka"].items()}
    return ServiceSettings.model_validate({"sites": sites, "redis": {"url": status["redis"]}})


def home_of(boreal: Commands) -> Cluster:
    return Cluster("a", settings_of(boreal), "test")


def write_spec(boreal: Commands, spec: dict[str, Any]) -> str:
    """The path of a query file."""
    path = boreal.data.parent / "counts.yaml"
    path.write_text(json.dumps(spec))
    return str(path)


def apply(boreal: Commands, spec: dict[str, Any], *arguments: str, status: int = 0) -> dict[str, Any]:
    return boreal.json("query", "apply", write_spec(boreal, spec), *arguments, status=status)


def given(cluster: Cluster) -> list[tuple[int, int, dict[str, Any]]]:
    """The rows of q.stable, in order: id, version, row."""
    found = records_of(cluster, "counts.stable", read_committed=True)
    headers = [dict(record.headers) for record in found]
    return [
        (int(of[ID]), int(of.get(VERSION, b"1")), json.loads(record.value)) for of, record in zip(headers, found, strict=True)
    ]


def await_windows(cluster: Cluster, count: int, version: int | None = None) -> None:
    """Wait for results of so many more windows, of a version."""

    def ends() -> set[str]:
        return {row["window_end"] for _, of, row in given(cluster) if version in (None, of)}

    before = len(ends())
    deadline = time.monotonic() + PATIENCE_S
    while len(ends()) < before + count:
        assert time.monotonic() < deadline, f"{count} more windows of version {version}"
        time.sleep(0.5)


def check(
    cluster: Cluster,
    feed: Feed,
    columns: Mapping[int, Collection[str]] = COLUMNS,
    out: str = "counts.out",
    window_us: int = SECOND_US,
) -> list[tuple[int, int]]:
    """Clients have each row once, and as the version in charge then computes it. The versions, each with the end of the first
    window that it gave. columns: of each version; window_us: how long its windows are."""
    rows = given(cluster)
    assert [id_ for id_, _, _ in rows] == list(range(len(rows)))
    assert [json.loads(text) for text in replayed(values_of(cluster, out))][: len(rows)] == [row for *_, row in rows]
    last_us = max(time_us(row["window_end"]) for *_, row in rows)
    expected: dict[tuple[int, str], list[int]] = {}
    for at, key, value in feed.rows:
        end = (at // window_us + 1) * window_us
        if end < last_us:
            expected.setdefault((end, key), []).append(value)
    found = Counter((time_us(row["window_end"]), row["key"]) for *_, row in rows if time_us(row["window_end"]) < last_us)
    assert found == Counter(dict.fromkeys(expected, 1))
    versions: list[tuple[int, int]] = []
    for _, version, row in rows:
        end = time_us(row["window_end"])
        if end >= last_us:
            continue
        values = expected[end, row["key"]]
        of_all = {"rows": len(values), "total": sum(values), "least": min(values)}
        assert {name: row[name] for name in of_all if name in row} == {name: of_all[name] for name in columns[version]}
        if not versions or versions[-1][0] != version:
            versions.append((version, end))
    return versions


def check_reader(boreal: Commands, cluster: Cluster) -> None:
    """Boreal's own client reads on through all changes, in a frame too."""
    rows = [row for *_, row in given(cluster)]
    with CorrectedStream("counts", boreal.status()["kafka"]["a"]) as stream:
        stable = [change for change in stream.changes(until="now") if isinstance(change, Stable)]
    assert [change.id for change in stable] == list(range(len(stable)))
    assert [change.data for change in stable][: len(rows)] == rows
    with CorrectedStream("counts", boreal.status()["kafka"]["a"]) as stream:
        table = stream.frame().to_arrow()
    assert {"rows", "total", "least"} <= set(table.column_names)
    assert 0 < table["total"].null_count < table.num_rows


def check_other_topics(cluster: Cluster, registry: RegistryServer) -> None:
    """q.records has the rows of q.stable, and q.debezium ends with the newest of each key, whatever version gave them."""
    rows = given(cluster)
    wait_until(lambda: len(records_of(cluster, "counts.records", read_committed=True)) >= len(rows), "q.records")
    client = SchemaRegistryClient({"url": registry.url})
    read, context = AvroDeserializer(client), SerializationContext("counts.records", MessageField.VALUE)
    for record, (id_, version, row) in zip(records_of(cluster, "counts.records", read_committed=True), rows, strict=False):
        headers = dict(record.headers)
        assert (int(headers[ID]), int(headers.get(VERSION, b"1"))) == (id_, version)
        decoded = cast(dict[str, Any], read(record.value, context))
        edges = {name: moment(int(decoded[name].timestamp() * SECOND_US)) for name in ("window_start", "window_end")}
        assert decoded | edges == row | {name: moment(time_us(row[name])) for name in edges}
    of_columns = {frozenset(columns) for columns in COLUMNS.values()}
    assert client.get_versions("counts.records-value") == list(range(1, len(of_columns) + 1)), "one for each set of columns"
    table: dict[str, dict[str, Any]] = {}
    for record in records_of(cluster, "counts.debezium"):
        value: dict[str, Any] = json.loads(record.value)["payload"] if record.value is not None else {"after": None}
        key = json.loads(record.key)["payload"]["key"]
        if "before" in value:
            known = table.get(key)
            assert value["before"] == (known and {name: known.get(name) for name in value["before"]})
        table[key] = value["after"]
    assert set(table) == set(KEYS)
    ends = [time_us(row["window_end"]) for row in table.values()]
    assert min(ends) >= max(time_us(row["window_end"]) for *_, row in rows) - SECOND_US


def slowest_ms(cluster: Cluster, at_us: int) -> tuple[float, float]:
    """The longest delay of a stable row, from the ingest of its last input until it was written: over the switch at this time,
    and in the seconds before."""
    found = [record for record in values_of(cluster, "counts.out") if record["type"] == "stable"]
    delays = [(time_us(record["event_time"]) - at_us, record["emitted_ms"] - record["ingest_ms"]) for record in found]
    over = [delay for after, delay in delays if -2 * SECOND_US <= after < 3 * SECOND_US]
    before = [delay for after, delay in delays if -5 * SECOND_US <= after < -2 * SECOND_US]
    return max(over), max(before, default=0.0)


@contextmanager
def at_states(cluster: Cluster, acts: Mapping[str, Callable[[], object]]) -> Iterator[None]:
    """Do something when the query comes to a state from now on, once for each. The states are all come to before this ends."""
    with closing(QueryRegistry(cluster)) as registry:
        left, before = dict(acts), registry.load()["counts"].revision

        def see(name: str, record: QueryRecord | None) -> None:
            is_new = record is not None and record.revision > before  # a watch begins with all that there was
            act = left.pop(str(state_of(record)), None) if record is not None and is_new else None
            if act is not None:
                act()

        with closing(registry.watch(see)):
            yield
    assert not left, f"it was never {', '.join(left)}"


def slowest_new_ms(cluster: Cluster, since_us: int, out: str = "counts.out") -> float:
    """The longest delay of a result when it was given first, tentative or stable."""
    first: dict[tuple[str, str], float] = {}
    for record in values_of(cluster, out):
        if record["type"] in ("stable", "tentative") and time_us(record["event_time"]) >= since_us:
            key = record["event_time"], record["data"]["key"]
            first.setdefault(key, record["emitted_ms"] - record["ingest_ms"])
    return max(first.values())


@pytest.mark.soak
def test_a_version_with_another_column_takes_over_and_no_row_is_lost_or_repeated(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    await_windows(cluster, 3)
    refused = boreal.refused("query", "apply", str(boreal.data.parent / "counts.yaml"), "--evolve")
    assert "runs as the file says" in refused["problem"]
    evolved = apply(boreal, SECOND, "--evolve")
    assert (evolved["version"], evolved["evolution"]["state"], evolved["evolution"]["version"]) == (2, "taken_over", 1)
    await_windows(cluster, 4, version=2)
    [(first, _), (second, at)] = check(cluster, feed)
    assert (first, second) == (1, 2)
    over, before = slowest_ms(cluster, at - SECOND_US)
    print(f"\nslowest stable row over the switch: {over:.0f} ms; before it: {before:.0f} ms; X: 6,000 ms")
    shown = boreal.shown("show", "counts")
    assert shown["spec"]["operators"]["per_key"]["compute"] == {"rows": "count(*)", "total": "sum(value)"}
    assert shown["version"] == 2
    [summary] = boreal.shown("list")["queries"]
    assert summary["name"] == "counts", "the versions are no queries of their own"


@pytest.mark.soak
def test_a_rollback_while_the_egress_is_killed_gives_the_former_rows_again_each_once(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    """At about the time at which it changes to the other version."""

    def kill() -> None:
        os.kill(boreal.pid("egress.counts.a"), signal.SIGKILL)

    killer = threading.Timer(3.0, kill)
    killer.start()
    rolled_back = boreal.json("query", "rollback", "counts")
    killer.join()
    assert (rolled_back["version"], rolled_back["evolution"]["state"]) == (1, "rolled_back")
    await_windows(cluster, 3, version=1)
    assert [version for version, _ in check(cluster, feed)] == [1, 2, 1]


@pytest.mark.soak
def test_the_other_version_is_let_go_and_the_query_evolves_again_into_one_with_other_shards(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    refused = boreal.refused("query", "apply", str(boreal.data.parent / "counts.yaml"), "--evolve")
    assert "boreal query settle counts" in refused["fix"]
    settled = boreal.json("query", "settle", "counts")
    assert (settled["version"], settled["evolution"]) == (1, None)
    with closing(cluster.make_admin()) as admin:
        assert not [topic for topic in admin.list_topics() if topic.startswith("counts-2.")]
    evolved = apply(boreal, THIRD, "--evolve", "--from", moment(time.time_ns() // 1_000 - 5 * SECOND_US))
    assert (evolved["version"], evolved["evolution"]["state"]) == (3, "taken_over")
    await_windows(cluster, 3, version=3)
    assert [version for version, _ in check(cluster, feed)] == [1, 2, 1, 3]


@pytest.mark.soak
def test_a_monitor_that_is_killed_in_each_state_goes_on_with_the_next_step_and_a_cut_in_the_midst_costs_no_row(
    boreal: Commands, cluster: Cluster, feed: Feed, registry: RegistryServer
) -> None:
    def kill() -> None:
        os.kill(boreal.pid("monitor"), signal.SIGKILL)

    boreal.json("query", "settle", "counts")
    with at_states(cluster, {BUILDING: kill, TAKING_OVER: kill}):
        evolved = apply(boreal, FOURTH, "--evolve", "--from", "latest")
    assert (evolved["version"], evolved["evolution"]["state"]) == (4, "taken_over")
    await_windows(cluster, 3, version=4)
    assert [version for version, _ in check(cluster, feed)] == [1, 2, 1, 3, 4]
    # X is 3 s for what version 4 gives, so a cut of 5 s makes rows tentative, also beyond the time of the takeover.
    feed.stall_s, since_us = 0.0, time.time_ns() // 1_000
    struck: list[dict[str, Any]] = []
    cutter = threading.Thread(target=lambda: struck.append(boreal.begin("fault", "cut", "left", "for", "5s")))
    with at_states(cluster, {ROLLING_BACK: kill, TAKING_OVER: cutter.start}):
        rolled_back = boreal.json("query", "rollback", "counts")
    cutter.join()
    assert (rolled_back["version"], rolled_back["evolution"]["state"]) == (3, "rolled_back")
    assert set(struck[0]["targets"]) == {"source.counts-4.left", "source.counts-3.left"}, "the stream of both versions is cut"
    await_windows(cluster, 8, version=3)
    assert [version for version, _ in check(cluster, feed)] == [1, 2, 1, 3, 4, 3]
    slowest = slowest_new_ms(cluster, since_us)
    tentative = sum(record["type"] == "tentative" for record in values_of(cluster, "counts.out"))
    print(f"\nslowest new row, with a cut in the midst: {slowest:.0f} ms; X: 6,000 ms; tentative rows: {tentative}")
    if feed.stall_s < STALL_S:
        assert slowest <= 6_000
    check_reader(boreal, cluster)
    check_other_topics(cluster, registry)
