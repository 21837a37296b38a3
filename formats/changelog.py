"""What one client saw: frames of the egress turned into records of changes.jsonl, lines of stable.jsonl, and counts.

A record is one JSON object. Replaying the records leaves exactly the lines of stable.jsonl. Input that would break this
raises an AssertionError here, at the client's edge (I2, R2): a stable tuple after a tentative one without an undo between
them, a gap, a repetition, an undone stable tuple, or an epoch that falls.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TextIO

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.frames import INFINITY, Boundary, Data, Frame, Ingest, RecDone, Start, Undo
from boreal.model.lazy import lazy
from boreal.model.schema import TRACEPARENT, Schema
from formats.json_text import (
    Texts,
    by_run,
    column_texts,
    encode_json,
    joined,
    key_parts,
    lines,
    milliseconds,
    moment,
    moments,
    numbers,
    object_parts,
)
from sunion.buckets import bucket_floor
from sunion.port import EARLY
from sunion.tape import BEGINNING


@dataclass(frozen=True, slots=True)
class ChangelogPlace:
    """The position of a changelog. The next incarnation of its writer continues from here."""

    seq: int = 0
    """Number of the last record; 0 before the first."""
    stable_seq: int = 0
    """Number of the last stable row's record; 0 before the first."""
    epoch: int = 0
    """Epoch of the last record."""
    next_stable_id: int = 0
    """Id of the next stable row."""
    outstanding: int = 0
    """Number of tentative rows after the last stable row that are not revoked."""
    through: int | None = None
    """Event time (us) of the last stable boundary; None before the first."""
    highest_t_max: int | None = None
    """Highest t_max (us) of all delivered records (R14), except the tentative end of the stream; None before the first."""
    n_stable: int = 0
    """Number of stable rows delivered so far."""
    n_tentative: int = 0
    """Number of tentative rows delivered so far."""
    n_undone: int = 0
    """Number of tentative rows revoked so far."""
    n_skipped: int = 0
    """Number of stable rows that were trimmed before they could be delivered (R27)."""


@dataclass(frozen=True, slots=True)
class ChangelogState:
    """All that decides the numbers of the following records. A changelog that takes the same frames from here on writes the
    same records again."""

    place: ChangelogPlace
    """The position."""
    is_correcting: bool = False
    """Whether an undo was written, and its correction is not complete."""
    tentative_through: int | None = None
    """Event time (us) of the last tentative boundary that is not revoked; None if there is none."""


@dataclass(frozen=True)
class ControlRecord:
    """A record that holds no row."""

    kind: str
    """'undo', 'boundary' or 'rec_done'."""
    record: str
    """The record as JSON, without an end of line."""


@dataclass(frozen=True)
class RowRecords:
    """The records of a DATA frame's rows, one each. Texts are built when they are first used."""

    frame: Data
    """The frame that holds the rows."""
    delays_us: np.ndarray
    """int64, one per new row (R14): time from the row's ingest to its delivery, in us."""
    _schema: Schema
    _key: tuple[str, ...]
    _facts: str
    _first_seq: int
    _stable_seq: int
    _t_max: np.ndarray
    _ingest: np.ndarray
    _emitted_us: int
    _replica: str

    @lazy
    def _times(self) -> Texts:
        return moments(self.frame.batch.column(0))

    @lazy
    def _columns(self) -> dict[str, Texts]:
        return column_texts(self._schema, self.frame.batch, self._times)

    @lazy
    def data(self) -> Texts:
        """The user's rows as JSON, as in stable.jsonl."""
        return joined(object_parts(self._columns))

    @lazy
    def keys(self) -> Texts | None:
        """The keys of the rows as JSON; None if the output has no key."""
        return joined(key_parts(self._key, self._columns)) if self._key else None

    @property
    def traces(self) -> list[bytes | None] | None:
        """The trace context of each row; None if the output has no such column."""
        if not self._schema.is_traced:
            return None
        found: list[bytes | None] = self.frame.batch.column(TRACEPARENT).cast(pa.binary()).to_pylist()
        return found

    @lazy
    def records(self) -> Texts:
        """The records as JSON, as in changes.jsonl."""
        frame = self.frame
        seq = numbers(self._first_seq, frame.batch.num_rows)
        kind = "tentative" if frame.tentative else "stable"
        tail = {
            "emitted_ms": milliseconds(self._emitted_us),
            "missing_inputs": frame.missing,
            "cause": frame.cause or None,
        }
        return joined(
            [
                f'{{"v":1,"type":"{kind}",{self._facts},"seq":',
                seq,
                ',"stable_seq":',
                str(self._stable_seq) if frame.tentative else seq,
                f',"epoch":{frame.epoch},"replica":{encode_json(self._replica)},"key":',
                *key_parts(self._key, self._columns),
                ',"event_time":"',
                self._times,
                '","data":',
                self.data,
                ',"t_max":"',
                by_run(self._t_max, moment),
                '","ingest_ms":',
                by_run(self._ingest, lambda at: encode_json(milliseconds(at))),
                f",{encode_json(tail)[1:]}",
            ]
        )


class ResultHistory:
    """Which event times a client has results for. Tells new results from corrections (R14).

    A result is a correction if an earlier record with the same or a later t_max already covered it. Such a record is a stable
    row or boundary, or a tentative one that was delivered after the result's input had been ingested. A tentative boundary that
    is far ahead of its stream does not cover input that was ingested after it. If rows may be out of order (`disorder`), an
    early record covers all times up to its own, because it announces that the final answer follows.
    """

    def __init__(self, highest: int | None) -> None:
        """highest: as `ChangelogPlace.highest_t_max`. Results of earlier incarnations are taken to cover all times below it."""
        self.highest = highest
        self._covered = BEGINNING if highest is None else highest
        # Tentative records by rising time of emission and falling t_max: a later record replaces those with a smaller t_max.
        self._emitted: list[int] = []
        self._t_max: list[int] = []

    def is_new(self, t_max: np.ndarray, ingest: np.ndarray) -> np.ndarray:
        """Whether each result is new (bool). All rows of a frame are compared with the state before that frame.

        t_max, ingest: int64, one per row, in us.
        """
        new: np.ndarray = t_max > self._covered
        if self._emitted:
            since = np.searchsorted(np.array(self._emitted), ingest, side="left")
            new &= t_max > np.array([*self._t_max, BEGINNING])[since]
        return new

    def note(self, t_max: int, emitted_us: int, covers_all: bool) -> None:
        """A row or a boundary is delivered. covers_all: it covers all times up to its t_max, however late they are ingested."""
        if t_max < INFINITY or covers_all:
            self.highest = t_max if self.highest is None else max(self.highest, t_max)
        if covers_all:
            self._covered = max(self._covered, t_max)
        while self._t_max and self._t_max[-1] <= max(t_max, self._covered):
            self._t_max.pop()
            self._emitted.pop()
        if t_max > self._covered:
            self._t_max.append(t_max)
            self._emitted.append(emitted_us)


class Changelog:
    """One client's changelog of one partition. Pass it every frame of the egress, in order.

    `place` is the position that an earlier incarnation of its writer reached. The first START is then written as an undo of
    all tentative rows, even if there are none (R28).
    """

    def __init__(
        self,
        query_name: str,
        schema: Schema,
        key: tuple[str, ...],
        bucket_us: int,
        partition: int = 0,
        place: ChangelogPlace | None = None,
        has_disorder: bool = False,
    ) -> None:
        """has_disorder: whether rows of some stream may be out of order."""
        self._has_disorder = has_disorder
        self._schema = schema
        self._key = key
        self._bucket_us = bucket_us
        self._facts = f'"query":{encode_json(query_name)},"partition":{partition}'
        self._is_resumed = place is not None
        place = place or ChangelogPlace()
        self._seq = place.seq
        self._stable_seq = place.stable_seq
        self._epoch = place.epoch
        self._next_stable_id = place.next_stable_id
        self._outstanding = place.outstanding
        self._correcting = False
        self._through: dict[bool, int | None] = {False: place.through, True: None}
        self._history = ResultHistory(place.highest_t_max)
        self._n_stable = place.n_stable
        self._n_tentative = place.n_tentative
        self._n_undone = place.n_undone
        self._n_skipped = place.n_skipped

    @property
    def place(self) -> ChangelogPlace:
        """The current position of the changelog."""
        return ChangelogPlace(
            self._seq,
            self._stable_seq,
            self._epoch,
            self._next_stable_id,
            self._outstanding,
            self._through[False],
            self._history.highest,
            self._n_stable,
            self._n_tentative,
            self._n_undone,
            self._n_skipped,
        )

    @property
    def state(self) -> ChangelogState:
        """The present state, to be restored by `restore`."""
        return ChangelogState(self.place, self._correcting, self._through[True])

    def restore(self, state: ChangelogState) -> None:
        """Return to a state of this changelog. Unlike after a start at a `place`, the same writer continues: a START has an
        undo only if there are tentative rows."""
        place = state.place
        self._is_resumed = False
        self._seq, self._stable_seq, self._epoch = place.seq, place.stable_seq, place.epoch
        self._next_stable_id, self._outstanding = place.next_stable_id, place.outstanding
        self._correcting = state.is_correcting
        self._through = {False: place.through, True: state.tentative_through}
        self._history = ResultHistory(place.highest_t_max)
        self._n_stable, self._n_tentative = place.n_stable, place.n_tentative
        self._n_undone, self._n_skipped = place.n_undone, place.n_skipped

    def take(self, frame: Frame, emitted_us: int, replica: str = "r0") -> RowRecords | ControlRecord | None:
        """Take the next frame of the egress; returns its records, None if it has none.

        emitted_us: time of delivery on the run clock. replica: the egress instance that wrote the frame. AssertionError if
        the frame breaks I2, R2 or R3.
        """
        if isinstance(frame, Data):
            return self._take_data(frame, emitted_us, replica)
        if isinstance(frame, Boundary):
            return self._take_boundary(frame, emitted_us, replica)
        if isinstance(frame, Undo):
            last_id = self._next_stable_id - 1
            assert frame.last_id == last_id, f"an undo after id {frame.last_id}, but the last stable id is {last_id} (R3)"
            return self._revoke(frame.epoch, frame.cause, emitted_us, replica)
        if isinstance(frame, RecDone):
            return self._take_rec_done(frame, emitted_us, replica)
        return self._take_start(frame, emitted_us, replica)

    # Frames.

    def _take_data(self, frame: Data, emitted_us: int, replica: str) -> RowRecords | None:
        rows = frame.batch.num_rows
        if rows == 0:
            return None
        next_id = self._next_stable_id + self._outstanding
        assert frame.tentative or not self._outstanding, "stable rows follow tentative rows without an undo between them (I2)"
        assert frame.first_id == next_id, f"rows begin at id {frame.first_id}, but the client has the ids below {next_id}"
        self._reach_epoch(frame.epoch)
        times = event_times(frame.batch)
        t_max = (times // self._bucket_us + 1) * self._bucket_us
        ingest = _ingest_of(frame.ingest, times)
        delays_us = np.ascontiguousarray((emitted_us - ingest)[self._history.is_new(t_max, ingest)], dtype=np.int64)
        self._history.note(int(t_max.max()), emitted_us, self._covers_all(frame))
        first_seq = self._seq + 1
        self._seq += rows
        if frame.tentative:
            self._outstanding += rows
            self._n_tentative += rows
        else:
            self._next_stable_id += rows
            self._n_stable += rows
            self._stable_seq = self._seq
        return RowRecords(
            frame,
            delays_us,
            self._schema,
            self._key,
            self._facts,
            first_seq,
            self._stable_seq,
            t_max,
            ingest,
            emitted_us,
            replica,
        )

    def _take_boundary(self, frame: Boundary, emitted_us: int, replica: str) -> ControlRecord | None:
        through = self._through[frame.tentative]
        if frame.time <= BEGINNING or (through is not None and frame.time <= through):
            return None
        self._reach_epoch(frame.epoch)
        self._through[frame.tentative] = frame.time
        t_max = bucket_floor(frame.time, self._bucket_us)
        self._history.note(t_max, emitted_us, self._covers_all(frame))
        reached = {"through": moment(frame.time), "t_max": moment(t_max), "tentative": frame.tentative}
        fields = {**reached, "ingest_ms": milliseconds(frame.ingest)}
        return self._control("boundary", fields, emitted_us, replica, frame.missing, frame.cause)

    def _covers_all(self, frame: Data | Boundary) -> bool:
        """As `ResultHistory.note`."""
        return not frame.tentative or (frame.cause == EARLY and self._has_disorder)

    def _take_start(self, frame: Start, emitted_us: int, replica: str) -> ControlRecord | None:
        """A new incarnation of the producer (R25): all tentative rows are undone. If it begins above our next id, rows are
        skipped, and the undo's cause says so (R27)."""
        skipped = max(frame.next_id - self._next_stable_id, 0)
        cause = f"the stable rows {self._next_stable_id} to {frame.next_id - 1} were lost" if skipped else ""
        undo = self._revoke(frame.epoch, cause, emitted_us, replica)
        self._is_resumed = False
        self._next_stable_id += skipped
        self._n_skipped += skipped
        return undo

    def _revoke(self, epoch: int, cause: str, emitted_us: int, replica: str) -> ControlRecord | None:
        """Write an undo; no record if the client has no tentative tuple."""
        if not self._outstanding and not self._is_resumed:
            return None
        assert epoch > self._epoch, f"an undo of epoch {epoch} follows epoch {self._epoch} (R2)"
        self._epoch = epoch
        self._n_undone += self._outstanding
        self._outstanding = 0
        self._through[True] = None
        self._correcting = not self._is_resumed
        return self._control("undo", {"after_seq": self._stable_seq}, emitted_us, replica, (), cause)

    def _take_rec_done(self, frame: RecDone, emitted_us: int, replica: str) -> ControlRecord | None:
        """Written only if the client saw the undo at the beginning of the correction."""
        if not self._correcting:
            return None
        self._reach_epoch(frame.epoch)
        self._correcting = False
        return self._control("rec_done", {}, emitted_us, replica, (), frame.cause)

    def _reach_epoch(self, epoch: int) -> None:
        assert epoch >= self._epoch, f"epoch {epoch} follows epoch {self._epoch} (R2)"
        self._epoch = epoch

    def _control(
        self,
        kind: str,
        fields: dict[str, object],
        emitted_us: int,
        replica: str,
        missing: tuple[str, ...],
        cause: str,
    ) -> ControlRecord:
        self._seq += 1
        body = {
            "seq": self._seq,
            "stable_seq": self._stable_seq,
            "epoch": self._epoch,
            "replica": replica,
            **fields,
            "emitted_ms": milliseconds(emitted_us),
            "missing_inputs": missing,
            "cause": cause or None,
        }
        return ControlRecord(kind, f'{{"v":1,"type":"{kind}",{self._facts},{encode_json(body)[1:]}')


class ClientLog:
    """A client that stores what it saw: records in `changes`, stable rows in `stable` (each optional), and the delay of every
    new row."""

    def __init__(
        self,
        query_name: str,
        schema: Schema,
        key: tuple[str, ...],
        bucket_us: int,
        x_us: int,
        changes: TextIO | None = None,
        stable: TextIO | None = None,
        has_disorder: bool = False,
    ) -> None:
        """x_us: the delay threshold X, above which a delay is a violation. Other arguments as for `Changelog`."""
        self._changelog = Changelog(query_name, schema, key, bucket_us, has_disorder=has_disorder)
        self._x_us = x_us
        self._changes = changes
        self._stable = stable
        self._delays = array("q")

    def take(self, frame: Frame, emitted_us: int, replica: str = "r0") -> None:
        """As `Changelog.take`."""
        taken = self._changelog.take(frame, emitted_us, replica)
        if isinstance(taken, RowRecords):
            self._delays.frombytes(taken.delays_us.tobytes())
            if self._stable is not None and not taken.frame.tentative:
                self._stable.write(lines(taken.data))
            if self._changes is not None:
                self._changes.write(lines(taken.records))
        elif taken is not None and self._changes is not None:
            self._changes.write(f"{taken.record}\n")

    def counts(self) -> dict[str, int]:
        """n_stable, n_tentative: tuples delivered so far; n_undone: tentative tuples revoked so far."""
        place = self._changelog.place
        return {"n_stable": place.n_stable, "n_tentative": place.n_tentative, "n_undone": place.n_undone}

    def delay_new(self) -> dict[str, float | int | None]:
        """delay_new_ms_max, delay_new_ms_p99 over all new rows (R14; None if there are none); violations: how many exceed X."""
        delays = np.frombuffer(self._delays, dtype=np.int64)
        return {
            "delay_new_ms_max": round(float(delays.max()) / 1000, 3) if len(delays) else None,
            "delay_new_ms_p99": round(float(np.percentile(delays, 99)) / 1000, 3) if len(delays) else None,
            "violations": int((delays > self._x_us).sum()),
        }


def unseen(frame: Data, next_id: int) -> Data | None:
    """The rows of a stable frame with ids from `next_id` on; None if it has none."""
    repeats = next_id - frame.first_id
    if repeats <= 0:
        return frame
    if repeats >= frame.batch.num_rows:
        return None
    return replace(frame, first_id=next_id, batch=frame.batch.slice(repeats))


def _ingest_of(ingest: Ingest, times: np.ndarray) -> np.ndarray:
    """`boreal.model.frames.ingest_at` for every time."""
    through, at = np.array(ingest, dtype=np.int64).reshape(-1, 2).T
    return at[np.minimum(np.searchsorted(through, times, side="right"), len(at) - 1)]
