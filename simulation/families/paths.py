"""X holds as long as a path exists: replicas that lost some inputs, streams that end, jump, or are out of order."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from boreal.query.plan import EGRESS
from boreal.query.spec import Mode
from simulation.drawing import PlanOptions, is_chain, make_plan, settle
from simulation.queries import Menu
from simulation.scenario import HELD_BACK_BYTES, MILLISECOND, SECOND, Families, Scenario
from simulation.strikes import Strike

_ANSWERING = PlanOptions(
    replicas=(2, 2, 3),
    streams=(2, 3, 3),
    menu=Menu(joins=False, unbounded=False),
    holds=("delay", "process", "process"),
    x_ms=(900, 2000),
    is_comfortable=True,
    seconds=(2.2, 3.0),
)


def _settled(seed: int, family: str, rng: Random, wish: PlanOptions) -> Scenario:
    """A scenario where I3 is owed, in about half of the cases for each row."""
    is_rowwise = rng.random() < 0.5
    query = make_plan(rng, replace(wish, menu=replace(wish.menu, stateful=not is_rowwise)))
    if any(len(fragment.replicas) < 2 for fragment in query.fragments if fragment.name != EGRESS):
        query = replace(query, mode=Mode.OVERLAY_REDO)
    query = replace(query, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    return settle(seed, family, rng, query, wish, owes_delay=True, is_rowwise=is_rowwise and is_chain(query))


def answering(seed: int, family: str, rng: Random, **options: Any) -> Scenario:
    """A scenario where I3 is owed, of a query that goes on without some inputs. options: other fields of its `PlanOptions`."""
    return _settled(seed, family, rng, replace(_ANSWERING, **options))


def _unequal(seed: int, family: str, rng: Random) -> Scenario:
    """Streams are cut to single replicas while one replica of each fragment has all inputs: readers must find it."""
    wish = replace(_ANSWERING, x_ms=(700, 900), seconds=(2.8, 3.6), shapes=("single", "chain"))
    scenario = _settled(seed, family, rng, wish)
    query, x = scenario.plan, scenario.plan.delay_threshold_us
    names = sorted(scenario.feeds)
    at = rng.randrange(200_000, 500_000)
    strikes = []
    if len(names) > 2 or rng.random() < 0.5:
        strikes.append(Strike("cut_stream", at, rng.randint(x, 4 * x), names[-1]))
    for fragment in query.fragments:
        whole = rng.choice(fragment.replicas)
        victims = [edge.operator for edge in fragment.edges if edge.source and edge.operator != names[-1]]
        for replica in fragment.replicas:
            if replica == whole or fragment.name == EGRESS:
                continue
            since, length = at + rng.randint(0, x), rng.randint(x // 2, 4 * x)
            for name in victims if rng.random() < 0.5 else rng.sample(victims, min(1, len(victims))):
                place = f"{fragment.name}.{replica}"
                strikes.append(Strike("cut_stream_to_replica", since, length, name, place))
    return replace(scenario, strikes=tuple(strikes), has_whole_replica=True)


def _ended(seed: int, family: str, rng: Random) -> Scenario:
    """All streams but one have ended, and that one is cut off for a while."""
    scenario = _settled(seed, family, rng, replace(_ANSWERING, replicas=(1, 2, 2), seconds=(3.0, 3.8)))
    names = sorted(scenario.feeds)
    goes_on = rng.choice(names)
    longest = max(feed.intervals for feed in scenario.feeds.values())
    end = rng.randint(longest // 4, longest // 2)
    feeds = {
        name: feed.lasting(longest if name == goes_on else min(end, feed.intervals)) for name, feed in scenario.feeds.items()
    }
    end_us = end * scenario.plan.boundary_interval_us
    at = max(end_us - rng.randint(0, 800_000), 100_000)
    lag = rng.choice((0, 0, 1, 3)) * scenario.plan.boundary_interval_us
    strike = Strike("cut_stream", at, end_us - at + rng.randint(50_000, SECOND), goes_on)
    return replace(scenario.lagging(lag), feeds=feeds, strikes=(strike,))


def jumping(seed: int, family: str, rng: Random) -> Scenario:
    """The boundary of one stream jumps far ahead, as after a gap, or because a producer's clock is wrong; others may be cut
    off or end at the same time."""
    scenario = _settled(seed, family, rng, replace(_ANSWERING, replicas=(1, 2, 2), x_ms=(600, 1_200)))
    names = sorted(scenario.feeds)
    name = rng.choice(names)
    interval = scenario.plan.boundary_interval_us
    after = rng.randint(3, 25)
    since = scenario.start_us + after * interval
    until = since + scenario.plan.delay_threshold_us + rng.randint(0, 60_000) * MILLISECOND
    feeds = {**scenario.feeds, name: scenario.feeds[name].without(since, until)}
    strikes: tuple[Strike, ...] = ()
    if rng.random() < 0.7:
        victim, at = rng.choice([other for other in names if other != name]), after * interval - rng.randrange(400_000)
        strikes = (Strike("cut_stream", max(at, 100_000), rng.randint(200_000, 1_200_000), victim),)
    return replace(scenario, feeds=feeds, strikes=strikes, jumps={name: (after, until)})


def _early(seed: int, family: str, rng: Random) -> Scenario:
    """Rows are out of order by more than X: every answer comes early, within X, and is final when the disorder is over."""
    wish = replace(_ANSWERING, replicas=(1, 2, 2), x_ms=(500, 900), seconds=(2.4, 3.6))
    scenario = _settled(seed, family, rng, wish)
    lag = int(scenario.plan.delay_threshold_us * rng.uniform(1.1, 3.0))
    query = replace(scenario.plan, alpha_x_us=None, disorder_us=lag)
    feeds = {name: feed.with_disorder(rng, rng.choice((0, lag // 2, lag))) for name, feed in scenario.feeds.items()}
    return replace(scenario, plan=query, feeds=feeds, is_rowwise=False, owes_early=True)


FAMILIES: Families = {
    "unequal": (4, _unequal),
    "ended": (3, _ended),
    "jumps": (4, jumping),
    "early": (3, _early),
}
