"""Frames: the units that travel between fragments (design: Frames; rulings R1-R4, R25).

A log holds the frames that one producer wrote for one partition of a stream. Units, unless a field says otherwise:

    event time      int64, microseconds since the Unix epoch
    clock values    int, microseconds of the run clock
    ids             int, contiguous from 0 in each partition of a stream
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

INFINITY = 1 << 62
"""The event time of the last boundary of a stream that has ended: no tuple follows it."""


class State(Enum):
    """The consistency state of an instance, which all its boundaries carry (DPC section 3, figure 'state machine')."""

    STABLE = "STABLE"
    UP_FAILURE = "UP_FAILURE"
    STABILIZATION = "STABILIZATION"
    RECOVERING = "RECOVERING"


Ingest = tuple[tuple[int, int], ...]
"""Ingest times as runs (through, at), with rising `through`. A run covers the tuples with an event time before `through` that
no earlier run covers. `at` is the clock value at which they were ingested."""


def ingest_suffix_min(entries: Iterable[tuple[int, int]]) -> Ingest:
    """Runs from (through, at) pairs in any order. For a bucket that ends at e, the oldest `at` with through >= e counts."""
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
    """The clock value at which a tuple of this event time was ingested. The last run also covers all later times."""
    for through, at in ingest:
        if time < through:
            return at
    return ingest[-1][1]


@dataclass(frozen=True, slots=True)
class Origin:
    """The writer of a frame: a source, or a replica of a fragment."""

    replica: str
    """The name of the replica, such as 'r0'; '' for a source."""
    incarnation: int
    """The incarnation of the writer, counted from 1. Each restart has a higher one (the fencing epoch, R25)."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A recovery point: where a restarted instance may begin (R26). Stable boundaries carry it."""

    time: int
    """Event time. The output already reflects every input tuple before it."""
    needs: int
    """Event time. Inputs must be processed again from here on, to rebuild the state at `time`."""
    next_ids: tuple[tuple[str, int], ...]
    """The next stable id of each output log, by 'stream/partition'."""
    inputs: tuple[tuple[str, int], ...]
    """The first id of each input that the state at `time` still needs, by 'stream/partition'."""


@dataclass(frozen=True, slots=True)
class Data:
    """DATA: rows of a stream, with consecutive ids."""

    origin: Origin
    """The writer of the frame."""
    epoch: int
    """The revision of the tentative suffix. It grows by one at each UNDO and START of this writer."""
    first_id: int
    """The id of the first row; the row at position k of the batch has the id first_id + k."""
    batch: pa.RecordBatch
    """The rows, in the shape of `Schema.arrow`."""
    tentative: bool
    """Whether an UNDO may still revoke the rows."""
    ingest: Ingest
    """When the input of the rows was ingested, in runs of event time and clock values."""
    t_max: int
    """Event time: the end of the bucket of input that caused the last row (R4)."""
    missing: tuple[str, ...] = ()
    """The names of the inputs that were missing when tentative rows were made; () for stable rows."""
    cause: str = ""
    """The id of the failure that made the rows tentative, or 'early' if no input was missing; '' for stable rows."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """BOUNDARY(time): no later tuple has an event time before `time`. A repeated boundary is the stream's heartbeat (R24).

    Clock fields (`ingest`, `sent`) are not part of the byte equality of replicas (R7).
    """

    origin: Origin
    """The writer of the frame."""
    epoch: int
    """The revision of the tentative suffix, as in `Data.epoch`."""
    time: int
    """Event time; INFINITY when the stream has ended."""
    tentative: bool
    """Whether an UNDO may still revoke the boundary."""
    ingest: int
    """Clock value at which the input that this boundary depends on was ingested (R8)."""
    sent: int
    """Clock value of the producer when it released the boundary, plus the producer's clock offset: how far its clock is behind
    the clocks of its inputs. Readers use it to measure the delay of the hop and their own offset (R9)."""
    state: State = State.STABLE
    """The writer's consistency state at that moment."""
    anchor: Anchor | None = None
    """The recovery point at this boundary; None on tentative boundaries, and if there is none."""
    missing: tuple[str, ...] = ()
    """The names of the missing inputs, as in `Data.missing`."""
    cause: str = ""
    """The id of the failure, as in `Data.cause`."""
    lacking: tuple[str, ...] = ()
    """The names of the inputs that the writer lacks at that moment. Its rows may be older, and lack others (R10)."""
    pause: int = 0
    """How much longer than usual the writer may be silent after this boundary, in microseconds; 0 unless it is calm (R24)."""


@dataclass(frozen=True, slots=True)
class Undo:
    """UNDO(last_id): every tuple after `last_id` is revoked, and every tentative boundary (R3)."""

    origin: Origin
    """The writer of the frame."""
    epoch: int
    """The new revision of the tentative suffix, which this UNDO begins."""
    last_id: int
    """The id of the last tuple that stays; -1 if none stays."""
    cause: str = ""
    """The id of the failure that is being corrected."""


@dataclass(frozen=True, slots=True)
class RecDone:
    """REC_DONE: the correction that the last UNDO began is complete."""

    origin: Origin
    """The writer of the frame."""
    epoch: int
    """The revision of the tentative suffix, as in `Data.epoch`."""
    cause: str = ""
    """The id of the failure that has been corrected."""


@dataclass(frozen=True, slots=True)
class Start:
    """START(n): incarnation n of a producer begins. It revokes the tentative suffix of the incarnation before (R25)."""

    origin: Origin
    """The writer of the frame, in its new incarnation."""
    epoch: int
    """The revision of the tentative suffix with which the incarnation begins."""
    next_id: int = 0
    """The next stable id of this log. It can be more than one above the last id written: a writer that recovered from another
    replica's anchor skips ids. Readers that need these ids must read another replica (R27)."""


Frame = Data | Boundary | Undo | RecDone | Start


class LogId(NamedTuple):
    """The name of a log: one partition of a stream, as one replica of its producer wrote it."""

    stream: str
    """The name of the stream (`Edge.name`)."""
    replica: str
    """The name of the replica that wrote it; '' for a source."""
    partition: int
    """The number of the partition, from 0."""

    @property
    def key(self) -> str:
        """'stream/partition'. Logs with the same key hold the same stable ids, written by different replicas (R2)."""
        return f"{self.stream}/{self.partition}"
