"""Who did what, as events: changes of queries, faults on purpose, tokens, jobs, dead letters put back. Pure.

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
    EVOLVED,
    JOB_CANCELLED,
    JOB_CREATED,
    JOB_DONE,
    JOB_FAILED,
    KEPT_MS,
    PAUSED,
    REPLAYED,
    RESTARTED,
    RESUMED,
    TOKEN_MADE,
    TOKEN_REVOKED,
    RecordedEvent,
    stamp,
)
from deployment.evolution import shown
from deployment.query_record import QueryRecord
from formats.dead_letter import LetterChoice, ReplayOutcome


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
        self._evolved: dict[str, tuple[str | None, str | None]] = {}
        """The state of each query's evolution, and the time of its takeover, as was recorded last."""

    def resume(self, event: RecordedEvent) -> None:
        """Take an event that was recorded before."""
        if event.query is None:
            return
        facts, known = event.facts, self._known.get(event.query)
        if event.kind == EVOLVED:
            self._evolved[event.query] = facts["state"], facts["at"]
        if event.kind in (CREATED, CHANGED, PAUSED, RESUMED, RESTARTED, EVOLVED):
            spec = facts.get("spec") or (known.spec if known else {})
            self._known[event.query] = QueryRecord(event.query, spec, facts["revision"], facts["paused"], facts["restarts"])
        elif event.kind == DELETED:
            self._known.pop(event.query, None)
            self._evolved.pop(event.query, None)

    def see(self, change: QueryChange) -> list[RecordedEvent]:
        """A query is as this says. Changes that are older than what is recorded, or than events are kept, are left out."""
        old, new = self._known.get(change.name), change.record
        found = _differences(old, new, self._evolved.get(change.name, (None, None)))
        events = [RecordedEvent(change.at_ms, kind, change.name, change.by, None, facts) for kind, facts in found]
        for event in events:
            self.resume(event)
        return events

    def see_all(self, changes: Iterable[QueryChange], now_ms: float) -> list[RecordedEvent]:
        """There are these queries, as these newest changes say, and no others."""
        newest = {change.name: change for change in changes}
        gone = [QueryChange(name, None, now_ms) for name in sorted(self._known.keys() - newest.keys())]
        kept = [newest[name] for name in sorted(newest) if newest[name].at_ms > now_ms - KEPT_MS]
        return [event for change in (*gone, *kept) for event in self.see(change)]


def _differences(
    old: QueryRecord | None, new: QueryRecord | None, evolved: tuple[str | None, str | None]
) -> list[tuple[str, dict[str, Any]]]:
    """evolved: see `QueryAudit`."""
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
    evolution = shown(new)
    state, at = (evolution["state"], evolution["at"]) if evolution is not None else (None, None)
    if (state, at) != evolved:
        beside = new.beside.version if new.beside is not None else None
        found.append((EVOLVED, {**now, "state": state, "version": new.version, "beside": beside, "at": at}))
    return found


class ChaosAudit:
    """Faults on purpose."""

    def __init__(self) -> None:
        self._active: dict[str, RecordedEvent] = {}
        self._known: set[str] = set()

    def resume(self, event: RecordedEvent) -> None:
        """Take an event that was recorded before."""
        if event.kind == CHAOS_BEGUN:
            self._known.add(event.facts["id"])
            self._active[event.facts["id"]] = event
        elif event.kind == CHAOS_UNDONE:
            self._active.pop(event.facts["id"], None)

    def see(self, place: str, faults: Iterable[Mapping[str, Any]], now_ms: float) -> list[RecordedEvent]:
        """Where faults are made, `place`, there are these, also those that were over lately: each has the facts of CHAOS_BEGUN,
        and `query`, `by`, `begun_ms`, and `ended_ms`, None while it lasts. Another that had begun there has ended."""
        listed = {fault["id"]: fault for fault in faults}
        events: list[RecordedEvent] = []
        for id_, fault in listed.items():
            facts = {key: fault[key] for key in ("id", "fault", "targets", "ends_at_ms")}
            if id_ not in self._known:
                begun = RecordedEvent(
                    fault["begun_ms"], CHAOS_BEGUN, fault["query"], fault["by"], None, {**facts, "place": place}
                )
                events.append(self._record(begun))
            if id_ in self._active and fault["ended_ms"] is not None:
                events.append(self._record(_undone(self._active[id_], fault["ended_ms"])))
        for id_, begun in sorted(self._active.items()):
            if begun.facts["place"] == place and id_ not in listed:
                events.append(self._record(_undone(begun, now_ms)))
        return events

    def see_none(self, now_ms: float) -> list[RecordedEvent]:
        """No fault is active anywhere: the process that makes them has restarted."""
        return [self._record(_undone(begun, now_ms)) for _, begun in sorted(self._active.items())]

    def _record(self, event: RecordedEvent) -> RecordedEvent:
        self.resume(event)
        return event


def _undone(begun: RecordedEvent, at_ms: float) -> RecordedEvent:
    return RecordedEvent(at_ms, CHAOS_UNDONE, begun.query, None, None, {"id": begun.facts["id"], "fault": begun.facts["fault"]})


class TokenAudit:
    """Tokens that are made and revoked, by the command line: no call of the API makes one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def resume(self, event: RecordedEvent) -> None:
        """Take an event that was recorded before."""
        if event.kind == TOKEN_MADE:
            self._known[event.facts["id"]] = event.facts["name"]
        elif event.kind == TOKEN_REVOKED:
            self._known.pop(event.facts["id"], None)

    def see(self, tokens: Iterable[Mapping[str, Any]], now_ms: float) -> list[RecordedEvent]:
        """There are these tokens, and no others: each has `id`, `name`, `roles` and `created_ms`."""
        listed = {token["id"]: token for token in tokens}
        events = [
            RecordedEvent(
                token["created_ms"], TOKEN_MADE, None, "cli", None, {key: token[key] for key in ("id", "name", "roles")}
            )
            for id_, token in listed.items()
            if id_ not in self._known and token["created_ms"] > now_ms - KEPT_MS
        ]
        gone = sorted(self._known.keys() - listed.keys())
        events += [
            RecordedEvent(now_ms, TOKEN_REVOKED, None, "cli", None, {"id": id_, "name": self._known[id_]}) for id_ in gone
        ]
        for event in events:
            self.resume(event)
        return events


class ReplayAudit:
    """Dead letters whose records are put back."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def resume(self, event: RecordedEvent) -> None:
        """Take an event that was recorded before."""
        if event.kind == REPLAYED:
            self._known.add(event.facts["id"])

    def see(self, replays: Iterable[RecordedEvent]) -> list[RecordedEvent]:
        """There were these lately, and maybe others before."""
        events = [event for event in replays if event.facts["id"] not in self._known]
        for event in events:
            self.resume(event)
        return events


def replay_event(query: str, choice: LetterChoice, outcome: ReplayOutcome, at_ms: float, by: str) -> RecordedEvent:
    """What is recorded of a replay of dead letters."""
    meant = {"stream": choice.stream, "reason": choice.reason, "since_ms": choice.since_ms}
    became = {"replayed": outcome.replayed, "left": dict(outcome.left)}
    return RecordedEvent(at_ms, REPLAYED, query, by, None, {"id": f"{stamp(at_ms)}-{query}", **meant, **became})


_ENDS = {"done": JOB_DONE, "failed": JOB_FAILED, "cancelled": JOB_CANCELLED}
"""The event of each state in which a job is over."""


class JobAudit:
    """Jobs that are asked for, and how they end."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, float], bool] = {}  # by id and creation: an id may be used again; whether its end is known

    def resume(self, event: RecordedEvent) -> None:
        """Take an event that was recorded before."""
        if event.kind == JOB_CREATED:
            self._known[event.facts["id"], event.at_ms] = False
        elif event.kind in _ENDS.values():
            self._known[event.facts["id"], event.facts["created_ms"]] = True

    def see(self, jobs: Iterable[Mapping[str, Any]], now_ms: float) -> list[RecordedEvent]:
        """There are these jobs, and maybe others that were over before: each has `id`, `kind`, `query`, `by`, `created_ms`,
        `state`, `ended_ms` and `problem`. One that is deleted has no event."""
        listed = {(job["id"], job["created_ms"]): job for job in jobs}
        self._known = {key: over for key, over in self._known.items() if key in listed or key[1] > now_ms - KEPT_MS}
        events = []
        for key, job in sorted(listed.items(), key=lambda entry: entry[0][1]):
            of = {"id": job["id"], "job": job["kind"]}
            if key not in self._known and job["created_ms"] > now_ms - KEPT_MS:
                events.append(RecordedEvent(job["created_ms"], JOB_CREATED, job["query"], job["by"], None, of))
                self._known[key] = False
            if job["state"] in _ENDS and self._known.get(key) is False:
                why = {"problem": job["problem"]} if job["problem"] is not None else {}
                facts = {**of, "created_ms": job["created_ms"], **why}
                events.append(RecordedEvent(job["ended_ms"], _ENDS[job["state"]], job["query"], None, None, facts))
                self._known[key] = True
        return events
