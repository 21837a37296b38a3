"""The dead letters of queries: what was refused and why, and the way back in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.dependencies import MARKED, OPERATOR, VIEWER, Document, InstallationOf, Name, SettingsOf, body_as, takes_document
from api.installation import ForbiddenError, Installation, NotFoundError
from api.models import DeadLetterAnswer, DeadLetterList, DeadLetterReplay, DeadLetterReplayRequest, DeadLettersLeft
from boreal.model.errors import UserError
from boreal.query.refusals import did_you_mean
from formats.dead_letter import LetterChoice

router = APIRouter(prefix="/api/v1/queries", tags=["dead letters"])

MOST_LISTED = 1_000
EXAMPLE = {"stream": "jfk", "reason": "ahead of the clock"}


@router.get("/{name}/dead-letters", dependencies=[VIEWER, MARKED])
def list_dead_letters(
    name: Name,
    installation: InstallationOf,
    settings: SettingsOf,
    stream: Annotated[str | None, Query(description="Only of this stream.", max_length=200)] = None,
    reason: Annotated[str, Query(description="Only those whose reason holds this text.", max_length=200)] = "",
    since_ms: Annotated[float | None, Query(description="Only since then, in milliseconds since 1970.", ge=0, le=1e15)] = None,
    limit: Annotated[int, Query(description="At most so many.", ge=1, le=MOST_LISTED)] = 50,
) -> DeadLetterList:
    """The records that the query's sources have refused, the newest first, with the reasons. Of an embedded installation, the
    last thousand since its start."""
    if reason and not settings.show_rows:
        fix = "leave it out, or set BOREAL_API__SHOW_ROWS=true"
        raise ForbiddenError("reason", reason, "would tell of rows, and this installation shows none", fix)
    page = installation.dead_letters(name, _choice(installation, name, stream, reason, since_ms), limit)
    shown = [DeadLetterAnswer.of(each, settings.show_rows) for each in page.letters]
    return DeadLetterList(dead_letters=shown, looked_back_to_ms=page.looked_back_to_ms)


@router.post(
    "/{name}/dead-letters/replay",
    status_code=202,
    dependencies=[OPERATOR],
    openapi_extra=takes_document(EXAMPLE, DeadLetterReplayRequest),
)
def replay_dead_letters(name: Name, document: Document, http: Request, installation: InstallationOf) -> DeadLetterReplay:
    """Put records that were refused back into their streams' topics, each once at most, however often this is called. Those
    whose reason a fix has taken away become rows, the others are refused again. The answer comes when they survive a crash."""
    asked = body_as(DeadLetterReplayRequest, document)
    choice = _choice(installation, name, asked.stream, asked.reason, asked.since_ms)
    outcome = installation.replay_letters(name, choice, asked.limit, str(http.state.caller))
    left = [DeadLettersLeft(reason=why, letters=count) for why, count in outcome.left.items()]
    return DeadLetterReplay(query=name, replayed=outcome.replayed, left=left)


def _choice(
    installation: Installation, name: str, stream: str | None, reason: str, since_ms: float | None
) -> LetterChoice:
    """NotFoundError if there is no such query; UserError if it has no such stream."""
    queries = installation.queries()
    if name not in queries:
        raise NotFoundError("NAME", name, "there is no such query", did_you_mean(name, queries))
    streams = queries[name].spec["streams"]
    if stream is not None and stream not in streams:
        raise UserError("stream", stream, f"{name} has no such stream", did_you_mean(stream, streams))
    return LetterChoice(stream, reason, since_ms)
