"""Real processes on machines whose wall clocks are wrong by seconds: nothing fails, so nothing is tentative, and X holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition

from bench.deployment import Deployment, KafkaFeeder, wait_until
from deployment.supervision import Child
from services.kafka.topics import CLOCK
from tests.stack.breaking import QUERY, Bench, Ear

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak, pytest.mark.xdist_group("servers")]

CLOCKS: dict[str, Any] = {
    **QUERY,
    "name": "clocks",
    "delay_threshold": "6s",
    "tuning": {"bucket": "1s", "boundary_interval": "100ms"},
}
WALLS_S = {
    "source.clocks.right": (-2.0,),
    "node.clocks.r0": (4.0, -3.0),
    "node.clocks.r1": (3.0,),
    "egress.clocks.a": (4.0,),
}
"""By process: how far the wall of its machine is ahead, in each life in turn."""


class WrongWalls(Deployment):
    def add(self, child: Child, **settings: str) -> None:
        walls = WALLS_S.get(child.name)
        if walls is not None:
            python, option, module, *arguments = child.command
            assert (python, option) == (sys.executable, "-m")
            program = str(Path(__file__).with_name("wrong_wall.py"))
            choice = ",".join(map(str, walls))
            lives = str(self.root / f"{child.name}.lives")
            child = replace(child, command=(python, program, lives, choice, module, *arguments))
        super().add(child, **settings)

    def clock_of(self, name: str) -> dict[str, float]:
        """What a process says of its clock."""
        status = self.statuses()[name]
        return {key: status[key] for key in ("clock_offset_ms", "clock_uncertainty_ms", "clock_error_ms")}

    def corrections(self) -> dict[str, int]:
        """By instance, how often it has reconciled: something tentative was written before each."""
        return {
            f"{entry['fragment']}.{entry['replica']}": entry["reconciliations"]
            for name, status in self.statuses().items()
            for entry in status.get("instances", ())
            if name.startswith("node.")
        }

    def knows_its_wall(self, name: str, life: int) -> bool:
        said = self.clock_of(name)
        if None in said.values():
            return False
        return abs(said["clock_offset_ms"] - WALLS_S[name][life] * 1_000) <= said["clock_uncertainty_ms"] + 1


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with WrongWalls(tmp_path_factory.mktemp("clocks"), CLOCKS) as deployment:
        deployment.wait_ready()
        with KafkaFeeder(deployment) as feeder, Ear(deployment) as ear:
            yield Bench(deployment, feeder, ear)


def test_seven_seconds_between_machines_make_nothing_tentative_and_nothing_late(bench: Bench) -> None:
    deployment = bench.deployment
    assert isinstance(deployment, WrongWalls)
    since, before = bench.mark(), deployment.corrections()
    bench.breathe(3)
    figures = bench.check(since)
    assert figures["stable"] > 0 and len(before) == 2
    if bench.may_be_timed:
        assert figures["tentative"] == 0, deployment.explain()
        assert deployment.corrections() == before, deployment.explain()


def test_each_process_says_how_far_its_machines_wall_is_off(bench: Bench) -> None:
    deployment = bench.deployment
    assert isinstance(deployment, WrongWalls)
    for name in WALLS_S:
        wait_until(lambda name=name: deployment.knows_its_wall(name, 0), f"{name} knows its wall", deployment.explain)  # type: ignore[misc]
        said = deployment.clock_of(name)
        assert abs(said["clock_error_ms"]) <= said["clock_uncertainty_ms"] + 5, said
    assert deployment.clock_of("source.clocks.left")["clock_offset_ms"] == pytest.approx(0, abs=100)


def test_no_clock_is_warned_of_since_none_is_left_wrong(bench: Bench) -> None:
    statuses = bench.deployment.statuses()
    assert statuses["query:clocks"]["clock"] == []


@pytest.mark.soak
def test_a_life_that_begins_after_a_step_of_its_wall_agrees_with_the_others(bench: Bench) -> None:
    deployment = bench.deployment
    assert isinstance(deployment, WrongWalls)
    since = bench.mark()
    deployment.kill("node.r0")
    bench.breathe(3)
    figures = bench.check(since)
    wait_until(lambda: deployment.knows_its_wall("node.clocks.r0", 1), "r0 knows its new wall", deployment.explain)
    if bench.may_be_timed:
        assert figures["tentative"] == 0, deployment.explain()


def test_asking_for_the_time_is_rare(bench: Bench) -> None:
    """Some ten processes, each of which asks every five seconds once it runs for ten."""
    partition = TopicPartition(CLOCK, 0)
    with closing(bench.deployment.clusters["a"].make_consumer()) as consumer:

        def asked() -> int:
            return consumer.end_offsets([partition], timeout_ms=30_000)[partition]

        before = asked()
        bench.breathe(4)
        assert asked() - before < 4 * len(bench.deployment.services)
        wait_until(lambda: asked() > before, "the time is asked for", bench.deployment.explain)
