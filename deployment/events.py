"""Events: what happened to the queries of an installation, and who did what. They are its failures' history and its audit log.

    {"v":1,"at_ms":1700000000123.0,"kind":"healed","query":"departures","by":null,"failure":"20231114T221320123Z","facts":{...}}

An event is recorded once, by one writer, and never changed. What is known of a failure follows from its events alone
(`deployment.failures`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

VERSION = 1
KEPT_MS = 30 * 24 * 3_600_000
"""How long events are kept."""

DETECTED = "detected"
SWITCHED = "switched"
TENTATIVE = "tentative"
HEALED = "healed"
UNDONE = "undone"
RECONCILED = "reconciled"
OVER = "over"
CREATED = "created"
CHANGED = "changed"
PAUSED = "paused"
RESUMED = "resumed"
RESTARTED = "restarted"
EVOLVED = "evolved"
REPLAYED = "replayed"
DELETED = "deleted"
SERVED = "served"
CHAOS_BEGUN = "chaos_begun"
CHAOS_UNDONE = "chaos_undone"
TOKEN_MADE = "token_made"
TOKEN_REVOKED = "token_revoked"
JOB_CREATED = "job_created"
JOB_DONE = "job_done"
JOB_FAILED = "job_failed"
JOB_CANCELLED = "job_cancelled"

KINDS: Mapping[str, str] = {
    DETECTED: "An instance misses inputs, or is itself silent (`state` is then `FAILURE`). `since_ms`: when the silence began. "
    "The first event of a failure has what was in force, `x_ms`, `reconcile` and `policy`, and `undone`: the rows that clients "
    "of each site had seen revoked before.",
    SWITCHED: "A reader follows another replica of an input: `input`, `from`, `to`.",
    TENTATIVE: "Clients of a `site` get the first tentative row of a failure. `total` rows were revoked before.",
    HEALED: "An instance has all its inputs again, or is heard again.",
    UNDONE: "Tentative rows that clients of a `site` had were revoked: `rows`; `total` counts all since the query began.",
    RECONCILED: "An instance is stable again. `redo_s`: how long its correction took; null if none was needed.",
    OVER: "All instances are stable again, and nothing is tentative. `rows_tentative` and `rows_undone` are of the site with "
    "the most; `late_rows` came later than X, and `rows_stable` were given stable meanwhile; null if unknown. `because` says "
    "why a failure ends otherwise.",
    CREATED: "A query was created: `revision`, `spec`.",
    CHANGED: "A query was changed: `revision`, `spec`, and `changes`, the old and the new value of each field.",
    PAUSED: "A query was paused.",
    RESUMED: "A query was resumed.",
    RESTARTED: "The replicas of a query were asked to restart.",
    EVOLVED: "A change of a query to another version has come further: its `state` now (null once there is one version again), "
    "the `version` whose results are given, the one `beside` it, and the event time `at` from which on another one's are.",
    REPLAYED: "Records that had been refused were put back: `id`, the choice (`stream`, `reason`, `since_ms`), how many were "
    "`replayed`, and how many letters were `left`, by the reason.",
    DELETED: "A query was deleted.",
    SERVED: "What clients of a query with an objective (`slo`) were given since `from_ms`: new rows `on_time` and `late`; and "
    "`tentative_ms`, for how long they held tentative rows. The API sums these up, and does not list them.",
    CHAOS_BEGUN: "A fault was begun on purpose: `id`, `fault`, `targets`, `ends_at_ms`.",
    CHAOS_UNDONE: "A fault is over: `id`, `fault`.",
    TOKEN_MADE: "A token was made: `id`, `name`, `roles`.",
    TOKEN_REVOKED: "A token was revoked: `id`, `name`.",
    JOB_CREATED: "A job was asked for: `id`, and its `job`, such as `comparison`.",
    JOB_DONE: "A job has its result: `id`, `job`, `created_ms`.",
    JOB_FAILED: "A job has ended without a result: `id`, `job`, `created_ms`, and the `problem`.",
    JOB_CANCELLED: "A job was cancelled: `id`, `job`, `created_ms`.",
}
"""All kinds, with what their facts say."""


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One thing that happened."""

    at_ms: float
    """When, in milliseconds since the Unix epoch."""
    kind: str
    """One of KINDS."""
    query: str | None = None
    """The query that it concerns; None if it is no query's."""
    by: str | None = None
    """Who did it: `cli`, or the name and roles of a token; None if nobody did."""
    failure: str | None = None
    """The id of the failure that it is part of; None if of none."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What KINDS says of the kind, as JSON."""

    def fields(self) -> dict[str, Any]:
        """The event as a JSON object."""
        return {
            "v": VERSION,
            "at_ms": self.at_ms,
            "kind": self.kind,
            "query": self.query,
            "by": self.by,
            "failure": self.failure,
            "facts": dict(self.facts),
        }

    def to_json(self) -> str:
        """The event as JSON on one line."""
        return json.dumps(self.fields(), separators=(",", ":"))


def read_event(text: str | bytes) -> RecordedEvent:
    """The event that `to_json` wrote. KeyError, TypeError or ValueError if it is none, or of another version."""
    return event_from(json.loads(text))


def event_from(fields: Mapping[str, Any]) -> RecordedEvent:
    """The event that `fields` returned. Errors as in `read_event`."""
    if fields["v"] != VERSION:
        raise ValueError(f"version {fields['v']}")
    names = fields["query"], fields["by"], fields["failure"]
    query, by, failure = (None if name is None else str(name) for name in names)
    return RecordedEvent(float(fields["at_ms"]), str(fields["kind"]), query, by, failure, dict(fields["facts"]))


def stamp(at_ms: float) -> str:
    """A moment as a name, such as 20231114T221320123Z: names in the order of time."""
    at = datetime.fromtimestamp(int(at_ms) // 1_000, UTC)
    return f"{at:%Y%m%dT%H%M%S}{int(at_ms) % 1_000:03d}Z"
