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
from services.kafka.control_desk import ControlDesk, Listener

VERSION = 1
OnItems = Callable[[str, list[ControlItem]], None]
"""Called with (sender, items), in a thread of the control plane. Its exceptions, for malformed items, are logged."""

GATHER_MS = 10
"""`gather_ms` of a reader of heartbeats at least: well below their shortest interval that follows from X."""
WAKE_MS = 50
"""`gather_ms` of a source that readers may wake: rows wait for its boundary."""
NO_HURRY_MS = 1_000
"""`gather_ms` for readers that only need acknowledgements and trims: many messages per second arrive in two batches."""


def gather_ms(least_ms: int, rest_us: int) -> int:
    """How long messages may wait for others, where rows gather for so long: for half of that, since no row waits for them."""
    return max(least_ms, rest_us // 2_000)


class ControlPlane:
    """One process's access to a query's control topics. Unreachable sites are silent: `send` and the readers never raise."""

    def __init__(self, desks: Mapping[str, ControlDesk], topic: str, name: str, site: str) -> None:
        """desks: of the process, by site. topic: the control topic. name: the name of this role. site: the site that it writes
        to."""
        self._desks = desks
        self._topic = topic
        self._name = name
        self._deliver: OnItems = lambda sender, items: None
        self._site = site
        self._listener: Listener | None = None

    def listen(self, deliver: OnItems, gather_ms: Callable[[], int] = lambda: GATHER_MS) -> None:
        """Begin to receive the messages of other roles. gather_ms: asked for how long they may wait for each other."""
        self._deliver = deliver
        self._listener = Listener(self._topic, self._take, gather_ms)
        for desk in self._desks.values():
            desk.listen(self._listener)

    def send(self, items: list[ControlItem], topic: str | None = None) -> None:
        """Send these items in one record, or drop them; returns at once. topic: the control topic; None: the query's own."""
        if items:
            record = {"v": VERSION, "sender": self._name, "items": items}
            self._desks[self._site].send(topic or self._topic, json.dumps(record, separators=(",", ":")).encode())

    def close(self) -> None:
        if self._listener is not None:
            for desk in self._desks.values():
                desk.leave(self._listener)

    def _take(self, record: ConsumerRecord) -> None:
        said = json.loads(record.value or b"")
        if said["v"] != VERSION:
            raise ValueError(f"version {said['v']}")
        if said["sender"] != self._name:
            self._deliver(said["sender"], said["items"])
