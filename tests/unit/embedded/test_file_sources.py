"""Reading inputs: the same tuples from every format, a dead letter for each unusable line, and no other loss."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model.errors import UserError
from boreal.query.spec import Stream
from embedded.file_sources import SourceRows, merge_schedule, read_source

COLUMNS = {"carrier": "string", "flight": "int", "delay": "double", "late": "bool", "landed": "timestamp"}


def stream(**changes: object) -> Stream:
    return Stream.model_validate({"time": "at", "schema": COLUMNS, **changes})


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def read(folder: Path, name: str, text: str | bytes, **changes: object) -> SourceRows:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_source("s", stream(**changes), str(path))


def rows(source: SourceRows) -> list[dict[str, Any]]:
    return source.batch.to_pylist()


def refused(source: SourceRows) -> list[tuple[int, str]]:
    return [(letter.line, letter.reason) for letter in source.rejects]


HEADER = "extra,at,carrier,flight,delay,late,landed\n"
FIRST = "x,2013-01-01T05:00:00Z,UA,12,1.5,true,2013-01-01T07:00:00Z\n"
SECOND = "x,2013-01-01 05:00:01,AA,13,,0,\n"
EXPECTED = [
    {
        "time": us("2013-01-01T05:00:00"),
        "carrier": "UA",
        "flight": 12,
        "delay": 1.5,
        "late": True,
        "landed": datetime(2013, 1, 1, 7, tzinfo=UTC),
    },
    {
        "time": us("2013-01-01T05:00:01"),
        "carrier": "AA",
        "flight": 13,
        "delay": None,
        "late": False,
        "landed": None,
    },
]


def test_formats_agree(tmp_path: Path) -> None:
    objects = [
        {"at": "2013-01-01T05:00:00Z", "carrier": "UA", "flight": 12, "delay": 1.5, "late": True, "extra": [1],
         "landed": "2013-01-01T08:00:00+01:00"},
        {"at": "2013-01-01T05:00:01Z", "carrier": "AA", "flight": 13, "delay": None, "late": False},
    ]  # fmt: skip
    table = pa.table({
        "at": pa.array([us("2013-01-01T05:00:00") * 1000, us("2013-01-01T05:00:01") * 1000], pa.timestamp("ns")),
        "carrier": pa.array(["UA", "AA"]).dictionary_encode(), "flight": [12.0, 13.0], "delay": [1.5, None],
        "late": [1, 0], "landed": ["2013-01-01T07:00:00", "NA"], "extra": [[1], [2]],
    })  # fmt: skip
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    pa.feather.write_feather(table, str(tmp_path / "a.arrow"))
    with pa.ipc.new_stream(tmp_path / "b.arrow", table.schema) as written:
        written.write_table(table, max_chunksize=1)
    lines = "".join(json.dumps(record) + "\n" for record in objects)
    sources = (
        read(tmp_path, "a.csv", HEADER + FIRST + SECOND),
        read(tmp_path, "a.jsonl", lines),
        *(read_source("s", stream(), str(tmp_path / name)) for name in ("a.parquet", "a.arrow", "b.arrow")),
        read(tmp_path, "b.csv", HEADER + FIRST + SECOND + "broken\n"),
        read(tmp_path, "b.jsonl", lines + "broken\n"),
    )
    for source in sources:
        assert rows(source) == EXPECTED
        assert source.batch.schema == stream().attributes.arrow
    assert [len(source.rejects) for source in sources] == [0, 0, 0, 0, 0, 1, 1]


def test_columns_by_path_are_found_in_each_format(tmp_path: Path) -> None:
    schema = {
        "at": {"type": "timestamp", "path": "meta.at"},
        "carrier": {"type": "string", "path": "meta['the carrier']"},
        "flight": {"type": "int", "path": "legs[1].flight"},
    }
    objects: list[dict[str, Any]] = [
        {"meta": {"at": 1, "the carrier": "UA"}, "legs": [{"flight": 3}, {"flight": 12}]},
        {"meta": {"at": 2, "the carrier": None}, "legs": [{"flight": 4}]},
        {"meta": {"at": 3}, "legs": None},
    ]
    pa.parquet.write_table(pa.Table.from_pylist(objects), tmp_path / "a.parquet")
    lines = "".join(json.dumps(record) + "\n" for record in objects)
    odd = '{"meta": {"at": 4}, "legs": {"flight": 1}}\n{"meta": 5}\n{"meta": {"at": 4}, "legs": [1, 2]}\n'
    sources = (
        read(tmp_path, "a.csv", "at,carrier,flight\n1,UA,12\n2,,\n3,,\n", schema=schema),
        read(tmp_path, "a.jsonl", lines, schema=schema),
        read_source("s", stream(schema=schema), str(tmp_path / "a.parquet")),
        read(tmp_path, "b.jsonl", lines + odd, schema=schema),
    )
    for source in sources:
        found = [(row["time"], row["carrier"], row["flight"]) for row in rows(source)]
        assert found == [(1_000, "UA", 12), (2_000, None, None), (3_000, None, None)]
    assert refused(sources[3]) == [
        (4, "column flight: {'flight': 1} is not an array"),
        (5, "column at: 5 is not an object"),
        (6, "column flight: 2 is not an object"),
    ]
    with pytest.raises(UserError, match="has no column 'meta'"):
        read(tmp_path, "c.jsonl", '{"legs": []}\n', schema=schema)
    pa.parquet.write_table(pa.table({"meta": [{"at": 1}], "legs": [5]}), tmp_path / "c.parquet")
    with pytest.raises(UserError, match="int64 is not an array"):
        read_source("s", stream(schema=schema), str(tmp_path / "c.parquet"))


def test_a_file_has_keys_and_headers_under_the_names_of_their_columns(tmp_path: Path) -> None:
    schema = {
        "at": {"type": "timestamp", "from": "timestamp"},
        "carrier": {"type": "string", "from": "key"},
        "flight": {"type": "int", "from": "header.flight-number"},
    }
    for source in (
        read(tmp_path, "a.csv", "at,carrier,flight\n1,UA,12\n2,,\n", schema=schema),
        read(tmp_path, "a.jsonl", '{"at": 1, "carrier": "UA", "flight": 12}\n{"at": 2}\n', schema=schema),
    ):
        found = [(row["time"], row["carrier"], row["flight"]) for row in rows(source)]
        assert found == [(1_000, "UA", 12), (2_000, None, None)]


def test_each_broken_csv_line_is_a_dead_letter_and_nothing_else_is_lost(tmp_path: Path) -> None:
    text = (
        HEADER
        + FIRST
        + "x,2013-01-01 05:00:00,UA\n"
        + "\n"
        + 'x,2013-01-01 05:00:00,"two\nlines",14,1,1,\n'
        + "x,2013-01-01 05:00:00,UA,5.5,1,1,\n"
        + "x,2013-01-01 05:00:00,UA,5.0,abc,1,\n"
        + "x,2013-01-01 05:00:00,UA,5,1,maybe,\n"
        + "x,yesterday,UA,5,1,1,\n"
        + "x,NA,UA,5,1,1,\n"
        + 'x,2013-01-01 05:00:00,"UA,5,1,1,\n'
        + SECOND
    )
    source = read(tmp_path, "a.csv", text)
    assert [row["carrier"] for row in rows(source)] == ["UA", "two\nlines", "AA"]
    assert refused(source) == [
        (3, "3 fields, but the header has 7"),
        (7, "column flight: '5.5' is not an int"),
        (8, "column delay: 'abc' is not a double"),
        (9, "column late: 'maybe' is not a bool"),
        (10, "column at: 'yesterday' is not a time"),
        (11, "column at: no time"),
        (12, "a quote is not closed"),
    ]
    assert source.rejects[0].record == "x,2013-01-01 05:00:00,UA"


def test_each_broken_json_line_is_a_dead_letter(tmp_path: Path) -> None:
    good = '{"at": 1, "carrier": "UA", "flight": 5, "delay": 1, "late": 1, "landed": 7}'
    lines = [good, "{", "[1]", "", '{"at": 1, "flight": 5.5}', '{"carrier": "UA"}', '{"at": 1, "delay": [1]}',
             '{"at": 2, "flight": "5.0", "carrier": 7}', good + good]  # fmt: skip
    source = read(tmp_path, "a.jsonl", "\r\n".join(lines), time_unit="s")
    assert [(row["time"], row["flight"], row["carrier"]) for row in rows(source)] == [
        (1_000_000, 5, "UA"),
        (2_000_000, 5, "7"),
    ]
    assert [line for line, _ in refused(source)] == [2, 3, 5, 6, 7, 9]
    assert refused(source)[2:5] == [
        (5, "column flight: '5.5' is not an int"),
        (6, "column at: no time"),
        (7, "column delay: [1] is not a plain value"),
    ]


def test_a_stray_quote_costs_its_own_line_only(tmp_path: Path) -> None:
    shape = {"carrier": "string"}
    text = 'at,carrier\n1,"a\n2,b\n3,"c\n4,d\n'
    source = read(tmp_path, "a.csv", text, schema=shape)
    assert [row["carrier"] for row in rows(source)] == ["b", "d"]
    assert refused(source) == [(2, "a quote is not closed"), (4, "a quote is not closed")]
    source = read(tmp_path, "b.csv", 'at,carrier\n1,"a\n2,b\n"3",c\n"4","d"\n5,"e"f\n', schema=shape)
    assert [row["carrier"] for row in rows(source)] == ["b", "c", "d", "ef"]
    assert [line for line, _ in refused(source)] == [2]
    source = read(tmp_path, "c.csv", 'at,carrier\n"1,a\n2",b,b\n3,c\n', schema=shape)
    assert [row["carrier"] for row in rows(source)] == ["c"]
    assert refused(source) == [(2, "3 fields, but the header has 2"), (3, "3 fields, but the header has 2")]


def test_two_objects_on_a_json_line_are_none(tmp_path: Path) -> None:
    good = '{"at": 1, "n": 1}'
    source = read(tmp_path, "a.jsonl", f"{good}\n{good}{good}\n{good}", schema={"n": "int"})
    assert ([line for line, _ in refused(source)], len(rows(source))) == ([2], 2)


def test_bytes_that_are_not_utf8_cost_their_own_line_only(tmp_path: Path) -> None:
    broken = FIRST.encode().replace(b"UA", b"\xff")
    source = read(tmp_path, "a.csv", HEADER.encode() + broken + FIRST.encode())
    assert (refused(source), len(rows(source))) == ([(2, "not UTF-8")], 1)
    lines = b'{"at": 1, "carrier": "\xff"}\n{"at": 1, "carrier": "UA"}\n'
    source = read(tmp_path, "a.jsonl", lines, schema={"carrier": "string"})
    assert (refused(source), len(rows(source))) == ([(1, "not UTF-8")], 1)


@pytest.mark.parametrize("unit, factor", [("s", 1_000_000), ("ms", 1_000), ("us", 1)])
def test_integer_times_count_in_the_time_unit(tmp_path: Path, unit: str, factor: int) -> None:
    source = read(tmp_path, "a.csv", "at,carrier\n1357016400,UA\n", time_unit=unit, schema={"carrier": "string"})
    assert source.times.tolist() == [1_357_016_400 * factor]


def test_nanoseconds_are_cut_off(tmp_path: Path) -> None:
    text = "at,n\n1357016400000000999,1\n2013-01-01T05:00:00.123456789,2\n2013-01-01T06:00:00+01:00,3\n"
    source = read(tmp_path, "a.csv", text, time_unit="ns", schema={"n": "int"}, disorder="1s")
    assert source.times.tolist() == [1_357_016_400_000_000, 1_357_016_400_000_000, 1_357_016_400_123_456]
    assert not source.rejects


def test_a_time_outside_the_years_of_iso_8601_is_refused(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"at": [10**17, 1], "n": [1, 2]}), tmp_path / "a.parquet")
    source = read_source("s", stream(schema={"n": "int"}, time_unit="s"), str(tmp_path / "a.parquet"))
    assert [line for line, _ in refused(source)] == [1]
    source = read(tmp_path, "a.csv", "at,n\n1357016400000,1\n1,2\n", time_unit="s", schema={"n": "int"})
    assert refused(source) == [(2, "column at: '1357016400000' is not a time")]


def test_lateness_is_judged_in_file_order(tmp_path: Path) -> None:
    text = "at,n\n10,1\n7,2\n20,3\n16,4\n15,5\n14,6\n15,7\n"
    source = read(tmp_path, "a.csv", text, time_unit="s", schema={"n": "int"}, disorder="5s")
    assert [row["n"] for row in rows(source)] == [2, 1, 5, 7, 4, 3]
    assert refused(source) == [(7, "late by 6s, disorder allows 5s")]
    ordered = read(tmp_path, "b.csv", text, time_unit="s", schema={"n": "int"})
    assert [line for line, _ in refused(ordered)] == [3, 5, 6, 7, 8]


@pytest.mark.parametrize("broken", ["", "soon,9\n"])
def test_late_rows_are_clamped_where_the_stream_asks_for_it(tmp_path: Path, broken: str) -> None:
    text = "at,n\n10,1\n4,2\n20,3\n16,4\n3,5\n" + broken
    source = read(tmp_path, "a.csv", text, time_unit="s", schema={"n": "int"}, disorder="5s", late="clamp")
    assert [(row["time"] // 1_000_000, row["n"]) for row in rows(source)] == [(5, 2), (10, 1), (15, 5), (16, 4), (20, 3)]
    assert source.clamped == 2
    assert refused(source) == ([(7, "column at: 'soon' is not a time")] if broken else [])


def numbered(times: list[int]) -> str:
    return "at,n\n" + "".join(f"{time},{n}\n" for n, time in enumerate(times))


@pytest.mark.parametrize("form", ["{}", "{}soon,9\n"])
@pytest.mark.parametrize(
    "times, ahead",
    [
        ([*range(10), 3_610, *range(10, 20)], {10: "1h1s"}),
        ([*range(10), 3_610, 3_611, 7_300, *range(10, 30)], {10: "1h1s", 11: "1h2s", 12: "2h1m31s"}),
        ([3_600, *range(10)], {0: "1h"}),
        ([*range(10), 19, *range(10, 20)], {}),
        ([*range(10), *range(30_000, 30_010)], {}),
        ([0, 600, 1_200, 700, 701, 1_800, 2_400, 3_000, 3_600], {}),
        ([0, 600, 1], {}),
        ([0], {}),
    ],
    ids=["one", "several", "first", "within", "a quiet night", "some that are late", "the last is late", "alone"],
)
def test_a_row_far_ahead_of_those_around_it_is_refused_and_a_quiet_night_is_not(
    tmp_path: Path, form: str, times: list[int], ahead: dict[int, str]
) -> None:
    text = form.format(numbered(times))
    source = read(tmp_path, "a.csv", text, time_unit="s", schema={"n": "int"}, disorder="10s")
    letters = {line - 2: reason for line, reason in refused(source) if "not a time" not in reason}
    late = {row for row, reason in letters.items() if reason.startswith("late by")}
    assert late == {row for row, time in enumerate(times) if time in (1, 700, 701) and 600 in times}
    assert {row: reason for row, reason in letters.items() if row not in late} == {
        row: f"{beyond} ahead of the rows around it, ahead allows 1m" for row, beyond in ahead.items()
    }
    assert {row["n"] for row in rows(source)} == {*range(len(times))} - set(letters)


def test_a_time_column_that_the_schema_names_too_is_both(tmp_path: Path) -> None:
    source = read(tmp_path, "a.csv", "at\n2013-01-01\n", schema={"at": "timestamp"})
    assert rows(source) == [{"time": us("2013-01-01T00:00:00"), "at": datetime(2013, 1, 1, tzinfo=UTC)}]
    source = read(tmp_path, "b.csv", "time,n\n2013-01-01,1\n", time="time", schema={"n": "int"})
    assert rows(source) == [{"time": us("2013-01-01T00:00:00"), "n": 1}]


def test_a_file_without_rows_is_an_empty_stream(tmp_path: Path) -> None:
    for name, text in (("a.csv", HEADER), ("b.csv", HEADER.rstrip("\n")), ("c.jsonl", "")):
        source = read(tmp_path, name, text)
        assert (source.batch.num_rows, source.rejects) == (0, [])
        assert source.batch.schema == stream().attributes.arrow


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.csv", "at,carrier\n1,UA\n", ["a.csv", "'flight'", "at, carrier"]),
        ("a.csv", "carrier\nUA\n", ["'at'"]),
        ("a.csv", "", ["is empty"]),
        ("a.jsonl", '{"at": 1}\n{"carrier": "UA"}\n', ["'flight'", "at, carrier"]),
        ("a.txt", "", [".csv, .jsonl, .parquet or .arrow"]),
        ("a.parquet", "no", ["not a Parquet file"]),
        ("a.arrow", "no", ["not a file of Arrow"]),
        ("a.arrow", "ARROW1", ["not a file of Arrow"]),
    ],
)
def test_a_file_that_cannot_serve_is_the_users_error(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        read(tmp_path, name, text)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_source("s", stream(), str(tmp_path / "none.csv"))


def test_a_nested_parquet_column_is_the_users_error(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"at": [1], "n": [[1]]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="plain values"):
        read_source("s", stream(schema={"n": "int"}), str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_refused_row_of_a_table_is_shown_as_json(tmp_path: Path, name: str) -> None:
    table = pa.table({"at": [1, None], "n": [1.0, 2.5]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    pa.feather.write_feather(table, str(tmp_path / "a.arrow"))
    source = read_source("s", stream(schema={"n": "int"}), str(tmp_path / name))
    assert refused(source) == [(2, "column at: no time")]
    assert json.loads(source.rejects[0].record) == {"at": None, "n": 2.5}


# The fast path, the exact path and a reader that goes line by line must see the same.

FIELDS = st.sampled_from(["", "NA", "1", "7", "12.0", "2.5", "x", 'q"q', "a,b", "two\nlines", "é"])
TIMES = st.sampled_from(["1", "2", "3", "9", "", "soon", "1970-01-01T00:00:05Z", "1970-01-01 00:00:06"])
SHAPE = {"name": "string", "n": "int"}


def dumb_csv(lines: list[list[str]], disorder: int, late: str) -> tuple[list[tuple[int, str | None, int | None]], list[int]]:
    kept, lost, line, newest = [], [], 2, 0
    for at, name, n in lines:
        here, line = line, line + 1 + at.count("\n") + name.count("\n") + n.count("\n")
        iso = {"1970-01-01T00:00:05Z": 5, "1970-01-01 00:00:06": 6}
        time = iso[at] if at in iso else int(at) if at.isdigit() else None
        try:
            number = None if n in ("", "NA") else int(float(n)) if float(n).is_integer() else None
            if time is None or (number is None and n not in ("", "NA")):
                raise ValueError
            if time < newest - disorder:
                if late != "clamp":
                    raise ValueError
                time = newest - disorder
        except ValueError:
            lost.append(here)
            continue
        newest = max(newest, time)
        kept.append((time, None if name in ("", "NA") else name, number))
    return sorted(kept, key=lambda row: row[0]), lost


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    lines=st.lists(st.tuples(TIMES, FIELDS, FIELDS).map(list), max_size=8),
    disorder=st.integers(0, 4),
    late=st.sampled_from(["dead_letter", "clamp"]),
)
def test_csv_is_read_as_a_line_by_line_reader_would(
    tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]], disorder: int, late: str
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["at", "name", "n"], *lines])
    source = read_source("s", stream(schema=SHAPE, time_unit="s", disorder=f"{disorder}s", late=late), str(path))
    kept, lost = dumb_csv(lines, disorder, late)
    assert [(row["time"] // 1_000_000, row["name"], row["n"]) for row in rows(source)] == kept
    assert [letter.line for letter in source.rejects] == lost


# The generator and the schedule.


def test_the_generator_repeats_itself() -> None:
    one, again = (read_source("s", stream(), "generate:100,2.5,7", seed=3) for _ in range(2))
    other_seed = read_source("s", stream(), "generate:100,2.5,7")
    other_name = read_source("t", stream(), "generate:100,2.5,7", seed=3)
    assert one.batch.equals(again.batch)
    assert not one.batch.equals(other_seed.batch) and not one.batch.equals(other_name.batch)
    assert one.batch.num_rows == 250 and set(np.diff(one.times)) == {10_000}
    assert one.times[0] == us("2026-01-01T00:00:00")
    assert set(one.batch.column("carrier").to_pylist()) == {f"k{number}" for number in range(7)}
    assert set(one.batch.column("flight").to_pylist()) == set(range(7))
    assert one.batch.schema == stream().attributes.arrow


@pytest.mark.parametrize("text", ["generate:", "generate:0,5", "generate:10,0", "generate:10,5,0", "generate:x,5"])
def test_a_generator_that_makes_nothing_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="generate:RATE,SECONDS"):
        read_source("s", stream(), text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 6)), min_size=1, max_size=3))
def test_the_schedule_is_the_order_by_time_stream_and_row(times: list[list[int]]) -> None:
    sources = {
        f"s{number}": SourceRows(f"s{number}", pa.record_batch({"time": pa.array(sorted(part), pa.int64())}), [])
        for number, part in enumerate(times)
    }
    schedule = merge_schedule(sources)
    order = sorted((time, name, row) for name, rows in sources.items() for row, time in enumerate(rows.times.tolist()))
    assert schedule.times.tolist() == [time for time, _, _ in order]
    for count in range(len(order) + 1):
        for name in sources:
            assert schedule.rows_within(name, count) == sum(entry[1] == name for entry in order[:count])
    for time in range(8):
        for name in sources:
            assert schedule.rows_before(name, time) == sum(entry[1] == name and entry[0] < time for entry in order)


def test_no_sources_make_an_empty_schedule() -> None:
    assert len(merge_schedule({}).times) == 0
