"""Which rows of a query's logs are still needed (R26, R27). Pure: events and the time in, effects out.

Every reader of a 'stream/partition' has a claim on it: the first id that it still needs, from its last acknowledgement. Rows
before the smallest claim may be trimmed. A reader that has not acknowledged anything yet claims all rows, so a monitor that
has just started trims nothing. A reader that has been silent for longer than the query's retention loses its claim until it
is heard again, so that one dead reader does not block trimming for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from reconcile.events import InstanceId

DEAF_AFTER_US = 5_000_000
"""After a longer pause between two ticks, this process itself was stopped: messages of the pause are still queued, or lost."""

REPEAT_US = 30_000_000
"""Interval at which trims are repeated: a message on the control topic may be lost, or its reader may have been down."""


@dataclass(frozen=True, slots=True)
class ClaimLoss:
    """A reader lost its claim because it was silent for too long. When it comes back it must restart from a checkpoint or an
    anchor."""

    reader: InstanceId
    """The silent reader."""
    silent_us: int
    """How long it has been silent (us)."""


@dataclass(frozen=True, slots=True)
class ClaimReturn:
    """A reader that had lost its claim is heard again."""

    reader: InstanceId
    """The reader that has a claim again."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Rows that may be trimmed."""

    needed: Mapping[str, int]
    """The first id that is still needed, by 'stream/partition'; rows before it may be trimmed."""


ClaimEffect = ClaimLoss | ClaimReturn | Trim

NO_OTHERS: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class _ReaderClaim:
    heard_at: int
    has_claim: bool = True
    needs: dict[str, int] = field(default_factory=dict)


class LogClaims:
    """The claims on one query's logs. Times in microseconds; call `tick` about once a second."""

    def __init__(self, now: int) -> None:
        self.needed: dict[str, int] = {}
        """The highest published id of each 'stream/partition'."""
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
        """These instances read the query's logs from now on. readers: by 'stream/partition'. Known readers keep claims."""
        self._readers_of = {key: sorted(who) for key, who in sorted(readers.items())}
        expected = sorted({who for names in self._readers_of.values() for who in names})
        self._readers = {who: self._readers.get(who) or _ReaderClaim(now) for who in expected}
        self._retention_us = retention_us

    def hear(self, who: InstanceId, now: int) -> list[ClaimEffect]:
        """A message from `who`. Ignored if `who` is not a reader: it belongs to an earlier revision of the query."""
        reader = self._readers.get(who)
        if reader is None:
            return []
        reader.heard_at = now
        if reader.has_claim:
            return []
        reader.has_claim = True
        return [ClaimReturn(who)]

    def acknowledge(self, who: InstanceId, positions: Iterable[tuple[str, int]], now: int) -> list[ClaimEffect]:
        """A reader no longer needs rows before these ids. The last acknowledgement counts, even if its ids are lower."""
        if who in self._readers:
            self._readers[who].needs.update(positions)
        return self.hear(who, now)

    def tick(self, now: int, is_counting: bool = True, others: Mapping[str, int] = NO_OTHERS) -> list[ClaimEffect]:
        """Time has passed. is_counting: False while readers are expected to be silent, as while the query is paused. others:
        the first id that another version needs, for each log that it reads too."""
        elapsed = now - self._ticked_at
        self._ticked_at = now
        if elapsed > DEAF_AFTER_US or not is_counting:
            for reader in self._readers.values():
                reader.heard_at += elapsed
        return [*self._lose(now), *self._trim(now, others)]

    def needed_of(self, key: str) -> int:
        """The smallest valid claim. Without any claim it is unknown what is needed, so nothing may be trimmed."""
        readers = [self._readers[who] for who in self._readers_of[key]]
        return min((reader.needs.get(key, 0) for reader in readers if reader.has_claim), default=0)

    def _lose(self, now: int) -> list[ClaimEffect]:
        effects: list[ClaimEffect] = []
        for who, reader in sorted(self._readers.items()):
            silent_us = now - reader.heard_at
            if reader.has_claim and silent_us > self._retention_us:
                reader.has_claim = False
                effects.append(ClaimLoss(who, silent_us))
        return effects

    def _trim(self, now: int, others: Mapping[str, int]) -> list[ClaimEffect]:
        free = {key: min(needed := self.needed_of(key), others.get(key, needed)) for key in self._readers_of}
        said = {key: needed for key, needed in free.items() if needed > self.needed.get(key, 0)}
        self.needed.update(said)
        if now >= self._repeat_at:
            self._repeat_at = now + REPEAT_US
            # A reader that regained its claim may need rows that were released but are not trimmed yet.
            said = {key: needed for key, needed in free.items() if needed > 0}
        return [Trim(said)] if said else []
