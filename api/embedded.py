"""An installation in the API's own process: `embedded.live`, one site, no servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from api.event_history import EventHistory
from api.installation import (
    BusyError,
    Change,
    CheckResult,
    ConflictError,
    ForbiddenError,
    Freshness,
    NotFoundError,
    OutputEvent,
    OutputPage,
    OutputReader,
    Precondition,
    Readiness,
    StartedFault,
    StreamPlace,
    UnavailableError,
    View,
)
from boreal.model.errors import UserError
from boreal.query.refusals import did_you_mean
from boreal.query.spec import Query
from deployment.layout import Layout
from deployment.liveness import Liveness
from deployment.query_record import QueryRecord
from embedded.faults import parse_fault_at_once
from embedded.live.engine import LiveEngine
from embedded.live.output import OutputRing
from embedded.live.query import SITE, LiveQuery
from embedded.live.source_archive import SourceFiles
from embedded.live.thread import LiveThread
from embedded.recording import Recording, Span, record
from formats.dead_letter import LetterChoice, LetterPage, ReplayOutcome
from services.hosting.traces import open_traces

STALE_AFTER_MS = 5_000
MOST_WAITING = 500_000
"""How many posted records of a stream may wait for their source."""

_PLACE = re.compile(rf"{SITE}:(\d{{1,18}})")
_HEAL = re.compile(r"heal (?P<target>\S+)")
_TARGETED = re.compile(r"(?P<verb>\S+) (?P<target>\S+)(?P<rest>.*)")

Result = TypeVar("Result")


class EmbeddedInstallation:
    """See `api.installation.Installation`. The engine runs from the beginning."""

    def __init__(self, data: Path, allow_chaos: bool, is_demo: bool = False) -> None:
        """is_demo: create the demo's query, if it is absent."""
        self._data = data
        self._allow_chaos = allow_chaos
        self._thread = LiveThread(data)
        self.events = EventHistory()
        self._traces = open_traces("api")
        if self._traces is not None:
            self._thread.engine.tell_corrections(self._traces.tell)
        journal = self._thread.engine.journal
        if journal.events:
            self.events.begin(journal.events[0][0])
        for number, event in journal.events:
            self.events.take(number, event)
        journal.on_event = self.events.take
        self._thread.start()
        if is_demo:
            self._call(lambda engine, now: engine.put_demo(now))

    @property
    def sites(self) -> tuple[str, ...]:
        return (SITE,)

    def close(self) -> None:
        self._thread.close()
        if self._traces is not None:
            self._traces.close()

    # Reads

    def queries(self, min_revision: tuple[str, int] | None = None) -> Mapping[str, QueryRecord]:
        records = self._call(lambda engine, _: {name: query.record for name, query in engine.queries.items()})
        if min_revision is not None:
            name, revision = min_revision
            if name not in records or records[name].revision < revision:
                raise UnavailableError("min_revision", revision, f"{name} has no such revision", "ask without it")
        return records

    def freshness(self) -> Freshness:
        heard_ms = self._thread.heard_at / 1_000
        return Freshness(heard_ms, self._thread.now() / 1_000 - heard_ms > STALE_AFTER_MS)

    def readiness(self) -> Readiness:
        found = self.statuses(self.queries())
        waits_for = tuple(name for name, status in found.items() if not status["ready"] and not status["paused"])
        return Readiness(not waits_for, waits_for)

    def status(self, name: str) -> Mapping[str, Any]:
        return self._call(lambda engine, now: _find(engine, name).status(now))

    def statuses(self, names: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        return self._call(
            lambda engine, now: {name: engine.queries[name].status(now) for name in names if name in engine.queries}
        )

    def layout(self, name: str) -> Layout:
        # The demo's durations are in event time, which is faster than the query file says.
        made = self._call(lambda engine, _: _find(engine, name).plan)
        return Layout(made, self.sites)

    def instances(self, name: str) -> Sequence[Mapping[str, Any]]:
        return self._call(lambda engine, now: _find(engine, name).instances(now))

    def liveness(self, name: str) -> Liveness:
        return self._call(lambda engine, now: _find(engine, name).liveness(now))

    def running(self, name: str) -> Sequence[str]:
        return ()

    def workers(self) -> Sequence[Mapping[str, Any]]:
        return ()

    def config(self) -> Mapping[str, Any]:
        return {"embedded": True, "data": str(self._data)}

    def see_tokens(self, tokens: Sequence[Mapping[str, Any]]) -> None:
        """There are these tokens, as `TokenStore.shown` says: record which are new, and which are gone."""
        self._call(lambda engine, now: engine.see_tokens(tokens, now))

    def see_jobs(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """There are these jobs, as `Jobs.shown` says: record which are new, and which are over."""
        self._call(lambda engine, now: engine.see_jobs(jobs, now))

    # Changes

    def check(self, query: Query, start: str) -> CheckResult:
        return self._call(lambda engine, now: CheckResult(engine.check(query), engine.preview(query, start, now)))

    def put(self, query: Query, precondition: Precondition) -> Change:
        def put(engine: LiveEngine, now: int) -> Change:
            old = engine.queries.get(query.name)
            precondition.check(query.name, old.record if old else None)
            return _change(engine.put(query, now, by=precondition.by), old is None)

        return self._call(put)

    def change(self, name: str, fields: Mapping[str, Any], precondition: Precondition) -> Change:
        return self._act(name, precondition, lambda engine, now: engine.change(name, fields, now, precondition.by))

    def pause(self, name: str, paused: bool, precondition: Precondition) -> Change:
        return self._act(name, precondition, lambda engine, now: engine.pause(name, paused, now, precondition.by))

    def restart(self, name: str, only_failed: bool, precondition: Precondition) -> Change:
        def restart(engine: LiveEngine, now: int) -> LiveQuery:
            query = engine.queries[name]
            works = all(replica["state"] != "FAILURE" for replica in query.status(now)["replicas"])
            if not (only_failed and works) and not query.record.paused:
                return engine.restart(name, now, precondition.by)
            return query

        return self._act(name, precondition, restart)

    def evolve(self, query: Query, start: str, precondition: Precondition) -> Change:
        return self._act(query.name, precondition, lambda engine, now: engine.evolve(query, start, now, precondition.by))

    def roll_back(self, name: str, precondition: Precondition) -> Change:
        return self._act(name, precondition, lambda engine, now: engine.roll_back(name, now, precondition.by))

    def settle(self, name: str, precondition: Precondition) -> Change:
        return self._act(name, precondition, lambda engine, now: engine.settle(name, now, precondition.by))

    def delete(self, name: str, precondition: Precondition) -> None:
        def delete(engine: LiveEngine, now: int) -> None:
            precondition.check(name, _find(engine, name).record)
            engine.delete(name, now, precondition.by)

        self._call(delete)

    # Rows

    def streams(self) -> Sequence[StreamPlace]:
        records = self.queries()
        return [
            StreamPlace(name, stream, f"{name}.{stream}")
            for name, record in records.items()
            for stream in dict.fromkeys(stream for run in record.runs() for stream in run.spec["streams"])
        ]

    def append(self, place: StreamPlace, records: Sequence[bytes]) -> None:
        def append(engine: LiveEngine, now: int) -> None:
            query = _find(engine, place.query)
            if query.waiting(place.stream, now) > MOST_WAITING:
                problem = f"has {MOST_WAITING:,} rows that wait to be processed"
                raise BusyError("stream", place.stream, problem, "post the rows again a little later")
            try:
                query.post(place.stream, records, now)
            except OSError as error:
                raise UnavailableError("stream", place.stream, f"cannot be written: {error}", "look at the disk") from None

        self._call(append)

    def dead_letters(self, name: str, choice: LetterChoice, limit: int) -> LetterPage:
        return self._call(lambda engine, _: _find(engine, name).newest_letters(choice, limit))

    def replay_letters(self, name: str, choice: LetterChoice, limit: int, by: str) -> ReplayOutcome:
        def replay(engine: LiveEngine, now: int) -> ReplayOutcome:
            _find(engine, name)
            try:
                return engine.replay(name, choice, limit, now, by)
            except OSError as error:
                raise UnavailableError("NAME", name, f"cannot be written: {error}", "look at the disk") from None

        return self._call(replay)

    def output(self, name: str, view: View) -> OutputReader:
        ring = self._call(lambda engine, _: _find(engine, name).ring)
        return RingReader(ring, view)

    def recorded(self, name: str, span: Span, most_rows: int) -> Recording:
        def begin(engine: LiveEngine, now: int) -> tuple[LiveQuery, SourceFiles]:
            return (query := _find(engine, name)), query.recorded()

        query, files = self._call(begin)
        with closing(files):
            return record(query.plan, query.record.query, files.newest_first, span, most_rows)

    # Faults

    def fault(self, text: str, by: str = "api") -> StartedFault:
        if not self._allow_chaos:
            problem = "is not allowed to break anything"
            raise ForbiddenError("fault", text, problem, "start it with boreal up --embedded --allow-chaos, or with --demo")
        words = " ".join(text.split())
        if heal := _HEAL.fullmatch(words):
            return self._call(lambda engine, _: self._heal(engine, words, heal["target"]))
        return self._call(lambda engine, now: self._strike(engine, words, now, by))

    def _strike(self, engine: LiveEngine, text: str, now: int, by: str) -> StartedFault:
        name, plain = _split_query(engine, text)
        fault = parse_fault_at_once(plain)
        target = fault.stream or f"{fault.fragment}.{fault.replica}"
        query = _choose(engine, name, target, lambda query: query.check_fault(fault))
        id_, active = query.strike(fault, now, f"{plain} in {query.name}", by)
        ends_at_ms = None if active.ends_at is None else active.ends_at / 1_000
        return StartedFault(id_, f"{plain} in {query.name}", (target,), ends_at_ms)

    def _heal(self, engine: LiveEngine, text: str, target: str) -> StartedFault:
        name, plain = _split_query(engine, text)
        target = plain.partition(" ")[2]

        def check(query: LiveQuery) -> None:
            if target not in query.fault_targets:
                choices = f"choose from {', '.join(query.fault_targets)}"
                raise UserError("fault", target, "is neither a stream nor a replica", choices)

        query = _choose(engine, name, target, check)
        query.heal(target)
        return StartedFault(f"heal-{target}", f"{plain} in {query.name}", (target,), None)

    def _act(self, name: str, precondition: Precondition, act: Callable[[LiveEngine, int], LiveQuery]) -> Change:
        def checked(engine: LiveEngine, now: int) -> Change:
            precondition.check(name, _find(engine, name).record)
            return _change(act(engine, now))

        return self._call(checked)

    def _call(self, what: Callable[[LiveEngine, int], Result]) -> Result:
        try:
            return self._thread.call(what)
        except RuntimeError as error:
            raise UnavailableError("engine", None, f"does not answer: {error}", "start it: boreal up --embedded") from None


class RingReader:
    """A view of the records that a query keeps in memory. The id of a record is `SITE:NUMBER`."""

    def __init__(self, ring: OutputRing, view: View) -> None:
        self._ring = ring
        self._only_stable = view == "stable"

    def read(self, after: str | None, limit: int) -> OutputPage:
        given = _number(after) if after is not None else None
        if given is not None and given > self._ring.last:
            raise UserError("Last-Event-ID", after, "is not the id of a record of this output", "leave it out to start over")
        last = self._ring.last
        begin = max(given or 0, 0)
        found = self._ring.read(begin, limit, self._only_stable)
        events = tuple(
            OutputEvent(_id(each.seq), each.kind, (each.data or "") if self._only_stable else each.record) for each in found
        )
        lost_to = self._ring.lost_to
        gap = None
        if given is not None and given < lost_to:
            gap = {"after": after, "first": events[0].id if events else None}
        reached = found[-1].seq if found and len(found) == limit else max(last, found[-1].seq if found else 0)
        return OutputPage(events, _id(reached) if reached else None, gap)

    def newest(self, count: int) -> str | None:
        number = self._ring.before_last(count, self._only_stable)
        return _id(number) if number else None

    def on_more(self, notify: Callable[[], None]) -> Callable[[], None]:
        return self._ring.listen(notify)

    def close(self) -> None:
        """There is nothing to release."""


def _id(number: int) -> str:
    return f"{SITE}:{number}"


def _number(place: str) -> int:
    match = _PLACE.fullmatch(place)
    if match is None:
        raise UserError("Last-Event-ID", place, "is not the id of a record of this output", "leave it out to start over")
    return int(match[1])


def _find(engine: LiveEngine, name: str) -> LiveQuery:
    if name not in engine.queries:
        fix = did_you_mean(name, engine.queries) if engine.queries else "create it first"
        raise NotFoundError("NAME", name, "there is no such query", fix)
    return engine.queries[name]


def _change(query: LiveQuery, is_new: bool = False) -> Change:
    return Change(query.record, is_new, query.plan.notes)


def _split_query(engine: LiveEngine, text: str) -> tuple[str | None, str]:
    """The query that the target of a fault names, if it does, and the text without that name."""
    match = _TARGETED.fullmatch(text)
    if match is not None:
        name, dot, rest = match["target"].partition(".")
        if dot and name in engine.queries:
            return name, f"{match['verb']} {rest}{match['rest']}"
    return None, text


def _choose(engine: LiveEngine, name: str | None, target: str, check: Callable[[LiveQuery], None]) -> LiveQuery:
    """The query that has the target of a fault. NotFoundError, ConflictError."""
    candidates = [engine.queries[name]] if name is not None else list(engine.queries.values())
    found, refusal = [], UserError("fault", target, "no query has it", "apply a query first")
    for query in candidates:
        try:
            check(query)
            found.append(query)
        except UserError as error:
            refusal = error
    if not found:
        raise NotFoundError("fault", target, refusal.problem, refusal.fix)
    if len(found) > 1:
        choices = ", ".join(f"{query.name}.{target}" for query in found)
        raise ConflictError("fault", target, "is in several queries", f"choose from {choices}")
    return found[0]
