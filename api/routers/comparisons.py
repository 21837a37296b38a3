"""Comparisons: runs of the same input and faults under each X, mode and policy, as jobs."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from api.comparisons import EXAMPLE, ComparisonRequest, check
from api.dependencies import OPERATOR, Document, InstallationOf, JobsOf, body_as, takes_document
from api.models import ComparisonAnswer, ComparisonList
from api.routers.jobs import JobKind

KIND = JobKind("comparison", ComparisonAnswer, ComparisonList)
router = KIND.router()


@router.post(
    "",
    status_code=202,
    response_model=ComparisonAnswer,
    dependencies=[OPERATOR],
    openapi_extra=takes_document(EXAMPLE, ComparisonRequest),
)
def begin_comparison(
    http: Request, document: Document, installation: InstallationOf, jobs: JobsOf, response: Response
) -> Any:
    """Run the same input and faults under each X, mode and policy, one run after the other, beside the installation: nothing
    that runs notices. The same id with the same request is answered with the same comparison; with another, 409."""
    return KIND.begin_over_input(body_as(ComparisonRequest, document), check, http, installation, jobs, response)
