"""SOutput: numbers a fragment's output, drops repeats, and undoes (DPC, 'Stabilizing output streams'; R1-R4, R18, R25).

Per output edge and partition it counts stable ids, which are the same in every replica, and gives tentative tuples the
ids after them. ROLLBACK becomes one UNDO in every partition; what the rolled-back state makes again, up to the last
stable tuple already written, is dropped by id, even over a second MARK and ROLLBACK; the end of the correction, or the
first tentative tuple after it, becomes REC_DONE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from boreal.model.frames import Anchor, Boundary, Data, Frame, LogId, Origin, RecDone, Start, State, Undo, ingest_at
from boreal.model.partition import split
from boreal.query.plan import Edge
from reconcile.events import Append
from sunion.buckets import bucket_end
from sunion.steps import Step
from sunion.tape import BEGINNING

FRAME_BYTES = 32 << 20
"""Rows of a step that take more memory are written as several frames: half of what a record of a log may hold."""


@dataclass(slots=True)
class _Track:
    """One output log: `next_id` counts the stable ids that the current state has made, `written` those that were written
    or are held back for the end of a correction, `visible` those in the log; `tentative` counts the rows after them.
    `written_to`: the time up to which a life before wrote all stable rows, which this one may not yet have made again."""

    log: LogId
    next_id: int = 0
    written: int = 0
    visible: int = 0
    tentative: int = 0
    written_to: int = BEGINNING


@dataclass(slots=True)
class SOutput:
    """All output logs of one instance."""

    edges: tuple[Edge, ...]
    shard: int
    origin: Origin
    bucket_us: int
    frame_bytes: int = FRAME_BYTES
    epoch: int = 0
    tracks: dict[str, list[_Track]] = field(init=False)
    stable_through: int = BEGINNING
    stable_ingest: int = 0
    is_provisional: bool = False
    correcting: bool = False
    deferred: list[tuple[_Track, Data | Boundary]] | None = None
    deferred_bytes: int = 0
    cause: str = ""

    def __post_init__(self) -> None:
        self.tracks = {
            edge.name: [
                _Track(LogId(edge.name, self.origin.replica, edge.partition(self.shard, reader)))
                for reader in range(edge.partitions)
            ]
            for edge in self.edges
        }

    def _all(self) -> list[_Track]:
        return [track for tracks in self.tracks.values() for track in tracks]

    def next_ids(self) -> tuple[tuple[str, int], ...]:
        """The next stable id of each output log, as the current state counts them."""
        return tuple((track.log.key, track.next_id) for track in self._all())

    def start(
        self, made: Mapping[str, int], written: Mapping[str, int], epoch: int, written_to: Mapping[str, int]
    ) -> list[Append]:
        """Begin a life (R25): `made`, the ids that the restored state has made; `written`, those the logs hold; `epoch`,
        the last one in the logs. A state taken from a partner may have made more than the own logs hold: they then skip
        ids, and readers who need those turn to another replica (R27)."""
        for track in self._all():
            track.next_id = made.get(track.log.key, 0)
            track.written = track.visible = max(written.get(track.log.key, 0), track.next_id)
            track.written_to = written_to.get(track.log.key, BEGINNING)
        self.epoch = epoch + 1
        return [Append(track.log, Start(self.origin, self.epoch, track.written)) for track in self._all()]

    def emit(
        self,
        outputs: Mapping[str, pa.RecordBatch],
        step: Step,
        state: State,
        now: int,
        make_anchor: Callable[[tuple[tuple[str, int], ...]], Anchor | None],
    ) -> list[Append]:
        """Write a step's output rows and its boundary; a stable one carries the anchor that `make_anchor` gives for the
        next ids. Muted steps write nothing."""
        effects: list[Append] = []
        if step.muted:
            return effects
        if step.tentative and self.correcting and self.deferred is None:
            effects += self.end_correction()
        for edge in self.edges:
            batch = outputs[edge.operator]
            if batch.num_rows:
                for track, rows in zip(self.tracks[edge.name], split(batch, edge.key, edge.partitions), strict=True):
                    if rows.num_rows:
                        effects += self._write_rows(track, rows, step)
        boundary = Boundary(
            self.origin,
            self.epoch,
            step.upto,
            step.tentative,
            ingest_at(step.ingest, step.upto - 1),
            now,
            state,
            None if step.tentative else make_anchor(self.next_ids()),
            step.missing,
            step.cause,
        )
        if step.tentative:
            self.is_provisional = True
            return effects + self._broadcast(lambda: boundary)
        for track in self._all():
            effects += self._write_stable(track, boundary)
        self._note_boundary(boundary)
        return effects

    def undo(self, cause: str, keep_live: bool) -> list[Append]:
        """ROLLBACK: revoke what is tentative; with keep_live only later, when the correction is complete."""
        self.cause = cause
        self.correcting = True
        if keep_live:
            self.deferred, self.deferred_bytes = [], 0
            return []
        return self._revoke()

    def end_correction(self) -> list[Append]:
        """REC_DONE, with the UNDO and the corrections before it if they were held back for a live branch."""
        effects = self.show_deferred()
        if self.correcting:
            self.correcting = False
            effects += self._broadcast(lambda: RecDone(self.origin, self.epoch, self.cause))
        return effects

    def show_deferred(self) -> list[Append]:
        """The UNDO and the corrections so far, if they were held back for a live branch; what follows is written at once."""
        if self.deferred is None:
            return []
        held, self.deferred = self.deferred, None
        effects = self._revoke()
        for track, frame in held:
            effects += self._write_stable(track, replace(frame, epoch=self.epoch))
            if isinstance(frame, Boundary):
                self._note_boundary(frame)
        return effects

    def heartbeat(self, state: State, now: int) -> list[Append]:
        """Repeat the stable boundary: the stream's own sign of life, carrying the state (R24)."""
        return self._broadcast(
            lambda: Boundary(self.origin, self.epoch, self.stable_through, False, self.stable_ingest, now, state)
        )

    def _revoke(self) -> list[Append]:
        if not self.is_provisional:
            return []
        self.epoch += 1
        self.is_provisional = False
        effects = []
        for track in self._all():
            track.tentative = 0
            effects.append(Append(track.log, Undo(self.origin, self.epoch, track.visible - 1, self.cause)))
        return effects

    def _write_rows(self, track: _Track, rows: pa.RecordBatch, step: Step) -> list[Append]:
        return [effect for piece in self._pieces(rows, step.tentative) for effect in self._write_piece(track, piece, step)]

    def _pieces(self, rows: pa.RecordBatch, whole_buckets: bool) -> Iterator[pa.RecordBatch]:
        """The rows as batches of FRAME_BYTES at most, as far as they can be cut. whole_buckets: tentative rows of one bucket
        are in one frame, since a reader that changes to another replica asks by t_max for what it lacks (R23)."""
        if rows.nbytes <= self.frame_bytes:
            yield rows
            return
        middle = rows.num_rows // 2
        if whole_buckets:
            times = rows.column(0).to_numpy()
            end = bucket_end(int(times[middle]), self.bucket_us)
            ends = (int(np.searchsorted(times, end - self.bucket_us)), int(np.searchsorted(times, end)))
            middle = next((place for place in ends if 0 < place < rows.num_rows), 0)
        if middle == 0:
            yield rows
            return
        for half in (rows.slice(0, middle), rows.slice(middle)):
            yield from self._pieces(half, whole_buckets)

    def _write_piece(self, track: _Track, rows: pa.RecordBatch, step: Step) -> list[Append]:
        t_max = bucket_end(rows.column(0)[-1].as_py(), self.bucket_us)
        if step.tentative:
            # The log has the stable rows up to this time already, from the life before.
            rows = rows.slice(int(np.searchsorted(rows.column(0).to_numpy(), track.written_to, side="right")))
            if not rows.num_rows:
                return []
            first_id = track.visible + track.tentative
            track.tentative += rows.num_rows
            why = (step.missing, step.cause)
            return [Append(track.log, Data(self.origin, self.epoch, first_id, rows, True, step.ingest, t_max, *why))]
        first_id = track.next_id
        track.next_id += rows.num_rows
        repeats = min(max(track.written - first_id, 0), rows.num_rows)
        if repeats == rows.num_rows:
            return []
        rows, first_id = rows.slice(repeats), first_id + repeats
        track.written = first_id + rows.num_rows
        return self._write_stable(track, Data(self.origin, self.epoch, first_id, rows, False, step.ingest, t_max))

    def _write_stable(self, track: _Track, frame: Data | Boundary) -> list[Append]:
        if self.deferred is not None:
            self.deferred.append((track, frame))
            self.deferred_bytes += frame.batch.nbytes if isinstance(frame, Data) else 64
            return []
        if isinstance(frame, Data):
            track.visible = frame.first_id + frame.batch.num_rows
        return [Append(track.log, frame)]

    def _note_boundary(self, boundary: Boundary) -> None:
        if self.deferred is None:
            self.stable_through, self.stable_ingest = boundary.time, boundary.ingest

    def _broadcast(self, make: Callable[[], Frame]) -> list[Append]:
        return [Append(track.log, make()) for track in self._all()]
