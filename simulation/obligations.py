"""What a scenario owes beyond what every run does, read off its strikes, its plan and its policies: I3, I4, that one failure
of one replica is masked, and that `missing_inputs` says just what is missing.

Conservative: where a rule does not plainly apply, nothing is owed. A family that knows more may claim more.
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
"""They stop nobody, and are in nobody's way."""
OF_ONE_REPLICA = {"crash", "crash_losing_checkpoint", "crash_midway", "zombie", "freeze", "cut_replica", "engine_crash"}
OF_ONE_STREAM = {"cut_stream", "cut_stream_to_replica"}

ROWWISE = ("filter", "map", "union")
LEAST_STEPS = 4
"""X is comfortable from so many times a bucket and a boundary interval on."""
LONGEST_BATCH_US = 60 * MILLISECOND
REJOINING_US = 400 * MILLISECOND
"""So long after a heal a stream may still be on its way."""
APART_US = SECOND
"""So long after the end of one failure the next one finds everybody calm."""


def with_obligations(scenario: Scenario) -> Scenario:
    """The scenario, with what follows from the rules besides what its family claims."""
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
    """I3: streams are cut from all their readers, never all at once, and somebody can always answer. No operator waits for
    two sides (R15)."""
    plan = scenario.plan
    return (
        is_comfortable(scenario)
        and Hold.SUSPEND not in (plan.policy.failure, plan.policy.stabilization)
        and "join" not in kinds(plan)
        and all(_goes_on_beside_a_redo(plan, fragment) for fragment in plan.fragments)
        and all(strike.kind == "cut_stream" for strike in failures(scenario))
        and is_some_stream_there(scenario)
    )


def gives_row_by_row(scenario: Scenario) -> bool:
    """Each result depends on one row, which comes by one path; and memory holds what is held back."""
    plan = scenario.plan
    is_chain = all(sum(edge.producers for edge in f.edges if not edge.source) <= 1 for f in plan.fragments)
    reads_once = all(len({edge.name for edge in plan.sources if edge.operator == name}) == 1 for name in scenario.feeds)
    only_cuts = all(strike.kind == "cut_stream" for strike in failures(scenario))
    plain = is_chain and reads_once and kinds(plan) <= set(ROWWISE)
    # A row that is out of order for longer than X is in the final answer only.
    return plain and only_cuts and plan.memory_bytes >= HELD_BACK_BYTES and not scenario.owes_early


def longest_short_cut_us(scenario: Scenario) -> int | None:
    """I4: each failure is the cut of one stream, to all its readers or to one, and over long before the next one. None where
    it is not owed; whether it is short enough is judged by the alpha*X that there was."""
    cuts = sorted(failures(scenario), key=lambda strike: strike.at_us)
    if not cuts or not is_comfortable(scenario) or any(strike.kind not in OF_ONE_STREAM for strike in cuts):
        return None
    if any(later.at_us < earlier.end_us + APART_US for earlier, later in pairwise(cuts)):
        return None
    return max(strike.for_us for strike in cuts)


def owes_masking_by_rule(scenario: Scenario) -> bool:
    """One of several replicas fails, and all else is well."""
    strikes = failures(scenario)
    if len(strikes) != 1 or strikes[0].kind not in OF_ONE_REPLICA or not is_comfortable(scenario):
        return False
    name = _fragment_struck(strikes[0])
    return name != EGRESS and len(scenario.plan.fragment(name).replicas) > 1


def owes_names_by_rule(scenario: Scenario) -> bool:
    """`missing_inputs`: only streams are cut, from all their readers, and nothing else is late."""
    cuts = failures(scenario)
    return (
        is_comfortable(scenario)
        and Hold.SUSPEND not in (scenario.plan.policy.failure, scenario.plan.policy.stabilization)
        and not scenario.lag_us
        and not scenario.batch_us
        and bool(cuts)
        and all(strike.kind == "cut_stream" for strike in cuts)
    )


# What the rules are made of


def failures(scenario: Scenario) -> list[Strike]:
    """The strikes that stop somebody or something."""
    return [strike for strike in scenario.strikes if strike.kind not in HARMLESS]


def is_comfortable(scenario: Scenario) -> bool:
    """X leaves time for what a bucket waits for without any failure, and no row is ahead of its stream."""
    plan = scenario.plan
    if scenario.batch_us and (
        plan.alpha_x_us is not None or plan.memory_bytes < HELD_BACK_BYTES or scenario.batch_us > LONGEST_BATCH_US
    ):
        return False
    return (
        not scenario.may_skip
        and not scenario.jumps
        and "row_ahead" not in scenario.patterns
        and "disorder" not in scenario.patterns
        and plan.delay_threshold_us >= LEAST_STEPS * (plan.bucket_us + plan.boundary_interval_us)
    )


def is_some_stream_there(scenario: Scenario) -> bool:
    """Whether at no time all streams are cut, or are just coming back."""
    changes = sorted(
        change
        for strike in failures(scenario)
        for change in ((strike.at_us, 1, strike.place), (strike.end_us + REJOINING_US, -1, strike.place))
    )
    cut: Counter[str] = Counter()
    for _, change, stream in changes:
        cut[stream] += change
        if sum(count > 0 for count in cut.values()) == len(scenario.feeds):
            return False
    return True


def kinds(plan: Plan) -> set[str]:
    """Those of the plan's operators."""
    return {node.spec.kind for fragment in plan.fragments for node in fragment.nodes}


def _goes_on_beside_a_redo(plan: Plan, fragment: Fragment) -> bool:
    """Another replica does, or an overlay (R21)."""
    return len(fragment.replicas) > 1 or fragment.name == EGRESS or plan.mode is Mode.OVERLAY_REDO


def _fragment_struck(strike: Strike) -> str:
    return strike.who.fragment if strike.who is not None else strike.place.split(".")[0]
