"""A seed becomes a scenario: a query, its plan, the rows of its sources, the machines' clocks, and what strikes when.

Each scenario belongs to a family. A *storm* throws everything at everything; the other families are narrower, so that
something more can be demanded of them: see `owes_delay` and `owes_silence`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from boreal.plan import EGRESS, Fragment, Plan
from boreal.planner import plan
from boreal.spec import Mode, load_query
from reconcile.events import InstanceId
from simulation.feed import EPOCH_US, Feed, Shape, make_feed
from simulation.queries import SCHEMA, Menu, make_operators
from simulation.strikes import Strike

MILLISECOND = 1_000
SECOND = 1_000_000
REFERENCE_MEMORY = 1 << 30
REMOTE_SHARE = 0.15
"""Of all scenarios, those with hosts in another process."""
AHEAD_SHARE = 0.06
"""Of all scenarios, those with a row that is ahead of its stream."""
HINDERED_SHARE = 0.3
"""Of all scenarios, those with a hindrance as well."""
MIXED_SHARE = 0.3
"""Of the fragments with such hosts, those of which some replicas have their operators beside them all the same."""
HELD_BACK_BYTES = 1_000_000
"""More than the rows of alpha*X: a port that cannot hold these forgets tentative ones, which no log is read again for."""


UNHEARD = {"partition", "control_loss", "cut_replica", "slow", "freeze", "zombie"}
"""Strikes after which a replica may be alone without having died."""


@dataclass(frozen=True)
class Scenario:
    """One run's whole input. step_rows: of every SUnion (None: its own choice); stride: see `simulation.feed`; skews: how
    far each machine's clock is off, in microseconds; patterns: what the strikes were drawn as, for the count.

    What is owed beyond the rest (see `simulation.invariants`): owes_delay: I3; is_rowwise: with it, each result depends
    on one row, which comes by one path. owes_silence: I4, as no failure is as long as alpha*X allows; `cut_us` is its
    length. owes_masking: only one of several replicas fails, so no client may notice. may_skip: a replica may come back
    by its partner's anchor, its own log lacking what it slept through (R27). batch_us: how long a micro-batch takes, where
    some fragments' operators run in another process. lag_us: how far boundaries are behind rows.
    """

    seed: int
    family: str
    plan: Plan
    feeds: dict[str, Feed]
    start_us: int
    strikes: tuple[Strike, ...]
    skews: dict[InstanceId, int]
    step_rows: int | None
    stride: int = 1
    owes_delay: bool = False
    is_rowwise: bool = False
    owes_silence: bool = False
    cut_us: int = 0
    owes_masking: bool = False
    may_skip: bool = False
    batch_us: int = 0
    lag_us: int = 0
    patterns: tuple[str, ...] = ()

    @property
    def loses_state(self) -> bool:
        """Whether a checkpoint is lost that no windows can rebuild: then too a replica comes back by its partner's."""
        lost = any(strike.kind in ("crash_losing_checkpoint", "damage_checkpoint") for strike in self.strikes)
        return lost and self.is_unbounded

    @property
    def is_unbounded(self) -> bool:
        """Whether some operator's state cannot be rebuilt from windows."""
        return any(getattr(node.spec, "window", True) is None for part in self.plan.fragments for node in part.nodes)

    @property
    def owes_turns(self) -> bool:
        """R22: no strike keeps replicas from hearing each other, or from ending what they have begun."""
        return not any(strike.kind in UNHEARD or strike.kind.startswith("engine") for strike in self.strikes)

    @property
    def cut_streams(self) -> frozenset[str]:
        """The streams that some strike cuts off."""
        return frozenset(strike.place for strike in self.strikes if strike.kind.startswith("cut_stream"))

    @property
    def duration_us(self) -> int:
        """Run time until the last source ends."""
        intervals = max(feed.intervals for feed in self.feeds.values())
        return intervals * self.plan.boundary_interval_us // self.stride


def make_scenario(seed: int) -> Scenario:
    """The scenario of a seed; the same in every process."""
    rng = Random(seed)
    family = rng.choices(list(_FAMILIES), [weight for weight, _ in _FAMILIES.values()])[0]
    return _maybe_hindered(_maybe_remote(_maybe_ahead(_FAMILIES[family][1](seed, family, rng))))


def _maybe_ahead(scenario: Scenario) -> Scenario:
    """In some scenarios one row is far ahead of its stream, as from a producer whose clock is off. Its own result is then not
    owed within X, which is why I3 is not asked for; nor is how often stable output moves while streams are cut in turn."""
    rng = Random(f"ahead {scenario.seed}")
    if rng.random() >= AHEAD_SHARE or scenario.owes_delay or scenario.family == "rolling":
        return scenario
    name = rng.choice(sorted(scenario.feeds))
    feed = scenario.feeds[name]
    if not feed.batch.num_rows:
        return scenario
    row = rng.randrange(max(feed.batch.num_rows // 2, 1))
    ahead_us = scenario.plan.event_time_of(2 * scenario.plan.delay_threshold_us) + rng.randint(200_000, 5_000_000)
    patterns = (*scenario.patterns, "row_ahead")
    return replace(scenario, feeds={**scenario.feeds, name: feed.with_ahead(row, ahead_us)}, patterns=patterns)


def _maybe_hindered(scenario: Scenario) -> Scenario:
    """Some scenarios meet what stops nobody, and is in everybody's way: a store out of reach, boundaries far behind their rows,
    a slow machine, the end of a job just when it is to correct. Whatever was owed still is; where something was, only what
    cannot cost that comes."""
    rng = Random(f"hindered {scenario.seed}")
    is_storm = scenario.family in ("storm", "staggered")
    choice: tuple[Callable[[Random, Scenario], Scenario], ...] = (_lose_store,)
    if scenario.family == "storm" and scenario.is_unbounded:
        # What no windows can rebuild has nothing but the store.
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


def _some_time(rng: Random, scenario: Scenario) -> int:
    """Of a run, once it is under way."""
    return rng.randrange(100_000, max(scenario.duration_us, 300_000))


def _lose_store(rng: Random, scenario: Scenario) -> Scenario:
    """The checkpoint store is out of reach, or comes back empty."""
    at, length = _some_time(rng, scenario), rng.randint(30, 1_500) * MILLISECOND
    # What no windows can rebuild is lost for good with an only replica's checkpoints.
    kind = "store_away" if scenario.is_unbounded else rng.choice(("store_away", "store_wipe"))
    return replace(scenario, strikes=(*scenario.strikes, Strike(kind, at, length)))


def _kill_without_store(rng: Random, scenario: Scenario) -> Scenario:
    """An instance dies while the store is gone, or soon after; or all its replicas do."""
    hindered = _lose_store(rng, scenario)
    loss = hindered.strikes[-1]
    who = rng.choice(_instances(scenario.plan))
    replicas = scenario.plan.fragment(who.fragment).replicas
    if not scenario.is_unbounded and rng.random() < 0.5:
        replicas = (who.replica,)
    at = loss.at_us + rng.randint(0, loss.for_us + 200_000)
    deaths = (
        Strike("crash", at + rng.randint(0, 100_000), rng.randint(1, 400) * MILLISECOND, who=replace(who, replica=replica))
        for replica in replicas
    )
    return replace(hindered, strikes=(*hindered.strikes, *deaths))


def _lag(rng: Random, scenario: Scenario) -> Scenario:
    """Boundaries come late after their rows."""
    return replace(scenario, lag_us=rng.choice((1, 1, 2, 4)) * scenario.plan.boundary_interval_us)


def _disorder(rng: Random, scenario: Scenario) -> Scenario:
    """Boundaries come late after their rows, which are out of order for as long."""
    lagging = _lag(rng, scenario)
    feeds = {name: feed.with_disorder(rng, lagging.lag_us) for name, feed in scenario.feeds.items()}
    return replace(lagging, feeds=feeds)


def _drag(rng: Random, scenario: Scenario) -> Scenario:
    """A machine is so slow that each piece of its work takes as long as a heartbeat may."""
    who = rng.choice(_instances(scenario.plan))
    at, length = _some_time(rng, scenario), rng.randint(200, 1_500) * MILLISECOND
    drag = Strike("drag", at, length, who=who, amount=rng.choice((500, 3_000, 20_000)))
    return replace(scenario, strikes=(*scenario.strikes, drag))


def _fell_job(rng: Random, scenario: Scenario) -> Scenario:
    """A failure long enough to need a correction, and the end of a job that is to make one."""
    at = rng.randrange(150_000, max(scenario.duration_us // 2, 300_000))
    cut = Strike("cut_stream", at, scenario.plan.delay_threshold_us + 300_000, rng.choice(scenario.plan.sources).operator)
    trap = Strike("engine_on_stabilization", at, rng.choice((1, 50, 400)) * MILLISECOND)
    return replace(scenario, strikes=(*scenario.strikes, cut, trap))


def _maybe_remote(scenario: Scenario) -> Scenario:
    """Of some scenarios, operators of some fragments run in micro-batches in another process, which may die as well."""
    rng = Random(f"remote {scenario.seed}")
    if rng.random() >= REMOTE_SHARE:
        return scenario
    query = scenario.plan
    chosen = {f.name for f in query.fragments if f.name != EGRESS and rng.random() < 0.7} or {query.fragments[0].name}
    mixing = Random(f"engines {scenario.seed}")
    fragments = tuple(replace(f, engines=_engines(mixing, f)) if f.name in chosen else f for f in query.fragments)
    query = replace(query, fragments=fragments)
    owes = scenario.owes_delay or scenario.owes_silence
    strikes = scenario.strikes
    if scenario.owes_delay:
        # An alpha*X that was fixed without regard to batches would break X, and so would a memory that holds back what should
        # be in the next batch.
        query = replace(query, alpha_x_us=None, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    if scenario.owes_masking:
        # The job dies in the place of its instance: nobody may notice that either.
        strikes = tuple(_engine_strike(rng, query, strike.at_us, "engine_crash", strike.for_us) for strike in strikes)
    elif not owes:
        strikes += tuple(
            _engine_strike(rng, query, _some_time(rng, scenario), rng.choice(_ENGINE_STRIKES))
            for _ in range(rng.choice((0, 1, 1, 2, 3)))
        )
    scenario = replace(
        scenario,
        plan=query,
        batch_us=rng.choice((20, 60, 60) if owes else (20, 60, 150)) * MILLISECOND,
        strikes=strikes,
        patterns=(*scenario.patterns, "remote"),
    )
    are_all_elsewhere = all(set(f.engines) == {"spark"} for f in query.fragments if f.name != EGRESS)
    if not scenario.owes_masking or not are_all_elsewhere or mixing.random() >= 0.5:
        return scenario
    return _in_turn(mixing, scenario)


def _engines(rng: Random, fragment: Fragment) -> tuple[str, ...]:
    """Those of a fragment's replicas: the same for all, or sometimes some elsewhere and some not."""
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
    """Two replicas' jobs die in turn, and then the first one's again: it must be missed as soon as before."""
    query = scenario.plan
    who = rng.choice([who for who in _instances(query, with_egress=False) if who.replica == "r0"])
    partner = replace(who, replica="r1")
    strikes, at = [], rng.randint(500_000, 800_000)
    for victim in (who, partner, who):
        length = int(query.delay_threshold_us * rng.uniform(0.6, 1.2))
        strikes.append(Strike("engine_crash", at, length, who=victim))
        at += length + rng.randint(300_000, 600_000)
    feeds, start = _make_feeds(rng, query, (at / SECOND, at / SECOND + 0.5))
    return replace(scenario, feeds=feeds, start_us=start, strikes=tuple(strikes))


def _engine_strike(rng: Random, query: Plan, at: int, kind: str, length: int | None = None) -> Strike:
    who = rng.choice([who for who in _instances(query) if query.fragment(who.fragment).engine_of(who.replica) != "native"])
    length = rng.randint(20, 900) * MILLISECOND if length is None else length
    return Strike(kind, at, length, who=who, amount=rng.choice((0, 0, 500, 1000)))


def reference_of(scenario: Scenario, without: frozenset[str] = frozenset()) -> Scenario:
    """The same source logs without failures, with one replica and other steps: many intervals at once, fast.

    without: streams that are left empty, which tells what the others alone should give.
    """
    given = scenario.plan
    calm = replace(
        given,
        fragments=tuple(replace(fragment, replicas=fragment.replicas[:1], engines=("native",)) for fragment in given.fragments),
        mode=Mode.OVERLAY_REDO,
        delay_threshold_us=60 * SECOND,
        alpha_x_us=None,
        memory_bytes=REFERENCE_MEMORY,
        heartbeat_us=SECOND,
        checkpoint_interval_us=None,
    )
    rng = Random(-1 - scenario.seed)
    empty = {name: replace(scenario.feeds[name], counts=(0, 0)) for name in sorted(without)}
    return replace(
        scenario,
        plan=calm,
        feeds={**scenario.feeds, **empty},
        strikes=(),
        skews={},
        step_rows=rng.choice((2, 9, 40, None)),
        stride=rng.choice((4, 7, 11)),
    )


# The pieces of a scenario.


_ANYTHING = Menu()


@dataclass(frozen=True)
class _Wish:
    """What a family wants of its query."""

    replicas: tuple[int, ...] = (1, 2, 2, 2, 3)
    streams: tuple[int, ...] = (1, 2, 2, 3, 3)
    menu: Menu = _ANYTHING
    holds: tuple[str, ...] = ("suspend", "delay", "process", "process")
    x_ms: tuple[int, int] = (400, 2000)
    is_comfortable: bool = False
    seconds: tuple[float, float] = (1.6, 3.2)
    lag_ms: tuple[int, ...] = (0, 0, 700, 1500)


def _make_plan(rng: Random, wish: _Wish) -> Plan:
    large = rng.random() < 1 / 12
    streams = list("abc")[: rng.choice(wish.streams)]
    shape = rng.choice(("single", "single", "chain", "chain", "diamond"))
    mode = rng.choice(list(Mode))
    menu = replace(wish.menu, unbounded=wish.menu.unbounded and mode is not Mode.UNDO_REDO)
    sketch, output = make_operators(rng, streams, shape, menu)
    least_replicas, most_instances = min(wish.replicas), 14 if large else 5
    blocks = [block for block in sketch.blocks if block]
    shards = rng.choice((1, 1, 2, 3)) if large or len(blocks) == 1 else 1
    fragments = {}
    left = most_instances
    for number, block in enumerate(blocks):
        waiting = len(blocks) - number - 1
        most = max((left // shards) - waiting * least_replicas, least_replicas)
        replicas = min(rng.choice(wish.replicas), most)
        left -= replicas * shards
        fragments[f"f{number}"] = {"operators": block, "replicas": replicas}
    file: dict[str, Any] = {
        "name": "q",
        "streams": {name: {"time": "time", "schema": SCHEMA, "key": ["k"], "disorder": "0s"} for name in streams},
        "operators": sketch.operators,
        "output": output,
        "reconcile": str(mode),
        "policy": {"failure": rng.choice(wish.holds), "stabilization": rng.choice(wish.holds)},
        "shards": shards,
        "fragments": fragments,
        **_timing(rng, wish),
    }
    return plan(load_query(file))


def _timing(rng: Random, wish: _Wish) -> dict[str, Any]:
    bucket, interval = rng.choice((20, 50, 50, 100, 100, 200)), rng.choice((50, 75, 100, 100, 100))
    if wish.is_comfortable:
        bucket, interval = min(bucket, 100), min(interval, 75)
    x = max(rng.randint(*wish.x_ms), 2 * (bucket + interval) + 5)
    lag = rng.choice(wish.lag_ms)
    tuning: dict[str, Any] = {
        "bucket": f"{bucket}ms",
        "boundary_interval": f"{interval}ms",
        "heartbeat": rng.choice(("70ms", "100ms", "150ms")),
        "memory": rng.choice(("2KB", "6KB", "20KB", "256MB", "256MB", "256MB")),
    }
    if lag:
        tuning["stable_lag_max"] = f"{lag}ms"
    if rng.random() < 0.2:
        tuning["alpha_x"] = f"{int(x * rng.uniform(0.3, 0.7))}ms"
    if rng.random() < 0.3:
        tuning["checkpoint_interval"] = f"{rng.randint(150, 900)}ms"
    return {"delay_threshold": f"{x}ms", "tuning": tuning}


def _make_feeds(rng: Random, query: Plan, seconds: tuple[float, float]) -> tuple[dict[str, Feed], int]:
    """The streams' rows, ending at different times, and the event time at which they begin."""
    start = EPOCH_US + rng.randrange(10 * SECOND)
    interval = query.boundary_interval_us
    longest = int(rng.uniform(*seconds) * SECOND) // interval
    feeds: dict[str, Feed] = {}
    for edge in query.sources:
        if edge.operator in feeds:
            continue
        shape = Shape(
            start,
            interval,
            rng.randint(2, 6),
            rng.choice((0.3, 1.0, 1.0, 2.0, 3.0)),
            rng.choice((0.0, 0.05, 0.3)),
            rng.random() < 0.4,
        )
        length = longest if not feeds or rng.random() < 0.6 else rng.randint(longest // 2, longest)
        feeds[edge.operator] = make_feed(rng, edge.schema, shape, length)
    return feeds, start


def _instances(query: Plan, with_egress: bool = True) -> list[InstanceId]:
    return [
        InstanceId(fragment.name, replica, shard)
        for fragment in query.fragments
        if with_egress or fragment.name != EGRESS
        for replica in fragment.replicas
        for shard in range(fragment.shards)
    ]


def _places(query: Plan) -> list[str]:
    return list(dict.fromkeys(f"{who.fragment}.{who.replica}" for who in _instances(query)))


def _skews(rng: Random, query: Plan) -> dict[InstanceId, int]:
    if rng.random() < 0.5:
        return {}
    most = rng.choice((3, 15, 50)) * MILLISECOND
    return {who: rng.randint(0, most) for who in _instances(query)}


# Strikes.

_Draw = Callable[[Random, Plan, int, int], list[Strike]]


def _cut_stream(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    return [Strike("cut_stream", at, length, rng.choice(query.sources).operator)]


def _cut_stream_to_replica(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    edge = rng.choice(query.sources)
    readers = [f for f in query.fragments if any(read.name == edge.name for read in f.edges)]
    reader = rng.choice(readers)
    other = f"{reader.name}.{rng.choice(reader.replicas)}"
    return [Strike("cut_stream_to_replica", at, length, edge.operator, other)]


def _cut_replica(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    return [Strike("cut_replica", at, length, rng.choice(_places(query)))]


def _control_loss(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    return [Strike("control_loss", at, length, rng.choice(_places(query)))]


def _partition(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """Between two replicas of a fragment, or any two places."""
    places = _places(query)
    first = rng.choice(places)
    siblings = [place for place in places if place != first and place.split(".")[0] == first.split(".")[0]]
    others = siblings or [place for place in places if place != first]
    return [Strike("partition", at, length, first, rng.choice(others))]


def _slow(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    place = rng.choice([edge.operator for edge in query.sources] + _places(query))
    return [Strike("slow", at, length, place, amount=rng.choice((5, 40, 200)) * MILLISECOND)]


def _stop(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    kind = rng.choice(("crash", "crash", "crash_losing_checkpoint", "crash_midway", "crash_midway", "zombie", "freeze"))
    return [Strike(kind, at, length, who=rng.choice(_instances(query)), amount=rng.randrange(1000))]


def _all_but_one(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """All replicas of a fragment but one are dead."""
    fragment = rng.choice([f for f in query.fragments if len(f.replicas) > 1] or list(query.fragments))
    alive = rng.choice(fragment.replicas)
    return [
        Strike(rng.choice(("crash", "freeze")), at + rng.randrange(100_000), length, who=who)
        for who in _instances(query)
        if who.fragment == fragment.name and who.replica != alive
    ]


def _heal_and_cut_again(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """Within one boundary interval."""
    place = rng.choice(query.sources).operator
    gap = rng.randrange(1_000, query.boundary_interval_us)
    again = at + length + gap
    return [Strike("cut_stream", at, length, place), Strike("cut_stream", again, rng.randint(100_000, 900_000), place)]


def _damage(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A checkpoint is damaged while its owner is dead."""
    who = rng.choice(_instances(query))
    return [Strike("crash", at, length, who=who), Strike("damage_checkpoint", at + length // 2, who=who)]


def _resend(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    who = rng.choice(_instances(query))
    return [Strike("resend", at + n * 90_000, who=who, amount=rng.randint(1, 9)) for n in range(rng.randint(1, 4))]


def _cut_and_wait(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A failure long enough to need a correction, and a crash in the midst of it."""
    kind = rng.choice(("on_stabilization", "on_lease_request", "on_lease_grant"))
    long = max(length, query.delay_threshold_us + 200_000)
    trap = Strike(kind, at, rng.choice((1, 30, 200, 700)) * MILLISECOND, amount=rng.randrange(2))
    return [Strike("cut_stream", at, long, rng.choice(query.sources).operator), trap]


def _cut_and_cut_in_correction(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A second failure just when the first one is being corrected."""
    long = max(length, query.delay_threshold_us + 200_000)
    first, second = rng.choice(query.sources).operator, rng.choice(query.sources).operator
    again = at + long + rng.randrange(-5_000, 15_000)
    return [Strike("cut_stream", at, long, first), Strike("cut_stream", again, length, second)]


def _threshold(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    least = 2 * (query.bucket_us + query.boundary_interval_us) + 5_000
    return [Strike("threshold", at, amount=max(rng.randint(300, 2000) * MILLISECOND, least))]


_DRAWS: tuple[tuple[int, _Draw], ...] = (
    (5, _cut_stream),
    (3, _cut_stream_to_replica),
    (3, _cut_replica),
    (2, _control_loss),
    (2, _partition),
    (2, _slow),
    (5, _stop),
    (2, _all_but_one),
    (1, _heal_and_cut_again),
    (1, _damage),
    (2, _resend),
    (3, _cut_and_wait),
    (2, _cut_and_cut_in_correction),
    (1, _threshold),
)


def _draw(rng: Random, query: Plan, end: int) -> tuple[str, list[Strike]]:
    """(name, strikes) of one pattern somewhere in a run of this length."""
    draw = rng.choices([draw for _, draw in _DRAWS], [weight for weight, _ in _DRAWS])[0]
    at = rng.randrange(150_000, max(end, 300_000))
    length = int(min(rng.choice((0.05, 0.2, 0.6, 1.2)) * rng.uniform(0.5, 1.5), 2.0) * SECOND)
    return draw.__name__.lstrip("_"), draw(rng, query, at, length)


# Families.


def _settle(seed: int, family: str, rng: Random, query: Plan, wish: _Wish, **more: Any) -> Scenario:
    feeds, start = _make_feeds(rng, query, wish.seconds)
    step_rows = rng.choice((1, 6, 30, None, None))
    return Scenario(seed, family, query, feeds, start, (), {}, step_rows, **more)


def _storm(seed: int, family: str, rng: Random) -> Scenario:
    """Anything, at any time, several at once."""
    wish = _Wish()
    query = _make_plan(rng, wish)
    scenario = _settle(seed, family, rng, query, wish)
    drawn = [_draw(rng, query, scenario.duration_us) for _ in range(rng.randint(1, 4))]
    strikes = tuple(strike for _, together in drawn for strike in together)
    patterns = tuple(name for name, _ in drawn)
    return replace(scenario, strikes=strikes, patterns=patterns, skews=_skews(rng, query))


def _rolling(seed: int, family: str, rng: Random) -> Scenario:
    """One stream after the other is cut, so that for a while not all are there at once."""
    wish = _Wish(streams=(2, 3), seconds=(3.0, 4.0), lag_ms=(300, 400, 600), holds=("delay", "process"), x_ms=(400, 800))
    query = _make_plan(rng, wish)
    if rng.random() < 0.5:
        query = replace(query, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    scenario = _settle(seed, family, rng, query, wish)
    names = sorted(scenario.feeds)
    at, strikes = rng.randrange(100_000, 400_000), []
    for turn in range(rng.randint(4, 6)):
        length = rng.randint(500_000, 1_100_000)
        strikes.append(Strike("cut_stream", at, length, names[turn % len(names)]))
        at += length - rng.randint(20_000, 200_000)
    return replace(scenario, strikes=tuple(strikes), skews=_skews(rng, query))


def _staggered(seed: int, family: str, rng: Random) -> Scenario:
    """Replicas that must take turns to reconcile, and lose each other while they arrange it."""
    wish = _Wish(replicas=(2, 3), streams=(2, 3), holds=("delay", "process", "process"), seconds=(2.0, 3.2))
    query = _make_plan(rng, wish)
    scenario = _settle(seed, family, rng, query, wish)
    at = rng.randrange(150_000, 500_000)
    strikes = _cut_and_wait(rng, query, at, rng.randint(400_000, 1_000_000))
    if rng.random() < 0.5:
        strikes += _partition(rng, query, strikes[0].end_us - rng.randrange(200_000), rng.randint(50_000, 900_000))
    if rng.random() < 0.3:
        strikes += _control_loss(rng, query, strikes[0].end_us - rng.randrange(100_000), rng.randint(50_000, 500_000))
    return replace(scenario, strikes=tuple(strikes), skews=_skews(rng, query))


def _available(seed: int, family: str, rng: Random) -> Scenario:
    """Streams are cut, never all of them, and someone can always answer: I3 is owed."""
    is_rowwise = rng.random() < 0.5
    wish = _Wish(
        replicas=(1, 2, 2, 3),
        streams=(2, 3),
        menu=Menu(joins=False, unbounded=False, stateful=not is_rowwise),
        holds=("delay", "process", "process"),
        x_ms=(800, 2000),
        is_comfortable=True,
        seconds=(2.2, 3.5),
    )
    query = _make_plan(rng, wish)
    if any(len(fragment.replicas) < 2 for fragment in query.fragments if fragment.name != EGRESS):
        query = replace(query, mode=Mode.OVERLAY_REDO)
    is_rowwise = is_rowwise and _is_chain(query)
    if is_rowwise:
        query = replace(query, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    scenario = _settle(seed, family, rng, query, wish, owes_delay=True, is_rowwise=is_rowwise)
    victims = sorted(scenario.feeds)[1:]
    strikes, at = [], rng.randrange(200_000, 600_000)
    for _ in range(rng.randint(1, 3)):
        length = int(rng.choice((0.3, 1.0, 1.6)) * rng.uniform(0.7, 1.3) * SECOND)
        strikes.append(Strike("cut_stream", at, length, rng.choice(victims)))
        at += rng.randint(100_000, 1_200_000)
    return replace(scenario, strikes=tuple(strikes))


def _masked(seed: int, family: str, rng: Random) -> Scenario:
    """One of several replicas fails, and all else is well: another stands in before alpha*X is over."""
    wish = _Wish(replicas=(2, 2, 3), x_ms=(900, 1500), is_comfortable=True, seconds=(1.8, 2.8))
    query = _make_plan(rng, wish)
    scenario = _settle(seed, family, rng, query, wish, owes_delay=True, owes_masking=True)
    who = rng.choice(_instances(query, with_egress=False))
    at, length = rng.randrange(200_000, 900_000), rng.randint(50_000, query.delay_threshold_us + 600_000)
    kind = rng.choice(("crash", "crash_losing_checkpoint", "crash_midway", "zombie", "freeze", "cut_replica"))
    strike = Strike(kind, at, length, who=who, amount=rng.randrange(1000))
    if kind == "cut_replica":
        strike = Strike(kind, at, length, f"{who.fragment}.{who.replica}")
    return replace(scenario, strikes=(strike,))


def _exiled(seed: int, family: str, rng: Random) -> Scenario:
    """A replica is away for longer than its claim on the logs lasts (R27), while the others go on."""
    wish = _Wish(replicas=(2, 2, 3), seconds=(2.4, 3.4), menu=Menu(unbounded=False))
    query = _make_plan(rng, wish)
    retention = rng.randint(450, 800) * MILLISECOND
    query = replace(query, retention_us=retention)
    scenario = _settle(seed, family, rng, query, wish, may_skip=True)
    who = rng.choice(_instances(query, with_egress=False))
    kind = rng.choice(("crash", "crash_losing_checkpoint", "freeze"))
    at = rng.randrange(300_000, 900_000)
    strikes = [Strike(kind, at, retention + rng.randint(200_000, 1_200_000), who=who)]
    if rng.random() < 0.4:
        strikes += _cut_stream(rng, query, rng.randrange(200_000, 1_500_000), rng.randint(200_000, 900_000))
    return replace(scenario, strikes=tuple(strikes), skews=_skews(rng, query))


def _is_chain(query: Plan) -> bool:
    """Whether no SUnion reads from two instances: each result has come by one path."""
    return all(sum(edge.producers for edge in f.edges if not edge.source) <= 1 for f in query.fragments)


def _short(seed: int, family: str, rng: Random) -> Scenario:
    """One stream is cut for less than alpha*X (R13): I4 is owed."""
    wish = _Wish(x_ms=(700, 2000), is_comfortable=True, seconds=(1.5, 2.2))
    query = _make_plan(rng, wish)
    alpha = query.alpha_x_us or int(query.delay_threshold_us * 0.8)
    reserve = query.bucket_us + 2 * query.boundary_interval_us + 20_000
    length = max(alpha - reserve - rng.randrange(100_000), 1_000)
    at = rng.randrange(200_000, 900_000)
    draw = rng.choice((_cut_stream, _cut_stream_to_replica))
    scenario = _settle(seed, family, rng, query, wish, owes_silence=True, cut_us=length)
    return replace(scenario, strikes=tuple(draw(rng, query, at, length)))


_FAMILIES: dict[str, tuple[int, Callable[[int, str, Random], Scenario]]] = {
    "storm": (52, _storm),
    "rolling": (8, _rolling),
    "staggered": (12, _staggered),
    "available": (12, _available),
    "short": (8, _short),
    "exiled": (4, _exiled),
    "masked": (4, _masked),
}
