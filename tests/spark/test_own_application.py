"""A query with a Spark application of its own beside others that share one: neither reads the orders of the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from services.kafka.clusters import Cluster
from tests.stack.test_evolution import Feed, apply, home_of
from tests.stack.test_joined_streams import await_more, spec_of
from tests.stack.test_stack import Commands

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak, pytest.mark.xdist_group("servers")]


def in_spark(name: str, **changes: Any) -> dict[str, Any]:
    return spec_of(name, engine="spark", delay_threshold="15s", shards=1, **changes)


@pytest.fixture(scope="module")
def boreal(tmp_path_factory: pytest.TempPathFactory, servers: Path) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("own") / "data").up("--workers", "2") as commands:
        yield commands


@pytest.fixture(scope="module")
def cluster(boreal: Commands) -> Cluster:
    return home_of(boreal)


def jobs(boreal: Commands) -> dict[str, int]:
    return {name: boreal.pid(name) for name, process in boreal.processes().items() if process["kind"] == "spark"}


def test_a_query_with_an_application_of_its_own_shares_none(boreal: Commands, cluster: Cluster) -> None:
    apply(boreal, in_spark("first"))
    apply(boreal, in_spark("second", spark={"application": "own"}))
    with closing(Feed(boreal.status()["kafka"]["a"])) as feed:
        await_more(cluster, feed, "first", "second")
        found = jobs(boreal)
        assert set(found) == {"spark.first.r0", "spark.second.r0"} and len({*found.values()}) == 2
        refused = boreal.refused("query", "set", "second", "spark.application=shared")
        assert refused["field"].startswith("spark")
        boreal.run("query", "delete", "first")
        await_more(cluster, feed, "second")
        assert jobs(boreal) == {"spark.second.r0": found["spark.second.r0"]}
    boreal.run("query", "delete", "second")
    with closing(cluster.make_admin()) as admin:
        assert not [topic for topic in admin.list_topics() if topic.partition(".")[0] in ("first", "second")]
