"""What a node counts as confirmed, since acknowledgements and checkpoints rest on it; to whom it listens; and with what it
begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import pytest

from boreal.model.errors import UserError
from boreal.model.frames import Boundary, Frame, LogId, Origin, State
from boreal.query.spec import load_query
from deployment.layout import Layout, make_layout
from deployment.query_record import SharedSources
from formats.control_messages import message_item
from logs.checkpoints import Checkpoint, StoreUnavailableError
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.restart import verified
from reconcile.events import Heartbeat, InstanceId, Received
from reconcile.recovery import Beginning
from services.hosting.connections import Connections
from services.hosting.host import InboxItem, InstanceHost
from services.hosting.process import StopSignal
from services.hosting.starts import Starts
from services.kafka.control import GATHER_MS, ControlPlane
from services.kafka.settings import RedisSettings
from services.node.node import KafkaOutlet, NodeProcess
from services.storage.kafka_log import KafkaLog
from services.storage.redis_checkpoints import connect_redis
from tests.harness import query_of


@dataclass
class Log:
    """A log in a partition that may be slower than another."""

    id: LogId
    unacknowledged: int = 0

    def append_later(self, frame: Frame) -> None:
        self.unacknowledged += 1


def test_nothing_counts_as_confirmed_after_a_frame_that_is_not() -> None:
    slow, quick = Log(LogId("out", "r0", 0)), Log(LogId("out", "r0", 1))
    appender = KafkaOutlet([cast(KafkaLog, log) for log in (slow, quick)])
    assert appender.confirmed == 0
    for log in (quick, slow, quick, quick):
        appender.append(log.id, Boundary(Origin("r0", 1), 0, 7, False, 0, 0))
    assert appender.confirmed == 0
    quick.unacknowledged = 0
    assert appender.confirmed == 1
    appender.append(quick.id, Boundary(Origin("r0", 1), 0, 8, False, 0, 0))
    slow.unacknowledged = 0
    assert appender.confirmed == 4
    quick.unacknowledged = 0
    assert appender.confirmed == appender.appended == 5


class Host:
    def __init__(self) -> None:
        self.taken: list[InboxItem] = []

    def deliver(self, event: InboxItem) -> None:
        self.taken.append(event)


def test_a_replica_that_the_query_had_once_is_not_listened_to() -> None:
    """An instance knows its peers, and one message of another would end its node."""
    node, host = NodeProcess.__new__(NodeProcess), Host()
    node.layout = make_layout(load_query(query_of(engine="native")), ("a",))
    [me] = node.layout.instances("r0")
    node.hosts = {me: cast(InstanceHost, host)}
    for replica in ("r2", "r1"):
        sender = InstanceId(me.fragment, replica, 0)
        node._hear(f"node.q.{replica}", [message_item(me, Heartbeat(sender, State.STABLE))])
    assert host.taken == [Received(Heartbeat(InstanceId(me.fragment, "r1", 0), State.STABLE))]


class AwayStore(MemoryCheckpointStore):
    """A store that does not answer."""

    def get(self, instance: str, number: int) -> Checkpoint:
        raise StoreUnavailableError("Redis: refused")


def test_a_state_that_another_version_has_handed_on_is_begun_with_only_if_nothing_better_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that cannot be read ends nothing: a partner's place may serve, or a log that still has all rows."""
    node, me = NodeProcess.__new__(NodeProcess), InstanceId("main", "r1", 0)
    store, owner = MemoryCheckpointStore(), "carried/main.r0.0"
    state = Checkpoint(owner, 7, 500, 500, (), (("a/0", 40),), b"state")
    store.put(state)
    store.put(replace(state, number=9))
    node.store, first_ids = store, {"a/0": 40}
    node.shared = SharedSources(1, "earliest", {**first_ids, "b/0": 3}, {"a": 500}, {"main/0": (owner, 7)})
    assert node._beginning(me, ["a/0"], False) == Beginning(first_ids, True, verified(state))
    assert node._beginning(me, ["a/0"], True) == Beginning(first_ids, True)
    store.blobs[owner][7] = store.blobs[owner][7][:-1]
    for unreadable in (store, MemoryCheckpointStore(), AwayStore()):
        node.store = unreadable
        assert node._beginning(me, ["a/0"], False) == Beginning(first_ids, True)
    assert caplog.text.count("the state with which main.r1.0 begins cannot be read") == 3
    node.shared = replace(node.shared, states=None)
    assert node._beginning(me, ["a/0"], False) == Beginning(first_ids)


def test_messages_gather_for_half_of_the_time_for_which_rows_do_in_all_instances() -> None:
    def gather_ms(*rests_us: int) -> int:
        node = object.__new__(NodeProcess)
        hosts = [SimpleNamespace(instance=SimpleNamespace(rest_us=rest_us)) for rest_us in rests_us]
        node.hosts = {InstanceId("f", "r0", shard): cast(InstanceHost, host) for shard, host in enumerate(hosts)}
        return node._gather_ms()

    assert gather_ms(300_000, 200_000) == 100
    assert gather_ms(300_000, 0) == GATHER_MS


class HostToClose:
    """The host of an instance that has not begun."""

    def __init__(self, closed: list[InstanceId], who: InstanceId) -> None:
        self._closed, self._who = closed, who

    def close(self) -> None:
        self._closed.append(self._who)


def test_a_node_that_cannot_begin_holds_no_instance() -> None:
    """Each has readers with threads; the node is begun again and again, in a worker that goes on."""
    closed: list[InstanceId] = []
    node = object.__new__(NodeProcess)
    node.name, node.site, node.replica = "node.q.r0", "a", "r0"
    node.layout = make_layout(load_query(query_of(engine="native")), ("a",))
    first, second = InstanceId("main", "r0", 0), InstanceId("main", "r0", 1)
    node.layout = cast(Layout, SimpleNamespace(
        plan=node.layout.plan, remote_instances=lambda replica: [], instances=lambda replica: [first, second]
    ))
    desk = SimpleNamespace(join=lambda *_: None, leave=lambda *_: None)
    node.connections = cast(Connections, SimpleNamespace(controls={"a": desk}, starts=Starts()))
    node.hosts, node.logs, node.stores, node.remote = {}, [], [], None
    node.redis = connect_redis(RedisSettings())

    def build(who: InstanceId, control: ControlPlane) -> HostToClose:
        if who == second:
            raise UserError("instance", str(who), "cannot begin", "wait for a partner")
        return HostToClose(closed, who)

    node._build_host = build  # type: ignore[method-assign, assignment]
    with pytest.raises(UserError, match="cannot begin"):
        node.serve(StopSignal())
    assert closed == [first]
