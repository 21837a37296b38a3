"""The OpenAPI document: what FastAPI makes of the routes, with the schemas of bodies that routes read themselves, problems for
every refusal, examples, and which calls need a token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from api.comparisons import ComparisonRequest
from api.dependencies import AS_OF, CURRENT, MARKED, STALE
from api.examples import EXAMPLES
from api.gate import WITHOUT_TOKEN
from api.models import ChaosRequest, DeadLetterReplayRequest, QueryChanges
from api.recomputations import RecordedRequest
from api.replays import ReplayRequest
from api.verifications import VerificationRequest
from boreal.model.problems import MEDIA_TYPE
from boreal.query.spec import Query, json_schema

REQUESTS: tuple[type[BaseModel], ...] = (
    QueryChanges, ComparisonRequest, VerificationRequest, ReplayRequest, RecordedRequest, DeadLetterReplayRequest, ChaosRequest,
)  # fmt: skip
"""The bodies that `api.dependencies.takes_document` describes, but for queries."""

FRESHNESS = {
    AS_OF: {"description": "When this was known, in milliseconds since 1970.", "schema": {"type": "integer"}},
    STALE: {
        "description": "Whether the installation is silent, so that this may be out of date.",
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
}


def openapi(app: FastAPI, routers: Sequence[APIRouter]) -> dict[str, Any]:
    """The document of an application with these routers, and maybe others whose answers do not say how old they are. It is made
    once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas.update(_bodies())
        for path, operations in document["paths"].items():
            for operation in operations.values():
                _describe(operation)
                if path in WITHOUT_TOKEN:
                    operation["security"] = []
        for route in (route for router in routers for route in router.routes):
            if isinstance(route, APIRoute) and (MARKED in route.dependencies or CURRENT in route.dependencies):
                document["paths"][route.path]["get"]["responses"]["200"]["headers"] = FRESHNESS
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        app.openapi_schema = document
    return app.openapi_schema


def _describe(operation: dict[str, Any]) -> None:
    """Every refusal is a problem, FastAPI's own 422 too; what is told of often has an example."""
    responses = operation["responses"]
    responses.pop("422", None)
    for refusal in (responses[status] for status in ("4XX", "503")):
        if MEDIA_TYPE in refusal["content"]:
            refusal["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status, response in responses.items():
        told = response.get("content", {}).get("application/json", {})
        name = told.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if status.startswith("2") and name in EXAMPLES:
            told["example"] = EXAMPLES[name]


def _bodies() -> dict[str, Any]:
    """The schemas of the bodies, and of what these name."""
    found: dict[str, Any] = {}
    own = {model.__name__: model.model_json_schema() for model in REQUESTS}
    for name, schema in {**own, Query.__name__: json_schema()}.items():
        # References are within the document here.
        moved = json.loads(json.dumps(schema).replace('"#/$defs/', '"#/components/schemas/'))
        moved.pop("$schema", None)
        found |= moved.pop("$defs", {})
        found[name] = moved
    return found
