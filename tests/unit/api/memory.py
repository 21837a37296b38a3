"""An installation in memory, for the routes. Queries do not run: their output is what a test puts there."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from api.event_history import EventHistory
from api.installation import (
    BusyError,
    Change,
    CheckResult,
    ForbiddenError,
    Freshness,
    NotFoundError,
    OutputEvent,
    OutputPage,
    Precondition,
    Readiness,
    StartedFault,
    StreamPlace,
    UnavailableError,
    View,
)
from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import Query
from deployment.change_preview import preview
from deployment.evolution import evolve, let_go, resolve_start, roll_back, settle
from deployment.layout import Layout, make_layout
from deployment.liveness import Liveness
from deployment.query_changes import changed_query
from deployment.query_record import QueryRecord
from deployment.watched_query import WatchedQuery
from embedded.recording import Recording, RowsGoneError, Span
from formats.dead_letter import PUT_BACK_BEFORE, KeptLetter, LetterChoice, LetterPage, ReplayOutcome

NOW_MS = 1_700_000_000_000.0


class MemoryOutput:
    """An output whose ids are a:0, a:1 and so on. first: the first that is kept."""

    def __init__(self) -> None:
        self.events: list[OutputEvent] = []
        self.first = 0
        self.readers = 0
        self._notified: list[Callable[[], None]] = []

    def put(self, kind: str, data: str) -> None:
        self.events.append(OutputEvent(f"a:{len(self.events)}", kind, data))
        for notify in list(self._notified):
            notify()

    def read(self, after: str | None, limit: int) -> OutputPage:
        if after is not None and not re.fullmatch("a:[0-9]{1,9}", after):
            raise UserError("Last-Event-ID", after, "is not the id of an event", "leave it out")
        start = self.first if after is None else int(after.removeprefix("a:")) + 1
        gap = {"after": after, "first": f"a:{self.first}"} if start < self.first else None
        start = max(start, self.first)
        page = self.events[start : start + limit]
        return OutputPage(tuple(page), page[-1].id if page else after, gap)

    def newest(self, count: int) -> str | None:
        last = len(self.events) - count - 1
        return f"a:{last}" if last >= self.first else None

    def on_more(self, notify: Callable[[], None]) -> Callable[[], None]:
        self.readers += 1
        self._notified.append(notify)

        def stop() -> None:
            self.readers -= 1
            self._notified.remove(notify)

        return stop

    def close(self) -> None:
        pass


class MemoryInstallation:
    """See `api.installation.Installation`. is_away: as while its servers are out of reach."""

    sites = ("a",)

    def __init__(self) -> None:
        self.records: dict[str, QueryRecord] = {}
        self.is_away = False
        self.is_ready = True
        self.restarted: list[str] = []
        self.faults: list[str] = []
        self.allows_chaos = True
        self.is_busy = False
        self.appended: list[tuple[StreamPlace, bytes]] = []
        self.events = EventHistory()
        self.letters: list[KeptLetter] = []
        self.replays: list[tuple[LetterChoice, int, str]] = []
        self.recording: Recording | None = None
        self.outputs: dict[View, MemoryOutput] = {"stable": MemoryOutput(), "all": MemoryOutput()}

    def close(self) -> None:
        pass

    def queries(self, min_revision: tuple[str, int] | None = None) -> Mapping[str, QueryRecord]:
        if min_revision is not None:
            name, revision = min_revision
            known = self.records.get(name)
            if known is None or known.revision < revision:
                raise UnavailableError("min_revision", revision, "is not known yet", "ask again soon")
        return dict(sorted(self.records.items()))

    def freshness(self) -> Freshness:
        return Freshness(NOW_MS, self.is_away)

    def readiness(self) -> Readiness:
        return Readiness(self.is_ready, () if self.is_ready else ("q",))

    def status(self, name: str) -> Mapping[str, Any]:
        return WatchedQuery(self.record(name), self.sites, 0).status(0)

    def statuses(self, names: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        return {name: self.status(name) for name in names if name in self.records}

    def layout(self, name: str) -> Layout:
        return make_layout(self.record(name).query, self.sites)

    def instances(self, name: str) -> Sequence[Mapping[str, Any]]:
        self.record(name)
        return []

    def liveness(self, name: str) -> Liveness:
        self.record(name)
        return Liveness(True, (), {"main.r0.0": "STABLE"}, (), None, 700.0)

    def running(self, name: str) -> Sequence[str]:
        return ()

    def workers(self) -> Sequence[Mapping[str, Any]]:
        said = {"site": "a", "name": "w1", "host": "h", "machine": "m", "program": "1", "problem": None}
        return [{**said, "roles": ["egress.q.a", "source.q.left"]}]

    def config(self) -> Mapping[str, Any]:
        return {"sites": {"a": {"password": "**********"}}}

    def check(self, query: Query, start: str) -> CheckResult:
        old = self.records.get(query.name)
        start = resolve_start(start, int(NOW_MS * 1_000))
        return CheckResult(plan(query).notes, None if old is None else preview(old, query, start))

    def put(self, query: Query, precondition: Precondition) -> Change:
        old = self.records.get(query.name)
        self._write(query.name, precondition)
        wanted = QueryRecord(query.name, query.dump(), old.revision if old else 1)
        if old is not None and wanted != old:
            wanted = replace(wanted, revision=old.revision + 1)
        self.records[query.name] = wanted
        return Change(wanted, old is None, plan(query).notes)

    def change(self, name: str, fields: Mapping[str, Any], precondition: Precondition) -> Change:
        old = self.record(name)
        self._write(name, precondition)
        return self.put(changed_query(old.spec, fields), Precondition())

    def pause(self, name: str, paused: bool, precondition: Precondition) -> Change:
        old = self.record(name)
        self._write(name, precondition)
        if old.paused != paused:
            self.records[name] = replace(old, paused=paused, revision=old.revision + 1)
        return Change(self.records[name])

    def restart(self, name: str, only_failed: bool, precondition: Precondition) -> Change:
        record = self.record(name)
        self._write(name, precondition)
        self.restarted.append(name)
        return Change(record)

    def evolve(self, query: Query, start: str, precondition: Precondition) -> Change:
        begins = resolve_start(start, int(NOW_MS * 1_000))
        return self._evolve(query.name, precondition, lambda record: evolve(record, query, begins))

    def roll_back(self, name: str, precondition: Precondition) -> Change:
        return self._evolve(name, precondition, lambda record: let_go(roll_back(record)))

    def settle(self, name: str, precondition: Precondition) -> Change:
        return self._evolve(name, precondition, lambda record: let_go(settle(record)))

    def _evolve(self, name: str, precondition: Precondition, change: Callable[[QueryRecord], QueryRecord]) -> Change:
        wanted = change(self.record(name))
        self._write(name, precondition)
        self.records[name] = wanted
        return Change(wanted)

    def delete(self, name: str, precondition: Precondition) -> None:
        self.record(name)
        self._write(name, precondition)
        del self.records[name]

    def streams(self) -> Sequence[StreamPlace]:
        return [
            StreamPlace(name, stream, str(fields.get("topic")))
            for name, record in self.queries().items()
            for stream, fields in record.spec["streams"].items()
        ]

    def append(self, place: StreamPlace, records: Sequence[bytes]) -> None:
        if self.is_away:
            raise UnavailableError("BOREAL_SITES", None, "Kafka does not answer", "ask again soon")
        if self.is_busy:
            raise BusyError("body", None, "cannot be taken now", "send it again soon")
        self.appended += [(place, record) for record in records]

    def dead_letters(self, name: str, choice: LetterChoice, limit: int) -> LetterPage:
        self.record(name)
        found = [each for each in self.letters if choice.takes(each.letter, each.at_ms)]
        return LetterPage(tuple(found[:limit]))

    def replay_letters(self, name: str, choice: LetterChoice, limit: int, by: str) -> ReplayOutcome:
        self.record(name)
        if self.is_away:
            raise UnavailableError("BOREAL_SITES", None, "Kafka does not answer", "ask again soon")
        self.replays.append((choice, limit, by))
        return ReplayOutcome(2, {PUT_BACK_BEFORE: 1})

    def output(self, name: str, view: View) -> MemoryOutput:
        self.record(name)
        return self.outputs[view]

    def recorded(self, name: str, span: Span, most_rows: int) -> Recording:
        self.record(name)
        if self.recording is None:
            raise RowsGoneError("failure", None, "rows of jfk are no longer kept", "replay a newer failure")
        return self.recording

    def fault(self, text: str, by: str = "api") -> StartedFault:
        if not self.allows_chaos:
            raise ForbiddenError("fault", text, "chaos is not allowed here", "run boreal up --allow-chaos")
        self.faults.append(text)
        return StartedFault("f1", text, ("q.left",), NOW_MS)

    def record(self, name: str) -> QueryRecord:
        if name not in self.records:
            raise NotFoundError("NAME", name, "there is no such query", "create it")
        return self.records[name]

    def _write(self, name: str, precondition: Precondition) -> None:
        if self.is_away:
            raise UnavailableError("BOREAL_SITES", None, "Kafka does not answer", "ask again soon")
        precondition.check(name, self.records.get(name))
