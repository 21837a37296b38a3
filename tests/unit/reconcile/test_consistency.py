"""The state machine's table: every state that facts demand can be reached by moves that the table has."""

from __future__ import annotations

from itertools import product

import pytest

from boreal.model.frames import State
from reconcile.consistency import TRANSITIONS, Facts, check_transition, state_of

ALL_FACTS = [Facts(*values) for values in product((False, True), repeat=4)]


def test_the_most_specific_fact_decides() -> None:
    assert state_of(Facts(True, True, True, True)) is State.STABILIZATION
    assert state_of(Facts(False, True, True, True)) is State.RECOVERING
    assert state_of(Facts(False, False, True, False)) is State.UP_FAILURE
    assert state_of(Facts(False, False, False, True)) is State.UP_FAILURE
    assert state_of(Facts(False, False, False, False)) is State.STABLE


def test_every_state_is_demanded_by_some_facts_and_left_and_entered() -> None:
    assert {state_of(facts) for facts in ALL_FACTS} == set(State)
    assert {before for before, _ in TRANSITIONS} == {after for _, after in TRANSITIONS} == set(State)


@pytest.mark.parametrize(("before", "after"), sorted(TRANSITIONS, key=str))
def test_the_table_allows_what_it_has_and_says_why(before: State, after: State) -> None:
    assert before is not after and TRANSITIONS[before, after]
    check_transition(before, after)


def test_corrections_begin_in_up_failure_only() -> None:
    """There is nothing to correct in STABLE; and while RECOVERING no deadline holds, so nothing tentative is sent."""
    for before in (State.STABLE, State.RECOVERING):
        with pytest.raises(AssertionError, match=f"from {before.value} to STABILIZATION"):
            check_transition(before, State.STABILIZATION)
    with pytest.raises(AssertionError):
        check_transition(State.STABLE, State.STABLE)
