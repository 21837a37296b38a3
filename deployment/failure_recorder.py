"""Records the failures of one query as events. Pure: what is seen of the query and the time in, events out.

A failure of a query lasts from the first sign to the end of the last consequence, whichever replicas see it: from when an
instance first misses inputs, or is silent, until all instances are stable again and clients hold nothing tentative. So it has
one id, however many instances report it, and failures that overlap are one.

What has been recorded is all that the recorder knows: after a restart it takes the events that are there (`resume`), then what
it sees, and it records the difference. So nothing is recorded twice, and nothing that is still to be seen is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from boreal.model.frames import State
from deployment.events import DETECTED, HEALED, OVER, RECONCILED, SWITCHED, TENTATIVE, UNDONE, RecordedEvent, stamp
from sunion.port import EARLY

SILENT = "FAILURE"
"""What readers call an instance that is silent."""

SETTLED_AFTER_MS = 2_000.0
"""A failure is over when nothing of it has been seen for so long: every process reports within a second, and so each has spoken
since."""

READ_FOR_MS = 1_000.0

_STABLE, _UP_FAILURE = State.STABLE.value, State.UP_FAILURE.value
_STABILIZATION, _RECOVERING = State.STABILIZATION.value, State.RECOVERING.value


@dataclass(frozen=True, slots=True)
class Clients:
    """What the clients of one site have."""

    outstanding: int
    """Tentative rows that are not revoked."""
    since_ms: float | None
    """When the first of them was given; None if there are none."""
    cause: str | None
    """Why they are tentative."""
    undone: int
    """Rows revoked since the query began."""
    late: int | None = None
    """Rows that came later than X, since a time that does not change during a failure; None if unknown."""
    stable: int = 0
    """Stable rows since the query began."""


class FailureRecorder:
    """The failures of one query. Every method returns the events that are to be recorded, in order. Times are milliseconds
    since the Unix epoch."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.failure: str | None = None
        """The id of the failure that is not over; None if there is none."""
        self.regime: Mapping[str, Any] = {}
        """What is in force, to be recorded with the detection: `x_ms`, `reconcile`, `policy`."""
        self._failing: dict[str, bool] = {}  # the instances of the failure; whether they are not healed
        self._states: dict[str, str] = {}  # as what each was detected
        self._missing: dict[str, set[str]] = {}
        self._changed_ms: dict[str, float] = {}  # the last recorded change of each instance
        self._tentative: set[str] = set()  # sites
        self._undone: dict[str, int] = {}  # per site, since the query began
        self._rows: dict[str, int] = {}  # per site, in this failure
        self._clients: dict[str, tuple[Clients | None, Clients]] = {}  # per site: when the failure began, and now
        self._reads: dict[tuple[str, str], tuple[str, float]] = {}  # per instance and input: the replica, and since when
        self._last_ms = 0.0

    def resume(self, event: RecordedEvent) -> None:
        """Take an event of this query that was recorded before."""
        self._note(event)

    def is_silent(self, instance: str) -> bool:
        """Whether it was recorded last that an instance is silent."""
        return self._failing.get(instance, False) and self._states[instance] == SILENT

    # What is seen

    def see_state(
        self,
        instance: str,
        state: str,
        at_ms: float,
        missing: Collection[str] = (),
        since_ms: float | None = None,
        redo_s: float | None = None,
    ) -> list[RecordedEvent]:
        """An instance has entered a state. Changes of an instance come in order, at times that rise; those that were seen
        before change nothing. missing: the inputs that it lacks. since_ms: when the silence began that it noticed, if that is
        known. redo_s: how long the correction took that ended now, if there was one."""
        if at_ms <= self._changed_ms.get(instance, float("-inf")):
            return []
        is_failing = self._failing.get(instance)
        detected = (DETECTED, {"instance": instance, "state": state, "missing": sorted(missing), "since_ms": since_ms})
        healed, reconciled = (HEALED, {"instance": instance}), (RECONCILED, {"instance": instance, "redo_s": redo_s})
        found: list[tuple[str, dict[str, Any]]] = []
        if state in (_UP_FAILURE, SILENT):
            if not is_failing or self._states.get(instance) != state:
                found = [detected]
        elif state == _STABILIZATION:
            found = [healed] if is_failing else [detected, healed] if is_failing is None else []
        elif state == _RECOVERING:
            found = [healed] if is_failing and self._states.get(instance) == SILENT else []
        elif state == _STABLE and is_failing is not None:
            found = [healed, reconciled] if is_failing else [reconciled]
        return [self._record(kind, at_ms, facts) for kind, facts in found]

    def see_missing(
        self, instance: str, missing: Collection[str], at_ms: float, since_ms: float | None = None
    ) -> list[RecordedEvent]:
        """An instance lacks these inputs now."""
        if not self._failing.get(instance) or set(missing) <= self._missing.get(instance, set()):
            return []
        state = self._states.get(instance, _UP_FAILURE)
        facts = {"instance": instance, "state": state, "missing": sorted(missing), "since_ms": since_ms, "more": True}
        return [self._record(DETECTED, at_ms, facts)]

    def see_reads(self, instance: str, reads: Mapping[str, str], at_ms: float) -> list[RecordedEvent]:
        """Which replica an instance reads of each of its inputs. A reader that begins looks for a replica first: only one that
        has read a replica for a while switches."""
        events: list[RecordedEvent] = []
        for name, replica in sorted(reads.items()):
            before, since_ms = self._reads.get((instance, name), (replica, at_ms))
            if before != replica and at_ms - since_ms >= READ_FOR_MS:
                facts = {"instance": instance, "input": name, "from": before, "to": replica}
                events.append(self._record(SWITCHED, at_ms, facts))
            self._reads[instance, name] = replica, since_ms if before == replica else at_ms
        return events

    def see_clients(self, site: str, clients: Clients, at_ms: float) -> list[RecordedEvent]:
        """What the clients of a site have. Early answers are no failure."""
        events: list[RecordedEvent] = []
        before, _ = self._clients.get(site, (None, clients))
        self._clients[site] = clients if self.failure is None else before, clients
        grown = clients.undone - self._undone.setdefault(site, clients.undone)
        if grown > 0 and self.failure is not None:
            events.append(self._record(UNDONE, at_ms, {"site": site, "rows": grown, "total": clients.undone}))
        self._undone[site] = clients.undone
        if clients.outstanding == 0:
            self._tentative.discard(site)
        elif clients.cause != EARLY and site not in self._tentative:
            given_ms = at_ms if clients.since_ms is None else clients.since_ms
            events.append(self._record(TENTATIVE, given_ms, {"site": site, "cause": clients.cause, "total": clients.undone}))
        return events

    def keep(self, instances: Iterable[str], at_ms: float) -> list[RecordedEvent]:
        """The query has these instances, and no others any more."""
        gone = sorted(self._failing.keys() - set(instances))
        return [self._record(RECONCILED, at_ms, {"instance": name, "redo_s": None, "gone": True}) for name in gone]

    def settle(self, now_ms: float) -> list[RecordedEvent]:
        """Time has passed: the failure may be over."""
        if self.failure is None or self._failing or self._tentative or now_ms - self._last_ms < SETTLED_AFTER_MS:
            return []
        return self._end(self._last_ms, None)

    def end(self, because: str, at_ms: float) -> list[RecordedEvent]:
        """End the failure, if there is one, whatever its state: the query was paused, for example."""
        return self._end(at_ms, because) if self.failure is not None else []

    # What is recorded

    def _end(self, at_ms: float, because: str | None) -> list[RecordedEvent]:
        rows = max(self._rows.values(), default=0)
        known = [(before, now) for before, now in self._clients.values() if before is not None]
        late = [now.late - before.late for before, now in known if now.late is not None and before.late is not None]
        meanwhile = {
            "late_rows": max(late) if late and min(late) >= 0 else None,  # an egress that restarted counts from 0
            "rows_stable": max((now.stable - before.stable for before, now in known), default=None),
        }
        facts = {"rows_tentative": rows, "rows_undone": rows, **meanwhile, "because": because}
        return [self._record(OVER, at_ms, facts)]

    def _record(self, kind: str, at_ms: float, facts: dict[str, Any]) -> RecordedEvent:
        failure = self.failure
        if failure is None and kind in (DETECTED, TENTATIVE):
            failure, facts = stamp(at_ms), {**facts, **self.regime, "undone": dict(self._undone)}
        event = RecordedEvent(at_ms, kind, self.query, None, failure, facts)
        self._note(event)
        return event

    def _note(self, event: RecordedEvent) -> None:
        if event.failure is None:
            return
        if event.kind == OVER:
            self.failure = None
            for each in (self._failing, self._states, self._missing, self._rows):
                each.clear()
            self._tentative.clear()
            self._clients = {site: (now, now) for site, (_, now) in self._clients.items()}
            return
        self.failure = event.failure
        self._undone = {**event.facts.get("undone", {}), **self._undone}
        self._last_ms = max(self._last_ms, event.at_ms)
        instance, site = event.facts.get("instance", ""), event.facts.get("site", "")
        if event.kind == DETECTED:
            self._failing[instance], self._states[instance] = True, event.facts["state"]
            self._missing.setdefault(instance, set()).update(event.facts["missing"])
        elif event.kind == HEALED:
            self._failing[instance] = False
            self._missing.pop(instance, None)
        elif event.kind == RECONCILED:
            self._failing.pop(instance, None)
        elif event.kind == TENTATIVE:
            self._tentative.add(site)
            self._undone[site] = event.facts["total"]
        elif event.kind == UNDONE:
            self._tentative.discard(site)
            self._undone[site] = event.facts["total"]
            self._rows[site] = self._rows.get(site, 0) + event.facts["rows"]
        if event.kind in (DETECTED, HEALED, RECONCILED) and not event.facts.get("more"):
            self._changed_ms[instance] = max(self._changed_ms.get(instance, 0.0), event.at_ms)
