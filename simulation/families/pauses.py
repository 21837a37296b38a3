"""What lasts for a while: idle sources, boundaries that jump, replicas that fall behind, changes of the plan, and sites that
are cut from each other.

They came after the seeds that tests and docs/mutants.md name, which keep their scenarios: see `families.make_scenario`.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from boreal.query.plan import EGRESS
from simulation.drawing import PlanOptions, cut_stream, instances, make_plan, places, settle, skews
from simulation.families.paths import answering, jumping
from simulation.queries import Menu
from simulation.scenario import MILLISECOND, Families, Scenario
from simulation.strikes import Strike


def _idle(seed: int, family: str, rng: Random) -> Scenario:
    """A source is read and has nothing: its boundary stands still for a while, and then follows the clock, or jumps on with the
    rows that come. Nothing fails, so every instance stays STABLE, and the other streams are answered within X."""
    scenario = answering(seed, family, rng, replicas=(1, 2, 2), x_ms=(600, 1_200))
    names = sorted(scenario.feeds)
    name, interval = rng.choice(names), scenario.plan.boundary_interval_us
    longest = max(feed.intervals for feed in scenario.feeds.values())
    after = rng.randint(3, longest // 2)
    until = after + rng.randint(2, max(longest - after, 3))
    back = rng.choice((until, until + rng.randint(1, 10)))
    idle = scenario.feeds[name].without(scenario.start_us + after * interval, scenario.start_us + back * interval)
    # Another stream is there all the time: when all are idle, nothing is owed.
    goes_on = next(other for other in names if other != name)
    feeds = {**scenario.feeds, name: idle, goes_on: scenario.feeds[goes_on].lasting(longest)}
    return replace(scenario, feeds=feeds, stalls={name: (after, until)}, owes_early=True, is_rowwise=False)


def _leap(seed: int, family: str, rng: Random) -> Scenario:
    """A boundary jumps far ahead, while boundaries are behind their rows."""
    scenario = jumping(seed, family, rng)
    return scenario.lagging(rng.choice((1, 2, 4)) * scenario.plan.boundary_interval_us)


def _trailing(seed: int, family: str, rng: Random) -> Scenario:
    """A replica works so slowly that it falls behind, though it says STABLE all the time. Another one is current, and readers
    must find it: I3 is owed."""
    scenario = answering(seed, family, rng, x_ms=(700, 1_200), replicas=(2, 2, 3), seconds=(2.6, 3.4))
    query = scenario.plan
    slow = rng.choice([fragment for fragment in query.fragments if fragment.name != EGRESS])
    at, length = rng.randrange(200_000, 500_000), rng.randint(1_500, 2_500) * MILLISECOND
    amount = int(query.boundary_interval_us * rng.uniform(0.3, 0.9))
    drags = (
        Strike("drag", at, length, who=who, amount=amount)
        for who in instances(query, with_egress=False)
        if who.fragment == slow.name and who.replica == slow.replicas[0]
    )
    return replace(scenario, strikes=tuple(drags), poll_frames=rng.choice((1, 2)))


def _changed(seed: int, family: str, rng: Random) -> Scenario:
    """The plan's bounds and intervals change in mid-failure, one instance after another."""
    wish = PlanOptions(streams=(2, 3), seconds=(2.5, 3.5))
    query = make_plan(rng, wish)
    scenario = settle(seed, family, rng, query, wish)
    at = rng.randrange(200_000, 700_000)
    changes = {
        "memory_bytes": rng.choice((2_000, 20_000, 256_000_000)),
        "stable_lag_max_us": rng.choice((300, 700, 1_500)) * MILLISECOND,
        "checkpoint_interval_us": rng.randint(150, 900) * MILLISECOND,
        # The sources go on as they began. A longer interval only makes silence count later.
        "boundary_interval_us": int(query.boundary_interval_us * rng.uniform(1.0, 2.0)),
    }
    chosen = rng.sample(sorted(changes), rng.randint(1, 3))
    replan = Strike("replan", at + rng.randint(100, 900) * MILLISECOND, changes=tuple((name, changes[name]) for name in chosen))
    cut = cut_stream(rng, query, at, rng.randint(600, 1_800) * MILLISECOND)
    return replace(scenario, strikes=(*cut, replan), skews=skews(rng, query))


def _sites(seed: int, family: str, rng: Random) -> Scenario:
    """Two sites, each with an egress, half of the replicas and some streams, are cut from each other."""
    wish = PlanOptions(replicas=(2, 2, 3), streams=(2, 3), seconds=(2.2, 3.2), menu=Menu(unbounded=False))
    query = make_plan(rng, wish)
    fragments = tuple(
        replace(f, replicas=("r0", "r1"), engines=("native", "native")) if f.name == EGRESS else f for f in query.fragments
    )
    scenario = settle(seed, family, rng, replace(query, fragments=fragments), wish)
    everywhere = [*sorted(scenario.feeds), *places(scenario.plan)]
    there = {place for place in everywhere if place.endswith(("r1", "r2")) or place in sorted(scenario.feeds)[1:]}
    at, length = rng.randrange(200_000, 700_000), rng.randint(100, 2_000) * MILLISECOND
    cuts = (Strike("partition", at, length, here, other) for here in everywhere if here not in there for other in sorted(there))
    return replace(scenario, strikes=tuple(cuts))


FAMILIES: Families = {
    "idle": (3, _idle),
    "leap": (2, _leap),
    "trailing": (2, _trailing),
    "changed": (2, _changed),
    "sites": (2, _sites),
}
