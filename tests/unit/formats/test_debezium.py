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
