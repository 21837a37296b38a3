"""What all kinds of jobs share: they are begun, listed, read, cancelled and deleted in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel

from api.comparisons import InputRequest, spec_of
from api.dependencies import CURRENT, OPERATOR, VIEWER, JobsOf
from api.installation import RETRY_AFTER_S, Installation
from api.job_queue import Job, JobState
from api.jobs import PROGRESS, REQUEST, RESULT, Jobs
from api.models import JobSummary, Progress

MOST_LISTED = 500

JobId = Annotated[str, Path(description="The id of the job.", max_length=200, examples=["which-mode"])]

After = Annotated[str | None, Query(description="Only older ones: `next` of the page before.", max_length=200)]
Limit = Annotated[int, Query(description="At most so many.", ge=1, le=MOST_LISTED)]


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of jobs."""

    name: str
    """What one is called, such as `comparison`; its path has an s more."""
    answer: type[BaseModel]
    """What is said of one."""
    listing: type[BaseModel]
    """What is said of many."""

    @property
    def path(self) -> str:
        return f"/api/v1/{self.name}s"

    def begun(self, job: Job, jobs: Jobs, response: Response) -> Any:
        """The answer to what has begun a job."""
        response.headers["Location"] = f"{self.path}/{job.id}"
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return self.told(job, jobs)

    def begin_over_input(
        self,
        request: InputRequest,
        check: Callable[[Any, Mapping[str, Any]], object],
        http: Request,
        installation: Installation,
        jobs: Jobs,
        response: Response,
    ) -> Any:
        """Begin a job over generated input, or find the one that the same request has begun. check(request, spec) raises a
        UserError for what would keep it from running."""
        asked = request.model_dump(exclude={"id"})
        job = None if request.id is None else jobs.same(self.name, request.id, asked)
        if job is None:
            spec = spec_of(request, installation.queries())
            check(request, spec)
            job = jobs.post(self.name, request.id, spec["name"], caller_of(http), asked, spec=spec)
        return self.begun(job, jobs, response)

    def told(self, job: Job, jobs: Jobs) -> Any:
        """A job as it is now, with its result once it is done."""
        asked = (jobs.read(job.id, REQUEST) or {}).get("asked", {})
        result = jobs.read(job.id, RESULT) if job.state is JobState.DONE else None
        return self.answer.model_validate({**_summary(job, jobs), "request": asked, "result": result})

    def router(self) -> APIRouter:
        """The routes of the kind, but for that which begins one."""
        kind = self
        router = APIRouter(prefix=kind.path, tags=[f"{kind.name}s"])

        @router.get("", response_model=kind.listing, dependencies=[VIEWER, CURRENT], summary=f"List {kind.name}s")
        def list_jobs(jobs: JobsOf, after: After = None, limit: Limit = 50) -> Any:
            """All of them, the newest first, without their results."""
            page = jobs.page(kind.name, after, limit)
            shown = [JobSummary.model_validate(_summary(job, jobs)) for job in page.jobs]
            return kind.listing.model_validate({f"{kind.name}s": shown, "next": page.next})

        @router.get("/{id}", response_model=kind.answer, dependencies=[VIEWER, CURRENT], summary=f"Read a {kind.name}")
        def read(id: JobId, jobs: JobsOf) -> Any:
            """How far it is, and its result once it is done. It is kept until it is deleted."""
            return kind.told(jobs.find(kind.name, id), jobs)

        @router.post(
            "/{id}/cancel",
            status_code=202,
            response_model=kind.answer,
            dependencies=[OPERATOR],
            summary=f"Cancel a {kind.name}",
        )
        def cancel(id: JobId, jobs: JobsOf) -> Any:
            """End it. Nothing happens if it is over."""
            return kind.told(jobs.cancel(kind.name, id), jobs)

        @router.delete("/{id}", status_code=204, dependencies=[OPERATOR], summary=f"Delete a {kind.name}")
        def delete(id: JobId, jobs: JobsOf) -> None:
            """Remove it with its result; one that runs is ended."""
            jobs.delete(kind.name, id)

        return router


def caller_of(http: Request) -> str:
    """Who asks: a token, by its name and roles."""
    return str(http.state.caller)


def _summary(job: Job, jobs: Jobs) -> dict[str, Any]:
    found = None if job.state is JobState.QUEUED else jobs.read(job.id, PROGRESS)
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
