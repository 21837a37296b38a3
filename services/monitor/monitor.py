"""The monitor's shell: feeds what is heard, and the time, to one `WatchedQuery` a query, and carries out what they decide.

Everything that happens comes by one queue to one thread. Kafka and Redis out of reach are silence, which that thread
outlasts; what it cannot say now, it says again.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any

from boreal.model.errors import UserError
from deployment.claims import Trim
from deployment.journal import JournalEntry
from deployment.query_record import QueryRecord
from deployment.watched_query import ProcessStatus, WatchedQuery, WatchEffect
from formats.control_messages import ControlItem, trim_item
from services.hosting.process import EXIT_STOPPED, StatusPublisher, now_us
from services.kafka.clusters import make_clusters
from services.kafka.control import NO_HURRY_MS, ControlPlane
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


class Monitor:
    """`serve` runs until it is stopped, and returns the process's exit code."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.clusters = make_clusters(settings, NAME)
        self.queries: dict[str, WatchedQuery] = {}
        self._controls: dict[str, ControlPlane] = {}
        self._earlier: dict[str, Report] | None = None
        self._statuses: StatusReader | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def serve(self, stopping: threading.Event) -> int:
        home = self.clusters[self.settings.home]
        self._reports = ReportWriter(home)
        said_before = QueryReports(home)
        self._statuses = StatusReader(home, self._note_status)
        QueryRegistry(home).watch(lambda name, record: self._inbox.put(lambda: self._take_record(name, record)))
        sweeper = CheckpointSweeper(connect_redis(self.settings.redis), lambda: sorted(self.queries), self._report_damage)
        StatusPublisher(home, NAME, lambda: self._own_status(sweeper))
        tick_at = now_us()
        while not stopping.is_set():
            self._handle_until(min(tick_at, now_us() + STOP_WITHIN_US))
            if now_us() >= tick_at:
                tick_at = now_us() + TICK_US
                if self._earlier is None and said_before.is_current.is_set():
                    self._earlier = said_before.newest()
                    said_before.close()
                self._tick()
        # Nothing of ours has to be brought to an end, and a client may be waiting for a cluster out of reach: the threads
        # end with the process.
        return EXIT_STOPPED

    def _handle_until(self, at: int) -> None:
        """Take what has come, for no longer than that."""
        while (left_us := at - now_us()) > 0:
            try:
                handle = self._inbox.get(timeout=left_us / 1e6)
            except queue.Empty:
                return
            try:
                handle()
            except (KeyError, TypeError, ValueError) as error:
                _logger.warning("a message is not understood, and passed over: %r", error)

    # What comes in

    def _take_record(self, name: str, record: QueryRecord | None) -> None:
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
        control = ControlPlane(self.clusters, control_topic(name), NAME, self.settings.home)
        control.listen(lambda sender, items: self._inbox.put(lambda: self._hear(name, items)), NO_HURRY_MS)
        self._controls[name] = control

    def _drop(self, name: str) -> None:
        if self._earlier is not None:
            self._earlier.pop(name, None)
        if self.queries.pop(name, None) is not None:
            # It may have to wait for a cluster out of reach, and nobody has to wait for that.
            threading.Thread(target=self._controls.pop(name).close, daemon=True).start()
            self._reports.say(name, None)

    def _hear(self, name: str, items: list[ControlItem]) -> None:
        watched = self.queries.get(name)
        if watched is not None:
            self._perform(name, watched.hear(items, now_us()))

    def _note_status(self, status: ProcessStatus) -> None:
        """What was said before we began is no sign of life."""
        if self._statuses is not None and self._statuses.is_current.is_set():
            self._inbox.put(lambda: self._take_status(status))

    def _take_status(self, status: ProcessStatus) -> None:
        watched = self.queries.get(status.get("query") or "")
        if watched is not None:
            self._perform(watched.record.name, watched.take(status, now_us()))

    def _report_damage(self, name: str, instance: str, number: int) -> None:
        def enter() -> None:
            if name in self.queries:
                self._perform(name, self.queries[name].note_damage(instance, number, now_us()))

        self._inbox.put(enter)

    # What goes out

    def _tick(self) -> None:
        for name, watched in sorted(self.queries.items()):
            self._perform(name, watched.tick(now_us()))
            if self._earlier is not None:
                # Only once our last life's report is known: the journal goes on after it.
                if name in self._earlier:
                    self._resume(watched, self._earlier.pop(name))
                self._reports.say(name, {**watched.status(now_us()), "pid": os.getpid()})

    def _resume(self, watched: WatchedQuery, report: Report) -> None:
        try:
            watched.resume(report)
        except (KeyError, TypeError, ValueError) as error:
            _logger.warning("the journal of %s is not understood, and begins anew: %r", watched.record.name, error)

    def _perform(self, name: str, effects: Iterable[WatchEffect]) -> None:
        for effect in effects:
            match effect:
                case Trim(needed):
                    self._controls[name].send([trim_item(needed)])
                case JournalEntry(_, _, who, text, is_bad):
                    _logger.log(logging.WARNING if is_bad else logging.INFO, "%s: %s %s", name, who, text)

    def _own_status(self, sweeper: CheckpointSweeper) -> dict[str, Any]:
        return {
            "ready": True,
            "queries": sorted(self.queries),
            "redis": "reachable" if sweeper.is_reachable else "out of reach",
            "trimmed_before": {name: dict(watched.claims.needed) for name, watched in sorted(self.queries.items())},
        }
