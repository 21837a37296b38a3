"""Metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from api.dependencies import VIEWER, InstallationOf
from api.metrics import StatusCollector

router = APIRouter(tags=["operations"])


@router.get("/metrics", dependencies=[VIEWER], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(installation: InstallationOf) -> Response:
    """All queries, in Prometheus' text format: base units, and names that begin with `boreal_`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(installation))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
