"""The control topic of a query: states, leases, acknowledgements and what may be trimmed (R24).

Each process writes to its own site's control topic and reads those of all sites from their ends. A record holds all that
one process had to say at one moment:

    {"v": 1, "sender": "node.departures.r0", "items": [ITEM, ...]}
    {"to": "main.r1.0", "message": {"type": "Heartbeat", "sender": "main.r0.0", "state": "STABLE"}}
    {"acknowledge": {"reader": "main.r0.0", "positions": [["jfk/0", 1200], ...]}}
    {"trim": [["jfk/0", 1100], ...]}

Nothing here is needed for a right answer: losing the topic changes no state. What cannot be sent at once is forgotten,
since a heartbeat or a lease that arrives after a cut has healed would speak of another time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kafka.consumer.fetcher import ConsumerRecord

from boreal.errors import ProtocolError
from boreal.frames import State
from reconcile.events import (
    Heartbeat,
    InstanceId,
    LeaseDenial,
    LeaseEnd,
    LeaseGrant,
    LeaseRequest,
    Message,
    PathAfter,
)
from services.clusters import Cluster
from services.follower import TopicFollower
from services.mailbox import Outbox

VERSION = 1
Item = dict[str, Any]
Deliver = Callable[[str, list[Item]], None]
"""Called with (sender, items), in a thread of the control plane. What it raises for items of another shape is logged."""

NO_HURRY_MS = 500
"""For who hears acknowledgements and trims only: what is said ten times a second and more is heard twice a second."""

WAITING = 8
"""Records that wait to be sent; older ones are forgotten."""

_PLAIN_MESSAGES = {kind.__name__: kind for kind in (LeaseRequest, LeaseGrant, LeaseDenial, LeaseEnd)}


def message_item(to: InstanceId, message: Message) -> Item:
    """A message to one instance, as an item."""
    fields: dict[str, Any] = {"type": type(message).__name__, "sender": str(message.sender)}
    match message:
        case Heartbeat(_, state):
            fields["state"] = state.value
        case PathAfter(_, key, micros):
            fields |= {"key": key, "micros": micros}
    return {"to": str(to), "message": fields}


def message_of(item: Item) -> Message:
    """The message of an item that `message_item` made. ProtocolError for any other shape."""
    try:
        fields = item["message"]
        sender = instance_of(fields["sender"])
        match fields["type"]:
            case "Heartbeat":
                return Heartbeat(sender, State(fields["state"]))
            case "PathAfter":
                return PathAfter(sender, fields["key"], int(fields["micros"]))
            case kind:
                return _PLAIN_MESSAGES[kind](sender)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a control message: {item!r}") from error


def instance_of(text: str) -> InstanceId:
    """The instance that 'FRAGMENT.REPLICA.SHARD' names."""
    fragment, replica, shard = text.rsplit(".", 2)
    return InstanceId(fragment, replica, int(shard))


def acknowledge_item(reader: InstanceId, positions: tuple[tuple[str, int], ...]) -> Item:
    return {"acknowledge": {"reader": str(reader), "positions": [list(position) for position in positions]}}


def trim_item(positions: Mapping[str, int]) -> Item:
    return {"trim": [[key, needed] for key, needed in sorted(positions.items())]}


class ControlPlane:
    """One process's part in a query's control topic. Unreachable sites are silence: `send` and the readers never raise."""

    def __init__(self, clusters: Mapping[str, Cluster], topic: str, name: str, site: str) -> None:
        """site: where this process says what it has to say."""
        self._clusters = clusters
        self._topic = topic
        self._name = name
        self._deliver: Deliver = lambda sender, items: None
        self._outbox = Outbox(clusters[site], topic, at_most=WAITING)
        self._followers: list[TopicFollower] = []

    def listen(self, deliver: Deliver, gather_ms: int | None = None) -> None:
        """Begin to hear what others say; gather_ms as for `TopicFollower`."""
        self._deliver = deliver
        self._followers = [
            TopicFollower(each, self._topic, self._take, from_end=True, gather_ms=gather_ms) for each in self._clusters.values()
        ]

    def send(self, items: list[Item]) -> None:
        """Say all these at once, or never; returns at once."""
        if items:
            record = {"v": VERSION, "sender": self._name, "items": items}
            self._outbox.put(json.dumps(record, separators=(",", ":")).encode())

    def close(self) -> None:
        self._outbox.close()
        for follower in self._followers:
            follower.close()

    def _take(self, record: ConsumerRecord) -> None:
        said = json.loads(record.value or b"")
        if said["v"] != VERSION:
            raise ValueError(f"version {said['v']}")
        if said["sender"] != self._name:
            self._deliver(said["sender"], said["items"])
