"""The control topic of a query: states, leases, acknowledgements, and what may be trimmed (R24).

Each process writes to its own site's control topic, and reads those of all sites from their current ends. The format of the
records is in `formats.control_messages`.

Correct answers do not depend on this topic: losing it changes no state. Messages that cannot be sent at once are dropped,
since a heartbeat or a lease that arrives after a cut has healed is out of date.
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
"""Called with (sender, items), in a thread of the control plane. Its exceptions, for malformed items, are logged."""

NO_HURRY_MS = 500
"""`gather_ms` for readers that only need acknowledgements and trims: many messages per second arrive in two batches."""

WAITING = 8
"""Maximum number of records that wait to be sent; older ones are dropped."""


class ControlPlane:
    """One process's access to a query's control topics. Unreachable sites are silent: `send` and the readers never raise."""

    def __init__(self, clusters: Mapping[str, Cluster], topic: str, name: str, site: str) -> None:
        """topic: the control topic. name: the name of this process. site: the site that it writes to."""
        self._clusters = clusters
        self._topic = topic
        self._name = name
        self._deliver: OnItems = lambda sender, items: None
        self._outbox = Outbox(clusters[site], topic, at_most=WAITING)
        self._followers: list[TopicFollower] = []

    def listen(self, deliver: OnItems, gather_ms: int | None = None) -> None:
        """Begin to receive the messages of other processes. gather_ms: as for `TopicFollower`."""
        self._deliver = deliver
        self._followers = [
            TopicFollower(each, self._topic, self._take, from_end=True, gather_ms=gather_ms) for each in self._clusters.values()
        ]

    def send(self, items: list[ControlItem]) -> None:
        """Send these items in one record, or drop them; returns at once."""
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
