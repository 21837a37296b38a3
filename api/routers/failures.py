"""The failures of queries, as their events tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from api.dependencies import VIEWER, InstallationOf, Name
from api.event_history import EventFilter
from api.installation import Installation, NotFoundError
from api.models import EventAnswer, FailureAnswer, FailureList, FailureSummary, WhatIf, WhatIfStep
from boreal.query.refusals import did_you_mean
from deployment.what_if import Overhead, staircase

router = APIRouter(prefix="/api/v1/queries", tags=["failures"])

MOST_LISTED = 500
A_DAY_MS = 86_400_000.0
MOST_EVENTS = 1_000

FailureId = Annotated[str, Path(description="The id of the failure.", max_length=200, examples=["20260102T140211123Z"])]


@router.get("/{name}/failures", dependencies=[VIEWER])
def list_failures(
    name: Name,
    installation: InstallationOf,
    after: Annotated[str | None, Query(description="Only those before the one with this id.", max_length=200)] = None,
    limit: Annotated[int, Query(description="At most so many.", ge=1, le=MOST_LISTED)] = 50,
) -> FailureList:
    """The failures of a query, the newest first, one for each failure however many replicas saw it. Those of a deleted query
    are there as long as their events are."""
    known = [FailureSummary.model_validate(each) for each in _known(name, installation)]
    older = [each for each in known if after is None or each.id < after]
    return FailureList(failures=older[:limit], next=older[limit - 1].id if len(older) > limit else None)


@router.get("/{name}/failures/{id}", dependencies=[VIEWER])
def read_failure(name: Name, id: FailureId, installation: InstallationOf) -> FailureAnswer:
    """A failure: its phases and how long they took, what clients saw of it, how it went at each instance, and its events."""
    found = installation.events.failure(name, id)
    if found is None:
        newest = ", ".join(each["id"] for each in _known(name, installation)[:3])
        fix = f"the newest are {newest}" if newest else "it has had none that is still known"
        raise NotFoundError("ID", id, f"{name} has no such failure", fix)
    events = installation.events.after(None, EventFilter(query=name, failure=id), MOST_EVENTS).events
    return FailureAnswer.model_validate({**found, "events": [EventAnswer.of(number, event) for number, event in events]})


@router.get("/{name}/what-if", dependencies=[VIEWER])
def what_if(
    name: Name,
    installation: InstallationOf,
    since_ms: Annotated[
        float | None, Query(description="Count failures since then; by default of the last 24 hours.", ge=0, le=1e15)
    ] = None,
) -> WhatIf:
    """What each X would have shown of the failures that are recorded, as a staircase: a failure that is over within what X
    leaves to wait shows nothing, and any other at most the rows that were given meanwhile. A bound, not a forecast."""
    status, freshness = installation.status(name), installation.freshness()
    since = freshness.as_of_ms - A_DAY_MS if since_ms is None else since_ms
    completion_ms = installation.layout(name).plan.completion_us / 1_000
    alpha_x_ms = status["alpha_x_ms"] if status["alpha_x_ms"] is not None else status["x_ms"]
    overhead = Overhead.measured(status["x_ms"], alpha_x_ms, completion_ms)
    steps = staircase(installation.events.since(name, since), overhead)
    shown = [WhatIfStep(x_ms=step.x_ms, failures=step.failures, rows_tentative_at_most=step.rows) for step in steps]
    return WhatIf(query=name, x_ms=status["x_ms"], since_ms=since, steps=shown)


def _known(name: str, installation: Installation) -> list[Mapping[str, Any]]:
    """The failures of a query, the newest first. NotFoundError if there never was such a query, as far as is known."""
    found = installation.events.failures(name)
    if not found and name not in (queries := installation.queries()):
        raise NotFoundError("NAME", name, "there is no such query", did_you_mean(name, queries))
    return found
