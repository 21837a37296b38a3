"""All queries of an embedded installation, as one machine without a thread: calls and the time in, files and records out.

Each call happens between two turns. `next_at` says when `turn` is to be called; how time passes is the business of the driver:
`embedded.live.thread` lets it pass, tests skip it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from boreal.model.errors import UserError
from boreal.query.spec import Query, did_you_mean
from deployment.audit import ChaosAudit, JobAudit, QueryAudit, QueryChange, TokenAudit, replay_event
from deployment.change_preview import ChangePreview, preview, refuse_other_structure
from deployment.corrections import TellCorrection, tell_nobody
from deployment.events import RESTARTED, RecordedEvent
from deployment.evolution import EARLIEST, evolve, resolve_start, roll_back, settle
from deployment.query_changes import changed_query
from deployment.query_record import QueryRecord, with_bucket
from deployment.shared_sources import STATE
from embedded.live.demo import demo_query
from embedded.live.journal import EventJournal
from embedded.live.query import LiveQuery, plan_live
from embedded.world import Clock
from formats.dead_letter import LetterChoice, ReplayOutcome


class LiveEngine:
    """The queries in a directory. Times are clock values: microseconds since the Unix epoch, never falling.

    `problems` names queries that were found in the directory and cannot be read, and why.
    """

    def __init__(self, data: Path, clock: Clock) -> None:
        """clock: charges the work of instances; it does not wait."""
        self.queries: dict[str, LiveQuery] = {}
        self.problems: dict[str, str] = {}
        self.journal = EventJournal(data)
        """All that happens."""
        self._tell: TellCorrection = tell_nobody
        self._audit, self._tokens, self._jobs = QueryAudit(), TokenAudit(), JobAudit()
        self._data = data / "queries"
        self._clock = clock
        for path in sorted(self._data.glob("*/query.json")):
            try:
                query = LiveQuery.read(path.parent, clock)
                self._attend(query)
                self.queries[query.name] = query
            except (UserError, KeyError, TypeError, ValueError) as error:
                self.problems[path.parent.name] = str(error)

    def begin(self, now: int) -> None:
        """Start all queries that are not paused, where they stopped. What was left to record is recorded first."""
        chaos = ChaosAudit()
        for _, event in self.journal.events:
            for audit in (self._audit, self._tokens, self._jobs, chaos):
                audit.resume(event)
            if event.query in self.queries:
                self.queries[event.query].failures.resume(event)
                self.queries[event.query].served.resume(event)
        self.journal.events.clear()
        changes = [QueryChange(name, query.record, now / 1_000) for name, query in self.queries.items()]
        self.journal.record(self._audit.see_all(changes, now / 1_000))
        self.journal.record(chaos.see_none(now / 1_000))
        for query in self.queries.values():
            query.turn(now)

    def close(self) -> None:
        """Stop all queries at once. What they have logged stays."""
        for query in self.queries.values():
            query.end()

    def tell_corrections(self, tell: TellCorrection) -> None:
        """Call `tell` after each correction from now on."""
        self._tell = tell
        for query in self.queries.values():
            query.on_corrected = tell

    # Time

    @property
    def next_at(self) -> int | None:
        """When `turn` is to be called next; None if nothing is to be done."""
        return min((at for query in self.queries.values() if (at := query.next_at) is not None), default=None)

    def turn(self, now: int) -> None:
        """Perform the first action that is due at this clock value; does nothing if there is none."""
        due = [(at, query) for query in self.queries.values() if (at := query.next_at) is not None and at <= now]
        if due:
            min(due, key=lambda entry: entry[0])[1].turn(now)

    # Queries

    def find(self, name: str) -> LiveQuery:
        """UserError if there is no such query."""
        if name not in self.queries:
            fix = did_you_mean(name, self.queries) if self.queries else "apply one first: boreal query apply FILE"
            raise UserError("name", name, "there is no such query", fix)
        return self.queries[name]

    def check(self, query: Query) -> tuple[str, ...]:
        """The notes of the planner. UserError if the query cannot run here."""
        old = self.queries.get(query.name)
        return plan_live(query, old.is_demo if old is not None else False).notes

    def preview(self, query: Query, start: str, now: int) -> ChangePreview | None:
        """What `put` would change of the query of this name, and how; None if there is none."""
        old = self.queries.get(query.name)
        start = _start(start, now)
        return None if old is None else preview(old.record, query, start)

    def put(self, query: Query, now: int, is_demo: bool = False, by: str | None = None) -> LiveQuery:
        """Create or replace a query; the same again changes nothing. by: who does it. UserError if it cannot run here."""
        self.check(query)
        old = self.queries.get(query.name)
        if old is not None:
            refuse_other_structure(old.record, query)
        spec = with_bucket(query, old.record.query if old is not None else None).dump()
        if old is not None:
            return self._change(old, replace(old.record, spec=spec), now, by)
        directory = self._data / quote(query.name, safe="")
        made = LiveQuery(QueryRecord(query.name, spec, 1), is_demo, directory, self._clock)
        self._attend(made)
        made.save()
        self.queries[query.name] = made
        self.queries = dict(sorted(self.queries.items()))
        self.journal.record(self._audit.see(QueryChange(query.name, made.record, now / 1_000, by)))
        made.turn(now)
        return made

    def put_demo(self, now: int) -> LiveQuery:
        """The demo's query, created if absent."""
        query = demo_query()
        return self.queries.get(query.name) or self.put(query, now, is_demo=True)

    def change(self, name: str, fields: Mapping[str, Any], now: int, by: str | None = None) -> LiveQuery:
        """Change some fields of a query, all or none: see `deployment.query_changes`. by: who does it. UserError if it cannot
        run so."""
        old = self.find(name)
        changed = with_bucket(changed_query(old.record.spec, fields), old.record.query)
        self.check(changed)
        return self._change(old, replace(old.record, spec=changed.dump()), now, by)

    def pause(self, name: str, paused: bool, now: int, by: str | None = None) -> LiveQuery:
        """Stop or continue a query; does nothing if it is so already. by: who does it."""
        old = self.find(name)
        return self._change(old, replace(old.record, paused=paused), now, by)

    def restart(self, name: str, now: int, by: str | None = None) -> LiveQuery:
        """Begin all instances of a query again from their logs. by: who does it."""
        query = self.find(name)
        facts = {"revision": query.record.revision, "paused": query.record.paused, "restarts": query.record.restarts}
        self.journal.record([RecordedEvent(now / 1_000, RESTARTED, name, by, None, facts)])
        query.restart(now)
        return query

    def evolve(self, query: Query, start: str, now: int, by: str | None = None) -> LiveQuery:
        """Build another version of a query beside it, which takes over once it has caught up (`deployment.evolution`). start:
        from where it reads the posted records. by: who does it. UserError if that cannot be."""
        old = self.find(query.name)
        if old.is_demo:
            raise UserError("NAME", query.name, "is the demo, which has one version", "create a query of your own")
        plan_live(query, old.is_demo)
        return self._evolve(old, evolve(old.record, with_bucket(query, None), _start(start, now)), now, by)

    def roll_back(self, name: str, now: int, by: str | None = None) -> LiveQuery:
        """Let the version that was in charge before take over again, or give up one that never was. by: who does it."""
        query = self.find(name)
        return self._evolve(query, roll_back(query.record), now, by)

    def settle(self, name: str, now: int, by: str | None = None) -> LiveQuery:
        """Delete the version that was in charge before. by: who does it."""
        query = self.find(name)
        return self._evolve(query, settle(query.record), now, by)

    def _evolve(self, query: LiveQuery, wanted: QueryRecord, now: int, by: str | None) -> LiveQuery:
        if wanted != query.record:
            query.evolve(wanted, now)
            self._note_record(query, now, by)
        return query

    def _note_record(self, query: LiveQuery, now: int, by: str | None = None) -> None:
        self.journal.record(self._audit.see(QueryChange(query.name, query.record, now / 1_000, by)))

    def _attend(self, query: LiveQuery) -> None:
        """Record what happens with a query."""
        query.on_events, query.on_corrected = self.journal.record, self._tell
        query.on_record = lambda now: self._note_record(query, now)

    def delete(self, name: str, now: int, by: str | None = None) -> None:
        """Remove a query with its files. by: who does it."""
        query = self.find(name)
        query.remove()
        self.journal.record(query.failures.end("deleted", now / 1_000))
        self.journal.record(self._audit.see(QueryChange(name, None, now / 1_000, by)))
        del self.queries[name]

    def replay(self, name: str, choice: LetterChoice, limit: int, now: int, by: str) -> ReplayOutcome:
        """See `LiveQuery.replay`. by: who does it."""
        outcome = self.find(name).replay(choice, limit, now)
        if outcome.replayed:
            self.journal.record([replay_event(name, choice, outcome, now / 1_000, by)])
        return outcome

    def see_tokens(self, tokens: Iterable[Mapping[str, Any]], now: int) -> None:
        """There are these tokens, as `TokenAudit.see` wants them: record what is new."""
        self.journal.record(self._tokens.see(tokens, now / 1_000))

    def see_jobs(self, jobs: Iterable[Mapping[str, Any]], now: int) -> None:
        """There are these jobs, as `JobAudit.see` wants them: record what is new."""
        self.journal.record(self._jobs.see(jobs, now / 1_000))

    def _change(self, query: LiveQuery, wanted: QueryRecord, now: int, by: str | None) -> LiveQuery:
        if wanted != query.record:
            record = replace(wanted, revision=wanted.revision + 1)
            query.change(record, now)
            self.journal.record(self._audit.see(QueryChange(record.name, record, now / 1_000, by)))
        return query


def _start(start: str, now: int) -> str:
    """As `resolve_start`. UserError for what only a stack can do."""
    found = resolve_start(start, now)
    if found == STATE:
        problem = "is for a stack: here each version reads the records that were posted"
        raise UserError("--from", start, problem, f"write --from {EARLIEST}")
    return found
