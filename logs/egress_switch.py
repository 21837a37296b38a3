"""How an egress goes from one version of a query to the next, at an event time T: clients get the stable rows before T from the
one, and those from T on from the other.

The frames of the egress come in order of event time, so they can be cut at T. What follows the last row before T is one
boundary at T. Its anchor says where the rows from T on begin in the logs of the next version, so a restart of the egress finds
there all that it needs (R26).

    1. T is named. From then on nothing of this version passes T: the egress has promised it. If stable rows or a boundary have
       passed T already, it has missed T.
    2. What reaches T is held back, until it is agreed: the egresses of all sites have promised.
    3. The last boundary, at T, is given. A restart goes on with the next version from here on, and with this one before.

If another time is named meanwhile, what is held back is given, and the egress promises that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from boreal.model.columns import event_times
from boreal.model.frames import Anchor, Boundary, Data, Frame, LogId, ingest_at
from boreal.query.plan import EGRESS, Plan
from logs.log import Log, TrimmedError
from logs.restart import OpenLog

READ_FRAMES = 16
"""Maximum number of frames in one read."""


PROMISED = "promised"
MISSED = "missed"


@dataclass(frozen=True, slots=True)
class NextVersion:
    """What an egress needs to know of the version that takes over."""

    to: int
    """The number of the version."""
    at: int
    """The event time T (us)."""
    agreed: bool
    """Whether the egresses of all sites end at T."""
    plan: Plan
    """The version's plan."""
    inputs: Mapping[str, int]
    """Where its rows begin: see `first_ids_from`."""


@dataclass(frozen=True, slots=True)
class ClientFrame:
    """A frame for clients."""

    log: LogId
    """The log that the frame was read from."""
    frame: Frame
    """The frame."""
    is_last: bool = False
    """Whether this is the boundary that ends the version; nothing follows."""


class EgressSwitch:
    """One incarnation of an egress. `next_id`: of the first stable row that clients do not have; `reached`: the event time that
    their stable rows or boundaries have reached; `held`: how many frames wait; `has_ended`: nothing is given any more."""

    def __init__(self, next_id: int, reached: int) -> None:
        self.next_id, self.reached = next_id, reached
        self.has_ended = False
        self._next: NextVersion | None = None
        self._has_missed = False
        self._held: list[tuple[LogId, Frame]] = []

    @property
    def held(self) -> int:
        return len(self._held)

    def take(self, log: LogId, frame: Frame) -> list[ClientFrame]:
        """The next frame of this version; what is given to clients."""
        if self.has_ended:
            return []
        if self._held:
            self._held.append((log, frame))
            return []
        following = self._next
        if following is None or self._has_missed:
            return [self._give(log, frame)]
        part, has_reached = cut_at(frame, following.at)
        given = [self._give(log, part)] if part is not None else []
        if has_reached and following.agreed:
            given.append(self._end(log, frame, following))
        elif has_reached:
            self._held.append((log, _rest(frame, part)))
        return given

    def prepare(self, following: NextVersion | None) -> list[ClientFrame]:
        """This takeover is named; None: none, or one to the version that is given already. Returns what is given to clients."""
        if self.has_ended:
            return []
        before, self._next = self._next, following
        if following is not None and before is not None and following.at == before.at:
            return [self._end(*self._held[0], following)] if self._held and following.agreed else []
        self._has_missed = following is not None and self.reached >= following.at
        held, self._held = self._held, []
        return [given for log, frame in held for given in self.take(log, frame)]

    def status(self) -> dict[str, Any] | None:
        """The takeover that is prepared: `to`, `at_us`, and whether it is promised or missed."""
        following = self._next
        if following is None:
            return None
        return {"to": following.to, "at_us": following.at, "state": MISSED if self._has_missed else PROMISED}

    def _give(self, log: LogId, frame: Frame) -> ClientFrame:
        if isinstance(frame, Data) and not frame.tentative:
            self.reached = max(self.reached, int(frame.batch.column(0)[-1].as_py()))
            self.next_id = max(self.next_id, frame.first_id + frame.batch.num_rows)
        elif isinstance(frame, Boundary) and not frame.tentative:
            self.reached = max(self.reached, frame.time)
        return ClientFrame(log, frame)

    def _end(self, log: LogId, frame: Frame, following: NextVersion) -> ClientFrame:
        """Step 3. frame: what has reached the time."""
        self.has_ended = True
        self._held.clear()
        return ClientFrame(
            log, last_boundary(frame, following.at, following.plan, self.next_id, following.inputs), is_last=True
        )


def _rest(frame: Frame, part: Frame | None) -> Frame:
    """What follows a part of a frame."""
    if not isinstance(frame, Data) or not isinstance(part, Data):
        return frame
    rows = part.batch.num_rows
    return replace(frame, first_id=frame.first_id + rows, batch=frame.batch.slice(rows))


def cut_at(frame: Frame, time: int) -> tuple[Frame | None, bool]:
    """What of a frame comes before an event time, None if nothing does; and whether stable rows have reached it. Tentative
    frames are left as they are: they will be undone."""
    if isinstance(frame, Data) and not frame.tentative:
        before = int(np.searchsorted(event_times(frame.batch), time))
        if before == frame.batch.num_rows:
            return frame, False
        return (replace(frame, batch=frame.batch.slice(0, before)) if before else None), True
    if isinstance(frame, Boundary) and not frame.tentative and frame.time >= time:
        return None, True
    return frame, False


def last_boundary(frame: Frame, time: int, plan: Plan, next_id: int, inputs: Mapping[str, int]) -> Boundary:
    """The boundary that ends the rows of a version. frame: the stable one that has reached the time. plan: of the next version.
    next_id: of its first row at clients. inputs: see `first_ids_from`."""
    assert isinstance(frame, Data | Boundary), "rows or a boundary have reached the time"
    key = f"{plan.fragment(EGRESS).outputs[0].name}/0"
    anchor = Anchor(time, time, ((key, next_id),), tuple(sorted(inputs.items())))
    if isinstance(frame, Boundary):
        return replace(frame, time=time, anchor=anchor)
    ingest = ingest_at(frame.ingest, time - 1)
    return Boundary(frame.origin, frame.epoch, time, False, ingest, ingest, anchor=anchor)


def first_ids_from(plan: Plan, time: int, inputs: Mapping[str, Sequence[LogId]], open_log: OpenLog) -> dict[str, int]:
    """For each input of a version's egress, an id from which on its logs have all rows from an event time on, and that they
    still hold. It may be lower than needed. inputs: each replica's log, by 'stream/partition'."""
    unordered = {edge.name for edge in plan.fragment(EGRESS).edges if edge.source}
    return {
        key: max(_first_id_from(open_log(log), time, log.stream in unordered) for log in logs) for key, logs in inputs.items()
    }


def _first_id_from(log: Log, time: int, is_unordered: bool) -> int:
    """is_unordered: rows do not come in order of time, so only the beginning of the log is known to be before all others."""
    anchor = log.last_anchor()
    if not is_unordered and anchor is not None and anchor.time <= time:
        return dict(anchor.next_ids)[log.id.key]
    first = _first_held(log)
    if is_unordered:
        return first
    last = log.next_stable_id
    while first < last:
        middle = (first + last) // 2
        if _time_of(log, middle) < time:
            first = middle + 1
        else:
            last = middle
    return first


def _first_held(log: Log) -> int:
    try:
        log.offset_after(-1)
        return 0
    except TrimmedError as trimmed:
        offset = trimmed.start
    while offset < log.end:
        items = log.read(offset, READ_FRAMES, skip_revoked=True)
        for _, frame in items:
            if isinstance(frame, Data) and not frame.tentative:
                return frame.first_id
        offset = items[-1][0] + 1 if items else log.end
    return log.next_stable_id


def _time_of(log: Log, id_: int) -> int:
    """The event time of a row."""
    [(_, frame)] = log.read(log.offset_after(id_ - 1), 1)
    assert isinstance(frame, Data), "a row is found in its frame"
    return int(frame.batch.column(0)[id_ - frame.first_id].as_py())
