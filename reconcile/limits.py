"""The bounds of an instance that the query does not set: on its work, its memory and its waits. They are one record, so that
the simulator can draw small values for all of them, and reach in seconds what otherwise takes hours."""

from __future__ import annotations

from dataclasses import dataclass

from reconcile.soutput import FRAME_BYTES
from sunion.sunion import REPLAY_BYTES, STEP_BYTES, STEP_ROWS
from sunion.tape import MAX_NOTES


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of an instance. The defaults are for production."""

    notes: int = MAX_NOTES
    """How many places and boundaries a port keeps exactly. Beyond this number it merges neighbouring ones."""
    step_rows: int = STEP_ROWS
    """About how many rows one step of SUnion holds at most."""
    step_bytes: int = STEP_BYTES
    """About how many bytes one step of SUnion holds at most."""
    first_rows: int = STEP_ROWS // 8
    """How many rows one call processes at first, before the speed of the machine is known."""
    least_rows: int = 1_024
    """The smallest number of rows for one call, on a slow machine."""
    steps_per_call: int = 4
    """The largest number of steps in one call."""
    replay_bytes: int = REPLAY_BYTES
    """About how many bytes one read of a log asks for when rows are read again."""
    frame_bytes: int = FRAME_BYTES
    """The largest size of the rows of one frame, in bytes. More rows of a step are split into several frames."""
    lacking_heartbeats: int = 20
    """A replica whose log lacks rows that this instance needs is not read for so many heartbeat intervals. Another replica may
    deliver the rows meanwhile."""
    near_silences: int = 8
    """A nearer replica is read once it has been as good as the present one for so many silence timeouts: each change looks up
    a place in a log, and rows wait for that."""
    forgotten_heartbeats: int = 100
    """A reader that has sent no `PathAfter` for so many heartbeat intervals counts as gone. This is several times as long as
    CALM_BEATS, after which it repeats what it has said, and far longer than the time after which a peer counts as dead: the
    reader may be cut off from this instance alone, and alpha*X must still leave time for its path."""


PRODUCTION = Limits()
