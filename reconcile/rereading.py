"""Reading again: rows that a view still needs and memory no longer holds come from the log once more (DPC, 'Stabilization';
a failure of hours must not need memory of hours)."""

from __future__ import annotations

from dataclasses import dataclass, field

from boreal.model.frames import Boundary, Data, LogId
from reconcile.events import Read, ReadDone
from reconcile.links import Link
from sunion.sunion import SUnion, View
from sunion.tape import Cursor

Slot = tuple[bool, int]
"""(is the live view, port)."""


@dataclass(slots=True)
class Rereading:
    """The reads under way, at most one for each view of a port. retry_us: how long after an empty answer to ask again."""

    links: list[Link]
    sunion: SUnion
    retry_us: int
    under_way: dict[Slot, tuple[int, LogId, Cursor]] = field(default_factory=dict)
    again_at: dict[Slot, int] = field(default_factory=dict)
    asked: int = 0

    def ask(self, now: int) -> list[Read]:
        """What the views must be given next, but for what is under way already."""
        reads: list[Read] = []
        for is_live, at, next_id in self.sunion.reads():
            slot = (is_live, at)
            view = self._view(is_live)
            assert view is not None
            log = self.links[at].log_to_read(now)
            pending = self.under_way.get(slot)
            if pending is not None and pending[1] == log and pending[2] is view.cursors[at]:
                continue
            if self.again_at.get(slot, 0) > now:
                continue
            self.asked += 1
            self.under_way[slot] = (self.asked, log, view.cursors[at])
            reads.append(Read(log, next_id - 1, self.sunion.settings.replay_bytes, self.asked))
        return reads

    def take(self, answer: ReadDone, now: int) -> None:
        """Rows have come; those of a view that is gone, or has been moved, are of no use any more."""
        slot = next((slot for slot, (number, _, _) in self.under_way.items() if number == answer.token), None)
        if slot is None:
            return
        _, _, cursor = self.under_way.pop(slot)
        is_live, at = slot
        view = self._view(is_live)
        if view is None or view.cursors[at] is not cursor:
            return
        link = self.links[at]
        tape = link.port.tape
        if not answer.items:
            link.read_turn += 1
            self.again_at[slot] = now + self.retry_us
        for _, frame in answer.items:
            if cursor.is_joined(tape):
                break
            if isinstance(frame, Data) and not frame.tentative:
                cursor.take_replayed(tape, frame.first_id, frame.batch, frame.ingest)
            elif isinstance(frame, Boundary) and not frame.tentative:
                cursor.replay_boundary = max(cursor.replay_boundary, frame.time)

    def turn_away(self, link: Link, log: LogId) -> None:
        """This log cannot give what was asked of it: it is another's turn."""
        link.read_turn += 1
        self.under_way = {slot: read for slot, read in self.under_way.items() if read[1] != log}

    def _view(self, is_live: bool) -> View | None:
        return self.sunion.live if is_live else self.sunion.base
