"""Rows of results in CSV and in Arrow are what they are in q.stable, for readers that know nothing of boreal."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pytest

from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import load_query
from formats.plain_rows import arrow_schema, arrow_writer, csv_writer
from tests.unit.formats.test_typed_rows import rows

TEXTS = ("", "NA", 'é"\n', "a,b", " ", "\r\n", "null", "'", "\\N", "1", "true")


def texts_of(windowed: bool) -> tuple[pa.Schema, list[bytes], list[dict[str, Any]], list[bytes]]:
    """(the schema in Arrow, rows as q.stable has them, what they are, and their lines), of all types, and of odd texts."""
    schema, texts, wanted = rows(windowed)
    texts += [json.dumps({**json.loads(texts[1]), "s": text}).encode() for text in TEXTS]
    wanted += [{**wanted[1], "s": text} for text in TEXTS]
    write = csv_writer(schema)
    return arrow_schema(schema), texts, wanted, [write(text) for text in texts]


@pytest.mark.parametrize("windowed", [False, True])
def test_each_record_of_arrow_is_a_stream_of_one_row(windowed: bool) -> None:
    kinds, texts, wanted, _ = texts_of(windowed)
    write = arrow_writer(rows(windowed)[0])
    found = []
    for text in texts:
        table = pa.ipc.open_stream(write(text)).read_all()
        assert table.schema == kinds
        found += table.to_pylist()
    assert found == wanted


@pytest.mark.parametrize("windowed", [False, True])
def test_lines_are_read_by_arrow_with_their_types(windowed: bool) -> None:
    kinds, _, wanted, lines = texts_of(windowed)
    found = pa.csv.read_csv(
        io.BytesIO(b"\n".join(lines)),
        pa.csv.ReadOptions(column_names=kinds.names),
        pa.csv.ParseOptions(newlines_in_values=True),
        pa.csv.ConvertOptions(
            column_types=kinds, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    assert found.to_pylist() == wanted


def test_lines_are_read_by_duckdb_with_their_types(tmp_path: Path) -> None:
    """Which takes fewer digits of a decimal, and years, than Arrow: of these rows those that it can take."""
    kinds, _, wanted, lines = texts_of(True)
    (tmp_path / "rows.csv").write_bytes(b"\n".join(lines[1:]))
    types = {pa.string(): "varchar", pa.int64(): "bigint", pa.float64(): "double", pa.bool_(): "boolean", pa.date32(): "date"}
    columns = {kind.name: types.get(kind.type, "timestamptz") for kind in kinds} | {"p": "decimal(38, 10)"}
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        found = connection.sql(
            f"select * from read_csv('{tmp_path / 'rows.csv'}', header=false, delim=',', quote='\"', escape='\"', nullstr='', "
            f"allow_quoted_nulls=false, columns={columns}, new_line='\\n', auto_detect=false)"
        ).to_arrow_table()
    assert found.cast(kinds).to_pylist() == wanted[1:]


def test_lines_are_read_by_pythons_csv() -> None:
    """Which does not tell null from an empty text."""
    _, _, wanted, lines = texts_of(False)
    for line, row in zip(lines, wanted, strict=True):
        [fields] = csv.reader(io.StringIO(line.decode(), newline=""), strict=True)
        assert dict(zip(row, fields, strict=True))["s"] == (row["s"] or "")
    [first] = csv.reader([lines[1].decode()])
    assert first == ["1970-01-01T00:00:01Z", "", "", "", "", "", "", ""]


def test_csv_and_arrow_take_any_name_of_a_column_and_no_registry() -> None:
    spec: dict[str, Any] = {
        "name": "q", "streams": {"s": {"topic": "t", "time": "at", "schema": {"at": "timestamp", "a b": "int"}}},
        "operators": {"all": {"union": ["s"]}}, "output": "all", "delay_threshold": "1s",
    }  # fmt: skip
    for format in ("csv", "arrow"):
        assert plan(load_query({**spec, "records": format})).records is not None
        with pytest.raises(UserError, match=r"records\.registry"):
            load_query({**spec, "records": {"format": format, "registry": "main"}})
