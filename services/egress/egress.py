"""The egress of one site as a process: its instance, and the topics that it writes for clients."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kafka.errors import KafkaError

from boreal.model.errors import BorealError, UserError
from boreal.model.frames import State
from boreal.model.schema import Schema
from boreal.query.records import REGISTERED, Records
from deployment.evolution import schemas
from deployment.layout import layout_of, make_layout
from deployment.query_record import QueryRecord, Takeover
from formats.changelog import Changelog
from formats.debezium import DebeziumForm
from logs.egress_restart import egress_restart
from logs.egress_switch import NextVersion, first_ids_from
from reconcile.events import PathAfter, Received, Threshold
from reconcile.instance import Instance
from reconcile.recovery import Restart
from services.egress.delays import RecentDelays
from services.egress.latest import LatestTopic
from services.egress.out import OutTopic, OutWriter, RowTopics
from services.egress.plain_form import PlainForm, RecordForm
from services.egress.registered import RegisteredForm
from services.egress.stable import StableTopic
from services.egress.tail import OutTail, read_out_tail
from services.egress.takeover import TakeoverOutlet
from services.hosting.connections import Connections
from services.hosting.host import InstanceHost, build_host
from services.hosting.process import EXIT_TAKEN_OVER, ExitRequest, StatusPublisher, StopSignal, now_us
from services.hosting.registry import Registry
from services.kafka.control import ControlPlane
from services.kafka.dead_letters import BrokenFrames
from services.kafka.topics import control_topic, debezium_topic, latest_topic, out_topic, records_topic, stable_topic
from services.storage.kafka_log import KafkaLogStore
from services.storage.log_clients import SiteClients

with suppress(ImportError):
    import confluent_kafka  # noqa: F401 - the first egress would import it while its clients wait

PREPARE_RETRY_S = 0.5

_logger = logging.getLogger("boreal.egress")


class EgressProcess:
    """`serve` runs until it is stopped or fenced, or fails, and returns the process's exit code."""

    def __init__(self, connections: Connections, name: str, record: QueryRecord, site: str) -> None:
        settings = connections.settings
        if site not in settings.site_names:
            raise UserError("site", site, "is not known", f"name one of {', '.join(settings.site_names)}")
        self.name = name
        self.site = site
        self.connections = connections
        self.clusters = connections.clusters
        if len(settings.site_names) > 1:
            # A life before may have promised to end at a time that this record does not say yet.
            record = connections.registry.find(record.name)
        self.query = record.name
        self._preparing = threading.Lock()
        self._known = record
        self._heard: QueryRecord | None = record
        self._on_prepared: Callable[[], None] = lambda: None
        self.exit_request = ExitRequest()
        with connections.starts.take(), ExitStack() as stack:
            self.rows = RowTopics()
            stack.callback(lambda: self.rows.close())
            self._open_finals(record)
            clients = connections.logs.lease({self._out_topic})
            stack.callback(connections.logs.give_back, clients.values())
            _ = clients[site].row_producer  # librdkafka's may send only half a second later: the first rows would wait for it
            tail = read_out_tail(self.clusters[self.site], self._out_topic, self.rows.next_id)
            self.version = record.version if tail.version is None else tail.version
            if self.version not in (run.version for run in record.runs()):
                self._known = record = connections.registry.find(record.name)
            version = record.run(self.version)
            self.layout = layout_of(version, settings.site_names)
            self.plan = self.layout.egress_plan(site)
            self.me = self.layout.egress_instance(site)
            self._open_tables()
            tail = self._tail_for(self.rows, tail)
            self.delays = RecentDelays(self.plan.delay_threshold_us)
            restart = self._restart(tail)
            self.out = stack.enter_context(closing(self._build_outlet(clients[site], tail, restart)))
            self.outlet = TakeoverOutlet(self.out, tail.written_to, self.exit_request.exit)
            self._prepare(record)
            self.rows.begin(restart.incarnation, tail)
            self.control = ControlPlane(connections.controls, control_topic(self.plan.query), self.name, self.site)
            stack.enter_context(closing(self.control))
            self.host = stack.enter_context(closing(self._build_host(restart)))
            self._open = stack.pop_all()

    def serve(self, stopping: StopSignal) -> int:
        life = self
        while (code := life._live(stopping)) == EXIT_TAKEN_OVER and not stopping.is_set():
            # As a new process would, and sooner: clients wait.
            life = EgressProcess(self.connections, self.name, life._known, self.site)
        return code

    def _live(self, stopping: StopSignal) -> int:
        """Run this life; see `serve`. EXIT_TAKEN_OVER: the next one begins with another version of the query."""
        with self._open as stack:
            desk = self.connections.statuses
            status = StatusPublisher(self.connections.home, self.name, self._status, desk, lambda: self.host.is_at_rest)
            stack.enter_context(closing(status))
            self.host.on_change = self.out.on_change = self._on_prepared = status.now
            self.host.on_broken = BrokenFrames(self.clusters[self.layout.home], self.layout).report
            tell = self.connections.tell_correction
            self.host.on_corrected = partial(tell, self.query, self.plan.mode.value, self.me)
            self.host.start()
            self.connections.watch.add(self._take_change)
            stack.callback(self.connections.watch.remove, self._take_change)
            self.exit_request.wait(stopping)
        return self.exit_request.code

    # A new incarnation

    @property
    def _out_topic(self) -> str:
        return out_topic(self.query, self.site, self.connections.settings.site_names)

    def _open_finals(self, record: QueryRecord) -> None:
        """Open the topics of stable rows, if this is the home site: before anything is read, because the writer of
        q.stable fences the earlier incarnations (R28)."""
        if self.site != self.connections.settings.home:
            return
        query, cluster, exit = self.query, self.clusters[self.site], self.exit_request.exit
        name, of_process = f"boreal.{query}", (self.connections.commits, self.connections.turns)
        stable = StableTopic(cluster, stable_topic(query), f"{name}.stable", self._out_topic, exit, None, *of_process)
        self.rows = replace(self.rows, stable=stable)
        wanted = record.query.records
        if wanted is not None:
            form, to = self._record_form(wanted), records_topic(query)
            records = StableTopic(cluster, to, f"{name}.records", self._out_topic, exit, form, *of_process)
            self.rows = replace(self.rows, records=records)

    def _record_form(self, records: Records) -> RecordForm:
        # Rows of an earlier version may wait for the registry, and those of the next one come before this life ends.
        def known() -> Mapping[int, Schema]:
            return schemas(self._known)

        if records.format not in REGISTERED:
            return PlainForm(records.format, known)
        registry = Registry(*self.connections.settings.registry_of("records.registry", records.registry), records.format)
        return RegisteredForm(registry, records.format, records_topic(self.query), self.query, known)

    def _open_tables(self) -> None:
        """Open those of the newest row of each key, as the version has them that this life gives."""
        if self.rows.stable is None:
            return
        query, plan, cluster, exit = self.query, self.plan, self.clusters[self.site], self.exit_request.exit
        if plan.latest:
            self.rows = replace(self.rows, latest=LatestTopic(cluster, latest_topic(query), self._out_topic, exit))
        if plan.debezium:
            envelopes = DebeziumForm(query, plan.output.schema, plan.output_key, schemas(self._known))
            debezium = LatestTopic(cluster, debezium_topic(query), self._out_topic, exit, envelopes)
            self.rows = replace(self.rows, debezium=debezium)

    def _tail_for(self, rows: RowTopics, tail: OutTail) -> OutTail:
        """The end of q.out, with all rows that one of the topics lacks. tail: as it was read for those of stable rows."""
        if rows.next_id == replace(rows, latest=None, debezium=None).next_id:
            return tail
        found = read_out_tail(self.clusters[self.site], self._out_topic, rows.next_id)
        if found.version != tail.version:
            raise BorealError(f"{self._out_topic} has another writer, which has ended version {tail.version}")
        return found

    def _restart(self, tail: OutTail) -> Restart:
        with closing(KafkaLogStore(self.clusters, self.layout, clients=self.connections.logs)) as logs:
            restart, is_lossy = egress_restart(self.plan, tail, self.layout.input_logs(self.me), logs.open, logs.is_held)
            if is_lossy:
                _logger.error("inputs that the egress has not delivered yet are trimmed: it begins at the first rows left")
        _logger.info("%s begins incarnation %d at %d, after %s", self.me, restart.incarnation, restart.position, tail.place)
        return restart

    def _build_outlet(self, clients: SiteClients, tail: OutTail, restart: Restart) -> OutTopic:
        output = self.plan.output
        changelog = Changelog(
            self.query,
            output.schema,
            self.plan.output_key,
            self.plan.bucket_us,
            place=tail.place,
            has_disorder=self.plan.disorder_us > 0,
        )
        version = self.version if tail.version is not None or self.version != 1 else None
        return OutTopic(
            clients,
            self._out_topic,
            changelog,
            OutWriter(restart.incarnation, tail.end, version),
            self.rows,
            self.delays,
            self._read_replica,
            self.exit_request.exit,
        )

    def _build_host(self, restart: Restart) -> InstanceHost:
        instance = Instance(self.plan, self.me, restart)
        near = self.connections.near_logs(self.layout, self.me)
        first_effects = instance.begin(now_us(), near.find())
        return build_host(
            instance,
            first_effects,
            near,
            self.connections,
            self.layout,
            self.outlet,
            self.control,
            None,
            self.exit_request.exit,
        )

    def _read_replica(self) -> str:
        return self.host.instance.status().inputs[0].read_from or "r0"

    # Changes of the query

    def _take_change(self, name: str, record: QueryRecord | None) -> None:
        """Apply a new X at once, and prepare a takeover. For all other changes the supervisor restarts the process."""
        if name != self.query:
            return
        self._heard = record
        if record is None:
            return
        if record.takeover != self._known.takeover:
            # In a thread: it looks into logs, and other roles wait to hear of the change.
            threading.Thread(target=self._prepare_in_time, name="takeover", daemon=True).start()
        version = record.version_named(self.plan.query)
        if version is None:
            return
        threshold = Threshold.of(make_layout(version.query, self.layout.sites).plan)
        self.delays.x_us = threshold.delay_threshold_us
        self.host.set_threshold(threshold)

    def _prepare_in_time(self) -> None:
        """As `_prepare`, by the newest record; retries while Kafka does not answer: nothing else would make this egress end
        where the record says."""
        self.connections.watch.await_current()
        while (record := self._heard) is not None:
            try:
                return self._prepare(record)
            except (KafkaError, OSError) as error:
                _logger.warning("the takeover of %s is prepared again: %r", self.query, error)
                time.sleep(PREPARE_RETRY_S)

    def _prepare(self, record: QueryRecord) -> None:
        """Prepare the takeover that the record names; see `services.egress.takeover`."""
        with self._preparing:
            if record.revision < self._known.revision:
                return
            self._known = record
            following = None
            if record.takeover is not None and record.takeover.to != self.version:
                following = self._next_version(record, record.takeover)
            self.outlet.prepare(following)
        self._on_prepared()

    def _next_version(self, record: QueryRecord, takeover: Takeover) -> NextVersion:
        version = record.run(takeover.to)
        layout = layout_of(version, self.layout.sites)
        plan, inputs = layout.egress_plan(self.site), layout.input_logs(layout.egress_instance(self.site))
        with closing(KafkaLogStore(self.clusters, layout, clients=self.connections.logs)) as logs:
            first_ids = first_ids_from(plan, takeover.at, inputs, logs.open)
        return NextVersion(takeover.to, takeover.at, takeover.agreed, plan, first_ids)

    # Status

    def _status(self) -> dict[str, Any]:
        self._report_latency()
        for table in self.rows.tables:
            table.look_for_others()
        place, stable, records = self.out.changelog.place, self.rows.stable, self.rows.records
        host, status = self.host.status, self.host.instance.status()
        since_us = self.out.tentative_since_us
        return {
            "ready": host.state is not None and host.state is not State.RECOVERING,
            "site": self.site,
            "version": self.version,
            "through_us": place.through,
            "takeover": self.outlet.status(),
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
            "next_id": {
                "out": place.next_stable_id,
                "stable": stable.next_id if stable else None,
                "records": records.next_id if records else None,
            },
            "records_wait_for": records.waits_for if records else None,
            "unconfirmed_frames": self.out.appended - self.out.confirmed,
        }

    def _report_latency(self) -> None:
        """Report how long Kafka takes to confirm a record: it counts as a part of the path after the last SUnion (R9). The
        value is limited to a quarter of X, because an outage is not a measure of it."""
        took_ms = self.out.latency.summary_ms(now_us())["p99"]
        if took_ms is not None:
            micros = min(int(took_ms * 1_000), self.plan.delay_threshold_us // 4)
            self.host.deliver(Received(PathAfter(self.me, self._out_topic, micros)))
