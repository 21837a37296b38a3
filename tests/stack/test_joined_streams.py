"""Queries that read the same streams share one source and one log of each, and nothing that is done to one disturbs another. In
the order of the file: each test goes on with the stack as the one before left it."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition

from formats.json_text import time_us
from services.kafka.clusters import Cluster
from tests.stack.lives import records_of, values_of
from tests.stack.test_evolution import SECOND_US, SPEC, Feed, apply, home_of, without_other_topics, write_spec
from tests.stack.test_stack import Commands
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.in_order, pytest.mark.xdist_group("servers")]

COMPUTE = {"first": {"rows": "count(*)"}, "second": {"rows": "count(*)", "total": "sum(value)"}}


def spec_of(name: str, **changes: Any) -> dict[str, Any]:
    per_key = {**SPEC["operators"]["per_key"], "compute": COMPUTE[name]}
    return without_other_topics({**SPEC, "name": name, "operators": {**SPEC["operators"], "per_key": per_key}, **changes})


@pytest.fixture(scope="module")
def boreal(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("joined") / "data").up("--workers", "2") as commands:
        yield commands


@pytest.fixture(scope="module")
def cluster(boreal: Commands) -> Cluster:
    return home_of(boreal)


@pytest.fixture(scope="module")
def feed(boreal: Commands, cluster: Cluster) -> Iterator[Feed]:
    apply(boreal, spec_of("first"))
    with closing(Feed(boreal.status()["kafka"]["a"])) as feeding:
        yield feeding


def sources(boreal: Commands) -> list[str]:
    return sorted(name for name, process in boreal.processes().items() if process["kind"] == "source")


def topics(cluster: Cluster, of: str) -> set[str]:
    with closing(cluster.make_admin()) as admin:
        return {topic for topic in admin.list_topics() if topic.partition(".")[0].partition("-")[0] == of}


def results(cluster: Cluster, query: str) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in records_of(cluster, f"{query}.stable", read_committed=True)]


def check(cluster: Cluster, feed: Feed, query: str) -> str:
    """The stable results are those of all rows from the first on, each once. Returns the end of the last window."""
    found = results(cluster, query)
    last = max(row["window_end"] for row in found)
    expected: dict[tuple[int, str], list[int]] = {}
    for at, key, value in feed.rows:
        end = (at // SECOND_US + 1) * SECOND_US
        if end < time_us(last):
            expected.setdefault((end, key), []).append(value)
    computed = {place: {"rows": len(values), "total": sum(values)} for place, values in expected.items()}
    of_places = Counter((time_us(row["window_end"]), row["key"]) for row in found if row["window_end"] < last)
    assert of_places == Counter(dict.fromkeys(expected, 1))
    for row in found:
        if row["window_end"] < last:
            place = time_us(row["window_end"]), row["key"]
            assert {name: row[name] for name in COMPUTE[query]} == {name: computed[place][name] for name in COMPUTE[query]}
    return str(last)


def await_more(cluster: Cluster, feed: Feed, *queries: str) -> None:
    """All queries give results of rows that are written from now on, and they are right."""
    at = max(at for at, _, _ in [*feed.rows, (0, "", 0)])

    def are_given(query: str) -> bool:
        return any(time_us(row["window_end"]) > at + 2 * SECOND_US for row in results(cluster, query))

    for query in queries:
        wait_until(partial(are_given, query), f"{query} gives results of what is written now", every_s=0.5)
        check(cluster, feed, query)


def letters(cluster: Cluster, query: str) -> list[str]:
    return [json.loads(record.value)["record"] for record in records_of(cluster, f"{query}.dlq")]


def test_a_query_joins_the_sources_of_one_that_runs_and_gives_results_of_all_rows(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    await_more(cluster, feed, "first")
    before = sources(boreal)
    apply(boreal, spec_of("second"))
    assert sources(boreal) == before == ["source.first.left", "source.first.right"]
    await_more(cluster, feed, "first", "second")
    assert topics(cluster, "second") & {"second.log.left", "second.log.right"} == set()
    shown = boreal.json("stream", "list", "--json")["streams"]
    assert [(each["records"], [reader["source"] for reader in each["readers"]]) for each in shown] == [
        ("a:in.left", ["first.left", "first.left"]),
        ("a:in.right", ["first.right", "first.right"]),
    ]
    assert {name: stream["rows"] > 0 for name, stream in boreal.shown("show", "second")["streams"].items()} == {
        "left": True,
        "right": True,
    }


def test_each_query_has_the_dead_letters_of_what_it_reads(boreal: Commands, cluster: Cluster, feed: Feed) -> None:
    with closing(KafkaProducer(bootstrap_servers=boreal.status()["kafka"]["a"])) as producer:
        producer.send("in.left", b"no row").get(10)

    def both() -> list[list[str]]:
        return [letters(cluster, query) for query in ("first", "second")]

    wait_until(lambda: both() == [["no row"]] * 2, "each has the letter", every_s=0.2)


@pytest.mark.soak
def test_what_a_shared_source_does_is_changed_for_none_of_its_readers(boreal: Commands, feed: Feed) -> None:
    streams = {**SPEC["streams"], "left": {**SPEC["streams"]["left"], "late": "clamp"}}
    refused = boreal.refused("query", "apply", write_spec(boreal, spec_of("first", streams=streams)))
    assert refused["field"] == "streams.left.late" and "second" in refused["problem"]
    assert boreal.refused("query", "set", "first", "tuning.history=1h")["field"] == "tuning.history"
    boreal.run("query", "set", "second", "delay_threshold=5s")


def test_queries_whose_shared_worker_is_killed_go_on_with_all_rows(boreal: Commands, cluster: Cluster, feed: Feed) -> None:
    os.kill(boreal.pid("source.first.left"), signal.SIGKILL)
    await_more(cluster, feed, "first", "second")


@pytest.mark.soak
def test_the_deletion_of_the_query_that_began_a_source_disturbs_no_other_reader(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    wait_until(boreal.is_ready, "all is ready", every_s=0.5)
    restarts = {name: boreal.processes()[name]["restarts"] for name in sources(boreal)}
    wrong = len([value for value in values_of(cluster, "second.out") if value["type"] == "tentative"])
    boreal.run("query", "delete", "first")
    assert topics(cluster, "first") == {"first.control", "first.log.left", "first.log.right"}
    await_more(cluster, feed, "second")
    assert {name: boreal.processes()[name]["restarts"] for name in sources(boreal)} == restarts
    assert len([value for value in values_of(cluster, "second.out") if value["type"] == "tentative"]) == wrong
    with closing(KafkaProducer(bootstrap_servers=boreal.status()["kafka"]["a"])) as producer:
        producer.send("in.right", b"none either").get(10)
    wait_until(lambda: letters(cluster, "second") == ["no row", "none either"], "the source knows who reads it", every_s=0.2)


@pytest.mark.soak
def test_a_query_of_the_same_name_joins_what_is_left_if_it_has_all_rows(boreal: Commands, cluster: Cluster, feed: Feed) -> None:
    apply(boreal, spec_of("first"))
    assert sources(boreal) == ["source.first.left", "source.first.right"]
    await_more(cluster, feed, "first", "second")
    boreal.run("query", "delete", "first")
    await_more(cluster, feed, "second")


@pytest.mark.soak
def test_a_query_has_sources_of_its_own_for_what_the_logs_no_longer_have(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    """Under a name that no other source has."""
    with closing(cluster.make_admin()) as admin:
        partition = TopicPartition("first.log.left", 0)
        admin.delete_records({partition: 20})
    apply(boreal, spec_of("first"))
    assert sources(boreal) == ["source.first-2.left", "source.first.left", "source.first.right"]
    await_more(cluster, feed, "first", "second")


@pytest.mark.soak
def test_a_paused_query_holds_its_rows_while_others_go_on(boreal: Commands, cluster: Cluster, feed: Feed) -> None:
    boreal.run("query", "pause", "first")
    await_more(cluster, feed, "second")
    assert "source.first.right" in sources(boreal)
    boreal.run("query", "resume", "first")
    await_more(cluster, feed, "first", "second")


@pytest.mark.soak
def test_nothing_is_left_of_sources_that_nobody_reads(boreal: Commands, cluster: Cluster, feed: Feed) -> None:
    boreal.run("query", "delete", "second")
    assert topics(cluster, "second") == set()
    assert "first.log.left" not in topics(cluster, "first") and "first.log.right" in topics(cluster, "first")
    await_more(cluster, feed, "first")
    boreal.run("query", "delete", "first")
    assert topics(cluster, "first") == set() and sources(boreal) == []
