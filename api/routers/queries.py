"""Queries: list, create, change, delete; pause, resume, restart; status, plan and validation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api.dependencies import (
    ADMIN,
    MARKED,
    OPERATOR,
    VIEWER,
    Document,
    Expectation,
    InstallationOf,
    MinRevision,
    Name,
    SettingsOf,
    takes_document,
)
from api.etags import etag_of
from api.explain import explanation
from api.installation import (
    Change,
    ConflictError,
    Freshness,
    Installation,
    NotFoundError,
    Precondition,
    PreconditionError,
    UnavailableError,
)
from api.models import (
    EXAMPLE_SPEC,
    Accepted,
    ChangeAnswer,
    EvolutionAnswer,
    ExplainAnswer,
    InputStatus,
    LivenessAnswer,
    Overview,
    OverviewEntry,
    OverviewInput,
    PlanAnswer,
    QueryAnswer,
    QueryChanges,
    QueryList,
    QueryStatus,
    ReplicaStatus,
    SloAnswer,
    Validation,
    milliseconds,
)
from api.plans import plan_answer
from api.settings import ApiSettings
from boreal.model.durations import parse_duration
from boreal.model.errors import UserError
from boreal.query.refusals import did_you_mean
from boreal.query.spec import Query as QuerySpec
from boreal.query.spec import load_query
from deployment.evolution import EARLIEST, shown
from deployment.layout import make_layout
from deployment.query_record import QueryRecord
from formats.json_text import moment

PREFIX = "/api/v1/queries"
MOST_LISTED = 5_000

router = APIRouter(prefix=PREFIX, tags=["queries"])
checking = APIRouter(prefix="/api/v1", tags=["queries"])

Expand = Annotated[str | None, Query(description="`status`: with the status of each query.", pattern="^status$")]
Start = Annotated[
    str,
    Query(
        alias="from",
        max_length=40,
        description="From where the new version reads the topics of its streams: `earliest`, `latest`, or the time from which "
        "on records were written; or `state`: it reads what the running version keeps, and shares its sources. On a stack.",
    ),
]


@router.get("", dependencies=[VIEWER, MARKED])
def list_queries(
    installation: InstallationOf,
    settings: SettingsOf,
    expand: Expand = None,
    after: Annotated[str | None, Query(description="Only names after this one.", max_length=200)] = None,
    limit: Annotated[int, Query(description="At most so many.", ge=1, le=MOST_LISTED)] = MOST_LISTED,
) -> QueryList:
    """All queries, in order of their names."""
    records = [record for name, record in installation.queries().items() if after is None or name > after]
    listed, freshness = records[:limit], installation.freshness()
    statuses = installation.statuses([record.name for record in listed]) if expand else {}
    shown = [_answer(record, status=_status(statuses.get(record.name), freshness, settings)) for record in listed]
    more = shown[-1].name if len(records) > limit else None
    return QueryList(queries=shown, next=more, as_of_ms=freshness.as_of_ms, stale=freshness.is_stale)


@router.post("", status_code=201, dependencies=[OPERATOR], openapi_extra=takes_document(EXAMPLE_SPEC))
def create(request: Request, document: Document, installation: InstallationOf, response: Response) -> QueryAnswer:
    """Create a query, and start it. 409 if there is one of this name: PUT replaces it."""
    query = load_query(document)
    try:
        change = installation.put(query, Precondition(must_exist=False, by=str(request.state.caller)))
    except PreconditionError:
        fix = f"PUT {PREFIX}/{query.name} replaces it; or give the new one another name"
        raise ConflictError("name", query.name, "is the name of a query that exists", fix) from None
    return _changed(change, response)


@router.get("/{name}", dependencies=[VIEWER, MARKED])
def read(
    name: Name,
    installation: InstallationOf,
    settings: SettingsOf,
    response: Response,
    expand: Expand = None,
    min_revision: MinRevision = None,
) -> QueryAnswer:
    """A query. Its ETag, sent back as If-Match, refuses a change where somebody else has changed it meanwhile."""
    record = _record(installation, name, min_revision)
    response.headers["ETag"] = etag_of(record)
    return _answer(record, status=_status(installation.status(name), installation.freshness(), settings) if expand else None)


@router.put(
    "/{name}",
    dependencies=[OPERATOR],
    responses={201: {"model": QueryAnswer, "description": "It was created."}},
    openapi_extra=takes_document(EXAMPLE_SPEC),
)
def create_or_replace(
    name: Name, document: Document, expected: Expectation, installation: InstallationOf, response: Response
) -> QueryAnswer:
    """Create a query (201), or replace it (200). The same again changes nothing."""
    return _changed(installation.put(_named(name, document), expected), response)


@router.patch("/{name}", dependencies=[OPERATOR], openapi_extra=takes_document({"delay_threshold": "1s"}, QueryChanges))
def change(
    name: Name, document: Document, expected: Expectation, installation: InstallationOf, response: Response
) -> QueryAnswer:
    """Change some fields while the query runs, all or none: delay_threshold, reconcile, policy, alpha (tuning.alpha_x),
    replicas, engine, tuning, latest, debezium, records, slo. A new delay threshold holds at once, also for what is held back.
    Answers with what is in force."""
    return _changed(installation.change(name, document, expected), response)


@router.get("/{name}/evolution", dependencies=[VIEWER, MARKED])
def evolution(name: Name, installation: InstallationOf, min_revision: MinRevision = None) -> EvolutionAnswer | None:
    """How the change of a query to another version gets on; null where it has one version only."""
    record = _record(installation, name, min_revision)
    known, status = shown(record), installation.status(name)
    if known is not None and status.get("revision") == record.revision and status.get("evolution") is not None:
        known["waits_for"] = status["evolution"]["waits_for"]
    return None if known is None else EvolutionAnswer.model_validate(known)


@router.post("/{name}/evolution", status_code=202, dependencies=[OPERATOR], openapi_extra=takes_document(EXAMPLE_SPEC))
def evolve(
    name: Name,
    document: Document,
    expected: Expectation,
    installation: InstallationOf,
    response: Response,
    start: Start = EARLIEST,
) -> QueryAnswer:
    """Build another version of a running query beside it, with other streams, operators or shards. It takes over the outputs
    once it has caught up, at an event time: no row is given twice, and none is left out."""
    answer = _changed(installation.evolve(_named(name, document), start, expected), response)
    response.status_code = 202
    return answer


@router.post("/{name}/evolution/rollback", status_code=202, dependencies=[OPERATOR])
def roll_back(name: Name, expected: Expectation, installation: InstallationOf, response: Response) -> QueryAnswer:
    """Let the version that was in charge before take over again. A version that never was in charge is given up; the answer
    comes then when nothing is left of it."""
    answer = _changed(installation.roll_back(name, expected), response)
    response.status_code = 202
    return answer


@router.post("/{name}/evolution/settle", dependencies=[OPERATOR])
def settle(name: Name, expected: Expectation, installation: InstallationOf, response: Response) -> QueryAnswer:
    """Delete the version that was in charge before, with its logs and checkpoints. The answer comes when nothing is left of
    it. The outputs stay."""
    return _changed(installation.settle(name, expected), response)


@router.delete("/{name}", status_code=204, dependencies=[ADMIN])
def delete(name: Name, expected: Expectation, installation: InstallationOf) -> None:
    """Remove a query with its logs, checkpoints and outputs; its input topics stay. The answer comes when nothing is left."""
    installation.delete(name, expected)


@router.get("/{name}/status", dependencies=[VIEWER, MARKED])
def status(
    name: Name, installation: InstallationOf, settings: SettingsOf, response: Response, min_revision: MinRevision = None
) -> QueryStatus:
    """How a query is. One that answers tentatively is at work."""
    record = _record(installation, name, min_revision)
    response.headers["ETag"] = etag_of(record)
    found = _status(installation.status(name), installation.freshness(), settings)
    assert found is not None, "a query that exists has a status"
    return found


@router.get("/{name}/slo", dependencies=[VIEWER, MARKED])
def slo(name: Name, installation: InstallationOf, min_revision: MinRevision = None) -> SloAnswer:
    """How a query keeps its objective: how many of its results came within X, and for how much of the time clients held nothing
    tentative; what is left of both budgets, and how fast they are spent. 404 if it has none."""
    if "slo" not in _record(installation, name, min_revision).spec:
        fix = 'set one with PATCH: {"slo": {"objective": "99.9%", "window": "30d"}}'
        raise NotFoundError("slo", None, f"{name} has no objective", fix)
    status, freshness = installation.status(name), installation.freshness()
    if status.get("slo") is None:
        raise UnavailableError("slo", None, f"what {name} has given is not counted yet", "ask again soon")
    as_of_ms = status.get("at_ms", freshness.as_of_ms)
    return SloAnswer.model_validate({**status["slo"], "query": name, "as_of_ms": as_of_ms, "stale": freshness.is_stale})


@router.get("/{name}/plan", dependencies=[VIEWER, MARKED])
def plan(name: Name, installation: InstallationOf, min_revision: MinRevision = None) -> PlanAnswer:
    """The fragments, replicas and operators of a query, and the durations that follow from it."""
    query = _record(installation, name, min_revision).query
    return PlanAnswer.model_validate(plan_answer(query, installation.layout(name)))


@router.get("/{name}/explain-delay", dependencies=[VIEWER, MARKED])
def explain_delay(name: Name, installation: InstallationOf, min_revision: MinRevision = None) -> ExplainAnswer:
    """Where X goes: `parts`, in the order in which a row passes them, sum up to it, but for those within another. `waits`:
    which bucket waits for which inputs, since when, and in how long its results are given as tentative at the latest."""
    _record(installation, name, min_revision)
    found = explanation(installation.layout(name).plan, installation.status(name), installation.instances(name))
    return ExplainAnswer.model_validate(found)


@router.get("/{name}/inputs", dependencies=[VIEWER, MARKED])
def inputs(name: Name, installation: InstallationOf, min_revision: MinRevision = None) -> list[InputStatus]:
    """The streams of a query."""
    _record(installation, name, min_revision)
    return [InputStatus.model_validate(each) for each in installation.status(name)["inputs"]]


@router.get("/{name}/replicas", dependencies=[VIEWER, MARKED])
def replicas(name: Name, installation: InstallationOf, min_revision: MinRevision = None) -> list[ReplicaStatus]:
    """The instances of a query: each shard of each replica of each fragment, with what it says of itself."""
    _record(installation, name, min_revision)
    said = {_who(each): each for each in installation.instances(name)}
    known = installation.status(name)["replicas"]
    return [ReplicaStatus.model_validate({**said.get(_who(each), {}), **each}) for each in known]


@router.get("/{name}/liveness", dependencies=[VIEWER, MARKED])
def liveness(name: Name, installation: InstallationOf, min_revision: MinRevision = None) -> LivenessAnswer:
    """Whether a query runs as its newest revision says: what `boreal query apply` waits for."""
    _record(installation, name, min_revision)
    found = installation.liveness(name)
    return LivenessAnswer(
        live=found.is_ready,
        waits_for=list(found.waits_for),
        states=dict(found.states),
        missing_inputs=list(found.missing),
        problem=found.problem,
        least_x_ms=found.least_x_ms,
        running=list(installation.running(name)),
    )


def _who(entry: Mapping[str, Any]) -> tuple[str, str, int]:
    return entry["fragment"], entry["replica"], entry["shard"]


@router.post("/{name}/validate", dependencies=[VIEWER], openapi_extra=takes_document(EXAMPLE_SPEC))
def validate_named(name: Name, document: Document, installation: InstallationOf, start: Start = EARLIEST) -> Validation:
    """Whether a query is valid; what it would change of the one that runs, how that is taken, and what clients would notice."""
    return _validated(installation, _named(name, document), start)


@checking.get("/overview", dependencies=[VIEWER, MARKED])
def overview(
    installation: InstallationOf,
    limit: Annotated[int | None, Query(ge=1, le=10**6, description="At most so many; all, if it is not given.")] = None,
) -> Overview:
    """The queries, a line each: what a list shows of thousands."""
    freshness, records = installation.freshness(), installation.queries()
    listed = list(islice(records, limit))
    statuses = installation.statuses(listed)
    lines = [_line(records[name], statuses.get(name)) for name in listed]
    return Overview(queries=lines, total=len(records), as_of_ms=freshness.as_of_ms, stale=freshness.is_stale)


@checking.post("/validate", dependencies=[VIEWER], openapi_extra=takes_document(EXAMPLE_SPEC))
def validate(document: Document, installation: InstallationOf, start: Start = EARLIEST) -> Validation:
    """Whether a query is valid; what it would change of the one that runs, how that is taken, and what clients would notice."""
    return _validated(installation, load_query(document), start)


@router.put("/{name}/pause", status_code=202, dependencies=[OPERATOR])
@router.post("/{name}/pause", status_code=202, dependencies=[OPERATOR])
def pause(name: Name, expected: Expectation, installation: InstallationOf, response: Response) -> Accepted:
    """Stop the processes of a query. No input is lost: its topics keep what arrives. Nothing happens if it is paused."""
    return _accepted(installation.pause(name, True, expected), response)


@router.put("/{name}/resume", status_code=202, dependencies=[OPERATOR])
@router.post("/{name}/resume", status_code=202, dependencies=[OPERATOR])
def resume(name: Name, expected: Expectation, installation: InstallationOf, response: Response) -> Accepted:
    """Continue a paused query where it stopped. Nothing happens if it is not paused."""
    return _accepted(installation.pause(name, False, expected), response)


@router.post("/{name}/restart", status_code=202, dependencies=[OPERATOR])
def restart(
    name: Name,
    expected: Expectation,
    installation: InstallationOf,
    response: Response,
    only_failed: Annotated[bool, Query(description="Do nothing while all replicas work.")] = False,
) -> Accepted:
    """Restart the replicas of a query, one after the other, so that one goes on answering."""
    return _accepted(installation.restart(name, only_failed, expected), response)


def _named(name: str, document: Mapping[str, Any]) -> QuerySpec:
    """The query in a body whose path has its name. UserError if the body has another."""
    if document.get("name", name) != name:
        fix = f"write name: {name}, or leave it out"
        raise UserError("name", document["name"], f"is not the name in the path, {name}", fix)
    return load_query({"name": name, **document})


def _record(installation: Installation, name: str, min_revision: int | None = None) -> QueryRecord:
    records = installation.queries(None if min_revision is None else (name, min_revision))
    if name not in records:
        raise NotFoundError("NAME", name, "there is no such query", did_you_mean(name, records))
    return records[name]


def _validated(installation: Installation, query: QuerySpec, start: str) -> Validation:
    found, layout = installation.check(query, start), make_layout(query, installation.sites)
    change = None if found.change is None else ChangeAnswer.model_validate(found.change.fields())
    answer = PlanAnswer.model_validate(plan_answer(query, layout))
    return Validation(valid=True, notes=list(found.notes), change=change, plan=answer)


def _changed(change: Change, response: Response) -> QueryAnswer:
    response.headers["ETag"] = etag_of(change.record)
    response.status_code = 201 if change.is_new else 200
    if change.is_new:
        response.headers["Location"] = f"{PREFIX}/{change.record.name}"
    return _answer(change.record, notes=change.notes)


def _accepted(change: Change, response: Response) -> Accepted:
    response.headers["ETag"] = etag_of(change.record)
    response.headers["Location"] = f"{PREFIX}/{change.record.name}/status"
    return Accepted(name=change.record.name, revision=change.record.revision, paused=change.record.paused)


def _line(record: QueryRecord, status: Mapping[str, Any] | None) -> OverviewEntry:
    found = status or {"state": None, "delay_ms": {"p99": None}, "violations": 0, "tentative": {"outstanding": 0}, "inputs": []}
    missing = {name for replica in found.get("replicas", ()) for name in replica["missing"]}
    threshold = record.spec["delay_threshold"]
    return OverviewEntry(
        name=record.name,
        revision=record.revision,
        paused=record.paused,
        state=found["state"],
        delay_threshold=threshold,
        x_ms=_x_ms(threshold),
        p99_ms=found["delay_ms"]["p99"],
        violations=found["violations"],
        tentative=found["tentative"]["outstanding"],
        inputs=[
            OverviewInput(name=each["name"], state=each["state"], missing=each["name"] in missing) for each in found["inputs"]
        ],
    )


def _answer(record: QueryRecord, notes: tuple[str, ...] = (), status: QueryStatus | None = None) -> QueryAnswer:
    """The record as it is stored: a query that this version cannot read must not hide the others."""
    spec = record.spec
    return QueryAnswer(
        name=record.name,
        revision=record.revision,
        paused=record.paused,
        delay_threshold=spec["delay_threshold"],
        x_ms=_x_ms(spec["delay_threshold"]),
        reconcile=spec["reconcile"],
        policy=spec["policy"],
        replicas=spec["replicas"],
        engine=spec.get("engine"),
        spec=spec,
        version=record.version,
        since=moment(record.since) if record.since is not None else None,
        evolution=EvolutionAnswer.model_validate(found) if (found := shown(record)) is not None else None,
        notes=list(notes),
        status=status,
    )


@lru_cache(4_096)
def _x_ms(delay_threshold: str) -> float | None:
    """None where this version cannot read it."""
    try:
        return milliseconds(parse_duration(delay_threshold, "delay_threshold"))
    except UserError:
        return None


def _status(found: Mapping[str, Any] | None, freshness: Freshness, settings: ApiSettings) -> QueryStatus | None:
    if found is None:
        return None
    if not settings.show_rows:  # why a record was refused may quote it
        found = {**found, "inputs": [{**each, "last_refusal": None} for each in found["inputs"]]}
    as_of_ms = found.get("at_ms", freshness.as_of_ms)
    return QueryStatus.model_validate({**found, "as_of_ms": as_of_ms, "stale": freshness.is_stale})
