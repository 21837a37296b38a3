"""Every error as a problem document (RFC 9457), with the field, the value and the fix that boreal's errors have."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from api.etags import etag_of
from api.installation import (
    RETRY_AFTER_S,
    BusyError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from boreal.model.errors import UserError
from boreal.model.problems import MEDIA_TYPE, problem_document
from embedded.recording import RowsGoneError

_STATUS: tuple[tuple[type[UserError], int], ...] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (ForbiddenError, 403),
    (PreconditionError, 412),
    (BusyError, 429),
    (UnavailableError, 503),
    (RowsGoneError, 410),
    (UserError, 422),
)
"""The first class that an error is an instance of decides."""

_FIXES = {
    401: "send Authorization: Bearer TOKEN: the token of boreal status --json, or one that boreal token create makes",
    404: "see the paths in /api/v1/openapi.json",
    405: "use one of the methods in the header Allow",
    413: "send less at once",
}

_logger = logging.getLogger("boreal.api")


class Problem(BaseModel):
    """Why a request was refused, and what to send instead."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "urn:boreal:problem:422",
                "title": "Unprocessable Content",
                "status": 422,
                "detail": "delay_threshold: must exceed 300ms (got '100ms'); write more than 300ms, or lower tuning.bucket",
                "field": "delay_threshold",
                "value": "100ms",
                "fix": "write more than 300ms, or lower tuning.bucket",
            }
        }
    )

    type: str = Field(description="`urn:boreal:problem:STATUS`.")
    title: str = Field(description="The name of the status.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="What is wrong, in a sentence.")
    field: str | None = Field(description="The field, header or parameter that is wrong.")
    value: Any = Field(description="Its value.")
    fix: str | None = Field(description="What to send instead.")
    revision: int | None = Field(default=None, description="With 412: the revision that the query has; null if there is none.")
    errors: list[dict[str, Any]] = Field(default=[], description="All that is wrong, where several parameters are.")


def problem(status: int, detail: str, *, field: str | None = None, value: object = None, fix: str | None = None,
            headers: Mapping[str, str] | None = None, **more: object) -> JSONResponse:  # fmt: skip
    """An answer with a problem document. more: further members of `Problem`."""
    content = problem_document(status, detail, field=field, value=value, fix=fix or _FIXES.get(status), **more)
    return JSONResponse(content, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def problem_of(error: UserError) -> JSONResponse:
    """The answer to an error of the caller, or of a server that it needs."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    said = error.to_dict()
    headers: dict[str, str] = {}
    more: dict[str, object] = {}
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, PreconditionError):
        more["revision"] = error.current.revision if error.current is not None else None
        if error.current is not None:
            headers["ETag"] = etag_of(error.current)
    detail, value = f"{error.field}: {error.problem}", _plain(said["value"])
    return problem(status, detail, field=error.field, value=value, fix=error.fix, headers=headers, **more)


def install(app: FastAPI) -> None:
    """Answer every error of an application with a problem document."""

    @app.exception_handler(UserError)
    async def refuse(request: Request, error: UserError) -> Response:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameters(request: Request, error: RequestValidationError) -> Response:
        errors = [
            {"field": ".".join(str(part) for part in each["loc"][1:]) or str(each["loc"][0]), "problem": each["msg"],
             "value": _plain(each.get("input"))}
            for each in error.errors()
        ]  # fmt: skip
        first = errors[0]
        fix = f"correct {first['field']}, as /api/v1/openapi.json describes it"
        detail = f"{first['field']}: {first['problem']}"
        return problem(422, detail, field=str(first["field"]), value=first["value"], fix=fix, errors=errors)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        detail = {404: f"there is nothing at {path}", 405: f"{path} does not take {request.method}"}.get(
            error.status_code, str(error.detail)
        )
        headers = error.headers
        if error.status_code == 405:  # the framework knows the methods of the first route only that has this path
            headers = {**(headers or {}), "Allow": ", ".join(_methods_at(request))}
        places = {405: ("method", request.method), 413: ("body", None), 403: ("Authorization", None)}
        field, value = places.get(error.status_code, ("path", path))
        return problem(error.status_code, detail, field=field, value=value, headers=headers)

    @app.exception_handler(RecursionError)
    async def refuse_depth(request: Request, error: RecursionError) -> Response:
        return problem(422, "the body is nested too deeply", field="body", fix="send a body with fewer levels")

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        _logger.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "this is an error of boreal itself; its log says more", fix="report it with the log of the API")


def _methods_at(request: Request) -> list[str]:
    """The methods that some route takes at the path of a request."""
    routes: Sequence[BaseRoute] = request.app.routes
    return [
        method
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def _plain(value: object) -> object:
    """A value that JSON can hold, and short: a problem does not send a large body back."""
    text = repr(value)
    if len(text) > 300:
        return f"{text[:300]}..."
    is_plain = isinstance(value, (str, int, bool, type(None), list, dict)) or (isinstance(value, float) and value == value)
    return value if is_plain and "nan" not in text and "inf" not in text else text
