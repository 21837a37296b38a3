"""Comparisons: runs of the same input and faults under each X, mode and policy, as jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from api.comparisons import EXAMPLE, ComparisonRequest, check, spec_of
from api.dependencies import OPERATOR, VIEWER, Document, InstallationOf, JobsOf, takes_document
from api.installation import RETRY_AFTER_S
from api.job_queue import Job, State
from api.jobs import PROGRESS, REQUEST, RESULT, Jobs
from api.models import ComparisonAnswer, ComparisonList, ComparisonSummary, Progress

PREFIX = "/api/v1/comparisons"
MOST_LISTED = 500

router = APIRouter(prefix=PREFIX, tags=["comparisons"])

JobId = Annotated[str, Path(description="The id of the comparison.", max_length=200, examples=["which-mode"])]


@router.post("", status_code=202, dependencies=[OPERATOR], openapi_extra=takes_document(EXAMPLE))
def begin(
    http: Request, document: Document, installation: InstallationOf, jobs: JobsOf, response: Response
) -> ComparisonAnswer:
    """Run the same input and faults under each X, mode and policy, one run after the other, beside the installation: nothing
    that runs notices. The same id with the same request is answered with the same comparison; with another, 409."""
    try:
        request = ComparisonRequest.model_validate(document)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None
    asked = request.model_dump(exclude={"id"})
    job = None if request.id is None else jobs.same(request.id, asked)
    if job is None:
        spec = spec_of(request, installation.queries())
        check(request, spec)
        job = jobs.post(request.id, spec["name"], str(http.state.caller), asked, spec=spec)
    response.headers["Location"] = f"{PREFIX}/{job.id}"
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return _answer(job, jobs)


@router.get("", dependencies=[VIEWER])
def list_comparisons(
    jobs: JobsOf,
    after: Annotated[str | None, Query(description="Only older ones: `next` of the page before.", max_length=200)] = None,
    limit: Annotated[int, Query(description="At most so many.", ge=1, le=MOST_LISTED)] = 50,
) -> ComparisonList:
    """All comparisons, the newest first, without their results."""
    page = jobs.page(after, limit)
    return ComparisonList(
        comparisons=[ComparisonSummary.model_validate(_summary(job, jobs)) for job in page.jobs], next=page.next
    )


@router.get("/{id}", dependencies=[VIEWER])
def read(id: JobId, jobs: JobsOf) -> ComparisonAnswer:
    """A comparison: how far it is, and its result once it is done. It is kept until it is deleted."""
    return _answer(jobs.find(id), jobs)


@router.post("/{id}/cancel", status_code=202, dependencies=[OPERATOR])
def cancel(id: JobId, jobs: JobsOf) -> ComparisonAnswer:
    """End a comparison. Nothing happens if it is over."""
    return _answer(jobs.cancel(id), jobs)


@router.delete("/{id}", status_code=204, dependencies=[OPERATOR])
def delete(id: JobId, jobs: JobsOf) -> None:
    """Remove a comparison with its result; one that runs is ended."""
    jobs.delete(id)


def _summary(job: Job, jobs: Jobs) -> dict[str, Any]:
    found = None if job.state is State.QUEUED else jobs.read(job.id, PROGRESS)
    return {
        "id": job.id,
        "query": job.query,
        "state": job.state.value,
        "progress": Progress.model_validate(found or {"done": 0, "total": None}),
        "by": job.by,
        "created_ms": job.created_ms,
        "started_ms": job.started_ms,
        "ended_ms": job.ended_ms,
        "problem": job.problem,
    }


def _answer(job: Job, jobs: Jobs) -> ComparisonAnswer:
    asked = (jobs.read(job.id, REQUEST) or {}).get("asked", {})
    result = jobs.read(job.id, RESULT) if job.state is State.DONE else None
    return ComparisonAnswer.model_validate({**_summary(job, jobs), "request": asked, "result": result})
