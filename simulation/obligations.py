"""Obligations of a scenario beyond those of every run, derived from its strikes, its plan and its policies: I3, I4, that the
failure of one replica is masked, and that `missing_inputs` names exactly the missing inputs.

The rules are conservative: if one does not clearly apply, nothing is owed. A family that knows more may claim more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from boreal.query.plan import EGRESS, Fragment, Plan
from boreal.query.spec import Hold, Mode
from simulation.scenario import HELD_BACK_BYTES, MILLISECOND, SECOND, Scenario
from simulation.strikes import Strike

HARMLESS = {"store_away", "store_wipe", "resend"}
"""They stop no instance, and slow none."""
OF_ONE_REPLICA = {"crash", "crash_losing_checkpoint", "crash_midway", "zombie", "freeze", "cut_replica", "engine_crash"}
OF_ONE_STREAM = {"cut_stream", "cut_stream_to_replica"}

ROWWISE = ("filter", "map", "union")
LEAST_STEPS = 4
"""X is comfortable if it is at least this many times a bucket and a boundary interval."""
LEAST_STEPS_TO_SWITCH = 6
"""The same where readers may have to find the replica that answers."""
LONGEST_BATCH_US = 60 * MILLISECOND
REJOINING_US = 400 * MILLISECOND
"""How long after a heal a stream may still be catching up."""
APART_US = SECOND
"""How long after the end of one failure all instances are STABLE again."""


def with_obligations(scenario: Scenario) -> Scenario:
    """The scenario with the obligations that follow from the rules, in addition to those that its family claims."""
    scenario = replace(scenario, has_whole_replica=scenario.has_whole_replica or has_whole_replica_by_rule(scenario))
    owes_delay = scenario.owes_delay or owes_delay_by_rule(scenario)
    cut_us = longest_short_cut_us(scenario)
    return replace(
        scenario,
        owes_delay=owes_delay,
        is_rowwise=scenario.is_rowwise or (owes_delay and gives_row_by_row(scenario)),
        owes_silence=scenario.owes_silence or cut_us is not None,
        cut_us=scenario.cut_us or cut_us or 0,
        owes_masking=scenario.owes_masking or owes_masking_by_rule(scenario),
        owes_names=owes_names_by_rule(scenario),
    )


def owes_delay_by_rule(scenario: Scenario) -> bool:
    """I3: streams are cut from all their readers, never all streams at once, or from single replicas while another one has
    them; and some replica can always answer. No operator waits for two sides (R15)."""
    plan = scenario.plan
    kinds_of_cuts = OF_ONE_STREAM if scenario.has_whole_replica else {"cut_stream"}
    return (
        is_comfortable(scenario)
        and Hold.SUSPEND not in (plan.policy.failure, plan.policy.stabilization)
        and "join" not in kinds(plan)
        and all(_goes_on_beside_a_redo(plan, fragment) for fragment in plan.fragments)
        and all(strike.kind in kinds_of_cuts for strike in failures(scenario))
        and is_some_stream_there(scenario)
    )


def has_whole_replica_by_rule(scenario: Scenario) -> bool:
    """Whether streams are cut from single replicas, and each fragment has a replica that is never cut off alone; readers have
    the time to find it."""
    plan = scenario.plan
    alone = {strike.other for strike in failures(scenario) if strike.kind == "cut_stream_to_replica"}
    return (
        bool(alone)
        and not scenario.batch_us
        and plan.delay_threshold_us >= LEAST_STEPS_TO_SWITCH * plan.completion_us
        and all(any(f"{fragment.name}.{who}" not in alone for who in fragment.replicas) for fragment in plan.fragments)
    )


def gives_row_by_row(scenario: Scenario) -> bool:
    """Whether each result depends on one row, which comes by one path, and memory is large enough for the rows held back."""
    plan = scenario.plan
    is_chain = all(sum(edge.producers for edge in f.edges if not edge.source) <= 1 for f in plan.fragments)
    reads_once = all(len({edge.name for edge in plan.sources if edge.operator == name}) == 1 for name in scenario.feeds)
    only_cuts = all(strike.kind == "cut_stream" for strike in failures(scenario))
    plain = is_chain and reads_once and kinds(plan) <= set(ROWWISE)
    # A row that is out of order by more than X appears only in the final answer.
    return plain and only_cuts and plan.memory_bytes >= HELD_BACK_BYTES and not scenario.owes_early


def longest_short_cut_us(scenario: Scenario) -> int | None:
    """I4: each failure is the cut of one stream, to all its readers or to one, and ends long before the next one. The length of
    the longest cut, or None if I4 is not owed; whether that is short enough depends on the alpha*X of the run."""
    cuts = sorted(failures(scenario), key=lambda strike: strike.at_us)
    if not cuts or not is_comfortable(scenario) or any(strike.kind not in OF_ONE_STREAM for strike in cuts):
        return None
    if any(later.at_us < earlier.end_us + APART_US for earlier, later in pairwise(cuts)):
        return None
    return max(strike.for_us for strike in cuts)


def owes_masking_by_rule(scenario: Scenario) -> bool:
    """Whether one of several replicas fails, and nothing else."""
    strikes = failures(scenario)
    if len(strikes) != 1 or strikes[0].kind not in OF_ONE_REPLICA or not is_comfortable(scenario):
        return False
    name = _fragment_struck(strikes[0])
    return name != EGRESS and len(scenario.plan.fragment(name).replicas) > 1


def owes_names_by_rule(scenario: Scenario) -> bool:
    """`missing_inputs`: whether only streams are cut, from all their readers, and nothing else is late."""
    cuts = failures(scenario)
    return (
        is_comfortable(scenario)
        and Hold.SUSPEND not in (scenario.plan.policy.failure, scenario.plan.policy.stabilization)
        and not scenario.lag_us
        and not scenario.batch_us
        and bool(cuts)
        and all(strike.kind == "cut_stream" for strike in cuts)
    )


# Parts of the rules


def failures(scenario: Scenario) -> list[Strike]:
    """The strikes that stop an instance, a stream or a path."""
    return [strike for strike in scenario.strikes if strike.kind not in HARMLESS]


def is_comfortable(scenario: Scenario) -> bool:
    """Whether X is longer than any wait without failures, and no row is ahead of its stream."""
    plan = scenario.plan
    if scenario.batch_us and (
        plan.alpha_x_us is not None
        or plan.memory_bytes < HELD_BACK_BYTES
        or scenario.batch_us > LONGEST_BATCH_US
        or not do_batches_fit(plan, scenario.batch_us)
    ):
        return False
    return (
        not scenario.may_skip
        and not scenario.jumps
        and "row_ahead" not in scenario.patterns
        and "disorder" not in scenario.patterns
        and plan.delay_threshold_us >= LEAST_STEPS * (plan.bucket_us + plan.boundary_interval_us)
    )


def do_batches_fit(plan: Plan, batch_us: int) -> bool:
    """Whether half of X is enough for the hosts in other processes on the longest path.

    At each of them an order waits at worst for the batch that runs and takes the next one, and both may last 1.5 times the
    usual `batch_us` microseconds.
    """
    after: dict[str, int] = {}
    for fragment in reversed(plan.fragments):
        own = 0 if set(fragment.engines) == {"native"} else 3 * batch_us
        rest = own + max((after.get(edge.operator, 0) for edge in fragment.outputs), default=0)
        for edge in fragment.edges:
            after[edge.operator] = max(after.get(edge.operator, 0), rest)
    return max(after.values()) <= plan.delay_threshold_us // 2


def is_some_stream_there(scenario: Scenario) -> bool:
    """Whether at every time some stream is neither cut nor just coming back."""
    changes = sorted(
        change
        for strike in failures(scenario)
        if strike.kind == "cut_stream"
        for change in ((strike.at_us, 1, strike.place), (strike.end_us + REJOINING_US, -1, strike.place))
    )
    cut: Counter[str] = Counter()
    for _, change, stream in changes:
        cut[stream] += change
        if sum(count > 0 for count in cut.values()) == len(scenario.feeds):
            return False
    return True


def kinds(plan: Plan) -> set[str]:
    """The kinds of the plan's operators."""
    return {node.spec.kind for fragment in plan.fragments for node in fragment.nodes}


def _goes_on_beside_a_redo(plan: Plan, fragment: Fragment) -> bool:
    """Whether a fragment answers during a correction: by another replica, or by an overlay (R21)."""
    return len(fragment.replicas) > 1 or fragment.name == EGRESS or plan.mode is Mode.OVERLAY_REDO


def _fragment_struck(strike: Strike) -> str:
    return strike.who.fragment if strike.who is not None else strike.place.split(".")[0]
