"""State as bytes: canonical, and refused when they are damaged or another's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from boreal.model.errors import CorruptError
from boreal.model.schema import Schema
from operators.aggregate import AggregateOperator
from operators.distinct import DistinctOperator
from operators.encoding import decode_batch, encode_batch, pack, unpack
from operators.filter import FilterOperator
from operators.join import JoinOperator
from operators.top import TopOperator

SCHEMA = Schema.of({"k": "string", "x": "int", "f": "bool", "t": "timestamp", "v": "double"})
ROWS = [
    {"time": 1, "k": "a", "x": None, "f": True, "t": 5, "v": None},
    {"time": 2, "k": None, "x": 7, "f": None, "t": None, "v": -0.0},
    {"time": 3, "k": "c", "x": 8, "f": False, "t": 6, "v": 1.5},
]

OPERATORS = {
    "aggregate": AggregateOperator("o", SCHEMA, 10, 10, ("k",), {"n": "count(*)", "d": "count(distinct v)"}),
    "distinct": DistinctOperator("o", SCHEMA, ("k", "f"), 10),
    "join": JoinOperator("o", (SCHEMA, SCHEMA), ("k",), 5, "left"),
    "top": TopOperator("o", SCHEMA, 2, "x", 10, 10, ()),
}


def test_batches_come_back() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA.arrow)
    assert decode_batch(encode_batch(batch), SCHEMA.arrow).equals(batch)
    assert decode_batch(encode_batch(SCHEMA.empty()), SCHEMA.arrow).equals(SCHEMA.empty())


def test_equal_batches_are_equal_bytes_however_they_were_made() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA.arrow)
    around = pa.RecordBatch.from_pylist([ROWS[2], *ROWS, ROWS[0]], schema=SCHEMA.arrow)
    rejoined = pa.concat_batches([batch.slice(0, 1), batch.slice(1)])
    for same in (around.slice(1, 3), around.take(pa.array([1, 2, 3])), rejoined):
        assert encode_batch(same) == encode_batch(batch)


def test_a_batch_of_another_schema_is_refused() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA.arrow)
    with pytest.raises(CorruptError):
        decode_batch(encode_batch(batch), Schema.of({"x": "int"}).arrow)
    with pytest.raises(CorruptError):
        decode_batch(b"nothing", SCHEMA.arrow)


def test_packs_come_back() -> None:
    assert unpack(pack("kind", {"upto": -5}, [b"one", b"", b"two"]), "kind") == ({"upto": -5}, [b"one", b"", b"two"])
    with pytest.raises(CorruptError, match="the state belongs to kind, not to other"):
        unpack(pack("kind", {}, []), "other")


@pytest.mark.parametrize("name", OPERATORS)
def test_any_damage_is_noticed(name: str) -> None:
    operator = OPERATORS[name]
    state = operator.empty()
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA.arrow)
    operator.step(state, (batch, batch) if name == "join" else (batch,), 4)  # type: ignore[arg-type]
    blob = state.encode()
    assert operator.decode(blob).encode() == blob
    for place in range(0, len(blob), 7):
        damaged = bytearray(blob)
        damaged[place] ^= 0x10
        with pytest.raises(CorruptError):
            operator.decode(bytes(damaged))
    for cut in (0, 10, len(blob) // 2, len(blob) - 1):
        with pytest.raises(CorruptError):
            operator.decode(blob[:cut])


def test_the_state_of_an_operator_with_other_settings_is_refused() -> None:
    other = AggregateOperator("o", SCHEMA, 20, 20, ("k",), {"n": "count(*)", "d": "count(distinct v)"})
    with pytest.raises(CorruptError):
        other.decode(OPERATORS["aggregate"].empty().encode())


def test_what_has_no_state_has_no_bytes() -> None:
    operator = FilterOperator("f", SCHEMA, "f")
    assert operator.decode(operator.empty().encode()) is operator.empty()
    with pytest.raises(CorruptError):
        operator.decode(b"some")
