"""Machines whose wall clocks are wrong, by up to two seconds and differently in each incarnation.

Their processes use the production shared clock. All that is owed with correct clocks is owed here too.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from reconcile.events import InstanceId
from simulation.drawing import PlanOptions, instances, make_plan, settle
from simulation.families.basic import available, masked, short
from simulation.scenario import SECOND, Families, Scenario

MOST_OFF_US = 2 * SECOND
INCARNATIONS = 3


def _wrong_walls(seed: int, family: str, rng: Random) -> Scenario:
    """A failure with obligations, or none."""
    make = rng.choice((_calm, _calm, available, masked, short))
    scenario = make(seed, family, rng)
    return replace(scenario, walls=_walls(rng, scenario), patterns=(*scenario.patterns, f"walls {make.__name__.strip('_')}"))


def _calm(seed: int, family: str, rng: Random) -> Scenario:
    """Nothing fails, so no row may be tentative. Buckets may be longer than the grace of backlogs (R8), which hides small
    skews."""
    wish = PlanOptions(x_ms=(900, 2000), seconds=(1.5, 2.5))
    return settle(seed, family, rng, make_plan(rng, wish), wish, owes_silence=True)


def _walls(rng: Random, scenario: Scenario) -> dict[InstanceId, tuple[int, ...]]:
    """The errors of the wall clocks of all machines, or of some."""
    share = rng.choice((0.3, 0.7, 1.0))
    return {
        who: tuple(rng.randint(-MOST_OFF_US, MOST_OFF_US) for _ in range(INCARNATIONS))
        for who in instances(scenario.plan)
        if rng.random() < share
    }


def _behind(seed: int, family: str, rng: Random) -> Scenario:
    """Machines whose clocks are behind the sources' stamps, and stay so, as when no broker can be asked: I3 is owed all the
    same, because the stamps that they read show it (R9)."""
    scenario = available(seed, family, rng)
    most_us = scenario.plan.delay_threshold_us // 4
    behind = {who: -rng.randint(0, most_us) for who in instances(scenario.plan)}
    return replace(scenario, plan=replace(scenario.plan, alpha_x_us=None), skews=behind)


FAMILIES: Families = {"clocks": (4, _wrong_walls), "behind": (2, _behind)}
