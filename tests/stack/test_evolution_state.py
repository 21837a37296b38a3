"""A query evolves from the state that it has (`--from state`): the new version reads what the old one keeps of its streams, and
shares its sources. In the order of the file: each test goes on with the stack as the one before left it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition

from deployment.evolution import BUILDING, CLAIMING, LEAVING, TAKING_OVER
from deployment.query_record import QueryRecord
from formats.json_text import time_us
from services.kafka.clusters import Cluster
from services.stack.operations import Operations
from tests.stack.test_evolution import (
    KEYS,
    SECOND_US,
    SPEC,
    Feed,
    apply,
    at_states,
    await_windows,
    check,
    given,
    home_of,
    settings_of,
    without_other_topics,
    write_spec,
)
from tests.stack.test_stack import Commands
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.in_order, pytest.mark.xdist_group("servers")]

WINDOW_US = 5 * SECOND_US
COLUMNS = {1: {"rows"}, 2: {"rows", "total"}, 4: {"rows"}}
"""Of each version; the third one is given up."""
OF_SECOND = {"counts-2.control", "counts-2.log.per_key.r0"}


def spec_of(compute: dict[str, str], **changes: Any) -> dict[str, Any]:
    """The query with windows of five seconds, and logs that are trimmed as soon as nobody needs them."""
    window = {"tumbling": "5s"}
    per_key = {"aggregate": "all", "window": window, "by": ["key"], "compute": compute}
    spec = {**SPEC, "operators": {**SPEC["operators"], "per_key": per_key}, "tuning": {**SPEC["tuning"], "history": "1ms"}}
    return without_other_topics({**spec, **changes})


@pytest.fixture(scope="module")
def boreal(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("state") / "data").up("--workers", "0") as commands:
        yield commands


@pytest.fixture(scope="module")
def cluster(boreal: Commands) -> Cluster:
    return home_of(boreal)


@pytest.fixture(scope="module")
def feed(boreal: Commands, cluster: Cluster) -> Iterator[Feed]:
    apply(boreal, spec_of({"rows": "count(*)"}))
    with closing(Feed(boreal.status()["kafka"]["a"])) as feeding:
        yield feeding


def topics(cluster: Cluster) -> set[str]:
    """Those of the query's logs and of its control messages."""
    with closing(cluster.make_admin()) as admin:
        found = [topic for topic in admin.list_topics() if topic.startswith("counts")]
    return {topic for topic in found if ".log." in topic or topic.endswith(".control")}


def first_offset(cluster: Cluster, topic: str, partitions: int = 2) -> int:
    with closing(cluster.make_consumer()) as consumer:
        return sum(consumer.beginning_offsets([TopicPartition(topic, number) for number in range(partitions)]).values())


def rows_taken(boreal: Commands) -> int:
    """How many rows the query's sources have logged."""
    return sum(source["rows"] for source in boreal.shown("show", "counts")["streams"].values())


def forget_records(boreal: Commands, cluster: Cluster, feed: Feed, unseen: int = 0) -> None:
    """Delete all that the streams' topics hold, once the sources have it. unseen: how many rows were gone when they began."""
    partitions = [TopicPartition(f"in.{side}", 0) for side in ("left", "right")]
    with feed.paused(), closing(cluster.make_consumer()) as consumer, closing(cluster.make_admin()) as admin:
        wait_until(lambda: unseen + rows_taken(boreal) >= len(feed.rows), "the sources have all rows")
        admin.delete_records(consumer.end_offsets(partitions))


@pytest.mark.soak
def test_a_version_begins_with_the_rows_that_the_other_one_keeps_though_the_topics_hold_them_no_more(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    def kill(name: str) -> None:
        os.kill(boreal.pid(name), signal.SIGKILL)

    await_windows(cluster, 2)
    refused = apply_refused(boreal, spec_of({"rows": "count(*)"}, shards=1))
    assert refused["field"] == "streams.left" and "--from earliest" in refused["fix"]
    forget_records(boreal, cluster, feed)
    with at_states(cluster, {CLAIMING: lambda: kill("monitor"), BUILDING: lambda: kill("source.counts.left")}):
        evolved = apply(boreal, spec_of({"rows": "count(*)", "total": "sum(value)"}), "--evolve", "--from", "state")
    assert (evolved["version"], evolved["evolution"]["state"]) == (2, "taken_over")
    assert {name for name in boreal.processes() if name.startswith("source.")} == {"source.counts.left", "source.counts.right"}
    await_windows(cluster, 2, version=2)
    assert [version for version, _ in check(cluster, feed, COLUMNS, window_us=WINDOW_US)] == [1, 2]
    assert {topic for topic in topics(cluster) if topic.startswith("counts-2.")} == OF_SECOND


def apply_refused(boreal: Commands, spec: dict[str, Any]) -> dict[str, Any]:
    return boreal.refused("query", "apply", write_spec(boreal, spec), "--evolve", "--from", "state")


@pytest.mark.soak
def test_sources_and_their_logs_stay_with_the_version_that_reads_them_and_are_trimmed(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    settled = boreal.json("query", "settle", "counts")
    assert (settled["version"], settled["evolution"]) == (2, None)
    logs = {f"counts.log.{side}" for side in ("left", "right")}
    assert topics(cluster) == {*logs, "counts.control", *OF_SECOND}
    for name in ("source.counts.left", "node.counts-2.r0", "monitor"):
        os.kill(boreal.pid(name), signal.SIGKILL)
    before = {log: first_offset(cluster, log) for log in logs}
    wait_until(lambda: all(first_offset(cluster, log) > before[log] for log in logs), "the logs are trimmed")
    await_windows(cluster, 2, version=2)
    assert [version for version, _ in check(cluster, feed, COLUMNS, window_us=WINDOW_US)] == [1, 2]
    assert set(boreal.shown("show", "counts")["streams"]) == {"left", "right"}


@pytest.mark.soak
def test_a_version_that_is_given_up_leaves_the_sources_and_the_next_one_shares_them_until_the_query_is_deleted(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    given_up: list[QueryRecord] = []
    with (
        closing(Operations(settings_of(boreal))) as operations,
        at_states(cluster, {BUILDING: lambda: given_up.append(operations.roll_back("counts"))}),
    ):
        found = apply(boreal, spec_of({"rows": "count(*)"}), "--evolve", "--from", "state")
    assert (found["version"], found["evolution"], given_up[0].beside) == (2, None, None)
    egress = "egress.counts.a"
    with at_states(cluster, {TAKING_OVER: lambda: os.kill(boreal.pid(egress), signal.SIGKILL)}):
        evolved = apply(boreal, spec_of({"rows": "count(*)"}), "--evolve", "--from", "state")
    assert (evolved["version"], evolved["evolution"]["state"]) == (4, "taken_over")
    with at_states(cluster, {LEAVING: lambda: os.kill(boreal.pid("monitor"), signal.SIGKILL)}):
        boreal.json("query", "settle", "counts")
    await_windows(cluster, 2, version=4)
    assert [version for version, _ in check(cluster, feed, COLUMNS, window_us=WINDOW_US)] == [1, 2, 4]
    boreal.json("query", "delete", "counts")
    assert topics(cluster) == set()


LOOK_S = 0.5


@pytest.mark.soak
def test_states_that_depend_on_all_rows_ever_are_handed_on_to_the_same_operators(
    boreal: Commands, cluster: Cluster, feed: Feed
) -> None:
    """Each key is given once, by whatever version, though no log and no topic has the rows from which the first ones came. Of
    three fragments in a row, two have such a state. A query of the same name has evolved before, and is deleted."""
    if boreal.shown("list")["queries"]:
        boreal.json("query", "delete", "counts")
    unseen = sum(first_offset(cluster, f"in.{side}", 1) for side in ("left", "right"))
    first = {
        "all": {"union": ["left", "right"]},
        "known": {"filter": "all", "where": "value is not null"},
        "pairs": {"distinct": "known", "on": ["key", "value"]},
        "first": {"distinct": "pairs", "on": ["key"]},
    }
    fragments = {"merge": {"operators": ["all", "known"]}, "middle": {"operators": ["pairs"]}, "keys": {"operators": ["first"]}}
    spec = {**spec_of({"rows": "count(*)"}, replicas=2, shards=1, fragments=fragments), "operators": first, "output": "first"}
    spec["tuning"] = {**spec["tuning"], "checkpoint_interval": "500ms"}
    apply(boreal, spec)
    wait_until(lambda: {row["key"] for *_, row in given(cluster)} == set(KEYS), "each key is there", every_s=LOOK_S)
    [gone, *others] = KEYS
    feed.keys = tuple(others)  # of the first key only the state knows from now on
    wait_until(lambda: first_offset(cluster, "counts.log.left", 1) > 0, "rows are trimmed behind checkpoints", every_s=LOOK_S)
    forget_records(boreal, cluster, feed, unseen)
    shown = {"map": "first", "select": {"key": "key", "twice": "value * 2"}}
    with at_states(cluster, {CLAIMING: lambda: os.kill(boreal.pid("monitor"), signal.SIGKILL)}):
        shown_too = {**fragments, "keys": {"operators": ["first", "shown"]}}
        evolved = {**spec, "operators": {**first, "shown": shown}, "output": "shown", "fragments": shown_too}
        taken_over = apply(boreal, evolved, "--evolve", "--from", "state")
    assert (taken_over["version"], taken_over["evolution"]["state"]) == (2, "taken_over")
    rolled_back = boreal.json("query", "rollback", "counts")
    assert (rolled_back["version"], rolled_back["evolution"]["state"]) == (1, "rolled_back")
    again = boreal.json("query", "rollback", "counts")
    assert (again["version"], again["evolution"]["state"]) == (2, "taken_over")
    boreal.json("query", "settle", "counts")
    for replica in ("r0", "r1"):
        os.kill(boreal.pid(f"node.counts-2.{replica}"), signal.SIGKILL)
    feed.keys = KEYS
    wait_until(lambda: feed.rows[-1][1] == gone, "the first key comes again")
    feed.keys = (*KEYS, "new")
    wait_until(lambda: len(given(cluster)) > len(KEYS), "the new key is there", every_s=LOOK_S)
    rows = given(cluster)
    assert Counter(row["key"] for *_, row in rows) == Counter(feed.keys)
    value = min(value for _, key, value in feed.rows if key == "new")
    assert rows[-1] == (len(KEYS), 2, {"time": rows[-1][2]["time"], "key": "new", "twice": 2 * value})
    forget_records(boreal, cluster, feed, unseen)
    # A version with windows needs no such state, and no row from before the checkpoints.
    counted = {**spec, "operators": SPEC["operators"], "output": "per_key"}
    counted.pop("fragments")
    assert apply(boreal, counted, "--evolve", "--from", "state")["version"] == 3
    await_windows(cluster, 2, version=3)
    in_windows = Counter((at // SECOND_US, key) for at, key, _ in feed.rows)
    for *_, row in [each for each in given(cluster) if each[1] == 3]:
        assert row["rows"] == in_windows[time_us(row["window_start"]) // SECOND_US, row["key"]]
    boreal.json("query", "delete", "counts")
    assert topics(cluster) == set()
