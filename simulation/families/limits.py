"""Families with small limits, so that short runs reach situations that would take hours, a large state or a slow machine."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from boreal.query.plan import Plan
from boreal.query.spec import Mode
from reconcile.limits import Limits
from simulation.drawing import PlanOptions, cut_stream, instances, make_plan, poll_frames, settle, skews
from simulation.queries import Menu
from simulation.scenario import HELD_BACK_BYTES, MILLISECOND, SECOND, Families, Scenario
from simulation.strikes import Strike


def small_limits(rng: Random) -> Limits:
    """Limits of which some are small, others the defaults."""
    return Limits(
        notes=rng.choice((4, 6, 6, 12)),
        step_bytes=rng.choice((400, 5_000, Limits().step_bytes)),
        first_rows=rng.choice((10, Limits().first_rows)),
        least_rows=rng.choice((5, Limits().least_rows)),
        steps_per_call=rng.choice((1, 2, 4)),
        replay_bytes=rng.choice((300, 3_000, Limits().replay_bytes)),
        frame_bytes=rng.choice((300, 3_000, Limits().frame_bytes)),
        lacking_heartbeats=rng.choice((2, 20)),
        forgotten_heartbeats=rng.choice((30, 100)),
    )


def with_small_limits(rng: Random, scenario: Scenario) -> Scenario:
    limits, few = small_limits(rng), rng.choice((2, 5, 30))
    return replace(scenario, limits=limits, poll_frames=poll_frames(few, scenario.hops_us, scenario.step_rows))


def _long(seed: int, family: str, rng: Random) -> Scenario:
    """A failure that is long for the limits on notes: a stream is cut until well after the notes of the others are full, and
    replicas die after it has healed, or during it."""
    wish = PlanOptions(
        replicas=(1, 2, 2), streams=(2, 3), seconds=(2.5, 4.0), holds=("delay", "process", "process"), x_ms=(400, 900)
    )
    query = make_plan(rng, wish)
    if rng.random() < 0.6:
        query = replace(query, checkpoint_interval_us=rng.randint(150, 500) * MILLISECOND)
    if rng.random() < 0.5:
        query = replace(query, memory_bytes=rng.choice((2_000, 6_000)))
    scenario = with_small_limits(rng, settle(seed, family, rng, query, wish))
    at = rng.randrange(300_000, 900_000)
    strikes = cut_stream(rng, query, at, rng.randint(1_000_000, 2_500_000))
    if rng.random() < 0.5:
        who, length = rng.choice(instances(query)), rng.randint(50, 600) * MILLISECOND
        kind = rng.choice(("crash", "crash", "crash_losing_checkpoint", "crash_midway"))
        strikes.append(Strike(kind, rng.randrange(at, strikes[0].end_us + SECOND), length, who=who, amount=rng.randrange(1000)))
    return replace(scenario, strikes=tuple(strikes), skews=skews(rng, query))


def _backlog(seed: int, family: str, rng: Random) -> Scenario:
    """An instance that reads many streams was away for long, and has much to read on a slow machine with little memory. It
    must give signs of life all the time, and keep within its memory."""
    wish = PlanOptions(replicas=(1, 2, 2), streams=(5, 8), seconds=(2.0, 3.0), menu=Menu(unbounded=False), x_ms=(600, 1500))
    query = make_plan(rng, wish)
    query = replace(query, memory_bytes=rng.choice((2_000, 6_000, 20_000, query.memory_bytes)))
    scenario = settle(seed, family, rng, query, wish)
    limits, few = small_limits(rng), rng.choice((1, 1, 2, 4))
    scenario = replace(scenario, limits=limits, poll_frames=poll_frames(few, scenario.hops_us, scenario.step_rows))
    readers = [who for who in instances(query) if any(edge.source for edge in query.fragment(who.fragment).edges)]
    who, at, length = rng.choice(readers), rng.randrange(200_000, 600_000), rng.randint(600, 1_500) * MILLISECOND
    kind = rng.choice(("crash", "freeze", "cut_replica"))
    away = Strike(kind, at, length, who=who, place=f"{who.fragment}.{who.replica}")
    drag = Strike("drag", at, length + rng.randint(1, 3) * SECOND, who=who, amount=rng.choice((2, 5, 10)) * MILLISECOND)
    return replace(scenario, strikes=(away, drag))


_ROW_BY_ROW = PlanOptions(
    replicas=(2,),
    streams=(2, 3),
    menu=Menu(joins=False, unbounded=False, stateful=False),
    holds=("delay", "process"),
    is_comfortable=True,
)


def _sharded_plan(rng: Random, wish: PlanOptions) -> Plan:
    """Draw plans until one has shards and results that depend on one row each."""
    query = make_plan(rng, wish)
    while not _is_sharded_row_by_row(query):
        query = make_plan(rng, wish)
    return query


def _shared(seed: int, family: str, rng: Random) -> Scenario:
    """Two shards whose clocks differ by tens of milliseconds, and streams that are cut: the egress must have time left for the
    second shard, whether alpha*X is fixed or measured. I3 is owed, since one stream is always there."""
    wish = replace(_ROW_BY_ROW, x_ms=(900, 1600), seconds=(2.2, 3.2))
    query = _sharded_plan(rng, wish)
    alpha_x_us = rng.choice((None, int(query.delay_threshold_us * rng.uniform(0.4, 0.6))))
    query = replace(query, alpha_x_us=alpha_x_us, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    scenario = settle(seed, family, rng, query, wish, owes_delay=True, is_rowwise=True)
    later = {who: rng.choice((0, 10, 30)) * MILLISECOND for who in instances(query, with_egress=False) if who.shard}
    at = rng.randrange(300_000, 600_000)
    victim = rng.choice(sorted(scenario.feeds)[1:])
    strikes = (Strike("cut_stream", at, query.delay_threshold_us + rng.randint(300, 1_200) * MILLISECOND, victim),)
    return replace(scenario, strikes=strikes, skews=later)


def _heavy(seed: int, family: str, rng: Random) -> Scenario:
    """A state so large that a copy takes longer than the time that X leaves at the deadline; one stream is cut; I3 is owed."""
    wish = PlanOptions(
        replicas=(2, 2, 3),
        streams=(2, 3),
        menu=Menu(joins=False, unbounded=False),
        holds=("delay", "process", "process"),
        x_ms=(1_000, 2_000),
        is_comfortable=True,
        seconds=(2.5, 3.5),
    )
    query = make_plan(rng, wish)
    query = replace(
        query,
        mode=Mode.CHECKPOINT_REDO,
        checkpoint_interval_us=None,
        alpha_x_us=None,
        memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES),
    )
    scenario = settle(seed, family, rng, query, wish, owes_delay=True)
    # Shorter than the silence timeout: otherwise replicas that copy at once would seem to be cut off from their reader.
    copy_us = min(int(query.delay_threshold_us * rng.uniform(0.12, 0.25)), query.silence_us - query.boundary_interval_us)
    at, length = rng.randrange(300_000, 700_000), query.delay_threshold_us + rng.randint(100, 900) * MILLISECOND
    victim = rng.choice(sorted(scenario.feeds)[1:])
    return replace(scenario, copy_us=copy_us, strikes=(Strike("cut_stream", at, length, victim),))


def _overtaken(seed: int, family: str, rng: Random) -> Scenario:
    """A failure heals when the first tentative rows are out. One shard lags, so the egress still holds back the other's
    tentative frames, of several buckets, while that one's other replica corrects, a bucket at a time: its stable boundary
    then lies inside them."""
    wish = replace(_ROW_BY_ROW, x_ms=(900, 1400), seconds=(2.0, 3.0))
    query = _sharded_plan(rng, wish)
    alpha_x_us = int(query.delay_threshold_us * rng.uniform(0.3, 0.5))
    query = replace(query, alpha_x_us=alpha_x_us, bucket_us=20_000, bucket_run_us=20_000)
    query = replace(query, memory_bytes=max(query.memory_bytes, HELD_BACK_BYTES))
    scenario = settle(seed, family, rng, query, wish)
    limits = Limits(steps_per_call=1, first_rows=rng.choice((1, 5, 20)), least_rows=1)
    scenario = replace(scenario, step_rows=None, limits=limits)
    at = rng.randrange(300_000, 600_000)
    cut = Strike("cut_stream", at, alpha_x_us + rng.randint(0, 300) * MILLISECOND, rng.choice(sorted(scenario.feeds)))
    slow_us = {shard: rng.choice((3, 10, 20)) * MILLISECOND for shard in range(query.fragments[0].shards)}
    drags = tuple(
        Strike("drag", cut.end_us - 300_000, 800_000, who=who, amount=slow_us[who.shard])
        for who in instances(query, with_egress=False)
    )
    return replace(scenario, strikes=(cut, *drags))


def _is_sharded_row_by_row(query: Plan) -> bool:
    """Whether the plan has one fragment in shards, and the egress, which merges them."""
    return len(query.fragments) == 2 and query.fragments[0].shards > 1


FAMILIES: Families = {
    "long": (4, _long),
    "shared": (3, _shared),
    "backlog": (2, _backlog),
    "heavy": (3, _heavy),
    "overtaken": (2, _overtaken),
}
