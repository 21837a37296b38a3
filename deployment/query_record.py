"""The current version of a query: the record of boreal.queries with key NAME; no value after it is deleted.

    {"v": 1, "name": NAME, "spec": {...}, "revision": 3, "paused": false}

`restarts` is there where it is not 0. A query that has evolved, or evolves, has these fields too (`deployment.evolution`):

    "version": 2             the version in charge: clients are given its results
    "versions": 2            the highest number that a version has had
    "since": US              the event time from which on its results are given
    "beside": {...}          the version that runs beside it, unread
    "takeover": {...}        the change of the version in charge that is under way
    "outputs": {"1": ...}    the columns of results, by version: of all that clients were or may be given results of
    "shared": {...}          whose sources' logs the version in charge reads, if it has no sources (`deployment.shared_sources`)

A query that reads what other queries read too has `joined`: which sources it shares with them (`deployment.joined_sources`).
One that is being deleted has `leaves`: true.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from boreal.model.durations import format_duration
from boreal.model.schema import Schema
from boreal.query.spec import Query, load_query

VERSION = 1


@dataclass(frozen=True, slots=True)
class SharedSources:
    """Which sources write the logs that a version reads, where these are the sources of a version before it."""

    version: int
    """The number of the version that began them: they, their logs and their control topic have its name for good."""
    start: str
    """From where they read the topics of their streams: see `Beside.start`."""
    first_ids: Mapping[str, int] | None = None
    """For each 'stream/partition', the id of the first row that the version reads. None: it is not chosen yet."""
    reach: Mapping[str, int] = field(default_factory=dict)
    """For each stream, by the name of its edge, the event time (us) from which on these logs have all its rows from there."""
    states: Mapping[str, tuple[str, int]] | None = None
    """For each 'fragment/shard', the checkpoint with which the version begins: its owner and its number, among those of this
    version. None: it begins without one. Empty until `first_ids` is chosen."""


@dataclass(frozen=True, slots=True)
class JoinedSources:
    """Which sources write the logs of a version's streams, where these are not its own (`deployment.joined_sources`)."""

    of: Mapping[str, str]
    """By stream, the name of the sources: that of the version, mostly of another query, that began them."""
    claimed: bool = False
    """Whether their logs are known to hold all rows, and to keep them for this version; until then it does not run."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A version that runs beside the one in charge. Nobody reads its results."""

    version: int
    """Its number."""
    spec: dict[str, Any]
    """Its specification, as returned by `Query.dump`."""
    start: str
    """From where it reads the topics of its streams: 'earliest', or the time from which on records were written to them; or
    'state': it reads the logs of another version's sources, from where that still needs them."""
    takes_over: bool = True
    """Whether it is to be in charge once it has caught up."""
    since: int | None = None
    """The event time (us) from which on its results were given, when it was in charge; None for the first version, and for one
    that never was."""
    leaves: bool = False
    """Whether it is being deleted: its processes end, then its logs go."""
    shared: SharedSources | None = None
    """The sources of an earlier version that it reads; None if it has its own."""
    joined: JoinedSources | None = None
    """The sources of other queries that it reads; None if it reads none."""

    @property
    def is_placed(self) -> bool:
        """Whether it is known where it begins to read, so that its processes can run."""
        return self.shared is None or self.shared.first_ids is not None


@dataclass(frozen=True, slots=True)
class Takeover:
    """The version beside takes over from the one in charge."""

    to: int
    """The number of the version that takes over."""
    at: int
    """Event time (us): clients get results before it from the version in charge, the others from the one that takes over."""
    agreed: bool = False
    """Whether the egresses of all sites end at that time, so that each may go on with the other version when it is there."""


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The current version of a query."""

    name: str
    """Name of the query."""
    spec: dict[str, Any]
    """The specification, as returned by `Query.dump`."""
    revision: int
    """Rises with every change."""
    paused: bool = False
    """Whether the query's processes are stopped."""
    restarts: int = 0
    """How often its replicas were asked to restart."""
    version: int = 1
    """The number of the version in charge, whose specification `spec` is."""
    versions: int = 1
    """The highest number that a version of the query has had."""
    since: int | None = None
    """The event time (us) from which on the results of the version in charge are given; None for the first version."""
    start: str = "earliest"
    """From where the version in charge reads the topics of its streams: see `Beside.start`."""
    beside: Beside | None = None
    """The version that runs beside it."""
    takeover: Takeover | None = None
    """The change of the version in charge that is under way."""
    outputs: Mapping[int, Schema] = field(default_factory=dict)
    """The columns of results, by version: of the versions that run, and of deleted ones that have been in charge, since topics
    of clients may still hold rows of them. Empty for a query that has never evolved."""
    shared: SharedSources | None = None
    """The sources of an earlier version that the version in charge reads; None if it has its own."""
    of: str = ""
    """Of the record of a single version (`runs`): the query's name. '' for the record of the query."""
    joined: JoinedSources | None = None
    """The sources of other queries that the version in charge reads; None if it reads none."""
    leaves: bool = False
    """Whether the query is being deleted: its processes end, then its topics go. It has no use for dead letters any more."""

    @property
    def query(self) -> Query:
        """The parsed specification. UserError if it is not valid."""
        return load_query(self.spec)

    @property
    def public(self) -> str:
        """The query's name, which names the topics that clients read."""
        return self.of or self.name

    @property
    def inner(self) -> str:
        """The name of the version in charge, which names its logs, processes and checkpoints."""
        return self.name if self.of else inner_name(self.name, self.version)

    @property
    def is_placed(self) -> bool:
        """Whether it is known where the version in charge begins to read; see `Beside.is_placed`."""
        is_known = self.shared is None or self.shared.first_ids is not None
        return is_known and (self.joined is None or self.joined.claimed)

    @property
    def sources(self) -> str:
        """The name of the version in charge, or of the earlier one whose sources it reads: it names sources and their logs, but
        for streams that it has joined."""
        return self.inner if self.shared is None else inner_name(self.public, self.shared.version)

    def sources_of(self, stream: str) -> str:
        """What names the source of a stream and its logs."""
        return self.sources if self.joined is None else self.joined.of.get(stream, self.sources)

    def source_role(self, stream: str) -> str:
        """The name of the role that is a stream's source."""
        return f"source.{self.sources_of(stream)}.{stream}"

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The names of its streams; none if this version of boreal cannot read its specification."""
        return tuple(self.spec.get("streams", ()))

    @property
    def named_sources(self) -> frozenset[str]:
        """The names of all sources that the version in charge reads."""
        return frozenset(self.sources_of(stream) for stream in self.stream_names)

    def runs(self) -> list[QueryRecord]:
        """A record for each version that runs, the one in charge first. Its name is the version's: see `inner_name`."""
        found = [self.run(self.version)]
        if self.beside is not None and not self.beside.leaves:
            found.append(self.run(self.beside.version))
        return found

    def version_named(self, inner: str) -> QueryRecord | None:
        """The version whose logs and processes have this name; None if none runs."""
        return next((run for run in self.runs() if run.name == inner), None)

    def run(self, version: int) -> QueryRecord:
        """The record of one version. KeyError if the query has no such version now."""
        if version == self.version:
            return self._single(version, self.spec, self.start, self.shared, self.joined)
        if self.beside is None or version != self.beside.version:
            raise KeyError(version)
        return self._single(version, self.beside.spec, self.beside.start, self.beside.shared, self.beside.joined)

    def _single(
        self,
        version: int,
        spec: dict[str, Any],
        start: str,
        shared: SharedSources | None,
        joined: JoinedSources | None,
    ) -> QueryRecord:
        name, changes = inner_name(self.name, version), (self.revision, self.paused, self.restarts)
        return QueryRecord(
            name, spec, *changes, version, start=start, shared=shared, of=self.name, joined=joined, leaves=self.leaves
        )

    def fields(self) -> dict[str, Any]:
        """As JSON has it; `query_record` reads it."""
        return {
            "v": VERSION,
            "name": self.name,
            "spec": self.spec,
            "revision": self.revision,
            "paused": self.paused,
            **({"restarts": self.restarts} if self.restarts else {}),
            **({"version": self.version} if self.version != 1 else {}),
            **({"versions": self.versions} if self.versions != 1 else {}),
            **({"since": self.since} if self.since is not None else {}),
            **({"start": self.start} if self.start != "earliest" else {}),
            **({"beside": _beside_fields(self.beside)} if self.beside else {}),
            **({"takeover": asdict(self.takeover)} if self.takeover else {}),
            **({"outputs": {str(of): _output_fields(schema) for of, schema in self.outputs.items()}} if self.outputs else {}),
            **({"shared": asdict(self.shared)} if self.shared else {}),
            **({"of": self.of} if self.of else {}),
            **({"joined": asdict(self.joined)} if self.joined else {}),
            **({"leaves": True} if self.leaves else {}),
        }

    def to_json(self) -> bytes:
        return json.dumps(self.fields(), separators=(",", ":")).encode()


def inner_name(name: str, version: int) -> str:
    """The name of a version's logs, processes and checkpoints. No query has it: names of queries have no hyphen."""
    return name if version == 1 else f"{name}-{version}"


def public_name(inner: str) -> str:
    """The name of the query that a version belongs to."""
    return inner.partition("-")[0]


def read_query_record(key: bytes, value: bytes | None) -> tuple[str, QueryRecord | None]:
    """A query's name and its record; None if it is deleted. KeyError, TypeError or ValueError if the record cannot be read."""
    name = key.decode()
    if value is None:
        return name, None
    return name, replace(query_record(json.loads(value)), name=name)


def query_record(fields: Mapping[str, Any]) -> QueryRecord:
    """A record from its fields. Errors as in `read_query_record`."""
    if fields["v"] != VERSION:
        raise ValueError(f"unknown version of query record: {fields['v']}; this program reads version {VERSION}")
    return QueryRecord(
        fields["name"],
        dict(fields["spec"]),
        int(fields["revision"]),
        bool(fields["paused"]),
        int(fields.get("restarts", 0)),
        int(fields.get("version", 1)),
        int(fields.get("versions", 1)),
        fields.get("since"),
        str(fields.get("start", "earliest")),
        _beside(fields["beside"]) if "beside" in fields else None,
        Takeover(**fields["takeover"]) if "takeover" in fields else None,
        {int(of): _output(found) for of, found in fields.get("outputs", {}).items()},
        _shared(fields.get("shared")),
        str(fields.get("of", "")),
        _joined(fields.get("joined")),
        bool(fields.get("leaves", False)),
    )


def _beside_fields(beside: Beside) -> dict[str, Any]:
    return {key: value for key, value in asdict(beside).items() if key not in ("shared", "joined") or value is not None}


def _beside(fields: Mapping[str, Any]) -> Beside:
    return Beside(**{**fields, "shared": _shared(fields.get("shared")), "joined": _joined(fields.get("joined"))})


def _joined(fields: Mapping[str, Any] | None) -> JoinedSources | None:
    return None if fields is None else JoinedSources(dict(fields["of"]), bool(fields["claimed"]))


def _shared(fields: Mapping[str, Any] | None) -> SharedSources | None:
    if fields is None:
        return None
    states = fields.get("states")
    return SharedSources(**{**fields, "states": states and {key: (owner, number) for key, (owner, number) in states.items()}})


def _output_fields(schema: Schema) -> dict[str, Any]:
    return {"windowed": schema.windowed, "columns": {name: kind.value for name, kind in schema.columns}}


def _output(fields: Mapping[str, Any]) -> Schema:
    return Schema.of(dict(fields["columns"]), bool(fields["windowed"]))


def with_bucket(query: Query, old: Query | None) -> Query:
    """The query as its record has it: with its bucket stated. One that is left to the program stays what it was when the query
    was created: replicas that cut the same rows into other buckets would not give tentative results for the same spans (R4), so
    it cannot follow X while they run. old: the query as it runs; None if it is new. UserError if X is too short for the bucket.
    """
    if query.tuning.bucket is not None:
        return query
    bucket = (old or query).intervals.bucket
    return query.changed(tuning={**query.dump()["tuning"], "bucket": format_duration(bucket)})


STRUCTURE = ("streams", "operators", "output", "shards", "fragments", "spark")
"""The fields that determine a query's logs and orders: another version of it has others."""

TAKEN_BY_SOURCES = ("late", "ahead", "idle", "types", "lacking")
"""The fields of a stream that its source alone reads. They say which records become rows, and may change: a batch is judged by
the rules of its announcement, also when it is repeated after a crash."""

TUNING_OF_SOURCES = ("bucket", "boundary_interval", "heartbeat", "history")
"""The fields of a query's tuning that its sources read."""

CHANGED_LIVE = ("delay_threshold", "slo")
"""The fields of a query that running processes apply: they follow boreal.queries themselves."""

CHANGED_IN_TURN = ("reconcile", "policy", "replicas", "engine")
"""The fields of a query that may differ between replicas for a while: they change no stable tuple, and no source's log."""


def without_intake(streams: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What logs and their readers know of streams."""
    return {
        name: {field: value for field, value in stream.items() if field not in TAKEN_BY_SOURCES}
        for name, stream in streams.items()
    }
