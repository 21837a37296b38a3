"""The operations of users on the queries of an installation, wherever it runs: apply, change, pause, delete, inspect."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from kafka.errors import AuthorizationError, KafkaError, KafkaTimeoutError, TransactionalIdAuthorizationFailedError

from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import Query, did_you_mean, load_query
from deployment.change_preview import ChangePreview, preview, refuse_other_structure
from deployment.evolution import EARLIEST, TOPICS_OF_CLIENTS, evolve, let_go, resolve_start, roll_back, settle, shown
from deployment.joined_sources import join, refuse_change_for_others
from deployment.layout import Layout, internal_topics, layout_of, make_layout, source_topics
from deployment.liveness import Liveness
from deployment.operator_hosts import expected_threshold_us, facts_of_job
from deployment.placement_record import WORKER
from deployment.query_changes import changed_query
from deployment.query_record import QueryRecord, public_name, with_bucket
from deployment.shared_sources import STATE
from deployment.skew import clock_warnings
from deployment.status_fields import SOURCE_OF_STACK, answers_of, shown_process, shown_stream, shown_worker
from formats.dead_letter import LetterChoice, LetterPage, ReplayOutcome
from logs.checkpoints import StoreUnavailableError
from services.kafka.clusters import Cluster, make_clusters
from services.kafka.landing import PREFIX, Landing, permissions
from services.kafka.letter_topic import LetterTopic, OvertakenError
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.statuses import Status, Statuses
from services.kafka.topics import (
    QUERIES,
    STATUS,
    TopicFindings,
    TopicSpec,
    control_topic,
    create,
    dead_letter_topic,
    debezium_topic,
    delete,
    examine,
    latest_topic,
    out_topic,
    query_topics,
    records_topic,
    refuse,
    stable_topic,
    system_topics,
)
from services.monitor.reports import QueryReports, Report
from services.source.schema_check import check_registries, check_schemas
from services.stack.children import children_in_charge, query_children
from services.stack.state import problems
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis

DEFAULT_ENGINE = "spark"
"""The engine of a query that names none."""

Check = Callable[[QueryRecord | None], None]
"""Called with the newest record of a query, or None, where no other change can come before this one; an error refuses it."""

OnWait = Callable[[Collection[str]], None]
"""Called repeatedly with the processes that are waited for."""

COMMAND_LINE = "cli"
"""Who makes a change, as its event says, where nothing else is said."""

SILENT_AFTER_S = 5.0
"""A process whose last status is older than this is not running; statuses come every second."""

GONE_AFTER_S = 30.0
"""A supervisor whose last status is older than this is dead, and so are its processes, which the kernel ends with it. A slow
one still has its processes, and their data must not be deleted."""

REACHED_WITHIN_S = 10.0

ANSWERS_WITHIN_S = 1.0
"""After this it is worth asking whether a topic exists at all."""

_LOOK_S = 0.1

Item = TypeVar("Item")


class OutOfReach(UserError):
    """A server does not answer. What was asked for may have been done nevertheless."""


def accept_any(record: QueryRecord | None) -> None:
    """A check that refuses nothing."""


def _say_nothing(processes: Collection[str]) -> None:
    """Waits silently."""


class Operations:
    """The operations on one installation. UserError if an operation is not possible, or a site is out of reach. `close` ends
    its clients. `by` says who makes a change, for its event."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.clusters = make_clusters(settings, "boreal")
        self.home = self.clusters[settings.home]
        self._registry = QueryRegistry(self.home)
        self._statuses: Statuses | None = None
        self._reports: QueryReports | None = None

    def close(self) -> None:
        self._registry.close()
        for follower in (self._statuses, self._reports):
            if follower is not None:
                follower.close()

    # The queries

    def queries(self) -> dict[str, QueryRecord]:
        """All queries, by name; none where no installation has begun yet. A read that times out, as on a busy machine, is
        retried for a while."""
        deadline = time.monotonic() + REACHED_WITHIN_S
        with reaching(self.settings):
            while True:
                try:
                    return self._registry.load()
                except KafkaTimeoutError:
                    if self._is_absent(QUERIES):
                        return {}
                    if time.monotonic() > deadline:
                        raise

    def query(self, name: str) -> QueryRecord:
        return _known(name, self.queries())

    def apply(self, query: Query, check: Check = accept_any, by: str = COMMAND_LINE) -> QueryRecord:
        """Create a query's topics, and write its record for the supervisors. To apply the same query again changes nothing. One
        that names no engine keeps that of the query that runs."""
        check_schemas(query, self.settings)

        def decide(old: QueryRecord | None, records: Mapping[str, QueryRecord]) -> QueryRecord:
            check(old)
            running = old.query if old is not None else None
            wanted = self.check(with_engine_of(query, running))
            if old is None:
                return join(QueryRecord(query.name, with_bucket(wanted, None).dump(), 1), records)
            refuse_other_structure(old, wanted)
            wanted = with_bucket(wanted, running)
            _refuse_while_it_evolves(old, wanted)
            refuse_change_for_others(old, wanted, records)
            return _follow(old, replace(old, spec=wanted.dump(), paused=False, leaves=False))

        # Before anything is made for it, and then again when its turn to write has come.
        records = self.queries()
        wanted = decide(records.get(query.name), records)
        self.prepare([wanted.query], [self.layout_of(wanted)])
        record = self._update_among(query.name, decide, by)
        if record.joined != wanted.joined:
            self.prepare([record.query], [self.layout_of(record)])
        return record

    def evolve(self, query: Query, start: str, check: Check = accept_any, by: str = COMMAND_LINE) -> QueryRecord:
        """Build another version of a running query beside it, which takes over once it has caught up. start: from where it
        reads the topics of its streams: 'earliest', 'latest' or a time; 'state': it reads what the query that runs keeps of
        them. See `deployment.evolution`."""
        name, start = query.name, resolve_start(start, time.time_ns() // 1_000)
        check_schemas(query, self.settings)

        def decide(old: QueryRecord | None) -> QueryRecord:
            record = self._checked(name, old, check)
            running = record.query
            wanted = with_bucket(self.check(with_engine_of(query, running)), running if start == STATE else None)
            return evolve(record, wanted, start)

        wanted = decide(self.queries().get(name))
        self._prepare_version(wanted.runs()[-1])
        return self._update(name, decide, by)

    def roll_back(
        self, name: str, on_wait: OnWait = _say_nothing, check: Check = accept_any, by: str = COMMAND_LINE
    ) -> QueryRecord:
        """Let the version that was in charge before take over again, once it is there; give up one that never was in charge,
        and return when nothing is left of it. on_wait: as for `delete`."""

        def decide(old: QueryRecord | None) -> QueryRecord:
            return roll_back(self._checked(name, old, check))

        record = self._update(name, decide, by)
        return self._let_go(record, on_wait, by) if record.beside is not None and record.beside.leaves else record

    def settle(
        self, name: str, on_wait: OnWait = _say_nothing, check: Check = accept_any, by: str = COMMAND_LINE
    ) -> QueryRecord:
        """Delete the version that was in charge before, with its logs and checkpoints. on_wait: as for `delete`. If
        the call is interrupted, it can be made again."""

        def decide(old: QueryRecord | None) -> QueryRecord:
            return settle(self._checked(name, old, check))

        return self._let_go(self._update(name, decide, by), on_wait, by)

    def _let_go(self, record: QueryRecord, on_wait: OnWait, by: str) -> QueryRecord:
        """Delete what a version that leaves has made, once its processes have ended; at last its part of the record."""
        assert record.beside is not None, "it leaves"
        version = record.run(record.beside.version)
        while waits_for := self._processes_of_version(record, version) or self._behind(record):
            on_wait(waits_for)
            time.sleep(_LOOK_S)
        in_use = _topics_in_use([*record.runs(), *_runs_of_others(record.name, self.queries())])
        self._delete_data(version, lambda site, topics: _topics_of_version(version, topics), in_use)
        return self._update(record.name, lambda old: let_go(self._checked(record.name, old, accept_any)), by)

    def _prepare_version(self, version: QueryRecord) -> None:
        """Create the topics of a version."""
        layout = layout_of(version, self.settings.site_names)
        inputs = self._inputs([version.query])
        with reaching(self.settings):
            found = {site: examine(self.clusters[site], specs, inputs[site]) for site, specs in query_topics(layout).items()}
            self._create_absent(found)

    def check(self, query: Query) -> Query:
        """The query as `apply` would run it. UserError if it would not."""
        query = with_default_engine(query)
        self.layout(query)
        input_topics(query)
        check_registries(query, self.settings)
        _refuse_short_threshold(query)
        return query

    def preview(
        self, query: Query, start: str = EARLIEST, queries: Mapping[str, QueryRecord] | None = None
    ) -> ChangePreview | None:
        """What `apply` would change of the query of this name, and how; None if there is none. start: as for `evolve`. queries:
        all that there are, where they are known. UserError if the query cannot run."""
        running = (self.queries() if queries is None else queries).get(query.name)
        wanted = self.check(with_engine_of(query, running.query if running is not None else None))
        return None if running is None else preview(running, wanted, resolve_start(start, time.time_ns() // 1_000))

    def validate(self, query: Query, start: str = EARLIEST) -> dict[str, Any]:
        """What REST answers to /validate, without the plan."""
        found = self.preview(query, start)
        return {"valid": True, "notes": list(plan(query).notes), "change": None if found is None else found.fields()}

    def set(
        self,
        name: str,
        changes: Mapping[str, object],
        check: Check = accept_any,
        by: str = COMMAND_LINE,
        heard: QueryRecord | None = None,
    ) -> QueryRecord:
        """Change some fields of a query, all or none: see `deployment.query_changes`. heard: the record as the caller follows
        it, which saves a look at all records. It may be out of date, so it can refuse nothing."""

        def decide(old: QueryRecord | None, records: Mapping[str, QueryRecord]) -> QueryRecord:
            record = self._checked(name, old, check)
            wanted = with_bucket(self.check(changed_query(record.spec, changes)), None)
            _refuse_while_it_evolves(record, wanted)
            refuse_change_for_others(record, wanted, records)
            return _follow(record, replace(record, spec=wanted.dump()))

        known = heard or self.query(name)
        try:
            wanted = decide(known, {})
        except UserError:
            if heard is None:
                raise
            return self.set(name, changes, check, by)
        # A look at all topics takes longer than the rest of a change of X, which needs none.
        before, after = self.layout_of(known), self.layout_of(wanted)
        if query_topics(after) != query_topics(before):
            self.prepare([wanted.query], [after])
        return self._update_among(name, decide, by)

    def pause(self, name: str, paused: bool, check: Check = accept_any, by: str = COMMAND_LINE) -> QueryRecord:
        """Stop a query's processes, or let them continue where they stopped. The sources' topics keep the rows of the pause."""

        def decide(old: QueryRecord | None) -> QueryRecord:
            record = self._checked(name, old, check)
            return _follow(record, replace(record, paused=paused, leaves=False))

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

        def decide(old: QueryRecord | None) -> QueryRecord:
            record = self._checked(name, old, check)
            return _follow(record, replace(record, paused=True, leaves=True))

        # 1. Its processes end, and sources that others read forget it. 2. Its data is deleted. 3. The record is deleted last:
        # until then it shows what is left to do.
        old = self._update(name, decide, by)
        self.await_ended(name, on_wait)
        others = _runs_of_others(name, self.queries())
        while sources := self._sources_that_name(name, _sources_read(run for run in others if not run.paused)):
            on_wait(sources)
            time.sleep(_LOOK_S)
        in_use = _topics_in_use(others)
        if old.beside is not None:
            beside = old.run(old.beside.version)
            self._delete_data(beside, lambda site, topics: _topics_of_version(beside, topics), in_use)
        self._delete_data(old.run(old.version), lambda site, topics: self._topics_of(old, site, topics), in_use)
        with reaching(self.settings):
            self._registry.delete(name, by)

    def forget_checkpoints(self, record: QueryRecord, instances: str) -> None:
        """Delete the checkpoints of those instances of the version in charge whose names begin so. OutOfReach: Redis is."""
        with _reaching_redis(), closing(connect_redis(self.settings.redis)) as client:
            RedisCheckpointStore(client, prefix=record.inner).forget(instances)

    def _delete_data(
        self,
        version: QueryRecord,
        choose: Callable[[str, Iterable[str]], Iterable[str]],
        in_use: Callable[[str], bool],
    ) -> None:
        """Delete the checkpoints of a version, and the topics that are chosen from those of a site, but for those in use."""
        with reaching(self.settings):
            for site, cluster in self.clusters.items():
                with closing(cluster.make_admin()) as admin:
                    topics = choose(site, admin.list_topics())
                delete(cluster, sorted(topic for topic in topics if not in_use(topic)))
        with _reaching_redis(), closing(connect_redis(self.settings.redis)) as client:
            RedisCheckpointStore(client, prefix=version.name).forget()

    def clusters_of(self, query: Query) -> dict[str, Cluster]:
        """The cluster that holds each stream's topic, by stream."""
        layout = self.layout(query)
        return {stream: self.clusters[layout.site_of_stream(stream)] for stream in query.streams}

    def layout(self, query: Query) -> Layout:
        return make_layout(query, self.settings.site_names)

    def layout_of(self, record: QueryRecord) -> Layout:
        """The layout of the version in charge."""
        return layout_of(record, self.settings.site_names)

    def _update(self, name: str, decide: Callable[[QueryRecord | None], QueryRecord], by: str) -> QueryRecord:
        return self._update_among(name, lambda old, _: decide(old), by)

    def _update_among(
        self, name: str, decide: Callable[[QueryRecord | None, Mapping[str, QueryRecord]], QueryRecord], by: str
    ) -> QueryRecord:
        with reaching(self.settings):
            changed = self._registry.update_among(name, decide, by)
        assert changed is not None, "it is only deleted by `delete`"
        return changed

    def _checked(self, name: str, record: QueryRecord | None, check: Check) -> QueryRecord:
        """The record, where it exists and the check accepts it."""
        check(record)
        return _known(name, {name: record} if record is not None else self.queries())

    # Dead letters

    def dead_letters(self, name: str, choice: LetterChoice, limit: int) -> LetterPage:
        """At most `limit` dead letters of a query, of all sites, the newest first."""
        record = self.query(name)
        with reaching(self.settings):
            pages = [LetterTopic(self.clusters[site], name).newest(choice, limit) for site in self._letter_sites(record)]
        letters = sorted((letter for page in pages for letter in page.letters), key=lambda letter: -letter.at_ms)
        looked_back = [page.looked_back_to_ms for page in pages if page.looked_back_to_ms is not None]
        return LetterPage(tuple(letters[:limit]), max(looked_back, default=None))

    def replay_letters(self, name: str, choice: LetterChoice, limit: int, by: str = COMMAND_LINE) -> ReplayOutcome:
        """Put the records of dead letters back into their streams' topics, each at most once, at most `limit` now.
        OvertakenError if other replays overtake this one again and again."""
        record = self.query(name)
        layout, topics = self.layout(record.query), input_topics(record.query)
        replayed, left = 0, Counter[str]()
        with reaching(self.settings):
            for site in self._letter_sites(record):
                here = {stream: topic for stream, topic in topics.items() if layout.site_of_stream(stream) == site}
                try:
                    outcome = LetterTopic(self.clusters[site], name).replay(choice, here, limit - replayed, by)
                except OvertakenError as error:
                    raise replace(error, replayed=replayed + error.replayed) from None
                replayed += outcome.replayed
                left.update(outcome.left)
        return ReplayOutcome(replayed, left)

    def _letter_sites(self, record: QueryRecord) -> list[str]:
        layout = self.layout(record.query)
        return sorted({layout.home, *layout.away.values()})

    # The servers

    def prepare(self, queries: Sequence[Query], layouts: Sequence[Layout] | None = None) -> dict[str, list[str]]:
        """Create the topics that the installation and these queries need and that do not exist; their names, by site. layouts:
        of the queries, where they do not read sources of their own. UserError, and nothing is created, if one exists with other
        settings: it names all of them."""
        with reaching(self.settings):
            found = self._examined(self._inputs(queries), layouts or [self.layout(query) for query in queries])
            self._create_absent(found)
        return {site: [spec.name for spec in findings.absent] for site, findings in found.items()}

    def _create_absent(self, found: Mapping[str, TopicFindings]) -> None:
        """Create what each site lacks; UserError, and nothing is created, if a site has topics with other settings."""
        refuse([wrong for findings in found.values() for wrong in findings.problems])
        for site, findings in found.items():
            create(self.clusters[site], findings.absent)

    def landing(self, queries: Sequence[Query]) -> dict[str, Landing]:
        """What each site's Kafka has and needs for the installation and these queries. Changes nothing."""
        names, inputs, found = [query.name for query in queries], self._inputs(queries), {}
        with reaching(self.settings):
            for site, findings in self._examined(inputs, [self.layout(query) for query in queries]).items():
                kafka, absent = self.settings.sites[site], {spec.name for spec in findings.absent}
                allowed = permissions(site == self.settings.home, names, sorted(inputs[site]), absent)
                found[site] = Landing(kafka.bootstrap, kafka.username or "USER", findings, allowed)
        return found

    def _inputs(self, queries: Sequence[Query]) -> Mapping[str, Collection[str]]:
        """The topics that queries read, by site."""
        found: dict[str, set[str]] = {site: set() for site in self.clusters}
        for query in queries:
            layout = self.layout(query)
            for stream, topic in input_topics(query).items():
                found[layout.site_of_stream(stream)].add(topic)
        return found

    def _examined(self, inputs: Mapping[str, Collection[str]], layouts: Sequence[Layout]) -> dict[str, TopicFindings]:
        """What each site has of the topics that are needed there."""
        needed: dict[str, list[TopicSpec]] = {site: [] for site in self.clusters}
        needed[self.settings.home] += system_topics()
        for layout in layouts:
            for site, specs in query_topics(layout).items():
                needed[site] += [spec for spec in specs if spec not in needed[site]]
        return {site: examine(self.clusters[site], specs, inputs[site]) for site, specs in needed.items()}

    def _topics_of(self, record: QueryRecord, site: str, topics: Iterable[str]) -> list[str]:
        """The topics of a site that were made for a query, even if this version cannot run its record."""
        query, inputs = record.name, {stream.get("topic") for stream in record.spec["streams"].values()}
        clients = {
            control_topic(query),
            out_topic(query, site, self.settings.site_names),
            stable_topic(query),
            records_topic(query),
            dead_letter_topic(query),
            latest_topic(query),
            debezium_topic(query),
        }
        there = list(topics)
        internal = _topics_of_version(record.run(record.version), there)
        return sorted({*internal, *(topic for topic in there if topic not in inputs and topic in clients)})

    def _is_absent(self, topic: str) -> bool:
        """Whether the home site answers, and has no such topic."""
        with reaching(self.settings), closing(self.home.make_admin()) as admin:
            return topic not in admin.list_topics()

    # Statuses

    def statuses(self, within_s: float = SILENT_AFTER_S) -> dict[str, Status]:
        """The last status of each process, by name, without those older than `within_s` seconds."""
        statuses = self.follow_statuses()
        if not statuses.is_current.wait(ANSWERS_WITHIN_S) and self._is_absent(STATUS):
            return {}
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

    def reports(self) -> dict[str, Report]:
        """What the monitor last said of each query, by name: the fields of `deployment.status_fields.QUERY`. Nothing while it
        is silent."""
        if not self.statuses():
            return {}
        if self._reports is None:
            self._reports = QueryReports(self.home)
        self._reports.is_current.wait(REACHED_WITHIN_S)
        oldest = (time.time() - SILENT_AFTER_S) * 1000
        return {name: report for name, report in sorted(self._reports.newest().items()) if report["at_ms"] >= oldest}

    def evolution(self, record: QueryRecord) -> dict[str, Any] | None:
        """How a query's evolution gets on, with the fields of `deployment.status_fields.EVOLUTION`; None where it has one
        version."""
        said = self.reports().get(record.name, {})
        known = shown(record)
        if known is not None and said.get("revision") == record.revision and said.get("evolution") is not None:
            return {**known, "waits_for": said["evolution"]["waits_for"]}
        return known

    def liveness(self, record: QueryRecord) -> Liveness:
        statuses = self.statuses()
        supervisors = [status for name, status in statuses.items() if name.partition(".")[0] == "supervisor"]
        known = [state for status in supervisors if (state := (status.get("queries") or {}).get(record.name)) is not None]
        # A supervisor may not have read the record yet: its problems with an older one do not count.
        taken = [state for state in known if state["revision"] >= record.revision]
        problem = next((state["problem"] for state in taken if state["problem"]), None)
        sites = self.settings.site_names
        try:
            expected = [child.name for child in children_in_charge(record, sites, sites)]
        except UserError as error:
            # Such as an operator of a package that is not installed here: what runs elsewhere goes on.
            return Liveness(False, (), {}, (), problem or str(error), 0.0)
        problem = problem or next((text for name in expected if (text := statuses.get(name, {}).get("problem"))), None)
        processes = {entry["name"]: entry["state"] for status in supervisors for entry in status["processes"]}
        # Until the monitor knows which sources it joins, nothing of it runs.
        expected = expected if record.is_placed or record.paused else ["monitor"]
        waits_for = [name for name in expected if processes.get(name) != "running" or not record.is_placed]
        is_ready = bool(expected and known) and not waits_for and taken == known and all(state["ready"] for state in known)
        entries = [entry for name in expected for entry in statuses.get(name, {}).get("instances", ())]
        states = {f"{entry['fragment']}.{entry['replica']}.{entry['shard']}": str(entry["state"]) for entry in entries}
        missing = sorted({name for entry in entries for name in entry["missing"]})
        least_x_ms = max((float(entry["least_x_ms"]) for entry in entries), default=0.0)
        return Liveness(is_ready, tuple(waits_for), states, tuple(missing), problem, least_x_ms)

    def await_ended(self, name: str, on_wait: Callable[[Collection[str]], None]) -> None:
        """Wait until no process of the query runs. on_wait: see `delete`."""
        records = self.queries()
        while running := self.processes_of(name, records):
            on_wait(running)
            time.sleep(_LOOK_S)

    def _sources_that_name(self, query: str, among: Collection[str]) -> list[str]:
        """Those of these sources that still take a query for one of their readers, and so write dead letters for it."""
        said = {name: status for name, status in self.statuses().items() if name in among}
        return sorted(name for name, status in said.items() if query in status.get("readers", ()))

    def streams(self, name: str) -> dict[str, dict[str, Any]]:
        """What is known of each stream of a query, with the fields of `deployment.status_fields.SHOWN_QUERY`."""
        return {stream: shown_stream(said) for stream, said in self._sources_of(name).items()}

    def _sources_of(self, query: str) -> dict[str, Status]:
        """The statuses of the sources that a query reads, by stream."""
        record, statuses = self.query(query), self.statuses()
        roles = {stream: record.source_role(stream) for stream in sorted(record.stream_names)}
        return {stream: statuses[role] for stream, role in roles.items() if role in statuses}

    def answers(self, name: str) -> dict[str, Any]:
        """How a query answers: the fields of `deployment.status_fields.ANSWERS_OF_STACK`."""
        return answers_of(self.reports().get(name, {}))

    def ended_streams(self, query: str) -> list[str]:
        """The streams of a query that have ended: their last record marked the end."""
        return [stream for stream, status in self._sources_of(query).items() if status["last_boundary"] == "end"]

    def details(self) -> dict[str, Any]:
        """What `boreal status` shows besides the processes; empty parts are left out: the progress and refusals of sources, by
        QUERY.STREAM; how queries answer, by name; the batches of Spark jobs, by the job's name; the workers that have joined a
        site; and clocks whose skew uses up too much of X."""
        statuses = dict(sorted(self.statuses().items()))
        kinds = ("source", "spark", WORKER)
        by_kind = {kind: {n: s for n, s in statuses.items() if n.partition(".")[0] == kind} for kind in kinds}
        sources = {
            name.removeprefix("source."): {field: status.get(field) for field in SOURCE_OF_STACK}
            for name, status in by_kind["source"].items()
        }
        jobs = {name: facts_of_job(status) for name, status in by_kind["spark"].items()}
        answers = {name: answers_of(report) for name, report in self.reports().items()}
        workers = [shown_worker(status) for status in by_kind[WORKER].values() if not status["leaves"]]
        clock = clock_warnings(statuses)
        details = {"sources": sources, "answers": answers, "jobs": jobs, "workers": workers, "clock": clock}
        return {name: facts for name, facts in details.items() if facts}

    def status(self) -> dict[str, Any]:
        """As `boreal status --json` prints it for an installation elsewhere, from the statuses of its supervisors."""
        queries = self.queries()
        supervisors = [status for name, status in self.statuses().items() if name.partition(".")[0] == "supervisor"]
        processes = [shown_process(entry) for status in supervisors for entry in status["processes"]]
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

    def processes_of(self, query: str, records: Mapping[str, QueryRecord]) -> list[str]:
        """The names of a query's processes, of all its versions, that some supervisor still runs. Not sources that other
        queries read. records: of all queries."""
        read = _sources_read(records[query].runs()) if query in records else set()
        others = _sources_read([run for run in _runs_of_others(query, records) if not run.paused])
        mine = [each["name"] for each in self._processes() if public_name(each["query"] or "") == query or each["name"] in read]
        return [name for name in mine if name not in others]

    def _processes_of_version(self, record: QueryRecord, version: QueryRecord) -> list[str]:
        """As `processes_of`, of one version alone, and of its sources. The egresses are the query's, and sources that another
        version reads stay. record: of the query."""
        names, sites = {version.name, *version.named_sources}, self.settings.site_names
        kept = {child.name for child in query_children(record, sites, sites)}
        kept |= _sources_read([run for run in _runs_of_others(record.name, self.queries()) if not run.paused])
        found = [each for each in self._processes() if each["query"] in names and each["kind"] != "egress"]
        return [each["name"] for each in found if each["name"] not in kept]

    def _behind(self, record: QueryRecord) -> list[str]:
        """The supervisors that have not read this record yet: they may be about to start processes of the one before."""
        read = {name: (status.get("queries") or {}).get(record.name) for name, status in self._supervisors().items()}
        return sorted(name for name, known in read.items() if known is None or known["revision"] < record.revision)

    def _processes(self) -> list[Mapping[str, Any]]:
        """The processes that some supervisor still runs, by name, and the roles in workers that have joined, which outlive
        it."""
        found = {each["name"]: each for status in self._said_last("supervisor").values() for each in status["processes"]}
        for status in self._said_last(WORKER).values():
            for name in status["roles"]:
                kind, query, _ = name.split(".", 2)
                found.setdefault(name, {"name": name, "kind": kind, "query": query})
        return [each for _, each in sorted(found.items())]

    def _supervisors(self) -> dict[str, Status]:
        """What each supervisor that may still run said last."""
        return self._said_last("supervisor")

    def _said_last(self, kind: str) -> dict[str, Status]:
        """What each process of a kind that may still run said last."""
        return {name: status for name, status in self.statuses(GONE_AFTER_S).items() if name.partition(".")[0] == kind}


def _topics_of_version(version: QueryRecord, topics: Iterable[str]) -> list[str]:
    """Those of these topics that were made for one version alone, and for its sources."""
    streams, operators = version.spec["streams"], version.spec["operators"]
    inputs = {stream.get("topic") for stream in streams.values()}
    own = {control_topic(version.name), *map(control_topic, version.named_sources)}
    patterns = [internal_topics(version.name, (*streams, *operators)), *_patterns_of_sources(version)]
    return [
        topic
        for topic in topics
        if topic not in inputs and (topic in own or any(pattern.fullmatch(topic) for pattern in patterns))
    ]


def _topics_in_use(runs: Collection[QueryRecord]) -> Callable[[str], bool]:
    """Whether a topic is the control topic of one of these versions, or belongs to the sources that they read. Without their
    plans, since a version that cannot be planned here may run elsewhere."""
    controls = {control_topic(name) for run in runs for name in (run.name, *run.named_sources)}
    patterns = {pattern for run in runs for pattern in _patterns_of_sources(run)}
    return lambda topic: topic in controls or any(pattern.fullmatch(topic) for pattern in patterns)


def _patterns_of_sources(version: QueryRecord) -> list[re.Pattern[str]]:
    """What matches the topics of the logs that the sources of a version write for it."""
    streams: dict[str, list[str]] = {}
    for stream in sorted(version.stream_names):
        streams.setdefault(version.sources_of(stream), []).append(stream)
    return [source_topics(sources, names) for sources, names in streams.items()]


def _runs_of_others(name: str, records: Mapping[str, QueryRecord]) -> list[QueryRecord]:
    """The versions of all other queries."""
    return [run for other, record in records.items() if other != name for run in record.runs()]


def _sources_read(runs: Iterable[QueryRecord]) -> set[str]:
    """The roles of the sources that these versions read."""
    return {run.source_role(stream) for run in runs for stream in run.stream_names}


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


def _refuse_while_it_evolves(record: QueryRecord, wanted: Query) -> None:
    """UserError if the topics for clients would change while two versions may write them."""
    for key in TOPICS_OF_CLIENTS if record.beside is not None else ():
        if getattr(record.query, key) != getattr(wanted, key):
            fix = "wait until it has one version again: boreal query show"
            raise UserError(key, wanted.dump().get(key), f"cannot change while {record.name} evolves", fix)


def with_default_engine(query: Query) -> Query:
    """The query with the default engine if it names none."""
    return query if query.engine is not None else query.changed(engine=DEFAULT_ENGINE)


def with_engine_of(query: Query, running: Query | None) -> Query:
    """The query with the engine of the one that runs, if it names none."""
    if query.engine is not None or running is None or running.engine is None:
        return query
    return query.changed(engine=running.dump()["engine"])


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
    least = expected_threshold_us(query)
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
    except AuthorizationError as error:
        # Kafka does not say which id it was.
        about = f", for ids that begin with {PREFIX}" if isinstance(error, TransactionalIdAuthorizationFailedError) else ""
        problem = f"Kafka does not allow this user what boreal needs: {error}{about}"
        raise UserError("BOREAL_SITES", None, problem, "add the ACLs that boreal init --dry-run prints") from None
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
        raise OutOfReach("BOREAL_REDIS__URL", None, problem, "check that it is up, and try again") from None
