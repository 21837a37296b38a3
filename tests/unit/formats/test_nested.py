"""Values by their paths: what Arrow holds under a null is not there, and no type holds what no JSON value can be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from formats.json_text import joined, listed
from formats.nested import column_at, nested_parts, type_holding, value_at

INT, TEXT = pa.int64(), pa.string()


def test_what_is_under_a_null_is_not_there() -> None:
    ids = pa.array([1, 2, 3])
    users = pa.StructArray.from_arrays([ids], ["id"], mask=pa.array([False, True, False]))
    assert column_at(users, ("id",)).to_pylist() == [1, None, 3]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3, 3]), ids, mask=pa.array([False, True, False]))
    assert column_at(lists, (0,)).to_pylist() == [1, None, None]
    assert column_at(lists.slice(1), (0,)).to_pylist() == [None, None]
    assert column_at(lists.slice(0, 2).cast(pa.large_list(INT)), (1,)).to_pylist() == [2, None]
    assert column_at(users, ("name",)).null_count == 3
    for column, step in ((ids, "id"), (users, 0), (lists, "id")):
        with pytest.raises(pa.ArrowInvalid, match=r"is not an (object|array)"):
            column_at(column, (step,))


def test_types_hold_all_values_or_there_is_none() -> None:
    assert type_holding({("a", "b"): INT, ("a", "c", 1): TEXT}) == pa.struct(
        [("a", pa.struct([("b", INT), ("c", pa.list_(TEXT))]))]
    )
    assert type_holding({("a", 0, "x"): INT, ("a", 3, "y"): TEXT}) == pa.struct(
        [("a", pa.list_(pa.struct([("x", INT), ("y", TEXT)])))]
    )
    assert type_holding({("a", 0): INT, ("a", 1): TEXT}) is None
    assert type_holding({("a", 0): INT, ("a", 1, "x"): INT}) is None


def test_texts_are_nested_and_found_again() -> None:
    texts = {("a", "b"): pa.array(["1"]), ("a", 'the "c"', 2): pa.array(['"x"']), ("d",): pa.array(["null"])}
    assert listed(joined(nested_parts(texts))) == ['{"a":{"b":1,"the \\"c\\"":[null,null,"x"]},"d":null}']
    assert value_at({"a": {"b": 1, "c": [None, {"x": 5}]}}, ("a", "c", 1, "x")) == 5
    assert value_at({"a": None}, ("a", "c", 1)) is None and value_at({"a": []}, ("a", 4)) is None
    with pytest.raises(TypeError):
        value_at({"a": 5}, ("a", "b"))
