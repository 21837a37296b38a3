"""The egress of one site as a process: its instance, and the topics that it writes for clients."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import closing
from typing import Any

from boreal.model.errors import UserError
from boreal.model.frames import State
from deployment.layout import make_layout
from deployment.query_record import QueryRecord
from formats.changelog import Changelog
from logs.egress_restart import egress_restart
from reconcile.events import PathAfter, Received, Threshold
from reconcile.instance import Instance
from reconcile.recovery import Restart
from services.egress.delays import RecentDelays
from services.egress.latest import LatestTopic
from services.egress.out import OutTopic, RowTopics
from services.egress.stable import StableTopic
from services.egress.tail import OutTail, read_out_tail
from services.hosting.host import InstanceHost, build_host
from services.hosting.process import THREAD_SWITCH_S, ExitRequest, StatusPublisher, now_us
from services.kafka.clusters import make_clusters
from services.kafka.control import ControlPlane
from services.kafka.dead_letters import BrokenFrames
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.topics import control_topic, latest_topic, out_topic, stable_topic
from services.storage.kafka_log import KafkaLogStore

_logger = logging.getLogger("boreal.egress")


class EgressProcess:
    """`serve` runs until it is stopped or fenced, or fails, and returns the process's exit code."""

    def __init__(self, settings: ServiceSettings, name: str, query: str, site: str) -> None:
        if site not in settings.site_names:
            raise UserError("site", site, "is not known", f"name one of {', '.join(settings.site_names)}")
        self.name = name
        self.site = site
        self.clusters = make_clusters(settings, name)
        self.registry = QueryRegistry(self.clusters[settings.home])
        record = self.registry.find(query)
        self.layout = make_layout(record.query, settings.site_names)
        self.plan = self.layout.egress_plan(site)
        self.me = self.layout.egress_instance(site)
        self.delays = RecentDelays(self.plan.delay_threshold_us)
        self.exit_request = ExitRequest()
        self.rows = self._row_topics()
        tail = read_out_tail(self.clusters[self.site], self._out_topic, self.rows.next_id)
        restart = self._restart(tail)
        self.out = self._build_outlet(tail, restart)
        self.rows.begin(restart.incarnation, tail)
        self.control = ControlPlane(self.clusters, control_topic(self.plan.query), self.name, self.site)
        self.host = self._build_host(restart)

    def serve(self, stopping: threading.Event) -> int:
        sys.setswitchinterval(THREAD_SWITCH_S)
        status = StatusPublisher(self.clusters[self.layout.home], self.name, self._status)
        self.host.on_change = self.out.on_change = status.now
        self.host.on_broken = BrokenFrames(self.clusters[self.layout.home], self.layout).report
        self.host.start()
        watch = self.registry.watch(self._take_change)
        self.exit_request.wait(stopping)
        for part in (self.host, self.control, watch, self.out, self.rows):
            part.close()
        status.now()
        status.close()
        return self.exit_request.code

    # A new incarnation

    @property
    def _out_topic(self) -> str:
        return out_topic(self.plan.query, self.site, self.layout.sites)

    def _row_topics(self) -> RowTopics:
        """The topics of rows, if this is the home site. They are opened before anything is read, because the writer of q.stable
        fences the earlier incarnations (R28)."""
        if self.site != self.layout.home:
            return RowTopics()
        query, cluster, exit = self.plan.query, self.clusters[self.site], self.exit_request.exit
        stable = StableTopic(cluster, stable_topic(query), f"boreal.{query}.stable", self._out_topic, exit)
        latest = LatestTopic(cluster, latest_topic(query), self._out_topic, exit) if self.plan.latest else None
        return RowTopics(stable, latest)

    def _restart(self, tail: OutTail) -> Restart:
        with closing(KafkaLogStore(self.clusters, self.layout)) as logs:
            restart, is_lossy = egress_restart(self.plan, tail, self.layout.input_logs(self.me), logs.open, logs.is_held)
            if is_lossy:
                _logger.error("inputs that the egress has not delivered yet are trimmed: it begins at the first rows left")
        _logger.info("%s begins incarnation %d at %d, after %s", self.me, restart.incarnation, restart.position, tail.place)
        return restart

    def _build_outlet(self, tail: OutTail, restart: Restart) -> OutTopic:
        output = self.plan.output
        changelog = Changelog(self.plan.query, output.schema, self.plan.output_key, self.plan.bucket_us, place=tail.place)
        return OutTopic(
            self.clusters[self.site],
            self._out_topic,
            changelog,
            restart.incarnation,
            tail.end,
            self.rows,
            self.delays,
            self._read_replica,
            self.exit_request.exit,
        )

    def _build_host(self, restart: Restart) -> InstanceHost:
        instance = Instance(self.plan, self.me, restart)
        first_effects = instance.begin(now_us())
        return build_host(
            instance, first_effects, self.clusters, self.layout, self.out, self.control.send, None, self.exit_request.exit
        )

    def _read_replica(self) -> str:
        return self.host.instance.status().inputs[0].read_from or "r0"

    # Changes of the query

    def _take_change(self, name: str, record: QueryRecord | None) -> None:
        """Apply a new X at once. For all other changes the supervisor restarts the process."""
        if record is None or name != self.plan.query:
            return
        threshold = record.query.delay_threshold
        self.delays.x_us = threshold
        if self.host.instance.status().delay_threshold_us != threshold:
            self.host.deliver(Threshold(threshold))

    # Status

    def _status(self) -> dict[str, Any]:
        self._report_latency()
        if self.rows.latest is not None:
            self.rows.latest.look_for_others()
        place, stable = self.out.changelog.place, self.rows.stable
        host, status = self.host.status, self.host.instance.status()
        since_us = self.out.tentative_since_us
        return {
            "ready": host.state is not None and host.state is not State.RECOVERING,
            "site": self.site,
            "state": host.state.value if host.state else None,
            "since_ms": host.since_us / 1_000,
            "changes": list(host.changes),
            "reads": {entry.key: entry.read_from for entry in status.inputs},
            "x_ms": self.delays.x_us / 1_000,
            "alpha_x_ms": status.alpha_x_us / 1_000,
            "skew_ms": status.skew_us / 1_000,
            "counts": {"stable": place.n_stable, "tentative": place.n_tentative, "undone": place.n_undone},
            "delay_ms": self.delays.summary_ms(now_us()),
            "new_rows": self.delays.rows,
            "violations": self.delays.violations,
            "tentative": {
                "outstanding": place.outstanding,
                "since_ms": since_us / 1_000 if since_us else None,
                "cause": self.out.cause or None,
            },
            "missing": list(status.missing),
            "lost_rows": place.n_skipped + (stable.n_skipped if stable else 0),
            "seq": place.seq,
            "epoch": place.epoch,
            "next_id": {"out": place.next_stable_id, "stable": stable.next_id if stable else None},
            "unconfirmed_frames": self.out.appended - self.out.confirmed,
        }

    def _report_latency(self) -> None:
        """Report how long Kafka takes to confirm a record: it counts as a part of the path after the last SUnion (R9). The
        value is limited to a quarter of X, because an outage is not a measure of it."""
        took_ms = self.out.latency.summary_ms(now_us())["p99"]
        if took_ms is not None:
            micros = min(int(took_ms * 1_000), self.plan.delay_threshold_us // 4)
            self.host.deliver(Received(PathAfter(self.me, self._out_topic, micros)))
