"""What HTTP servers answer in place of what was asked for: problem documents (RFC 9457), with the field, the value and the fix
that boreal's errors have."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"


def problem_document(
    status: int, detail: str, *, field: str | None = None, value: object = None, fix: str | None = None, **more: object
) -> dict[str, Any]:
    """The JSON object of a problem. more: members beside those that all problems have."""
    return {
        "type": f"urn:boreal:problem:{status}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "field": field,
        "value": value,
        "fix": fix,
        **more,
    }
