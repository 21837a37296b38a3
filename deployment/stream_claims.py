"""What the monitor does so that a query can join sources of others (`deployment.joined_sources`, steps 2 to 4). Pure.

    asks the sources to hold ──all say so, or CLAIM_WITHIN_US──> looks into the logs ──> (the record says which are joined)
            ^  every ASK_US                                            │
            └───────────────────────────── no answer ──────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deployment.joined_sources import SourceIndex
from deployment.layout import Layout
from deployment.query_record import QueryRecord, public_name

CLAIM_WITHIN_US = 10_000_000
"""A source that does not answer for so long is not joined: a query waits for no other one's sources."""
ASK_US = 1_000_000
"""How often sources are asked: a message on the control topic may be lost."""


@dataclass(frozen=True, slots=True)
class AskToHold:
    """Take back all permissions to trim these logs."""

    sources: str
    """The name of the sources that write them."""
    keys: tuple[str, ...]
    """The logs, as 'stream/partition'."""
    claim: str
    """What the sources are to say in their statuses then."""


@dataclass(frozen=True, slots=True)
class LookForRows:
    """Look whether the logs of these streams have all rows, and settle the claim by that."""

    record: QueryRecord
    """The query, as its claim has it."""
    streams: tuple[str, ...]
    """The streams of which nothing is trimmed meanwhile."""


ClaimStep = AskToHold | LookForRows


@dataclass(slots=True)
class _Claim:
    record: QueryRecord
    name: str  # of the claim
    began_at: int
    roles: dict[str, str]  # stream by the name of its source's role, but for sources of its own
    logs: dict[str, tuple[str, ...]]  # by the name of the sources, of the same streams
    held: set[str]  # streams: those that were answered for, and those with sources of its own, which nobody trims yet
    next_at: int = 0
    is_looked_at: bool = False


class StreamClaims:
    """The claims that are not settled. Times in us; call `tick` after each event, and about once a second."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}

    def change(self, name: str, record: QueryRecord | None, layout: Layout | None, now: int) -> None:
        """A query has changed. record: None if it is deleted. layout: of its version in charge; None if it has no plan."""
        known = self._claims.get(name)
        if record is None or record.joined is None or record.joined.claimed or layout is None:
            self._claims.pop(name, None)
        elif known is None or known.record.joined != record.joined or known.record.spec != record.spec:
            own = {stream for stream, sources in record.joined.of.items() if public_name(sources) == name}
            roles: dict[str, str] = {}
            logs: dict[str, tuple[str, ...]] = {}
            for stream, sources in sorted(record.joined.of.items()):
                if stream not in own:
                    roles[layout.source_role(stream)] = stream
                    logs[sources] = (*logs.get(sources, ()), *(log.key for _, log in layout.source_logs(stream)))
            # The time makes the name unique: what a source says of an earlier claim does not count for this one.
            self._claims[name] = _Claim(record, f"{name}.{record.revision}.{now}", now, roles, logs, own)
        else:
            known.record, known.is_looked_at = record, False

    def hear(self, role: str, holds: Iterable[str]) -> None:
        """The claims for which a source holds all rows, by its status."""
        said = set(holds)
        for claim in self._claims.values():
            if claim.name in said and role in claim.roles:
                claim.held.add(claim.roles[role])

    def unanswered(self, name: str) -> None:
        """Kafka has not answered when the logs of a query were looked into: they will be looked into again."""
        if (claim := self._claims.get(name)) is not None:
            claim.is_looked_at = False

    def waits_for(self, name: str) -> list[str]:
        """The roles whose answers a query's claim waits for."""
        claim = self._claims.get(name)
        return [] if claim is None else sorted(role for role, stream in claim.roles.items() if stream not in claim.held)

    def tick(self, records: Mapping[str, QueryRecord], now: int) -> list[ClaimStep]:
        """Time has passed. records: all queries, by name."""
        return [step for _, claim in sorted(self._claims.items()) for step in self._steps(claim, records, now)]

    def _steps(self, claim: _Claim, records: Mapping[str, QueryRecord], now: int) -> list[ClaimStep]:
        if claim.is_looked_at:
            return []
        joined = claim.record.joined
        assert joined is not None, "it claims"
        free = set(claim.held)
        if free < joined.of.keys():
            if now - claim.began_at < CLAIM_WITHIN_US:
                if now < claim.next_at:
                    return []
                claim.next_at = now + ASK_US
                return [AskToHold(name, keys, claim.name) for name, keys in sorted(claim.logs.items())]
            # Sources that nobody else reads do not run, so they trim nothing.
            others = SourceIndex(each for name, each in records.items() if name != claim.record.name and not each.paused)
            free |= {stream for stream, name in joined.of.items() if not others.readers_of(name, stream)}
        claim.is_looked_at = True
        return [LookForRows(claim.record, tuple(sorted(free)))]
