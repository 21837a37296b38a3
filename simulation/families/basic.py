"""The basic families: storms, and single failures with obligations."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from boreal.query.plan import EGRESS
from boreal.query.spec import Mode
from simulation.drawing import (
    ANYTHING,
    PlanOptions,
    control_loss,
    cut_and_wait,
    cut_stream,
    cut_stream_to_replica,
    draw,
    instances,
    is_chain,
    make_plan,
    partition,
    settle,
    skews,
)
from simulation.queries import Menu
from simulation.scenario import HELD_BACK_BYTES, MILLISECOND, SECOND, Families, Scenario
from simulation.strikes import Strike

LONG_SHARE = 0.02
"""The share of storms that last long."""


def _storm(seed: int, family: str, rng: Random, menu: Menu = ANYTHING) -> Scenario:
    """Any strikes, at any time, several at once."""
    wish = PlanOptions(menu=menu, seconds=(7.0, 10.0) if rng.random() < LONG_SHARE else PlanOptions.seconds)
    query = make_plan(rng, wish)
    scenario = settle(seed, family, rng, query, wish)
    drawn = [draw(rng, query, scenario.duration_us) for _ in range(rng.randint(1, 4))]
    strikes = tuple(strike for _, together in drawn for strike in together)
    patterns = tuple(name for name, _ in drawn)
    return replace(scenario, strikes=strikes, patterns=patterns, skews=skews(rng, query))


def _recent(seed: int, family: str, rng: Random) -> Scenario:
    """A storm over queries with operators that came after the other families' seeds were drawn."""
    return _storm(seed, family, rng, Menu(recent=True))


def _own(seed: int, family: str, rng: Random) -> Scenario:
    """A storm over queries with operators of installed packages, among them some with state for ever."""
    return _storm(seed, family, rng, Menu(recent=rng.random() < 0.3, own=True))


def _exact(seed: int, family: str, rng: Random) -> Scenario:
    """A storm over queries with decimals and dates: in sums, keys, comparisons, joins and the state of all operators."""
    return _storm(seed, family, rng, Menu(recent=rng.random() < 0.4, own=rng.random() < 0.3, exact=True))


def _rolling(seed: int, family: str, rng: Random) -> Scenario:
    """One stream after the other is cut, so that for a while some stream is always missing."""
    wish = PlanOptions(streams=(2, 3), seconds=(3.0, 4.0), lag_ms=(300, 400, 600), holds=("delay", "process"), x_ms=(400, 800))
    query = make_plan(rng, wish)
    if rng.random() < 0.5:
        query = replace(query, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    scenario = settle(seed, family, rng, query, wish)
    names = sorted(scenario.feeds)
    at, strikes = rng.randrange(100_000, 400_000), []
    for turn in range(rng.randint(4, 6)):
        length = rng.randint(500_000, 1_100_000)
        strikes.append(Strike("cut_stream", at, length, names[turn % len(names)]))
        at += length - rng.randint(20_000, 200_000)
    return replace(scenario, strikes=tuple(strikes), skews=skews(rng, query))


def _staggered(seed: int, family: str, rng: Random) -> Scenario:
    """Replicas must take turns to reconcile, and lose contact while they arrange it."""
    wish = PlanOptions(replicas=(2, 3), streams=(2, 3), holds=("delay", "process", "process"), seconds=(2.0, 3.2))
    query = make_plan(rng, wish)
    scenario = settle(seed, family, rng, query, wish)
    at = rng.randrange(150_000, 500_000)
    strikes = cut_and_wait(rng, query, at, rng.randint(400_000, 1_000_000))
    if rng.random() < 0.5:
        strikes += partition(rng, query, strikes[0].end_us - rng.randrange(200_000), rng.randint(50_000, 900_000))
    if rng.random() < 0.3:
        strikes += control_loss(rng, query, strikes[0].end_us - rng.randrange(100_000), rng.randint(50_000, 500_000))
    return replace(scenario, strikes=tuple(strikes), skews=skews(rng, query))


def available(seed: int, family: str, rng: Random) -> Scenario:
    """Streams are cut, never all of them, and some replica can always answer: I3 is owed."""
    is_rowwise = rng.random() < 0.5
    wish = PlanOptions(
        replicas=(1, 2, 2, 3),
        streams=(2, 3),
        menu=Menu(joins=False, unbounded=False, stateful=not is_rowwise),
        holds=("delay", "process", "process"),
        x_ms=(800, 2000),
        is_comfortable=True,
        seconds=(2.2, 3.5),
    )
    query = make_plan(rng, wish)
    if any(len(fragment.replicas) < 2 for fragment in query.fragments if fragment.name != EGRESS):
        query = replace(query, mode=Mode.OVERLAY_REDO)
    is_rowwise = is_rowwise and is_chain(query)
    if is_rowwise:
        query = replace(query, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    scenario = settle(seed, family, rng, query, wish, owes_delay=True, is_rowwise=is_rowwise)
    victims = sorted(scenario.feeds)[1:]
    strikes, at = [], rng.randrange(200_000, 600_000)
    for _ in range(rng.randint(1, 3)):
        length = int(rng.choice((0.3, 1.0, 1.6)) * rng.uniform(0.7, 1.3) * SECOND)
        strikes.append(Strike("cut_stream", at, length, rng.choice(victims)))
        at += rng.randint(100_000, 1_200_000)
    return replace(scenario, strikes=tuple(strikes))


def masked(seed: int, family: str, rng: Random) -> Scenario:
    """One of several replicas fails, and nothing else: another one replaces it before alpha*X is over."""
    wish = PlanOptions(replicas=(2, 2, 3), x_ms=(900, 1500), is_comfortable=True, seconds=(1.8, 2.8))
    query = make_plan(rng, wish)
    scenario = settle(seed, family, rng, query, wish, owes_delay=True, owes_masking=True)
    who = rng.choice(instances(query, with_egress=False))
    at, length = rng.randrange(200_000, 900_000), rng.randint(50_000, query.delay_threshold_us + 600_000)
    kind = rng.choice(("crash", "crash_losing_checkpoint", "crash_midway", "zombie", "freeze", "cut_replica"))
    strike = Strike(kind, at, length, who=who, amount=rng.randrange(1000))
    if kind == "cut_replica":
        strike = Strike(kind, at, length, f"{who.fragment}.{who.replica}")
    return replace(scenario, strikes=(strike,))


def _exiled(seed: int, family: str, rng: Random) -> Scenario:
    """A replica is away for longer than its claim on the logs lasts (R27), while the others continue."""
    wish = PlanOptions(replicas=(2, 2, 3), seconds=(2.4, 3.4), menu=Menu(unbounded=False))
    query = make_plan(rng, wish)
    retention = rng.randint(450, 800) * MILLISECOND
    query = replace(query, retention_us=retention)
    scenario = settle(seed, family, rng, query, wish, may_skip=True)
    who = rng.choice(instances(query, with_egress=False))
    kind = rng.choice(("crash", "crash_losing_checkpoint", "freeze"))
    at = rng.randrange(300_000, 900_000)
    strikes = [Strike(kind, at, retention + rng.randint(200_000, 1_200_000), who=who)]
    if rng.random() < 0.4:
        strikes += cut_stream(rng, query, rng.randrange(200_000, 1_500_000), rng.randint(200_000, 900_000))
    return replace(scenario, strikes=tuple(strikes), skews=skews(rng, query))


def short(seed: int, family: str, rng: Random) -> Scenario:
    """One stream is cut for less than alpha*X (R13): I4 is owed."""
    wish = PlanOptions(x_ms=(700, 2000), is_comfortable=True, seconds=(1.5, 2.2))
    query = make_plan(rng, wish)
    alpha = query.alpha_x_us or int(query.delay_threshold_us * 0.8)
    reserve = query.bucket_us + 2 * query.boundary_interval_us + 20_000
    length = max(alpha - reserve - rng.randrange(100_000), 1_000)
    at = rng.randrange(200_000, 900_000)
    draw = rng.choice((cut_stream, cut_stream_to_replica))
    scenario = settle(seed, family, rng, query, wish, owes_silence=True, cut_us=length)
    return replace(scenario, strikes=tuple(draw(rng, query, at, length)))


FAMILIES: Families = {
    "storm": (52, _storm),
    "rolling": (8, _rolling),
    "staggered": (12, _staggered),
    "available": (12, available),
    "short": (8, short),
    "exiled": (4, _exiled),
    "masked": (4, masked),
    "recent": (0, _recent),
    "own": (0, _own),
    "exact": (0, _exact),
}
