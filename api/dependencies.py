"""What routes ask for: the installation, the caller's role, the document in the body, and what the caller expects."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from api.etags import precondition
from api.installation import ForbiddenError, Installation, Precondition
from api.jobs import Jobs
from api.settings import ApiSettings
from api.tokens import Caller, Role
from boreal.model.documents import parse_document
from boreal.model.errors import UserError
from boreal.query.spec import Query as QuerySpec
from boreal.query.spec import load_query
from boreal.query.sql_reading import is_sql

SQL = "application/sql"
YAML = ("application/yaml", "application/x-yaml", "text/yaml")
JSON = ("application/json", "application/merge-patch+json", "application/x-www-form-urlencoded")
"""The last is what curl and urllib say of a body by default."""


def installation_of(request: Request) -> Installation:
    return cast(Installation, request.app.state.installation)


def settings_of(request: Request) -> ApiSettings:
    return cast(ApiSettings, request.app.state.settings)


def jobs_of(request: Request) -> Jobs:
    return cast(Jobs, request.app.state.jobs)


class Requires:
    """A dependency: the caller has this role. ForbiddenError if not."""

    def __init__(self, role: Role) -> None:
        self.role = role

    def __call__(self, request: Request) -> Caller:
        caller: Caller = request.state.caller
        if not caller.may(self.role):
            problem = f"has no role {self.role.value}, which this needs"
            raise ForbiddenError("Authorization", caller.name, problem, f"use a token made with --role {self.role.value}")
        return caller


VIEWER, OPERATOR, ADMIN, CHAOS = (Depends(Requires(role)) for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN, Role.CHAOS))

AS_OF = "Boreal-As-Of-Ms"
STALE = "Boreal-Stale"


async def say_freshness(request: Request, response: Response) -> None:
    """Says in headers when what is read was known, and whether that may be out of date. Not in a thread of its own, since it
    asks no server."""
    freshness = installation_of(request).freshness()
    response.headers[AS_OF] = f"{freshness.as_of_ms:.0f}"
    response.headers[STALE] = "true" if freshness.is_stale else "false"


async def say_now(response: Response) -> None:
    """The same headers, for what is read where it is kept."""
    response.headers[AS_OF] = f"{time.time() * 1_000:.0f}"
    response.headers[STALE] = "false"


MARKED, CURRENT = Depends(say_freshness), Depends(say_now)

InstallationOf = Annotated[Installation, Depends(installation_of)]
JobsOf = Annotated[Jobs, Depends(jobs_of)]
SettingsOf = Annotated[ApiSettings, Depends(settings_of)]
MinRevision = Annotated[int | None, Query(description="Wait a few seconds until this revision is known.", ge=0, le=10**18)]
Name = Annotated[str, Path(description="The name of the query.", min_length=1, max_length=200, examples=["departures"])]


def expectation(
    request: Request,
    name: Name,
    if_match: Annotated[str | None, Header(description="Refuse with 412 if the query has another ETag.")] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: refuse with 412 if the query exists.")] = None,
) -> Precondition:
    return replace(precondition(name, if_match, if_none_match), by=str(request.state.caller))


Expectation = Annotated[Precondition, Depends(expectation)]


async def document(request: Request) -> dict[str, Any]:
    """The object in the body: JSON, or YAML, or of a query SQL, where the content type says so. UserError if it is none."""
    kind = request.headers.get("content-type", JSON[0]).partition(";")[0].strip().lower()
    body = await request.body()
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise UserError("body", None, "is not UTF-8 text", "send UTF-8") from None
    if kind in YAML:
        found = parse_document("body", text)
    elif kind == SQL:
        found = load_query(text).written() if is_sql(text) else None
    elif kind in JSON:
        found = _json(text)
    else:
        fix = f"send {JSON[0]}, or {YAML[0]}; a query also as {SQL}"
        raise UserError("Content-Type", kind, "is not understood", fix)
    if not isinstance(found, dict):
        raise UserError("body", found, "is not an object", 'send an object, such as {"delay_threshold": "1s"}')
    return found


def _json(text: str) -> object:
    def refuse(constant: str) -> object:
        raise UserError("body", constant, "is not JSON", "write null, or leave the field out")

    try:
        found = json.loads(text, parse_constant=refuse)
        return parse_document("body", text) if isinstance(found, dict) else found  # which refuses repeated keys
    except (ValueError, RecursionError) as error:
        raise UserError("body", None, f"is not JSON: {error}", "correct it, or say Content-Type: application/yaml") from None


Document = Annotated[dict[str, Any], Depends(document)]


Model = TypeVar("Model", bound=BaseModel)


def body_as(model: type[Model], document: dict[str, Any]) -> Model:
    """A body as a model. RequestValidationError, which names each field that is wrong."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None


def takes_document(example: dict[str, Any], model: type[BaseModel] = QuerySpec) -> dict[str, Any]:
    """What OpenAPI says of a route that takes a `Document` of a model, by default a query. `api.openapi` has the schemas."""
    content: dict[str, Any] = {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}, "example": example},
        "application/yaml": {"schema": {"type": "string"}},
    }
    if model is QuerySpec:
        content[SQL] = {"schema": {"type": "string"}}
    return {"requestBody": {"required": True, "content": content}}
