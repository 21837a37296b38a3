"""What a node counts as confirmed, since acknowledgements and checkpoints rest on it; and to whom it listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from boreal.model.frames import Boundary, Frame, LogId, Origin, State
from boreal.query.spec import load_query
from deployment.layout import make_layout
from formats.control_messages import message_item
from reconcile.events import Heartbeat, InstanceId, Received
from services.hosting.host import Incoming, InstanceHost
from services.node.node import Appender, Node
from services.storage.kafka_log import KafkaLog
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
    appender = Appender([cast(KafkaLog, log) for log in (slow, quick)])
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
        self.taken: list[Incoming] = []

    def deliver(self, event: Incoming) -> None:
        self.taken.append(event)


def test_a_replica_that_the_query_had_once_is_not_listened_to() -> None:
    """An instance knows its peers, and one message of another would end its node."""
    node, host = Node.__new__(Node), Host()
    node.layout = make_layout(load_query(query_of(engine="native")), ("a",))
    [me] = node.layout.instances("r0")
    node.hosts = {me: cast(InstanceHost, host)}
    for replica in ("r2", "r1"):
        sender = InstanceId(me.fragment, replica, 0)
        node._hear(f"node.q.{replica}", [message_item(me, Heartbeat(sender, State.STABLE))])
    assert host.taken == [Received(Heartbeat(InstanceId(me.fragment, "r1", 0), State.STABLE))]
