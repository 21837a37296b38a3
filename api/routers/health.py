"""Health, readiness and the effective settings."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.dependencies import ADMIN, InstallationOf, SettingsOf
from api.models import ConfigAnswer, Health

router = APIRouter(tags=["operations"])


@router.get("/healthz")
async def health() -> Health:
    """Whether this process serves, whatever becomes of the rest."""
    return Health(ready=True)


@router.get("/readyz", responses={503: {"model": Health}})
def readiness(installation: InstallationOf, response: Response) -> Health:
    """Whether the queries answer. One that answers tentatively is ready, and so is a paused one. 503 if not. It names queries
    only to callers with a token: see the status of each."""
    found = installation.readiness()
    response.status_code = 200 if found.is_ready else 503
    return Health(ready=found.is_ready)


@router.get("/api/v1/config", dependencies=[ADMIN])
def config(installation: InstallationOf, settings: SettingsOf) -> ConfigAnswer:
    """The effective settings. Secrets are masked."""
    return ConfigAnswer.model_validate({**installation.config(), "api": settings.model_dump(mode="json")})
