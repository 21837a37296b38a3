"""Avro payloads to columns, all payloads of a batch in step: a field of all of them at a time, since a Python object for each
value would cost more than all else. What cannot be read so is left to `formats.avro_records`, as is every payload of a batch in
which one is odd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from boreal.query.columns import Path

DECIMAL_BYTES = 16
"""The longest decimal that is read here."""
_PAD = bytes(16)
"""What follows the payloads, so that a number that begins at their end is within the data."""
_LONGEST = 10
"""The most bytes of a number."""


class OddError(ValueError):
    """Some payload, or the schema, cannot be read in step."""


class _Run:
    """The payloads of one batch, and what has been read of them."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        self.data = np.frombuffer(b"".join(payloads) + _PAD, np.uint8)
        self.ends = np.cumsum(sizes)
        self.begins = self.ends - sizes
        self.longest = int(sizes.max(initial=0))
        self.found: dict[str, list[tuple[np.ndarray, pa.Array]]] = {}

    def within(self, at: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The places, each of which must not be after the end of its row's payload."""
        if (at > self.ends[rows]).any():
            raise OddError
        return at

    def longs(self, at: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers at these places (int64), and the places after them."""
        byte = self.data[at]
        values = (byte & 0x7F).astype(np.uint64)
        at = at + 1
        more = np.flatnonzero(byte & 0x80)
        shift = 7
        while len(more):
            if shift >= 7 * _LONGEST:
                raise OddError
            byte = self.data[at[more]]
            if shift == 7 * (_LONGEST - 1) and (byte > 1).any():
                raise OddError  # more than 64 bits
            values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more = more[(byte & 0x80) != 0]
            shift += 7
            self.within(at, rows)
        signed = (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)
        return signed, self.within(at, rows)

    def bytes_at(self, at: np.ndarray, size: int) -> np.ndarray:
        """So many bytes from each place on, a row for each."""
        return self.data[at[:, None] + np.arange(size)]

    def sized(self, at: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of what has its size before it: where it begins, its sizes, and the places after it."""
        sizes, begins = self.longs(at, rows)
        if (sizes < 0).any() or (sizes > self.longest).any():
            raise OddError
        return begins, sizes, self.within(begins + sizes, rows)

    def column(self, name: str) -> pa.Array | None:
        """What was found of a column, a value for each payload; None if nothing was."""
        parts = self.found.get(name)
        if parts is None:
            return None
        indices = np.full(len(self.ends), -1)
        first = 0
        for rows, values in parts:
            indices[rows] = np.arange(first, first + len(values))
            first += len(values)
        column = pa.concat_arrays([values for _, values in parts])
        return column.take(pa.array(indices, mask=indices < 0))


class _Reader(Protocol):
    """Reads one value of each row, and returns the places after them."""

    def read(self, run: _Run, at: np.ndarray, rows: np.ndarray) -> np.ndarray: ...


class _Leaf:
    """A plain value; kept if it is a column."""

    def __init__(self, schema: Any, column: str | None) -> None:
        self._kind = schema["type"] if isinstance(schema, dict) else schema
        self._column = column
        self._schema = schema

    def read(self, run: _Run, at: np.ndarray, rows: np.ndarray) -> np.ndarray:
        values, after = self._values(run, at, rows)
        if self._column is not None and values is not None:
            run.found.setdefault(self._column, []).append((rows, values))
        return after

    def _values(self, run: _Run, at: np.ndarray, rows: np.ndarray) -> tuple[pa.Array | None, np.ndarray]:
        match self._kind:
            case "null":
                return None, at
            case "int" | "long":
                numbers, after = run.longs(at, rows)
                if self._kind == "int" and (numbers != numbers.astype(np.int32)).any():
                    raise OddError
                return pa.array(numbers), after
            case "float" | "double":
                size = 4 if self._kind == "float" else 8
                after = run.within(at + size, rows)
                if self._column is None:
                    return None, after
                found = np.ascontiguousarray(run.bytes_at(at, size)).view(f"<f{size}").reshape(-1)
                return pa.array(found.astype(np.float64)), after
            case "boolean":
                after = run.within(at + 1, rows)
                flags = run.data[at]
                if (flags > 1).any():
                    raise OddError
                return pa.array(flags.astype(bool)), after
            case "string" | "bytes":
                begins, sizes, after = run.sized(at, rows)
                return self._sized(run, begins, sizes), after
            case "fixed":
                sizes = np.full(len(at), int(self._schema["size"]))
                after = run.within(at + sizes, rows)
                return self._sized(run, at, sizes), after
            case "enum":
                places, after = run.longs(at, rows)
                symbols = pa.array(self._schema["symbols"], pa.string())
                if ((places < 0) | (places >= len(symbols))).any():
                    raise OddError
                return symbols.take(pa.array(places)), after
        raise OddError

    def _sized(self, run: _Run, begins: np.ndarray, sizes: np.ndarray) -> pa.Array | None:
        if self._column is None:
            return None
        return _texts(run, begins, sizes) if self._kind == "string" else _decimals(run, begins, sizes, self._schema)


def _texts(run: _Run, begins: np.ndarray, sizes: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if offsets[-1] >= 1 << 31:
        raise OddError
    data = run.data[np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])]
    if (data & 0x80).any():
        # All of it is UTF-8, and no text begins within a character: so each text is.
        if ((data[offsets[:-1][sizes > 0]] & 0xC0) == 0x80).any():
            raise OddError
        try:
            data.tobytes().decode()
        except UnicodeDecodeError:
            raise OddError from None
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(sizes), buffers)


def _decimals(run: _Run, begins: np.ndarray, sizes: np.ndarray, schema: Any) -> pa.Array:
    """Numbers of two's complement, the highest byte first, of any length, as Arrow has them: the lowest first, of 16 bytes."""
    if ((sizes < 1) | (sizes > DECIMAL_BYTES)).any():
        raise OddError
    last = (begins + sizes - 1)[:, None]
    below = np.arange(DECIMAL_BYTES)
    is_there = below < sizes[:, None]
    found = run.data[np.where(is_there, last - below, last)]
    sign = np.where(run.data[begins] & 0x80, 0xFF, 0).astype(np.uint8)[:, None]
    data = np.ascontiguousarray(np.where(is_there, found, sign), dtype=np.uint8)
    kind = pa.decimal128(38, int(schema.get("scale", 0)))
    return pa.Array.from_buffers(kind, len(sizes), [None, pa.py_buffer(data)])


class _Record:
    def __init__(self, fields: Sequence[_Reader]) -> None:
        self._fields = fields

    def read(self, run: _Run, at: np.ndarray, rows: np.ndarray) -> np.ndarray:
        for field in self._fields:
            at = field.read(run, at, rows)
        return at


class _Union:
    def __init__(self, branches: Sequence[_Reader]) -> None:
        self._branches = branches

    def read(self, run: _Run, at: np.ndarray, rows: np.ndarray) -> np.ndarray:
        taken, after = run.longs(at, rows)
        for number in np.unique(taken).tolist():
            if not 0 <= number < len(self._branches):
                raise OddError
            own = np.flatnonzero(taken == number)
            after[own] = self._branches[number].read(run, after[own], rows[own])
        return after


class _Items:
    """The items of an array or a map: blocks of them, each after their number. Those of one place may be kept."""

    def __init__(self, skipped: _Reader, kept: Mapping[int, _Reader]) -> None:
        """kept: what reads the items of some places."""
        self._skipped = skipped
        self._kept = kept

    def read(self, run: _Run, at: np.ndarray, rows: np.ndarray) -> np.ndarray:
        at = at.copy()
        left = self._begin(run, at, rows, np.arange(len(rows)))
        number = 0
        while len(active := np.flatnonzero(left)):
            if number > run.longest:
                raise OddError  # items without bytes
            reader = self._kept.get(number, self._skipped)
            at[active] = reader.read(run, at[active], rows[active])
            left[active] -= 1
            number += 1
            ended = active[left[active] == 0]
            left[ended] = self._begin(run, at, rows, ended)
        return at

    def _begin(self, run: _Run, at: np.ndarray, rows: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """The number of items of the next block, for some of the rows; 0 after the last."""
        counts, at[ended] = run.longs(at[ended], rows[ended])
        with_size = ended[counts < 0]
        if len(with_size):
            _, at[with_size] = run.longs(at[with_size], rows[with_size])
        left: np.ndarray = np.abs(counts)
        return left


class AvroColumns:
    """The columns of payloads of one schema."""

    def __init__(self, schema: Any, named: Mapping[str, Any], wanted: Mapping[Path, str]) -> None:
        """schema: as fastavro parses it, with those that have names in `named`. wanted: the column at each path."""
        self._named = named
        self._made: dict[str, _Record] = {}
        self._reader = self._make(schema, wanted)

    def read(self, payloads: Sequence[bytes]) -> dict[str, pa.Array]:
        """The columns, without those that hold nothing but nulls: numbers as int64 and double, decimals of 38 digits. OddError
        if a payload cannot be read in step."""
        run = _Run(payloads)
        rows = np.arange(len(payloads))
        try:
            after = self._reader.read(run, run.begins, rows)
        except RecursionError:
            raise OddError from None
        if (after != run.ends).any():
            raise OddError
        found = {name: run.column(name) for name in run.found}
        return {name: column for name, column in found.items() if column is not None}

    def _make(self, schema: Any, wanted: Mapping[Path, str]) -> _Reader:
        if isinstance(schema, list):
            return _Union([self._make(each, wanted) for each in schema])
        if isinstance(schema, str) and schema in self._named:
            return self._of_name(schema, wanted)
        if not isinstance(schema, dict):
            return _Leaf(schema, wanted.get(()))
        match schema["type"]:
            case "record" | "error":
                return self._record(schema, wanted)
            case "array":
                kept = {step: self._make(schema["items"], _inside(wanted, step)) for step in _steps(wanted)}
                return _Items(self._make(schema["items"], {}), kept)
            case "map":
                if wanted:
                    raise OddError
                return _Items(_Record([_Leaf("string", None), self._make(schema["values"], {})]), {})
            case dict() | list() as inner:
                return self._make(inner, wanted)
        return _Leaf(schema, wanted.get(()))

    def _record(self, schema: Any, wanted: Mapping[Path, str]) -> _Record:
        return _Record([self._make(field["type"], _inside(wanted, field["name"])) for field in schema["fields"]])

    def _of_name(self, name: str, wanted: Mapping[Path, str]) -> _Reader:
        schema = self._named[name]
        if wanted or schema["type"] not in ("record", "error"):
            return self._make(schema, wanted)
        if name not in self._made:
            # First the reader, then its fields: the type may hold itself.
            fields: list[_Reader] = []
            self._made[name] = _Record(fields)
            fields += [self._make(field["type"], {}) for field in schema["fields"]]
        return self._made[name]


def _inside(wanted: Mapping[Path, str], step: str | int) -> dict[Path, str]:
    return {path[1:]: name for path, name in wanted.items() if path and path[0] == step}


def _steps(wanted: Mapping[Path, str]) -> list[int]:
    return sorted({path[0] for path in wanted if path and isinstance(path[0], int)})
