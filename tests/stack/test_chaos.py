"""Faults that somebody asks of a local stack, by command and over REST: what they break, that it is undone in time whatever
becomes of who asked, and what the journal says. In the order of the file. `test_stack.py` cuts a stream, and one replica's link
to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from boreal.client import CorrectedStream, Tentative
from services.kafka.settings import RedisSettings
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from tests.stack.test_stack import QUERY, Commands, call, feed, windows
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.in_order, pytest.mark.xdist_group("servers")]


@pytest.fixture(
    scope="module",
    params=[pytest.param("0", id="own processes"), pytest.param("2", id="workers", marks=pytest.mark.soak)],
)
def boreal(tmp_path_factory: pytest.TempPathFactory, servers: Path, request: pytest.FixtureRequest) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("chaos") / "data").up("--allow-chaos", "--workers", request.param) as commands:
        path = commands.data.parent / "counts.yaml"
        path.write_text(f"{QUERY}tuning: {{checkpoint_interval: 1s}}\n")
        commands.json("query", "apply", str(path))
        yield commands


@pytest.mark.soak
def test_a_replica_may_lose_its_checkpoint_with_its_memory(boreal: Commands) -> None:
    feed(boreal, 1_700_000_000, 3)
    with closing(connect_redis(RedisSettings(url=boreal.status()["redis"]))) as client:
        store = RedisCheckpointStore(client, prefix="counts")
        wait_until(lambda: {"main.r0.0", "main.r1.0"} <= {*store.instances()}, "both have checkpoints")
        boreal.run("fault", "crash", "main.r0", "for", "60s", "losing", "checkpoint")
        assert store.instances() == ["main.r1.0"]
    boreal.run("fault", "heal", "main.r0")
    feed(boreal, 1_700_000_003, 3)
    assert windows(boreal, 5) == [f"{second}" for second in range(20, 25)]
    wait_until(boreal.is_ready, "it is back")


@pytest.mark.soak
def test_a_replica_crashes_or_freezes_for_as_long_as_was_said_whatever_becomes_of_the_one_who_asked(boreal: Commands) -> None:
    """Who asked is gone once the command has returned, and the API, which it asked, is killed meanwhile."""
    command = boreal.run("fault", "crash", "main.r0", "for", "8s").stdout
    assert command == "crash counts.main.r0 for 8s: node.counts.r0\n"
    psutil.Process(boreal.pid("api")).kill()
    wait_until(lambda: boreal.processes()["node.counts.r0"]["pid"] is None, "it has crashed")
    feed(boreal, 1_700_000_006, 3)
    assert windows(boreal, 8) == [f"{second}" for second in range(20, 28)]
    wait_until(boreal.is_ready, "it is started again")
    frozen = boreal.pid("node.counts.r1")
    assert boreal.run("fault", "freeze", "main.r1", "for", "8s").stdout == "freeze counts.main.r1 for 8s: node.counts.r1\n"
    wait_until(lambda: psutil.Process(frozen).status() == psutil.STATUS_STOPPED, "it is frozen")
    wait_until(lambda: boreal.processes()["node.counts.r1"]["state"] == "frozen", "and said to be so")
    feed(boreal, 1_700_000_009, 3)
    assert windows(boreal, 11) == [f"{second}" for second in range(20, 31)]
    wait_until(boreal.is_ready, "it goes on")
    assert boreal.pid("node.counts.r1") == frozen
    assert _made(boreal, "crash counts.main.r0 for 8s") == _made(boreal, "freeze counts.main.r1 for 8s") == 8


@pytest.mark.soak
def test_a_stream_is_slow_and_answers_are_late_for_as_long_as_was_said(boreal: Commands) -> None:
    """By REST, as the command does. What is asked for is more than X, so answers are tentative first."""
    said, begun = call(boreal, "POST", "/chaos", {"fault": "slow right by 6s for 15s"})
    assert (said, begun["fault"], begun["targets"]) == (202, "slow counts.right by 6s for 15s", ["source.counts.right"])
    with CorrectedStream("counts", boreal.status()["kafka"]["a"]) as stream:
        list(stream.changes(until="now"))
        feed(boreal, 1_700_000_012, 3)
        assert windows(boreal, 14) == [f"{second}" for second in range(20, 34)]
        changes = list(stream.changes(until="now"))
    assert any(isinstance(change, Tentative) and "right" in change.missing_inputs for change in changes)
    assert _made(boreal, "slow counts.right by 6s for 15s") == 15


def _made(boreal: Commands, fault: str) -> float:
    """For how many seconds, rounded, there was this fault, as the journal says, with who asked for it."""

    def kept(kind: str) -> list[dict[str, Any]]:
        events = boreal.json("events", "--kind", kind)["events"]
        return [event for event in events if event["facts"]["fault"] == fault]

    wait_until(lambda: bool(kept("chaos_undone")), "the journal has it")
    [begun], [undone] = kept("chaos_begun"), kept("chaos_undone")
    assert begun["query"] == undone["query"] == "counts" and begun["by"]
    return round((undone["at_ms"] - begun["at_ms"]) / 1_000)
