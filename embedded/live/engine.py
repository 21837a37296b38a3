"""All queries of an embedded installation, as one machine without a thread: calls and the time in, files and records out.

Each call happens between two turns. `next_at` says when `turn` is to be called; how time passes is the business of the driver:
`embedded.live.thread` lets it pass, tests skip it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from boreal.model.errors import UserError
from boreal.query.spec import Query, did_you_mean
from deployment.audit import ChaosAudit, QueryAudit, QueryChange, TokenAudit
from deployment.events import RESTARTED, Event
from deployment.query_record import QueryRecord, refuse_other_structure
from embedded.live.demo import demo_query
from embedded.live.journal import EventJournal
from embedded.live.query import LiveQuery, plan_live
from embedded.world import Clock


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
        self._audit, self._tokens = QueryAudit(), TokenAudit()
        self._data = data / "queries"
        self._clock = clock
        for path in sorted(self._data.glob("*/query.json")):
            try:
                query = LiveQuery.read(path.parent, clock)
                query.on_events = self.journal.record
                self.queries[query.name] = query
            except (UserError, KeyError, TypeError, ValueError) as error:
                self.problems[path.parent.name] = str(error)

    def begin(self, now: int) -> None:
        """Start all queries that are not paused, where they stopped. What was left to record is recorded first."""
        chaos = ChaosAudit()
        for _, event in self.journal.events:
            for audit in (self._audit, self._tokens, chaos):
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
        """The notes of the planner. UserError if `put` would refuse the query."""
        old = self.queries.get(query.name)
        if old is not None:
            refuse_other_structure(old.record.query, query)
        return plan_live(query, old.is_demo if old is not None else False).notes

    def put(self, query: Query, now: int, is_demo: bool = False, by: str | None = None) -> LiveQuery:
        """Create or replace a query; the same again changes nothing. by: who does it. UserError if it cannot run here."""
        self.check(query)
        old = self.queries.get(query.name)
        if old is not None:
            return self._change(old, QueryRecord(query.name, query.dump(), old.record.revision, old.record.paused), now, by)
        directory = self._data / quote(query.name, safe="")
        made = LiveQuery(QueryRecord(query.name, query.dump(), 1), is_demo, directory, self._clock)
        made.on_events = self.journal.record
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
        """Replace some top-level fields of a query, all or none. by: who does it. UserError if it cannot run so."""
        old = self.find(name)
        changed = old.record.query.changed(**fields)
        self.check(changed)
        return self._change(old, QueryRecord(name, changed.dump(), old.record.revision, old.record.paused), now, by)

    def pause(self, name: str, paused: bool, now: int, by: str | None = None) -> LiveQuery:
        """Stop or continue a query; does nothing if it is so already. by: who does it."""
        old = self.find(name)
        return self._change(old, QueryRecord(name, old.record.spec, old.record.revision, paused), now, by)

    def restart(self, name: str, now: int, by: str | None = None) -> LiveQuery:
        """Begin all instances of a query again from their logs. by: who does it."""
        query = self.find(name)
        facts = {"revision": query.record.revision, "paused": query.record.paused, "restarts": query.record.restarts}
        self.journal.record([Event(now / 1_000, RESTARTED, name, by, None, facts)])
        query.restart(now)
        return query

    def delete(self, name: str, now: int, by: str | None = None) -> None:
        """Remove a query with its files. by: who does it."""
        query = self.find(name)
        query.remove()
        self.journal.record(query.failures.end("deleted", now / 1_000))
        self.journal.record(self._audit.see(QueryChange(name, None, now / 1_000, by)))
        del self.queries[name]

    def see_tokens(self, tokens: Iterable[Mapping[str, Any]], now: int) -> None:
        """There are these tokens, as `TokenAudit.see` wants them: record what is new."""
        self.journal.record(self._tokens.see(tokens, now / 1_000))

    def _change(self, query: LiveQuery, wanted: QueryRecord, now: int, by: str | None) -> LiveQuery:
        if wanted != query.record:
            record = QueryRecord(wanted.name, wanted.spec, wanted.revision + 1, wanted.paused)
            query.change(record, now)
            self.journal.record(self._audit.see(QueryChange(record.name, record, now / 1_000, by)))
        return query
