"""What events say of failures: each failure of a query with its phases, its cost, and who was concerned. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deployment.events import (
    CHAOS_BEGUN,
    CHAOS_UNDONE,
    DELETED,
    DETECTED,
    HEALED,
    OVER,
    RECONCILED,
    SWITCHED,
    TENTATIVE,
    UNDONE,
    RecordedEvent,
)

KEPT_FAILURES = 1_000
"""Of each query."""
BEGUN_BEFORE_MS = 60_000.0
"""A fault on purpose that ended longer ago than this did not cause a failure that is detected now."""


@dataclass(slots=True)
class Course:
    """How a failure went at one instance. Times are milliseconds since the Unix epoch."""

    state: str
    """As what it was detected: `UP_FAILURE` or `FAILURE`."""
    detected_ms: float
    """When the instance noticed the failure."""
    missing: list[str] = field(default_factory=list)
    """The inputs that were missing."""
    healed_ms: float | None = None
    """When all inputs were there again; None before."""
    reconciled_ms: float | None = None
    """When the correction was complete; None before."""
    redo_s: float | None = None
    """How long the correction took (s); None before it is complete."""


@dataclass(slots=True)
class Failure:
    """One failure of a query."""

    id: str
    """The id of the failure."""
    query: str
    """The name of the query."""
    detected_ms: float
    """When the first instance noticed it."""
    x_ms: float | None
    """X when it was detected (ms); None if unknown."""
    reconcile: str | None
    """How the query reconciled then; None if unknown."""
    policy: Mapping[str, str] | None
    """The query's policy then, as {phase: choice}; None if unknown."""
    since_ms: float | None = None
    """When the silence began that was noticed; None if unknown."""
    instances: dict[str, Course] = field(default_factory=dict)
    """How it went at each instance, by name."""
    missing: list[str] = field(default_factory=list)
    """The inputs that were missing at any instance."""
    tentative_ms: float | None = None
    """When clients first got a tentative result; None if they got none."""
    undone_ms: float | None = None
    """When clients last had tentative results revoked; None if they had none."""
    ended_ms: float | None = None
    """When it was over; None while it is open."""
    undone: dict[str, int] = field(default_factory=dict)
    """The number of rows that were revoked, by site."""
    late_rows: int | None = None
    """The number of rows that came later than X; None while it is open."""
    rows_stable: int | None = None
    """Stable rows that clients were given from the detection to the end."""
    because: str | None = None
    """Why it is over; None while it is open."""
    switches: int = 0
    """How often an instance turned to another replica."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    """Faults on purpose that were active: `id`, `fault`, `begun_ms`, `ended_ms`."""

    @property
    def rows_undone(self) -> int:
        """At the site with the most."""
        return max(self.undone.values(), default=0)

    @property
    def healed_ms(self) -> float | None:
        """When the last missing input was there again, first at one instance: from then on its turn to correct comes."""
        healed = [course.healed_ms for course in self.instances.values() if course.healed_ms is not None]
        last = max((course.detected_ms for course in self.instances.values()), default=0.0)
        return min((at for at in healed if at >= last), default=max(healed, default=None))

    def summary(self) -> dict[str, Any]:
        """The failure as JSON: what a list of failures shows."""
        return {
            "id": self.id,
            "query": self.query,
            "state": "open" if self.ended_ms is None else "over",
            "detected_ms": self.detected_ms,
            "ended_ms": self.ended_ms,
            "duration_ms": None if self.ended_ms is None else round(self.ended_ms - self.begun_ms, 3),
            "x_ms": self.x_ms,
            "reconcile": self.reconcile,
            "policy": dict(self.policy) if self.policy is not None else None,
            "missing": self.missing,
            "silent": [name for name, course in self.instances.items() if course.state == "FAILURE"],
            "rows_tentative": None if self.ended_ms is None else self.rows_undone,
            "rows_undone": self.rows_undone,
            "late_rows": self.late_rows,
            "because": self.because,
        }

    def detail(self) -> dict[str, Any]:
        """The failure as JSON, with its phases."""
        courses = {
            name: {
                "instance": name,
                "state": course.state,
                "missing": course.missing,
                "detected_ms": course.detected_ms,
                "healed_ms": course.healed_ms,
                "reconciled_ms": course.reconciled_ms,
                "redo_s": course.redo_s,
            }
            for name, course in self.instances.items()
        }
        sites = [{"site": site, "rows_undone": rows} for site, rows in sorted(self.undone.items())]
        return {
            **self.summary(),
            "begun_ms": self.begun_ms,
            "phases": self.phases(),
            "clients": {"tentative_from_ms": self.tentative_ms, "undone_ms": self.undone_ms, "sites": sites},
            "instances": [courses[name] for name in sorted(courses)],
            "switches": self.switches,
            "faults": self.faults,
        }

    @property
    def begun_ms(self) -> float:
        """When it began, as far as is known: with the silence that was noticed, or else with its detection."""
        return self.detected_ms if self.since_ms is None else min(self.since_ms, self.detected_ms)

    def phases(self) -> list[dict[str, Any]]:
        """The time of the failure as clients saw it, in parts that follow each other; the last one of an open failure has no
        end. `detected`: it had begun, and nobody had noticed. `held`: results were held back. `tentative`: clients got
        tentative results. `redo`: all inputs were there again, and results were corrected."""
        healed, over = self.healed_ms, self.ended_ms
        shown = self.tentative_ms
        if shown is not None:
            shown = max(shown, self.detected_ms)  # clients may have had early results already
            healed = None if healed is None else max(healed, shown)
        begins = [("detected", self.begun_ms), ("held", self.detected_ms), ("tentative", shown), ("redo", healed)]
        known = [(name, at) for name, at in begins if at is not None]
        ends = [*(at for _, at in known[1:]), over]
        return [
            {"name": name, "from_ms": begin, "to_ms": end, "ms": None if end is None else round(max(end - begin, 0.0), 3)}
            for (name, begin), end in zip(known, ends, strict=True)
        ]


class Failures:
    """The failures of all queries, by what events say. Pass it every event, in order."""

    def __init__(self) -> None:
        self._of_query: dict[str, deque[Failure]] = {}
        self._faults: dict[str, deque[dict[str, Any]]] = {}

    def of(self, query: str) -> list[Failure]:
        """The failures of a query, the newest first."""
        return list(reversed(self._of_query.get(query, ())))

    def take(self, event: RecordedEvent) -> None:
        """Take the next event. KeyError, TypeError or ValueError if it lacks facts of its kind."""
        if event.query is None:
            return
        if event.kind == DELETED:
            self._faults.pop(event.query, None)
        elif event.kind == CHAOS_BEGUN:
            self._begin_fault(event)
        elif event.kind == CHAOS_UNDONE:
            for fault in self._faults.get(event.query, ()):
                if fault["id"] == event.facts["id"]:
                    fault["ended_ms"] = event.at_ms
        if event.failure is not None:
            self._take(event, event.failure)

    def _begin_fault(self, event: RecordedEvent) -> None:
        assert event.query is not None
        fault = {"id": event.facts["id"], "fault": event.facts["fault"], "begun_ms": event.at_ms, "ended_ms": None}
        self._faults.setdefault(event.query, deque(maxlen=50)).append(fault)
        newest = self._of_query.get(event.query)
        if newest and newest[-1].ended_ms is None:
            newest[-1].faults.append(fault)

    def _take(self, event: RecordedEvent, id_: str) -> None:
        assert event.query is not None
        known = self._of_query.setdefault(event.query, deque(maxlen=KEPT_FAILURES))
        if not known or known[-1].id != id_:
            # Also where the events of its beginning are no longer kept.
            known.append(self._begin(event, id_))
        failure, facts = known[-1], event.facts
        if event.kind == DETECTED:
            self._detect(failure, event)
        elif event.kind == SWITCHED:
            failure.switches += 1
        elif event.kind == TENTATIVE:
            failure.tentative_ms = event.at_ms if failure.tentative_ms is None else min(failure.tentative_ms, event.at_ms)
        elif event.kind in (HEALED, RECONCILED):
            course = failure.instances.setdefault(facts["instance"], Course("UP_FAILURE", failure.detected_ms))
            if event.kind == HEALED:
                course.healed_ms = event.at_ms
            else:
                course.reconciled_ms, course.redo_s = event.at_ms, facts["redo_s"]
        elif event.kind == UNDONE:
            failure.undone_ms = event.at_ms
            failure.undone[facts["site"]] = failure.undone.get(facts["site"], 0) + int(facts["rows"])
        elif event.kind == OVER:
            failure.ended_ms, failure.because = event.at_ms, facts["because"]
            failure.late_rows, failure.rows_stable = facts["late_rows"], facts["rows_stable"]

    def _begin(self, event: RecordedEvent, id_: str) -> Failure:
        assert event.query is not None
        facts, earliest = event.facts, event.at_ms - BEGUN_BEFORE_MS
        faults = [f for f in self._faults.get(event.query, ()) if f["ended_ms"] is None or f["ended_ms"] >= earliest]
        regime = facts.get("x_ms"), facts.get("reconcile"), facts.get("policy")
        return Failure(id_, event.query, event.at_ms, *regime, faults=faults)

    def _detect(self, failure: Failure, event: RecordedEvent) -> None:
        facts = event.facts
        failure.detected_ms = min(failure.detected_ms, event.at_ms)
        if facts["since_ms"] is not None:
            failure.since_ms = min(facts["since_ms"], failure.since_ms or facts["since_ms"])
        course = failure.instances.get(facts["instance"])
        if course is None:
            course = failure.instances[facts["instance"]] = Course(facts["state"], event.at_ms)
        course.missing += [name for name in facts["missing"] if name not in course.missing]
        failure.missing += [name for name in facts["missing"] if name not in failure.missing]
        if not facts.get("more"):
            course.healed_ms = course.reconciled_ms = None
