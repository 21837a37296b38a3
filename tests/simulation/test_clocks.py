"""Wrong walls, in the simulator: what the shared clock mends, and what would be without it."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from boreal.model.frames import Data
from embedded.network import LinkCut
from reconcile.events import InstanceId
from simulation.clocks import BROKER
from simulation.drawing import instances, make_feeds
from simulation.mutants import mutated
from simulation.run import Observation, Simulation, observe
from simulation.scenario import Scenario
from simulation.strikes import Strike
from tests.harness import MS, S, plan_of, query_of


def scenario(*strikes: Strike, wall_us: int = 2 * S, ahead: tuple[str, ...] = ("main", "egress")) -> Scenario:
    """X is 2 s. The machines of some fragments are ahead of what sources stamp, in each life by a second more."""
    tuning = {"bucket": "500ms", "boundary_interval": "50ms", "heartbeat": "100ms"}
    plan = plan_of(query_of(streams=("a", "b"), x="2s", tuning=tuning))
    feeds, start = make_feeds(Random(1), plan, (5.0, 5.0))
    walls = {who: tuple(wall_us + life * S for life in range(3)) for who in instances(plan) if who.fragment in ahead}
    return Scenario(1, "clocks", plan, feeds, start, tuple(strikes), {}, None, walls=walls)


def tentative(observed: Observation) -> int:
    """Rows, in any log."""
    assert observed.settled and observed.error is None
    return sum(
        frame.batch.num_rows
        for frames in observed.frames.values()
        for _, frame in frames
        if isinstance(frame, Data) and frame.tentative
    )


@pytest.mark.parametrize("ahead", [("main", "egress"), ("egress",), ("main",)])
def test_walls_that_are_off_by_x_make_nothing_tentative(ahead: tuple[str, ...]) -> None:
    assert tentative(observe(scenario(ahead=ahead))) == 0
    with mutated("keep_the_clock_of_the_start"):
        assert tentative(observe(scenario(ahead=ahead))) > 0


def test_a_life_that_begins_after_a_step_of_its_wall_agrees_with_the_others() -> None:
    died = Strike("crash", 1_500 * MS, 200 * MS, who=InstanceId("main", "r0", 0))
    assert tentative(observe(scenario(died, wall_us=-S))) == 0


def test_a_machine_that_cannot_ask_follows_its_wall_and_then_the_broker_without_a_jump() -> None:
    """All that main.r0 is cut off from is the broker."""
    cut, who = LinkCut("main.r0", BROKER), InstanceId("main", "r0", 0)
    ahead: dict[int, int] = {}

    def spy(simulation: Simulation) -> None:
        world = simulation.world
        world.network.cuts.append(cut)
        world.at(2_500 * MS, lambda: world.network.cuts.remove(cut))

        def look() -> None:
            ahead[world.now] = world.processes[who].clock(world.now) - world.now
            world.at(world.now + 100 * MS, look)

        world.at(100 * MS, look)

    observe(scenario(wall_us=500 * MS), spy=spy)
    assert ahead[2_400 * MS] == pytest.approx(500 * MS, abs=MS)
    assert 200 * MS < ahead[4_900 * MS] < 400 * MS
    steps = [later - earlier for (_, earlier), (_, later) in pairwise(sorted(ahead.items()))]
    assert max(map(abs, steps)) <= 10 * MS + 20
