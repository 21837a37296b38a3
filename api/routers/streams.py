"""The streams of all queries: who reads what, and rows over HTTP into the topics that the sources read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool

from api.dependencies import MARKED, OPERATOR, VIEWER, InstallationOf
from api.installation import ConflictError, Installation, NotFoundError, StreamPlace
from api.models import AppendAnswer, StreamList, StreamReader, StreamReaders
from boreal.model.errors import UserError
from boreal.query.refusals import did_you_mean
from boreal.query.spec import load_query
from deployment.query_record import QueryRecord
from formats.record_parsing import RecordShape
from services.source.web import ARROW, BODY_FIX, JSON_LINES, BodyError, read_body

router = APIRouter(prefix="/api/v1/streams", tags=["streams"])

_CONTENT = {
    "application/json": {"schema": {}, "example": [{"departed_at": "2013-01-01T05:15:00Z", "carrier": "AA", "dep_delay": 22}]},
    **{kind: {"schema": {"type": "string"}} for kind in (*JSON_LINES, ARROW)},
}
StreamName = Annotated[str, Path(description="`STREAM`, or `QUERY.STREAM`.", max_length=401, examples=["departures.jfk"])]


@router.get("", dependencies=[VIEWER, MARKED])
def list_streams(installation: InstallationOf) -> StreamList:
    """Who reads what: topics, each with the streams of all queries that read it."""
    places, records = installation.streams(), installation.queries()
    statuses = installation.statuses({place.query for place in places})
    found: dict[str, list[StreamPlace]] = {}
    for place in sorted(places, key=lambda place: (place.log, place.query, place.stream)):
        if place.query in records:
            found.setdefault(place.log, []).append(place)
    return StreamList(
        streams=[
            StreamReaders(
                records=log,
                alike=_are_alike([records[place.query].spec["streams"][place.stream] for place in readers]),
                readers=[_reader(place, records[place.query], statuses.get(place.query)) for place in readers],
            )
            for log, readers in found.items()
        ]
    )


def _are_alike(descriptions: Sequence[Mapping[str, Any]]) -> bool:
    return all(each == descriptions[0] for each in descriptions)


def _reader(place: StreamPlace, record: QueryRecord, status: Mapping[str, Any] | None) -> StreamReader:
    inputs = status["inputs"] if status is not None else ()
    nothing: Mapping[str, Any] = {"state": "starting"}
    said = next((each for each in inputs if each["name"] == place.stream), nothing)
    return StreamReader(
        query=place.query,
        stream=place.stream,
        source=f"{record.sources_of(place.stream)}.{place.stream}",
        state=said["state"],
        lag_records=said.get("lag_records"),
        lag_ms=said.get("lag_ms"),
        dlq=said.get("dlq"),
    )


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
        rows = read_body(RecordShape.of(spec), kind, body)
    except BodyError as error:
        raise UserError("body", None, str(error), BODY_FIX) from None
    if rows.accepted:
        installation.append(place, rows.accepted)
    return AppendAnswer(accepted=len(rows.accepted), refused=len(rows.reasons), reasons=rows.first_reasons)


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
