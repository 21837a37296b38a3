"""`create_app`: the whole API as one ASGI application, without globals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from api import problems
from api.gate import Gate
from api.installation import Installation
from api.jobs import Jobs
from api.openapi import openapi
from api.problems import Problem
from api.rates import Rates
from api.routers import (
    backfills,
    chaos,
    comparisons,
    dead_letters,
    events,
    failures,
    health,
    metrics,
    output,
    queries,
    streams,
    verifications,
    workers,
)
from api.settings import ApiSettings
from api.tokens import TokenStore
from boreal.model.problems import MEDIA_TYPE

ROUTERS = (
    queries.router,
    queries.checking,
    output.router,
    failures.router,
    dead_letters.router,
    comparisons.router,
    verifications.router,
    verifications.of_queries,
    backfills.router,
    backfills.of_queries,
    events.router,
    streams.router,
    chaos.router,
    metrics.router,
    workers.router,
    health.router,
)

THREADS = 64
"""Calls that may wait for servers at the same time, such as the deletion of a query."""

DESCRIPTION = """X over REST: queries, their delay thresholds, and how they are. Every call but `/healthz` and `/readyz` needs
`Authorization: Bearer TOKEN`. Every error is a problem document (RFC 9457) that names the field, its value and the fix."""


def create_app(settings: ApiSettings, installation: Installation, tokens: TokenStore, jobs: Jobs) -> FastAPI:
    """The API over an installation, which is closed when the application ends, as its jobs are. UserError for settings that
    are not safe."""
    settings.check()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = THREADS
        yield
        jobs.close()
        installation.close()

    app = FastAPI(
        title="boreal",
        version="1",
        description=DESCRIPTION,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses={
            "4XX": {"model": Problem, "description": "Refused.", "content": {MEDIA_TYPE: {}}},
            503: {"model": Problem, "description": "A server is away.", "content": {MEDIA_TYPE: {}}},
        },
    )
    app.state.installation = installation
    app.state.settings = settings
    app.state.jobs = jobs
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    rates = Rates(settings.requests_per_s, settings.open_requests)
    app.add_middleware(Gate, tokens=tokens, hosts=(settings.host, *settings.hosts), rates=rates)
    app.openapi = lambda: openapi(app, ROUTERS)  # type: ignore[method-assign]
    return app
