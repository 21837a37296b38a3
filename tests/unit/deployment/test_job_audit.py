"""Jobs in the journal: each is there once, with who asked for it and how it ended, whatever was seen of it."""

from __future__ import annotations

from typing import Any

from deployment.audit import JobAudit
from deployment.events import KEPT_MS, RecordedEvent


def job(id_: str = "mine", state: str = "queued", created_ms: float = 1_000.0, **more: Any) -> dict[str, Any]:
    ended_ms = created_ms + 500 if state in ("done", "failed", "cancelled") else None
    return {
        "id": id_, "kind": "comparison", "query": "q", "by": "ann (operator)", "created_ms": created_ms, "state": state,
        "ended_ms": ended_ms, "problem": None, **more,
    }  # fmt: skip


def told(events: list[RecordedEvent]) -> list[tuple[str, float, str | None, str]]:
    return [(event.kind, event.at_ms, event.by, event.facts["id"]) for event in events]


def test_a_job_is_recorded_when_it_is_asked_for_and_when_it_is_over() -> None:
    audit = JobAudit()
    assert told(audit.see([job()], 1_001)) == [("job_created", 1_000.0, "ann (operator)", "mine")]
    assert audit.see([job(state="running")], 1_100) == []
    assert told(audit.see([job(state="done")], 1_600)) == [("job_done", 1_500.0, None, "mine")]
    assert audit.see([job(state="done")], 1_700) == []


def test_what_happened_meanwhile_is_recorded_later_and_nothing_twice() -> None:
    problem = {"field": "id", "value": "mine", "problem": "its process ended by SIGKILL", "fix": "send a smaller one"}
    first, later = JobAudit(), JobAudit()
    for event in first.see([job()], 1_001):
        later.resume(event)
    found = later.see([job(state="failed", problem=problem), job("other", "cancelled", 2_000.0)], 9_000)
    assert [kind for kind, *_ in told(found)] == ["job_failed", "job_created", "job_cancelled"]
    assert found[0].facts["problem"] == problem
    again = JobAudit()
    for event in [*JobAudit().see([job()], 1_001), *found]:
        again.resume(event)
    assert again.see([job(state="failed", problem=problem), job("other", "cancelled", 2_000.0)], 9_100) == []


def test_an_id_may_be_used_again_and_old_jobs_have_no_events() -> None:
    audit = JobAudit()
    audit.see([job(state="done")], 2_000)
    assert audit.see([], 2_500) == []
    assert [kind for kind, *_ in told(audit.see([job(created_ms=3_000.0)], 3_001))] == ["job_created"]
    assert audit.see([job("old", "done")], 1_000 + KEPT_MS) == []
