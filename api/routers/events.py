"""What happened in the installation, and who did it: pages of events, and events as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse, ServerSentEvent

from api.dependencies import MARKED, VIEWER, InstallationOf
from api.event_history import EventFilter, EventHistory
from api.models import EventAnswer, EventList
from api.routers.output import LOOK_S, PAGE, RETRY_MS, EventStream, streamed, waker, within
from boreal.model.errors import UserError
from boreal.query.refusals import did_you_mean
from deployment.events import KINDS

router = APIRouter(prefix="/api/v1/events", tags=["events"])

MOST_LISTED = 1_000


def wanted(
    query: Annotated[str | None, Query(description="Only of this query.", max_length=200)] = None,
    kind: Annotated[list[str] | None, Query(description="Only of this kind; may be repeated.", max_length=50)] = None,
    failure: Annotated[str | None, Query(description="Only of the failure with this id.", max_length=200)] = None,
    since_ms: Annotated[float | None, Query(description="Only since then, in milliseconds since 1970.", ge=0, le=1e15)] = None,
) -> EventFilter:
    for each in kind or ():
        if each not in KINDS:
            raise UserError("kind", each, "is not a kind of event", did_you_mean(each, KINDS))
    return EventFilter(query, frozenset(kind or ()), failure, since_ms)


EventFilterOf = Annotated[EventFilter, Depends(wanted)]


@router.get("", dependencies=[VIEWER, MARKED])
def list_events(
    installation: InstallationOf,
    wanted: EventFilterOf,
    after: Annotated[int | None, Query(description="Only those before the one with this id.", ge=0, le=10**18)] = None,
    limit: Annotated[int, Query(description="At most so many.", ge=1, le=MOST_LISTED)] = 100,
) -> EventList:
    """Events, the newest first: failures and their parts, and who changed, made or broke what."""
    page = installation.events.before(after, wanted, limit)
    shown = [EventAnswer.of(number, event) for number, event in page.events]
    return EventList(events=shown, next=None if page.is_end else page.reached)


@router.get(
    "/stream",
    dependencies=[VIEWER],
    response_class=EventSourceResponse,
    responses=streamed('id: 118\nevent: paused\ndata: {"id": 118, "kind": "paused", "query": "departures"}\n\n'),
)
async def stream_events(
    installation: InstallationOf,
    wanted: EventFilterOf,
    last_event_id: Annotated[str | None, Header(description="Go on after this event.", max_length=100)] = None,
) -> EventSourceResponse:
    """Events as they come, without end, each with its kind as name and its id; a caller that sends the last id as
    `Last-Event-ID` goes on after it. A `gap` event says that some of those after it are no longer kept. A caller that takes
    nothing for ten seconds is cut off."""
    history = installation.events
    place = history.last if last_event_id is None else _number(last_event_id)
    return EventStream(_events(history, place, wanted))


async def _events(history: EventHistory, place: int | None, wanted: EventFilter) -> AsyncIterator[ServerSentEvent]:
    loop, more = asyncio.get_running_loop(), asyncio.Event()
    stop = history.listen(waker(loop, more))
    try:
        yield ServerSentEvent(comment="connected", retry=RETRY_MS)
        while True:
            more.clear()
            page = await run_in_threadpool(history.after, place, wanted, PAGE)
            if page.lost:
                yield ServerSentEvent(event="gap", data=json.dumps({"after": place}))
            for number, event in page.events:
                yield ServerSentEvent(id=str(number), event=event.kind, data=EventAnswer.of(number, event).model_dump_json())
            place = place if page.reached is None else page.reached
            if page.is_end:
                await within(LOOK_S, more)
    finally:
        stop()


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UserError("Last-Event-ID", text, "is not the id of an event", "leave it out to begin with the next event")
    return int(text)
