"""Each check of what is owed sees the rule that it is for being broken, in scenarios that are made for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from boreal.query.spec import Hold, Policy
from reconcile.events import PathAfter, Received
from reconcile.instance import Instance
from simulation.client import faults_of_records
from simulation.drawing import PlanOptions, make_plan, settle
from simulation.families import make_family_scenario, make_scenario
from simulation.families.partial import FAMILIES
from simulation.invariants import check
from simulation.obligations import HARMLESS, with_obligations
from simulation.run import observe
from simulation.scenario import Scenario, make_reference
from sunion.sunion import SUnion
from tests.thoroughness import every, some

Spoil = Callable[[pytest.MonkeyPatch], None]
SEEDS = range(60)


def _scenario(seed: int, hold: Hold = Hold.PROCESS) -> Scenario:
    """One stream or two are cut for long; all replicas hold back alike."""
    drawn = FAMILIES["partial"][1](seed, "partial", Random(seed))
    return with_obligations(replace(drawn, plan=replace(drawn.plan, policy=Policy(failure=hold, stabilization=hold))))


def _anomalies(scenario: Scenario) -> set[str]:
    reference = observe(make_reference(scenario))
    return {violation.name for violation in check(scenario, observe(scenario), reference)}


def _is_seen(anomaly: str, hold: Hold = Hold.PROCESS) -> bool:
    return any(anomaly in _anomalies(_scenario(seed, hold)) for seed in SEEDS)


def _name_the_first_only(patch: pytest.MonkeyPatch) -> None:
    original = SUnion._why

    def why(self: SUnion, since: int, upto: int) -> tuple[tuple[str, ...], str]:
        missing, cause = original(self, since, upto)
        return missing[:1], cause

    patch.setattr(SUnion, "_why", why)


def _blame_all(patch: pytest.MonkeyPatch) -> None:
    original = SUnion._why

    def why(self: SUnion, since: int, upto: int) -> tuple[tuple[str, ...], str]:
        missing, cause = original(self, since, upto)
        return tuple(dict.fromkeys([*missing, *(port.name for port in self.ports)])), cause

    patch.setattr(SUnion, "_why", why)


def _name_no_cause(patch: pytest.MonkeyPatch) -> None:
    original = SUnion._why
    patch.setattr(SUnion, "_why", lambda self, since, upto: (original(self, since, upto)[0], ""))


def _lose_a_row(patch: pytest.MonkeyPatch) -> None:
    """A tentative step does without the first row of each port."""
    original = SUnion._take

    def take(self: SUnion, view: Any, at: int, since: int, upto: int, tentative: bool) -> Any:
        taken = original(self, view, at, since, upto, tentative)
        if tentative and taken.batches and taken.batches[0].num_rows > 1:
            taken.batches[0], taken.times[0] = taken.batches[0].slice(1), taken.times[0][1:]
        return taken

    patch.setattr(SUnion, "_take", take)


def _correct_late(patch: pytest.MonkeyPatch) -> None:
    original = Instance._maybe_reconcile

    def reconcile(self: Instance, now: int, effects: list[Any]) -> bool:
        return now - self.unwell_since > 2_500_000 and original(self, now, effects)

    patch.setattr(Instance, "_maybe_reconcile", reconcile)


def _hold_as(hold: Hold) -> Spoil:
    def spoil(patch: pytest.MonkeyPatch) -> None:
        original = Instance.__init__

        def init(self: Instance, *arguments: Any) -> None:
            original(self, *arguments)
            self.sunion.policy = Policy(failure=hold, stabilization=hold)

        patch.setattr(Instance, "__init__", init)

    return spoil


@pytest.mark.parametrize(
    "spoil, anomaly, hold",
    [
        (_name_the_first_only, "misnamed", Hold.PROCESS),
        (_blame_all, "misnamed", Hold.PROCESS),
        (_name_no_cause, "no-cause", Hold.PROCESS),
        (_lose_a_row, "not-of-these-rows", Hold.PROCESS),
        (_correct_late, "hesitant", Hold.PROCESS),
        (_hold_as(Hold.PROCESS), "unasked", Hold.SUSPEND),
        (_hold_as(Hold.PROCESS), "impatient", Hold.DELAY),
        (_hold_as(Hold.DELAY), "sluggish", Hold.PROCESS),
    ],
    ids=["first only", "blame all", "no cause", "lose a row", "correct late", "suspend", "delay", "process"],
)
def test_a_broken_rule_is_seen(spoil: Spoil, anomaly: str, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    assert _is_seen(anomaly, hold)


@pytest.mark.parametrize("hold", every(3, Hold))
def test_a_whole_one_is_not(hold: Hold) -> None:
    assert [name for seed in range(some(30)) for name in _anomalies(_scenario(seed, hold))] == []


def test_a_session_that_ends_after_the_last_row_of_an_overdue_bucket_is_not_too_early() -> None:
    assert _anomalies(make_family_scenario("recent", 3461)) == set()


def test_a_path_left_out_of_what_alpha_x_is_shared_by_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader far from its producer, whose own path to the client is long."""
    original = Instance.handle

    def forget(self: Instance, event: Any, now: int) -> Any:
        if isinstance(event, Received) and isinstance(event.message, PathAfter):
            event = Received(replace(event.message, micros=event.message.micros // 4))
        return original(self, event, now)

    wish = PlanOptions(replicas=(1,), streams=(1,), shapes=("chain",), x_ms=(1_500, 2_000), is_comfortable=True)
    drawn = (make_plan(Random(seed), wish) for seed in SEEDS)
    chains = (query for query in drawn if len(query.fragments) > 2 and not query.fragments[-2].has_several_producers)
    query = replace(next(chains), alpha_x_us=None)
    maker = query.fragments[-2].name
    scenario = replace(settle(3, "storm", Random(3), query, wish), hops_us=((f"{maker}.r0", 100_000),))
    assert "alpha-shared-wrongly" not in _anomalies(scenario)
    monkeypatch.setattr(Instance, "handle", forget)
    assert "alpha-shared-wrongly" in _anomalies(scenario)


# What is read off a scenario


def test_what_is_owed_is_read_off_the_strikes() -> None:
    scenarios = [make_scenario(seed) for seed in range(500)]
    for scenario in scenarios:
        kinds = {strike.kind for strike in scenario.strikes}
        assert not scenario.owes_names or kinds <= {"cut_stream", *HARMLESS}
    owed = {"delay": 0, "silence": 0, "masking": 0, "names": 0}
    for what in owed:
        owed[what] = sum(getattr(scenario, f"owes_{what}") for scenario in scenarios)
    assert all(owed.values()), owed
    assert any(scenario.owes_delay for scenario in scenarios if scenario.family in ("storm", "short", "partial"))


# The client's records


def _record(kind: str, seq: int, stable_seq: int, epoch: int = 0, **more: Any) -> str:
    tentative = {"missing_inputs": ["a"], "cause": "m.r0-1"} if kind == "tentative" else {}
    return json.dumps({"type": kind, "seq": seq, "stable_seq": stable_seq, "epoch": epoch, **tentative, **more})


FAILURE = [
    _record("stable", 1, 1, data={"v": 1}),
    _record("tentative", 2, 1, data={"v": 2}),
    _record("undo", 3, 1, 1, after_seq=1),
    _record("stable", 4, 4, 1, data={"v": 3}),
    _record("rec_done", 5, 4, 1),
]
STABLE = ['{"v": 1}', '{"v": 3}']


def test_records_that_fit_together_leave_the_stable_rows() -> None:
    assert list(faults_of_records(FAILURE, STABLE, True)) == []


@pytest.mark.parametrize(
    "place, record, fault",
    [
        (2, _record("undo", 3, 1, 1, after_seq=2), "undo 3 after 2"),
        (2, _record("undo", 3, 1, 0, after_seq=1), "of epoch 0 after 0"),
        (2, _record("boundary", 3, 1, 0, tentative=False, through="2026"), "after 1 tentative rows"),
        (3, _record("stable", 4, 4, 1, data={"v": 2}), "leaves other rows"),
        (1, _record("tentative", 2, 1, data={"v": 2}, cause=None), "names no cause"),
        (1, _record("rec_done", 2, 1), "without an undo"),
        (4, _record("tentative", 5, 4, 1, data={"v": 4}), "are left"),
    ],
)
def test_a_record_that_does_not_fit_is_seen(place: int, record: str, fault: str) -> None:
    records = [*FAILURE[:place], record, *FAILURE[place + 1 :]]
    assert any(fault in found for found in faults_of_records(records, STABLE, True))
