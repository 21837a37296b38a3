"""Which partition a row goes to: rows that are one group to an operator go to one of its shards."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from boreal.model.partition import partition_of, split
from boreal.model.schema import PLAIN_TYPES, Type

MANY = 64


def homes(kind: Type, values: list[object]) -> list[int]:
    array = pa.array(values, pa.int64()).view(kind.arrow) if kind is Type.TIMESTAMP else pa.array(values, kind.arrow)
    found: list[int] = partition_of(pa.RecordBatch.from_arrays([array], ["k"]), ["k"], MANY).tolist()
    return found


def test_doubles_that_are_equal_keys_go_together() -> None:
    zero, minus_zero, nan, other_nan = homes(Type.DOUBLE, [0.0, -0.0, float("nan"), -float("nan")])
    assert zero == minus_zero and nan == other_nan


@pytest.mark.parametrize("kind", [*PLAIN_TYPES, Type("decimal(10, 2)")])
def test_a_key_has_its_partition_for_good(kind: Type) -> None:
    """Logs that are there were split so."""
    values: dict[Type, list[object]] = {
        Type.STRING: [None, "", "UA", "é"],
        Type.INT: [None, 0, -1, 1 << 62],
        Type.DOUBLE: [None, 0.0, 0.1, -1.5],
        Type.BOOL: [None, True, False],
        Type.TIMESTAMP: [None, 0, 1 << 62, -(1 << 62)],
        Type.DATE: [None, 0, 15_706, -1],
        Type("decimal(10, 2)"): [None, Decimal("0"), Decimal("-1.5"), Decimal("12345678.90")],
    }
    expected = {
        Type.STRING: [32, 58, 48, 10],
        Type.INT: [32, 12, 60, 43],
        Type.DOUBLE: [32, 56, 45, 23],
        Type.BOOL: [32, 20, 50],
        Type.TIMESTAMP: [32, 12, 43, 23],
        Type.DATE: [32, 12, 32, 60],
        Type("decimal(10, 2)"): [32, 46, 30, 53],
    }
    assert homes(kind, values[kind]) == expected[kind]


def test_each_part_keeps_the_order_of_its_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"k": [0.0, 1.0, -0.0, 1.0], "n": [0, 1, 2, 3]})
    parts = split(batch, ["k"], 2)
    assert sorted(part.column("n").to_pylist() for part in parts if part.num_rows) in ([[0, 1, 2, 3]], [[0, 2], [1, 3]])
