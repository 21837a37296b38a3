"""Backfills: the results of a span of a query's recorded input, as jobs whose files can be fetched."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from api.dependencies import OPERATOR, VIEWER, Document, InstallationOf, JobsOf, Name, SettingsOf, body_as, takes_document
from api.installation import ConflictError, ForbiddenError
from api.job_queue import JobState
from api.models import BackfillAnswer, BackfillList
from api.recomputations import EXAMPLE, RECORDING, ROWS, RecordedRequest, prepare
from api.routers.jobs import JobId, JobKind, caller_of

KIND = JobKind("backfill", BackfillAnswer, BackfillList)
router = KIND.router()
of_queries = APIRouter(prefix="/api/v1/queries", tags=["backfills"])


@of_queries.post(
    "/{name}/backfills",
    status_code=202,
    response_model=BackfillAnswer,
    dependencies=[OPERATOR],
    openapi_extra=takes_document(EXAMPLE, RecordedRequest),
)
def begin_backfill(
    name: Name, document: Document, http: Request, installation: InstallationOf, jobs: JobsOf, response: Response
) -> Any:
    """Compute the stable results of what came within a span again, without failures and beside the installation. 410 where its
    rows are no longer kept."""
    asked = body_as(RecordedRequest, document)
    request = asked.asked(name)
    job = None if asked.id is None else jobs.same(KIND.name, asked.id, request)
    if job is None:
        found = prepare(installation, name, asked)
        by = caller_of(http)
        job = jobs.post(KIND.name, asked.id, name, by, request, lambda to: found.recording.save(to / RECORDING), **found.said())
    return KIND.begun(job, jobs, response)


@router.get(
    "/{id}/rows",
    dependencies=[VIEWER],
    response_class=FileResponse,
    responses={200: {"description": "JSON lines.", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
    summary="Fetch the rows of a backfill",
)
def rows(id: JobId, jobs: JobsOf, settings: SettingsOf) -> FileResponse:
    """Its results as JSON lines, in the order of the stable output. 409 before it is done."""
    if not settings.show_rows:
        raise ForbiddenError("ID", id, "has rows, and this installation shows none", "set BOREAL_API__SHOW_ROWS=true")
    job = jobs.find(KIND.name, id)
    if job.state is not JobState.DONE:
        raise ConflictError("ID", id, f"has no rows: it is {job.state.value}", "read it until its state is done")
    return FileResponse(jobs.path(id, ROWS), media_type="application/x-ndjson", filename=f"{job.query}.{id}.jsonl")
