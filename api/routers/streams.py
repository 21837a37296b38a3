"""Rows over HTTP, into the topics that the sources read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool

from api.dependencies import OPERATOR, InstallationOf
from api.installation import ConflictError, Installation, NotFoundError, StreamPlace
from api.models import AppendAnswer
from boreal.model.errors import UserError
from boreal.query.refusals import did_you_mean
from boreal.query.spec import load_query
from formats.record_parsing import RecordShape, read_records
from services.source.web import ARROW, JSON_LINES, LARGEST_RECORD, MOST_REASONS, BodyError, records_of

router = APIRouter(prefix="/api/v1/streams", tags=["streams"])

_CONTENT = {
    "application/json": {"schema": {}, "example": [{"departed_at": "2013-01-01T05:15:00Z", "carrier": "AA", "dep_delay": 22}]},
    **{kind: {"schema": {"type": "string"}} for kind in (*JSON_LINES, ARROW)},
}
StreamName = Annotated[str, Path(description="`STREAM`, or `QUERY.STREAM`.", max_length=401, examples=["departures.jfk"])]


@router.post(
    "/{name}/tuples",
    status_code=202,
    dependencies=[OPERATOR],
    openapi_extra={"requestBody": {"required": True, "content": _CONTENT}},
)
async def append(name: StreamName, request: Request, installation: InstallationOf) -> AppendAnswer:
    """Give rows to a stream: an object or a list of them as JSON, JSON lines, or an Arrow stream. The answer comes when the
    accepted rows survive a crash. Rows that are no tuples of the stream are refused, and the others taken."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    body = await request.body()
    return await run_in_threadpool(_append, installation, name, kind, body)


def _append(installation: Installation, name: str, kind: str, body: bytes) -> AppendAnswer:
    place = _place(name, installation.streams())
    record = installation.queries().get(place.query)
    if record is None:
        raise NotFoundError("stream", name, "belongs to a query that was deleted", "create it again")
    spec = load_query(record.spec).streams[place.stream]
    try:
        records = records_of(kind, body)
    except BodyError as error:
        fix = f"send JSON, JSON lines as {JSON_LINES[0]}, or an Arrow stream as {ARROW}"
        raise UserError("body", None, str(error), fix) from None
    shape = RecordShape(spec.time, spec.time_unit, spec.attributes)
    reasons = read_records(shape, records).reasons
    reasons.update({row: f"more than {LARGEST_RECORD} bytes" for row, each in enumerate(records) if len(each) > LARGEST_RECORD})
    accepted = [each for row, each in enumerate(records) if row not in reasons]
    if accepted:
        installation.append(place, accepted)
    shown = [{"row": row, "reason": reasons[row]} for row in sorted(reasons)[:MOST_REASONS]]
    return AppendAnswer(accepted=len(accepted), refused=len(reasons), reasons=shown)


def _place(name: str, streams: Sequence[StreamPlace]) -> StreamPlace:
    """The stream with this name. NotFoundError; ConflictError if several queries have one and different records feed them."""
    found = [each for each in streams if name in (each.stream, f"{each.query}.{each.stream}")]
    if not found:
        choices = [f"{each.query}.{each.stream}" for each in streams]
        raise NotFoundError("stream", name, "there is no such stream", did_you_mean(name, choices))
    if len({each.log for each in found}) > 1:
        named = ", ".join(f"{each.query}.{each.stream}" for each in found)
        raise ConflictError("stream", name, "is a stream of several queries", f"name one of: {named}")
    return found[0]
