"""What the API answers, and what it takes, as pydantic models: the schemas of its OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from boreal.model.durations import format_duration
from deployment.events import KINDS, RecordedEvent
from deployment.status_fields import FROZEN, SHARED_RESOURCES
from formats.dead_letter import KeptLetter

EXAMPLE_SPEC: dict[str, Any] = {
    "name": "departures",
    "streams": {"jfk": {"topic": "flights.jfk", "time": "departed_at", "schema": {"carrier": "string", "dep_delay": "double"}}},
    "operators": {
        "late": {"filter": "jfk", "where": "dep_delay > 15"},
        "by_carrier": {
            "aggregate": "late",
            "window": {"tumbling": "10m"},
            "by": ["carrier"],
            "compute": {"flights": "count(*)"},
        },
    },
    "output": "by_carrier",
    "delay_threshold": "3s",
    "replicas": 2,
    "engine": "native",
}


class _More(BaseModel):
    """Fields beside those that are listed may be there."""

    model_config = ConfigDict(extra="allow")


class Delays(BaseModel):
    """Delays of new rows lately, in milliseconds; null where there was none."""

    p50: float | None = Field(description="The median.")
    p99: float | None = Field(description="The 99th percentile.")
    max: float | None = Field(description="The longest.")


class InputStatus(_More):
    """A stream."""

    name: str = Field(description="The stream.")
    state: str = Field(description="`live`, `idle`, `spooling`, `failed`, `starting` or `paused`.")
    last_boundary: str | None = Field(description="The boundary of the stream, or `end`; null before the first.")
    last_ingest_age_ms: float | None = Field(description="How long ago its source logged the last row.")
    lag_records: int | None = Field(default=None, description="Records of its topic that are not taken yet, where it is known.")
    lag_ms: float | None = Field(default=None, description="For how long there have been such records; 0 if there are none.")
    dlq: int | None = Field(default=None, description="Records that its source has refused since it started.")
    dlq_per_minute: int | None = Field(default=None, description="How many of them there were within the last minute.")
    last_refusal: str | None = Field(default=None, description="Why it refused the last of them.")
    coerced: int | None = Field(default=None, description="Values that it has converted from another JSON type.")
    waits_for: str | None = Field(default=None, description="What its records wait for, such as a schema registry.")
    waits_since_ms: float | None = Field(default=None, description="Since when they wait; null if they do not.")


class StreamReader(BaseModel):
    """A query that reads records."""

    query: str = Field(description="The query.")
    stream: str = Field(description="Its stream.")
    source: str = Field(description="The source that reads the records for it; mostly the same one for streams that are alike.")
    state: str = Field(description="As in the status of the query; `starting` before its source is heard.")
    lag_records: int | None = Field(description="Records that it has not taken yet, where it is known.")
    lag_ms: float | None = Field(description="For how long there have been such records; 0 if there are none.")
    dlq: int | None = Field(description="Records that its source has refused since it started.")


class StreamReaders(BaseModel):
    """Records, and who reads them."""

    records: str = Field(description="Where they are: SITE:TOPIC, or QUERY.STREAM in an embedded installation.")
    alike: bool = Field(description="Whether all readers describe them in the same way: their times, schema and lateness.")
    readers: list[StreamReader] = Field(description="Who reads them, in order of the names.")


class StreamList(BaseModel):
    """What the queries read, and which of them."""

    streams: list[StreamReaders] = Field(description="In order of where the records are.")


class LivenessAnswer(BaseModel):
    """Whether a query runs as its newest revision says."""

    live: bool = Field(description="Whether all its parts run that revision and are ready. Tentative answers are answers.")
    waits_for: list[str] = Field(description="The parts that are not ready yet.")
    states: dict[str, str] = Field(description="The state of each instance, by FRAGMENT.REPLICA.SHARD.")
    missing_inputs: list[str] = Field(description="The inputs that are missing now.")
    problem: str | None = Field(description="Why this revision cannot run; null if it can.")
    least_x_ms: float = Field(description="The smallest X that the instances can keep, by what was measured lately.")
    running: list[str] = Field(description="The processes that have not ended, also where the query is paused.")


class ReplicaStatus(_More):
    """A shard of a replica of a fragment."""

    fragment: str = Field(description="Its fragment.")
    replica: str = Field(description="Its replica.")
    shard: int = Field(description="Its shard.")
    engine: str = Field(description="`native` or `spark`.")
    state: str = Field(
        description="`STABLE`, `UP_FAILURE`, `STABILIZATION` or `RECOVERING`; `STARTING` before it is heard, `FAILURE` when "
        "it is silent, `PAUSED` while the query is."
    )


class TentativeStatus(BaseModel):
    """What clients hold that may be revoked."""

    outstanding: int = Field(description="Tentative rows that are not revoked.")
    since: str | None = Field(description="When the first of them was given.")
    cause: str | None = Field(description="Why they are tentative: the failure, or `early`.")


class CountsStatus(BaseModel):
    """What clients were given."""

    stable: int = Field(description="Stable rows.")
    tentative: int = Field(description="Tentative rows.")
    undone: int = Field(description="Tentative rows that were revoked.")


class ResourcesStatus(BaseModel):
    """What the query's processes take."""

    memory_bytes: int = Field(description="Memory.")
    cores: float = Field(description="Processor time over time: 1 is a whole core.")


class QueryStatus(_More):
    """How a query is. docs/settings.md lists the fields that are not listed here."""

    name: str = Field(description="The name of the query.")
    state: str = Field(description="The state of what clients see, as of a replica.")
    x_ms: float = Field(description="X, the delay threshold.")
    alpha_x_ms: float | None = Field(description="How long a bucket may be held back: the least of the replicas'.")
    delay_ms: Delays = Field(description="The delay of new rows lately.")
    violations: int = Field(description="New rows that came later than X after their ingest.")
    inputs: list[InputStatus] = Field(description="The streams.")
    replicas: list[ReplicaStatus] = Field(description="The instances.")
    tentative: TentativeStatus = Field(description="What may be revoked.")
    tentative_share: float | None = Field(default=None, description="Tentative rows among all rows given, from 0 to 1.")
    resources: ResourcesStatus | None = Field(default=None, description=f"{SHARED_RESOURCES}.")
    frozen: list[str] = Field(default_factory=list, description=FROZEN)
    counts: CountsStatus = Field(description="What was given.")
    as_of_ms: float = Field(description="When this was known, in milliseconds since 1970.")
    stale: bool = Field(description="Whether the installation is silent, so that this may be out of date.")


class EvolutionAnswer(BaseModel):
    """How a change of a query to another version gets on."""

    state: str = Field(
        description="`claiming`: it is looked up what the version in charge keeps (`from=state`); `building`: it reads what is "
        "kept, until it has caught up; `taking_over`; `taken_over`: the version before runs on, unread; `rolling_back`, "
        "`rolled_back`; `leaving`: it is being deleted."
    )
    version: int = Field(description="The number of the version beside the one whose results are given.")
    start: str = Field(
        alias="from",
        description="From where that reads: `earliest`, or the time from which on its records were written; `state`: what the "
        "version before keeps.",
    )
    at: str | None = Field(description="While it takes over: the event time from which on its results are given.")
    waits_for: str | None = Field(description="What the next step waits for; null if for nothing.")


class QueryAnswer(BaseModel):
    """A query: what is in force."""

    name: str = Field(description="The name of the query.")
    revision: int = Field(description="Grows with each change; the ETag names it.")
    paused: bool = Field(description="Whether its processes are stopped.")
    delay_threshold: str = Field(description="X, as the query file writes it.", examples=["3s"])
    x_ms: float | None = Field(description="X in milliseconds; null where this version cannot read the query.")
    reconcile: str = Field(description="How replicas return to the state before a failure.")
    policy: dict[str, str] = Field(description="What to do with new input during a failure and the stabilization.")
    replicas: int = Field(description="The number of replicas.")
    engine: Any = Field(description="The engine, or a list with one for each replica.")
    spec: dict[str, Any] = Field(description="The query, in the shape of the file.")
    version: int = Field(default=1, description="The number of the version whose results are given; it grows as it evolves.")
    since: str | None = Field(default=None, description="The event time from which on they are; null for the first version.")
    evolution: EvolutionAnswer | None = Field(
        default=None, description="How a change to another version gets on; null where there is one version only."
    )
    notes: list[str] = Field(default=[], description="What the planner says of the query.")
    status: QueryStatus | None = Field(default=None, description="With `expand=status`.")


class QueryList(BaseModel):
    """Queries, in order of their names."""

    queries: list[QueryAnswer] = Field(description="The queries.")
    next: str | None = Field(description="What to give as `after` for more; null if there are no more.")
    as_of_ms: float = Field(description="When this was known, in milliseconds since 1970.")
    stale: bool = Field(description="Whether the installation is silent, so that this may be out of date.")


class OverviewInput(BaseModel):
    """A stream in a list."""

    name: str = Field(description="The stream.")
    state: str = Field(description="As in the status.")
    missing: bool = Field(description="Whether a replica goes on without it.")


class OverviewEntry(BaseModel):
    """A query in a line."""

    name: str = Field(description="The name of the query.")
    revision: int = Field(description="Grows with each change.")
    paused: bool = Field(description="Whether its processes are stopped.")
    state: str | None = Field(description="The state of what clients see; null where this version cannot run the query.")
    delay_threshold: str = Field(description="X, as the query file writes it.")
    x_ms: float | None = Field(description="X in milliseconds; null where this version cannot read the query.")
    p99_ms: float | None = Field(description="The 99th percentile of the delay of new rows lately; null where there was none.")
    violations: int = Field(description="New rows that came later than X after their ingest.")
    tentative: int = Field(description="Tentative rows that are not revoked.")
    inputs: list[OverviewInput] = Field(description="The streams.")


class Overview(BaseModel):
    """The queries, a line each, in order of their names."""

    queries: list[OverviewEntry] = Field(description="The queries; no more than were asked for.")
    total: int = Field(description="How many queries there are.")
    as_of_ms: float = Field(description="When this was known, in milliseconds since 1970.")
    stale: bool = Field(description="Whether the installation is silent, so that this may be out of date.")


class PartAnswer(BaseModel):
    """A part of a query that is written otherwise."""

    part: str = Field(description="Its path, such as `operators.each.compute.most`.")
    before: Any = Field(description="What runs; null where it is new.")
    after: Any = Field(description="What is written; null where it goes.")
    taken: str = Field(description="How the change of this part is taken: see `taken` of the whole.")


class ColumnAnswer(BaseModel):
    """A column of the results that comes, goes, or gets another type."""

    name: str = Field(description="Its name.")
    before: str | None = Field(description="Its type in the rows of the query that runs; null where it is new.")
    after: str | None = Field(description="Its type in the rows to come; null where it goes.")


class KeyAnswer(BaseModel):
    """The key of the results changes."""

    before: list[str] = Field(description="The key columns of the query that runs.")
    after: list[str] = Field(description="Those to come.")


class NeedsAnswer(BaseModel):
    """What runs beside a query, until its version before is deleted."""

    sources: int = Field(description="Sources.")
    nodes: int = Field(description="Nodes.")
    jobs: int = Field(description="Spark jobs.")
    instances: int = Field(description="Shards of replicas of fragments.")
    history_ms: float | None = Field(
        description="About how far rows reach back, in event time, that a result depends on; null if it depends on all rows."
    )


class RefusalAnswer(BaseModel):
    """Why something is not possible."""

    field: str = Field(description="What is wrong.")
    value: Any = Field(description="Its value.")
    problem: str = Field(description="What is wrong with it.")
    fix: str = Field(description="What to do instead.")


class ChangeAnswer(BaseModel):
    """What a query would change of the one that runs under its name."""

    taken: str = Field(
        description="`nothing` changes; `at_once`; `in_turn`: replicas restart one after the other; `sources` restart; "
        "`restart`: its processes together; `evolution`: PUT refuses it, and another version takes over. In an embedded "
        "installation, all that is not taken at once is a restart."
    )
    parts: list[PartAnswer] = Field(description="The parts that differ.")
    columns: list[ColumnAnswer] = Field(description="The columns of the results that differ.")
    key: KeyAnswer | None = Field(description="The key columns of the results; null if they stay.")
    start: str | None = Field(alias="from", description="For an evolution: from where the new version would read. Else null.")
    needs: NeedsAnswer | None = Field(description="For an evolution: about what it takes. Else null.")
    says: list[str] = Field(description="All of it but the parts, in sentences.")
    command: str | None = Field(description="The command that does it; null if nothing changes, or nothing does it now.")
    refused: RefusalAnswer | None = Field(description="Why not even an evolution is possible now; null if it is.")


class PlanStream(BaseModel):
    """A stream that the query reads."""

    name: str = Field(description="The stream.")
    site: str = Field(description="Where its topic is.")


class PlanReplica(BaseModel):
    """A replica of a fragment."""

    name: str = Field(description="The replica.")
    engine: str = Field(description="`native` or `spark`.")
    site: str = Field(description="Where it runs.")


class PlanFragment(BaseModel):
    """Operators that run together."""

    name: str = Field(description="The fragment.")
    shards: int = Field(description="Into how many shards each replica is divided.")
    replicas: list[PlanReplica] = Field(description="Its replicas.")
    reads: list[str] = Field(description="The logs that it reads.")
    writes: list[str] = Field(description="The logs that it writes.")


class PlanNode(BaseModel):
    """A stream or an operator, in a picture of the query."""

    name: str = Field(description="Its name.")
    kind: str = Field(description="`stream`, or what the operator is, such as `aggregate`.")
    reads: list[str] = Field(description="The nodes that it reads.")
    layer: int = Field(description="One more than the deepest that it reads; 0 for a stream.")
    fragment: str | None = Field(description="The fragment that it is part of; null for a stream.")
    columns: dict[str, str] = Field(description="The columns of its rows, and their types.")


class PlanAnswer(BaseModel):
    """The parts of a query, and the durations that follow from it."""

    name: str = Field(description="The name of the query.")
    x_ms: float = Field(description="X.")
    least_x_ms: float = Field(description="The smallest X that its buckets, its boundaries and its engine allow.")
    alpha_x_ms: float | None = Field(description="How long a bucket may be held back, where the query fixes it; else null.")
    bucket_ms: float = Field(description="How long a bucket lasts.")
    boundary_interval_ms: float = Field(description="How often a source says how far its stream has come.")
    silence_ms: float = Field(description="After how long a silent input counts as failed.")
    streams: list[PlanStream] = Field(description="The streams.")
    fragments: list[PlanFragment] = Field(description="The fragments.")
    nodes: list[PlanNode] = Field(description="The streams and operators, each after all that it reads.")
    output: str = Field(description="The node whose rows are the results.")
    notes: list[str] = Field(description="What the planner says of the query.")


class PartOfX(BaseModel):
    """A part of X."""

    name: str = Field(description="`source`, `transport`, `hold`, `engine`, `egress` or `reserve`.")
    ms: float | None = Field(description="How long it takes, or may take; null where it is not measured yet.")
    within: str | None = Field(description="The part that it is within, and does not add to; null for the others.")


class WaitedBucket(BaseModel):
    """A span of event time; null for a time that no calendar has."""

    begin: str | None = Field(alias="from", description="Its begin.")
    end: str | None = Field(alias="to", description="Its end.")


class WaitedInput(BaseModel):
    """An input that is waited for."""

    name: str = Field(description="The stream and the partition of its writer.")
    silent_for_ms: float = Field(description="How long ago it was last heard.")
    failed: bool = Field(description="Whether it counts as failed.")


class Wait(BaseModel):
    """A bucket that an instance holds back."""

    fragment: str = Field(description="The fragment of the instance.")
    replica: str = Field(description="Its replica.")
    shard: int = Field(description="Its shard.")
    state: str | None = Field(description="Its state.")
    bucket: WaitedBucket = Field(description="The oldest bucket that it holds back.")
    inputs: list[WaitedInput] = Field(alias="for", description="What it waits for.")
    waited_ms: float = Field(description="For how long.")
    is_tentative: bool = Field(description="Whether results are given as tentative already.")
    tentative_in_ms: float = Field(description="In how long they are at the latest.")


class ExplainedInstance(BaseModel):
    """X as it is divided at one instance."""

    fragment: str = Field(description="Its fragment.")
    replica: str = Field(description="Its replica.")
    shard: int = Field(description="Its shard.")
    state: str | None = Field(description="Its state.")
    hold_ms: float | None = Field(description="How long it may hold a bucket back; null before it is heard.")
    parts: list[PartOfX] = Field(description="As for the whole query.")
    waits: list[Wait] = Field(description="What it holds back.")


class ExplainAnswer(BaseModel):
    """Where X goes, and what results wait for."""

    name: str = Field(description="The name of the query.")
    state: str = Field(description="The state of what clients see.")
    x_ms: float = Field(description="X.")
    parts: list[PartOfX] = Field(description="Of the instance with the shortest hold, in the order in which a row passes them.")
    waits: list[Wait] = Field(description="The buckets that are held back.")
    tentative: TentativeStatus = Field(description="What clients hold that may be revoked.")
    instances: list[ExplainedInstance] = Field(description="Each instance that is heard.")


class Validation(BaseModel):
    """A query that could run."""

    valid: bool = Field(description="true: what is not valid is answered with a problem.")
    notes: list[str] = Field(description="What the planner says of the query.")
    change: ChangeAnswer | None = Field(description="What it would change of the query of this name; null if there is none.")
    plan: PlanAnswer = Field(description="As `/plan` answers.")


class Accepted(BaseModel):
    """What was asked for happens in the background; the status shows how far it is."""

    name: str = Field(description="The name of the query.")
    revision: int = Field(description="The revision that asks for it.")
    paused: bool = Field(description="Whether the query is paused.")


class Health(BaseModel):
    """Whether what was asked about works."""

    ready: bool = Field(description="Whether it does.")
    waits_for: list[str] = Field(default=[], description="What is not ready.")


class MayDo(BaseModel):
    """What a caller may do."""

    viewer: bool = Field(description="Read, but for the settings.")
    operator: bool = Field(description="Also change queries, give rows and run jobs.")
    admin: bool = Field(description="Also delete queries, and read the settings.")
    chaos: bool = Field(description="Break something on purpose; false where the installation does not allow it.")


class SessionAnswer(BaseModel):
    """Who calls."""

    name: str = Field(description="The name of the token.")
    may: MayDo = Field(description="What it may do here.")
    shows_rows: bool = Field(description="Whether the installation shows rows.")


class WorkerStatus(BaseModel):
    """A process that has joined a site, and runs roles of its queries."""

    site: str = Field(description="The site that it has joined.")
    name: str = Field(description="Its name.")
    host: str = Field(description="The name of its host.")
    machine: str = Field(description="Its machine: containers on one kernel have the same.")
    program: str = Field(description="The version of boreal that it runs.")
    roles: list[str] = Field(description="The roles that it runs, in order of their names.")
    problem: str | None = Field(description="Why it gets no roles, or does not obey the newest record; null if neither.")


class WorkerList(BaseModel):
    """The workers that have joined."""

    workers: list[WorkerStatus] = Field(description="In order of their sites and names.")


class ConfigAnswer(_More):
    """The effective settings, with secrets masked: those of docs/settings.md, or, embedded, `embedded` and `data`."""

    data: str | None = Field(default=None, description="The directory of the installation.")
    api: dict[str, Any] = Field(description="The settings of the API, which `BOREAL_API__` variables set.")


class QueryChanges(BaseModel):
    """Fields of a query to change while it runs, as the query file writes them; null stands for a field's default. Of `policy`,
    `tuning` and `slo` as objects, the parts that are named change."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"delay_threshold": "1s"}})

    delay_threshold: str | None = Field(default=None, description="X. It holds at once.")
    reconcile: str | None = Field(default=None, description="How replicas return to the state before a failure.")
    policy: str | dict[str, Any] | None = Field(
        default=None, description="What to do with new input during a failure and the stabilization: FAILURE/STABILIZATION."
    )
    alpha: str | None = Field(default=None, description="How long a bucket may be held back; the same as `tuning.alpha_x`.")
    replicas: int | None = Field(default=None, description="The number of replicas.")
    engine: Any = Field(default=None, description="The engine, or a list with one for each replica.")
    tuning: dict[str, Any] | None = Field(default=None, description="What most queries leave at its default.")
    latest: bool | None = Field(default=None, description="Whether there is a topic of the newest rows.")
    debezium: bool | None = Field(default=None, description="Whether there is a topic of changes in Debezium's envelope.")
    records: Any = Field(default=None, description="Whether there is a topic of final rows in Avro or Protobuf, and which.")
    slo: str | dict[str, Any] | None = Field(default=None, description="The objective: OBJECTIVE/WINDOW.")


class ChaosRequest(BaseModel):
    """Something to break."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"fault": "cut jfk for 5s"}})

    fault: str = Field(
        description="A fault as `boreal run --fault` takes it, without `at T`: it begins now. `heal TARGET` ends some.",
        max_length=200,
    )


class ChaosAnswer(BaseModel):
    """A fault that has begun."""

    id: str = Field(description="Its id.")
    fault: str = Field(description="The fault, with the query that it concerns.")
    targets: list[str] = Field(description="The processes, or the replicas and streams, that it concerns.")
    ends_at_ms: float | None = Field(description="When it is undone, in milliseconds since 1970; null if it is over at once.")


class EventAnswer(BaseModel):
    """Something that happened."""

    id: int = Field(description="Its number; later events have higher ones.")
    at_ms: float = Field(description="When, in milliseconds since 1970.")
    kind: str = Field(description="; ".join(f"`{kind}`: {text}" for kind, text in KINDS.items()))
    query: str | None = Field(description="The query that it concerns.")
    by: str | None = Field(description="Who did it: `cli`, or a token by its name and roles; null if nobody did.")
    failure: str | None = Field(description="The id of the failure that it is part of.")
    facts: dict[str, Any] = Field(description="What `kind` says.")

    @classmethod
    def of(cls, number: int, event: RecordedEvent) -> EventAnswer:
        fields = event.fields()
        del fields["v"]
        return cls(id=number, **fields)


class EventList(BaseModel):
    """Events, the newest first."""

    events: list[EventAnswer] = Field(description="The events.")
    next: int | None = Field(description="What to give as `after` for older ones; null if there are no more.")


class FailureSummary(BaseModel):
    """A failure of a query. Times are milliseconds since 1970."""

    id: str = Field(description="Its id: when it was detected.", examples=["20260102T140211123Z"])
    query: str = Field(description="The query.")
    state: str = Field(description="`open`, or `over`: all instances are stable again, and clients hold nothing tentative.")
    detected_ms: float = Field(description="When the first instance noticed it.")
    ended_ms: float | None = Field(description="When the last consequence was over; null while it is open.")
    duration_ms: float | None = Field(description="From its beginning, as far as known, to its end; null while it is open.")
    x_ms: float | None = Field(description="X when it was detected.")
    reconcile: str | None = Field(description="The mode at that time.")
    policy: dict[str, str] | None = Field(description="The policy at that time.")
    missing: list[str] = Field(description="The inputs that some instance lacked.")
    silent: list[str] = Field(description="The instances that were silent.")
    rows_tentative: int | None = Field(description="Tentative rows that clients were given; null while it is open.")
    rows_undone: int = Field(description="Tentative rows that were revoked, at the site with the most.")
    late_rows: int | None = Field(description="New rows that came later than X; null if unknown.")
    because: str | None = Field(description="Why it ended, if not by healing: `paused` or `deleted`.")


class Phase(BaseModel):
    """A part of a failure."""

    name: str = Field(
        description="`detected`: nobody had noticed. `held`: results were held back. `tentative`: clients got tentative "
        "results. `redo`: all inputs were there again, and results were corrected."
    )
    from_ms: float = Field(description="When it began.")
    to_ms: float | None = Field(description="When it ended; null while it lasts.")
    ms: float | None = Field(description="How long it took; null while it lasts.")


class FailureCourse(BaseModel):
    """How a failure went at one instance, or egress."""

    instance: str = Field(description="FRAGMENT.REPLICA.SHARD, or egress.SITE.")
    state: str = Field(description="As what it was detected: `UP_FAILURE`, or `FAILURE` if it was itself silent.")
    missing: list[str] = Field(description="The inputs that it lacked.")
    detected_ms: float = Field(description="When that was noticed.")
    healed_ms: float | None = Field(description="When it had all inputs again, or was heard again.")
    reconciled_ms: float | None = Field(description="When it was stable again.")
    redo_s: float | None = Field(description="How long its correction took; null if there was none.")


class SiteCost(BaseModel):
    """What a failure cost clients of one site."""

    site: str = Field(description="The site.")
    rows_undone: int = Field(description="Tentative rows that they were given, and that were revoked.")


class ClientCost(BaseModel):
    """What clients saw of a failure."""

    tentative_from_ms: float | None = Field(description="When the first tentative row was given; null if there was none.")
    undone_ms: float | None = Field(description="When the last ones were revoked.")
    sites: list[SiteCost] = Field(description="For each site whose clients had tentative rows.")


class PastFault(BaseModel):
    """A fault on purpose."""

    id: str = Field(description="Its id.")
    fault: str = Field(description="The fault.")
    begun_ms: float = Field(description="When it was begun.")
    ended_ms: float | None = Field(description="When it was undone; null before.")


class FailureAnswer(FailureSummary):
    """A failure in full."""

    begun_ms: float = Field(description="When it began: when the silence began that was noticed, else when it was detected.")
    phases: list[Phase] = Field(description="Its parts, in order.")
    clients: ClientCost = Field(description="What clients saw.")
    instances: list[FailureCourse] = Field(description="How it went at each instance that it concerned.")
    switches: int = Field(description="How often a reader turned to another replica.")
    faults: list[PastFault] = Field(description="Faults on purpose that were active, or were within the minute before.")
    events: list[EventAnswer] = Field(description="Its events, in order: the first thousand.")


class Reconciliation(BaseModel):
    """A correction of an instance, after all its inputs were there again. Times are milliseconds since 1970."""

    id: int = Field(description="Its number: that of the event of its end.")
    failure: str | None = Field(description="The id of the failure after which it came.")
    fragment: str = Field(description="The fragment.")
    replica: str = Field(description="The replica; of an egress, its site.")
    shard: int = Field(description="The shard; 0 for an egress.")
    mode: str | None = Field(description="The mode, as of the detection of the failure; null if unknown.")
    started_ms: float = Field(description="When the correction began.")
    ended_ms: float = Field(description="When the instance was stable again.")
    seconds: float = Field(description="How long the correction took.")


class ReconciliationList(BaseModel):
    """Corrections, the newest first."""

    reconciliations: list[Reconciliation] = Field(description="The corrections.")
    next: int | None = Field(description="What to give as `after` for older ones; null if there are no more.")


class WhatIfStep(BaseModel):
    """What would have been shown from an X on, up to the next step's."""

    x_ms: float = Field(description="X in milliseconds.")
    failures: int = Field(description="Failures of which clients would have been given tentative rows.")
    rows_tentative_at_most: int = Field(description="How many of these, at most.")


class Budget(BaseModel):
    """How much of what may go wrong within the window is left."""

    share: float | None = Field(description="The share that was as it should be, from 0 to 1; null where there is none yet.")
    budget_left: float = Field(description="1: all, 0: nothing; below 0 it is overspent.")
    burn_1h: float = Field(description="How fast it was spent over the last hour: 1 spends all of it within the window.")
    burn_6h: float = Field(description="The same, over the last six hours.")


class ResultsBudget(Budget):
    """New rows."""

    on_time: int = Field(description="Those that came within X of their ingest.")
    late: int = Field(description="The others.")


class TimeBudget(Budget):
    """Time, of which the budget is a part of the whole window."""

    tentative_ms: float = Field(description="For how long clients held tentative rows.")


class SloAnswer(BaseModel):
    """How a query keeps its objective."""

    query: str = Field(description="The query.")
    objective: float = Field(description="The objective, in percent.", examples=[99.9])
    window_ms: float = Field(description="Over how long, up to now.")
    since_ms: float = Field(description="From when on it is known what clients were given, within the window.")
    results: ResultsBudget = Field(description="Of new rows, how many came within X.")
    time: TimeBudget = Field(description="For how much of the time clients held nothing tentative.")
    as_of_ms: float = Field(description="When this was known, in milliseconds since 1970.")
    stale: bool = Field(description="Whether the installation is silent, so that this may be out of date.")


class WhatIf(BaseModel):
    """What each X would have shown of recorded failures: a bound, not a forecast. An X may have shown less."""

    query: str = Field(description="The query.")
    x_ms: float = Field(description="X now.")
    since_ms: float = Field(description="Failures that were detected since then count.")
    is_bound: bool = Field(default=True, description="true: the rows are upper bounds.")
    steps: list[WhatIfStep] = Field(description="By rising X, from 0. The last one would have shown nothing.")


class FailureList(BaseModel):
    """Failures, the newest first."""

    failures: list[FailureSummary] = Field(description="The failures.")
    next: str | None = Field(description="What to give as `after` for older ones; null if there are no more.")


class Progress(BaseModel):
    """How far a job is."""

    done: int = Field(description="Runs that are done; of a job over recorded input, its seconds.")
    total: int | None = Field(description="All of them; null before it has begun.")


class JobProblem(BaseModel):
    """Why a job failed."""

    field: str = Field(description="What was wrong.")
    value: Any = Field(description="Its value.")
    problem: str = Field(description="What was wrong with it.")
    fix: str = Field(description="What to do.")


class JobSummary(BaseModel):
    """A job. Times are milliseconds since 1970."""

    id: str = Field(description="Its id.", examples=["which-mode"])
    query: str = Field(description="The query.")
    state: str = Field(description="`queued`, `running`, `done`, `failed` or `cancelled`.")
    progress: Progress = Field(description="How far it is.")
    by: str = Field(description="Who asked for it: a token, by its name and roles.")
    created_ms: float = Field(description="When that was.")
    started_ms: float | None = Field(description="When it began.")
    ended_ms: float | None = Field(description="When it was over.")
    problem: JobProblem | None = Field(description="With `failed`: why.")


class ComparedRun(_More):
    """A run: the figures of `boreal compare`. Times are of the run's clock."""

    x_ms: float = Field(description="X.")
    mode: str = Field(description="The reconciliation mode.")
    policy: str = Field(description="The policy, FAILURE/STABILIZATION.")
    is_stable: bool = Field(description="Whether all replicas were stable in the end, and had processed all input.")
    delay_new_ms_max: float | None = Field(description="The longest delay of a new row.")
    violations: int = Field(description="New rows that came later than X.")
    n_tentative: int = Field(description="Tentative rows that the client was given.")
    n_undone: int = Field(description="Tentative rows that were revoked.")
    consistent_after_seconds: float | None = Field(
        description="From the end of the last fault until all was stable again; null without faults, or if one did not heal."
    )


class ComparisonResult(BaseModel):
    """What came of a comparison."""

    query: str = Field(description="The query.")
    faults: list[str] = Field(description="The faults.")
    table: list[ComparedRun] = Field(description="A row for each run.")
    notes: list[str] = Field(description="Which combinations were omitted, and why.")


class ComparisonAnswer(JobSummary):
    """A comparison in full."""

    request: dict[str, Any] = Field(description="What was asked for.")
    result: ComparisonResult | None = Field(description="What came of it; null before it is done.")


class ComparisonList(BaseModel):
    """Comparisons, the newest first."""

    comparisons: list[JobSummary] = Field(description="The comparisons.")
    next: str | None = Field(description="What to give as `after` for more; null if there are no more.")


class VerificationResult(BaseModel):
    """What came of a verification."""

    query: str = Field(description="The query.")
    faults: list[str] = Field(description="The faults.")
    holds: bool = Field(description="Whether all is as it must be: `same`, no `replay_differences`, and `is_stable`.")
    same: bool = Field(description="Whether the stable results are the same with the faults and without them.")
    rows: int = Field(description="Stable rows of the run without faults.")
    first_difference: dict[str, Any] | None = Field(
        description="The first `line` that differs: `without_faults`, `with_faults`; of a query that runs, `given`, `computed` "
        "if rows may be shown. Null if all are the same."
    )
    replay_differences: dict[str, Any] = Field(
        description="By run: where the records that clients saw do not come to its stable results. Empty if they do."
    )
    is_stable: bool = Field(description="Whether all replicas of all runs were stable in the end.")
    since: str | None = Field(default=None, description="Of a query that runs: the first event time that was compared.")
    until: str | None = Field(default=None, description="Of a query that runs: the event time before which rows were compared.")
    notes: list[str] = Field(default=[], description="Of a query that runs: what a reader must know.")


class VerificationAnswer(JobSummary):
    """A verification in full."""

    request: dict[str, Any] = Field(description="What was asked for.")
    result: VerificationResult | None = Field(description="What came of it; null before it is done.")


class VerificationList(BaseModel):
    """Verifications, the newest first."""

    verifications: list[JobSummary] = Field(description="The verifications.")
    next: str | None = Field(description="What to give as `after` for more; null if there are no more.")


class BackfillResult(BaseModel):
    """What came of a backfill."""

    query: str = Field(description="The query.")
    since: str = Field(description="The first event time of the results.")
    until: str = Field(description="The event time before which the results are.")
    rows: int = Field(description="How many there are.")
    bytes: int = Field(description="How large they are together.")
    notes: list[str] = Field(description="What a reader must know.")


class BackfillAnswer(JobSummary):
    """A backfill in full."""

    request: dict[str, Any] = Field(description="What was asked for.")
    result: BackfillResult | None = Field(description="What came of it; null before it is done.")


class BackfillList(BaseModel):
    """Backfills, the newest first."""

    backfills: list[JobSummary] = Field(description="The backfills.")
    next: str | None = Field(description="What to give as `after` for more; null if there are no more.")


class AppendAnswer(BaseModel):
    """What became of rows."""

    accepted: int = Field(description="Rows that will survive a crash.")
    refused: int = Field(description="Rows that are no tuples of the stream.")
    reasons: list[dict[str, Any]] = Field(default=[], description="Why, for the first hundred: `row`, from 0, and `reason`.")


class DeadLetterAnswer(BaseModel):
    """A record that was refused."""

    id: str = Field(description="Its id.")
    at_ms: float = Field(description="When it was refused, in milliseconds since 1970.")
    stream: str = Field(description="The stream.")
    topic: str = Field(description="The topic that it came from.")
    partition: int = Field(description="Its partition there.")
    offset: int = Field(description="Its offset there; -1 if it never came to be there.")
    reason: str | None = Field(description="Why it was refused; null where the installation shows no rows: it may quote some.")
    record: str | None = Field(description="The record; null where the installation shows no rows.")
    replayed: bool = Field(description="Whether it was put back.")

    @staticmethod
    def of(kept: KeptLetter, show_rows: bool) -> DeadLetterAnswer:
        letter = kept.letter
        return DeadLetterAnswer(
            id=kept.id,
            at_ms=kept.at_ms,
            stream=letter.source,
            topic=letter.topic,
            partition=letter.partition,
            offset=letter.offset,
            reason=letter.reason if show_rows else None,
            record=letter.record if show_rows else None,
            replayed=kept.replayed,
        )


class DeadLetterList(BaseModel):
    """Records that were refused, the newest first."""

    dead_letters: list[DeadLetterAnswer] = Field(description="The records.")
    looked_back_to_ms: float | None = Field(
        description="Where there are too many to look at: older ones than this were not looked at, in milliseconds since 1970."
    )


class DeadLetterReplayRequest(BaseModel):
    """Which dead letters are to be put back; `{}`: all."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"stream": "jfk", "reason": "ahead of the clock"}})

    stream: str | None = Field(default=None, description="Only of this stream.", max_length=200)
    reason: str = Field(default="", description="Only those whose reason holds this text.", max_length=200)
    since_ms: float | None = Field(
        default=None, description="Only those since then, in milliseconds since 1970.", ge=0, le=1e15
    )
    limit: int = Field(default=1_000, description="At most so many now, the oldest first.", ge=1, le=10_000)


class DeadLettersLeft(BaseModel):
    """Dead letters that were meant, and left."""

    reason: str = Field(description="Why.")
    letters: int = Field(description="How many.")


class DeadLetterReplay(BaseModel):
    """What became of dead letters that were meant."""

    query: str = Field(description="The query.")
    replayed: int = Field(description="How many were put back now.")
    left: list[DeadLettersLeft] = Field(description="Those that were not.")


def milliseconds(duration_us: int) -> float:
    return duration_us / 1_000


def written(duration_us: int | None) -> str | None:
    """A duration as the query file writes it."""
    return None if duration_us is None else format_duration(duration_us)
