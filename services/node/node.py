"""One replica of a query as a process: its instances, each in a thread of its own, and what they share: the clients of
Kafka and Redis, the control topic, and the query's record, where the user changes X."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from boreal.model.errors import CorruptError, UserError
from boreal.model.frames import Frame, LogId, State
from deployment.layout import make_layout
from deployment.query_record import QueryRecord
from formats.control_messages import ControlItem, instance_of, message_of
from logs.checkpoints import CheckpointStore, StoreUnavailableError
from logs.restart import restarts, saved_by
from reconcile.events import Effect, InstanceId, Received, Threshold
from reconcile.instance import Instance
from reconcile.recovery import Saved
from services.hosting.host import InstanceHost, host_of
from services.hosting.order_channel import RemoteHosts
from services.hosting.process import EXIT_FENCED, THREAD_SWITCH_S, Ending, StatusPublisher, now_us
from services.hosting.trimmer import Trimmer
from services.kafka.clusters import make_clusters
from services.kafka.control import ControlPlane
from services.kafka.dead_letters import BrokenFrames
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.topics import control_topic
from services.storage.kafka_log import KafkaLog, KafkaLogStore
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis

_logger = logging.getLogger("boreal.node")


class Appender:
    """An instance's own logs, as its host's outlet. `confirmed` may be asked for from any thread."""

    def __init__(self, logs: Sequence[KafkaLog]) -> None:
        self._logs = {log.id: log for log in logs}
        self._places: dict[LogId, deque[int]] = {log.id: deque() for log in logs}
        self._lock = threading.Lock()
        self.appended = 0

    def append(self, log: LogId, frame: Frame) -> None:
        self._logs[log].append_later(frame)
        with self._lock:
            self._places[log].append(self.appended)
            self.appended += 1

    @property
    def confirmed(self) -> int:
        """Each log confirms its frames in their order, but one may be far behind another."""
        with self._lock:
            for log, places in self._places.items():
                for _ in range(len(places) - self._logs[log].unacknowledged):
                    places.popleft()
            return min((places[0] for places in self._places.values() if places), default=self.appended)


class Node:
    """`serve` runs until it is stopped, fenced or broken, and returns the process's exit code."""

    def __init__(self, settings: ServiceSettings, name: str, query: str, replica: str) -> None:
        self.name = name
        self.replica = replica
        self.clusters = make_clusters(settings, name)
        self.registry = QueryRegistry(self.clusters[settings.home])
        record = self.registry.find(query)
        self.layout = make_layout(record.query, settings.site_names)
        self.history_us = record.query.tuning.history
        if replica not in self.layout.replicas:
            raise UserError("replica", replica, f"{query} has no such replica", f"name one of {self.layout.replicas}")
        self.site = self.layout.site_of_replica(replica)
        self.store: CheckpointStore = RedisCheckpointStore(connect_redis(settings.redis), prefix=query)
        self.hosts: dict[InstanceId, InstanceHost] = {}
        self.logs: list[KafkaLog] = []
        self.remote: RemoteHosts | None = None
        self.ending = Ending()

    def serve(self, stopping: threading.Event) -> int:
        sys.setswitchinterval(THREAD_SWITCH_S)
        home = self.clusters[self.layout.home]
        control = ControlPlane(self.clusters, control_topic(self.layout.plan.query), self.name, self.site)
        elsewhere = self.layout.remote_instances(self.replica)
        if elsewhere:
            plan, exit = self.layout.plan, self.ending.exit
            self.remote = RemoteHosts(self.clusters[self.site], plan, self.replica, elsewhere, self.store, exit)
        for who in self.layout.instances(self.replica):
            self.hosts[who] = self._host(who, control.send)
        if self.remote is not None:
            # Orders of our former life may still be answered: whom to tell must be known by now.
            self.remote.begin(lambda who, answered: self.hosts[who].deliver(answered))
        self.trimmer = Trimmer(self.logs)
        control.listen(self._hear)
        status = StatusPublisher(home, self.name, self._status)
        broken = BrokenFrames(home, self.layout)
        for host in self.hosts.values():
            host.on_change, host.on_broken = status.now, broken.report
            host.start()
        watch = self.registry.watch(self._take_change)
        self.ending.wait(stopping)
        for host in self.hosts.values():
            host.close()
        for part in (control, self.trimmer, watch):
            part.close()
        if self.remote is not None:
            self.remote.close()
        for log in self.logs:
            log.flush(2.0)
        status.now()
        status.close()
        return self.ending.code

    # Making instances

    def _host(self, who: InstanceId, send: Callable[[list[ControlItem]], None]) -> InstanceHost:
        store = KafkaLogStore(self.clusters, self.layout, history_us=self.history_us)
        instance, begun = self._new_life(who, store)
        logs = [store.open(log) for log in self.layout.own_logs(who)]
        for log in logs:
            log.on_fenced = lambda log=log: self._fenced(log)  # type: ignore[misc]
        self.logs += logs
        host = host_of(
            instance, begun, self.clusters, self.layout, Appender(logs), send, self.store, self.ending.exit
        )
        if self.remote is not None and instance.engine.host is None:
            host.give_order = partial(self.remote.give, who)
        return host

    def _new_life(self, who: InstanceId, logs: KafkaLogStore) -> tuple[Instance, list[Effect]]:
        """R25, R26: from the best place that can be served and whose state can be read. With its first effects."""
        partners = [replace(who, replica=r) for r in self.layout.plan.fragment(who.fragment).replicas if r != who.replica]
        replicas = [(self.layout.own_logs(one), self._saved(one)) for one in (who, *partners)]
        for restart in restarts(who, replicas, self.layout.input_logs(who), logs.open, logs.is_held):
            instance = Instance(self.layout.plan, who, restart)
            try:
                begun = instance.begin(now_us())
            except CorruptError as error:
                _logger.error("a checkpoint of %s cannot be used, so an older place serves: %s", who, error)
                continue
            _logger.info("%s begins life %d at %d", who, restart.incarnation, restart.position)
            return instance, begun
        raise UserError(
            f"instance {who}",
            None,
            "cannot begin: its inputs are trimmed, and no partner can help",
            "wait for a partner, or delete and apply the query anew",
        )

    def _saved(self, who: InstanceId) -> Saved | None:
        """Redis out of reach is as good as no checkpoint: the log serves (R19)."""
        try:
            return saved_by(self.store, who)
        except StoreUnavailableError as error:
            _logger.warning("no checkpoint of %s: %s", who, error)
            return None

    def _fenced(self, log: KafkaLog) -> None:
        _logger.error("%s has another writer: a later life of ours has begun", log.id)
        self.ending.exit(EXIT_FENCED)

    # What comes from outside

    def _hear(self, sender: str, items: list[ControlItem]) -> None:
        for item in items:
            if "message" in item:
                host, message = self.hosts.get(instance_of(item["to"])), message_of(item)
                # A node of an earlier shape of the query may still speak: no peer of ours.
                if host is not None and message.sender in self.layout.everyone:
                    host.deliver(Received(message))
            elif "trim" in item:
                self.trimmer.take(item)

    def _take_change(self, name: str, record: QueryRecord | None) -> None:
        """A new X holds at once; all else is a matter for a new life, which is the supervisor's to begin."""
        if record is None or name != self.layout.plan.query:
            return
        threshold = record.query.delay_threshold
        for host in self.hosts.values():
            if host.instance.delay_threshold_us != threshold:
                host.deliver(Threshold(threshold))

    # What it says of itself

    def _status(self) -> dict[str, Any]:
        states = [host.journal.state for host in self.hosts.values()]
        return {
            "ready": all(state is not None and state is not State.RECOVERING for state in states),
            "site": self.site,
            "instances": [self._instance_status(host) for host in self.hosts.values()],
        }

    def _instance_status(self, host: InstanceHost) -> dict[str, Any]:
        instance, journal = host.instance, host.journal
        sunion = instance.sunion
        return {
            "fragment": host.me.fragment,
            "replica": host.me.replica,
            "shard": host.me.shard,
            "engine": self.layout.plan.fragment(host.me.fragment).engine_of(self.replica),
            "state": journal.state.value if journal.state else None,
            "since_ms": journal.since_us / 1_000,
            "x_ms": instance.delay_threshold_us / 1_000,
            "alpha_x_ms": sunion.alpha_x_us / 1_000,
            "least_x_ms": instance.least_threshold_us / 1_000,
            "engine_ms": instance.engine.latency_us / 1_000,
            "missing": list(instance.missing()),
            "position": sunion.base.position,
            "inputs": [
                {
                    "name": link.port.key,
                    "boundary": link.port.tape.boundary,
                    "silent": link.port.silent,
                    "failed": link.port.failed,
                    "read_from": link.upstream.live.log.replica,
                    "skew_ms": link.skew_us / 1_000,
                    "silent_for_ms": max(now_us() - link.upstream.live.seen, 0) / 1_000,
                }
                for link in instance.links
            ],
            "reconciliations": journal.reconciliations,
            "last_reconciliation_s": journal.last_reconciliation_s,
            "unconfirmed_frames": host.outlet.appended - host.outlet.confirmed,
        }
