"""The source's intake: records in, frames, boundaries and dead letters out; and what a crash leaves to be done again."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin, Start
from boreal.model.schema import Schema
from boreal.query.plan import Edge
from boreal.query.spec import Stream
from formats.dead_letter import DeadLetterRecord
from intake.intake import ANCHOR_EVERY, Batch, Intake, SourceStream, form_of, rows_not_held
from intake.place import PartitionPlace, SourcePlace, read_announcement
from intake.user_records import PartitionRecords
from logs.memory_log import MemoryLog
from logs.source_restart import source_restart
from sunion.tape import BEGINNING
from tests.thoroughness import some

TOPIC = "clicks"
SECOND = 1_000_000
NOW = 1_000 * SECOND
"""The source's clock."""
BUCKET_US = 100_000
SCHEMA = {"user": "string", "n": "int"}


@dataclass(frozen=True)
class Record:
    offset: int
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    key: bytes | None = None
    timestamp: int = 0


def row(offset: int, seconds: float, user: str = "u", n: int = 0, **headers: str) -> Record:
    value = json.dumps({"at": int(seconds * 1000), "user": user, "n": n}).encode()
    return Record(offset, value, [(name.replace("_", "-"), text.encode()) for name, text in headers.items()])


def heartbeat(offset: int, boundary: str) -> Record:
    return Record(offset, b"", [("boundary", boundary.encode())])


def stream(**fields: Any) -> Stream:
    return Stream.model_validate({"topic": TOPIC, "time": "at", "schema": SCHEMA, **fields})


def edge(name: str, partitions: int = 1, key: tuple[str, ...] = ()) -> Edge:
    return Edge(name, "s", Schema.of(dict(SCHEMA)), 1, partitions, key, True)


class ByRecord(Intake):
    """Takes records that are objects."""

    def take_again(  # type: ignore[override]
        self, records: Mapping[int, Sequence[Record]], now: int, waited_us: int = 0
    ) -> Batch:
        parts = {number: PartitionRecords.of(found, True) for number, found in records.items()}
        return super().take_again(parts, now, waited_us)

    take: Callable[..., Batch]  # which calls `take_again`


def intake(
    spec: Stream, edges: Sequence[Edge] = (edge("s"),), place: SourcePlace | None = None, incarnation: int = 1
) -> ByRecord:
    logs = [f"{e.name}/{p}" for e in edges for p in range(e.partitions)]
    taken = SourceStream("s", spec, TOPIC, tuple(edges), BUCKET_US)
    return ByRecord(taken, Origin("", incarnation), place or SourcePlace(dict.fromkeys(logs, 0)), form=form_of(spec))


def rows_of(frames: Sequence[tuple[LogId, Frame]]) -> list[tuple[float, str]]:
    """Of the frames: (seconds, user) of each row, in order."""
    return [
        (time / SECOND, user)
        for _, frame in frames
        if isinstance(frame, Data)
        for time, user in zip(*(frame.batch.column(place).to_pylist() for place in (0, 1)), strict=True)
    ]


def test_keys_headers_and_places_of_records_are_columns() -> None:
    schema = {
        "user": {"type": "string", "from": "key"},
        "n": {"type": "int", "from": "header.n"},
        "at": {"type": "timestamp", "from": "timestamp"},
        "partition": {"type": "int", "from": "partition"},
        "offset": {"type": "int", "from": "offset"},
        "price": "decimal(4, 2)",
    }
    spec = stream(schema=schema)
    source = intake(spec, (Edge("s", "s", spec.attributes, 1, 1, (), True),))
    price = b'{"price": 1.5, "user": "not me"}'
    records = [
        Record(7, price, [("n", b"5"), ("other", b"6")], b"a", 1_000),
        heartbeat(8, "1"),
        Record(9, price, [("n", None)], None, 2_000),
        Record(10, price, [("n", b"5.5")], b"b", 3_000),
        Record(11, price, [("n", b"1")], b"\xff", 3_000),
        Record(12, b"{", [("n", b"1")], b"c", 3_000),
        Record(13, price, [("n", b"1"), ("n", b"2")], b"d", 3_000),
    ]
    batch = source.take({3: records}, 10 * SECOND)
    [rows] = [frame.batch.to_pylist() for _, frame in batch.frames if isinstance(frame, Data)]
    assert [(row["time"] // SECOND, row["user"], row["n"], row["partition"], row["offset"]) for row in rows] == [
        (1, "a", 5, 3, 7), (2, None, None, 3, 9), (3, "d", 2, 3, 13),
    ]  # fmt: skip
    assert rows[0]["price"] == Decimal("1.50")
    letters = letters_of(batch)
    assert letters.keys() == {10, 11, 12} and letters[12].startswith("not JSON")
    assert letters[10] == "column n: '5.5' is not an int"
    assert letters[11] == "column user: b'\\xff' is not UTF-8"


@pytest.mark.parametrize("format", ["json", "csv"])
def test_records_without_a_value_are_rows_where_a_column_says_so(format: str) -> None:
    schema = {"user": {"type": "string", "from": "key"}, "gone": {"type": "bool", "from": "tombstone"}, "n": "int", "at": "int"}
    spec = stream(schema=schema, format=format)
    source = intake(spec, (Edge("s", "s", spec.attributes, 1, 1, (), True),))

    def value(n: int, at: int) -> bytes:
        return json.dumps({"n": n, "at": at}).encode() if format == "json" else b"%d,%d" % (n, at)

    records = [
        Record(0, value(1, 1_000), (), b"a", 500),
        Record(1, None, (), b"a", 2_000),
        heartbeat(2, "1"),
        Record(3, None, (), b"\xff", 2_000),
        Record(4, b"{", (), b"b", 2_000),
        Record(5, value(2, 3_000), (), b"b", 9_000),
        Record(6, None, (), None, 3_000),
    ]
    batches = [source.take({0: records}, 10 * SECOND), source.take({0: [Record(7, None, (), b"b", 4_000)]}, 10 * SECOND)]
    parts = [frame.batch for batch in batches for _, frame in batch.frames if isinstance(frame, Data)]
    found = [row for part in parts for row in part.to_pylist()]
    assert [(row["time"] // SECOND, row["user"], row["gone"], row["n"]) for row in found] == [
        (1, "a", False, 1), (2, "a", True, None), (3, "b", False, 2), (3, None, True, None), (4, "b", True, None),
    ]  # fmt: skip
    assert letters_of(batches[0]).keys() == {3, 4} and not batches[1].letters


def test_records_without_a_value_are_refused_otherwise() -> None:
    batch = intake(stream()).take({0: [Record(0, None, (), b"a", 1_000)]}, NOW)
    assert letters_of(batch) == {0: "no value"}


def test_records_in_pieces_keep_their_keys_and_time_stamps() -> None:
    records = [Record(place, b"{}", (), str(place).encode(), place) for place in range(4)]
    found = PartitionRecords.joined([PartitionRecords.of(records[:1], True), PartitionRecords.of(records[1:], True)]).before(3)
    assert found.keys == [b"0", b"1", b"2"] and found.stamps_ms is not None and found.stamps_ms.tolist() == [0, 1, 2]
    assert PartitionRecords.of(records).keys is None


def letters_of(batch: Batch) -> dict[int, str]:
    return {letter.offset: letter.reason for letter in batch.letters}


# Rows


def test_rows_become_one_frame_a_log_ordered_by_time_with_contiguous_ids() -> None:
    source = intake(stream(disorder="2s"))
    first = source.take({0: [row(0, 3, "a"), row(1, 2, "b"), row(2, 3, "c")]}, now=NOW + 70)
    second = source.take({0: [row(3, 4, "d")]}, now=NOW + 80)
    data = [frame for _, frame in [*first.frames, *second.frames] if isinstance(frame, Data)]
    assert rows_of(first.frames) == [(2, "b"), (3, "a"), (3, "c")]
    assert [(frame.first_id, frame.batch.num_rows) for frame in data] == [(0, 3), (3, 1)]
    assert [frame.ingest for frame in data] == [((INFINITY, NOW + 70),), ((INFINITY, NOW + 80),)]
    assert data[0].t_max == 3 * SECOND + BUCKET_US
    assert data[0].batch.schema == Schema.of(dict(SCHEMA)).arrow


def test_x_counts_the_time_that_records_had_waited_for_others() -> None:
    batch = intake(stream()).take({0: [row(0, 3, "a")]}, now=NOW + 70, waited_us=50)
    assert [frame.ingest for _, frame in batch.frames if isinstance(frame, Data)] == [((INFINITY, NOW + 20),)]


def test_each_edge_has_all_rows_and_each_of_its_partitions_those_of_its_keys() -> None:
    source = intake(stream(), [edge("plain"), edge("keyed", 3, ("user",))])
    batch = source.take({0: [row(i, i, f"u{i % 5}") for i in range(30)]}, now=NOW)
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    where: dict[str, set[int]] = defaultdict(set)
    for log, frame in batch.frames:
        found[log.stream] += (rows := rows_of([(log, frame)]))
        for _, user in rows if log.stream == "keyed" else ():
            where[user].add(log.partition)
    assert sorted(found["plain"]) == sorted(found["keyed"]) == [(i, f"u{i % 5}") for i in range(30)]
    assert all(len(partitions) == 1 for partitions in where.values()) and len(set.union(*where.values())) > 1


def test_a_batch_comes_to_the_same_rows_in_whichever_order_its_partitions_are_given() -> None:
    records = {number: [row(0, 1, f"p{number}"), row(1, 2, f"p{number}")] for number in range(4)}
    one, other = (intake(stream()).take(dict(order), NOW) for order in (records.items(), reversed(records.items())))
    assert rows_of(one.frames) == rows_of(other.frames)


GARBAGE = [
    (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
    (b"[1]", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"at": 1000', "not JSON: Expecting ',' delimiter: line 1 column 12 (char 11)"),
    (b'{"at": 1000}{"at": 2000}', "not JSON: Extra data: line 1 column 13 (char 12)"),
    (b'{"at": 1000}, "more": {}', "not JSON: Extra data: line 1 column 13 (char 12)"),
    (b'1}{"at": 2000}', "not JSON: Extra data: line 1 column 2 (char 1)"),
    (b'{"at": 1000, "user": "\xff"}', "not UTF-8"),
    (b'{"user": "x"}', "column at: no time"),
    (b'{"at": "noon"}', "column at: 'noon' is not a time"),
    (b'{"at": 1000, "n": 5.5}', "column n: '5.5' is not an int"),
    (b'{"at": 1000, "user": {"name": "x"}}', "column user: {'name': 'x'} is not a plain value"),
    (None, "no value"),
]


@pytest.mark.parametrize(("value", "reason"), GARBAGE)
def test_a_malformed_record_becomes_a_dead_letter_and_costs_its_neighbours_nothing(value: bytes | None, reason: str) -> None:
    source = intake(stream())
    batch = source.take({4: [row(10, 1, "a"), Record(11, value), row(12, 2, "b")]}, now=NOW)
    text = (value or b"").decode("utf-8", "backslashreplace")
    assert batch.letters == [DeadLetterRecord.of("s", TOPIC, 4, 11, reason, value)] and batch.letters[0].record == text
    assert rows_of(batch.frames) == [(1, "a"), (2, "b")]
    assert json.loads(batch.letters[0].to_json())["reason"] == reason


def test_broken_records_cannot_make_up_for_each_other() -> None:
    """One record short and one too long leave the number of objects as it was."""
    records = [row(0, 1, "a"), Record(1, b'{"at":'), Record(2, b'{"at": 2000}}'), Record(3, b'{"at": 3000}{"at": 4000}')]
    batch = intake(stream()).take({0: [*records, row(4, 5, "e")]}, now=NOW)
    assert rows_of(batch.frames) == [(1, "a"), (5, "e")]
    assert sorted(letters_of(batch)) == [1, 2, 3]


def test_a_column_traceparent_is_the_header_where_the_value_has_none() -> None:
    """Also where a record of the batch is broken, so that rows are read one by one; a header that is no text is none."""
    traced = {**SCHEMA, "traceparent": "string"}
    for broken in ([], [Record(9, b"{")]):
        source = intake(stream(schema=traced), [replace(edge("s"), schema=Schema.of(dict(traced)))])
        own = json.dumps({"at": 3_000, "traceparent": "own"}).encode()
        batch = source.take({0: [
            row(0, 1.0, traceparent="00-aa"), row(1, 2.0), Record(2, own, [("traceparent", b"00-bb")]),
            Record(3, b'{"at": 3500}', [("traceparent", None)]), Record(4, b'{"at": 4000}', [("traceparent", b"\xff")]),
            *broken,
        ]}, NOW)  # fmt: skip
        [found] = [frame.batch for _, frame in batch.frames if isinstance(frame, Data)]
        assert found.column("traceparent").to_pylist() == ["00-aa", None, "own", None, None]
        assert len(batch.letters) == len(broken)


def test_values_are_read_alike_on_both_paths() -> None:
    texts = [b'{"at": 1000, "user": "NA", "n": 5.0}', b'{"at": "1970-01-01T00:00:01Z", "n": "7"}', b' {"at": 1000} ']
    batch = intake(stream()).take({0: [Record(i, text) for i, text in enumerate(texts)]}, now=NOW)
    (frame,) = [frame for _, frame in batch.frames if isinstance(frame, Data)]
    assert not batch.letters
    assert frame.batch.to_pydict() == {"time": [SECOND] * 3, "user": [None] * 3, "n": [5, 7, None]}


# Boundaries and lateness


def promised(source: Intake) -> int:
    boundaries = [frame for _, frame in source.heartbeat(now=NOW)]
    assert all(isinstance(frame, Boundary) and not frame.tentative for frame in boundaries)
    (time,) = {frame.time for frame in boundaries if isinstance(frame, Boundary)}
    return time


def test_a_stream_of_which_nothing_is_known_has_heartbeats_all_the_same() -> None:
    assert promised(intake(stream())) == BEGINNING


def test_data_policy_promises_the_newest_time_less_disorder_of_the_slowest_partition() -> None:
    source = intake(stream(disorder="2s"))
    source.take({0: [row(0, 10)], 1: [row(0, 7)]}, now=NOW)
    assert promised(source) == 5 * SECOND
    source.take({1: [row(1, 20)]}, now=NOW)
    assert promised(source) == 8 * SECOND


def test_a_partition_that_is_known_to_hold_records_holds_back_the_stream_until_they_are_read() -> None:
    source = intake(stream())
    source.expect(1, 100)
    source.take({0: [row(0, 10)]}, now=NOW)
    assert promised(source) == BEGINNING
    batch = source.take({1: [row(100, 3)]}, now=NOW)
    assert not batch.letters and promised(source) == 3 * SECOND


def test_a_partition_without_any_record_holds_back_nothing_and_its_first_ones_may_be_late() -> None:
    source = intake(stream())
    source.take({0: [row(0, 10)]}, now=NOW)
    assert promised(source) == 10 * SECOND
    batch = source.take({1: [row(0, 9), row(1, 11)]}, now=NOW)
    assert letters_of(batch) == {0: "late by 1s, disorder allows 0s"} and rows_of(batch.frames) == [(11, "u")]


@pytest.mark.parametrize("cut", range(1, 5))
def test_lateness_goes_by_the_order_in_the_partition_however_it_is_cut_into_batches(cut: int) -> None:
    records = [row(0, 10), row(1, 8), row(2, 7.9), row(3, 12), row(4, 10)]
    source = intake(stream(disorder="2s"))
    letters = {**letters_of(source.take({0: records[:cut]}, NOW)), **letters_of(source.take({0: records[cut:]}, NOW))}
    assert letters == {2: "late by 2s100ms, disorder allows 2s"}


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_late_row_is_clamped_to_the_floor_that_it_missed_however_it_is_cut_into_batches(cut: int) -> None:
    records = [row(0, 10), row(1, 8, "in time"), row(2, 7, "late"), row(3, 12), row(4, 1, "later")]
    source = intake(stream(disorder="2s", late="clamp"))
    batches = [source.take({0: records[:cut]}, NOW), source.take({0: records[cut:]}, NOW)]
    frames = [frame for batch in batches for frame in batch.frames]
    assert not any(batch.letters for batch in batches) and sum(batch.clamped for batch in batches) == 2
    assert sorted(rows_of(frames)) == [(8, "in time"), (8, "late"), (10, "later"), (10, "u"), (12, "u")]
    for batch in batches:
        assert rows_of(batch.frames) == sorted(rows_of(batch.frames), key=lambda found: found[0])
    assert promised(source) == 10 * SECOND


def test_a_clamped_row_keeps_the_time_that_it_came_with_as_an_attribute() -> None:
    source = intake(stream(late="clamp", schema={"at": "timestamp", "user": "string"}))
    batch = source.take({0: [row(0, 10), row(1, 4)]}, NOW)
    [data] = [frame.batch for _, frame in batch.frames if isinstance(frame, Data)]
    assert data.column("time").to_pylist() == [10 * SECOND, 10 * SECOND]
    assert [at.timestamp() for at in data.column("at").to_pylist()] == [10, 4]


def test_nothing_is_clamped_to_the_end_and_what_cannot_be_read_is_no_late_row() -> None:
    source = intake(stream(late="clamp"))
    batch = source.take({0: [row(0, 10), Record(1, b"{"), heartbeat(2, "end"), row(3, 11)]}, NOW)
    assert sorted(letters_of(batch)) == [1, 3] and letters_of(batch)[3] == "late: the stream has ended"
    assert rows_of(batch.frames) == [(10, "u")] and batch.clamped == 0


def test_what_is_late_in_one_partition_is_not_in_another() -> None:
    source = intake(stream())
    batch = source.take({0: [row(0, 10)], 1: [row(0, 5)]}, now=NOW)
    assert not batch.letters and promised(source) == 5 * SECOND


def test_heartbeat_records_raise_their_partition_and_refuse_what_comes_too_late() -> None:
    source = intake(stream(boundary="producer"))
    batch = source.take({0: [row(0, 5), heartbeat(1, "1970-01-01T00:00:04Z"), row(2, 3.5), row(3, 4)]}, now=NOW)
    assert letters_of(batch) == {2: "late by 500ms: a boundary had passed it"}
    assert promised(source) == 4 * SECOND
    source.take({0: [heartbeat(4, "6000"), heartbeat(5, "1000")]}, now=NOW)
    assert promised(source) == 6 * SECOND


def test_heartbeats_work_under_the_data_policy_too_and_end_is_the_end() -> None:
    source = intake(stream())
    source.take({0: [row(0, 5)], 1: [row(0, 4)]}, now=NOW)
    source.take({0: [heartbeat(1, "end")], 1: [heartbeat(1, "1970-01-01T00:00:09Z")]}, now=NOW)
    assert promised(source) == 9 * SECOND
    batch = source.take({1: [heartbeat(2, "end"), row(3, 50)]}, now=NOW)
    assert promised(source) == INFINITY and letters_of(batch) == {3: "late: the stream has ended"}


def test_a_heartbeat_that_cannot_be_read_becomes_a_dead_letter() -> None:
    batch = intake(stream()).take({0: [heartbeat(0, "soon"), heartbeat(1, "")]}, now=NOW)
    assert letters_of(batch)[0] == "header boundary: 'soon' is neither a time nor 'end'"
    assert sorted(letters_of(batch)) == [0, 1]


HUGE = "\x01" * 1_000_000


@pytest.mark.parametrize(
    "record",
    [
        Record(0, json.dumps({"at": 0, "user": "u", "n": HUGE}).encode()),
        Record(0, json.dumps({"at": 0, "user": [HUGE], "n": 1}).encode()),
        heartbeat(0, HUGE),
    ],
)
def test_no_record_is_so_large_that_kafka_would_refuse_its_dead_letter(record: Record) -> None:
    [letter] = intake(stream()).take({0: [record]}, NOW).letters
    assert len(letter.to_json()) < 1_000_000
    assert letter.reason.startswith(("column n: '", "column user: ['", "header boundary: '")) and "... is n" in letter.reason


def test_headers_that_others_made_up_cost_their_own_record_at_most() -> None:
    source = intake(stream())
    others: list[tuple[str, bytes | None]] = [("boreal-posted", b"9" * 5_000), ("boreal-posted", None), ("boundary", None)]
    records = [Record(n, row(n, 1.0, n=n).value, [header]) for n, header in enumerate(others)]
    batch = source.take({0: records}, NOW)
    assert batch.rows == 2
    assert letters_of(batch) == {2: "header boundary: '' is neither a time nor 'end'"}


def read_to_the_end(source: Intake, partitions: Sequence[int], asked_at: int, now: int | None = None) -> None:
    """Evidence that all of the partitions was read that was written before `asked_at`."""
    question = source.ask(asked_at)
    for partition in partitions:
        source.answer(partition, question, now or asked_at)


def test_clock_policy_promises_the_clock_less_disorder_by_evidence() -> None:
    source = intake(stream(boundary="clock", disorder="1s"))
    source.progress.watch([0], NOW)
    source.take({0: [row(0, 5)]}, now=NOW)
    assert promised(source) == BEGINNING
    read_to_the_end(source, [0], NOW)
    assert promised(source) == NOW - SECOND
    batch = source.take({0: [row(1, 998.5), row(2, 1_030), row(3, 999)]}, now=NOW)
    assert letters_of(batch) == {1: "late by 1s500ms, disorder allows 1s"}
    assert rows_of(batch.frames) == [(999, "u"), (1_030, "u")] and promised(source) == NOW - SECOND


def test_a_table_that_is_there_already_keeps_its_times_and_follows_the_clock_once_it_was_read() -> None:
    """What a lookup's table needs: rows in any order, a boundary without rows, and no change refused for its age."""
    source = intake(stream(boundary="clock", late="clamp"))
    source.progress.watch([0], NOW)
    batches = [source.take({0: [row(0, 500), row(1, 5)]}, now=NOW), source.take({0: [row(2, 300)]}, now=NOW)]
    read_to_the_end(source, [0], NOW)
    assert [rows_of(batch.frames) for batch in batches] == [[(5, "u"), (500, "u")], [(300, "u")]]
    assert promised(source) == NOW
    assert rows_of(source.take({0: [row(3, 400)]}, now=NOW).frames) == [(1_000, "u")]


def test_a_boundary_counts_as_ingested_when_it_was_first_so_high() -> None:
    source = intake(stream())
    source.take({0: [row(0, 5)]}, now=NOW + 100)
    source.take({0: [row(1, 5)]}, now=NOW + 200)
    [boundary] = [frame for _, frame in source.heartbeat(NOW + 300) if isinstance(frame, Boundary)]
    assert (boundary.ingest, boundary.sent) == (NOW + 100, NOW + 300)


def test_an_idle_log_has_an_anchor_at_first_and_now_and_then() -> None:
    source = intake(stream())
    frames = [frame for _ in range(2 * ANCHOR_EVERY) for _, frame in source.heartbeat(NOW)]
    anchored = [isinstance(frame, Boundary) and frame.anchor is not None for frame in frames]
    assert anchored == 2 * [True, *[False] * (ANCHOR_EVERY - 1)]


def test_logs_with_rows_and_without_an_anchor_are_not_read_from_the_beginning_again() -> None:
    log = MemoryLog(LogId("s", "", 0))
    batch = intake(stream()).take({0: [row(0, 1)]}, NOW)
    log.append(batch.frames[-1][1])
    with pytest.raises(CorruptError, match="hold rows but no anchor"):
        source_restart([log], TOPIC)


def test_what_a_dead_incarnation_promised_after_the_next_one_had_begun_binds_nobody() -> None:
    log = MemoryLog(LogId("s", "", 0))
    for incarnation, time in ((1, 5), (2, 7)):
        log.append(Start(Origin("", incarnation), 0, 0))
        log.append(Boundary(Origin("", incarnation), 0, time, False, 0, 0))
    log.append(Start(Origin("", 3), 0, 0))
    log.append(Boundary(Origin("", 2), 0, 99, False, 0, 0))
    assert source_restart([log], TOPIC).promise == 7


# Rows that are ahead


def test_a_row_far_ahead_of_the_clock_and_of_its_stream_is_a_dead_letter_and_raises_nothing() -> None:
    source = intake(stream())
    batch = source.take({0: [row(0, 999), row(1, 4_600), row(2, 999.5)]}, now=NOW)
    assert letters_of(batch) == {1: "1h ahead of the clock and its stream, ahead allows 1m"}
    assert rows_of(batch.frames) == [(999, "u"), (999.5, "u")] and batch.ahead == 1
    assert promised(source) == 999.5 * SECOND
    batch = source.take({0: [row(3, 1_000)]}, now=NOW)
    assert not batch.letters and batch.ahead == 0


@pytest.mark.parametrize("cut", range(1, 5))
def test_what_is_ahead_goes_by_the_order_in_the_partition_however_it_is_cut_into_batches(cut: int) -> None:
    records = [row(0, 1_050), row(1, 1_100), row(2, 1_150), row(3, 1_211), row(4, 1_210)]
    source = intake(stream(disorder="1h"))
    batches = [source.take({0: records[:cut]}, NOW), source.take({0: records[cut:]}, NOW)]
    letters = {**letters_of(batches[0]), **letters_of(batches[1])}
    assert letters == {3: "1m1s ahead of the clock and its stream, ahead allows 1m"}
    assert sum(batch.ahead for batch in batches) == 1


def test_in_a_replay_any_jump_is_believed() -> None:
    source = intake(stream())
    batch = source.take({0: [row(0, 10), row(1, 900), row(2, 901)]}, now=NOW)
    assert not batch.letters and promised(source) == 901 * SECOND


def test_a_row_that_is_ahead_costs_the_other_partitions_nothing() -> None:
    source = intake(stream())
    batch = source.take({0: [row(0, 999), row(1, 4_600)], 1: [row(0, 999)]}, now=NOW)
    assert list(letters_of(batch)) == [1] and promised(source) == 999 * SECOND


def test_a_clock_that_is_fast_by_less_than_ahead_makes_no_other_rows_late() -> None:
    source = intake(stream())
    batch = source.take({0: [row(0, 999.9), row(1, 1_030), row(2, 999.95), row(3, 1_030)]}, now=NOW)
    assert not batch.letters and promised(source) == 999.95 * SECOND
    assert source.place.newest == 1_030 * SECOND
    batch = source.take({0: [row(4, 1_000.2)]}, now=NOW + SECOND)
    assert not batch.letters


def test_a_stream_goes_on_though_the_clock_of_its_source_is_far_behind() -> None:
    place = SourcePlace({"s/0": 7}, {0: PartitionPlace(7, 5_000 * SECOND)}, 5_000 * SECOND, 5_000 * SECOND)
    source = intake(stream(), place=place)
    batch = source.take({0: [row(7 + n, 5_000 + n * 30) for n in range(11)]}, now=NOW)
    assert not batch.letters and promised(source) == (5_300 - 60) * SECOND


def test_what_the_owner_of_the_data_has_promised_is_believed() -> None:
    source = intake(stream(boundary="producer"))
    records = [row(0, 7_200), heartbeat(1, "7200000"), row(2, 7_200), heartbeat(3, "end"), row(4, 7_200)]
    batch = source.take({0: records}, now=NOW)
    assert letters_of(batch) == {
        0: "1h43m20s ahead of the clock and its stream, ahead allows 1m",
        4: "late: the stream has ended",
    }
    assert rows_of(batch.frames) == [(7_200, "u")]
    source = intake(stream(boundary="producer"))
    source.take({0: [heartbeat(0, "7200000")]}, now=NOW)
    assert not source.take({0: [row(1, 7_200)]}, now=NOW).letters


@pytest.mark.parametrize("late", ["dead_letter", "clamp"])
def test_only_rows_that_are_in_time_are_signs_of_a_producer(late: str) -> None:
    source = intake(stream(late=late))
    source.take({0: [row(0, 900)]}, now=NOW)
    later = NOW + 60 * SECOND
    source.take({0: [row(1, 800), Record(2, b"{"), row(3, 9_000)]}, now=later)
    assert not source.progress.brings(later)
    source.take({0: [row(4, 900)]}, now=later)
    assert source.progress.brings(later)


def test_a_late_row_that_is_clamped_is_another_matter_than_one_that_is_ahead() -> None:
    source = intake(stream(late="clamp"))
    batch = source.take({0: [row(0, 999), row(1, 4_600), row(2, 1)]}, now=NOW)
    assert (batch.ahead, batch.clamped, batch.rows) == (1, 1, 2) and list(letters_of(batch)) == [1]


@pytest.mark.parametrize("hours_later", [0, 2])
def test_a_batch_that_is_done_again_is_judged_by_the_clock_of_its_announcement(hours_later: int) -> None:
    topic = {0: [row(0, 990), row(1, 4_600), row(2, 1_030), row(3, 999)]}
    logs = {log: MemoryLog(log) for log in LOGS}
    life = Life(stream(disorder="1s"), logs, topic)
    batch = life.intake.take(topic, NOW)
    life.log(batch.frames, dict.fromkeys(LOGS, 1))  # announced, and then it crashed
    later = NOW + hours_later * 3_600 * SECOND
    life = Life(stream(disorder="1s"), logs, topic, later)
    assert {log.id: all_rows(log) for log in logs.values()} == {log: rows(batch, log) for log in LOGS}
    assert life.intake.place.partitions[0].floor == NOW - SECOND - 100_000
    assert life.intake.place.newest == 1_030 * SECOND


def rows(batch: Batch, log: LogId) -> list[dict[str, Any]]:
    return [row for at, frame in batch.frames if at == log and isinstance(frame, Data) for row in frame.batch.to_pylist()]


def test_a_batch_that_a_source_announced_which_believed_everything_is_done_again_like_that() -> None:
    anchor = SourcePlace({"s/0": 3}, {0: PartitionPlace(3, 10 * SECOND)}, 10 * SECOND).announce(TOPIC, {0: 5})
    assert not [key for key, _ in anchor.inputs if "//" in key]
    place, _ = read_announcement(anchor, TOPIC)
    batch = intake(stream(), place=place).take_again({0: [row(3, 7_200), row(4, 7_100)]}, NOW)
    assert rows_of(batch.frames) == [(7_200, "u")]
    assert letters_of(batch) == {4: "late by 1m40s, disorder allows 0s"}


# Records that were posted


def test_a_posted_record_is_taken_once_however_often_the_topic_has_it() -> None:
    source = intake(stream())
    posted = [row(i, 1 + i / 10, f"u{n}", boreal_posted=str(n)) for i, n in enumerate([5, 6, 5, 6, 7])]
    batch = source.take({0: posted}, now=NOW)
    assert [user for _, user in rows_of(batch.frames)] == ["u5", "u6", "u7"]
    assert not rows_of(source.take({0: [row(5, 9, boreal_posted="7")]}, now=NOW).frames)
    assert rows_of(source.take({0: [row(6, 9, "x", boreal_posted="what?"), row(7, 9, "y")]}, now=NOW).frames)[1:] == [(9, "y")]


# Crashes


EDGES = (edge("plain"), edge("keyed", 2, ("user",)))
LOGS = [LogId(e.name, "", p) for e in EDGES for p in range(e.partitions)]


class Life:
    """A life of a source over logs in memory, as services.source.source leads it."""

    def __init__(
        self, spec: Stream, logs: dict[LogId, MemoryLog], topic: dict[int, list[Record]], now: int = NOW
    ) -> None:
        self.logs = logs
        self.topic = topic
        former = source_restart(list(logs.values()), TOPIC)
        self.intake = intake(spec, EDGES, former.place, former.incarnation + 1)
        for log in logs.values():
            log.append(Start(Origin("", former.incarnation + 1), 0, log.next_stable_id))
        if former.until:
            at = former.place.partitions
            again = {p: self.topic[p][at[p].next_offset : end] for p, end in former.until.items()}
            for log_id, frame in rows_not_held(self.intake.take_again(again, now).frames, former.written):
                logs[log_id].append(frame)
        self.intake.place.promise = max(self.intake.place.promise, former.promise)
        for partition in topic:
            self.intake.expect(partition, 0)

    def log(self, frames: Sequence[tuple[LogId, Frame]], upto: dict[LogId, int] | None = None) -> None:
        """Append the frames, or of each log the first so many."""
        left = upto or dict.fromkeys(self.logs, len(frames))
        left = dict(left)
        for log_id, frame in frames:
            if left[log_id] > 0:
                left[log_id] -= 1
                self.logs[log_id].append(frame)

    def unread(self, partition: int) -> list[Record]:
        known = self.intake.place.partitions[partition].next_offset
        return self.topic[partition][known:]


def all_rows(log: MemoryLog) -> list[dict[str, Any]]:
    """The rows that a reader of the log takes; its ids must be contiguous, and no boundary may be passed."""
    found: list[dict[str, Any]] = []
    promise, incarnation = BEGINNING, 0
    for _, frame in log.read(log.start, 1 << 30):
        assert frame.origin.incarnation >= incarnation
        incarnation = frame.origin.incarnation
        if isinstance(frame, Data):
            assert frame.first_id == len(found)
            rows = frame.batch.to_pylist()
            assert all(entry["time"] >= promise for entry in rows)
            found += rows
        elif isinstance(frame, Boundary):
            assert frame.time >= promise
            promise = frame.time
    return found


@st.composite
def topics(draw: st.DrawFn) -> dict[int, list[Record]]:
    topic: dict[int, list[Record]] = {}
    for partition in range(draw(st.integers(1, 3))):
        records: list[Record] = []
        seconds = 0.0
        for offset in range(draw(st.integers(1, 12))):
            seconds += draw(st.sampled_from([0, 0.5, 1, 3]))
            back = draw(st.sampled_from([0, 0, 0, 1, 2.5]))
            kind = draw(st.sampled_from(["row"] * 8 + ["garbage", "heartbeat", "ahead"]))
            if kind == "row":
                records.append(row(offset, seconds - back, draw(st.sampled_from("abc")), partition * 1000 + offset))
            elif kind == "ahead":
                records.append(row(offset, 4_600))
            elif kind == "garbage":
                records.append(Record(offset, b"{"))
            else:
                records.append(heartbeat(offset, str(int((seconds - back) * 1000))))
        topic[partition] = records
    return topic


@settings(max_examples=some(500), deadline=None, derandomize=True)
@given(
    topic=topics(),
    policy=st.sampled_from(["data", "producer"]),
    late=st.sampled_from(["dead_letter", "clamp"]),
    data=st.data(),
)
@patch("intake.intake.ANCHOR_EVERY", 2)
def test_whatever_crashes_each_log_gets_each_row_once(
    topic: dict[int, list[Record]], policy: str, late: str, data: st.DataObject
) -> None:
    spec = stream(disorder="1s", boundary=policy, late=late)
    whole = Life(spec, {log: MemoryLog(log) for log in LOGS}, topic)
    batch = whole.intake.take(topic, NOW)
    whole.log(batch.frames)
    wanted = {log.id: sorted(all_rows(log), key=repr) for log in whole.logs.values()}
    wanted_letters = {(letter.partition, letter.offset): letter.reason for letter in batch.letters}

    life = Life(spec, {log: MemoryLog(log) for log in LOGS}, topic)
    letters: dict[tuple[int, int], str] = {}
    crashes = 0
    while any(life.unread(partition) for partition in topic):
        takes = {p: life.unread(p)[: data.draw(st.integers(0, 4))] for p in data.draw(st.permutations(sorted(topic)))}
        for _ in range(data.draw(st.integers(0, 3))):
            life.log(life.intake.heartbeat(NOW))
        if not any(takes.values()):
            takes = {p: life.unread(p)[:1] for p in topic}
        batch = life.intake.take(takes, NOW)
        for letter in batch.letters:
            assert letters.setdefault((letter.partition, letter.offset), letter.reason) == letter.reason
        if crashes < 6 and data.draw(st.booleans()):
            crashes += 1
            life.log(batch.frames, {log: data.draw(st.integers(0, 2)) for log in LOGS})
            life = Life(spec, life.logs, topic)
        else:
            life.log(batch.frames)
    life = Life(spec, life.logs, topic)
    assert {log.id: sorted(all_rows(log), key=repr) for log in life.logs.values()} == wanted
    assert letters == wanted_letters


def test_a_life_that_ended_just_after_its_start_is_followed_by_one_that_keeps_its_promises() -> None:
    logs = {log: MemoryLog(log) for log in LOGS}
    topic = {0: [row(0, 10), row(1, 9)]}
    life = Life(stream(), logs, topic)
    life.log(life.intake.take({0: topic[0][:1]}, NOW).frames)
    life.log(life.intake.heartbeat(NOW))
    for number in (2, 3):
        for log in logs.values():
            log.append(Start(Origin("", number), 0, log.next_stable_id))
    again = Life(stream(), logs, topic)
    assert again.intake.place.promise == 10 * SECOND
    assert letters_of(again.intake.take({0: topic[0][1:]}, NOW)) == {1: "late by 1s, disorder allows 0s"}


def test_the_place_survives_in_its_anchor() -> None:
    partitions = {0: PartitionPlace(5), 3: PartitionPlace(8, -2, 4), 12: PartitionPlace(1, 2)}
    place = SourcePlace({"s/0": 7, "s/1": 9}, partitions, 44, 46, 45)
    found, until = read_announcement(place.announce(TOPIC, {3: 11}), TOPIC)
    assert (found, until) == (place, {3: 11})
    other, _ = read_announcement(place.announce("another", {3: 11}), TOPIC)
    assert other == SourcePlace(place.next_ids, promise=44)


def test_ids_of_schemas_that_were_unknown_are_part_of_the_announcement() -> None:
    place = SourcePlace({"s/0": 3}, {0: PartitionPlace(7)}, unknown=frozenset({9, 12}))
    read, _ = read_announcement(place.announce(TOPIC, {0: 9}), TOPIC)
    assert read.unknown == {9, 12}
    assert not read_announcement(replace(place, unknown=frozenset()).announce(TOPIC, {}), TOPIC)[0].unknown


def test_whether_lacking_columns_are_null_is_part_of_the_announcement() -> None:
    for lacking in ("nulls", "dead_letter"):
        source = intake(stream(lacking=lacking))
        source.take({0: [row(0, 1)]}, now=NOW)
        rules = read_announcement(source.place.announce(TOPIC, {}), TOPIC)[0].rules
        assert rules is not None and rules.fills == (lacking == "nulls")
