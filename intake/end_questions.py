"""Which partitions are asked for their ends in one request, when several sources ask one leader. A machine: time and answers
in, requests out.

All sources look at the same ticks of the shared clock. So the first that asks at a tick asks for all partitions that will be
asked for at it, and the others find their answers. An answer counts for a question only if its request was sent at the time of
the question or later: whatever was written before the question lies before that end.

A leader that has not answered is silent: it is asked rarely, and may then take little time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

PATIENCE_MS = 1_000
"""How long a leader may take to answer."""
SILENT_PATIENCE_MS = 100
ASK_SILENT_AGAIN_US = 1_000_000
"""A leader that has not answered is asked again after this time, and may then take SILENT_PATIENCE_MS."""
_FORGET_AFTER = 3
"""A partition that was not asked for in so many of its intervals is asked for no more."""

Place = tuple[str, int]
"""A partition: its topic, and its number."""


@dataclass(frozen=True, slots=True)
class EndRequest:
    """Ask the leader for the ends of these partitions."""

    places: tuple[Place, ...]
    """The partitions."""
    patience_ms: int
    """How long the leader may take (ms)."""
    sent_at: int
    """When the request was made (us)."""


@dataclass(slots=True)
class _Asked:
    """When a partition was last asked for, and how long after the time before; None if it was asked for once."""

    since: int
    interval: int | None = None


class EndQuestions:
    """The questions to one leader. Times are microseconds of one clock."""

    def __init__(self) -> None:
        self._asked: dict[Place, _Asked] = {}
        self._answers: dict[Place, tuple[int, int | None]] = {}
        self._sent: EndRequest | None = None
        self._silent_until: int | None = None

    def ask(self, places: Collection[Place], since: int, now: int) -> Mapping[Place, int] | EndRequest | None:
        """The ends of partitions as of `since` or later, without those that were not answered. Or a request, if there are none
        yet: call `finish` with its answers, and ask again. None: a request is on its way; ask again when it has ended."""
        for place in places:
            self._note(place, since)
        if all(place in self._answers and self._answers[place][0] >= since for place in places):
            return self._known(places)
        if self._sent is not None:
            return None
        if self._silent_until is not None and now < self._silent_until:
            return {}
        patience_ms = PATIENCE_MS if self._silent_until is None else SILENT_PATIENCE_MS
        self._sent = EndRequest(tuple({**dict.fromkeys(places), **dict.fromkeys(self._due(since))}), patience_ms, now)
        return self._sent

    def finish(self, answers: Mapping[Place, int] | None, now: int) -> None:
        """The request has ended. answers: an end for each partition that the leader knows; None: it has not answered."""
        assert self._sent is not None, "no request was sent"
        sent, self._sent = self._sent, None
        self._silent_until = now + ASK_SILENT_AGAIN_US if answers is None else None
        for place in sent.places:
            self._answers[place] = sent.sent_at, (answers or {}).get(place)

    def _known(self, places: Collection[Place]) -> Mapping[Place, int]:
        found = {place: self._answers[place][1] for place in places}
        return {place: end for place, end in found.items() if end is not None}

    def _note(self, place: Place, since: int) -> None:
        asked = self._asked.setdefault(place, _Asked(since))
        if since > asked.since:
            self._asked[place] = _Asked(since, since - asked.since)

    def _due(self, since: int) -> list[Place]:
        """The partitions that will be asked for as of this time too."""
        due = []
        for place, asked in list(self._asked.items()):
            if asked.interval is None or since < asked.since + asked.interval:
                continue
            if since >= asked.since + _FORGET_AFTER * asked.interval:
                del self._asked[place]
                self._answers.pop(place, None)
            else:
                due.append(place)
        return due
