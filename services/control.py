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
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError

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

VERSION = 1
Item = dict[str, Any]
Deliver = Callable[[str, list[Item]], None]
"""Called with (sender, items), in a thread of the control plane."""

_logger = logging.getLogger("boreal.control")
_PLAIN_MESSAGES = {kind.__name__: kind for kind in (LeaseRequest, LeaseGrant, LeaseDenial, LeaseEnd)}
_RETRY_S = 0.2


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
        self._topic = topic
        self._name = name
        self._deliver: Deliver = lambda sender, items: None
        self._stopping = threading.Event()
        self._outbox = _Outbox(clusters[site], topic)
        self._threads = [
            threading.Thread(target=self._read, args=(cluster,), name=f"control-{site}", daemon=True)
            for site, cluster in clusters.items()
        ]

    def listen(self, deliver: Deliver) -> None:
        """Begin to hear what others say."""
        self._deliver = deliver
        for thread in self._threads:
            thread.start()

    def send(self, items: list[Item]) -> None:
        """Say all these at once, or never; returns at once."""
        if items:
            record = {"v": VERSION, "sender": self._name, "items": items}
            self._outbox.put(json.dumps(record, separators=(",", ":")).encode())

    def close(self) -> None:
        self._stopping.set()
        self._outbox.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=2)

    def _read(self, cluster: Cluster) -> None:
        while not self._stopping.is_set():
            try:
                self._read_on(cluster)
            except (KafkaError, OSError) as error:
                _logger.debug("control topic at %s: %r", cluster.site, error)
                self._stopping.wait(_RETRY_S)

    def _read_on(self, cluster: Cluster) -> None:
        """Read from the end on, until something breaks: what was said before, or while we could not hear, is past."""
        consumer = cluster.consumer()
        partition = TopicPartition(self._topic, 0)
        try:
            consumer.assign([partition])
            consumer.seek_to_end(partition)
            while not self._stopping.is_set():
                for records in consumer.poll(timeout_ms=200).values():
                    for record in records:
                        self._take(record.value)
        finally:
            consumer.close(autocommit=False)

    def _take(self, value: bytes | None) -> None:
        try:
            record = json.loads(value or b"")
            if record["v"] != VERSION:
                raise ValueError(f"version {record['v']}")
            sender, items = record["sender"], record["items"]
        except (KeyError, TypeError, ValueError) as error:
            _logger.warning("a record of %s is not understood, and passed over: %s", self._topic, error)
            return
        if sender == self._name:
            return
        try:
            self._deliver(sender, items)
        except (KeyError, TypeError, ValueError, ProtocolError) as error:
            _logger.warning("%s says what is not understood, and is passed over: %r", sender, error)


class _Outbox:
    """A producer in a thread of its own: making one, and sending, may wait for a cluster that is out of reach.

    Only the newest few records wait; older ones are forgotten."""

    _WAITING = 8

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._waiting: list[bytes] = []
        self._condition = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="control-outbox", daemon=True)
        self._thread.start()

    def put(self, value: bytes) -> None:
        with self._condition:
            self._waiting = [*self._waiting[1 - self._WAITING :], value]
            self._condition.notify()

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        producer = None
        while True:
            with self._condition:
                while not self._waiting and not self._is_closed:
                    self._condition.wait()
                if self._is_closed:
                    break
                values, self._waiting = self._waiting, []
            try:
                producer = producer or self._cluster.producer(patient=False)
                for value in values:
                    producer.send(self._topic, value, partition=0)
            except (KafkaError, OSError) as error:
                _logger.debug("a control message is forgotten: %r", error)
        if producer is not None:
            producer.close(timeout=1)
