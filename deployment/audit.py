"""Who did what, as events: changes of queries, faults on purpose, tokens. Pure.

As with failures, the difference between what was recorded and what is there is recorded: what happened while nobody recorded is
recorded later, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deployment.events import (
    CHANGED,
    CHAOS_BEGUN,
    CHAOS_UNDONE,
    CREATED,
    DELETED,
    KEPT_MS,
    PAUSED,
    RESTARTED,
    RESUMED,
    TOKEN_MADE,
    TOKEN_REVOKED,
    Event,
)
from deployment.query_record import QueryRecord


@dataclass(frozen=True, slots=True)
class QueryChange:
    """A change of a query."""

    name: str
    """The query."""
    record: QueryRecord | None
    """What it is now; None if it is deleted."""
    at_ms: float
    """When, in milliseconds since the Unix epoch."""
    by: str | None = None
    """Who changed it; None if unknown."""


class QueryAudit:
    """Changes of queries."""

    def __init__(self) -> None:
        self._known: dict[str, QueryRecord] = {}

    def resume(self, event: Event) -> None:
        """Take an event that was recorded before."""
        if event.query is None:
            return
        facts, known = event.facts, self._known.get(event.query)
        if event.kind in (CREATED, CHANGED, PAUSED, RESUMED, RESTARTED):
            spec = facts.get("spec") or (known.spec if known else {})
            self._known[event.query] = QueryRecord(event.query, spec, facts["revision"], facts["paused"], facts["restarts"])
        elif event.kind == DELETED:
            self._known.pop(event.query, None)

    def see(self, change: QueryChange) -> list[Event]:
        """A query is as this says. Changes that are older than what is recorded, or than events are kept, are left out."""
        old, new = self._known.get(change.name), change.record
        events = [Event(change.at_ms, kind, change.name, change.by, None, facts) for kind, facts in _differences(old, new)]
        for event in events:
            self.resume(event)
        return events

    def see_all(self, changes: Iterable[QueryChange], now_ms: float) -> list[Event]:
        """There are these queries, as these newest changes say, and no others."""
        newest = {change.name: change for change in changes}
        gone = [QueryChange(name, None, now_ms) for name in sorted(self._known.keys() - newest.keys())]
        kept = [newest[name] for name in sorted(newest) if newest[name].at_ms > now_ms - KEPT_MS]
        return [event for change in (*gone, *kept) for event in self.see(change)]


def _differences(old: QueryRecord | None, new: QueryRecord | None) -> list[tuple[str, dict[str, Any]]]:
    if new is None:
        return [(DELETED, {"revision": old.revision})] if old is not None else []
    if old is not None and new.revision <= old.revision:
        return []
    now = {"revision": new.revision, "paused": new.paused, "restarts": new.restarts}
    if old is None:
        return [(CREATED, {**now, "spec": new.spec})]
    found: list[tuple[str, dict[str, Any]]] = []
    fields = sorted(old.spec.keys() | new.spec.keys())
    changes = {key: [old.spec.get(key), new.spec.get(key)] for key in fields if old.spec.get(key) != new.spec.get(key)}
    if changes:
        found.append((CHANGED, {**now, "spec": new.spec, "changes": changes}))
    if old.paused != new.paused:
        found.append((PAUSED if new.paused else RESUMED, now))
    if old.restarts != new.restarts:
        found.append((RESTARTED, now))
    return found


class ChaosAudit:
    """Faults on purpose."""

    def __init__(self) -> None:
        self._active: dict[str, Event] = {}
        self._known: set[str] = set()

    def resume(self, event: Event) -> None:
        """Take an event that was recorded before."""
        if event.kind == CHAOS_BEGUN:
            self._known.add(event.facts["id"])
            self._active[event.facts["id"]] = event
        elif event.kind == CHAOS_UNDONE:
            self._active.pop(event.facts["id"], None)

    def see(self, place: str, faults: Iterable[Mapping[str, Any]], now_ms: float) -> list[Event]:
        """Where faults are made, `place`, there are these, also those that were over lately: each has the facts of CHAOS_BEGUN,
        and `query`, `by`, `begun_ms`, and `ended_ms`, None while it lasts. Another that had begun there has ended."""
        listed = {fault["id"]: fault for fault in faults}
        events: list[Event] = []
        for id_, fault in listed.items():
            facts = {key: fault[key] for key in ("id", "fault", "targets", "ends_at_ms")}
            if id_ not in self._known:
                begun = Event(fault["begun_ms"], CHAOS_BEGUN, fault["query"], fault["by"], None, {**facts, "place": place})
                events.append(self._record(begun))
            if id_ in self._active and fault["ended_ms"] is not None:
                events.append(self._record(_undone(self._active[id_], fault["ended_ms"])))
        for id_, begun in sorted(self._active.items()):
            if begun.facts["place"] == place and id_ not in listed:
                events.append(self._record(_undone(begun, now_ms)))
        return events

    def see_none(self, now_ms: float) -> list[Event]:
        """No fault is active anywhere: where they are made, all has begun anew."""
        return [self._record(_undone(begun, now_ms)) for _, begun in sorted(self._active.items())]

    def _record(self, event: Event) -> Event:
        self.resume(event)
        return event


def _undone(begun: Event, at_ms: float) -> Event:
    return Event(at_ms, CHAOS_UNDONE, begun.query, None, None, {"id": begun.facts["id"], "fault": begun.facts["fault"]})


class TokenAudit:
    """Tokens that are made and revoked, by the command line: no call of the API makes one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def resume(self, event: Event) -> None:
        """Take an event that was recorded before."""
        if event.kind == TOKEN_MADE:
            self._known[event.facts["id"]] = event.facts["name"]
        elif event.kind == TOKEN_REVOKED:
            self._known.pop(event.facts["id"], None)

    def see(self, tokens: Iterable[Mapping[str, Any]], now_ms: float) -> list[Event]:
        """There are these tokens, and no others: each has `id`, `name`, `roles` and `created_ms`."""
        listed = {token["id"]: token for token in tokens}
        events = [
            Event(token["created_ms"], TOKEN_MADE, None, "cli", None, {key: token[key] for key in ("id", "name", "roles")})
            for id_, token in listed.items()
            if id_ not in self._known and token["created_ms"] > now_ms - KEPT_MS
        ]
        gone = sorted(self._known.keys() - listed.keys())
        events += [Event(now_ms, TOKEN_REVOKED, None, "cli", None, {"id": id_, "name": self._known[id_]}) for id_ in gone]
        for event in events:
            self.resume(event)
        return events
