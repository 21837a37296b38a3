"""Frames as bytes: every field travels, the same rows give the same bytes, and no damage goes unseen."""

import dataclasses
import json
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

from boreal.model import codec
from boreal.model.errors import CorruptError
from boreal.model.frames import Anchor, Boundary, Data, Frame, Origin, RecDone, Start, State, Undo
from boreal.model.schema import Schema

ORIGIN = Origin("r1", 7)
ANCHOR = Anchor(1, -2, (("out/0", 4),), (("in/0", 5), ("in/1", 6)))
SCHEMA = Schema.of({"name": "string", "count": "int", "mean": "double", "late": "bool", "at": "timestamp"})
ROWS: list[dict[str, object]] = [
    {"time": 5, "name": "é", "count": -1, "mean": -0.0, "late": True, "at": 17},
    {"time": 6, "name": None, "count": None, "mean": None, "late": None, "at": None},
    {"time": 7, "name": "", "count": 1 << 60, "mean": 1e300, "late": False, "at": 0},
]


def batch(rows: list[dict[str, object]] = ROWS) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)


def data(rows: pa.RecordBatch) -> Data:
    return Data(ORIGIN, 3, 1 << 40, rows, True, ((10, 100), (20, 150)), 8, ("jfk/0", "ewr/1"), 'cut "jfk" ü')


FRAMES: list[Frame] = [
    data(batch()),
    Boundary(ORIGIN, 3, -5, True, 9, 11, State.UP_FAILURE, ANCHOR, ("a",), "c", ("a", "b")),
    Boundary(Origin("", 0), 0, 1 << 62, False, 0, 0),
    Boundary(ORIGIN, 3, 7, False, 9, 11, State.STABLE, ANCHOR, pause=400_000),
    Undo(ORIGIN, 4, -1, "cause"),
    RecDone(ORIGIN, 4, "cause"),
    Start(ORIGIN, 4, 7),
]


def kind(frame: object) -> str:
    return type(frame).__name__


@pytest.mark.parametrize("frame", FRAMES, ids=kind)
def test_a_frame_comes_back_as_it_was(frame):
    assert codec.decode(codec.encode(frame)) == frame
    assert codec.encode(codec.decode(codec.encode(frame))) == codec.encode(frame)


@pytest.mark.parametrize("frame", FRAMES, ids=kind)
def test_every_field_of_a_frame_is_in_its_head(frame):
    encoded = codec.encode(frame)
    head = json.loads(encoded[codec.PRELUDE_SIZE : codec.head_size(encoded) - 4])
    are_rare = ("lacking", "pause")
    fields = [field.name for field in dataclasses.fields(frame) if field.name not in are_rare or getattr(frame, field.name)]
    assert list(head) == [name.replace("batch", "rows") for name in fields]


@pytest.mark.parametrize("frame", FRAMES, ids=kind)
def test_peek_needs_only_the_head(frame):
    encoded = codec.encode(frame)
    head = codec.peek(encoded[: codec.head_size(encoded[: codec.PRELUDE_SIZE])])
    if not isinstance(frame, Data):
        assert head == frame
        return
    assert (head.first_id, head.rows, head.tentative) == (frame.first_id, 3, True)
    same = [field.name for field in dataclasses.fields(frame) if field.name != "batch"]
    assert [getattr(head, name) for name in same] == [getattr(frame, name) for name in same]


@pytest.mark.parametrize("frame", FRAMES, ids=kind)
def test_a_flipped_bit_anywhere_is_seen(frame):
    encoded = codec.encode(frame)
    for place in range(len(encoded)):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptError):
                codec.decode(bytes(damaged))


@pytest.mark.parametrize("frame", FRAMES, ids=kind)
def test_a_frame_cut_short_anywhere_says_so(frame):
    encoded = codec.encode(frame)
    for size in range(len(encoded)):
        with pytest.raises(CorruptError, match="truncated"):
            codec.decode(encoded[:size])


def test_errors_say_what_is_wrong():
    encoded = codec.encode(FRAMES[0])
    with pytest.raises(CorruptError, match="unknown version of frame: 9"):
        codec.decode(encoded[:2] + b"\x09" + encoded[3:])
    with pytest.raises(CorruptError, match="not a frame"):
        codec.decode(b"{}" + encoded[2:])
    with pytest.raises(CorruptError, match="2 bytes follow"):
        codec.decode(encoded + b"..")
    with pytest.raises(CorruptError, match="frame's checksum is wrong"):
        codec.decode(encoded[:-20] + b"!" + encoded[-19:])
    with pytest.raises(CorruptError, match="checksum of the frame's head is wrong"):
        codec.decode(encoded[:30] + b"!" + encoded[31:])


def sealed(kind: int, fields: bytes, body: bytes = b"") -> bytes:
    """A frame with right checksums, whatever is in it."""
    head = struct.pack("<2sBBIQ", b"bF", codec.VERSION, kind, len(fields), len(body)) + fields
    checksum = zlib.crc32(head)
    return head + struct.pack("<I", checksum) + body + struct.pack("<I", zlib.crc32(body, checksum))


def test_well_sealed_nonsense_is_refused():
    with pytest.raises(CorruptError, match="unknown kind of frame: 77"):
        codec.decode(sealed(77, b"{}"))
    for fields in (b"{}", b"[]", b"?", b'{"origin":["r0"],"epoch":1}'):
        with pytest.raises(CorruptError, match="fields of its kind"):
            codec.decode(sealed(5, fields))
    encoded = codec.encode(FRAMES[0])
    fields = encoded[codec.PRELUDE_SIZE : codec.head_size(encoded) - 4]
    for body in (b"", b"not arrow at all"):
        with pytest.raises(CorruptError, match="not an Arrow stream"):
            codec.decode(sealed(1, fields, body))


def test_the_same_rows_encode_alike_however_they_came_about():
    expected = codec.encode(data(batch()))
    padded = batch([{"time": 1, "name": "before", "count": 3, "mean": 2.0, "late": True, "at": 1}] * 5 + ROWS + ROWS)
    assert codec.encode(data(padded.slice(5, 3))) == expected
    assert codec.encode(data(batch(ROWS + ROWS).slice(0, 3))) == expected
    assert codec.encode(data(batch().replace_schema_metadata({"pandas": "{}"}))) == expected
    joined = pa.concat_batches([batch().slice(0, 1), batch().slice(1, 2)])
    assert codec.encode(data(joined)) == expected


def test_what_lies_under_a_null_is_not_encoded():
    def column(kind: pa.DataType, values: list[object], garbage: list[object]) -> tuple[pa.Array, pa.Array]:
        clean = pa.array([values[0], None, values[2]], kind)
        dirty = pa.array(garbage, kind)
        return clean, pa.Array.from_buffers(kind, 3, [clean.buffers()[0], *dirty.buffers()[1:]])

    columns = [
        column(pa.string(), ["a", None, "c"], ["a", "garbage", "c"]),
        column(pa.int64(), [1, None, 3], [1, 99, 3]),
        column(pa.float64(), [1.0, None, 3.0], [1.0, float("nan"), 3.0]),
        column(pa.bool_(), [False, None, True], [False, True, True]),
        column(pa.timestamp("us", tz="UTC"), [1, None, 3], [1, 99, 3]),
    ]
    time = pa.array([5, 6, 7])
    clean = pa.RecordBatch.from_arrays([time, *(pair[0] for pair in columns)], schema=SCHEMA.arrow)
    dirty = pa.RecordBatch.from_arrays([time, *(pair[1] for pair in columns)], schema=SCHEMA.arrow)
    assert clean.equals(dirty)
    assert codec.encode(data(dirty)) == codec.encode(data(clean))


def test_empty_batches_encode_alike():
    assert codec.encode(data(batch().slice(3))) == codec.encode(data(SCHEMA.empty()))
    assert codec.decode(codec.encode(data(SCHEMA.empty()))).batch == SCHEMA.empty()


def test_decoding_copies_no_column():
    rows = pa.RecordBatch.from_arrays([pa.array(np.arange(1000)), pa.array(np.arange(1000.0))], names=["time", "x"])
    encoded = codec.encode(data(rows))
    begin = pa.py_buffer(encoded).address
    for column in codec.decode(encoded).batch.columns:
        address = column.buffers()[1].address
        assert begin <= address < begin + len(encoded)
        assert (address - begin) % 8 == 0


def test_a_column_that_no_schema_has_is_refused():
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([1], pa.int32())], names=["time", "small"])
    with pytest.raises(TypeError, match="int32"):
        codec.encode(data(rows))
