"""What one client saw: frames of the egress turned into records of changes.jsonl, lines of stable.jsonl, and counts.

A record is one JSON object. Replaying the records leaves exactly the lines of stable.jsonl; what would break that (a
stable tuple after a tentative one without an undo between, a gap, a repeat, an undone stable tuple, an epoch that falls:
I2, R2) is an AssertionError here, at the client's edge.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TextIO

import numpy as np
import pyarrow as pa

from boreal.model.frames import INFINITY, Boundary, Data, Frame, Ingest, RecDone, Start, Undo
from boreal.model.schema import Schema
from formats.json_text import (
    by_value,
    column_texts,
    encode_json,
    joined,
    key_parts,
    lines,
    milliseconds,
    moment,
    moments,
    object_parts,
)
from sunion.buckets import bucket_floor
from sunion.port import EARLY
from sunion.tape import BEGINNING


@dataclass(frozen=True, slots=True)
class ChangelogPlace:
    """Where a changelog stands; its writer's next life goes on from here.

    seq, stable_seq, epoch: of the last record, 0 before the first. next_stable_id: of the next stable row; outstanding:
    tentative rows held after it. through: the last stable boundary; highest_t_max: of all that was given (R14), but for the
    tentative end of the stream. n_*: rows given and revoked so far; n_skipped: stable rows that were gone before they could be
    given (R27).
    """

    seq: int = 0
    stable_seq: int = 0
    epoch: int = 0
    next_stable_id: int = 0
    outstanding: int = 0
    through: int | None = None
    highest_t_max: int | None = None
    n_stable: int = 0
    n_tentative: int = 0
    n_undone: int = 0
    n_skipped: int = 0


@dataclass(frozen=True)
class ControlRecord:
    """A record that holds no row. kind: undo, boundary or rec_done."""

    kind: str
    record: str


@dataclass(frozen=True)
class RowRecords:
    """The records of a DATA frame's rows, one each. Texts are built where they are asked for.

    delays_us: for each new row (R14), how long after its ingest it was given.
    """

    frame: Data
    delays_us: np.ndarray
    _schema: Schema
    _key: tuple[str, ...]
    _facts: str
    _first_seq: int
    _stable_seq: int
    _t_max: np.ndarray
    _ingest: np.ndarray
    _emitted_us: int
    _replica: str

    @cached_property
    def _columns(self) -> dict[str, pa.Array]:
        return column_texts(self._schema, self.frame.batch)

    @cached_property
    def data(self) -> pa.Array:
        """The user's rows, as lines of stable.jsonl have them."""
        return joined(object_parts(self._columns))

    @cached_property
    def keys(self) -> pa.Array | None:
        """Their keys as JSON; None where the output has no key."""
        return joined(key_parts(self._key, self._columns)) if self._key else None

    @cached_property
    def records(self) -> pa.Array:
        """As lines of changes.jsonl have them."""
        frame = self.frame
        seq = pa.array(np.arange(self._first_seq, self._first_seq + frame.batch.num_rows)).cast(pa.string())
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
                moments(frame.batch.column(0)),
                '","data":',
                self.data,
                ',"t_max":"',
                moments(pa.array(self._t_max)),
                '","ingest_ms":',
                by_value(pa.array(self._ingest), milliseconds),
                f",{encode_json(tail)[1:]}",
            ]
        )


class ResultHistory:
    """Which results a client was given before, so that it can be said which are new (R14).

    A result is a correction if something of its t_max or later was given before that spoke for it: a stable row or boundary; an
    early one, which says that the final answer is to come; or a tentative one that was given when the result's input had been
    ingested already. What was ingested only later, a tentative boundary far ahead of its stream cannot have meant.
    """

    def __init__(self, highest: int | None) -> None:
        """highest: as `ChangelogPlace.highest_t_max`; what a former life had given is taken to have spoken for all below."""
        self.highest = highest
        self._spoken = BEGINNING if highest is None else highest
        # Tentative ones, by rising time of emission and falling t_max: later ones cover what they exceed.
        self._emitted: list[int] = []
        self._t_max: list[int] = []

    def is_new(self, t_max: np.ndarray, ingest: np.ndarray) -> np.ndarray:
        """For each result. The rows of one frame are judged together, against what the client had before it."""
        new: np.ndarray = t_max > self._spoken
        if self._emitted:
            since = np.searchsorted(np.array(self._emitted), ingest, side="left")
            new &= t_max > np.array([*self._t_max, BEGINNING])[since]
        return new

    def note(self, t_max: int, emitted_us: int, speaks: bool) -> None:
        """A row or a boundary is given. speaks: for all up to its t_max, whenever that was ingested."""
        if t_max < INFINITY or speaks:
            self.highest = t_max if self.highest is None else max(self.highest, t_max)
        if speaks:
            self._spoken = max(self._spoken, t_max)
        while self._t_max and self._t_max[-1] <= max(t_max, self._spoken):
            self._t_max.pop()
            self._emitted.pop()
        if t_max > self._spoken:
            self._t_max.append(t_max)
            self._emitted.append(emitted_us)


class Changelog:
    """One client's changelog of one partition. Give it every frame of the egress, in order.

    `place` is where an earlier life of its writer had come to: then the first START is an UNDO of whatever may be
    tentative there, even if it is nothing (R28).
    """

    def __init__(
        self,
        query_name: str,
        schema: Schema,
        key: tuple[str, ...],
        bucket_us: int,
        partition: int = 0,
        place: ChangelogPlace | None = None,
    ) -> None:
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
        self._given = ResultHistory(place.highest_t_max)
        self._n_stable = place.n_stable
        self._n_tentative = place.n_tentative
        self._n_undone = place.n_undone
        self._n_skipped = place.n_skipped

    @property
    def place(self) -> ChangelogPlace:
        """Where the changelog stands now."""
        return ChangelogPlace(
            self._seq,
            self._stable_seq,
            self._epoch,
            self._next_stable_id,
            self._outstanding,
            self._through[False],
            self._given.highest,
            self._n_stable,
            self._n_tentative,
            self._n_undone,
            self._n_skipped,
        )

    def take(self, frame: Frame, emitted_us: int, replica: str = "r0") -> RowRecords | ControlRecord | None:
        """The client is given `frame` at `emitted_us` of the run clock; `replica` is the one that it came from. Returns
        what it is given, None where the frame tells it nothing."""
        if isinstance(frame, Data):
            return self._take_data(frame, emitted_us, replica)
        if isinstance(frame, Boundary):
            return self._take_boundary(frame, emitted_us, replica)
        if isinstance(frame, Undo):
            last_id = self._next_stable_id - 1
            assert frame.last_id == last_id, f"an undo after id {frame.last_id}, the last stable one is {last_id} (R3)"
            return self._revoke(frame.epoch, frame.cause, emitted_us, replica)
        if isinstance(frame, RecDone):
            return self._take_rec_done(frame, emitted_us, replica)
        return self._take_start(frame, emitted_us, replica)

    # Frames.

    def _take_data(self, frame: Data, emitted_us: int, replica: str) -> RowRecords | None:
        rows = frame.batch.num_rows
        if rows == 0:
            return None
        held = self._next_stable_id + self._outstanding
        assert frame.tentative or not self._outstanding, "stable rows follow tentative ones, no undo between (I2)"
        assert frame.first_id == held, f"rows begin at id {frame.first_id}, the client holds the ids below {held}"
        self._reach_epoch(frame.epoch)
        times = frame.batch.column(0).to_numpy()
        t_max = (times // self._bucket_us + 1) * self._bucket_us
        ingest = _ingest_of(frame.ingest, times)
        delays_us = np.ascontiguousarray((emitted_us - ingest)[self._given.is_new(t_max, ingest)], dtype=np.int64)
        self._given.note(int(t_max.max()), emitted_us, speaks=not frame.tentative or frame.cause == EARLY)
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
        self._given.note(t_max, emitted_us, speaks=not frame.tentative or frame.cause == EARLY)
        given = {"through": moment(frame.time), "t_max": moment(t_max), "tentative": frame.tentative}
        fields = {**given, "ingest_ms": milliseconds(frame.ingest)}
        return self._control("boundary", fields, emitted_us, replica, frame.missing, frame.cause)

    def _take_start(self, frame: Start, emitted_us: int, replica: str) -> ControlRecord | None:
        """A producer's next life (R25) undoes what was tentative. Where it begins above our next id, rows are skipped, and
        the undo says so (R27)."""
        skipped = max(frame.next_id - self._next_stable_id, 0)
        cause = f"the stable rows {self._next_stable_id} to {frame.next_id - 1} were lost" if skipped else ""
        undo = self._revoke(frame.epoch, cause, emitted_us, replica)
        self._is_resumed = False
        self._next_stable_id += skipped
        self._n_skipped += skipped
        return undo

    def _revoke(self, epoch: int, cause: str, emitted_us: int, replica: str) -> ControlRecord | None:
        """Nothing is written where no tentative tuple is held."""
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
        """Written only where the client saw the undo that began the correction."""
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
    """A client that keeps what it saw: records in `changes` and stable rows in `stable`, where these are given, and the
    delay of every new row."""

    def __init__(
        self,
        query_name: str,
        schema: Schema,
        key: tuple[str, ...],
        bucket_us: int,
        x_us: int,
        changes: TextIO | None = None,
        stable: TextIO | None = None,
    ) -> None:
        self._changelog = Changelog(query_name, schema, key, bucket_us)
        self._x_us = x_us
        self._changes = changes
        self._stable = stable
        self._delays = array("q")

    def take(self, frame: Frame, emitted_us: int, replica: str = "r0") -> None:
        """As `Changelog.take`."""
        given = self._changelog.take(frame, emitted_us, replica)
        if isinstance(given, RowRecords):
            self._delays.frombytes(given.delays_us.tobytes())
            if self._stable is not None and not given.frame.tentative:
                self._stable.write(lines(given.data))
            if self._changes is not None:
                self._changes.write(lines(given.records))
        elif given is not None and self._changes is not None:
            self._changes.write(f"{given.record}\n")

    def counts(self) -> dict[str, int]:
        """n_stable, n_tentative and n_undone: tuples given so far, and given and revoked."""
        place = self._changelog.place
        return {"n_stable": place.n_stable, "n_tentative": place.n_tentative, "n_undone": place.n_undone}

    def delay_new(self) -> dict[str, float | int | None]:
        """delay_new_ms_max and delay_new_ms_p99 over all new rows (R14; None if there are none), and violations."""
        delays = np.frombuffer(self._delays, dtype=np.int64)
        return {
            "delay_new_ms_max": round(float(delays.max()) / 1000, 3) if len(delays) else None,
            "delay_new_ms_p99": round(float(np.percentile(delays, 99)) / 1000, 3) if len(delays) else None,
            "violations": int((delays > self._x_us).sum()),
        }


def unseen(frame: Data, next_id: int) -> Data | None:
    """The rows of a stable frame from an id on; None if it has none."""
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
