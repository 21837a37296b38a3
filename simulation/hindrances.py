"""Additions to scenarios of any family: rows ahead of their stream, hosts in another process, and hindrances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from boreal.query.plan import CALM_AFTER_PAUSES, EGRESS, MOST_LOADED, Fragment, Plan
from simulation.drawing import instances, make_feeds
from simulation.feed import Loaded
from simulation.obligations import do_batches_fit
from simulation.scenario import HELD_BACK_BYTES, MILLISECOND, SECOND, Scenario
from simulation.strikes import Strike

REMOTE_SHARE = 0.15
"""The share of scenarios with hosts in another process."""
AHEAD_SHARE = 0.06
"""The share of scenarios with a row that is ahead of its stream."""
SECOND_SITE_SHARE = 0.06
"""The share of scenarios with two egresses."""
HINDERED_SHARE = 0.3
"""The share of scenarios with a hindrance."""
CALM_SHARE = 0.08
"""The share of scenarios in which no stream has rows for a while, and instances are heard less often."""
NEAR_SHARE = 0.25
"""The share of scenarios in which some replicas are nearer to their readers than others, and that changes."""
LOADED_SHARE = 0.15
"""The share of scenarios in which the sources' processes are loaded for a while."""
MIXED_SHARE = 0.3
"""The share of fragments with hosts in another process in which some replicas keep their operators in the node."""

_STORMS = ("storm", "recent", "own", "exact")


def maybe_ahead(scenario: Scenario) -> Scenario:
    """In some scenarios one row is far ahead of its stream, as from a producer whose clock is wrong. Its result is not owed
    within X, so I3 is not checked in them; neither is the progress of stable output while streams are cut in turn."""
    rng = Random(f"ahead {scenario.seed}")
    if rng.random() >= AHEAD_SHARE or scenario.owes_delay or scenario.family == "rolling":
        return scenario
    name = rng.choice(sorted(scenario.feeds))
    feed = scenario.feeds[name]
    if feed.batch.num_rows < 2:
        return scenario
    row = max(rng.randrange(max(feed.batch.num_rows // 2, 1)), 1)  # the first row cannot be ahead
    ahead_us = scenario.plan.event_time_of(2 * scenario.plan.delay_threshold_us) + rng.randint(200_000, 5_000_000)
    patterns = (*scenario.patterns, "row_ahead")
    return replace(scenario, feeds={**scenario.feeds, name: feed.with_ahead(row, ahead_us)}, patterns=patterns)


def maybe_calm(scenario: Scenario) -> Scenario:
    """In some scenarios no stream has rows for a while, so that sources and instances are calm: readers hear them less often
    (R24). In some, only one has none, and its source is woken. Faults may come before, meanwhile and after."""
    rng = Random(f"calm 50 {scenario.seed}")  # which draws no seed that docs/mutants.md or a test names
    if rng.random() >= CALM_SHARE:
        return scenario
    plan = scenario.plan
    # As in a layout, where X is five times the pause or more: what a calm source says comes before it is overdue.
    pause_us = min(rng.randint(2, 6) * plan.sign_of_life_us, plan.delay_threshold_us // 5)
    span_us = plan.event_time_of((CALM_AFTER_PAUSES + rng.randint(2, 8)) * pause_us)
    since = scenario.start_us + rng.randrange(max(plan.event_time_of(scenario.duration_us) // 2, 1))
    quiet = rng.sample(sorted(scenario.feeds), 1) if rng.random() < 0.5 else scenario.feeds
    without = {name: scenario.feeds[name].without(since, since + span_us) for name in quiet}
    feeds = {**scenario.feeds, **without}
    plan = replace(plan, calm_pause_us=pause_us)
    return replace(scenario, plan=plan, feeds=feeds, patterns=(*scenario.patterns, "calm"))


def maybe_loaded(scenario: Scenario) -> Scenario:
    """In some scenarios the sources' processes are loaded for a while, so that rows gather in them, and readers hear them and
    the instances less often (R24)."""
    rng, plan = Random(f"loaded {scenario.seed}"), scenario.plan
    has_time = plan.rest_us(MOST_LOADED, plan.delay_threshold_us) >= (MOST_LOADED + 1) * plan.boundary_interval_us
    if rng.random() >= LOADED_SHARE or not has_time:
        return scenario
    intervals = max(feed.intervals for feed in scenario.feeds.values())
    since = rng.randrange(max(intervals // 2, 1))
    loaded = Loaded(since, since + rng.randint(intervals // 4, intervals), rng.randint(1, MOST_LOADED))
    return replace(scenario, loaded=loaded, patterns=(*scenario.patterns, "loaded"))


def maybe_near(scenario: Scenario) -> Scenario:
    """In some scenarios a reader has one replica near it, such as one of its own process, for a while; faults may come before,
    meanwhile and after."""
    rng = Random(f"near {scenario.seed}")
    if rng.random() >= NEAR_SHARE:
        return scenario
    nears = []
    for who in instances(scenario.plan):
        times = [0, *(rng.randrange(max(scenario.duration_us, 1)) for _ in range(rng.choice((0, 1, 2))))]
        nears += [(at, who, rng.choice((0, 1, 1, 2, -1))) for at in sorted(times)]
    limits = replace(scenario.limits, near_silences=rng.choice((0, 1, 2, 4)))
    return replace(scenario, nears=tuple(nears), limits=limits, patterns=(*scenario.patterns, "near"))


def maybe_second_site(scenario: Scenario) -> Scenario:
    """Some queries have an egress at a second site, which reads the same output (R28)."""
    rng = Random(f"sites {scenario.seed}")
    if rng.random() >= SECOND_SITE_SHARE:
        return scenario
    fragments = tuple(
        replace(f, replicas=("r0", "r1"), engines=("native", "native")) if f.name == EGRESS else f
        for f in scenario.plan.fragments
    )
    patterns = (*scenario.patterns, "second_site")
    return replace(scenario, plan=replace(scenario.plan, fragments=fragments), patterns=patterns)


def maybe_hindered(scenario: Scenario) -> Scenario:
    """Some scenarios have a hindrance that stops no instance, but slows all: a store out of reach, boundaries far behind their
    rows, a slow machine, the death of a job at its correction. All that was owed is still owed; so if something is, only
    hindrances that cannot violate it are drawn."""
    rng = Random(f"hindered {scenario.seed}")
    is_storm = scenario.family in (*_STORMS, "staggered")
    choice: tuple[Callable[[Random, Scenario], Scenario], ...] = (_lose_store,)
    if scenario.family in _STORMS and scenario.is_unbounded:
        # State that windows cannot rebuild exists only in the store.
        choice = (_kill_without_store,)
    elif rng.random() >= HINDERED_SHARE:
        return scenario
    elif is_storm and any(set(fragment.engines) != {"native"} for fragment in scenario.plan.fragments):
        choice = (_fell_job, _fell_job, _kill_without_store, _drag)
    elif is_storm:
        choice = (_kill_without_store, _disorder, _drag)
    elif scenario.family == "available":
        choice = (_lose_store, _lag)
    hinder = rng.choice(choice)
    return replace(hinder(rng, scenario), patterns=(*scenario.patterns, hinder.__name__.lstrip("_")))


def some_time(rng: Random, scenario: Scenario) -> int:
    """A random time of a run, some time after its start."""
    return rng.randrange(100_000, max(scenario.duration_us, 300_000))


def _lose_store(rng: Random, scenario: Scenario) -> Scenario:
    """The checkpoint store is out of reach, or comes back empty."""
    at, length = some_time(rng, scenario), rng.randint(30, 1_500) * MILLISECOND
    # State that windows cannot rebuild is lost for good with the checkpoints of a single replica.
    kind = "store_away" if scenario.is_unbounded else rng.choice(("store_away", "store_wipe"))
    return replace(scenario, strikes=(*scenario.strikes, Strike(kind, at, length)))


def _kill_without_store(rng: Random, scenario: Scenario) -> Scenario:
    """An instance, or all its replicas, die while the store is out of reach, or soon after."""
    hindered = _lose_store(rng, scenario)
    loss = hindered.strikes[-1]
    who = rng.choice(instances(scenario.plan))
    replicas = scenario.plan.fragment(who.fragment).replicas
    if not scenario.is_unbounded and rng.random() < 0.5:
        replicas = (who.replica,)
    at = loss.at_us + rng.randint(0, loss.for_us + 200_000)
    deaths = (
        Strike("crash", at + rng.randint(0, 100_000), rng.randint(1, 400) * MILLISECOND, who=who._replace(replica=replica))
        for replica in replicas
    )
    return replace(hindered, strikes=(*hindered.strikes, *deaths))


def _lag(rng: Random, scenario: Scenario) -> Scenario:
    """Boundaries come late after their rows."""
    return scenario.lagging(rng.choice((1, 1, 2, 4)) * scenario.plan.boundary_interval_us)


def _disorder(rng: Random, scenario: Scenario) -> Scenario:
    """Boundaries come late after their rows, which are out of order by up to the same time."""
    lagging = _lag(rng, scenario)
    feeds = {name: feed.with_disorder(rng, lagging.lag_us) for name, feed in scenario.feeds.items()}
    return replace(lagging, feeds=feeds)


def _drag(rng: Random, scenario: Scenario) -> Scenario:
    """A machine is so slow that each piece of its work takes as long as a heartbeat interval."""
    who = rng.choice(instances(scenario.plan))
    at, length = some_time(rng, scenario), rng.randint(200, 1_500) * MILLISECOND
    drag = Strike("drag", at, length, who=who, amount=rng.choice((500, 3_000, 20_000)))
    return replace(scenario, strikes=(*scenario.strikes, drag))


def _fell_job(rng: Random, scenario: Scenario) -> Scenario:
    """A failure that is long enough to need a correction, and the death of a job at its correction."""
    at = rng.randrange(150_000, max(scenario.duration_us // 2, 300_000))
    cut = Strike("cut_stream", at, scenario.plan.delay_threshold_us + 300_000, rng.choice(scenario.plan.sources).operator)
    trap = Strike("engine_on_stabilization", at, rng.choice((1, 50, 400)) * MILLISECOND)
    return replace(scenario, strikes=(*scenario.strikes, cut, trap))


def maybe_remote(scenario: Scenario) -> Scenario:
    """In some scenarios the operators of some fragments run in micro-batches in another process, which may die as well."""
    rng = Random(f"remote {scenario.seed}")
    if rng.random() >= REMOTE_SHARE or scenario.has_whole_replica:
        return scenario
    query = scenario.plan
    chosen = {f.name for f in query.fragments if f.name != EGRESS and rng.random() < 0.7} or {query.fragments[0].name}
    mixing = Random(f"engines {scenario.seed}")
    fragments = tuple(replace(f, engines=_engines(mixing, f)) if f.name in chosen else f for f in query.fragments)
    query = replace(query, fragments=fragments)
    owes = scenario.owes_delay or scenario.owes_silence
    strikes = scenario.strikes
    if scenario.owes_delay:
        # A fixed alpha*X that ignores batches would violate X, and so would a memory too small for the next batch.
        query = replace(query, alpha_x_us=None, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    if scenario.owes_masking:
        # The job dies instead of its instance: the client must not notice that either.
        strikes = tuple(engine_strike(rng, query, strike.at_us, "engine_crash", strike.for_us) for strike in strikes)
    elif not owes:
        strikes += tuple(
            engine_strike(rng, query, some_time(rng, scenario), rng.choice(_ENGINE_STRIKES))
            for _ in range(rng.choice((0, 1, 1, 2, 3)))
        )
    batch_us = rng.choice((20, 60, 60) if owes else (20, 60, 150)) * MILLISECOND
    if scenario.owes_delay and not do_batches_fit(query, batch_us):
        batch_us = 20 * MILLISECOND
    scenario = replace(
        scenario,
        plan=query,
        batch_us=batch_us,
        strikes=strikes,
        patterns=(*scenario.patterns, "remote"),
    )
    are_all_elsewhere = all(set(f.engines) == {"spark"} for f in query.fragments if f.name != EGRESS)
    if not scenario.owes_masking or not are_all_elsewhere or mixing.random() >= 0.5:
        return scenario
    return _in_turn(mixing, scenario)


def _engines(rng: Random, fragment: Fragment) -> tuple[str, ...]:
    """The engines of a fragment's replicas: spark for all, or sometimes a mixture."""
    count = len(fragment.replicas)
    if count == 1 or rng.random() >= MIXED_SHARE:
        return ("spark",) * count
    engines = ["spark", "native", *rng.choices(("spark", "native"), k=count - 2)]
    rng.shuffle(engines)
    return tuple(engines)


_ENGINE_STRIKES = (
    "engine_worker",
    "engine_crash",
    "engine_crash",
    "engine_forget",
    "engine_wipe",
    "engine_wipe",
    "engine_twin",
    "zombie",
    "zombie",
)


def _in_turn(rng: Random, scenario: Scenario) -> Scenario:
    """Two replicas' jobs die in turn, and then the first one's again: its death must be noticed as soon as before."""
    query = scenario.plan
    who = rng.choice([who for who in instances(query, with_egress=False) if who.replica == "r0"])
    partner = who._replace(replica="r1")
    strikes, at = [], rng.randint(500_000, 800_000)
    for victim in (who, partner, who):
        length = int(query.delay_threshold_us * rng.uniform(0.6, 1.2))
        strikes.append(Strike("engine_crash", at, length, who=victim))
        at += length + rng.randint(300_000, 600_000)
    feeds, start = make_feeds(rng, query, (at / SECOND, at / SECOND + 0.5))
    return replace(scenario, feeds=feeds, start_us=start, strikes=tuple(strikes))


def engine_strike(rng: Random, query: Plan, at: int, kind: str, length: int | None = None) -> Strike:
    who = rng.choice([who for who in instances(query) if query.fragment(who.fragment).engine_of(who.replica) != "native"])
    length = rng.randint(20, 900) * MILLISECOND if length is None else length
    return Strike(kind, at, length, who=who, amount=rng.choice((0, 0, 500, 1000)))


