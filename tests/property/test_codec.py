"""Any frame comes back from its bytes as it was; how its rows were sliced cannot be told from them."""

import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model import codec
from boreal.model.errors import CorruptError
from boreal.model.frames import Anchor, Boundary, Data, Frame, Origin, RecDone, Start, State, Undo
from boreal.model.schema import Schema, Type

bounded = settings(max_examples=150, deadline=None, derandomize=True)

integers = st.integers(-(1 << 63), (1 << 63) - 1)
words = st.text(max_size=6)
labels = st.tuples(words, words) | st.just(())
origins = st.builds(Origin, words, st.integers(0, 1 << 40))
places = st.lists(st.tuples(words, integers), max_size=3).map(tuple)
runs = st.lists(st.tuples(integers, integers), max_size=3).map(tuple)
anchors = st.builds(Anchor, integers, integers, places, places)
VALUES = {
    Type.STRING: words,
    Type.INT: integers,
    Type.DOUBLE: st.floats(),
    Type.BOOL: st.booleans(),
    Type.TIMESTAMP: integers,
    Type.DATE: st.dates(),
    Type("decimal(5, 2)"): st.decimals(-999, 999, places=2),
    Type("decimal(38, 0)"): st.integers(1 - 10**38, 10**38 - 1).map(Decimal),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), max_size=4))
    schema = Schema.of({f"c{place}": kind for place, kind in enumerate(kinds)}, windowed=draw(st.booleans())).arrow
    size = draw(st.integers(0, 20))
    edges = len(schema) - len(kinds)
    values = [integers] * edges + [st.none() | VALUES[kind] for kind in kinds]
    columns = [draw(st.lists(strategy, min_size=size, max_size=size)) for strategy in values]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def frames() -> st.SearchStrategy[Frame]:
    data = st.builds(Data, origins, integers, integers, batches(), st.booleans(), runs, integers, labels, words)
    clock = (integers, st.booleans(), integers, integers)
    advert = (st.sampled_from(State), st.none() | anchors)
    boundary = st.builds(Boundary, origins, integers, *clock, *advert, labels, words)
    undo = st.builds(Undo, origins, integers, integers, words)
    return data | boundary | undo | st.builds(RecDone, origins, integers, words) | st.builds(Start, origins, integers)


def plain(frame: Frame) -> object:
    """The frame as what compares bit by bit: NaN equals itself, and 0.0 is not -0.0."""
    if not isinstance(frame, Data):
        return frame
    cells = [
        [struct.pack("<d", cell) if isinstance(cell, float) else cell for cell in integral(column).to_pylist()]
        for column in frame.batch.columns
    ]
    head = (frame.origin, frame.epoch, frame.first_id, frame.tentative, frame.ingest, frame.t_max)
    return (*head, frame.missing, frame.cause, frame.batch.schema, cells)


def integral(column: pa.Array) -> pa.Array:
    """Timestamps as numbers: Python's datetime does not reach as far."""
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


@bounded
@given(frames())
def test_round_trip(frame: Frame) -> None:
    encoded = codec.encode(frame)
    decoded = codec.decode(encoded)
    assert plain(decoded) == plain(frame)
    assert codec.encode(decoded) == encoded


@bounded
@given(batches(), st.data())
def test_a_slice_encodes_as_the_rows_alone_would(rows: pa.RecordBatch, choice: st.DataObject) -> None:
    begin = choice.draw(st.integers(0, rows.num_rows))
    size = choice.draw(st.integers(0, rows.num_rows - begin))
    part = rows.slice(begin, size)
    alone = pa.RecordBatch.from_arrays(
        [pa.array(integral(column).to_pylist(), integral(column).type).view(column.type) for column in part.columns],
        schema=rows.schema,
    )

    def encoded(batch: pa.RecordBatch) -> bytes:
        return codec.encode(Data(Origin("", 0), 0, 0, batch, False, (), 0))

    assert encoded(part) == encoded(alone)


@bounded
@given(frames(), st.data())
def test_damage_is_a_corrupt_error_and_nothing_else(frame: Frame, choice: st.DataObject) -> None:
    encoded = bytearray(codec.encode(frame))
    place = choice.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= choice.draw(st.integers(1, 255))
    with pytest.raises(CorruptError):
        codec.decode(bytes(encoded))
