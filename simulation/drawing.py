"""Draws the parts of scenarios: queries, rows, clocks and strikes. A family combines them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from boreal.model.errors import UserError
from boreal.query.plan import EGRESS, Plan
from boreal.query.planner import plan
from boreal.query.spec import Hold, Mode, Policy, Tuning, load_query
from embedded.world import POLL_FRAMES, UPLOAD_US
from reconcile.events import InstanceId
from simulation.feed import EPOCH_US, FeedShape, StreamFeed, make_feed
from simulation.queries import Menu, make_operators
from simulation.scenario import MILLISECOND, SECOND, Scenario, is_unbounded
from simulation.strikes import Strike

ANYTHING = Menu()
GRID_MS = 10
"""The grid of times, if they have one: rows then lie on the edges of buckets and windows, and at exactly a join's
`within`."""


@dataclass(frozen=True)
class PlanOptions:
    """The choices for the query of a family. A tuple of values is drawn from, a pair of bounds is a range."""

    replicas: tuple[int, ...] = (1, 2, 2, 2, 3)
    """Numbers of replicas of a fragment."""
    streams: tuple[int, ...] = (1, 2, 2, 3, 3)
    """Numbers of streams."""
    menu: Menu = ANYTHING
    """The allowed operators."""
    holds: tuple[str, ...] = ("suspend", "delay", "process", "process")
    """Policies, for failures and for stabilization."""
    x_ms: tuple[int, int] = (400, 2000)
    """The bounds of X, in milliseconds."""
    is_comfortable: bool = False
    """Whether buckets and boundary intervals are short in relation to X."""
    seconds: tuple[float, float] = (1.6, 3.2)
    """The bounds of the streams' length, in seconds."""
    lag_ms: tuple[int, ...] = (0, 0, 700, 1500)
    """Values of stable_lag_max, in milliseconds; 0 for the default."""
    shapes: tuple[str, ...] = ("single", "single", "chain", "chain", "diamond")
    """How operators are divided into fragments."""


def make_plan(rng: Random, wish: PlanOptions) -> Plan:
    large = rng.random() < 1 / 12
    streams = list("abcdefgh")[: rng.choice(wish.streams)]
    shape = rng.choice(wish.shapes)
    mode = rng.choice(list(Mode))
    unbounded = wish.menu.unbounded and mode is not Mode.UNDO_REDO
    menu = replace(wish.menu, unbounded=unbounded, grid_ms=rng.choice((1, GRID_MS)))
    sketch, output = make_operators(rng, streams, shape, menu)
    least_replicas, most_instances = min(wish.replicas), 14 if large else 5
    blocks = [block for block in sketch.blocks if block]
    shards = rng.choice((1, 1, 2, 3)) if large or len(blocks) == 1 else 1
    if not large and len(blocks) == 2 and rng.random() < 0.25:
        # Fragments may be sharded by different keys.
        shards, most_instances = 2, 8
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
        "streams": {name: _stream(rng, menu.schema) for name in streams},
        "operators": sketch.operators,
        "output": output,
        "reconcile": str(mode),
        "policy": {"failure": rng.choice(wish.holds), "stabilization": rng.choice(wish.holds)},
        "shards": shards,
        "fragments": fragments,
        **timing(rng, wish),
    }
    try:
        return plan(load_query(file))
    except UserError:
        # The streams' key conflicts with the key of an operator.
        for stream in file["streams"].values():
            stream["key"] = []
        return plan(load_query(file))


def _stream(rng: Random, schema: dict[str, str]) -> dict[str, Any]:
    """A stream's specification. Columns are in any order, because a union takes the order of its first input."""
    columns = list(schema)
    if rng.random() < 0.3:
        rng.shuffle(columns)
    return {"time": "time", "schema": {name: schema[name] for name in columns}, "key": ["k"], "disorder": "0s"}


def timing(rng: Random, wish: PlanOptions) -> dict[str, Any]:
    bucket, interval = rng.choice((20, 50, 50, 100, 100, 200)), rng.choice((50, 75, 100, 100, 0))
    if wish.is_comfortable:
        bucket, interval = min(bucket, 100), min(interval, 75)
    x = max(rng.randint(*wish.x_ms), 2 * (bucket + interval) + 5)
    lag = rng.choice(wish.lag_ms)
    heartbeat = rng.choice(("70ms", "100ms", "150ms"))
    tuning: dict[str, Any] = {"memory": rng.choice(("2KB", "6KB", "20KB", "256MB", "256MB", "256MB"))}
    if interval:  # else all three follow from X
        tuning |= {"bucket": f"{bucket}ms", "boundary_interval": f"{interval}ms", "heartbeat": heartbeat}
    if lag:
        tuning["stable_lag_max"] = f"{lag}ms"
    if rng.random() < 0.2:
        tuning["alpha_x"] = f"{int(x * rng.uniform(0.3, 0.7))}ms"
    if rng.random() < 0.3:
        tuning["checkpoint_interval"] = f"{rng.randint(150, 900)}ms"
    return {"delay_threshold": f"{x}ms", "tuning": tuning}


def make_feeds(rng: Random, query: Plan, seconds: tuple[float, float]) -> tuple[dict[str, StreamFeed], int]:
    """The streams' rows, which end at different times, and the event time at which they begin."""
    start = EPOCH_US + rng.randrange(10 * SECOND)
    start -= start % (rng.choice((1, GRID_MS)) * MILLISECOND) if rng.random() < 0.6 else 0
    interval = query.boundary_interval_us
    longest = int(rng.uniform(*seconds) * SECOND) // interval
    grid_us = rng.choice((0, GRID_MS * MILLISECOND, query.bucket_us))
    feeds: dict[str, StreamFeed] = {}
    for edge in query.sources:
        if edge.operator in feeds:
            continue
        shape = FeedShape(
            start,
            interval,
            rng.randint(2, 6),
            rng.choice((0.3, 1.0, 1.0, 2.0, 3.0)),
            rng.choice((0.0, 0.05, 0.3)),
            rng.random() < 0.4,
            rng.random() < 0.3,
            grid_us if rng.random() < 0.8 else 0,
        )
        length = longest if not feeds or rng.random() < 0.6 else rng.randint(longest // 2, longest)
        feeds[edge.operator] = make_feed(rng, edge.schema, shape, length)
    return feeds, start


def instances(query: Plan, with_egress: bool = True) -> list[InstanceId]:
    return [
        InstanceId(fragment.name, replica, shard)
        for fragment in query.fragments
        if with_egress or fragment.name != EGRESS
        for replica in fragment.replicas
        for shard in range(fragment.shards)
    ]


def places(query: Plan) -> list[str]:
    return list(dict.fromkeys(f"{who.fragment}.{who.replica}" for who in instances(query)))


def skews(rng: Random, query: Plan) -> dict[InstanceId, int]:
    if rng.random() < 0.5:
        return {}
    most = rng.choice((3, 15, 50)) * MILLISECOND
    return {who: rng.randint(0, most) for who in instances(query)}


def poll_frames(few: int, hops: tuple[tuple[str, int], ...], step_rows: int | None) -> int:
    """The frames that one poll reads: few, unless the reader could then not keep up with what is written: each poll of a far
    place takes its whole latency, and after an UNDO a producer of steps of one row writes each row again as a frame."""
    return POLL_FRAMES if hops or step_rows == 1 else few


def settle(seed: int, family: str, rng: Random, query: Plan, wish: PlanOptions, **more: Any) -> Scenario:
    feeds, start = make_feeds(rng, query, wish.seconds)
    step_rows = rng.choice((1, 6, 30, None, None))
    few_frames = rng.choice((1, 2, *([POLL_FRAMES] * 6)))
    hops = tuple((place, rng.choice((3, 10, 20)) * MILLISECOND) for place in places(query) if rng.random() < 0.05)
    drawn: dict[str, Any] = {
        "poll_frames": poll_frames(few_frames, hops, step_rows),
        "hops_us": hops,
        "upload_us": rng.choice((*([UPLOAD_US] * 7), 150_000, 600_000)),
        "keeps_records": rng.random() < 1 / 8,
    }
    return Scenario(seed, family, query, feeds, start, (), {}, step_rows, **drawn, **more)


def is_chain(query: Plan) -> bool:
    """Whether no SUnion reads from two instances, so that each result comes by one path."""
    return all(sum(edge.producers for edge in f.edges if not edge.source) <= 1 for f in query.fragments)


# Strikes.

Draw = Callable[[Random, Plan, int, int], list[Strike]]


def cut_stream(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    return [Strike("cut_stream", at, length, rng.choice(query.sources).operator)]


def cut_stream_to_replica(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    edge = rng.choice(query.sources)
    readers = [f for f in query.fragments if any(read.name == edge.name for read in f.edges)]
    reader = rng.choice(readers)
    other = f"{reader.name}.{rng.choice(reader.replicas)}"
    return [Strike("cut_stream_to_replica", at, length, edge.operator, other)]


def cut_replica(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    return [Strike("cut_replica", at, length, rng.choice(places(query)))]


def control_loss(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    return [Strike("control_loss", at, length, rng.choice(places(query)))]


def partition(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A cut between two replicas of a fragment, or between any two places."""
    everywhere = places(query)
    first = rng.choice(everywhere)
    siblings = [place for place in everywhere if place != first and place.split(".")[0] == first.split(".")[0]]
    others = siblings or [place for place in everywhere if place != first]
    return [Strike("partition", at, length, first, rng.choice(others))]


def slow(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    place = rng.choice([edge.operator for edge in query.sources] + places(query))
    return [Strike("slow", at, length, place, amount=rng.choice((5, 40, 200)) * MILLISECOND)]


def stop(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    kind = rng.choice(("crash", "crash", "crash_losing_checkpoint", "crash_midway", "crash_midway", "zombie", "freeze"))
    return [Strike(kind, at, length, who=rng.choice(instances(query)), amount=rng.randrange(1000))]


def all_but_one(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """All replicas of a fragment but one are dead."""
    fragment = rng.choice([f for f in query.fragments if len(f.replicas) > 1] or list(query.fragments))
    alive = rng.choice(fragment.replicas)
    return [
        Strike(rng.choice(("crash", "freeze")), at + rng.randrange(100_000), length, who=who)
        for who in instances(query)
        if who.fragment == fragment.name and who.replica != alive
    ]


def heal_and_cut_again(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A cut that heals, and a second one within a boundary interval."""
    place = rng.choice(query.sources).operator
    gap = rng.randrange(1_000, query.boundary_interval_us)
    again = at + length + gap
    return [Strike("cut_stream", at, length, place), Strike("cut_stream", again, rng.randint(100_000, 900_000), place)]


def damage(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A checkpoint is damaged while its owner is dead."""
    who = rng.choice(instances(query))
    return [Strike("crash", at, length, who=who), Strike("damage_checkpoint", at + length // 2, who=who)]


def resend(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    who = rng.choice(instances(query))
    return [Strike("resend", at + n * 90_000, who=who, amount=rng.randint(1, 9)) for n in range(rng.randint(1, 4))]


def cut_and_wait(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A failure that is long enough to need a correction, and a crash during the correction."""
    kind = rng.choice(("on_stabilization", "on_lease_request", "on_lease_grant"))
    long = max(length, query.delay_threshold_us + 200_000)
    trap = Strike(kind, at, rng.choice((1, 30, 200, 700)) * MILLISECOND, amount=rng.randrange(2))
    return [Strike("cut_stream", at, long, rng.choice(query.sources).operator), trap]


def cut_and_cut_in_correction(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A second failure while the first one is corrected."""
    long = max(length, query.delay_threshold_us + 200_000)
    first, second = rng.choice(query.sources).operator, rng.choice(query.sources).operator
    again = at + long + rng.randrange(-5_000, 15_000)
    return [Strike("cut_stream", at, long, first), Strike("cut_stream", again, length, second)]


def threshold(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    least = 2 * (query.bucket_us + query.boundary_interval_us) + 5_000
    x = max(rng.randint(300, 2000) * MILLISECOND, least)
    return [Strike("threshold", at, amount=x, changes=(("heartbeat_us", Tuning().intervals(x).heartbeat),))]


def cut_one_way(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A cut in one direction: one place receives from the other, but cannot send to it."""
    first = rng.choice(places(query))
    other = rng.choice(["*", *(place for place in places(query) if place != first)])
    return [Strike("cut_one_way", at, length, first, other)]


def cut_egress(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """The egress does not reach one replica of the output."""
    maker = query.fragments[-2]
    return [Strike("partition", at, length, f"{EGRESS}.r0", f"{maker.name}.{rng.choice(maker.replicas)}")]


def restart_source(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    return [Strike("restart_source", at, length, rng.choice(query.sources).operator, amount=rng.randrange(2))]


def pause(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    return [Strike("pause", at, length)]


def replan(rng: Random, query: Plan, at: int, length: int) -> list[Strike]:
    """A change of the plan, often while a stream is cut."""
    holds = list(Hold)
    choice: dict[str, Callable[[], object]] = {
        "mode": lambda: rng.choice([m for m in Mode if m is not Mode.UNDO_REDO or not is_unbounded(query)]),
        "policy": lambda: Policy(failure=rng.choice(holds), stabilization=rng.choice(holds)),
        "heartbeat_us": lambda: rng.choice((70, 150)) * MILLISECOND,
        "alpha_x_us": lambda: int(query.delay_threshold_us * rng.uniform(0.3, 0.7)),
    }
    changes = tuple((name, choice[name]()) for name in rng.sample(sorted(choice), rng.randint(1, 2)))
    strikes = [Strike("replan", at, changes=changes)]
    if rng.random() < 0.6:
        since = max(at - rng.randrange(600_000), 100_000)
        strikes += cut_stream(rng, query, since, rng.randint(400_000, 1_500_000))
    return strikes


_DRAWS: tuple[tuple[int, Draw], ...] = (
    (5, cut_stream),
    (3, cut_stream_to_replica),
    (3, cut_replica),
    (2, control_loss),
    (2, partition),
    (2, slow),
    (5, stop),
    (2, all_but_one),
    (1, heal_and_cut_again),
    (1, damage),
    (2, resend),
    (3, cut_and_wait),
    (2, cut_and_cut_in_correction),
    (1, threshold),
    (2, cut_one_way),
    (1, cut_egress),
    (2, restart_source),
    (1, pause),
    (2, replan),
)


def draw(rng: Random, query: Plan, end: int) -> tuple[str, list[Strike]]:
    """(name, strikes) of one pattern at a random time in a run that lasts `end` microseconds."""
    draw = rng.choices([draw for _, draw in _DRAWS], [weight for weight, _ in _DRAWS])[0]
    at = rng.randrange(150_000, max(end, 300_000))
    length = int(min(rng.choice((0.05, 0.2, 0.6, 1.2)) * rng.uniform(0.5, 1.5), 2.0) * SECOND)
    return draw.__name__.lstrip("_"), draw(rng, query, at, length)


