"""The output of a query as server-sent events, and faults on purpose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from api.dependencies import CHAOS, VIEWER, InstallationOf, Name
from api.installation import OutputReader, View
from api.models import ChaosAnswer, ChaosRequest

FIRST_RECORDS = 200
"""How many earlier records a client gets that names no place."""
PAGE_RECORDS = 500
PING_S = 15.0
"""A comment is sent after so long without records, so that a client notices a lost connection."""
GATHER_S = 0.05
"""How long records are gathered before they are sent together."""

router = APIRouter(prefix="/api/v1")


@router.post("/chaos", status_code=202, dependencies=[CHAOS], tags=["chaos"])
def break_something(request: ChaosRequest, installation: InstallationOf) -> ChaosAnswer:
    """Break something on purpose, such as `cut jfk for 5s`. It is undone in time; where queries are embedded, also by `heal jfk`.
    403 where the installation does not allow it."""
    started = installation.fault(request.fault)
    return ChaosAnswer(id=started.id, fault=started.fault, targets=list(started.targets), ends_at_ms=started.ends_at_ms)


@router.get(
    "/queries/{name}/output",
    dependencies=[VIEWER],
    tags=["output"],
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def output(
    name: Name,
    installation: InstallationOf,
    view: Annotated[View, Query(alias="from", description="`stable`: final rows. `all`: every record.")] = "stable",
    last_event_id: Annotated[str | None, Header(description="Go on after the record with this id.")] = None,
) -> StreamingResponse:
    """Results as they come, after the last few. An event `gap` says that records after the given place are no longer kept."""
    reader = await run_in_threadpool(installation.output, name, view)
    after = last_event_id or reader.newest(FIRST_RECORDS)
    reader.read(after, 0)  # a place that is not valid is refused at once
    return StreamingResponse(_events(reader, after), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _events(reader: OutputReader, after: str | None) -> AsyncIterator[str]:
    """Records as events. Nothing is kept for a client that reads slowly: it gets the records that are kept when it reads on."""
    more, loop = asyncio.Event(), asyncio.get_running_loop()

    def notify() -> None:
        loop.call_soon_threadsafe(more.set)

    stop = reader.on_more(notify)
    try:
        while True:
            more.clear()
            page = await run_in_threadpool(reader.read, after, PAGE_RECORDS)
            if page.gap is not None:
                yield _event(None, "gap", json.dumps(page.gap))
            for event in page.events:
                yield _event(event.id, event.type, event.data)
            after = page.next_id or after
            if not page.events:
                try:
                    await asyncio.wait_for(more.wait(), PING_S)
                except TimeoutError:
                    yield ": still here\n\n"
            await asyncio.sleep(GATHER_S)
    finally:
        stop()
        reader.close()


def _event(id_: str | None, kind: str, data: str) -> str:
    place = f"id: {id_}\n" if id_ is not None else ""
    return f"{place}event: {kind}\ndata: {data}\n\n"
