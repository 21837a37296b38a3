"""Verifications: whether faults leave the stable results as they are, as jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from api import recomputations
from api.dependencies import OPERATOR, Document, InstallationOf, JobsOf, Name, SettingsOf, body_as, takes_document
from api.models import VerificationAnswer, VerificationList
from api.recomputations import RECORDING, RecordedRequest, prepare, read_given, save_given
from api.routers.jobs import JobKind, caller_of
from api.verifications import EXAMPLE, VerificationRequest, check

KIND = JobKind("verification", VerificationAnswer, VerificationList)
router = KIND.router()
of_queries = APIRouter(prefix="/api/v1/queries", tags=["verifications"])


@router.post(
    "",
    status_code=202,
    response_model=VerificationAnswer,
    dependencies=[OPERATOR],
    openapi_extra=takes_document(EXAMPLE, VerificationRequest),
)
def begin_verification(
    http: Request, document: Document, installation: InstallationOf, jobs: JobsOf, response: Response
) -> Any:
    """Run a query with faults and without them, beside the installation, and compare the stable results line by line; and hold
    what clients saw of each run against its stable results. The same id with the same request is answered with the same
    verification; with another, 409."""
    return KIND.begin_over_input(body_as(VerificationRequest, document), check, http, installation, jobs, response)


@of_queries.post(
    "/{name}/verifications",
    status_code=202,
    response_model=VerificationAnswer,
    dependencies=[OPERATOR],
    openapi_extra=takes_document(recomputations.EXAMPLE, RecordedRequest),
)
def begin_verification_of_a_query(
    name: Name,
    document: Document,
    http: Request,
    installation: InstallationOf,
    settings: SettingsOf,
    jobs: JobsOf,
    response: Response,
) -> Any:
    """Compare the stable results that a query has given with those of a run without failures over what its sources logged
    within a span. It is a verification, and is read, cancelled and deleted as one. 410 where the rows of the span are no longer
    kept."""
    asked = body_as(RecordedRequest, document)
    request = asked.asked(name)
    job = None if asked.id is None else jobs.same(KIND.name, asked.id, request)
    if job is None:
        found = prepare(installation, name, asked)
        given = read_given(installation, name, found)

        def fill(folder: Path) -> None:
            found.recording.save(folder / RECORDING)
            save_given(given, folder)

        compared = found.among(given)
        more = {**compared.said(), "show_rows": settings.show_rows}
        job = jobs.post(KIND.name, asked.id, name, caller_of(http), request, fill, **more)
    return KIND.begun(job, jobs, response)
