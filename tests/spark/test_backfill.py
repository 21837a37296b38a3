"""A month of flights through the real stack is what DuckDB says of the CSV files, whichever client reads it; and what Spark
computes anew from the stack's logs is the same.

One deployment serves all tests: departures in two shards, an input of which is cut off while it is fed, and the weather join in
one. So does one Spark session, but where the command is run as users run it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import struct, to_json

import services.egress.history
import spark_jobs.session
from bench.deployment import Deployment, read_all, wait_until
from boreal.model.frames import Boundary, LogId
from boreal.query.spec import load_query
from boreal.spark import register
from boreal_cli import main
from boreal_cli.history import parse_time
from boreal_cli.result_files import json_lines
from embedded.file_sources import read_source
from embedded.paced_sources import Pace
from examples.flights.prepare import prepare
from services.egress.history import ResultRange, SourceExtent, narrow_extent, read_source_extent, resolve_range
from services.kafka.topics import TopicSpec, ensure, stable_topic
from services.stack.feed import feed
from services.storage.kafka_log import KafkaLogStore
from spark_jobs.batch import recompute
from tests.examples.test_flights import DEPARTURES, EXAMPLES, WEATHER, assert_same, oracle
from tests.spark.jobs import environment_of
from tests.stack.test_flights import read_with_confluent

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

ROWS_PER_SECOND = 6_000
CUT_S = 3.0
FRAME_US = 3 * 24 * 3_600_000_000
"""The most that a frame spans: days of flights go by in a boundary interval."""
OPTIONS: dict[str, Any] = {
    "engine": "native",
    "replicas": 1,
    "delay_threshold": "2s",
    "tuning": {"history": "1h", "bucket": "200ms", "boundary_interval": "200ms", "heartbeat": "500ms"},
}


@dataclass
class Fed:
    """Both queries, once all that they were fed is stable. expected: what DuckDB makes of the same files."""

    departures: Deployment
    weather: Deployment
    expected: dict[str, list[dict[str, Any]]]

    def of(self, name: str) -> Deployment:
        return self.departures if name == "departures" else self.weather


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fed]:
    """Once all is stable the processes are ended: what is computed anew needs only what Kafka has."""
    folder = tmp_path_factory.mktemp("month")
    prepare(folder, 1)
    departures = {**load_query(EXAMPLES / "departures.yaml").dump(), **OPTIONS, "shards": 2}
    weather = {**load_query(EXAMPLES / "weather.yaml").dump(), **OPTIONS}
    expected = {"departures": oracle(folder, DEPARTURES), "weather_delays": oracle(folder, WEATHER)}
    streams = load_query(weather).streams
    rows = {name: read_source(name, stream, str(folder / f"{name}.csv")) for name, stream in streams.items()}
    flights = {name: held for name, held in rows.items() if name != "weather"}
    pace = Pace(rate=ROWS_PER_SECOND)
    with Deployment(tmp_path_factory.mktemp("departures"), departures) as one:
        home = one.clusters["a"]
        one.wait_ready()
        feeding = threading.Thread(target=lambda: feed(dict.fromkeys(streams, home), streams, flights, pace, ended=True))
        feeding.start()
        time.sleep(1.0)
        with one.cut("source.jfk"):
            time.sleep(CUT_S)
        feeding.join()
        wait_until(partial(_holds, one, len(expected["departures"])), "all rows are stable", one.explain)
        one.end_services()
        with Deployment(tmp_path_factory.mktemp("weather"), weather, beside=one, has_links=False) as other:
            feed({"weather": home}, streams, {"weather": rows["weather"]}, pace, ended=True)
            wait_until(partial(_holds, other, len(expected["weather_delays"])), "all rows are stable", other.explain)
            other.end_services()
            yield Fed(one, other, expected)


def _holds(deployment: Deployment, count: int) -> bool:
    time.sleep(0.5)  # each look reads the whole topic
    return len(deployment.stable()) >= count


@pytest.fixture
def boreal(fed: Fed, session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a command in this process, with the session that there is."""
    for name, value in environment_of(fed.departures.settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(spark_jobs.session, "open_session", lambda *_: session)
    monkeypatch.setattr(spark_jobs.session, "close_session", lambda _: None)
    return lambda *arguments: main([str(argument) for argument in arguments])


def time_of(text: str) -> int:
    found = parse_time("", text)
    assert found is not None
    return found


def between(rows: list[dict[str, Any]], since: str, until: str) -> list[dict[str, Any]]:
    """The windows that end in a range of time; rows of DuckDB or of a client."""

    def end(row: dict[str, Any]) -> str:
        edge = row["window_end"]
        return edge if isinstance(edge, str) else edge.strftime("%Y-%m-%dT%H:%M:%SZ")

    return [row for row in rows if since < end(row) <= until]


def frames_of(held: SourceExtent) -> int:
    return sum(end - start for found in held.offsets.values() for start, end in found.values())


def in_order_of_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of equal time stand in the order of their shards (R1), and not of their keys, as DuckDB has them."""
    return sorted(rows, key=lambda row: (row["window_end"], list(row.values())[2]))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["departures", "weather_delays"])
def test_a_month_through_the_stack_is_what_duckdb_says_whoever_reads_it(fed: Fed, name: str) -> None:
    deployment = fed.of(name)
    rows = deployment.stable()
    assert_same(in_order_of_keys(rows), fed.expected[name])
    assert [row["window_end"] for row in rows] == sorted(row["window_end"] for row in rows)
    assert read_with_confluent(deployment.kafka["a"].bootstrap, stable_topic(name), len(rows)) == rows


@pytest.mark.soak
def test_a_month_that_plain_spark_reads_is_what_duckdb_says(fed: Fed, session: SparkSession) -> None:
    register(session)
    options = {"query": "departures", "bootstrap": fed.departures.kafka["a"].bootstrap}
    found = session.read.format("boreal").options(**options).load()
    texts = found.select(to_json(struct("*"), {"ignoreNullFields": "false"}).alias("row")).collect()
    rows = [json.loads(text.row.replace(".000Z", "Z")) for text in texts]
    assert_same(in_order_of_keys(rows), fed.expected["departures"])


@pytest.mark.soak
@pytest.mark.parametrize("name", ["departures", "weather_delays"])
def test_a_range_of_days_is_what_duckdb_finds_and_what_clients_were_given(fed: Fed, session: SparkSession, name: str) -> None:
    deployment = fed.of(name)
    assert any(record["type"] == "tentative" for record in fed.departures.changes()), "the cut has gone unnoticed"
    since, until = "2013-01-05T00:00:00Z", "2013-01-11T12:00:00Z"
    held = read_source_extent(deployment.clusters, deployment.layout)
    wanted = resolve_range(deployment.spec, deployment.layout, held, time_of(since), time_of(until), held.complete)
    assert wanted == ResultRange(time_of(since), time_of(until))
    whole = frames_of(held)
    held = narrow_extent(deployment.clusters, deployment.layout, held, wanted)
    if name == "departures":  # the others were read in a few frames
        assert frames_of(held) < whole * 2 / 3, "a week is read by reading all of the month"
    schema = deployment.layout.plan.output.schema
    batches = recompute(session, deployment.settings, deployment.spec, deployment.layout, held, wanted)
    lines = [line for batch in batches for line in json_lines(schema, batch).splitlines()]
    rows = [json.loads(line) for line in lines]
    assert len(rows) > 100
    assert rows == between(deployment.stable(), since, until)
    assert_same(in_order_of_keys(rows), between(fed.expected[name], since, until))


@pytest.mark.soak
def test_a_query_is_verified_after_a_fault_and_its_correction(fed: Fed) -> None:
    """As users run it: a process of its own, and stdout with nothing but the result."""
    environment = {**os.environ, **environment_of(fed.departures.settings)}
    command = [sys.executable, "-m", "boreal", "verify", "departures", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    count = len(fed.expected["departures"])
    assert (found["same"], found["given"], found["recomputed"], found["first_difference"]) == (True, count, count, None)
    assert (found["from"], found["to"]) == (None, None)


@pytest.mark.soak
def test_what_was_given_wrongly_is_found(
    fed: Fed, boreal: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy of q.stable in which one value is another."""
    cluster, right = fed.weather.clusters["a"], stable_topic("weather_delays")
    wrong = "weather_delays.tampered"
    ensure(cluster, [TopicSpec(wrong, 1)])
    with closing(cluster.make_producer()) as producer:
        for record in read_all(cluster, right, read_committed=True):
            value = record.value
            if ("id", b"100") in record.headers:
                value = json.dumps({**json.loads(value), "flights": 1_000}, separators=(",", ":")).encode()
            producer.send(wrong, value, headers=record.headers, partition=0)
        producer.flush()
    monkeypatch.setattr(services.egress.history, "stable_topic", lambda _: wrong)
    assert boreal("verify", "weather_delays", "--to", "2013-01-15", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["same"]
    assert found["given"] == found["recomputed"] > 101
    assert (found["first_difference"]["row"], found["first_difference"]["id"]) == (101, 100)
    given, computed = (json.loads(found["first_difference"][name]) for name in ("given", "recomputed"))
    assert given == {**computed, "flights": 1_000}
    assert boreal("verify", "weather_delays", "--from", "2013-01-15", "--to", "2013-01-16") == 0
    assert "same: " in capsys.readouterr().out


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_backfilled_rows_go_to_a_file_of_any_kind(
    fed: Fed, boreal: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    out = tmp_path / f"rows.{kind}"
    assert boreal("backfill", "weather_delays", "--from", "2013-01-07", "--out", out, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    expected = between(fed.expected["weather_delays"], "2013-01-07T00:00:00Z", "2014")
    assert (told["rows"], told["from"], told["to"]) == (len(expected), "2013-01-07T00:00:00.000000Z", None)
    read = {"parquet": "read_parquet", "csv": "read_csv", "jsonl": "read_json"}[kind]
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        found = database.execute(f"select * from {read}('{out}')")
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    assert names == list(expected[0])
    assert [row["window_end"].replace(tzinfo=None) for row in rows] == [row["window_end"] for row in expected]
    assert [row["origin"] for row in rows] == [row["origin"] for row in expected]
    assert [row["mean_wind"] for row in rows] == pytest.approx([row["mean_wind"] for row in expected], nan_ok=True)
    assert boreal("backfill", "weather_delays", "--out", out) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.soak
def test_without_a_java_one_line_says_so(
    boreal: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert boreal("verify", "departures") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "JAVA_HOME" in line


@pytest.mark.soak
def test_a_range_that_the_logs_cannot_answer_for_is_refused(
    fed: Fed, boreal: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The last test: a log is trimmed as its source would, to where a reader once needed it from."""
    layout = fed.departures.layout
    with closing(KafkaLogStore(fed.departures.clusters, layout)) as store:
        log = store.open(LogId("ewr", "", 0))
        made = store.open(layout.own_logs(layout.instances("r0")[0])[0])
        anchors = [frame.anchor for _, frame in made.read(0, 1_000_000) if isinstance(frame, Boundary) and frame.anchor]
        anchor = anchors[len(anchors) // 2]
        log.trim(dict(anchor.inputs)["ewr/0"] - 1)
        assert log.start > 0
    assert boreal("backfill", "departures", "--from", "2013-01-01", "--json") == 2
    error = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    assert (error["field"], error["value"]) == ("--from", "2013-01-01T00:00:00.000000Z")
    assert "tuning.history, now 1h" in error["fix"]
    earliest = error["fix"].split()[2]
    assert anchor.needs - FRAME_US <= time_of(earliest) < anchor.needs + 600_000_000, "a log is trimmed by whole frames"
    for since in ([], ["--from", earliest]):
        assert boreal("verify", "departures", *since, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["from"] == earliest
        rows = between(fed.departures.stable(), earliest.replace(".000000Z", "Z"), "2014")
        assert 0 < found["given"] == len(rows) < len(fed.expected["departures"])
    assert boreal("verify", "departures", "--from", "2013-01-01", "--json") == 2
