"""How much an instance does, keeps or waits for at most, apart from what the query says: one record, so that the simulator
can draw all of it small and meet in seconds what else takes hours."""

from __future__ import annotations

from dataclasses import dataclass

from reconcile.soutput import FRAME_BYTES
from sunion.sunion import REPLAY_BYTES, STEP_BYTES, STEP_ROWS
from sunion.tape import MAX_NOTES


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults are for production.

    notes: places and boundaries that a port remembers exactly, before it notes them more coarsely. step_rows, step_bytes:
    about how much one step of SUnion holds. first_rows: what a call takes until it is known how long that takes;
    least_rows: what it takes even on a slow machine. steps_per_call: the steps of one call. replay_bytes: about how much
    is read from a log at once when rows are read again. frame_bytes: rows of a step that take more are several frames.
    lacking_heartbeats: a replica whose log lacks what we need is not asked again for so long, since we may have it from
    another. forgotten_heartbeats: a reader that has not said for so long how long the path after us takes is gone. It may
    be cut off from us alone, and the path is part of what X is measured by: hence far longer than what counts as dead.
    """

    notes: int = MAX_NOTES
    step_rows: int = STEP_ROWS
    step_bytes: int = STEP_BYTES
    first_rows: int = STEP_ROWS // 8
    least_rows: int = 1_024
    steps_per_call: int = 4
    replay_bytes: int = REPLAY_BYTES
    frame_bytes: int = FRAME_BYTES
    lacking_heartbeats: int = 20
    forgotten_heartbeats: int = 100


PRODUCTION = Limits()
