"""Faults on purpose, where the installation allows them."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api.dependencies import CHAOS, Document, InstallationOf, body_as, takes_document
from api.models import ChaosAnswer, ChaosRequest

router = APIRouter(prefix="/api/v1/chaos", tags=["chaos"])


@router.post("", status_code=202, dependencies=[CHAOS], openapi_extra=takes_document({"fault": "cut jfk for 5s"}, ChaosRequest))
def begin(http: Request, document: Document, installation: InstallationOf) -> ChaosAnswer:
    """Break something, such as `cut jfk for 5s`, `cut departures.main.r0 for 5s`, `freeze main.r0 for 3s`, `crash main.r0 for
    3s` or `slow jfk by 500ms for 10s`. It is undone in time, even if the API ends; `heal jfk` or `heal main.r0` undoes what is
    done to this stream or replica before that."""
    request = body_as(ChaosRequest, document)
    started = installation.fault(request.fault, str(http.state.caller))
    return ChaosAnswer(id=started.id, fault=started.fault, targets=list(started.targets), ends_at_ms=started.ends_at_ms)
