"""The failures of queries, as their events tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from api.comparisons import MOST_ROWS
from api.dependencies import (
    MARKED,
    OPERATOR,
    VIEWER,
    Document,
    InstallationOf,
    JobsOf,
    MinRevision,
    Name,
    body_as,
    takes_document,
)
from api.event_history import EventFilter
from api.installation import Installation, NotFoundError
from api.models import (
    ComparisonAnswer,
    EventAnswer,
    FailureAnswer,
    FailureList,
    FailureSummary,
    Reconciliation,
    ReconciliationList,
    WhatIf,
    WhatIfStep,
)
from api.replays import EXAMPLE, RECORDING, Replay, ReplayRequest, check, faults_of, span_of
from api.routers.comparisons import KIND
from api.routers.jobs import caller_of
from boreal.query.refusals import did_you_mean
from deployment.events import RECONCILED, RecordedEvent
from deployment.what_if import Overhead, staircase
from embedded.recording import RowsGoneError, TooManyRowsError

router = APIRouter(prefix="/api/v1/queries", tags=["failures"])

MOST_LISTED = 500
A_DAY_MS = 86_400_000.0
MOST_EVENTS = 1_000

FailureId = Annotated[str, Path(description="The id of the failure.", max_length=200, examples=["20260102T140211123Z"])]


@router.get("/{name}/failures", dependencies=[VIEWER, MARKED])
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


@router.get("/{name}/failures/{id}", dependencies=[VIEWER, MARKED])
def read_failure(name: Name, id: FailureId, installation: InstallationOf) -> FailureAnswer:
    """A failure: its phases and how long they took, what clients saw of it, how it went at each instance, and its events."""
    found = _find(name, id, installation)
    events = installation.events.after(None, EventFilter(query=name, failure=id), MOST_EVENTS).events
    return FailureAnswer.model_validate({**found, "events": [EventAnswer.of(number, event) for number, event in events]})


@router.post(
    "/{name}/failures/{id}/replay",
    status_code=202,
    response_model=ComparisonAnswer,
    dependencies=[OPERATOR],
    openapi_extra=takes_document(EXAMPLE, ReplayRequest),
)
def replay_failure(
    name: Name,
    id: FailureId,
    document: Document,
    http: Request,
    installation: InstallationOf,
    jobs: JobsOf,
    response: Response,
) -> Any:
    """Run a failure that is over again, beside the installation: the rows that came, when they came, and what was broken, under
    each X, mode and policy. It is a comparison, and is read, cancelled and deleted as one. 410 where its rows are no longer
    kept."""
    asked = body_as(ReplayRequest, document)
    request = asked.asked(name, id)
    job = None if asked.id is None else jobs.same(KIND.name, asked.id, request)
    if job is None:
        found = _find(name, id, installation)
        span = span_of(found)
        current = installation.queries().get(name)
        try:
            recording = installation.recorded(name, span, MOST_ROWS)
        except (RowsGoneError, TooManyRowsError) as error:
            raise replace(error, field="ID", value=id) from None
        spec = installation.events.spec(name, found["detected_ms"]) or (current.spec if current is not None else {})
        bucket_us = installation.layout(name).plan.bucket_us
        replay = Replay(spec, bucket_us, faults_of(found, spec["streams"], recording.begin), recording)
        check(asked, replay)
        more = {"spec": spec, "bucket_us": bucket_us, "faults": replay.faults}
        job = jobs.post(KIND.name, asked.id, name, caller_of(http), request, lambda to: recording.save(to / RECORDING), **more)
    return KIND.begun(job, jobs, response)


@router.get("/{name}/reconciliations", dependencies=[VIEWER, MARKED])
def list_reconciliations(
    name: Name,
    installation: InstallationOf,
    failure: Annotated[str | None, Query(description="Only those of the failure with this id.", max_length=200)] = None,
    after: Annotated[int | None, Query(description="Only those before the one with this id.", ge=0, le=10**18)] = None,
    limit: Annotated[int, Query(description="At most so many.", ge=1, le=MOST_LISTED)] = 50,
) -> ReconciliationList:
    """The corrections of a query's instances that are over, the newest first, as the journal has them. An instance that had
    given nothing tentative needs none."""
    modes = {each["id"]: each["reconcile"] for each in _known(name, installation)}
    wanted = EventFilter(name, frozenset({RECONCILED}), failure)
    found: list[Reconciliation] = []
    while len(found) < limit:
        page = installation.events.before(after, wanted, limit - len(found))
        found += [_reconciliation(*each, modes) for each in page.events if each[1].facts["redo_s"] is not None]
        after = page.reached
        if page.is_end:
            return ReconciliationList(reconciliations=found, next=None)
    return ReconciliationList(reconciliations=found, next=after)


@router.get("/{name}/what-if", dependencies=[VIEWER, MARKED])
def what_if(
    name: Name,
    installation: InstallationOf,
    since_ms: Annotated[
        float | None, Query(description="Count failures since then; by default of the last 24 hours.", ge=0, le=1e15)
    ] = None,
    min_revision: MinRevision = None,
) -> WhatIf:
    """What each X would have shown of the failures that are recorded, as a staircase: a failure that is over within what X
    leaves to wait shows nothing, and any other at most the rows that were given meanwhile. A bound, not a forecast."""
    if min_revision is not None:
        installation.queries((name, min_revision))
    status, freshness = installation.status(name), installation.freshness()
    since = freshness.as_of_ms - A_DAY_MS if since_ms is None else since_ms
    completion_ms = installation.layout(name).plan.completion_us / 1_000
    alpha_x_ms = status["alpha_x_ms"] if status["alpha_x_ms"] is not None else status["x_ms"]
    overhead = Overhead.measured(status["x_ms"], alpha_x_ms, completion_ms)
    steps = staircase(installation.events.since(name, since), overhead)
    shown = [WhatIfStep(x_ms=step.x_ms, failures=step.failures, rows_tentative_at_most=step.rows) for step in steps]
    return WhatIf(query=name, x_ms=status["x_ms"], since_ms=since, steps=shown)


def _reconciliation(number: int, event: RecordedEvent, modes: Mapping[str, str | None]) -> Reconciliation:
    fragment, replica, *shard = event.facts["instance"].split(".")  # an egress, egress.SITE, has no shards
    seconds = float(event.facts["redo_s"])
    return Reconciliation(
        id=number,
        failure=event.failure,
        fragment=fragment,
        replica=replica,
        shard=int(shard[0]) if shard else 0,
        mode=modes.get(event.failure or ""),
        started_ms=event.at_ms - seconds * 1_000,
        ended_ms=event.at_ms,
        seconds=seconds,
    )


def _find(name: str, id_: str, installation: Installation) -> Mapping[str, Any]:
    """A failure. NotFoundError, with the newest ones, if it is not known."""
    found = installation.events.failure(name, id_)
    if found is None:
        newest = ", ".join(each["id"] for each in _known(name, installation)[:3])
        fix = f"the newest are {newest}" if newest else "it has had none that is still known"
        raise NotFoundError("ID", id_, f"{name} has no such failure", fix)
    return found


def _known(name: str, installation: Installation) -> list[Mapping[str, Any]]:
    """The failures of a query, the newest first. NotFoundError if there never was such a query, as far as is known."""
    found = installation.events.failures(name)
    if not found and name not in (queries := installation.queries()):
        raise NotFoundError("NAME", name, "there is no such query", did_you_mean(name, queries))
    return found
