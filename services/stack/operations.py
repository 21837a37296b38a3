"""What users do with the queries of an installation, wherever it runs: apply, change, pause, delete; and how they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kafka.errors import KafkaError, KafkaTimeoutError

from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import Query, did_you_mean, load_query
from deployment.layout import Layout, internal_topics, make_layout
from deployment.operator_hosts import expected_threshold_us, facts_of_job
from deployment.query_record import QueryRecord
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
"""Where the operators of a query run that names no engine."""

SETTABLE = ("delay_threshold", "reconcile", "policy")
"""What `set` changes of a query that runs."""

STRUCTURE = ("streams", "operators", "output", "shards", "fragments")
"""What a query's logs are made of: another one of these is another query."""

SILENT_AFTER_S = 5.0
"""A process that has said nothing for so long is not there; it should every second."""

GONE_AFTER_S = 30.0
"""A supervisor that has said nothing for so long is gone, and with it its processes: they are tied to it. One that is only
slow still has them, and beneath them nothing may be deleted."""

REACHED_WITHIN_S = 10.0

_LOOK_S = 0.1

Item = TypeVar("Item")


@dataclass(frozen=True)
class Liveness:
    """How far a query is on its way to run as its record says; one that is paused is not live, and waits for nothing.
    waits_for: what is not ready yet; states: of its instances, by name; missing: inputs that are not there; problem: why what
    the record says cannot run; least_x_ms: the smallest X that they could keep by what was measured lately. Answering
    tentatively is being live, too."""

    is_ready: bool
    waits_for: tuple[str, ...]
    states: Mapping[str, str]
    missing: tuple[str, ...]
    problem: str | None = None
    least_x_ms: float = 0.0

    @property
    def is_stable(self) -> bool:
        return self.is_ready and all(state == "STABLE" for state in self.states.values())


class Operations:
    """Of one installation. As a context: its clients are closed at the end. UserError for what cannot be done, and where a
    site is out of reach."""

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
        """All, by name. A look that times out, as on a machine that is busy, is taken again for a while."""
        deadline = time.monotonic() + REACHED_WITHIN_S
        with reaching(self.settings):
            while True:
                try:
                    return self._registry.load()
                except KafkaTimeoutError:
                    if time.monotonic() > deadline:
                        raise

    def query(self, name: str) -> QueryRecord:
        records = self.queries()
        if name not in records:
            fix = did_you_mean(name, records) if records else "apply one first: boreal query apply FILE"
            raise UserError("NAME", name, "there is no such query", fix)
        return records[name]

    def apply(self, query: Query) -> QueryRecord:
        """Make it so: create its topics, and leave its record for the supervisors. The same again changes nothing."""
        query = with_default_engine(query)
        layout = self.layout(query)
        inputs = input_topics(query)
        _refuse_short_threshold(query)
        old = self.queries().get(query.name)
        if old is not None:
            _refuse_other_structure(old.query, query)
        with reaching(self.settings):
            ensure(self.home, system_topics())
            for site in self.clusters:
                self._create_inputs(site, [topic for stream, topic in inputs.items() if layout.site_of_stream(stream) == site])
            for site, specs in query_topics(layout).items():
                ensure(self.clusters[site], specs)
        return self._put(QueryRecord(query.name, query.dump(), 1), old)

    def set(self, name: str, changes: Mapping[str, str]) -> QueryRecord:
        """Change some of SETTABLE, each as the query file would write it."""
        for key in changes:
            if key not in SETTABLE:
                raise UserError(key, changes[key], "cannot be set while the query runs", did_you_mean(key, SETTABLE))
        old = self.query(name)
        changed = old.query.changed(**changes)
        _refuse_short_threshold(changed)
        return self._put(replace(old, spec=changed.dump()), old)

    def pause(self, name: str, paused: bool) -> QueryRecord:
        """Stop its processes, or let them go on where they were. Sources' topics keep what comes meanwhile."""
        old = self.query(name)
        return self._put(replace(old, paused=paused), old)

    def delete(self, name: str, on_wait: Callable[[Collection[str]], None]) -> None:
        """Remove a query with all that it has made: logs, checkpoints, outputs. Its input topics stay.

        on_wait is called, again and again, with the processes that have not ended yet. Where this is interrupted, the query is
        paused, and can be deleted once more.
        """
        old = self.query(name)
        # 1. Its processes have ended. 2. What they wrote goes. 3. So does the record, which until then says what is left to do.
        self._put(replace(old, paused=True), old)
        self.await_ended(name, on_wait)
        with reaching(self.settings):
            for site, cluster in self.clusters.items():
                with closing(cluster.make_admin()) as admin:
                    topics = self._made_by(old, site, admin.list_topics())
                delete(cluster, topics)
        with _reaching_redis(), closing(connect_redis(self.settings.redis)) as client:
            RedisCheckpointStore(client, prefix=name).forget()
        with reaching(self.settings):
            self._registry.delete(name)

    def clusters_of(self, query: Query) -> dict[str, Cluster]:
        """The cluster that has each stream's topic."""
        layout = self.layout(query)
        return {stream: self.clusters[layout.site_of_stream(stream)] for stream in query.streams}

    def layout(self, query: Query) -> Layout:
        return make_layout(query, self.settings.site_names)

    def _put(self, wanted: QueryRecord, old: QueryRecord | None) -> QueryRecord:
        if old is not None:
            wanted = replace(wanted, revision=old.revision)
            if wanted == old:
                return old
            wanted = replace(wanted, revision=old.revision + 1)
        with reaching(self.settings):
            self._registry.put(wanted)
        return wanted

    def _create_inputs(self, site: str, names: list[str]) -> None:
        """Topics of the user's that exist are the user's to shape."""
        with closing(self.clusters[site].make_admin()) as admin:
            known = set(admin.list_topics())
        ensure(self.clusters[site], [TopicSpec(name, 1) for name in names if name not in known])

    def _made_by(self, record: QueryRecord, site: str, topics: Iterable[str]) -> list[str]:
        """The topics of a site that a query has made, whether or not its record can be run here and now."""
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

    # How they are

    def statuses(self, within_s: float = SILENT_AFTER_S) -> dict[str, Status]:
        """What the processes last said, by name, of those that said something lately."""
        if self._statuses is None:
            self._statuses = Statuses(self.home)
            if not self._statuses.is_current.wait(REACHED_WITHIN_S):
                self._statuses.close()
                self._statuses = None
                with reaching(self.settings):
                    raise KafkaTimeoutError(f"no status could be read within {REACHED_WITHIN_S:.0f} s")
        oldest = (time.time() - within_s) * 1000
        return {name: status for name, status in self._statuses.newest().items() if status["at_ms"] >= oldest}

    def liveness(self, record: QueryRecord) -> Liveness:
        statuses = self.statuses()
        supervisors = [status for name, status in statuses.items() if name.partition(".")[0] == "supervisor"]
        known = [state for status in supervisors if (state := (status.get("queries") or {}).get(record.name)) is not None]
        # A supervisor may not have read the record yet: what it says of an older one is no problem of this one.
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
        """Until no process of the query runs; see `delete`."""
        while running := self._processes_of(name):
            on_wait(running)
            time.sleep(_LOOK_S)

    def ended_streams(self, query: str) -> list[str]:
        """Those of a query's streams that will have no more rows: their topics said so, or somebody who fed them."""
        statuses = self.statuses()
        ended = [status for name, status in statuses.items() if name.startswith(f"source.{query}.")]
        return sorted(status["stream"] for status in ended if status["last_boundary"] == "end")

    def details(self) -> dict[str, Any]:
        """What `boreal status` shows beside the processes, where there is anything: how far sources are and what they have
        refused, by QUERY.STREAM; how the batches of Spark jobs go, by the job's name; whose clock eats what X leaves."""
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
        """As `boreal status --json` prints it, of an installation that is elsewhere: as its supervisors say."""
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

    def _processes_of(self, query: str) -> list[str]:
        """Those that some supervisor still runs."""
        return sorted(
            process["name"]
            for name, status in self.statuses(GONE_AFTER_S).items()
            if name.partition(".")[0] == "supervisor"
            for process in status["processes"]
            if process["query"] == query
        )


def with_default_engine(query: Query) -> Query:
    """The query with the engine that it has here if it names none."""
    return query if query.engine is not None else query.changed(engine=DEFAULT_ENGINE)


def with_engine(query: Query, engine: str) -> Query:
    """The query with all its fragments on this engine."""
    file = query.dump()
    fragments = file.get("fragments") or {}
    plain = {name: {key: value for key, value in part.items() if key != "engine"} for name, part in fragments.items()}
    return load_query({**file, "engine": engine, **({"fragments": plain} if plain else {})})


def input_topics(query: Query) -> dict[str, str]:
    """The topics of the streams that reach the output, by stream. UserError where one names none."""
    found = {}
    for stream in sorted({edge.operator for edge in plan(query).sources}):
        topic = query.streams[stream].topic
        if topic is None:
            raise UserError(f"streams.{stream}.topic", None, "is missing: it says what to read", f"add topic: {stream}")
        found[stream] = topic
    return found


def _refuse_short_threshold(query: Query) -> None:
    """One that Spark is not expected to meet: every result would be tentative first."""
    least = expected_threshold_us(plan(query))
    if query.delay_threshold < least:
        raise UserError(
            "delay_threshold",
            format_duration(query.delay_threshold),
            "is too short for operators in Spark, which obeys in batches",
            f"write at least {format_duration(-(-least // 10_000) * 10_000)}, or engine: native, which gives the same results",
        )


def _refuse_other_structure(old: Query, new: Query) -> None:
    before, after = old.dump(), new.dump()
    for key in STRUCTURE:
        if before.get(key) != after.get(key):
            fix = f"delete it first (boreal query delete {new.name}), or give the new one another name"
            raise UserError(key, after.get(key), f"is not what {new.name} runs with, and cannot change while it runs", fix)


@contextmanager
def reaching(settings: ServiceSettings) -> Iterator[None]:
    """What Kafka clients raise where nobody answers, as an error that says who did not."""
    try:
        yield
    except (KafkaError, OSError) as error:
        addresses = ", ".join(f"{site} at {kafka.bootstrap}" for site, kafka in settings.sites.items())
        problem = f"Kafka does not do what is asked of it ({addresses}): {error}"
        raise UserError("BOREAL_SITES", None, problem, "see that every site is up and can be reached") from None


def reached(settings: ServiceSettings, items: Iterable[Item]) -> Iterator[Item]:
    """The same of items that are fetched as they are asked for. What becomes of them is no affair of Kafka's."""
    with reaching(settings):
        yield from items


@contextmanager
def _reaching_redis() -> Iterator[None]:
    try:
        yield
    except StoreUnavailableError as error:
        problem = f"cannot be reached, and still holds checkpoints: {error}"
        raise UserError("BOREAL_REDIS__URL", None, problem, "see that it is up, and delete once more") from None
