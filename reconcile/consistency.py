"""The consistency machine of one instance (DPC, section 'Approach', the state machine; rulings R10, R12, R16-R22).

Theory of operation. An instance is STABLE while every input is stable and flowing. At detection, when a port has missed
two boundaries or turned tentative, it is in UP_FAILURE, and says so, that its readers may leave for a STABLE replica; it
goes on holding buckets back up to alpha*X, so a short failure leaves no trace. If it has handed on tentative buckets, it
reconciles once the input is corrected, and is in STABILIZATION until it has caught up; else it is simply STABLE again.
An instance that was away (restarted, frozen, or cut from all its inputs) is RECOVERING until it has read what it missed:
no deadline holds for it, and nobody reads from it who has another choice.

`TRANSITIONS` is the whole machine; the diagram in docs/protocol.md is drawn from it.
"""

from __future__ import annotations

from typing import NamedTuple

from boreal.model.frames import State

TRANSITIONS: dict[tuple[State, State], str] = {
    (State.STABLE, State.UP_FAILURE): "a port missed two boundaries or turned tentative",
    (State.STABLE, State.RECOVERING): "the instance was away",
    (State.UP_FAILURE, State.STABLE): "healed, and nothing tentative was sent",
    (State.UP_FAILURE, State.STABILIZATION): "healed and permitted: ROLLBACK",
    (State.UP_FAILURE, State.RECOVERING): "the instance was away",
    (State.STABILIZATION, State.STABLE): "caught up, all inputs stable",
    (State.STABILIZATION, State.UP_FAILURE): "caught up, but an input failed meanwhile",
    (State.STABILIZATION, State.RECOVERING): "caught up, but the instance was away meanwhile",
    (State.RECOVERING, State.STABLE): "read what it missed",
    (State.RECOVERING, State.UP_FAILURE): "read what it missed, but an input has failed",
}


class Facts(NamedTuple):
    """What the state follows from. is_marked: tentative buckets were handed on and not yet corrected."""

    is_redoing: bool
    is_away: bool
    is_marked: bool
    has_failed_input: bool


def state_of(facts: Facts) -> State:
    """The state that the facts demand, the most specific first."""
    if facts.is_redoing:
        return State.STABILIZATION
    if facts.is_away:
        return State.RECOVERING
    if facts.is_marked or facts.has_failed_input:
        return State.UP_FAILURE
    return State.STABLE


def check_transition(before: State, after: State) -> None:
    """A move that the table does not have is a bug."""
    assert (before, after) in TRANSITIONS, f"no transition from {before.value} to {after.value}"
