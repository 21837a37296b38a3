"""The fault grammar, verb by verb, and the targets that a plan offers."""

from __future__ import annotations

import pytest

from boreal.model.errors import UserError
from boreal.model.schema import Schema
from boreal.query.plan import EGRESS, Edge, Fragment, Input, Plan
from boreal.query.spec import Mode, Policy
from embedded.faults import Fault, check_faults, parse_fault

SECOND = 1_000_000


@pytest.mark.parametrize(
    "text, fault",
    [
        ("cut jfk at 5s for 10s", Fault("cut_stream", stream="jfk", at_us=5 * SECOND, for_us=10 * SECOND)),
        (
            "cut jfk to r1 at 0s for 250ms",
            Fault("cut_stream", stream="jfk", to_replica="r1", at_us=0, for_us=250_000),
        ),
        (
            "cut jfk to main.r1 at 1s for 1s",
            Fault("cut_stream", stream="jfk", fragment="main", to_replica="r1", at_us=SECOND, for_us=SECOND),
        ),
        (
            "  cut   main.r0 at 1s  for 1s ",
            Fault("cut_replica", fragment="main", replica="r0", at_us=SECOND, for_us=SECOND),
        ),
        ("crash main.r0 at 1s", Fault("crash", fragment="main", replica="r0", at_us=SECOND)),
        ("crash main.r0 at 1s for 2s", Fault("crash", fragment="main", replica="r0", at_us=SECOND, for_us=2 * SECOND)),
        (
            "crash main.r0 at 1s for 2s losing checkpoint",
            Fault("crash", fragment="main", replica="r0", at_us=SECOND, for_us=2 * SECOND, losing_checkpoint=True),
        ),
        (
            "crash main.r0 at 1s losing checkpoint",
            Fault("crash", fragment="main", replica="r0", at_us=SECOND, losing_checkpoint=True),
        ),
        (
            "freeze main.r0 at 1s for 2s",
            Fault("freeze", fragment="main", replica="r0", at_us=SECOND, for_us=2 * SECOND),
        ),
        ("slow jfk by 100ms at 1s for 2s", Fault("slow", stream="jfk", by_us=100_000, at_us=SECOND, for_us=2 * SECOND)),
        (
            "slow main.r0 by 1s at 1s for 2s",
            Fault("slow", fragment="main", replica="r0", by_us=SECOND, at_us=SECOND, for_us=2 * SECOND),
        ),
        ("stop jfk at 7s", Fault("stop", stream="jfk", at_us=7 * SECOND)),
    ],
)
def test_every_form_is_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "cut, crash, freeze, slow, stop"),
        ("break jfk at 5s", "cut, crash, freeze, slow, stop"),
        ("cut jfk at 5s", "cut STREAM [to rN] at T for D"),
        ("cut jfk for 5s at 5s", "cut STREAM [to rN] at T for D"),
        ("cut main.r0 to r1 at 5s for 5s", "cut FRAGMENT.rN at T for D"),
        ("crash main at 5s", "crash FRAGMENT.rN at T [for D] [losing checkpoint]"),
        ("crash main.r0 at 5s losing", "crash FRAGMENT.rN at T [for D] [losing checkpoint]"),
        ("freeze main.r0 at 5s", "freeze FRAGMENT.rN at T for D"),
        ("slow jfk at 5s for 5s", "slow STREAM by D at T for D"),
        ("stop jfk at 5s for 5s", "stop STREAM at T"),
        ("stop jfk at 5", "has no unit"),
        ("cut jfk at 5s for 0s", "is zero"),
        ("cut jfk at soon for 5s", "is not a duration"),
    ],
)
def test_a_refusal_shows_the_grammar(text: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_fault(text)
    assert raised.value.field == "--fault"
    assert words in str(raised.value)


def plan() -> Plan:
    """ewr and jfk are merged by `merge` (r0, r1), counted by `count` (r0, r1, r2), and read by the egress."""

    def edge(name: str, source: bool) -> Edge:
        return Edge(name, name.partition("-")[0], Schema(()), 1, 1, (), source)

    def fragment(name: str, inputs: tuple[Edge, ...], output: Edge, replicas: int) -> Fragment:
        names = tuple(f"r{number}" for number in range(replicas))
        entries = tuple(Input(entry.name, (entry,), entry.schema) for entry in inputs)
        return Fragment(name, entries, (), (output,), names, 1, ("native",) * replicas)

    ewr, jfk, merged, counted, out = edge("ewr-0", True), edge("jfk-0", True), *(
        edge(name, False) for name in ("merged", "counted", "out")
    )
    return Plan(
        query="q",
        fragments=(
            fragment("merge", (ewr, jfk), merged, 2),
            fragment("count", (merged,), counted, 3),
            fragment(EGRESS, (counted,), out, 1),
        ),
        sources=(ewr, jfk),
        output=out,
        output_key=(),
        mode=Mode.CHECKPOINT_REDO,
        policy=Policy(),
        delay_threshold_us=3 * SECOND,
        bucket_us=100_000,
        bucket_run_us=100_000,
        boundary_interval_us=50_000,
        silence_us=150_000,
        heartbeat_us=100_000,
        alpha_x_us=None,
        memory_bytes=1,
        retention_us=1,
        stable_lag_max_us=1,
        checkpoint_interval_us=None,
        notes=(),
    )


@pytest.mark.parametrize(
    "text",
    [
        "cut ewr at 1s for 1s",
        "cut jfk to r1 at 1s for 1s",
        "cut jfk to merge.r1 at 1s for 1s",
        "cut count.r2 at 1s for 1s",
        "crash merge.r0 at 1s",
        "slow jfk by 1s at 1s for 1s",
        "slow count.r1 by 1s at 1s for 1s",
        "stop ewr at 1s",
    ],
)
def test_a_target_of_the_plan_is_accepted(text: str) -> None:
    check_faults([parse_fault(text)], plan())


@pytest.mark.parametrize(
    "text, target",
    [
        ("cut lga at 1s for 1s", "lga"),
        ("cut merged at 1s for 1s", "merged"),
        ("cut jfk to r2 at 1s for 1s", "r2"),
        ("cut jfk to count.r1 at 1s for 1s", "count.r1"),
        ("cut merge.r2 at 1s for 1s", "merge.r2"),
        ("crash egress.r0 at 1s", "egress.r0"),
        ("freeze main.r0 at 1s for 1s", "main.r0"),
        ("slow lga by 1s at 1s for 1s", "lga"),
        ("stop lga at 1s", "lga"),
    ],
)
def test_an_unknown_target_is_refused_with_the_choices(text: str, target: str) -> None:
    with pytest.raises(UserError) as raised:
        check_faults([parse_fault("cut ewr at 1s for 1s"), parse_fault(text)], plan())
    assert raised.value.value == target
    assert "ewr, jfk" in raised.value.fix and "merge.r0, merge.r1" in raised.value.fix
    assert "egress" not in raised.value.fix
