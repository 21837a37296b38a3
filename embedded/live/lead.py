"""How the frames of a version that has taken over become frames for clients: they count on from those of the version before.

Each version numbers its rows and epochs by itself. Clients have rows of the other one up to the event time T of the takeover,
so of this one they get what begins at T, under the ids and epochs that follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from boreal.model.columns import event_times
from boreal.model.frames import Boundary, Data, Frame, RecDone, Start, Undo
from logs.log import Log

READ_FRAMES = 1_024


@dataclass(frozen=True, slots=True)
class Lead:
    """What is added to the ids and epochs of a version's frames from an event time on."""

    at: int
    """T, event time (us)."""
    ids: int
    """Added to ids."""
    epochs: int
    """Added to epochs."""

    def take(self, frame: Frame) -> Frame | None:
        """A frame for clients; None if all of it is before T."""
        epoch = frame.epoch + self.epochs
        match frame:
            case Data():
                before = int(np.searchsorted(event_times(frame.batch), self.at)) if not frame.tentative else 0
                if before == frame.batch.num_rows:
                    return None
                return replace(frame, epoch=epoch, first_id=frame.first_id + before + self.ids, batch=frame.batch.slice(before))
            case Boundary():
                return replace(frame, epoch=epoch) if frame.time >= self.at else None
            case Undo():
                return replace(frame, epoch=epoch, last_id=frame.last_id + self.ids)
            case Start():
                return replace(frame, epoch=epoch, next_id=frame.next_id + self.ids)
            case RecDone():
                return replace(frame, epoch=epoch)
            case _:
                assert_never(frame)


def place_at(log: Log, time: int) -> tuple[int, int]:
    """The offset from which on a log has its stable results since an event time, and the id of the first of these rows. The
    log's stable boundary has reached the time, and what it holds begins before."""
    offset, next_id = log.start, log.next_stable_id
    while offset < log.end:
        items = log.read(offset, READ_FRAMES, skip_revoked=True)
        for place, frame in items:
            if isinstance(frame, Data) and not frame.tentative:
                before = int(np.searchsorted(event_times(frame.batch), time))
                next_id = frame.first_id + before
                if before < frame.batch.num_rows:
                    return place, next_id
            elif isinstance(frame, Boundary) and not frame.tentative and frame.time >= time:
                # Nothing tentative is before it that is not revoked.
                return place + 1, next_id
        offset = items[-1][0] + 1 if items else log.end
    raise AssertionError(f"{log.id} has not reached {time}")
