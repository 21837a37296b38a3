"""A query whose operators run beside its nodes evolves into one whose operators run in Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.stack.test_evolution import KEYS, Feed, apply, await_windows, check, given, home_of
from tests.stack.test_evolution_state import WINDOW_US, spec_of
from tests.stack.test_stack import Commands
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers"), pytest.mark.soak]


@pytest.fixture
def boreal(tmp_path: Path, servers: Path) -> Iterator[Commands]:
    with Commands(tmp_path / "data").up() as commands:
        yield commands


def test_a_native_query_evolves_into_one_in_spark_and_no_row_is_lost_or_repeated(boreal: Commands) -> None:
    """The job starts while the native version answers; then it reads the rows that this one keeps."""
    cluster = home_of(boreal)
    apply(boreal, spec_of({"rows": "count(*)"}))
    with closing(Feed(boreal.status()["kafka"]["a"])) as feed:
        await_windows(cluster, 1)
        begun = time.monotonic()
        spec = spec_of({"rows": "count(*)", "total": "sum(value)"}, engine="spark")
        evolved = apply(boreal, spec, "--evolve", "--from", "state")
        print(f"\nfrom the command to the takeover: {time.monotonic() - begun:.0f} s")
        assert (evolved["version"], evolved["evolution"]["state"]) == (2, "taken_over")
        assert boreal.processes()["spark.counts-2.r0"]["state"] == "running"
        await_windows(cluster, 2, version=2)
        versions = check(cluster, feed, {1: {"rows"}, 2: {"rows", "total"}}, window_us=WINDOW_US)
        assert [version for version, _ in versions] == [1, 2]


def test_a_state_that_depends_on_all_rows_ever_goes_to_spark_and_back(boreal: Commands) -> None:
    """By a rollback, and by a version that begins with the states of the one in Spark: each key is given once."""
    cluster = home_of(boreal)
    first = {"all": {"union": ["left", "right"]}, "first": {"distinct": "all", "on": ["key"]}}
    native = {**spec_of({"rows": "count(*)"}, replicas=2, shards=1), "operators": first, "output": "first"}
    native["delay_threshold"] = "6s"
    native["tuning"] = {**native["tuning"], "checkpoint_interval": "500ms"}
    in_spark = {**native, "engine": "spark"}
    apply(boreal, native)
    with closing(Feed(boreal.status()["kafka"]["a"])) as feed:

        def given_keys() -> list[str]:
            return [row["key"] for *_, row in given(cluster)]

        def add(key: str) -> None:
            feed.keys = (*feed.keys, key)
            wait_until(lambda: key in given_keys(), f"{key} is given", every_s=0.5)

        wait_until(lambda: set(given_keys()) == set(KEYS), "each key is there", every_s=0.5)
        evolved = apply(boreal, in_spark, "--evolve", "--from", "state")
        assert (evolved["version"], evolved["evolution"]["state"]) == (2, "taken_over")
        add("by Spark")
        back = boreal.json("query", "rollback", "counts")
        assert (back["version"], back["evolution"]["state"]) == (1, "rolled_back")
        add("after the rollback")
        assert boreal.json("query", "rollback", "counts")["version"] == 2
        boreal.json("query", "settle", "counts")
        third = apply(boreal, native, "--evolve", "--from", "state")
        assert (third["version"], third["evolution"]["state"]) == (3, "taken_over")
        boreal.json("query", "settle", "counts")
        add("by the third")
        assert sorted(given_keys()) == sorted(feed.keys)
