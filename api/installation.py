"""What the control plane needs of that which runs the queries: a protocol, its records and its refusals.

All methods block, for as long as a slow server takes, and may be called from any thread; routers call them in threads. They
raise the errors of this module, or UserError for what a caller wrote wrong. Nothing here names Kafka: a stack implements the
protocol (`api.stack`), and so may an engine in the API's own process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from api.event_history import EventHistory
from boreal.model.errors import UserError
from boreal.query.spec import Query
from deployment.change_preview import ChangePreview
from deployment.layout import Layout
from deployment.liveness import Liveness
from deployment.query_record import QueryRecord
from embedded.recording import Recording, Span
from formats.dead_letter import LetterChoice, LetterPage, ReplayOutcome

View = Literal["stable", "all"]
"""`stable`: only final rows, as plain objects. `all`: every record that a client of the output sees, tentative ones too."""


# Refusals. Each has the status with which HTTP answers it.


class NotFoundError(UserError):
    """There is no such query, stream or replica: 404."""


class ConflictError(UserError):
    """What was asked for contradicts what exists, such as a POST of a name that is taken: 409."""


class ForbiddenError(UserError):
    """The installation, or the caller's role, does not allow it: 403."""


class BusyError(UserError):
    """Too much at once; nothing was taken, and it may be asked again in `RETRY_AFTER_S`: 429."""


class UnavailableError(UserError):
    """A server that is needed does not answer; reads of what is known go on: 503."""


@dataclass
class PreconditionError(UserError):
    """The query is not as the caller last saw it: 412."""

    current: QueryRecord | None = None
    """The record as it is now; None if there is none."""


RETRY_AFTER_S = 1
"""When to ask again after BusyError or UnavailableError, in seconds."""


@dataclass(frozen=True, slots=True)
class Precondition:
    """What a caller expects of the record that it changes. An implementation calls `check` where no other change can come
    between: with the newest record, immediately before it writes."""

    revisions: tuple[int, ...] | None = None
    """The record must have one of these revisions; None: any."""
    must_exist: bool | None = None
    """True: there must be a record. False: there must be none. None: either."""
    said: str = "*"
    """If-Match as the caller wrote it."""
    by: str = "api"
    """Who changes it, for the event of the change."""

    def check(self, name: str, current: QueryRecord | None) -> None:
        """PreconditionError if the newest record is not what the caller expects."""
        if self.must_exist is False and current is not None:
            problem = f"exists already, with revision {current.revision}"
            raise PreconditionError("If-None-Match", "*", problem, "leave out If-None-Match to replace it", current)
        if (self.must_exist or self.revisions is not None) and current is None:
            problem = f"does not hold: there is no query {name}"
            raise PreconditionError("If-Match", self.said, problem, "leave out If-Match to create it", None)
        if self.revisions is not None and current is not None and current.revision not in self.revisions:
            problem = f"does not hold: {name} has revision {current.revision} now"
            fix = "read it again, and repeat the change if it is still wanted"
            raise PreconditionError("If-Match", self.said, problem, fix, current)


ANY = Precondition()
"""No expectation."""


# What is known


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A query that could run."""

    notes: tuple[str, ...]
    """What the planner says of it."""
    change: ChangePreview | None
    """What it would change of the query of its name; None if there is none."""


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a change."""

    record: QueryRecord
    """The record as it is now."""
    is_new: bool = False
    """Whether the query did not exist before."""
    notes: tuple[str, ...] = ()
    """What the planner says of the query."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old the answers of reads are."""

    as_of_ms: float
    """When the installation was last heard, in milliseconds since the Unix epoch."""
    is_stale: bool
    """Whether it is silent, so that answers may be out of date."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the installation does its work. A query that answers tentatively is ready, and so is a paused one."""

    is_ready: bool
    """Whether all that should run does."""
    waits_for: tuple[str, ...] = ()
    """What is not ready, by name."""


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A stream of a query, where rows may be posted."""

    query: str
    """The query."""
    stream: str
    """The stream in the query."""
    log: str
    """Where its records go: equal for two streams that the same records feed."""


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """A record of the output."""

    id: str
    """Its place, `SITE:OFFSET`: reading goes on after it."""
    type: str
    """`stable`, `tentative`, `undo`, `boundary` or `rec_done`."""
    data: str
    """JSON on one line: the row for the view `stable`, the record of changes.jsonl for `all`."""


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Some records of the output, in order."""

    events: tuple[OutputEvent, ...]
    """The records; none if there are no more yet."""
    next_id: str | None
    """The place of the last record that was considered, to read after it; None before the first."""
    gap: Mapping[str, Any] | None = None
    """If the records after the given place are no longer kept: {"after": the place, "first": the id of the first record that
    follows, or None}. It comes before `events`."""


class OutputReader(Protocol):
    """Reads one view of a query's output. Several callers share what it holds; each has its own place."""

    def read(self, after: str | None, limit: int) -> OutputPage:
        """At most `limit` records after a place, without waiting for new ones; None: from the oldest that is kept. UserError
        if `after` is not the id of a record of this output. A page without records may still have moved on: `next_id`."""

    def newest(self, count: int) -> str | None:
        """The place after which at most `count` records follow; None if all that is kept follows."""

    def on_more(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify`, from any thread, whenever there may be more to read, until the returned function is called."""

    def close(self) -> None:
        """This caller reads no more."""


@dataclass(frozen=True, slots=True)
class StartedFault:
    """A fault that has been asked for."""

    id: str
    """Its id."""
    fault: str
    """The fault, in the words of the grammar, with its query."""
    targets: tuple[str, ...]
    """What it concerns: processes, or replicas and streams."""
    ends_at_ms: float | None
    """When it is undone, in milliseconds since the Unix epoch; None for one that is over at once (crash)."""


class Installation(Protocol):
    """An installation of queries."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of its sites, sorted; the first is the home site."""

    def close(self) -> None:
        """End its clients."""

    # Reads: of what is known, even while servers do not answer

    def queries(self, min_revision: tuple[str, int] | None = None) -> Mapping[str, QueryRecord]:
        """All queries, by name in order. min_revision: a query and a revision; waits a few seconds until that is known.
        UnavailableError if it does not get known, or nothing was ever heard."""

    def freshness(self) -> Freshness: ...

    def readiness(self) -> Readiness: ...

    def status(self, name: str) -> Mapping[str, Any]:
        """The status of a query, with the fields of `deployment.status_fields.QUERY`. Before its processes are heard their
        states are STARTING. NotFoundError."""

    def statuses(self, names: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """`status` of these queries, by name, in one look; without those that do not exist."""

    def layout(self, name: str) -> Layout:
        """The parts of a query as they run, with the durations that are in force, and where they are. NotFoundError."""

    def instances(self, name: str) -> Sequence[Mapping[str, Any]]:
        """What each instance of a query says of itself, with the fields of `instances` in `deployment.status_fields.NODE`.
        Those that are silent are absent. NotFoundError."""

    def liveness(self, name: str) -> Liveness:
        """Whether a query runs as its newest record says. NotFoundError, UnavailableError."""

    def running(self, name: str) -> Sequence[str]:
        """The processes of a query that have not ended, by name; also those of one that was paused a moment ago."""

    def workers(self) -> Sequence[Mapping[str, Any]]:
        """The workers that have joined a site and are heard, by site and name: the fields of `api.models.WorkerStatus`."""

    def config(self) -> Mapping[str, Any]:
        """The effective settings as JSON. Secrets are masked."""

    # Changes. UnavailableError if a server does not answer: what was asked for may have been done nevertheless.

    def check(self, query: Query, start: str) -> CheckResult:
        """What `put` would make of a query, or `evolve` with this start. UserError if it cannot run here."""

    def put(self, query: Query, precondition: Precondition) -> Change:
        """Create or replace a query; the same again changes nothing. It starts in the background. UserError,
        PreconditionError."""

    def change(self, name: str, fields: Mapping[str, Any], precondition: Precondition) -> Change:
        """Change some fields of a query, all or none (`deployment.query_changes`); a new X holds at once. UserError,
        NotFoundError, PreconditionError."""

    def pause(self, name: str, paused: bool, precondition: Precondition) -> Change:
        """Stop or continue a query; does nothing if it is so already. NotFoundError, PreconditionError."""

    def restart(self, name: str, only_failed: bool, precondition: Precondition) -> Change:
        """Restart the replicas of a query, one after the other. only_failed: nothing happens while all of them work.
        NotFoundError, PreconditionError."""

    def evolve(self, query: Query, start: str, precondition: Precondition) -> Change:
        """Build another version of a query beside it, which takes over once it has caught up. start: 'earliest', 'latest' or a
        time. UserError, NotFoundError, PreconditionError."""

    def roll_back(self, name: str, precondition: Precondition) -> Change:
        """Let the version that was in charge before take over again; give up one that never was. UserError, NotFoundError,
        PreconditionError."""

    def settle(self, name: str, precondition: Precondition) -> Change:
        """Delete the version that was in charge before; returns when nothing is left of it. UserError, NotFoundError,
        PreconditionError."""

    def delete(self, name: str, precondition: Precondition) -> None:
        """Remove a query with its logs and outputs; returns when nothing is left. NotFoundError, PreconditionError."""

    # Rows

    def streams(self) -> Sequence[StreamPlace]:
        """The streams of all queries, in order of the names."""

    def append(self, place: StreamPlace, records: Sequence[bytes]) -> None:
        """Give rows, as JSON objects that were checked, to a stream. Returns when they survive a crash. BusyError, and
        UnavailableError if an unknown part of them was taken."""

    def dead_letters(self, name: str, choice: LetterChoice, limit: int) -> LetterPage:
        """At most `limit` dead letters of a query, the newest first. NotFoundError, UnavailableError."""

    def replay_letters(self, name: str, choice: LetterChoice, limit: int, by: str) -> ReplayOutcome:
        """Put the records of dead letters back into their streams, at most `limit` now, and each letter's at most once,
        whatever is killed. by: who does it. NotFoundError; UnavailableError, also if other calls overtake this one
        again and again."""

    def output(self, name: str, view: View) -> OutputReader:
        """A reader of a query's output. NotFoundError."""

    @property
    def events(self) -> EventHistory:
        """What happened."""

    def recorded(self, name: str, span: Span, most_rows: int) -> Recording:
        """What came of the streams of a query within a span, and before it what its windows held then. NotFoundError,
        RowsGoneError where rows of the span are no longer kept, TooManyRowsError."""

    # Faults

    def fault(self, text: str, by: str = "api") -> StartedFault:
        """Break something on purpose, such as "cut jfk for 5s": a fault of `boreal run`, beginning now. It is undone in time
        even if this process ends. "heal jfk" ends the faults of a stream or a replica before their time. A stream or replica
        may have its query before it: `departures.jfk`. UserError for a fault that is not understood or not possible here,
        NotFoundError for an unknown target, ConflictError for one that several queries have, ForbiddenError where chaos is not
        allowed. by: who asks for it, for its events."""
