"""The monitor's driver: passes messages and the time to one `WatchedQuery` for each query, and carries out their effects.

All events go through one queue to one thread. While Kafka or Redis is out of reach no events come, and the thread continues;
reports and trims that cannot be sent are sent again later.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, assert_never

from boreal.model.errors import UserError
from deployment.audit import ChaosAudit, QueryAudit, QueryChange, TokenAudit
from deployment.claims import Trim
from deployment.events import DELETED, SERVED, Event
from deployment.journal import JournalEntry
from deployment.query_record import QueryRecord
from deployment.watched_query import ProcessStatus, WatchedQuery, WatchEffect
from formats.control_messages import ControlItem, trim_item
from services.hosting.process import EXIT_FENCED, EXIT_STOPPED, StatusPublisher, now_us
from services.kafka.clusters import make_clusters
from services.kafka.control import NO_HURRY_MS, ControlPlane
from services.kafka.events import EventWriter
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.statuses import StatusReader
from services.kafka.topics import control_topic
from services.monitor.checkpoints import CheckpointSweeper
from services.monitor.reports import QueryReports, Report, ReportWriter
from services.storage.redis_checkpoints import connect_redis

NAME = "monitor"
TICK_US = 1_000_000
STOP_WITHIN_US = 100_000

_logger = logging.getLogger("boreal.monitor")


class MonitorProcess:
    """`serve` runs until it is stopped, and returns the process's exit code."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.clusters = make_clusters(settings, NAME)
        self.queries: dict[str, WatchedQuery] = {}
        self._controls: dict[str, ControlPlane] = {}
        self._earlier: dict[str, Report] | None = None
        self._statuses: StatusReader | None = None
        self._reports: ReportWriter | None = None
        self._events: EventWriter | None = None
        self._recorded: dict[str, list[Event]] | None = None  # of each query, before the monitor began; None: not known yet
        self._changes: dict[str, QueryChange] = {}
        self._query_audit, self._chaos_audit, self._token_audit = QueryAudit(), ChaosAudit(), TokenAudit()
        self._is_following = False
        self._is_auditing = False
        self._is_fenced = threading.Event()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def serve(self, stopping: threading.Event) -> int:
        home = self.clusters[self.settings.home]
        self._reports = ReportWriter(home)
        earlier_reports = QueryReports(home)
        self._statuses = StatusReader(home, self._note_status)
        follower = QueryRegistry(home).watch_changes(lambda change: self._inbox.put(lambda: self._take_change(change)))
        self._events = EventWriter(home, self._note_recorded, self._is_fenced.set)
        sweeper = CheckpointSweeper(connect_redis(self.settings.redis), lambda: sorted(self.queries), self._report_damage)
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
        known = self.queries.get(name)
        try:
            if record is None:
                self._drop(name)
            elif known is None:
                self._add(record)
            elif record != known.record:
                known.change(record, now_us())
        except UserError as error:
            _logger.error("query %s cannot be watched: %s", name, error)

    def _add(self, record: QueryRecord) -> None:
        name = record.name
        watched = WatchedQuery(record, self.settings.site_names, now_us())
        self.queries[name] = watched
        if self._recorded is not None:
            watched.record_failures(self._recorded.pop(name, []))
        control = ControlPlane(self.clusters, control_topic(name), NAME, self.settings.home)
        control.listen(lambda sender, items: self._inbox.put(lambda: self._hear(name, items)), NO_HURRY_MS)
        self._controls[name] = control

    def _drop(self, name: str) -> None:
        if self._earlier is not None:
            self._earlier.pop(name, None)
        watched = self.queries.pop(name, None)
        if watched is not None:
            if watched.failures is not None:
                self._record(watched.failures.end("deleted", now_us() / 1_000))
            # In a thread, because it may have to wait for a cluster out of reach.
            threading.Thread(target=self._controls.pop(name).close, daemon=True).start()
            self._publish(name, None)

    def _hear(self, name: str, items: list[ControlItem]) -> None:
        watched = self.queries.get(name)
        if watched is not None:
            self._perform(name, watched.hear(items, now_us()))

    def _note_status(self, status: ProcessStatus) -> None:
        """Ignore statuses from before this process began: they do not show that a process is alive."""
        if self._statuses is not None and self._statuses.is_current.is_set():
            self._inbox.put(lambda: self._take_status(status))

    def _note_recorded(self, events: list[Event]) -> None:
        """In the thread of the writer."""
        self._inbox.put(lambda: self._begin_recording(events))

    def _begin_recording(self, events: list[Event]) -> None:
        """These events are there: from now on, what is seen beyond them is recorded."""
        self._recorded = {}
        for event in events:
            for audit in (self._query_audit, self._chaos_audit, self._token_audit):
                audit.resume(event)
            if event.query is not None and (event.failure is not None or event.kind in (SERVED, DELETED)):
                self._recorded.setdefault(event.query, []).append(event)
        for name, watched in self.queries.items():
            watched.record_failures(self._recorded.pop(name, []))
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
        watched = self.queries.get(status.get("query") or "")
        if watched is not None:
            self._perform(watched.record.name, watched.take(status, now_us()))

    def _report_damage(self, name: str, instance: str, number: int) -> None:
        def enter() -> None:
            if name in self.queries:
                self._perform(name, self.queries[name].note_damage(instance, number, now_us()))

        self._inbox.put(enter)

    # Effects

    def _tick(self) -> None:
        for name, watched in sorted(self.queries.items()):
            self._perform(name, watched.tick(now_us()))
            if self._earlier is not None:
                # Only after the former incarnation's report is known: the journal continues from it.
                if name in self._earlier:
                    self._resume(watched, self._earlier.pop(name))
                self._publish(name, {**watched.status(now_us()), "pid": os.getpid()})

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
                    self._controls[name].send([trim_item(needed)])
                case Event():
                    self._record([effect])
                case JournalEntry(_, _, who, text, is_bad):
                    _logger.log(logging.WARNING if is_bad else logging.INFO, "%s: %s %s", name, who, text)
                case _:
                    assert_never(effect)

    def _record(self, events: Sequence[Event]) -> None:
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
