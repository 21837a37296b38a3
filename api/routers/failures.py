"""The failures of queries, as their events tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from api.dependencies import VIEWER, InstallationOf, Name
from api.event_history import EventFilter
from api.installation import Installation, NotFoundError
from api.models import EventAnswer, FailureAnswer, FailureList, FailureSummary
from boreal.query.refusals import did_you_mean

router = APIRouter(prefix="/api/v1/queries", tags=["failures"])

MOST_LISTED = 500
MOST_EVENTS = 1_000

FailureId = Annotated[str, Path(description="The id of the failure.", max_length=200, examples=["20260102T140211123Z"])]


@router.get("/{name}/failures", dependencies=[VIEWER])
def list_failures(
    name: Name,
    installation: InstallationOf,
    after: Annotated[str | None, Query(description="Only those before the one with this id.", max_length=200)] = None,
    limit: Annotated[int, Query(description="At most so many.", ge=1, le=MOST_LISTED)] = 50,
) -> FailureList:
    """The failures of a query, the newest first, one for each failure however many replicas saw it. Those of a deleted query
    are there as long as their events are."""
    known = [FailureSummary.model_validate(each) for each in _known(name, installation)]
    older = [each for each in known if after is None or each.id < after]
    return FailureList(failures=older[:limit], next=older[limit - 1].id if len(older) > limit else None)


@router.get("/{name}/failures/{id}", dependencies=[VIEWER])
def read_failure(name: Name, id: FailureId, installation: InstallationOf) -> FailureAnswer:
    """A failure: its phases and how long they took, what clients saw of it, how it went at each instance, and its events."""
    found = installation.events.failure(name, id)
    if found is None:
        newest = ", ".join(each["id"] for each in _known(name, installation)[:3])
        fix = f"the newest are {newest}" if newest else "it has had none that is still known"
        raise NotFoundError("ID", id, f"{name} has no such failure", fix)
    events = installation.events.after(None, EventFilter(query=name, failure=id), MOST_EVENTS).events
    return FailureAnswer.model_validate({**found, "events": [EventAnswer.of(number, event) for number, event in events]})


def _known(name: str, installation: Installation) -> list[Mapping[str, Any]]:
    """The failures of a query, the newest first. NotFoundError if there never was such a query, as far as is known."""
    found = installation.events.failures(name)
    if not found and name not in (queries := installation.queries()):
        raise NotFoundError("NAME", name, "there is no such query", did_you_mean(name, queries))
    return found
