"""The events of an installation as the API knows them: the newest, and the failures that follow from them. For any thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from api.listeners import Listeners
from deployment.events import CHANGED, CREATED, SERVED, RecordedEvent, read_event
from deployment.failures import Failure, Failures

KEPT_EVENTS = 50_000
"""How many events the API holds. The installation may keep more."""
CHUNK = 2_000
"""How many events a reader of some kinds looks at before it hands on what it has found."""

_logger = logging.getLogger("boreal.api")


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are wanted."""

    query: str | None = None
    """Of this query; None: of all, and of none."""
    kinds: frozenset[str] = frozenset()
    """Of these kinds; empty: of all."""
    failure: str | None = None
    """Of this failure; None: of all, and of none."""
    since_ms: float | None = None
    """Not earlier than this; None: all that are kept."""

    def accepts(self, event: RecordedEvent) -> bool:
        return (
            (self.query is None or event.query == self.query)
            and (not self.kinds or event.kind in self.kinds)
            and (self.failure is None or event.failure == self.failure)
            and (self.since_ms is None or event.at_ms >= self.since_ms)
        )


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events."""

    events: tuple[tuple[int, RecordedEvent], ...]
    """The events, with their numbers, in the order that was asked for."""
    reached: int | None
    """The number of the last event that was looked at; None if there was none."""
    is_end: bool
    """Whether there are no more at the moment."""
    lost: bool = False
    """Whether events between the given number and these are no longer kept."""


class EventHistory:
    """Pass it every event, in the order of their numbers."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, str]] = deque(maxlen=KEPT_EVENTS)
        self._failures = Failures()
        self._lost_to = -1  # the number of the newest event that is no longer held
        self._lock = threading.Lock()
        self._listeners = Listeners()

    def take(self, number: int, event: RecordedEvent) -> None:
        """The next event. Sums of what was served are passed over: they would displace what happened."""
        if event.kind == SERVED:
            return
        with self._lock:
            if self._events and number <= self._events[-1][0]:
                return
            if len(self._events) == KEPT_EVENTS:
                self._lost_to = self._events[0][0]
            self._events.append((number, event.to_json()))
            try:
                self._failures.take(event)
            except (KeyError, TypeError, ValueError) as error:
                _logger.warning("event %d cannot be understood: %r", number, error)
        self._listeners.notify()

    def begin(self, number: int) -> None:
        """The events before this number are not known."""
        with self._lock:
            self._lost_to = max(self._lost_to, number - 1)

    def listen(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify`, from any thread, after each event, until the returned function is called."""
        return self._listeners.add(notify)

    @property
    def last(self) -> int | None:
        """The number of the newest event; None if there is none."""
        with self._lock:
            return self._events[-1][0] if self._events else None

    def after(self, number: int | None, wanted: EventFilter, limit: int) -> EventPage:
        """At most `limit` events after a number, the oldest first; None: from the oldest that is held."""
        with self._lock:
            count = _count_after(self._events, -1 if number is None else number)
            newer = list(islice(self._events, len(self._events) - count, None))
            lost = number is not None and number < self._lost_to
        return _page([*newer[:CHUNK]], wanted, limit, is_end=len(newer) <= CHUNK, lost=lost)

    def before(self, number: int | None, wanted: EventFilter, limit: int) -> EventPage:
        """At most `limit` events before a number, the newest first; None: from the newest on."""
        with self._lock:
            count = 0 if number is None else _count_after(self._events, number - 1)
            older = list(islice(self._events, len(self._events) - count))
        older.reverse()
        return _page(older, wanted, limit, is_end=True, lost=False)

    def since(self, query: str, since_ms: float) -> list[Failure]:
        """The failures of a query that were detected since then, the newest first."""
        with self._lock:
            return [replace(failure) for failure in self._failures.of(query) if failure.detected_ms >= since_ms]

    def spec(self, query: str, at_ms: float) -> Mapping[str, Any] | None:
        """The specification of a query at a moment; None if that is not known."""
        changes = self.before(None, EventFilter(query=query, kinds=frozenset({CREATED, CHANGED})), KEPT_EVENTS).events
        return next((event.facts["spec"] for _, event in changes if event.at_ms <= at_ms), None)

    def failures(self, query: str) -> list[Mapping[str, Any]]:
        """What is known of the failures of a query, the newest first, as `Failure.summary`."""
        with self._lock:
            return [failure.summary() for failure in self._failures.of(query)]

    def failure(self, query: str, id_: str) -> Mapping[str, Any] | None:
        """One failure, as `Failure.detail`; None if it is not known."""
        with self._lock:
            return next((failure.detail() for failure in self._failures.of(query) if failure.id == id_), None)


def _count_after(events: deque[tuple[int, str]], number: int) -> int:
    """How many are after a number, counted from the end: readers are mostly near it."""
    count = 0
    for each, _ in reversed(events):
        if each <= number:
            break
        count += 1
    return count


def _page(lines: Collection[tuple[int, str]], wanted: EventFilter, limit: int, is_end: bool, lost: bool) -> EventPage:
    found: list[tuple[int, RecordedEvent]] = []
    reached = None
    for place, (number, line) in enumerate(lines, 1):
        reached = number
        event = read_event(line)
        if wanted.accepts(event):
            found.append((number, event))
            if len(found) == limit:
                return EventPage(tuple(found), reached, is_end and place == len(lines), lost)
    return EventPage(tuple(found), reached, is_end, lost)
