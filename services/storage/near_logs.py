"""Tells an instance which logs are nearest to it: those that its process writes, or else those that its site stores (R23)."""

from __future__ import annotations

from collections.abc import Callable

from kafka import TopicPartition

from boreal.model.frames import LogId
from deployment.layout import Layout
from reconcile.events import InstanceId, Near
from services.storage.log_reader import LogPath


class NearLogs:
    """Those of one instance."""

    def __init__(self, path_to: Callable[[LogId], LogPath], layout: Layout, who: InstanceId) -> None:
        site = layout.site_of_replica(who.replica)
        self._choices = [logs for logs in layout.input_logs(who).values() if len(logs) > 1]
        logs = [log for logs in self._choices for log in logs]
        self._of_site = {log for log in logs if layout.site_of(log) == site}
        self._local = {
            log: (path_to(log).local, TopicPartition(layout.topic_of(log), log.partition)) for log in logs
        }
        self._deliver: Callable[[Near], None] = lambda near: None

    def find(self) -> frozenset[LogId]:
        """The nearest logs now, as in `Near`."""
        near = set[LogId]()
        for logs in self._choices:
            near.update({log for log in logs if self._is_written_here(log)} or self._of_site.intersection(logs))
        return frozenset(near)

    def tell(self, deliver: Callable[[Near], None]) -> None:
        """Deliver them, and again whenever they have changed, until it is closed; from any thread, so it must not block."""
        self._deliver = deliver
        for local, place in self._local.values():
            local.tell_of_writer(place, self._look)
        self._look()

    def close(self) -> None:
        for local, place in self._local.values():
            local.forget(place, self._look)

    def _is_written_here(self, log: LogId) -> bool:
        local, place = self._local[log]
        return local.is_written(place)

    def _look(self) -> None:
        self._deliver(Near(self.find()))
