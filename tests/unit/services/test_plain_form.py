"""Records in CSV and Arrow through the versions of a query: each row has the columns of its own version."""

from __future__ import annotations

import pyarrow.ipc
import pytest

from boreal.model.schema import Schema
from services.egress.plain_form import ColumnsUnknown, PlainForm

NARROW, WIDE = Schema.of({"n": "int"}), Schema.of({"m": "string", "n": "int"})
ROW = b'{"time":"2013-01-01T00:00:00Z","n":1}'
WIDE_ROW = b'{"time":"2013-01-01T00:00:00Z","m":"x","n":1}'


def test_a_row_has_the_columns_of_its_version_and_waits_until_they_are_known() -> None:
    known = {1: NARROW}
    form = PlainForm("csv", lambda: known)
    assert form.value(ROW, 1) == b"2013-01-01T00:00:00Z,1"
    with pytest.raises(ColumnsUnknown, match="the columns of version 2"):
        form.value(WIDE_ROW, 2)
    known[2] = WIDE
    assert form.value(WIDE_ROW, 2) == b'2013-01-01T00:00:00Z,"x",1' and form.value(ROW, 1) == b"2013-01-01T00:00:00Z,1"


def test_in_arrow_too() -> None:
    form = PlainForm("arrow", lambda: {1: NARROW, 2: WIDE})
    names = [pyarrow.ipc.open_stream(form.value(row, version)).schema.names for row, version in ((ROW, 1), (WIDE_ROW, 2))]
    assert names == [["time", "n"], ["time", "m", "n"]]
