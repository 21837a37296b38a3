"""The results of a query as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from api.dependencies import VIEWER, InstallationOf, Name, SettingsOf
from api.installation import ForbiddenError, OutputPage, OutputReader, UnavailableError, View

router = APIRouter(prefix="/api/v1/queries", tags=["output"])

PAGE = 200
"""Events that are read at once: what a slow caller has waiting, at most."""
PING_S = 15
SEND_WITHIN_S = 10
"""A caller that takes nothing for so long is cut off; it comes back with the id of its last event."""
RETRY_MS = 1_000
LAST_MAX = 10_000
LOOK_S = 5
"""How often an idle stream looks whether its query still exists."""


def streamed(example: str) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of the answer of a route that streams events."""
    content = {"text/event-stream": {"schema": {"type": "string"}, "example": example}}
    return {200: {"description": "Server-sent events, without end.", "content": content}}


class EventStream(EventSourceResponse):
    """Cuts off a caller that takes nothing, in silence: its connection is closed since the answer is not complete."""

    def __init__(self, events: AsyncIterator[ServerSentEvent]) -> None:
        super().__init__(events, ping=PING_S, send_timeout=SEND_WITHIN_S, headers={"X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(SendTimeoutError):
            await super().__call__(scope, receive, send)


@router.get(
    "/{name}/output",
    dependencies=[VIEWER],
    response_class=EventSourceResponse,
    responses=streamed('id: main:17\nevent: stable\ndata: {"carrier": "AA", "flights": 4}\n\n'),
)
async def output(
    name: Name,
    installation: InstallationOf,
    settings: SettingsOf,
    view: Annotated[View, Query(alias="from", description="`stable`: final rows. `all`: every record.")] = "stable",
    last: Annotated[int | None, Query(description="Begin with at most so many old events.", ge=0, le=LAST_MAX)] = None,
    last_event_id: Annotated[str | None, Header(description="Go on after this event.", max_length=100)] = None,
) -> EventSourceResponse:
    """The results of a query, without end: by default all that are kept, then new ones as they come.

    With `from=stable` each event is a final row, `{"carrier": "AA", ...}`. With `from=all` it is a record as in changes.jsonl,
    and the name of the event is its type: `stable`, `tentative`, `undo`, `boundary` or `rec_done`. Each event has an id; a
    caller that sends the last one as `Last-Event-ID` goes on after it. A `gap` event says that what followed it is no longer
    kept. The stream ends when the query is deleted. Where the installation shows no rows, `from=all` has the records without
    `data` and `key`, and `from=stable` is refused.
    """
    if view == "stable" and not settings.show_rows:
        fix = "ask for from=all, whose records come without their rows, or set BOREAL_API__SHOW_ROWS=true"
        raise ForbiddenError("from", view, "is rows alone, and this installation shows none", fix)
    reader = await run_in_threadpool(installation.output, name, view)
    try:
        place = last_event_id or (await run_in_threadpool(reader.newest, last) if last is not None else None)
        first = await run_in_threadpool(reader.read, place, PAGE)  # here, so that an unknown id is refused
    except BaseException:
        await run_in_threadpool(reader.close)
        raise
    shown = str if settings.show_rows else _without_row
    events = _events(reader, place, first, lambda: name in installation.queries(), shown)
    return EventStream(events)


async def _events(
    reader: OutputReader,
    place: str | None,
    page: OutputPage | None,
    exists: Callable[[], bool],
    shown: Callable[[str], str] = str,
) -> AsyncIterator[ServerSentEvent]:
    loop, more = asyncio.get_running_loop(), asyncio.Event()
    stop = reader.on_more(waker(loop, more))
    try:
        yield ServerSentEvent(comment="connected", retry=RETRY_MS)
        while page is not None:
            if page.gap is not None:
                yield ServerSentEvent(event="gap", data=json.dumps(dict(page.gap)))
            for event in page.events:
                yield ServerSentEvent(id=event.id, event=event.type, data=shown(event.data))
            is_end = not page.events and page.next_id in (None, place)
            place = page.next_id or place
            if is_end and not await within(LOOK_S, more) and not await run_in_threadpool(exists):
                break
            more.clear()
            page = await _next(reader, place, exists)
    finally:
        stop()
        await asyncio.shield(run_in_threadpool(reader.close))


async def within(seconds: float, more: asyncio.Event) -> bool:
    """Whether there may be more within some seconds."""
    with suppress(TimeoutError):
        return await asyncio.wait_for(more.wait(), seconds)
    return False


async def _next(reader: OutputReader, place: str | None, exists: Callable[[], bool]) -> OutputPage | None:
    """The next page; None if the query was deleted. While servers do not answer, the caller hears only silence."""
    while True:
        try:
            return await run_in_threadpool(reader.read, place, PAGE)
        except UnavailableError:
            await asyncio.sleep(RETRY_MS / 1_000)
            if not await run_in_threadpool(exists):
                return None


def _without_row(record: str) -> str:
    return json.dumps({**json.loads(record), "key": None, "data": None})


def waker(loop: asyncio.AbstractEventLoop, more: asyncio.Event) -> Callable[[], Any]:
    """What another thread calls to set `more`."""

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(more.set)

    return wake
