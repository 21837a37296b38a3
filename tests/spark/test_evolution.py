"""A query whose operators run beside its nodes evolves into one whose operators run in Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.stack.test_evolution import Feed, apply, await_windows, check, home_of
from tests.stack.test_evolution_state import WINDOW_US, spec_of
from tests.stack.test_stack import Commands

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers"), pytest.mark.soak]


@pytest.fixture
def boreal(tmp_path: Path, servers: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path / "data")
    commands.begin("up")
    commands.guard()
    yield commands
    commands.run("down")


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
