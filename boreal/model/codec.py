"""The encoding of frames in log files, Kafka records and sockets (design: Frames; never pickle).

    prelude   magic 'bF', version u8, kind u8, size of the head u32, size of the body u64 (little-endian)
    head      the frame's fields as compact JSON, padded with spaces to align the body to 8 bytes
    checksum  CRC32 of prelude and head, so that `peek` can check them without the body
    body      DATA only: an Arrow IPC stream (schema, one record batch), without the end-of-stream mark
    checksum  CRC32 of prelude, head and body

Equal frames encode to equal bytes, whether their batches were sliced, computed or decoded: replicas with the same input
must write the same bytes. `decode` copies no column; the batch holds a reference to the bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.errors import CorruptError
from boreal.model.frames import Anchor, Boundary, Data, Frame, Ingest, Origin, RecDone, Start, State, Undo

VERSION = 1
_MAGIC = b"bF"
_PRELUDE = struct.Struct("<2sBBIQ")
_CHECKSUM = struct.Struct("<I")
_ALIGNMENT = 8
_MESSAGE = struct.Struct("<Ii")
"""What Arrow writes before a message without a body: a mark, and its size."""
_SCHEMAS = 256
"""So many schemas are kept as they are read, and as they are written."""
_KINDS: dict[type, int] = {Data: 1, Boundary: 2, Undo: 3, RecDone: 4, Start: 5}
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

PRELUDE_SIZE = _PRELUDE.size
"""The number of bytes that `head_size` needs."""


@dataclass(frozen=True, slots=True)
class DataHead:
    """A DATA frame without its rows. Unless noted, the fields are those of `boreal.model.frames.Data`."""

    origin: Origin
    """The writer of the frame."""
    epoch: int
    """The revision of the tentative suffix."""
    first_id: int
    """The id of the first row."""
    rows: int
    """The number of rows, in place of the rows."""
    tentative: bool
    """Whether an UNDO may still revoke the rows."""
    ingest: Ingest
    """When the input was ingested: runs of event time and clock values, in microseconds."""
    t_max: int
    """Event time in microseconds: the end of the bucket of input that caused the last row."""
    missing: tuple[str, ...]
    """The names of the missing inputs."""
    cause: str
    """The id of the failure; '' for stable rows."""


Head = DataHead | Boundary | Undo | RecDone | Start
"""What `peek` returns. A control frame consists only of its head."""


def encode(frame: Frame) -> bytes:
    """The bytes of the frame. TypeError if a column has a type that no `Schema` has, or a field is not of its declared type."""
    body = _encode_batch(frame.batch) if isinstance(frame, Data) else ()
    fields = _JSON.encode(_fields(frame)).encode("ascii")
    fields += b" " * (-(_PRELUDE.size + len(fields) + _CHECKSUM.size) % _ALIGNMENT)
    size = sum(part.size for part in body)
    head = _PRELUDE.pack(_MAGIC, VERSION, _KINDS[type(frame)], len(fields), size) + fields
    checksum = zlib.crc32(head)
    parts: list[bytes | pa.Buffer] = [head, _CHECKSUM.pack(checksum)]
    for part in body:
        checksum = zlib.crc32(part, checksum)
        parts.append(part)
    parts.append(_CHECKSUM.pack(checksum))
    return b"".join(parts)


def decode(data: bytes) -> Frame:
    """The frame that `encode` wrote. CorruptError if the bytes are not a frame, have an unknown version, or are truncated, too
    long or damaged."""
    body = verify(data)
    head = peek(data)
    if not isinstance(head, DataHead):
        return head
    try:
        batch = _decode_batch(data, body)
    except (pa.ArrowException, EOFError, OSError, struct.error) as error:
        raise CorruptError(f"the frame's rows are not an Arrow stream: {error}") from error
    return Data(
        head.origin, head.epoch, head.first_id, batch, head.tentative, head.ingest, head.t_max, head.missing, head.cause
    )


def verify(data: bytes) -> range:
    """Check all bytes of a frame without decoding them, and return the range of the body. CorruptError as for `decode`."""
    start = head_size(data)
    head_checksum = _check_head(data)
    size: int = _PRELUDE.unpack_from(data)[4]
    end = start + size
    if len(data) < end + _CHECKSUM.size:
        raise CorruptError(f"the frame is truncated: it has {len(data)} of {end + _CHECKSUM.size} bytes")
    if len(data) > end + _CHECKSUM.size:
        raise CorruptError(f"{len(data) - end - _CHECKSUM.size} bytes follow the end of the frame")
    if zlib.crc32(memoryview(data)[start:end], head_checksum) != _CHECKSUM.unpack_from(data, end)[0]:
        raise CorruptError("the frame's checksum is wrong: its bytes were damaged")
    return range(start, end)


def peek(data: bytes) -> Head:
    """All of a frame except its rows, from at least its first `head_size` bytes. Bytes after these are not checked.
    CorruptError as for `decode`."""
    _check_head(data)
    _, _, kind, size, _ = _PRELUDE.unpack_from(data)
    build = _BUILDERS.get(kind)
    if build is None:
        raise CorruptError(f"unknown kind of frame: {kind}")
    try:
        return build(json.loads(data[_PRELUDE.size : _PRELUDE.size + size]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"the frame's head does not have the fields of its kind: {error!r}") from error


def head_size(data: bytes) -> int:
    """The number of bytes that `peek` needs, from at least the first PRELUDE_SIZE bytes of a frame."""
    if len(data) < _PRELUDE.size:
        raise CorruptError(f"the frame is truncated: it has {len(data)} bytes, but its prelude alone has {_PRELUDE.size}")
    size: int = _PRELUDE.unpack_from(data)[3]
    return _PRELUDE.size + size + _CHECKSUM.size


def _check_head(data: bytes) -> int:
    """Check prelude and head; return their checksum."""
    end = head_size(data) - _CHECKSUM.size
    magic, version, _, _, _ = _PRELUDE.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptError(f"the bytes are not a frame: they begin with {magic!r}, not with {_MAGIC!r}")
    # Before the checksum, because a later version may lay out its head differently.
    if version != VERSION:
        raise CorruptError(f"unknown version of frame: {version}; this program reads version {VERSION}")
    if len(data) < end + _CHECKSUM.size:
        raise CorruptError(f"the frame is truncated: it has {len(data)} bytes, but its head alone has {end + _CHECKSUM.size}")
    checksum = zlib.crc32(memoryview(data)[:end])
    if checksum != _CHECKSUM.unpack_from(data, end)[0]:
        raise CorruptError("the checksum of the frame's head is wrong: its bytes were damaged")
    return checksum


# Fields: JSON objects with their keys in a fixed order.


def _fields(frame: Frame) -> dict[str, Any]:
    common = {"origin": [frame.origin.replica, frame.origin.incarnation], "epoch": frame.epoch}
    match frame:
        case Data():
            rows = {"first_id": frame.first_id, "rows": frame.batch.num_rows, "tentative": frame.tentative}
            times = {"ingest": frame.ingest, "t_max": frame.t_max}
            return common | rows | times | {"missing": frame.missing, "cause": frame.cause}
        case Boundary():
            clock = {"time": frame.time, "tentative": frame.tentative, "ingest": frame.ingest, "sent": frame.sent}
            advert = {"state": frame.state.value, "anchor": _anchor_fields(frame.anchor)}
            lacking = {"lacking": frame.lacking} if frame.lacking else {}  # most boundaries are written when all is well
            pause = {"pause": frame.pause} if frame.pause else {}
            return common | clock | advert | {"missing": frame.missing, "cause": frame.cause} | lacking | pause
        case Undo():
            return common | {"last_id": frame.last_id, "cause": frame.cause}
        case RecDone():
            return common | {"cause": frame.cause}
        case Start():
            return common | {"next_id": frame.next_id}
        case _:
            assert_never(frame)


def _anchor_fields(anchor: Anchor | None) -> dict[str, Any] | None:
    if anchor is None:
        return None
    return {"time": anchor.time, "needs": anchor.needs, "next_ids": anchor.next_ids, "inputs": anchor.inputs}


def _data_head(fields: dict[str, Any]) -> DataHead:
    return DataHead(
        _origin(fields),
        fields["epoch"],
        fields["first_id"],
        fields["rows"],
        fields["tentative"],
        tuple((through, at) for through, at in fields["ingest"]),
        fields["t_max"],
        tuple(fields["missing"]),
        fields["cause"],
    )


def _boundary(fields: dict[str, Any]) -> Boundary:
    return Boundary(
        _origin(fields),
        fields["epoch"],
        fields["time"],
        fields["tentative"],
        fields["ingest"],
        fields["sent"],
        State(fields["state"]),
        _anchor(fields["anchor"]),
        tuple(fields["missing"]),
        fields["cause"],
        tuple(fields.get("lacking", ())),
        fields.get("pause", 0),
    )


def _undo(fields: dict[str, Any]) -> Undo:
    return Undo(_origin(fields), fields["epoch"], fields["last_id"], fields["cause"])


def _rec_done(fields: dict[str, Any]) -> RecDone:
    return RecDone(_origin(fields), fields["epoch"], fields["cause"])


def _start(fields: dict[str, Any]) -> Start:
    return Start(_origin(fields), fields["epoch"], fields["next_id"])


def _origin(fields: dict[str, Any]) -> Origin:
    replica, incarnation = fields["origin"]
    return Origin(replica, incarnation)


def _anchor(fields: dict[str, Any] | None) -> Anchor | None:
    if fields is None:
        return None
    next_ids = tuple((log, first) for log, first in fields["next_ids"])
    return Anchor(fields["time"], fields["needs"], next_ids, tuple((log, first) for log, first in fields["inputs"]))


_BUILDERS: dict[int, Callable[[dict[str, Any]], Head]] = {
    _KINDS[Data]: _data_head,
    _KINDS[Boundary]: _boundary,
    _KINDS[Undo]: _undo,
    _KINDS[RecDone]: _rec_done,
    _KINDS[Start]: _start,
}


# Rows. Arrow does not define the bytes under a null, after the last bit of a bitmap and after the end of a slice, and its
# IPC writer copies some of them. Columns are therefore rebuilt: buffers end with the rows, and undefined bytes are zero.


def _encode_batch(batch: pa.RecordBatch) -> tuple[pa.Buffer, pa.Buffer]:
    schema = batch.schema.remove_metadata()
    columns = [_canonical(column) for column in batch.columns]
    return _schema_message(schema), pa.RecordBatch.from_arrays(columns, schema=schema).serialize()


def _decode_batch(data: bytes, body: range) -> pa.RecordBatch:
    _, size = _MESSAGE.unpack_from(data, body.start)
    rows_at = body.start + _MESSAGE.size + size
    schema = _schema_in(data[body.start : rows_at])
    return pa.ipc.read_record_batch(pa.py_buffer(data)[rows_at : body.stop], schema)


# The frames of a log have the same schema. Each time that Arrow reads or writes it, it would let another thread have the
# interpreter, which takes longer than all the rest where many threads wait.


@lru_cache(_SCHEMAS)
def _schema_message(schema: pa.Schema) -> pa.Buffer:
    return schema.serialize()


@lru_cache(_SCHEMAS)
def _schema_in(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))


def _canonical(column: pa.Array) -> pa.Array:
    kind = column.type
    if len(column) == 0:
        return pa.array([], kind)
    if pa.types.is_string(kind):
        return _canonical_strings(column)
    if pa.types.is_boolean(kind):
        return _canonical_bools(column)
    if (pa.types.is_primitive(kind) and kind.bit_width == 64) or pa.types.is_date32(kind) or pa.types.is_decimal128(kind):
        return _canonical_words(column)
    raise TypeError(f"a frame cannot carry a column of type {kind}")


def _canonical_strings(column: pa.Array) -> pa.Array:
    # fill_null makes a new array in which a null takes no bytes. A column without nulls is returned unchanged.
    validity, size = _validity(column), len(column)
    _, offset_buffer, text = pc.fill_null(column, "").buffers()
    first = 0 if column.null_count else column.offset
    offsets = np.frombuffer(offset_buffer, np.int32)[first : first + size + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    text = pa.py_buffer(b"") if text is None else text[start:end]
    return pa.Array.from_buffers(pa.string(), size, [validity, pa.py_buffer(offsets - offsets[0]), text])


def _canonical_bools(column: pa.Array) -> pa.Array:
    bits = _bits(column.buffers()[1], column)
    if column.null_count:
        bits &= _bits(column.buffers()[0], column)
    return pa.Array.from_buffers(column.type, len(column), [_validity(column), pa.py_buffer(_packed(bits))])


def _canonical_words(column: pa.Array) -> pa.Array:
    bitmap, words = column.buffers()
    size = column.type.bit_width // 8
    words = words[size * column.offset : size * (column.offset + len(column))]
    if column.null_count:
        values = np.frombuffer(words, np.int32 if size == 4 else np.int64).reshape(len(column), -1)
        words = pa.py_buffer(np.where(_bits(bitmap, column)[:, np.newaxis], values, 0))
    return pa.Array.from_buffers(column.type, len(column), [_validity(column), words])


def _validity(column: pa.Array) -> pa.Buffer | None:
    return pa.py_buffer(_packed(_bits(column.buffers()[0], column))) if column.null_count else None


def _bits(bitmap: pa.Buffer, column: pa.Array) -> npt.NDArray[np.uint8]:
    stop = column.offset + len(column)
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), count=stop, bitorder="little")[column.offset :]


def _packed(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.packbits(bits, bitorder="little")
