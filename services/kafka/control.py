"""The control topic of a query: states, leases, acknowledgements and what may be trimmed (R24).

Each process writes to its own site's control topic and reads those of all sites from their ends; `formats.control_messages`
has the records.

Nothing here is needed for a right answer: losing the topic changes no state. What cannot be sent at once is forgotten,
since a heartbeat or a lease that arrives after a cut has healed would speak of another time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from kafka.consumer.fetcher import ConsumerRecord

from formats.control_messages import ControlItem
from services.kafka.clusters import Cluster
from services.kafka.follower import TopicFollower
from services.kafka.mailbox import Outbox

VERSION = 1
OnItems = Callable[[str, list[ControlItem]], None]
"""Called with (sender, items), in a thread of the control plane. What it raises for items of another shape is logged."""

NO_HURRY_MS = 500
"""For who hears acknowledgements and trims only: what is said ten times a second and more is heard twice a second."""

WAITING = 8
"""Records that wait to be sent; older ones are forgotten."""

class ControlPlane:
    """One process's part in a query's control topic. Unreachable sites are silence: `send` and the readers never raise."""

    def __init__(self, clusters: Mapping[str, Cluster], topic: str, name: str, site: str) -> None:
        """site: where this process says what it has to say."""
        self._clusters = clusters
        self._topic = topic
        self._name = name
        self._deliver: OnItems = lambda sender, items: None
        self._outbox = Outbox(clusters[site], topic, at_most=WAITING)
        self._followers: list[TopicFollower] = []

    def listen(self, deliver: OnItems, gather_ms: int | None = None) -> None:
        """Begin to hear what others say; gather_ms as for `TopicFollower`."""
        self._deliver = deliver
        self._followers = [
            TopicFollower(each, self._topic, self._take, from_end=True, gather_ms=gather_ms) for each in self._clusters.values()
        ]

    def send(self, items: list[ControlItem]) -> None:
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
