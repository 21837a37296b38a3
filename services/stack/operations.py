"""The operations of users on the queries of an installation, wherever it runs: apply, change, pause, delete, inspect."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from kafka.errors import KafkaError, KafkaTimeoutError

from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import Query, did_you_mean, load_query
from deployment.layout import Layout, internal_topics, make_layout
from deployment.liveness import Liveness
from deployment.operator_hosts import expected_threshold_us, facts_of_job
from deployment.query_record import QueryRecord, refuse_other_structure
from deployment.skew import clock_warnings
from deployment.status_fields import SOURCE_OF_STACK
from logs.checkpoints import StoreUnavailableError
from services.kafka.clusters import Cluster, make_clusters
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.statuses import Status, Statuses
from services.kafka.topics import (
    TopicSpec,
    control_topic,
    dead_letter_topic,
    delete,
    ensure,
    latest_topic,
    out_topic,
    query_topics,
    stable_topic,
    system_topics,
)
from services.stack.children import query_children
from services.stack.state import problems
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis

DEFAULT_ENGINE = "spark"
"""The engine of a query that names none."""

SETTABLE = ("delay_threshold", "reconcile", "policy", "replicas", "engine", "tuning", "latest", "slo")
"""The fields of a running query that `set` changes. The structure and the name stay."""

Check = Callable[[QueryRecord | None], None]
"""Called with the newest record of a query, or None, where no other change can come before this one; an error refuses it."""

COMMAND_LINE = "cli"
"""Who makes a change, as its event says, where nothing else is said."""

SILENT_AFTER_S = 5.0
"""A process whose last status is older than this is not running; statuses come every second."""

GONE_AFTER_S = 30.0
"""A supervisor whose last status is older than this is dead, and so are its processes, which the kernel ends with it. A slow
one still has its processes, and their data must not be deleted."""

REACHED_WITHIN_S = 10.0

_LOOK_S = 0.1

Item = TypeVar("Item")


class OutOfReach(UserError):
    """A server does not answer. What was asked for may have been done nevertheless."""


def accept_any(record: QueryRecord | None) -> None:
    """A check that refuses nothing."""


class Operations:
    """The operations on one installation. UserError if an operation is not possible, or a site is out of reach. `close` ends
    its clients. `by` says who makes a change, for its event."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.clusters = make_clusters(settings, "boreal")
        self.home = self.clusters[settings.home]
        self._registry = QueryRegistry(self.home)
        self._statuses: Statuses | None = None

    def close(self) -> None:
        if self._statuses is not None:
            self._statuses.close()

    # The queries

    def queries(self) -> dict[str, QueryRecord]:
        """All queries, by name. A read that times out, as on a busy machine, is retried for a while."""
        deadline = time.monotonic() + REACHED_WITHIN_S
        with reaching(self.settings):
            while True:
                try:
                    return self._registry.load()
                except KafkaTimeoutError:
                    if time.monotonic() > deadline:
                        raise

    def query(self, name: str) -> QueryRecord:
        return _known(name, self.queries())

    def apply(self, query: Query, check: Check = accept_any, by: str = COMMAND_LINE) -> QueryRecord:
        """Create a query's topics, and write its record for the supervisors. To apply the same query again changes nothing."""
        query = self.check(query)

        def decide(old: QueryRecord | None) -> QueryRecord:
            check(old)
            if old is not None:
                refuse_other_structure(old.query, query)
            return _follow(old, QueryRecord(query.name, query.dump(), 1))

        # Before anything is made for it, and then again when its turn to write has come.
        decide(self.queries().get(query.name))
        self._create_topics(query)
        return self._update(query.name, decide, by)

    def check(self, query: Query) -> Query:
        """The query as `apply` would run it. UserError if it would not."""
        query = with_default_engine(query)
        self.layout(query)
        input_topics(query)
        _refuse_short_threshold(query)
        return query

    def set(self, name: str, changes: Mapping[str, object], check: Check = accept_any, by: str = COMMAND_LINE) -> QueryRecord:
        """Change some fields of SETTABLE, all or none; the values are written as in the query file. Of `policy` and `tuning` as
        mappings, the parts that are named change; None stands for the default."""
        for key in changes:
            if key not in SETTABLE:
                raise UserError(key, changes[key], "cannot be set while the query runs", did_you_mean(key, SETTABLE))

        def decide(old: QueryRecord | None) -> QueryRecord:
            record = self._checked(name, old, check)
            return _follow(record, replace(record, spec=self.check(_merged(record, changes)).dump()))

        known = self.query(name)
        if known.spec != (wanted := decide(known)).spec:
            self._create_topics(wanted.query)
        return self._update(name, decide, by)

    def pause(self, name: str, paused: bool, check: Check = accept_any, by: str = COMMAND_LINE) -> QueryRecord:
        """Stop a query's processes, or let them continue where they stopped. The sources' topics keep the rows of the pause."""

        def decide(old: QueryRecord | None) -> QueryRecord:
            record = self._checked(name, old, check)
            return _follow(record, replace(record, paused=paused))

        return self._update(name, decide, by)

    def restart(self, name: str, check: Check = accept_any, by: str = COMMAND_LINE) -> QueryRecord:
        """Restart the replicas and egresses of a query, one after the other."""

        def decide(old: QueryRecord | None) -> QueryRecord:
            record = self._checked(name, old, check)
            return _follow(record, replace(record, restarts=record.restarts + 1))

        return self._update(name, decide, by)

    def delete(
        self, name: str, on_wait: Callable[[Collection[str]], None], check: Check = accept_any, by: str = COMMAND_LINE
    ) -> None:
        """Remove a query with its logs, checkpoints and outputs. Its input topics stay.

        on_wait is called repeatedly with the processes that have not ended yet. If the call is interrupted, the query is
        paused, and can be deleted again.
        """
        # 1. Its processes end. 2. Their data is deleted. 3. The record is deleted last: until then it shows what is left to do.
        old = self.pause(name, True, check, by)
        self.await_ended(name, on_wait)
        with reaching(self.settings):
            for site, cluster in self.clusters.items():
                with closing(cluster.make_admin()) as admin:
                    topics = self._topics_of(old, site, admin.list_topics())
                delete(cluster, topics)
        with _reaching_redis(), closing(connect_redis(self.settings.redis)) as client:
            RedisCheckpointStore(client, prefix=name).forget()
        with reaching(self.settings):
            self._registry.delete(name, by)

    def clusters_of(self, query: Query) -> dict[str, Cluster]:
        """The cluster that holds each stream's topic, by stream."""
        layout = self.layout(query)
        return {stream: self.clusters[layout.site_of_stream(stream)] for stream in query.streams}

    def layout(self, query: Query) -> Layout:
        return make_layout(query, self.settings.site_names)

    def _update(self, name: str, decide: Callable[[QueryRecord | None], QueryRecord], by: str) -> QueryRecord:
        with reaching(self.settings):
            changed = self._registry.update(name, decide, by)
        assert changed is not None, "it is only deleted by `delete`"
        return changed

    def _checked(self, name: str, record: QueryRecord | None, check: Check) -> QueryRecord:
        """The record, where it exists and the check accepts it."""
        check(record)
        return _known(name, {name: record} if record is not None else self.queries())

    def _create_topics(self, query: Query) -> None:
        """Create the topics of a query that do not exist."""
        layout, inputs = self.layout(query), input_topics(query)
        with reaching(self.settings):
            ensure(self.home, system_topics())
            for site in self.clusters:
                self._create_inputs(site, [topic for stream, topic in inputs.items() if layout.site_of_stream(stream) == site])
            for site, specs in query_topics(layout).items():
                ensure(self.clusters[site], specs)

    def _create_inputs(self, site: str, names: list[str]) -> None:
        """Create the input topics that do not exist; those that exist are not changed."""
        with closing(self.clusters[site].make_admin()) as admin:
            known = set(admin.list_topics())
        ensure(self.clusters[site], [TopicSpec(name, 1) for name in names if name not in known])

    def _topics_of(self, record: QueryRecord, site: str, topics: Iterable[str]) -> list[str]:
        """The topics of a site that were made for a query, even if this version cannot run its record."""
        query, streams = record.name, record.spec["streams"]
        clients = {
            control_topic(query),
            out_topic(query, site, self.settings.site_names),
            stable_topic(query),
            dead_letter_topic(query),
            latest_topic(query),
        }
        internal = internal_topics(query, (*streams, *record.spec["operators"]))
        inputs = {stream.get("topic") for stream in streams.values()}
        return [topic for topic in topics if topic not in inputs and (topic in clients or internal.fullmatch(topic))]

    # Statuses

    def statuses(self, within_s: float = SILENT_AFTER_S) -> dict[str, Status]:
        """The last status of each process, by name, without those older than `within_s` seconds."""
        statuses = self.follow_statuses()
        if not statuses.is_current.wait(REACHED_WITHIN_S):
            with reaching(self.settings):
                raise KafkaTimeoutError(f"no status could be read within {REACHED_WITHIN_S:.0f} s")
        oldest = (time.time() - within_s) * 1000
        return {name: status for name, status in statuses.newest().items() if status["at_ms"] >= oldest}

    def follow_statuses(self) -> Statuses:
        """All statuses, kept current until `close`."""
        if self._statuses is None:
            self._statuses = Statuses(self.home)
        return self._statuses

    def liveness(self, record: QueryRecord) -> Liveness:
        statuses = self.statuses()
        supervisors = [status for name, status in statuses.items() if name.partition(".")[0] == "supervisor"]
        known = [state for status in supervisors if (state := (status.get("queries") or {}).get(record.name)) is not None]
        # A supervisor may not have read the record yet: its problems with an older one do not count.
        taken = [state for state in known if state["revision"] >= record.revision]
        problem = next((state["problem"] for state in taken if state["problem"]), None)
        sites = self.settings.site_names
        expected = [child.name for child in query_children(record, sites, sites)]
        processes = {entry["name"]: entry["state"] for status in supervisors for entry in status["processes"]}
        waits_for = [name for name in expected if processes.get(name) != "running"]
        is_ready = bool(expected and known) and not waits_for and taken == known and all(state["ready"] for state in known)
        entries = [entry for name in expected for entry in statuses.get(name, {}).get("instances", ())]
        states = {f"{entry['fragment']}.{entry['replica']}.{entry['shard']}": str(entry["state"]) for entry in entries}
        missing = sorted({name for entry in entries for name in entry["missing"]})
        least_x_ms = max((float(entry["least_x_ms"]) for entry in entries), default=0.0)
        return Liveness(is_ready, tuple(waits_for), states, tuple(missing), problem, least_x_ms)

    def await_ended(self, name: str, on_wait: Callable[[Collection[str]], None]) -> None:
        """Wait until no process of the query runs. on_wait: see `delete`."""
        while running := self.processes_of(name):
            on_wait(running)
            time.sleep(_LOOK_S)

    def ended_streams(self, query: str) -> list[str]:
        """The streams of a query that have ended: their last record marked the end."""
        statuses = self.statuses()
        ended = [status for name, status in statuses.items() if name.startswith(f"source.{query}.")]
        return sorted(status["stream"] for status in ended if status["last_boundary"] == "end")

    def details(self) -> dict[str, Any]:
        """What `boreal status` shows besides the processes; empty parts are left out: the progress and refusals of sources, by
        QUERY.STREAM; the batches of Spark jobs, by the job's name; and clocks whose skew uses up too much of X."""
        statuses = dict(sorted(self.statuses().items()))
        by_kind = {kind: {n: s for n, s in statuses.items() if n.partition(".")[0] == kind} for kind in ("source", "spark")}
        sources = {
            name.removeprefix("source."): {field: status.get(field) for field in SOURCE_OF_STACK}
            for name, status in by_kind["source"].items()
        }
        jobs = {name: facts_of_job(status) for name, status in by_kind["spark"].items()}
        details = {"sources": sources, "jobs": jobs, "clock": clock_warnings(statuses)}
        return {name: facts for name, facts in details.items() if facts}

    def status(self) -> dict[str, Any]:
        """As `boreal status --json` prints it for an installation elsewhere, from the statuses of its supervisors."""
        queries = self.queries()
        supervisors = [status for name, status in self.statuses().items() if name.partition(".")[0] == "supervisor"]
        fields = ("name", "kind", "query", "pid", "state", "restarts")
        processes = [{field: entry[field] for field in fields} for status in supervisors for entry in status["processes"]]
        return {
            "ready": bool(supervisors) and all(status["ready"] for status in supervisors),
            "kafka": {site: kafka.bootstrap for site, kafka in self.settings.sites.items()},
            "redis": self.settings.redis.address,
            "api": None,
            "token": None,
            "processes": sorted(processes, key=lambda entry: entry["name"]),
            "queries": list(queries),
            "problems": {name: text for status in supervisors for name, text in problems(status).items()},
            **self.details(),
        }

    def processes_of(self, query: str) -> list[str]:
        """The names of a query's processes that some supervisor still runs."""
        return sorted(
            process["name"]
            for name, status in self.statuses(GONE_AFTER_S).items()
            if name.partition(".")[0] == "supervisor"
            for process in status["processes"]
            if process["query"] == query
        )


def _known(name: str, records: Mapping[str, QueryRecord]) -> QueryRecord:
    if name not in records:
        fix = did_you_mean(name, records) if records else "apply one first: boreal query apply FILE"
        raise UserError("NAME", name, "there is no such query", fix)
    return records[name]


def _follow(old: QueryRecord | None, wanted: QueryRecord) -> QueryRecord:
    """The record that is wanted, with the revision that follows; the old one if they are the same."""
    if old is None:
        return wanted
    wanted = replace(wanted, revision=old.revision, restarts=max(old.restarts, wanted.restarts))
    return old if wanted == old else replace(wanted, revision=old.revision + 1)


def _merged(record: QueryRecord, changes: Mapping[str, object]) -> Query:
    """The query with these changes; a mapping replaces the named parts of a field that is one."""
    spec = dict(record.spec)
    for key, value in changes.items():
        before = spec.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            value = {part: each for part, each in {**before, **value}.items() if each is not None}
        spec[key] = value
    return load_query({key: value for key, value in spec.items() if value is not None})


def with_default_engine(query: Query) -> Query:
    """The query with the default engine if it names none."""
    return query if query.engine is not None else query.changed(engine=DEFAULT_ENGINE)


def with_engine(query: Query, engine: str) -> Query:
    """The query with all its fragments on this engine."""
    file = query.dump()
    fragments = file.get("fragments") or {}
    plain = {name: {key: value for key, value in part.items() if key != "engine"} for name, part in fragments.items()}
    return load_query({**file, "engine": engine, **({"fragments": plain} if plain else {})})


def input_topics(query: Query) -> dict[str, str]:
    """The topics of the streams that reach the output, by stream. UserError if a stream names none."""
    found = {}
    for stream in sorted({edge.operator for edge in plan(query).sources}):
        topic = query.streams[stream].topic
        if topic is None:
            raise UserError(f"streams.{stream}.topic", None, "is missing: it names the topic to read", f"add topic: {stream}")
        found[stream] = topic
    return found


def _refuse_short_threshold(query: Query) -> None:
    """UserError for an X that Spark cannot meet: every result would be tentative first."""
    least = expected_threshold_us(plan(query))
    if query.delay_threshold < least:
        raise UserError(
            "delay_threshold",
            format_duration(query.delay_threshold),
            "is too short for operators in Spark, which works in batches",
            f"write at least {format_duration(-(-least // 10_000) * 10_000)}, or engine: native, which gives the same results",
        )


@contextmanager
def reaching(settings: ServiceSettings) -> Iterator[None]:
    """Turn errors of Kafka clients into a UserError that names the sites."""
    try:
        yield
    except (KafkaError, OSError) as error:
        addresses = ", ".join(f"{site} at {kafka.bootstrap}" for site, kafka in settings.sites.items())
        problem = f"a request to Kafka failed ({addresses}): {error}"
        raise OutOfReach("BOREAL_SITES", None, problem, "check that every site is up and can be reached") from None


def reached(settings: ServiceSettings, items: Iterable[Item]) -> Iterator[Item]:
    """As `reaching`, for items that are fetched one after another; errors of their consumer are not changed."""
    with reaching(settings):
        yield from items


@contextmanager
def _reaching_redis() -> Iterator[None]:
    try:
        yield
    except StoreUnavailableError as error:
        problem = f"cannot be reached, and still holds checkpoints: {error}"
        raise OutOfReach("BOREAL_REDIS__URL", None, problem, "check that it is up, and delete again") from None
