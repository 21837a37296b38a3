"""The workers that have joined a site."""

from __future__ import annotations

from fastapi import APIRouter

from api.dependencies import MARKED, VIEWER, InstallationOf
from api.models import WorkerList

router = APIRouter(prefix="/api/v1/workers", tags=["operations"])


@router.get("", dependencies=[VIEWER, MARKED])
def list_workers(installation: InstallationOf) -> WorkerList:
    """The processes that `boreal worker` has started, each with the roles that it runs. Empty where roles run in processes of
    their supervisor. A worker that is silent is not there; its roles go to others."""
    return WorkerList.model_validate({"workers": installation.workers()})
