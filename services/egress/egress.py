"""The egress of one site as a process: its instance, and the topics that clients read."""

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
from services.egress.out import OutTopic
from services.egress.stable import StableTopic
from services.egress.tail import OutTail, read_out_tail
from services.hosting.host import InstanceHost, host_of
from services.hosting.process import THREAD_SWITCH_S, Ending, StatusPublisher, now_us
from services.kafka.clusters import make_clusters
from services.kafka.control import ControlPlane
from services.kafka.dead_letters import BrokenFrames
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.topics import control_topic, latest_topic, out_topic, stable_topic
from services.storage.kafka_log import KafkaLogStore

_logger = logging.getLogger("boreal.egress")


class Egress:
    """`serve` runs until it is stopped, fenced or broken, and returns the process's exit code."""

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
        self.ending = Ending()

    def serve(self, stopping: threading.Event) -> int:
        sys.setswitchinterval(THREAD_SWITCH_S)
        self.stable = self._stable_topic()
        self.latest = self._latest_topic()
        needed = min((topic.next_id for topic in (self.stable, self.latest) if topic is not None), default=None)
        tail = read_out_tail(self.clusters[self.site], self._out_topic, needed)
        restart = self._restart(tail)
        self.out = self._outlet(tail, restart)
        if self.stable is not None:
            self.stable.begin(restart.incarnation, tail.lacking_from, tail.end)
        if self.latest is not None:
            self.latest.begin(tail.lacking_from, tail.end)
        control = ControlPlane(self.clusters, control_topic(self.plan.query), self.name, self.site)
        self.host = self._host(restart, control)
        status = StatusPublisher(self.clusters[self.layout.home], self.name, self._status)
        self.host.on_change = status.now
        self.host.on_broken = BrokenFrames(self.clusters[self.layout.home], self.layout).report
        self.host.start()
        watch = self.registry.watch(self._take_change)
        self.ending.wait(stopping)
        for part in (self.host, control, watch, self.out, self.stable, self.latest):
            if part is not None:
                part.close()
        status.now()
        status.close()
        return self.ending.code

    # A new life

    @property
    def _out_topic(self) -> str:
        return out_topic(self.plan.query, self.site, self.layout.sites)

    def _stable_topic(self) -> StableTopic | None:
        """Made before anything is read: from then on no earlier life can change q.stable (R28)."""
        if self.site != self.layout.home:
            return None
        query = self.plan.query
        cluster, writer = self.clusters[self.site], f"boreal.{query}.stable"
        return StableTopic(cluster, stable_topic(query), writer, self._out_topic, self.ending.exit)

    def _latest_topic(self) -> LatestTopic | None:
        if self.site != self.layout.home or not self.plan.latest:
            return None
        return LatestTopic(self.clusters[self.site], latest_topic(self.plan.query), self._out_topic, self.ending.exit)

    def _restart(self, tail: OutTail) -> Restart:
        with closing(KafkaLogStore(self.clusters, self.layout)) as logs:
            restart, is_lossy = egress_restart(self.plan, tail, self.layout.input_logs(self.me), logs.open, logs.is_held)
            if is_lossy:
                _logger.error("inputs that the egress has not given yet are trimmed: it begins where its inputs begin")
        _logger.info("%s begins life %d at %d, after %s", self.me, restart.incarnation, restart.position, tail.place)
        return restart

    def _outlet(self, tail: OutTail, restart: Restart) -> OutTopic:
        output = self.plan.output
        changelog = Changelog(self.plan.query, output.schema, self.plan.output_key, self.plan.bucket_us, place=tail.place)
        return OutTopic(
            self.clusters[self.site],
            self._out_topic,
            changelog,
            restart.incarnation,
            tail.end,
            self._read_replica,
            self.stable,
            self.latest,
            self.delays,
            self.ending.exit,
        )

    def _host(self, restart: Restart, control: ControlPlane) -> InstanceHost:
        instance = Instance(self.plan, self.me, restart)
        begun = instance.begin(now_us())
        return host_of(instance, begun, self.clusters, self.layout, self.out, control.send, None, self.ending.exit)

    def _read_replica(self) -> str:
        return self.host.instance.links[0].upstream.live.log.replica or "r0"

    # What comes from outside

    def _take_change(self, name: str, record: QueryRecord | None) -> None:
        """A new X holds at once; all else is a matter for a new life, which is the supervisor's to begin."""
        if record is None or name != self.plan.query:
            return
        threshold = record.query.delay_threshold
        self.delays.x_us = threshold
        if self.host.instance.delay_threshold_us != threshold:
            self.host.deliver(Threshold(threshold))

    # What it says of itself

    def _status(self) -> dict[str, Any]:
        self._tell_latency()
        if self.latest is not None:
            self.latest.look_for_others()
        place = self.out.changelog.place
        journal, instance = self.host.journal, self.host.instance
        since_us = self.out.tentative_since_us
        return {
            "ready": journal.state is not None and journal.state is not State.RECOVERING,
            "site": self.site,
            "state": journal.state.value if journal.state else None,
            "since_ms": journal.since_us / 1_000,
            "x_ms": self.delays.x_us / 1_000,
            "alpha_x_ms": instance.sunion.alpha_x_us / 1_000,
            "skew_ms": instance.skew_us / 1_000,
            "counts": {"stable": place.n_stable, "tentative": place.n_tentative, "undone": place.n_undone},
            "delay_ms": self.delays.summary_ms(now_us()),
            "violations": self.delays.violations,
            "tentative": {
                "outstanding": place.outstanding,
                "since_ms": since_us / 1_000 if since_us else None,
                "cause": self.out.cause or None,
            },
            "missing": list(instance.missing()),
            "lost_rows": place.n_skipped + (self.stable.n_skipped if self.stable else 0),
            "seq": place.seq,
            "epoch": place.epoch,
            "next_id": {"out": place.next_stable_id, "stable": self.stable.next_id if self.stable else None},
            "unconfirmed_frames": self.out.appended - self.out.confirmed,
        }

    def _tell_latency(self) -> None:
        """R9: what Kafka takes to confirm a record comes after the last SUnion too. An outage is no measure of that."""
        took_ms = self.out.latency.summary_ms(now_us())["p99"]
        if took_ms is not None:
            micros = min(int(took_ms * 1_000), self.plan.delay_threshold_us // 4)
            self.host.deliver(Received(PathAfter(self.me, self._out_topic, micros)))
