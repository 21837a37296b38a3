"""Frames: the units that travel between fragments (design: Frames; rulings R1-R4, R25).

A log holds frames of one (stream, partition) as one producer wrote them. Times: event time is int64 microseconds since
the epoch; ingest times and all other clock values are int microseconds of the run clock. Ids are contiguous per
(stream, partition), from 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

INFINITY = 1 << 62
"""The boundary of a stream that has ended: no later tuple at all."""


class State(Enum):
    """An instance's consistency state, advertised on every boundary that it writes (DPC section 3, figure 'state machine')."""

    STABLE = "STABLE"
    UP_FAILURE = "UP_FAILURE"
    STABILIZATION = "STABILIZATION"
    RECOVERING = "RECOVERING"


Ingest = tuple[tuple[int, int], ...]
"""Runs (through, at), by rising `through`: tuples before `through`, from the previous run's on, were ingested at `at`."""


def ingest_suffix_min(entries: Iterable[tuple[int, int]]) -> Ingest:
    """Runs from (through, at) pairs in any order: a bucket that ends at e counts from the oldest `at` with through >= e."""
    runs: list[tuple[int, int]] = []
    for through, at in sorted(entries, reverse=True):
        if runs and runs[-1][1] <= at:
            continue
        if runs and runs[-1][0] == through:
            runs[-1] = (through, at)
        else:
            runs.append((through, at))
    return tuple(reversed(runs))


def ingest_at(ingest: Ingest, time: int) -> int:
    """When the tuple of this time counts as ingested; the last run serves for all later times."""
    for through, at in ingest:
        if time < through:
            return at
    return ingest[-1][1]


@dataclass(frozen=True, slots=True)
class Origin:
    """Who wrote a frame: a source (replica '') or a fragment's replica, in its n-th life."""

    replica: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a restarted instance may begin (R26), carried by stable boundaries.

    time: every input tuple before it has had its effect on the output. next_ids: the next stable id of each output log,
    keyed 'stream/partition'. inputs: per input 'stream/partition', the first id that the state at `time` still needs.
    needs: the event time from which inputs must be processed again to rebuild that state.
    """

    time: int
    needs: int
    next_ids: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Data:
    """DATA: rows first_id, first_id + 1, ... of a stream; t_max is the end of the last row's bucket (R4)."""

    origin: Origin
    epoch: int
    first_id: int
    batch: pa.RecordBatch
    tentative: bool
    ingest: Ingest
    t_max: int
    missing: tuple[str, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Boundary:
    """BOUNDARY(time): no later tuple has a smaller time. Repeated unchanged it is the stream's heartbeat (R24).

    ingest: when the input that this boundary rests on was ingested (R8). sent: the producer's clock when it released the
    boundary, put forward by what that is behind the clocks of what it reads; from it readers measure the hop, and what they are
    behind themselves (R9). Like all clock fields it is outside byte equality (R7).
    """

    origin: Origin
    epoch: int
    time: int
    tentative: bool
    ingest: int
    sent: int
    state: State = State.STABLE
    anchor: Anchor | None = None
    missing: tuple[str, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Undo:
    """UNDO(last_id): every tuple after last_id, and every tentative boundary, is revoked (R3). -1 revokes from the start."""

    origin: Origin
    epoch: int
    last_id: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class RecDone:
    """REC_DONE: the correction that the last UNDO began is complete."""

    origin: Origin
    epoch: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """START(n): a producer's n-th life begins; it revokes the tentative suffix of the life before (R25).

    next_id: the next stable id of this log. Where it is above the last one written, the writer has come back by a
    partner's anchor and skips ids: readers who need those must turn to another replica (R27).
    """

    origin: Origin
    epoch: int
    next_id: int = 0


Frame = Data | Boundary | Undo | RecDone | Start


@dataclass(frozen=True, slots=True, order=True)
class LogId:
    """One log: a stream's partition as one replica of its producer wrote it ('' for a source)."""

    stream: str
    replica: str
    partition: int

    @property
    def key(self) -> str:
        """'stream/partition': the same stable ids whichever replica wrote the log (R2)."""
        return f"{self.stream}/{self.partition}"
