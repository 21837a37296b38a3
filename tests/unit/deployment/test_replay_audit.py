"""Replays of dead letters among the events."""

from __future__ import annotations

from deployment.audit import ReplayAudit, replay_event
from deployment.events import read_event
from deployment.status_fields import API
from formats.dead_letter import PUT_BACK_BEFORE, LetterChoice, ReplayOutcome
from tests.described import assert_described

CHOICE = LetterChoice("jfk", "late", None)
OUTCOME = ReplayOutcome(3, {PUT_BACK_BEFORE: 2})


def test_a_replay_is_recorded_once_also_after_a_restart() -> None:
    event = replay_event("departures", CHOICE, OUTCOME, 1_700_000_000_000.0, "ops (operator)")
    audit = ReplayAudit()
    [recorded] = audit.see([event])
    assert not audit.see([event])
    assert (recorded.kind, recorded.query, recorded.by) == ("replayed", "departures", "ops (operator)")
    assert recorded.facts["replayed"] == 3 and recorded.facts["left"] == {PUT_BACK_BEFORE: 2}
    assert recorded.facts["stream"] == "jfk" and recorded.facts["reason"] == "late" and recorded.facts["since_ms"] is None
    assert_described({"replays": [recorded.fields()], "tokens": [], "jobs": []}, API)
    again = ReplayAudit()
    again.resume(read_event(recorded.to_json()))
    assert not again.see([event])
