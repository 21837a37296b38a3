"""The consistency machine of one instance (DPC, section 'Approach', the state machine; rulings R10, R12, R16-R22).

Theory of operation. An instance is STABLE while every input is stable and flowing. A failure is detected when a port has
missed two boundaries or turned tentative. The instance is then in UP_FAILURE. It announces this state, so that its readers
can switch to a STABLE replica. It still holds buckets back up to alpha*X, so a short failure has no visible effect. If it has
released tentative buckets, it reconciles once the input is corrected, and is in STABILIZATION until it has caught up. If it
has released none, it returns to STABLE directly. An instance that was away (restarted, frozen, or cut off from all its inputs)
is RECOVERING until it has read what it missed. No deadline holds for it meanwhile, and readers use it only if they have no
other replica.

`TRANSITIONS` is the whole machine. The diagram in docs/protocol.md is generated from it.
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
    """The facts that determine the state."""

    is_redoing: bool
    """A correction is running."""
    is_away: bool
    """The instance was away and has not caught up yet."""
    is_marked: bool
    """Tentative buckets were released and are not corrected yet."""
    has_failed_input: bool
    """At least one input has failed."""


def state_of(facts: Facts) -> State:
    """The state that follows from the facts. The first fact that holds decides, in the order of `Facts`."""
    if facts.is_redoing:
        return State.STABILIZATION
    if facts.is_away:
        return State.RECOVERING
    if facts.is_marked or facts.has_failed_input:
        return State.UP_FAILURE
    return State.STABLE


def check_transition(before: State, after: State) -> None:
    """Assert that the table has this transition. Any other one is a bug."""
    assert (before, after) in TRANSITIONS, f"no transition from {before.value} to {after.value}"
