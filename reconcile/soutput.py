"""SOutput: numbers the output of a fragment, drops repeats, and writes UNDO (DPC, 'Stabilizing output streams'; R1-R4, R18,
R25).

For each output edge and partition it counts stable ids, which are the same in every replica. Tentative tuples get the ids
after the last stable one. ROLLBACK becomes one UNDO in every partition. The tuples that the restored state makes again, up to
the last stable tuple already written, are dropped by id, even over a second MARK and ROLLBACK. REC_DONE is written at the end
of the correction, or before the first tentative tuple after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from boreal.model.columns import batch_bytes, event_times
from boreal.model.frames import Anchor, Boundary, Data, Frame, LogId, Origin, RecDone, Start, State, Undo, ingest_at
from boreal.model.partition import split
from boreal.query.plan import Edge
from reconcile.events import Append
from sunion.buckets import bucket_end
from sunion.steps import Step
from sunion.tape import BEGINNING

FRAME_BYTES = 32 << 20
"""The largest size of the rows of one frame, half of what a record of a log may hold. More rows of a step are split into
several frames."""


@dataclass(slots=True)
class _Track:
    """The counters of one output log."""

    log: LogId
    key: str
    """'stream/partition'."""
    next_id: int = 0
    """The next stable id of the current state."""
    written: int = 0
    """The next stable id to write: all before it are in the log, or held back until the end of a correction."""
    visible: int = 0
    """The next stable id of the log itself."""
    tentative: int = 0
    """The number of tentative rows after the stable ones."""
    written_to: int = BEGINNING
    """Event time. Up to it an earlier incarnation wrote all stable rows, which this one may not have made again yet."""


@dataclass(slots=True)
class SOutput:
    """All output logs of one instance."""

    edges: tuple[Edge, ...]
    """The output edges of the fragment."""
    shard: int
    """The shard of the instance."""
    origin: Origin
    """The writer that all frames name."""
    bucket_us: int
    """The length of a bucket, in microseconds of event time."""
    frame_bytes: int = FRAME_BYTES
    """The largest size of the rows of one frame, in bytes."""
    epoch: int = 0
    """The revision of the tentative suffix. It grows by one at each UNDO and START."""
    tracks: dict[str, list[_Track]] = field(init=False)
    """The output logs, by the name of the edge, in the order of the partitions."""
    all_tracks: tuple[_Track, ...] = field(init=False)
    """The output logs, in the same order."""
    stable_through: int = BEGINNING
    """The event time of the last stable boundary in the logs."""
    stable_ingest: int = 0
    """The ingest time of this boundary, a clock value in microseconds."""
    is_provisional: bool = False
    """Whether the logs have a tentative suffix that is not revoked yet."""
    correcting: bool = False
    """Whether a correction has begun and REC_DONE is not written yet."""
    deferred: list[tuple[_Track, Data | Boundary]] | None = None
    """The stable frames that are held back until the correction is complete (R16, R21); None if none is held back."""
    deferred_bytes: int = 0
    """About the size of these frames in bytes."""
    cause: str = ""
    """The id of the failure that is being corrected, or was corrected last."""

    def __post_init__(self) -> None:
        logs = {
            edge.name: [LogId(edge.name, self.origin.replica, edge.partition(self.shard, at)) for at in range(edge.partitions)]
            for edge in self.edges
        }
        self.tracks = {name: [_Track(log, log.key) for log in written] for name, written in logs.items()}
        self.all_tracks = tuple(track for tracks in self.tracks.values() for track in tracks)

    def next_ids(self) -> tuple[tuple[str, int], ...]:
        """For each output log: 'stream/partition', and the next stable id of the current state."""
        return tuple((track.key, track.next_id) for track in self.all_tracks)

    def start(
        self, made: Mapping[str, int], written: Mapping[str, int], epoch: int, written_to: Mapping[str, int]
    ) -> list[Append]:
        """Begin an incarnation (R25): write START to each output log.

        By 'stream/partition': `made` has the next stable ids of the restored state, `written` those of the logs, and
        `written_to` the event times up to which the logs have all stable rows. `epoch` is the last one in the logs. A state
        that was restored from a partner's checkpoint may be ahead of the own logs. The logs then skip ids, and readers that
        need these rows switch to another replica (R27).
        """
        for track in self.all_tracks:
            track.next_id = made.get(track.key, 0)
            track.written = track.visible = max(written.get(track.key, 0), track.next_id)
            track.written_to = written_to.get(track.key, BEGINNING)
        self.epoch = epoch + 1
        return [Append(track.log, Start(self.origin, self.epoch, track.written)) for track in self.all_tracks]

    def emit(
        self,
        outputs: Mapping[str, pa.RecordBatch],
        step: Step,
        state: State,
        lacking: tuple[str, ...],
        now: int,
        make_anchor: Callable[[tuple[tuple[str, int], ...]], Anchor | None],
        pause_us: int = 0,
    ) -> list[Append]:
        """Write the output rows of a step, and its boundary. A muted step writes nothing.

        `outputs` has the rows by the name of the operator; `state` and `lacking` are
        the instance's, and `now` is the clock value with which the boundary is stamped. A
        stable boundary carries the anchor that `make_anchor` returns for the next stable ids. `pause_us`: as
        `Boundary.pause`.
        """
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
            lacking,
            pause_us,
        )
        if step.tentative:
            self.is_provisional = True
            return effects + self._broadcast(boundary)
        for track in self.all_tracks:
            effects += self._write_stable(track, boundary)
        self._note_boundary(boundary)
        return effects

    def undo(self, cause: str, defer: bool) -> list[Append]:
        """ROLLBACK: revoke the tentative suffix. With `defer` this waits until the correction is complete (R16, R21)."""
        self.cause = cause
        self.correcting = True
        if defer:
            self.deferred, self.deferred_bytes = [], 0
            return []
        return self._revoke()

    def end_correction(self) -> list[Append]:
        """Write REC_DONE. If the corrections were held back, write the UNDO and the corrections first."""
        effects = self.show_deferred()
        if self.correcting:
            self.correcting = False
            effects += self._broadcast(RecDone(self.origin, self.epoch, self.cause))
        return effects

    def show_deferred(self) -> list[Append]:
        """Write the UNDO and the corrections so far, if they were held back. Later corrections are written at once."""
        if self.deferred is None:
            return []
        held, self.deferred = self.deferred, None
        effects = self._revoke()
        for track, frame in held:
            effects += self._write_stable(track, replace(frame, epoch=self.epoch))
            if isinstance(frame, Boundary):
                self._note_boundary(frame)
        return effects

    def heartbeat(self, state: State, lacking: tuple[str, ...], now: int, pause_us: int = 0) -> list[Append]:
        """Repeat the stable boundary, with the state of the instance and the inputs that it lacks. This is the heartbeat of the
        stream (R24). `pause_us`: as `Boundary.pause`."""
        at, ingest = self.stable_through, self.stable_ingest
        boundary = Boundary(self.origin, self.epoch, at, False, ingest, now, state, lacking=lacking, pause=pause_us)
        return self._broadcast(boundary)

    def _revoke(self) -> list[Append]:
        if not self.is_provisional:
            return []
        self.epoch += 1
        self.is_provisional = False
        effects = []
        for track in self.all_tracks:
            track.tentative = 0
            effects.append(Append(track.log, Undo(self.origin, self.epoch, track.visible - 1, self.cause)))
        return effects

    def _write_rows(self, track: _Track, rows: pa.RecordBatch, step: Step) -> list[Append]:
        return [effect for piece in self._pieces(rows, step.tentative) for effect in self._write_piece(track, piece, step)]

    def _pieces(self, rows: pa.RecordBatch, whole_buckets: bool) -> Iterator[pa.RecordBatch]:
        """The rows as batches of at most `frame_bytes`, as far as they can be split. whole_buckets: the rows of one bucket
        stay in one frame. Tentative rows need this, because a reader that switches to another replica continues by t_max
        (R23), which is the same for all rows of a bucket."""
        # The buffers are at least as large as the rows, and their size costs little to ask for.
        if rows.get_total_buffer_size() <= self.frame_bytes or batch_bytes(rows) <= self.frame_bytes:
            yield rows
            return
        middle = rows.num_rows // 2
        if whole_buckets:
            times = event_times(rows)
            end = bucket_end(int(times[middle]), self.bucket_us)
            ends = (int(np.searchsorted(times, end - self.bucket_us)), int(np.searchsorted(times, end)))
            middle = next((place for place in ends if 0 < place < rows.num_rows), 0)
        if middle == 0:
            yield rows
            return
        for half in (rows.slice(0, middle), rows.slice(middle)):
            yield from self._pieces(half, whole_buckets)

    def _write_piece(self, track: _Track, rows: pa.RecordBatch, step: Step) -> list[Append]:
        times = event_times(rows)
        t_max = bucket_end(int(times[-1]), self.bucket_us)
        if step.tentative:
            # An earlier incarnation has already written the stable rows up to this time.
            if times[0] <= track.written_to:
                rows = rows.slice(int(times.searchsorted(track.written_to, side="right")))
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
        if repeats:
            rows, first_id = rows.slice(repeats), first_id + repeats
        track.written = first_id + rows.num_rows
        return self._write_stable(track, Data(self.origin, self.epoch, first_id, rows, False, step.ingest, t_max))

    def _write_stable(self, track: _Track, frame: Data | Boundary) -> list[Append]:
        if self.deferred is not None:
            self.deferred.append((track, frame))
            self.deferred_bytes += batch_bytes(frame.batch) if isinstance(frame, Data) else 64
            return []
        if isinstance(frame, Data):
            track.visible = frame.first_id + frame.batch.num_rows
        return [Append(track.log, frame)]

    def _note_boundary(self, boundary: Boundary) -> None:
        if self.deferred is None:
            self.stable_through, self.stable_ingest = boundary.time, boundary.ingest

    def _broadcast(self, frame: Frame) -> list[Append]:
        return [Append(track.log, frame) for track in self.all_tracks]
