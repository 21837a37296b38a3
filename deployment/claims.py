"""What of a query's logs somebody may still need (R26, R27). Pure: events and the time in, effects out.

Every reader of a 'stream/partition' has a claim on it: the first id that it still needs, as it last acknowledged. What lies
before the smallest claim may be trimmed. A reader of which nothing is known yet claims all there is, so a monitor that has
just begun holds everything back. A reader that has been silent for longer than the query's retention has no claim until it
is heard again: one dead reader must not stop the living.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reconcile.events import InstanceId

DEAF_AFTER_US = 5_000_000
"""A pause between two ticks that is longer than this is our own: what was said meanwhile waits to be heard, or is lost."""

REPEAT_US = 30_000_000
"""Trims are said again so often, for a message on the control topic may be lost, and an owner may have been away."""


@dataclass(frozen=True, slots=True)
class ClaimLoss:
    """A reader was silent for too long; it has to begin anew from a checkpoint or an anchor when it comes back."""

    reader: InstanceId
    silent_us: int


@dataclass(frozen=True, slots=True)
class ClaimReturn:
    """A reader whose claim was lost is heard again."""

    reader: InstanceId


@dataclass(frozen=True, slots=True)
class Trim:
    """By 'stream/partition': the first id that somebody still needs; what is before it may go."""

    needed: Mapping[str, int]


ClaimEffect = ClaimLoss | ClaimReturn | Trim


@dataclass(slots=True)
class _ReaderClaim:
    heard_at: int
    has_claim: bool = True
    needs: dict[str, int] = field(default_factory=dict)


class LogClaims:
    """The claims on one query's logs. Times in microseconds; call `tick` about once a second."""

    def __init__(self, now: int) -> None:
        self.needed: dict[str, int] = {}
        """The highest that was published of each key."""
        self._readers: dict[InstanceId, _ReaderClaim] = {}
        self._readers_of: dict[str, list[InstanceId]] = {}
        self._retention_us = 0
        self._ticked_at = now
        self._repeat_at = now + REPEAT_US

    @property
    def lost(self) -> list[InstanceId]:
        """The readers without a claim."""
        return [who for who, reader in sorted(self._readers.items()) if not reader.has_claim]

    def expect(self, readers: Mapping[str, Iterable[InstanceId]], retention_us: int, now: int) -> None:
        """From now on these read the query's logs, by 'stream/partition'. Those known already keep their claims."""
        self._readers_of = {key: sorted(who) for key, who in sorted(readers.items())}
        expected = sorted({who for names in self._readers_of.values() for who in names})
        self._readers = {who: self._readers.get(who) or _ReaderClaim(now) for who in expected}
        self._retention_us = retention_us

    def hear(self, who: InstanceId, now: int) -> list[ClaimEffect]:
        """A sign of life. One from nobody that reads here means nothing: it is of an earlier shape of the query."""
        reader = self._readers.get(who)
        if reader is None:
            return []
        reader.heard_at = now
        if reader.has_claim:
            return []
        reader.has_claim = True
        return [ClaimReturn(who)]

    def acknowledge(self, who: InstanceId, positions: Iterable[tuple[str, int]], now: int) -> list[ClaimEffect]:
        """A reader needs nothing before these ids. Its last word counts, also where it needs more than before."""
        if who in self._readers:
            self._readers[who].needs.update(positions)
        return self.hear(who, now)

    def tick(self, now: int, is_counting: bool = True) -> list[ClaimEffect]:
        """is_counting: False while nobody is expected to speak, as when the query is paused."""
        elapsed = now - self._ticked_at
        self._ticked_at = now
        if elapsed > DEAF_AFTER_US or not is_counting:
            for reader in self._readers.values():
                reader.heard_at += elapsed
        return [*self._lose(now), *self._trim(now)]

    def _lose(self, now: int) -> list[ClaimEffect]:
        effects: list[ClaimEffect] = []
        for who, reader in sorted(self._readers.items()):
            silent_us = now - reader.heard_at
            if reader.has_claim and silent_us > self._retention_us:
                reader.has_claim = False
                effects.append(ClaimLoss(who, silent_us))
        return effects

    def _trim(self, now: int) -> list[ClaimEffect]:
        free = {key: self._needed_of(key) for key in self._readers_of}
        said = {key: needed for key, needed in free.items() if needed > self.needed.get(key, 0)}
        self.needed.update(said)
        if now >= self._repeat_at:
            self._repeat_at = now + REPEAT_US
            # A reader that regained its claim may need what was let go, and is there still.
            said = {key: needed for key, needed in free.items() if needed > 0}
        return [Trim(said)] if said else []

    def _needed_of(self, key: str) -> int:
        """The smallest valid claim; where there is none, nothing is known of what is needed, and nothing may go."""
        readers = [self._readers[who] for who in self._readers_of[key]]
        return min((reader.needs.get(key, 0) for reader in readers if reader.has_claim), default=0)
