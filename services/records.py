"""What one client saw: frames of the egress turned into records of changes.jsonl, lines of stable.jsonl, and counts.

A record is one JSON object, made of texts that are built a column at a time and joined row by row, so that a frame
costs a few Arrow calls and not a loop over its rows. Replaying the records leaves exactly the lines of stable.jsonl;
what would break that (a stable tuple after a tentative one without an undo between, a gap, a repeat, an undone stable
tuple, an epoch that falls: I2, R2) is an AssertionError here, at the client's edge.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boreal.frames import Boundary, Data, Frame, Ingest, RecDone, Undo
from boreal.schema import TIME, WINDOW, Schema, Type
from services.columns import LAST_TIME_US
from sunion.buckets import bucket_floor
from sunion.tape import BEGINNING

_NULL = pa.scalar("null")
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class ClientLog:
    """One client's changelog of one partition. Give it every frame of the egress, in order.

    Counts always; writes records to `changes` and stable rows to `stable` where these are given.
    """

    def __init__(
        self,
        query_name: str,
        schema: Schema,
        key: tuple[str, ...],
        bucket_us: int,
        x_us: int,
        changes: TextIO | None = None,
        stable: TextIO | None = None,
        partition: int = 0,
    ) -> None:
        self._schema = schema
        self._key = key
        self._bucket_us = bucket_us
        self._x_us = x_us
        self._changes = changes
        self._stable = stable
        self._facts = f'"query":{_ENCODE(query_name)},"partition":{partition}'
        self._seq = 0
        self._stable_seq = 0
        self._epoch = 0
        self._next_stable_id = 0
        self._outstanding = 0
        self._correcting = False
        self._through: dict[bool, int | None] = {False: None, True: None}
        self._highest_t_max: int | None = None
        self._delays = array("q")
        self._n_stable = 0
        self._n_tentative = 0
        self._n_undone = 0

    def take(self, frame: Frame, emitted_us: int, replica: str = "r0") -> None:
        """The client is given `frame` at `emitted_us` of the run clock; `replica` is the one that it came from."""
        if isinstance(frame, Data):
            self._take_data(frame, emitted_us, replica)
        elif isinstance(frame, Boundary):
            self._take_boundary(frame, emitted_us, replica)
        elif isinstance(frame, Undo):
            last_id = self._next_stable_id - 1
            assert frame.last_id == last_id, f"an undo after id {frame.last_id}, the last stable one is {last_id} (R3)"
            self._revoke(frame.epoch, frame.cause, emitted_us, replica)
        elif isinstance(frame, RecDone):
            self._take_rec_done(frame, emitted_us, replica)
        else:
            self._revoke(frame.epoch, "", emitted_us, replica)

    def counts(self) -> dict[str, int]:
        """n_stable, n_tentative and n_undone: tuples given so far, and given and revoked."""
        return {"n_stable": self._n_stable, "n_tentative": self._n_tentative, "n_undone": self._n_undone}

    def delay_new(self) -> dict[str, float | int | None]:
        """delay_new_ms_max and delay_new_ms_p99 over all new rows (R14; None if there are none), and violations."""
        delays = np.frombuffer(self._delays, dtype=np.int64)
        return {
            "delay_new_ms_max": round(float(delays.max()) / 1000, 3) if len(delays) else None,
            "delay_new_ms_p99": round(float(np.percentile(delays, 99)) / 1000, 3) if len(delays) else None,
            "violations": int((delays > self._x_us).sum()),
        }

    # Frames.

    def _take_data(self, frame: Data, emitted_us: int, replica: str) -> None:
        rows = frame.batch.num_rows
        if rows == 0:
            return
        held = self._next_stable_id + self._outstanding
        assert frame.tentative or not self._outstanding, "stable rows follow tentative ones, no undo between (I2)"
        assert frame.first_id == held, f"rows begin at id {frame.first_id}, the client holds the ids below {held}"
        self._reach_epoch(frame.epoch)
        times = frame.batch.column(0).to_numpy()
        t_max = (times // self._bucket_us + 1) * self._bucket_us
        ingest = _ingest_of(frame.ingest, times)
        self._measure(t_max, emitted_us - ingest)
        first_seq = self._seq + 1
        self._seq += rows
        if frame.tentative:
            self._outstanding += rows
            self._n_tentative += rows
        else:
            self._next_stable_id += rows
            self._n_stable += rows
            self._stable_seq = self._seq
        self._write_rows(frame, first_seq, t_max, ingest, emitted_us, replica)

    def _take_boundary(self, frame: Boundary, emitted_us: int, replica: str) -> None:
        through = self._through[frame.tentative]
        if frame.time <= BEGINNING or (through is not None and frame.time <= through):
            return
        self._reach_epoch(frame.epoch)
        self._through[frame.tentative] = frame.time
        t_max = bucket_floor(frame.time, self._bucket_us)
        self._note_given(t_max)
        given = {"through": _moment(frame.time), "t_max": _moment(t_max), "tentative": frame.tentative}
        fields = {**given, "ingest_ms": _ms(frame.ingest)}
        self._write_record("boundary", fields, emitted_us, replica, frame.missing, frame.cause)

    def _revoke(self, epoch: int, cause: str, emitted_us: int, replica: str) -> None:
        """UNDO, or the START of a producer's next life (R25). Nothing is written where no tentative tuple is held."""
        if not self._outstanding:
            return
        assert epoch > self._epoch, f"an undo of epoch {epoch} follows epoch {self._epoch} (R2)"
        self._epoch = epoch
        self._n_undone += self._outstanding
        self._outstanding = 0
        self._through[True] = None
        self._correcting = True
        self._write_record("undo", {"after_seq": self._stable_seq}, emitted_us, replica, (), cause)

    def _take_rec_done(self, frame: RecDone, emitted_us: int, replica: str) -> None:
        """Written only where the client saw the undo that began the correction."""
        if not self._correcting:
            return
        self._reach_epoch(frame.epoch)
        self._correcting = False
        self._write_record("rec_done", {}, emitted_us, replica, (), frame.cause)

    def _reach_epoch(self, epoch: int) -> None:
        assert epoch >= self._epoch, f"epoch {epoch} follows epoch {self._epoch} (R2)"
        self._epoch = epoch

    def _measure(self, t_max: np.ndarray, delays: np.ndarray) -> None:
        """Keep the delays of new rows: a row is a correction iff its t_max was reached before this frame (R14), by a row or
        by a boundary, which gave the client its bucket as empty."""
        new = delays if self._highest_t_max is None else delays[t_max > self._highest_t_max]
        self._delays.frombytes(np.ascontiguousarray(new, dtype=np.int64).tobytes())
        self._note_given(int(t_max.max()))

    def _note_given(self, t_max: int) -> None:
        self._highest_t_max = t_max if self._highest_t_max is None else max(self._highest_t_max, t_max)

    # Records.

    def _write_record(
        self,
        kind: str,
        fields: dict[str, object],
        emitted_us: int,
        replica: str,
        missing: tuple[str, ...],
        cause: str,
    ) -> None:
        """One record of a control frame."""
        self._seq += 1
        if self._changes is None:
            return
        body = {
            "seq": self._seq,
            "stable_seq": self._stable_seq,
            "epoch": self._epoch,
            "replica": replica,
            **fields,
            "emitted_ms": _ms(emitted_us),
            "missing_inputs": missing,
            "cause": cause or None,
        }
        self._changes.write(f'{{"v":1,"type":"{kind}",{self._facts},{_ENCODE(body)[1:]}\n')

    def _write_rows(
        self, frame: Data, first_seq: int, t_max: np.ndarray, ingest: np.ndarray, emitted_us: int, replica: str
    ) -> None:
        writes_stable = self._stable is not None and not frame.tentative
        if self._changes is None and not writes_stable:
            return
        columns = self._column_texts(frame.batch)
        data = _joined(_object_parts(columns))
        if self._stable is not None and writes_stable:
            self._stable.write(_lines(pc.binary_join_element_wise(data, "\n", "")))
        if self._changes is None:
            return
        seq = pa.array(np.arange(first_seq, first_seq + frame.batch.num_rows)).cast(pa.string())
        kind = "tentative" if frame.tentative else "stable"
        tail = {"emitted_ms": _ms(emitted_us), "missing_inputs": frame.missing, "cause": frame.cause or None}
        records = _joined(
            [
                f'{{"v":1,"type":"{kind}",{self._facts},"seq":',
                seq,
                ',"stable_seq":',
                str(self._stable_seq) if frame.tentative else seq,
                f',"epoch":{self._epoch},"replica":{_ENCODE(replica)},"key":',
                *self._key_parts(columns),
                ',"event_time":"',
                _moments(frame.batch.column(0)),
                '","data":',
                data,
                ',"t_max":"',
                _moments(pa.array(t_max)),
                '","ingest_ms":',
                _by_value(pa.array(ingest), _ms),
                f",{_ENCODE(tail)[1:]}\n",
            ]
        )
        self._changes.write(_lines(records))

    def _column_texts(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """JSON texts of the user's row, column by column: the time or the window's edges, then the attributes."""
        names = WINDOW if self._schema.windowed else (TIME,)
        edges = {name: _json_texts(batch.column(name), Type.TIMESTAMP) for name in names}
        return {**edges, **{name: _json_texts(batch.column(name), kind) for name, kind in self._schema.columns}}

    def _key_parts(self, columns: dict[str, pa.Array]) -> Iterable[pa.Array | str]:
        """A plain value for one key column, an object for several, null for none."""
        if not self._key:
            return ["null"]
        if len(self._key) == 1:
            return [columns[self._key[0]]]
        return _object_parts({name: columns[name] for name in self._key})


def _ingest_of(ingest: Ingest, times: np.ndarray) -> np.ndarray:
    """`boreal.frames.ingest_at` for every time."""
    through, at = np.array(ingest, dtype=np.int64).reshape(-1, 2).T
    return at[np.minimum(np.searchsorted(through, times, side="right"), len(at) - 1)]


# JSON texts, a column at a time.


def _object_parts(columns: dict[str, pa.Array]) -> list[pa.Array | str]:
    parts: list[pa.Array | str] = []
    for place, (name, texts) in enumerate(columns.items()):
        parts += ["," if place else "{", f"{_ENCODE(name)}:", texts]
    return [*parts, "}"]


def _joined(parts: Iterable[pa.Array | str]) -> pa.Array:
    """Row by row, the parts one after the other; text without a row is the same in each."""
    return pc.binary_join_element_wise(*parts, "")


def _lines(texts: pa.Array) -> str:
    """All of a string array's text in one: Arrow holds it so."""
    _, offsets, values = texts.buffers()
    first, last = np.frombuffer(offsets, dtype=np.int32)[[texts.offset, texts.offset + len(texts)]]
    held: bytes = values[int(first) : int(last)].to_pybytes()
    return held.decode("ascii")


def _json_texts(column: pa.Array, kind: Type) -> pa.Array:
    """Each value as JSON: null for what JSON lacks (NaN, infinities), ISO 8601 for timestamps."""
    texts = _TEXTS[kind](column)
    return pc.fill_null(texts, _NULL) if texts.null_count else texts


def _double_texts(column: pa.Array) -> pa.Array:
    """The shortest text that reads back as the same double, with a point or an exponent, which an int has not."""
    texts = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float64())).cast(pa.string())
    whole = pc.invert(pc.match_substring_regex(texts, r"[.e]"))
    return pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)


def _bool_texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _timestamp_texts(column: pa.Array) -> pa.Array:
    """Quoted ISO 8601 in UTC, with six digits of a fraction where there is one."""
    moments = _moments(column.cast(pa.int64()))
    whole = pc.equal(pc.utf8_slice_codeunits(moments, 19, 27), ".000000Z")
    short = pc.if_else(whole, pc.utf8_replace_slice(moments, 19, 27, "Z"), moments)
    return pc.binary_join_element_wise('"', short, '"', "")


def _by_value(column: pa.Array, text: Callable[[Any], object]) -> pa.Array:
    """text(value), JSON-encoded, once for each different value."""
    encoded = column.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    return pa.array([_ENCODE(text(value)) for value in distinct], pa.string()).take(encoded.indices)


_TEXTS: dict[Type, Callable[[pa.Array], pa.Array]] = {
    Type.STRING: lambda column: _by_value(column, str),
    Type.INT: lambda column: column.cast(pa.string()),
    Type.DOUBLE: _double_texts,
    Type.BOOL: _bool_texts,
    Type.TIMESTAMP: _timestamp_texts,
}


# Times and clocks.


def _moments(times_us: pa.Array) -> pa.Array:
    """ISO 8601 in UTC with six digits of a fraction, so that texts compare as the times do."""
    # The bucket of the very last times ends after the year 9999, and has no other text.
    within = pc.min_element_wise(times_us, pa.scalar(LAST_TIME_US), skip_nulls=False)
    texts = pc.utf8_replace_slice(within.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    return pc.binary_join_element_wise(texts, "Z", "")


def _moment(time_us: int) -> str:
    return str(_moments(pa.array([time_us], pa.int64()))[0])


def _ms(clock_us: int) -> float:
    return round(clock_us / 1000, 3)
