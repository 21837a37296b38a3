"""Debezium's envelopes: what they hold, and that rows are found in them as they were."""

from __future__ import annotations

import json

import pytest

from boreal.model.schema import Schema
from formats.debezium import DebeziumForm

SCHEMA = Schema.of({"name": "string", "n": "int", "price": "decimal(9, 2)", "due": "date", "x": "double", "ok": "bool"})
ROWS = (b'{"time":"1970-01-01T00:00:00Z","name":"\\u00e9\\"},\\"after\\":null","n":1,"price":"1.50","x":1e22}', b"{}")


@pytest.mark.parametrize("after", [*ROWS, None])
@pytest.mark.parametrize("before", [*ROWS, None])
def test_a_row_is_found_in_an_envelope_byte_for_byte(before: bytes | None, after: bytes | None) -> None:
    form = DebeziumForm("q", SCHEMA, ("name",))
    value = form.value(before, after, 7, False, 1_000)
    assert form.row(value) == after and form.row(None) is None
    change = json.loads(value)["payload"]
    assert change["op"] == ("d" if after is None else "c" if before is None else "u") and change["ts_ms"] == 1_000
    assert [change[side] for side in ("before", "after")] == [row and json.loads(row) for row in (before, after)]
    assert change["source"]["id"] == 7 and change["source"]["db"] == "q"


@pytest.mark.parametrize(
    ("key", "plain", "payload"),
    [(("name",), b'"\\u00e9"', {"name": "é"}), (("name", "n"), b'{"name":"a","n":1}', {"name": "a", "n": 1})],
)
def test_keys_are_objects_with_their_schema(key: tuple[str, ...], plain: bytes, payload: dict[str, object]) -> None:
    form = DebeziumForm("q", SCHEMA, key)
    made = form.key(plain)
    assert form.plain_key(made) == plain
    content = json.loads(made)
    assert content["payload"] == payload and [field["field"] for field in content["schema"]["fields"]] == list(key)


def test_rows_of_another_version_get_the_columns_of_the_one_that_writes() -> None:
    """Those that it has with the same type. A reader then finds what the schema beside a row says."""
    old = Schema.of({"name": "string", "n": "int", "x": "double", "gone": "date"})
    new = Schema.of({"name": "string", "added": "int", "x": "string", "n": "int"})
    row = b'{"time":"1970-01-01T00:00:00Z","name":"\\u00e9,\\"payload\\":{\\"before\\":","n":1,"x":1e22,"gone":"2013-01-31"}'
    fitted = {"time": "1970-01-01T00:00:00Z", "name": 'é,"payload":{"before":', "added": None, "x": None, "n": 1}
    versions = {1: old, 2: new}
    before = DebeziumForm("q", old, ("name",), versions)
    after = DebeziumForm("q", new, ("name",), versions)
    for found in (after.row(before.value(row, row, 1, False, 0)), after.of_version(1, row)):
        assert found is not None and list(json.loads(found).items()) == list(fitted.items())
    assert before.of_version(1, row) == row == before.as_in(before.value(None, row, 1, True, 0), row)
    assert json.loads(after.as_in(before.value(None, row, 1, True, 0), row)) == fitted
    assert after.plain_key(before.key(b'"a"')) == b'"a"' and after.key(b'"a"') == before.key(b'"a"')


def test_columns_have_the_types_of_connect() -> None:
    schema = json.loads(DebeziumForm("q", SCHEMA, ("name",)).value(None, b"{}", None, True, 0))["schema"]
    before, after, *_ = schema["fields"]
    assert schema["name"] == "boreal.q.Envelope" and {**before, "field": "after"} == after
    kinds = {field["field"]: (field["type"], field.get("name")) for field in after["fields"]}
    assert kinds == {
        "time": ("string", "io.debezium.time.ZonedTimestamp"), "name": ("string", None), "n": ("int64", None),
        "price": ("string", None), "due": ("string", "io.debezium.time.IsoDate"), "x": ("double", None),
        "ok": ("boolean", None),
    }  # fmt: skip
