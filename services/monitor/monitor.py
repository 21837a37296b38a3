"""The monitor's driver: passes messages and the time to one `WatchedQuery` for each query, and carries out their effects.

All events go through one queue to one thread. While Kafka or Redis is out of reach no events come, and the thread continues;
reports and trims that cannot be sent are sent again later.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, assert_never

from kafka.errors import KafkaError

from boreal.model.errors import BorealError, CorruptError, UserError
from deployment.audit import ChaosAudit, JobAudit, QueryAudit, QueryChange, ReplayAudit, TokenAudit
from deployment.claims import Trim
from deployment.events import DELETED, SERVED, RecordedEvent, event_from
from deployment.evolution import CLAIMING, LOOK_US, Evolution, claimed, shown, state_of
from deployment.joined_sources import settled
from deployment.journal import FailureJournal, JournalEntry
from deployment.layout import Layout, layout_of
from deployment.query_record import QueryRecord, inner_name, public_name
from deployment.skew import ProcessStatus
from deployment.slo import ServiceLevel
from deployment.stream_claims import AskToHold, LookForRows, StreamClaims
from deployment.watched_query import WatchedQuery, WatchEffect
from formats.control_messages import ControlItem, hold_item, trim_item
from logs.checkpoints import StoreUnavailableError
from services.hosting.failpoints import failpoint
from services.hosting.process import EXIT_FENCED, EXIT_STOPPED, StatusPublisher, StopSignal, now_us
from services.kafka.clusters import make_clusters
from services.kafka.control import NO_HURRY_MS, ControlPlane
from services.kafka.control_desk import ControlDesk
from services.kafka.events import EventWriter
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.statuses import StatusReader
from services.kafka.topics import control_topic, ensure, query_topics
from services.monitor.checkpoints import CheckpointSweeper
from services.monitor.first_rows import read_first_rows, read_states
from services.monitor.reports import QueryReports, Report, ReportWriter
from services.storage.kafka_log import KafkaLogStore
from services.storage.redis_checkpoints import connect_redis

NAME = "monitor"
TICK_US = LOOK_US
STOP_WITHIN_US = 100_000
CLAIM_RETRY_US = 5_000_000
"""How soon it is looked up again what a version may begin with: all states are read for that."""

_logger = logging.getLogger("boreal.monitor")


class MonitorProcess:
    """`serve` runs until it is stopped, and returns the process's exit code."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.clusters = make_clusters(settings, NAME)
        self.queries: dict[str, WatchedQuery] = {}
        self._desks = {site: ControlDesk(cluster) for site, cluster in self.clusters.items()}
        self._controls: dict[str, ControlPlane] = {}
        self._earlier: dict[str, Report] | None = None
        self._statuses: StatusReader | None = None
        self._reports: ReportWriter | None = None
        self._events: EventWriter | None = None
        # Of each query, before the monitor began; None: not known yet.
        self._recorded: dict[str, list[RecordedEvent]] | None = None
        self._changes: dict[str, QueryChange] = {}
        self._records: dict[str, QueryRecord] = {}
        self._evolutions: dict[str, Evolution] = {}
        self._claims = StreamClaims()
        self._writing: set[str] = set()
        # By query: why a version cannot begin yet with what another one keeps, and when that is looked up again.
        self._unclaimed: dict[str, tuple[str, int]] = {}
        self._query_audit, self._chaos_audit = QueryAudit(), ChaosAudit()
        self._token_audit, self._job_audit, self._replay_audit = TokenAudit(), JobAudit(), ReplayAudit()
        self._is_following = False
        self._is_auditing = False
        self._is_fenced = threading.Event()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def serve(self, stopping: StopSignal) -> int:
        home = self.clusters[self.settings.home]
        self._reports = ReportWriter(home)
        earlier_reports = QueryReports(home)
        self._statuses = StatusReader(home, self._note_status)
        follower = QueryRegistry(home).watch_changes(lambda change: self._inbox.put(lambda: self._take_change(change)))
        self._events = EventWriter(home, self._note_recorded, self._is_fenced.set)
        sweeper = CheckpointSweeper(connect_redis(self.settings.redis), self._watched, self._report_damage)
        StatusPublisher(home, NAME, lambda: self._own_status(sweeper))
        tick_at = now_us()
        while not stopping.is_set() and not self._is_fenced.is_set():
            self._handle_until(min(tick_at, now_us() + STOP_WITHIN_US))
            if now_us() >= tick_at:
                tick_at = now_us() + TICK_US
                if self._earlier is None and earlier_reports.is_current.is_set():
                    self._earlier = earlier_reports.newest()
                    earlier_reports.close()
                if not self._is_following and follower.is_current.is_set():
                    self._is_following = True
                    self._inbox.put(self._begin_audit)  # behind the changes that were there
                self._tick()
        if not self._is_fenced.is_set():
            for name, watched in sorted(self.queries.items()):
                self._perform(name, watched.end(now_us()))
        self._events.close()
        # Nothing else has to be closed, and a client may wait for a cluster out of reach: the threads end with the process.
        return EXIT_FENCED if self._is_fenced.is_set() else EXIT_STOPPED

    def _handle_until(self, at: int) -> None:
        """Handle events until this time, in microseconds."""
        while (left_us := at - now_us()) > 0:
            try:
                handle = self._inbox.get(timeout=left_us / 1e6)
            except queue.Empty:
                return
            try:
                handle()
            except (KeyError, TypeError, ValueError) as error:
                _logger.warning("a message cannot be read, and is skipped: %r", error)

    # Events

    def _take_change(self, change: QueryChange) -> None:
        name, record = change.name, change.record
        if self._is_auditing:
            self._record(self._query_audit.see(change))
        else:
            self._changes[name] = change
        self._unclaimed.pop(name, None)
        before = self._records.pop(name, None)
        if record is not None:
            self._records[name] = record
        versions = {run.name: run for run in record.runs()} if record is not None else {}
        for gone in [inner for inner in self.queries if public_name(inner) == name and inner not in versions]:
            self._drop(gone)
        named = {of for each in self._records.values() for run in each.runs() for of in (run.name, *run.named_sources)}
        for unread in self._controls.keys() - named - self.queries.keys():
            self._controls.pop(unread).close()
        if record is None:
            self._evolutions.pop(name, None)
            self._claims.change(name, None, None, now_us())
            self._publish(name, None)
            return
        for inner, version in versions.items():
            try:
                known = self.queries.get(inner)
                if known is None:
                    self._add(version, is_beside=inner != record.inner)
                elif version != known.record:
                    known.change(version, now_us())
            except UserError as error:
                _logger.error("query %s cannot be watched: %s", name, error)
        if before is not None and before.inner != record.inner:
            self._hand_over(before.inner, record.inner)
        self._claims.change(name, record, self.queries[record.inner].layout if record.inner in self.queries else None, now_us())
        self._turn_claims()

    def _hand_over(self, before: str, after: str) -> None:
        """Another version is in charge: what is recorded of the query goes on with it."""
        old, new = self.queries.get(before), self.queries.get(after)
        if new is not None:
            new.is_beside = False
        if old is None or new is None:
            return
        old.is_beside, old.evolution = True, None
        new.failures, new.served, new.journal = old.failures, old.served, old.journal
        old.failures, old.served, old.journal = None, ServiceLevel(old.record.public), FailureJournal()

    def _add(self, record: QueryRecord, is_beside: bool) -> None:
        name = record.name
        watched = WatchedQuery(record, self.settings.site_names, now_us())
        watched.is_beside = is_beside
        self.queries[name] = watched
        if self._recorded is not None and not is_beside:
            watched.record_failures(self._recorded.pop(record.public, []))
        control = self._control(name)
        control.listen(lambda sender, items: self._inbox.put(lambda: self._hear(name, items)), lambda: NO_HURRY_MS)

    def _control(self, name: str) -> ControlPlane:
        """The control topic of a version, or of sources that are left of one."""
        if name not in self._controls:
            self._controls[name] = ControlPlane(self._desks, control_topic(name), NAME, self.settings.home)
        return self._controls[name]

    def _drop(self, name: str) -> None:
        """A version is gone."""
        if self._earlier is not None and name == public_name(name):
            self._earlier.pop(name, None)
        watched = self.queries.pop(name, None)
        if watched is not None:
            if watched.failures is not None:
                self._record(watched.failures.end("deleted", now_us() / 1_000))
            self._controls.pop(name).close()

    def _hear(self, name: str, items: list[ControlItem]) -> None:
        watched = self.queries.get(name)
        if watched is not None:
            self._perform(name, watched.hear(items, now_us()))

    def _note_status(self, status: ProcessStatus) -> None:
        """Ignore statuses from before this process began: they do not show that a process is alive."""
        if self._statuses is not None and self._statuses.is_current.is_set():
            self._inbox.put(lambda: self._take_status(status))

    def _note_recorded(self, events: list[RecordedEvent]) -> None:
        """In the thread of the writer."""
        self._inbox.put(lambda: self._begin_recording(events))

    def _begin_recording(self, events: list[RecordedEvent]) -> None:
        """These events are there: from now on, what is seen beyond them is recorded."""
        self._recorded = {}
        for event in events:
            for audit in (self._query_audit, self._chaos_audit, self._token_audit, self._job_audit, self._replay_audit):
                audit.resume(event)
            if event.query is not None and (event.failure is not None or event.kind in (SERVED, DELETED)):
                self._recorded.setdefault(event.query, []).append(event)
        for watched in self.queries.values():
            if not watched.is_beside:
                watched.record_failures(self._recorded.pop(watched.record.public, []))
        self._begin_audit()

    def _begin_audit(self) -> None:
        """Record the changes of queries that nobody has recorded, once both these and those are known."""
        if self._recorded is not None and self._is_following and not self._is_auditing:
            self._is_auditing = True
            self._record(self._query_audit.see_all(self._changes.values(), now_us() / 1_000))
            self._changes.clear()

    def _take_status(self, status: ProcessStatus) -> None:
        if self._recorded is not None and "faults" in status:
            self._record(self._chaos_audit.see(status["process"], status["faults"], now_us() / 1_000))
        if self._recorded is not None and "tokens" in status:
            self._record(self._token_audit.see(status["tokens"], now_us() / 1_000))
        if self._recorded is not None and "jobs" in status:
            self._record(self._job_audit.see(status["jobs"], now_us() / 1_000))
        if self._recorded is not None and "replays" in status:
            self._record(self._replay_audit.see(map(event_from, status["replays"])))
        if status.get("kind") == "supervisor":
            for each in self.queries.values():
                each.see_supervisor(status, now_us())
        if status.get("kind") == "source":
            self._claims.hear(status["process"], status.get("holds", ()))
            self._turn_claims()
        for name in self._concerned(status):
            watched = self.queries.get(name)
            if watched is not None:
                self._perform(name, watched.take(status, now_us()))

    def _concerned(self, status: ProcessStatus) -> set[str]:
        """The versions that a status concerns: an egress those in charge, and the one that it reads; a source all that read
        it, also of other queries."""
        name = str(status.get("query") or "")
        if status.get("kind") == "source":
            role = status["process"]
            return {
                inner for inner, watched in self.queries.items() if watched.layout.source_role(status["stream"]) == role
            }
        record = self._records.get(name)
        if record is None or status.get("kind") != "egress":
            return {name}
        return {record.inner, inner_name(name, int(status.get("version", record.version)))}

    def _watched(self) -> list[WatchedQuery]:
        return [watched for _, watched in sorted(self.queries.items())]

    def _report_damage(self, name: str, instance: str, number: int) -> None:
        def enter() -> None:
            if name in self.queries:
                self._perform(name, self.queries[name].note_damage(instance, number, now_us()))

        self._inbox.put(enter)

    # Effects

    def _tick(self) -> None:
        for name, record in sorted(self._records.items()):
            self._advance(name, record)
        self._turn_claims()
        needs = self._needs_of_sources()
        for inner, watched in sorted(self.queries.items()):
            others = {key: needs[sources, key] for sources, key in watched.needs_of_sources() if (sources, key) in needs}
            self._perform(inner, watched.tick(now_us(), others))
            name = watched.record.public
            if self._earlier is not None and not watched.is_beside:
                # Only after the former incarnation's report is known: the journal continues from it.
                if name in self._earlier:
                    self._resume(watched, self._earlier.pop(name))
                self._publish(name, {**watched.status(now_us()), "pid": os.getpid()})

    def _needs_of_sources(self) -> dict[tuple[str, str], int]:
        """The first id that any version of any query needs, of each log of sources: see `WatchedQuery.needs_of_sources`."""
        needs: dict[tuple[str, str], int] = {}
        for watched in self.queries.values():
            for log, first_id in watched.needs_of_sources().items():
                needs[log] = min(needs.get(log, first_id), first_id)
        return needs

    # Streams that are joined

    def _turn_claims(self) -> None:
        """Take the next steps of the queries that are to join sources of others. Their claims on the logs are known here, since
        their records are: no more is trimmed that they may read."""
        for step in self._claims.tick(self._records, now_us()):
            match step:
                case AskToHold(sources, keys, claim):
                    self._control(sources).send([hold_item(keys, claim)])
                case LookForRows(record, streams):
                    threading.Thread(target=self._settle_claim, args=(record, streams), name="claim", daemon=True).start()
                case _:
                    assert_never(step)

    def _settle_claim(self, record: QueryRecord, streams: Sequence[str]) -> None:
        """Write which sources a query has joined, and make the topics of those that it has not. In a thread of its own."""
        sites = self.settings.site_names
        try:
            layout = layout_of(record.run(record.version), sites)
            with closing(KafkaLogStore(self.clusters, layout)) as logs:
                held = [each for each in streams if _holds_all(logs, layout, each)]
            with closing(QueryRegistry(self.clusters[self.settings.home])) as registry:
                wanted = settled(record, held, registry.load())
                for site, specs in query_topics(layout_of(wanted.run(wanted.version), sites)).items():
                    ensure(self.clusters[site], specs)
                registry.update_among(
                    record.name, lambda old, records: settled(record, held, records) if old == record else old, NAME
                )
            left = sorted(record.joined.of.keys() - set(held)) if record.joined is not None else []
            _logger.info("%s has joined the sources of %s; of its own are %s", record.name, held, left)
        except (UserError, KafkaError, OSError) as error:
            _logger.warning("what %s joins is looked up again: %r", record.name, error)
            time.sleep(TICK_US / 1e6)
            self._inbox.put(lambda: self._claims.unanswered(record.name))

    # Evolutions

    def _advance(self, name: str, record: QueryRecord) -> None:
        """Take the next step of a query's evolution, if one is due: in a thread, because it waits for Kafka."""
        watched = self.queries.get(record.inner)
        if watched is None or (record.beside is None and watched.evolution is None):
            return
        evolution, now = self._evolutions.setdefault(name, Evolution()), now_us()
        egresses = {
            site: report for site in self.settings.site_names if (report := watched.egress_report(site, now)) is not None
        }
        beside = self.queries.get(record.run(record.beside.version).name) if record.beside is not None else None
        wanted = evolution.next(record, self.settings.site_names, egresses, beside.progress(now) if beside else None)
        why_unclaimed, claim_at = self._unclaimed.get(name, ("", now))
        watched.evolution = shown(record, why_unclaimed or evolution.waits_for)
        if name in self._writing:
            return
        if state_of(record) == CLAIMING and not record.paused and now >= claim_at:
            # The claims of the version beside are known here, since the record is: no more is trimmed that it may read.
            self._begin_writing(self._choose_first_rows, record)
        elif wanted is not None:
            _logger.info("%s: %s", name, wanted.takeover or f"version {wanted.version} is in charge")
            self._begin_writing(self._write, record, wanted)

    def _begin_writing(self, write: Callable[..., None], record: QueryRecord, *wanted: QueryRecord) -> None:
        self._writing.add(record.name)
        threading.Thread(target=self._end_writing, args=(write, record, *wanted), name="evolution", daemon=True).start()

    def _end_writing(self, write: Callable[..., None], record: QueryRecord, *wanted: QueryRecord) -> None:
        try:
            write(record, *wanted)
        finally:
            self._inbox.put(lambda: self._writing.discard(record.name))

    def _choose_first_rows(self, record: QueryRecord) -> None:
        """Write from where the version beside reads the logs that it shares; see `deployment.shared_sources`."""
        beside, sites = record.beside, self.settings.site_names
        assert beside is not None and beside.shared is not None, "it claims what another version keeps"
        running, new = (layout_of(record.run(number), sites) for number in (record.version, beside.version))
        try:
            with closing(connect_redis(self.settings.redis)) as redis:
                if beside.shared.states is None:
                    wanted = claimed(record, *read_first_rows(redis, self.clusters, running, new))
                else:
                    carried = read_states(redis, self.clusters, running, new)
                    wanted = claimed(record, carried.first_ids, carried.reach, carried.states)
        except (KafkaError, OSError) as error:
            _logger.warning("what %s keeps is looked up again: %r", record.name, error)
        except (UserError, CorruptError, StoreUnavailableError) as error:
            self._unclaimed[record.name] = str(error), now_us() + CLAIM_RETRY_US
        else:
            self._write(record, wanted)

    def _write(self, record: QueryRecord, wanted: QueryRecord) -> None:
        failpoint("monitor.before_evolution")
        try:
            with closing(QueryRegistry(self.clusters[self.settings.home])) as registry:
                registry.update(record.name, lambda old: wanted if old == record else old, NAME)
            failpoint("monitor.after_evolution")
        except (KafkaError, OSError) as error:
            _logger.warning("the evolution of %s is tried again: %r", record.name, error)

    def _publish(self, name: str, report: Report | None) -> None:
        assert self._reports is not None, "it serves"
        self._reports.publish(name, report)

    def _resume(self, watched: WatchedQuery, report: Report) -> None:
        try:
            watched.resume(report)
        except (KeyError, TypeError, ValueError) as error:
            _logger.warning("the journal of %s cannot be read, and starts empty: %r", watched.record.name, error)

    def _perform(self, name: str, effects: Iterable[WatchEffect]) -> None:
        for effect in effects:
            match effect:
                case Trim(needed):
                    self._send_trims(self.queries[name], needed)
                case RecordedEvent():
                    self._record([effect])
                case JournalEntry(_, _, who, text, is_bad):
                    _logger.log(logging.WARNING if is_bad else logging.INFO, "%s: %s %s", name, who, text)
                case _:
                    assert_never(effect)

    def _send_trims(self, watched: WatchedQuery, needed: Mapping[str, int]) -> None:
        """To those who write the logs."""
        owners = {key: watched.layout.sources_of_log(key) or watched.record.name for key in needed}
        for owner in dict.fromkeys(owners.values()):
            self._control(owner).send([trim_item({key: needed[key] for key in needed if owners[key] == owner})])

    def _record(self, events: Sequence[RecordedEvent]) -> None:
        assert self._events is not None, "it serves"
        if events:
            self._events.put(events)

    def _own_status(self, sweeper: CheckpointSweeper) -> dict[str, Any]:
        return {
            "ready": True,
            "queries": sorted(self.queries),
            "redis": "reachable" if sweeper.is_reachable else "out of reach",
            "trimmed_before": {name: dict(watched.claims.needed) for name, watched in sorted(self.queries.items())},
        }


def _holds_all(logs: KafkaLogStore, layout: Layout, stream: str) -> bool:
    """Whether the logs of a stream have all rows that they ever had. Not where one is damaged: who joins reads the topic."""
    try:
        return all(logs.is_held([log], 0) for _, log in layout.source_logs(stream))
    except BorealError as error:
        _logger.error("the log of %s cannot be read, and is not joined: %s", stream, error)
        return False
