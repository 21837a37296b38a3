"""Records in Arrow: which are rows, which are refused and why, and that the same rows in JSON are the same."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pytest

from boreal.model.errors import UserError
from boreal.model.frames import Data, Origin
from boreal.query.plan import Edge
from boreal.query.spec import Stream, load_query
from formats.arrow_records import MOST_BYTES, MOST_ROWS, ArrowRecords
from formats.record_parsing import ParsedRows, RecordShape
from intake.intake import Batch, Intake, SourceStream, form_of
from intake.place import SourcePlace
from intake.user_records import PartitionRecords

SCHEMA = {"at": "timestamp", "user": "string", "n": "int", "price": "decimal(9, 2)", "ok": "bool", "day": "date", "v": "double"}
TYPES = {
    "at": pa.timestamp("ms", "UTC"), "user": pa.string(), "n": pa.int32(), "price": pa.decimal128(7, 2), "ok": pa.bool_(),
    "day": pa.date32(), "v": pa.float64(), "more": pa.list_(pa.int8()),
}  # fmt: skip
SMALL = {"at": "timestamp", "user": "string"}
NOW_US = 1_400_000_000_000_000


def stream(**fields: Any) -> Stream:
    return Stream.model_validate({"time": "at", "schema": SCHEMA, "format": "arrow", **fields})


def record(rows: Sequence[dict[str, Any]], types: dict[str, pa.DataType], **options: Any) -> bytes:
    """An IPC stream of these rows, of one batch for each two."""
    schema = pa.schema(list(types.items()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as written:
        for first in range(0, len(rows), 2):
            written.write_batch(pa.RecordBatch.from_pylist(rows[first : first + 2], schema))
    return sink.getvalue().to_pybytes()


def users(*seconds: int, name: str = "a") -> bytes:
    rows = [{"at": second * 1_000, "user": f"{name}{second}"} for second in seconds]
    return record(rows, {"at": pa.int64(), "user": pa.string()})


def parsed(spec: Stream, *records: bytes | None) -> ParsedRows:
    reader = ArrowRecords.of(spec)
    assert reader is not None
    return reader.read(RecordShape.of(spec), records)


def small(*records: bytes | None, **fields: Any) -> tuple[list[Any], list[int], dict[int, str]]:
    """The users of records with a time and a user, the place of each, and the reasons for those that are no rows."""
    rows = parsed(stream(**{"schema": SMALL, **fields}), *records)
    return rows.values[1].to_pylist(), rows.places.tolist(), rows.reasons


def test_a_record_has_one_row_or_more_and_they_stay_in_order() -> None:
    assert small(users(1), users(2, 3, 4), users(5)) == (["a1", "a2", "a3", "a4", "a5"], [0, 1, 1, 1, 2], {})


def test_records_of_other_types_are_read_beside_each_other() -> None:
    text = {"at": pa.string(), "user": pa.large_string()}
    named = {"user": pa.dictionary(pa.int8(), pa.string()), "more": pa.int8(), "at": pa.timestamp("ns")}
    at = datetime(2013, 1, 1, tzinfo=UTC)
    found = small(
        record([{"at": "2013-01-01T00:00:00Z", "user": "x"}] * 2, text),
        users(2),
        record([{"at": at, "user": "y"}, {"at": at, "user": None}], named, compression="zstd"),
    )
    assert found == (["x", "x", "a2", "y", None], [0, 0, 1, 2, 2], {})


def test_what_is_no_row_says_why_and_its_neighbours_stay() -> None:
    kinds = {"at": pa.int64(), "user": pa.string()}
    good, row = users(1), {"at": 1_000, "user": "a"}
    sink = pa.BufferOutputStream()
    pa.feather.write_feather(pa.table({"at": [1], "user": ["a"]}), sink)
    long = pa.dictionary(pa.int16(), pa.string())
    odd: dict[str, bytes | None] = {
        "no value": None,
        "not an Arrow IPC stream": b"{}",
        "not an Arrow IPC stream: ": good[: len(good) // 2],
        "is a file of Arrow, and an IPC stream is wanted": sink.getvalue().to_pybytes(),
        f"has {len(good)} bytes after the end of its stream": good + good,
        "has no rows": record([], kinds),
        f"has {MOST_ROWS + 2:,} rows or more, and a record has at most": record([row] * (MOST_ROWS + 2), kinds),
        "unpacked, it has": record([{**row, "user": "x" * MOST_BYTES}], kinds, compression="zstd"),
        "field user: a text of": record([{**row, "user": "x" * 1_000}] * 2_000, {**kinds, "user": long}),
        "column user: the record has no field user": record([{"at": 1}], {"at": pa.int64()}),
        "column user: list<item: int64> cannot be a string": record([{"at": 1}], {**kinds, "user": pa.list_(pa.int64())}),
        "column user: binary cannot be a string": record([{"at": 1, "user": b"\xff"}], {**kinds, "user": pa.binary()}),
        "column at: bool cannot be a time": record([{"at": True}], {**kinds, "at": pa.bool_()}),
        "column at: no time": record([{"at": None}], kinds),
        "row 3: column at: no time": record([row, row, {"at": None}], kinds),
        "column at: 'noon' is not a time": record([{"at": "noon"}], {**kinds, "at": pa.string()}),
    }
    taken, _, reasons = small(*[each for record in odd.values() for each in (good, record)])
    assert taken == ["a1"] * len(odd)
    found = [reasons[2 * number + 1] for number in range(len(odd))]
    assert [reason[: len(said)] for reason, said in zip(found, odd, strict=True)] == list(odd) and len(reasons) == len(odd)


def test_bytes_that_are_damaged_are_refused_or_rows_and_end_nothing() -> None:
    draw, good = random.Random(1), users(1, 2, 3)
    for _ in range(2_000):
        damaged = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        _, places, reasons = small(bytes(damaged))
        assert bool(places) != bool(reasons)


def test_a_column_that_a_record_lacks_is_null_where_the_stream_says_so() -> None:
    without = record([{"at": 1_000}], {"at": pa.int64()})
    assert small(without, users(2), lacking="nulls") == ([None, "a2"], [0, 1], {})


def test_values_inside_of_others_are_columns_by_their_path() -> None:
    schema = {"at": "timestamp", "user": {"type": "string", "path": "who.names[1]"}}
    kinds = {"at": pa.int64(), "who": pa.struct([("names", pa.list_(pa.string()))])}
    rows: list[dict[str, Any]] = [{"at": 1_000, "who": {"names": ["x", "y"]}}, {"at": 2_000, "who": None}]
    assert small(record(rows, kinds), users(1), schema=schema)[::2] == (
        ["y", None], {1: "column user: the record has no field who"},
    )  # fmt: skip


def test_a_strict_stream_takes_no_numbers_for_texts() -> None:
    schema = {"at": "timestamp", "n": "int"}
    values: list[tuple[Any, pa.DataType]] = [
        ("1", pa.string()), (2, pa.int8()), (True, pa.bool_()), (datetime(2013, 1, 1), pa.timestamp("s")),
    ]  # fmt: skip
    written = [record([{"at": 1_000, "n": value}], {"at": pa.int64(), "n": kind}) for value, kind in values]
    rows = parsed(stream(schema=schema), *written)
    assert rows.values[1].to_pylist() == [1, 2]
    assert rows.reasons == {2: "column n: bool cannot be an int", 3: "column n: timestamp[s] cannot be an int"}
    rows = parsed(stream(schema=schema, types="refuse"), *written)
    assert rows.values[1].to_pylist() == [2]
    assert rows.reasons == {
        0: "column n: string is a text, and a number is wanted", 2: "column n: bool is a bool, and a number is wanted",
        3: "column n: timestamp[s] cannot be an int",
    }  # fmt: skip


def test_a_stream_of_arrow_has_no_registry() -> None:
    with pytest.raises(UserError, match="these are plain Arrow"):
        load_query({
            "name": "q", "streams": {"s": {"topic": "t", "time": "at", "schema": SMALL, "format": "arrow", "registry": "main"}},
            "operators": {"all": {"union": ["s"]}}, "output": "all", "delay_threshold": "1s",
        })  # fmt: skip


# Through the source


def intake_of(spec: Stream) -> Intake:
    edge = Edge("s", "s", spec.attributes, 1, 1, (), True)
    return Intake(SourceStream("s", spec, "t", (edge,), 100_000), Origin("", 1), SourcePlace({"s/0": 0}), form=form_of(spec))


def taken_by(intake: Intake, *records: bytes | None, first: int = 0) -> Batch:
    count = len(records)
    offsets, stamps_ms = np.arange(first, first + count), np.zeros(count, np.int64)
    keys: list[bytes | None] = [f"key{number}".encode() for number in range(first, first + count)]
    return intake.take({0: PartitionRecords(offsets, list(records), keys=keys, stamps_ms=stamps_ms)}, NOW_US)


def rows_of(batch: Batch) -> list[pa.RecordBatch]:
    return [frame.batch for _, frame in batch.frames if isinstance(frame, Data)]


def seconds_of(batch: Batch) -> list[float]:
    return [time / 1e6 for rows in rows_of(batch) for time in rows.column(0).to_pylist()]


def letters_of(batch: Batch) -> list[tuple[int | None, str]]:
    return [(letter.offset, letter.reason) for letter in batch.letters]


def test_each_row_has_the_key_and_the_place_of_its_record() -> None:
    schema = {**SMALL, "shop": {"type": "string", "from": "key"}, "place": {"type": "int", "from": "offset"}}
    [rows] = rows_of(taken_by(intake_of(stream(schema=schema)), users(1, 2), users(3)))
    assert rows["shop"].to_pylist() == ["key0", "key0", "key1"] and rows["place"].to_pylist() == [0, 0, 1]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_record_with_a_row_that_is_late_is_refused_and_raises_nothing(at_once: bool) -> None:
    """However the records are divided into batches. No row of a record is late because of another one of it."""
    intake = intake_of(stream(schema=SMALL, disorder="5s"))
    records = [users(20, 10, 15), users(14, 400), users(16), users(15, 30), users(24)]
    batches = [taken_by(intake, *records)] if at_once else [taken_by(intake, each, first=n) for n, each in enumerate(records)]
    assert sorted(second for batch in batches for second in seconds_of(batch)) == [10, 15, 15, 16, 20, 30]
    letters = [letter for batch in batches for letter in letters_of(batch)]
    assert letters == [(1, "late by 6s, disorder allows 5s"), (4, "late by 6s, disorder allows 5s")]
    assert intake.place.partitions[0].floor == 25_000_000


def test_rows_that_are_late_are_clamped_one_by_one() -> None:
    intake = intake_of(stream(schema=SMALL, late="clamp"))
    batch = taken_by(intake, users(20), users(14, 30), users(25, 40))
    assert (seconds_of(batch), batch.clamped, batch.letters) == ([20, 20, 30, 30, 40], 2, [])


def test_a_record_with_a_row_that_is_too_far_ahead_is_refused() -> None:
    intake = intake_of(stream(schema=SMALL))
    day = 1_400_000_000 + 86_400
    batch = taken_by(intake, users(20, day), users(19, 21))
    assert seconds_of(batch) == [19, 21] and batch.ahead == 2
    [(offset, reason)] = letters_of(batch)
    assert offset == 0 and "ahead of the clock" in reason


ROWS: list[dict[str, Any]] = [
    {
        "at": datetime(2013, 1, 1, tzinfo=UTC) + timedelta(milliseconds=700 * number),
        "user": ("ü", 'a"b', None, "")[number % 4],
        "n": None if number % 7 == 0 else number - 500,
        "price": (Decimal("19.90"), Decimal("-0.01"), None)[number % 3],
        "ok": (True, False, None)[number % 3],
        "day": (date(2013, 1, 31), None)[number % 2],
        "v": (0.1, -0.0, 1e300, 5e-324, None)[number % 5],
    }
    for number in range(300)
]


@pytest.mark.parametrize("size", [1, 7, 300])
def test_the_same_rows_in_arrow_and_in_json_are_the_same_frames(size: int) -> None:
    records = [record(ROWS[first : first + size], TYPES) for first in range(0, len(ROWS), size)]
    in_arrow = rows_of(taken_by(intake_of(stream()), *records))
    texts = [json.dumps(row, default=str).encode() for row in ROWS]
    in_json = rows_of(taken_by(intake_of(stream(format="json")), *texts))
    assert in_arrow == in_json and in_arrow[0].num_rows == len(ROWS)
