"""Reading again: rows that a view still needs, but that memory no longer holds, are read from the log again (DPC,
'Stabilization'). Memory is bounded, because a failure of hours must not need the memory of hours."""

from __future__ import annotations

from dataclasses import dataclass, field

from boreal.model.frames import Boundary, Data, LogId
from reconcile.events import Read, ReadDone
from reconcile.links import Link
from sunion.sunion import SUnion, TapeView
from sunion.tape import Cursor

Slot = tuple[bool, int]
"""(is_live, port): whether it is the live view, and the index of the port."""


@dataclass(slots=True)
class Rereading:
    """The reads under way, at most one for each view of a port."""

    links: list[Link]
    """The ports, with the replicas of their streams."""
    sunion: SUnion
    """The SUnion whose views need the rows."""
    retry_us: int
    """The wait after an empty answer before the same rows are asked for again, in microseconds."""
    under_way: dict[Slot, tuple[int, LogId, Cursor]] = field(default_factory=dict)
    """For each view of a port: the token of the read, the log, and the cursor that needs the rows."""
    again_at: dict[Slot, int] = field(default_factory=dict)
    """For each view of a port: no read before this clock value, in microseconds."""
    asked: int = 0
    """The token of the last read."""

    def ask(self, now: int) -> list[Read]:
        """The reads of the rows that the views need next, without those that are under way already."""
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
        """Pass the rows of an answer to their view. They are ignored if the view is gone or was moved."""
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
        """Note that a log does not have the rows that were asked for. The next read goes to another replica."""
        link.read_turn += 1
        self.under_way = {slot: read for slot, read in self.under_way.items() if read[1] != log}

    def _view(self, is_live: bool) -> TapeView | None:
        return self.sunion.live if is_live else self.sunion.base
