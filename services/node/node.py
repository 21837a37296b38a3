"""One replica of a query as a process: its instances, each in its own thread, and the resources that they share: the clients
of Kafka and Redis, the control topic, and the query's record, in which the user may change X."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from boreal.model.errors import CorruptError, UserError
from boreal.model.frames import Frame, LogId, State
from deployment.instance_fields import instance_fields
from deployment.layout import layout_of, make_layout
from deployment.query_record import QueryRecord
from formats.control_messages import ControlItem, instance_of, message_of
from logs.checkpoints import CheckpointStore, StoreUnavailableError
from logs.restart import restarts, saved_by, verified
from reconcile.events import Effect, InstanceId, Received, Threshold
from reconcile.instance import Instance
from reconcile.recovery import FROM_THE_FIRST, Beginning, VerifiedCheckpoint
from services.hosting.connections import Connections
from services.hosting.host import InstanceHost, build_host
from services.hosting.order_channel import OrderChannel
from services.hosting.process import EXIT_FENCED, ExitRequest, StatusPublisher, StopSignal, now_us
from services.hosting.trimmer import Trimmer
from services.kafka.control import GATHER_MS, ControlPlane, gather_ms
from services.kafka.dead_letters import BrokenFrames
from services.kafka.topics import control_topic
from services.storage.kafka_log import KafkaLog, KafkaLogStore
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis

_logger = logging.getLogger("boreal.node")


class KafkaOutlet:
    """An instance's own logs as the outlet of its host. `confirmed` may be read from any thread."""

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
        """How many frames, counted from the first, Kafka has: each log confirms in order, but one may be far behind another."""
        with self._lock:
            for log, places in self._places.items():
                for _ in range(len(places) - self._logs[log].unacknowledged):
                    places.popleft()
            return min((places[0] for places in self._places.values() if places), default=self.appended)

    @property
    def may_wait(self) -> bool:
        return any(log.may_wait for log in self._logs.values())


class NodeProcess:
    """`serve` runs until it is stopped or fenced, or fails, and returns the process's exit code."""

    def __init__(self, connections: Connections, name: str, record: QueryRecord, replica: str) -> None:
        settings = connections.settings
        self.name = name
        self.replica = replica
        self.connections = connections
        self.clusters = connections.clusters
        query = record.query
        self.layout = layout_of(record, settings.site_names)
        self.shared = record.shared
        self.history_us = query.tuning.history
        if replica not in self.layout.replicas:
            raise UserError("replica", replica, f"{query.name} has no such replica", f"name one of {self.layout.replicas}")
        self.site = self.layout.site_of_replica(replica)
        self.redis = connect_redis(settings.redis)
        self.store: CheckpointStore = RedisCheckpointStore(self.redis, prefix=record.inner)
        self.hosts: dict[InstanceId, InstanceHost] = {}
        self.stores: list[KafkaLogStore] = []
        self.logs: list[KafkaLog] = []
        self.remote: OrderChannel | None = None
        self.trimmer: Trimmer | None = None
        self.problem: str | None = None
        self.exit_request = ExitRequest()

    def serve(self, stopping: StopSignal) -> int:
        with ExitStack() as stack:
            stack.callback(self.redis.close)
            stack.callback(self._close_logs)
            with self.connections.starts.take():
                status = self._open(stack)
            self.exit_request.wait(stopping)
            if self.problem is not None:
                status.deliver()
        return self.exit_request.code

    def _open(self, stack: ExitStack) -> StatusPublisher:
        """Begin all instances. What they use is closed with the stack."""
        control = ControlPlane(self.connections.controls, control_topic(self.layout.plan.query), self.name, self.site)
        stack.enter_context(closing(control))
        remote = self.layout.remote_instances(self.replica)
        if remote:
            plan, exit = self.layout.plan, self.exit_request.exit
            self.remote = OrderChannel(self.clusters[self.site], plan, self.replica, remote, self.store, exit)
            stack.enter_context(closing(self.remote))
        for who in self.layout.instances(self.replica):
            self.hosts[who] = stack.enter_context(closing(self._build_host(who, control)))
        if self.remote is not None:
            # After all hosts are made: answers to orders of the former incarnation may arrive at once.
            self.remote.begin(lambda who, answered: self.hosts[who].deliver(answered))
        self.trimmer = stack.enter_context(closing(Trimmer(self.logs)))
        control.listen(self._hear, self._gather_ms)
        status = self._start_hosts(stack)
        self.connections.watch.add(self._take_change)
        stack.callback(self.connections.watch.remove, self._take_change)
        return status

    def _start_hosts(self, stack: ExitStack) -> StatusPublisher:
        home = self.connections.home
        status = StatusPublisher(home, self.name, self._status, self.connections.statuses, self._is_calm)
        stack.enter_context(closing(status))
        broken = BrokenFrames(home, self.layout)
        tell, plan = self.connections.tell_correction, self.layout.plan
        for who, host in self.hosts.items():
            host.on_change, host.on_broken = status.now, broken.report
            host.on_corrected = partial(tell, plan.query, plan.mode.value, who)
            host.on_failed = self._fail
            host.start()
        return status

    def _gather_ms(self) -> int:
        """How long messages may wait for others: as long as all instances allow."""
        return gather_ms(GATHER_MS, min((host.instance.rest_us for host in self.hosts.values()), default=0))

    def _fail(self, problem: str) -> None:
        """Remember why the process is about to end; the first of several reasons counts."""
        self.problem = self.problem or problem

    def _close_logs(self) -> None:
        for log in self.logs:
            log.flush(2.0)
        for store in self.stores:
            store.close()

    # Instances

    def _build_host(self, who: InstanceId, control: ControlPlane) -> InstanceHost:
        store = KafkaLogStore(self.clusters, self.layout, history_us=self.history_us, clients=self.connections.logs)
        self.stores.append(store)
        near = self.connections.near_logs(self.layout, who)
        instance, first_effects = self._begin_incarnation(who, store, near.find())
        logs = [store.open(log) for log in self.layout.own_logs(who)]
        for log in logs:
            log.on_fenced = lambda log=log: self._fenced(log)  # type: ignore[misc]
            log.prepare()
        self.logs += logs
        host = build_host(
            instance,
            first_effects,
            near,
            self.connections,
            self.layout,
            KafkaOutlet(logs),
            control,
            self.store,
            self.exit_request.exit,
        )
        if self.remote is not None:
            host.give_order = partial(self.remote.give, who)
        return host

    def _begin_incarnation(
        self, who: InstanceId, logs: KafkaLogStore, near: frozenset[LogId]
    ) -> tuple[Instance, list[Effect]]:
        """A new incarnation of an instance, with its first effects: from the latest place whose state can be read and whose
        inputs still exist (R25, R26). near: as in `Near`."""
        partners = [who._replace(replica=r) for r in self.layout.plan.fragment(who.fragment).replicas if r != who.replica]
        replicas = [(self.layout.own_logs(one), self._saved(one)) for one in (who, *partners)]
        inputs = self.layout.input_logs(who)
        beginning = self._beginning(who, inputs, any(saved is not None for _, saved in replicas))
        for restart in restarts(who, replicas, inputs, logs.open, logs.is_held, beginning):
            instance = Instance(self.layout.plan, who, restart)
            try:
                first_effects = instance.begin(now_us(), near)
            except CorruptError as error:
                _logger.error("a checkpoint of %s cannot be used, an older place is tried: %s", who, error)
                continue
            _logger.info("%s begins incarnation %d at %d", who, restart.incarnation, restart.position)
            return instance, first_effects
        raise UserError(
            f"instance {who}",
            None,
            "cannot begin: its inputs are trimmed, and no partner has them",
            "wait for a partner, or delete the query and apply it again; a version that has not taken over can be rolled back",
        )

    def _saved(self, who: InstanceId) -> VerifiedCheckpoint | None:
        """The instance's checkpoints; None if Redis is out of reach: it then restarts from its log alone (R19)."""
        try:
            return saved_by(self.store, who)
        except StoreUnavailableError as error:
            _logger.warning("no checkpoint of %s: %s", who, error)
            return None

    def _beginning(self, who: InstanceId, inputs: Collection[str], has_checkpoint: bool) -> Beginning:
        """Where the first incarnation of an instance begins. has_checkpoint: whether a replica has one, which is better."""
        if self.shared is None:
            return FROM_THE_FIRST
        first_ids = {key: first_id for key, first_id in (self.shared.first_ids or {}).items() if key in inputs}
        place = (self.shared.states or {}).get(f"{who.fragment}/{who.shard}")
        if place is None or has_checkpoint:
            return Beginning(first_ids, place is not None)
        try:
            return Beginning(first_ids, True, verified(self.store.get(*place)))
        except (KeyError, CorruptError, StoreUnavailableError) as error:
            _logger.error("the state with which %s begins cannot be read: %r", who, error)
            return Beginning(first_ids, True)

    def _fenced(self, log: KafkaLog) -> None:
        _logger.error("%s has another writer: a later incarnation of this node has begun", log.id)
        self.exit_request.exit(EXIT_FENCED)

    # Messages and changes

    def _hear(self, sender: str, items: list[ControlItem]) -> None:
        for item in items:
            if "message" in item:
                host, message = self.hosts.get(instance_of(item["to"])), message_of(item)
                # A node of an earlier version of the query may still send messages: it is not a peer.
                if host is not None and message.sender in self.layout.everyone:
                    host.deliver(Received(message))
            elif "trim" in item and self.trimmer is not None:
                self.trimmer.take(item)

    def _take_change(self, name: str, record: QueryRecord | None) -> None:
        """Apply a new X at once. For all other changes the supervisor restarts the process."""
        version = record.version_named(self.layout.plan.query) if record is not None else None
        if version is None or name != version.public:
            return
        threshold = Threshold.of(make_layout(version.query, self.layout.sites).plan)
        for host in self.hosts.values():
            host.set_threshold(threshold)

    # Status

    def _is_calm(self) -> bool:
        return all(host.is_at_rest for host in self.hosts.values())

    def _status(self) -> dict[str, Any]:
        states = [host.status.state for host in self.hosts.values()]
        return {
            "ready": self.problem is None and all(state is not None and state is not State.RECOVERING for state in states),
            "site": self.site,
            "problem": self.problem,
            "instances": [self._instance_status(host) for host in self.hosts.values()],
        }

    def _instance_status(self, host: InstanceHost) -> dict[str, Any]:
        status, own = host.instance.status(), host.status
        return {
            "fragment": host.me.fragment,
            "replica": host.me.replica,
            "shard": host.me.shard,
            "engine": self.layout.plan.fragment(host.me.fragment).engine_of(self.replica),
            "state": own.state.value if own.state else None,
            "since_ms": own.since_us / 1_000,
            "changes": list(own.changes),
            **instance_fields(status, now_us()),
            "reconciliations": own.reconciliations,
            "last_reconciliation_s": own.last_reconciliation_s,
            "unconfirmed_frames": host.outlet.appended - host.outlet.confirmed,
        }
