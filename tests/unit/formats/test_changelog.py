"""What a client saw: the records, their replay, the delay of new rows, and refusal of what the protocol forbids."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model.frames import INFINITY, Boundary, Data, Frame, Ingest, Origin, RecDone, Start, State, Undo, ingest_at
from boreal.model.schema import Schema
from formats.changelog import Changelog, ChangelogPlace, ClientLog, ControlRecord, RowRecords
from sunion.port import EARLY

BUCKET = 100
X = 1_000
ORIGIN = Origin("r0", 1)
PLAIN = Schema.of({"name": "string", "n": "int", "x": "double", "b": "bool", "t": "timestamp"})
WINDOWED = Schema.of({"name": "string", "n": "int"}, windowed=True)


def simple(times: list[int]) -> pa.RecordBatch:
    """Rows with nothing of interest but their times."""
    rows = [{"time": time, "name": f"k{time}", "n": time} for time in times]
    return pa.RecordBatch.from_pylist(rows, schema=PLAIN.arrow)


def data(
    first_id: int, times: list[int], tentative: bool = False, epoch: int = 0, ingest: Ingest = ((1, 0),)
) -> Data:
    t_max = (times[-1] // BUCKET + 1) * BUCKET
    missing, cause = (("jfk",), "cut-1") if tentative else ((), "")
    return Data(ORIGIN, epoch, first_id, simple(times), tentative, ingest, t_max, missing, cause)


class Client:
    """A ClientLog with its two files."""

    def __init__(self, schema: Schema = PLAIN, key: tuple[str, ...] = (), bucket_us: int = BUCKET) -> None:
        self.changes, self.stable = io.StringIO(), io.StringIO()
        self.log = ClientLog("q", schema, key, bucket_us, X, self.changes, self.stable)

    def take(self, *frames: Frame, at: int = 0) -> Client:
        for frame in frames:
            self.log.take(frame, at)
        return self

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.changes.getvalue().splitlines()]

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stable.getvalue().splitlines()]


def replay(records: Iterable[dict]) -> list[dict]:
    """The contract's rules, by hand: what is left of the changelog, which must be sound."""
    held: list[dict] = []
    stable_seq, epoch = 0, 0
    for seq, record in enumerate(records, start=1):
        kind = record["type"]
        stable_seq = seq if kind == "stable" else stable_seq
        assert (record["v"], record["seq"], record["stable_seq"]) == (1, seq, stable_seq)
        assert record["epoch"] > epoch if kind == "undo" and seq > 1 else record["epoch"] >= epoch
        epoch = record["epoch"]
        if kind == "stable":
            assert all(row["type"] == "stable" for row in held)
        if kind in ("stable", "tentative"):
            held.append(record)
        elif kind == "undo":
            cut = [row for row in held if row["seq"] > record["after_seq"]]
            assert cut and all(row["type"] == "tentative" for row in cut)
            held = held[: len(held) - len(cut)]
    return held


def test_a_stable_row_is_written_in_full() -> None:
    client = Client(key=("name",), bucket_us=3_600_000_000)
    moment = datetime(2013, 1, 1, 5, 10, tzinfo=UTC)
    time = round(moment.timestamp()) * 1_000_000
    row = {"time": time, "name": 'a"b\né', "n": 2, "x": 5.0, "b": True, "t": moment + timedelta(milliseconds=250)}
    batch = pa.RecordBatch.from_pylist([row], schema=PLAIN.arrow)
    client.take(Data(ORIGIN, 3, 0, batch, False, ((time + 1, 1_234_567),), 0), at=2_000_000)
    expected = {
        "time": "2013-01-01T05:10:00Z", "name": 'a"b\né', "n": 2, "x": 5.0, "b": True,
        "t": "2013-01-01T05:10:00.250000Z",
    }  # fmt: skip
    assert client.lines == [expected]
    assert client.records == [
        {
            "v": 1, "type": "stable", "query": "q", "partition": 0, "seq": 1, "stable_seq": 1, "epoch": 3,
            "replica": "r0", "key": 'a"b\né', "event_time": "2013-01-01T05:10:00.000000Z", "data": expected,
            "t_max": "2013-01-01T06:00:00.000000Z", "ingest_ms": 1234.567, "emitted_ms": 2000.0, "missing_inputs": [],
            "cause": None,
        }
    ]  # fmt: skip
    assert '"x":5.0' in client.stable.getvalue()


def test_windows_have_edges_and_no_time() -> None:
    client = Client(WINDOWED, key=("name", "n"))
    row = {"time": 599_999_999, "window_start": 0, "window_end": 600_000_000, "name": None, "n": 1}
    batch = pa.RecordBatch.from_pylist([row], schema=WINDOWED.arrow)
    client.take(Data(ORIGIN, 0, 0, batch, True, ((1, 0),), 0, ("ewr", "jfk"), "c7"))
    (record,) = client.records
    assert list(record["data"].items()) == [
        ("window_start", "1970-01-01T00:00:00Z"),
        ("window_end", "1970-01-01T00:10:00Z"),
        ("name", None),
        ("n", 1),
    ]
    assert record["key"] == {"name": None, "n": 1}
    assert (record["type"], record["missing_inputs"], record["cause"]) == ("tentative", ["ewr", "jfk"], "c7")
    assert client.lines == []


def test_what_json_cannot_say_is_null() -> None:
    values = [math.nan, math.inf, -math.inf, None, 1e300, 1e-7, -0.0, 0.1, 123456789.125, 1e22]
    batch = pa.RecordBatch.from_pylist([{"time": 0, "x": value} for value in values], schema=PLAIN.arrow)
    client = Client().take(Data(ORIGIN, 0, 0, batch, False, ((1, 0),), 0))
    assert [row["x"] for row in client.lines] == [None] * 4 + values[4:]
    assert all(isinstance(row["x"], float) for row in client.lines[4:])
    assert client.lines[0] == {"time": "1970-01-01T00:00:00Z", "name": None, "n": None, "x": None, "b": None, "t": None}


def test_a_correction_replaces_what_was_tentative() -> None:
    client = Client().take(
        data(0, [10, 20]),
        data(2, [110, 120, 130], tentative=True),
        Undo(ORIGIN, 1, 1, "cut-1"),
        data(2, [110, 125], epoch=1),
        RecDone(ORIGIN, 1, "cut-1"),
    )
    kinds = [record["type"] for record in client.records]
    assert kinds == ["stable"] * 2 + ["tentative"] * 3 + ["undo"] + ["stable"] * 2 + ["rec_done"]
    assert (client.records[5]["after_seq"], client.records[5]["epoch"], client.records[5]["cause"]) == (2, 1, "cut-1")
    assert [row["data"] for row in replay(client.records)] == client.lines
    assert client.log.counts() == {"n_stable": 4, "n_tentative": 3, "n_undone": 3}


def test_an_undo_of_nothing_is_not_written_nor_is_its_end() -> None:
    client = Client().take(data(0, [10]), Undo(ORIGIN, 1, 0), RecDone(ORIGIN, 1), Start(ORIGIN, 2))
    assert [record["type"] for record in client.records] == ["stable"]


def test_a_new_life_undoes_the_tentative_suffix() -> None:
    client = Client().take(data(0, [10]), data(1, [110], tentative=True), Start(Origin("r0", 2), 1))
    assert [(record["type"], record["epoch"]) for record in client.records][-1] == ("undo", 1)
    assert client.log.counts() == {"n_stable": 1, "n_tentative": 1, "n_undone": 1}


def boundary(time: int, tentative: bool = False, epoch: int = 0) -> Boundary:
    return Boundary(ORIGIN, epoch, time, tentative, ingest=7, sent=8)


def test_a_boundary_is_written_where_it_advances() -> None:
    stable = [boundary(time) for time in (100, 100, 90, 200)]
    tentative = [boundary(time, True) for time in (100, 300, 300, 200)]
    client = Client().take(*stable[:2], *tentative[:2], *stable[2:], *tentative[2:])
    assert [(record["through"], record["tentative"]) for record in client.records] == [
        ("1970-01-01T00:00:00.000100Z", False),
        ("1970-01-01T00:00:00.000100Z", True),
        ("1970-01-01T00:00:00.000300Z", True),
        ("1970-01-01T00:00:00.000200Z", False),
    ]


def test_an_undo_revokes_tentative_boundaries() -> None:
    client = Client().take(
        data(0, [10], tentative=True), boundary(300, True), Undo(ORIGIN, 1, -1), boundary(200, True, epoch=1)
    )
    assert [record["type"] for record in client.records] == ["tentative", "boundary", "undo", "boundary"]


def test_a_tentative_boundary_names_what_it_lacks_and_why() -> None:
    lacking = Boundary(ORIGIN, 0, 300, True, 7, 8, State.UP_FAILURE, None, ("jfk", "lga"), "cut-1")
    [record] = Client().take(lacking).records
    assert (record["missing_inputs"], record["cause"]) == (["jfk", "lga"], "cut-1")


def test_a_restarted_egress_begins_with_an_undo_even_of_nothing() -> None:
    """R28: what its earlier life may have written last, it does not know."""
    place = ChangelogPlace(seq=7, stable_seq=4, epoch=3, next_stable_id=2)
    log = Changelog("q", PLAIN, (), BUCKET, place=place)
    given = log.take(Start(Origin("r0", 2), 4, 2), 0)
    assert isinstance(given, ControlRecord) and given.kind == "undo"
    record = json.loads(given.record)
    assert (record["seq"], record["after_seq"], record["epoch"]) == (8, 4, 4)
    assert log.take(Start(Origin("r0", 3), 5, 2), 0) is None


def test_stable_rows_that_are_gone_are_skipped_by_the_start_that_says_so() -> None:
    """R27: never in silence."""
    log = Changelog("q", PLAIN, (), BUCKET, place=ChangelogPlace(seq=3, stable_seq=3, next_stable_id=3))
    given = log.take(Start(Origin("r0", 2), 1, 5), 0)
    assert isinstance(given, ControlRecord) and "3 to 4 were lost" in given.record
    assert (log.place.next_stable_id, log.place.n_skipped) == (5, 2)
    assert isinstance(log.take(data(5, [10], epoch=1), 0), RowRecords)


def test_the_end_of_a_stream_is_the_last_time_there_is() -> None:
    client = Client().take(boundary(5), boundary(INFINITY))
    assert client.records[-1]["through"] == "9999-12-31T23:59:59.999999Z"
    assert client.records[0]["through"] < client.records[1]["through"]


@pytest.mark.parametrize(
    "frames, words",
    [
        ([data(0, [10], tentative=True), data(1, [20])], "without an undo between"),
        ([data(0, [10]), data(0, [20])], "begin at id 0"),
        ([data(0, [10]), data(2, [20])], "begin at id 2"),
        ([data(0, [10]), Undo(ORIGIN, 1, -1)], "after id -1"),
        ([data(0, [10], tentative=True), Undo(ORIGIN, 0, -1)], "undo of epoch 0"),
        ([data(0, [10], epoch=2), data(1, [20], epoch=1)], "epoch 1 follows epoch 2"),
    ],
)
def test_what_the_protocol_forbids_is_noticed(frames: list[Frame], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        Client().take(*frames)


def test_only_new_rows_count_for_the_delay() -> None:
    client = Client()
    client.take(data(0, [10, 110], ingest=((50, 100), (200, 400))), at=700)
    client.take(data(2, [210], tentative=True, ingest=((300, 500),)), at=2_000)
    assert client.log.delay_new() == {"delay_new_ms_max": 1.5, "delay_new_ms_p99": 1.482, "violations": 1}
    client.take(Undo(ORIGIN, 1, 1), data(2, [210, 220], epoch=1, ingest=((300, 500),)), at=90_000)
    client.take(data(4, [290, 310], epoch=1, ingest=((400, 89_900),)), at=90_000)
    assert client.log.delay_new()["violations"] == 1
    assert client.log.delay_new()["delay_new_ms_max"] == 1.5


@pytest.mark.parametrize(("has_disorder", "violations"), [(False, 1), (True, 0)])
def test_an_early_answer_speaks_for_what_comes_after_it_only_if_rows_may_be_out_of_order(
    has_disorder: bool, violations: int
) -> None:
    """R14. X is 1 ms; each row's bucket was given early before the row was ingested."""
    log = ClientLog("q", PLAIN, (), BUCKET, X, has_disorder=has_disorder)
    log.take(replace(boundary(500, True), cause=EARLY), 100)
    for first_id, ingest in ((0, 200), (1, 50)):
        log.take(replace(data(first_id, [210], tentative=True, ingest=((300, ingest),)), cause=EARLY), 2_000)
    assert log.delay_new()["violations"] == violations


def test_no_rows_have_no_delay() -> None:
    log = Client().take(boundary(5)).log
    assert log.delay_new() == {"delay_new_ms_max": None, "delay_new_ms_p99": None, "violations": 0}


# Against a version that knows rows only.


class DumbClient:
    """The same changelog, row by row, with plain dicts."""

    def __init__(self) -> None:
        self.records: list[dict] = []
        self.given: list[tuple[float, float, bool]] = []
        self.delays: list[int] = []
        self.epoch = self.stable_seq = 0
        self.through = {False: -math.inf, True: -math.inf}
        self.correcting = False

    def add(self, kind: str, **fields: object) -> None:
        seq = len(self.records) + 1
        self.stable_seq = seq if kind == "stable" else self.stable_seq
        self.records.append({"type": kind, "seq": seq, "stable_seq": self.stable_seq, "epoch": self.epoch, **fields})

    def take(self, frame: Frame, emitted: int) -> None:
        before = list(self.given)
        if isinstance(frame, Data):
            self.epoch = frame.epoch
            for row in frame.batch.to_pylist():
                t_max = row["time"] // BUCKET * BUCKET + BUCKET
                ingest = ingest_at(frame.ingest, row["time"])
                self.add("tentative" if frame.tentative else "stable", n=row["n"], t_max=t_max, ingest_ms=ingest / 1000)
                if not any(t_max <= given and (speaks or at >= ingest) for given, at, speaks in before):
                    self.delays.append(emitted - ingest)
                self.given.append((t_max, emitted, not frame.tentative))
        elif isinstance(frame, Boundary) and frame.time > self.through[frame.tentative]:
            self.epoch, self.through[frame.tentative] = frame.epoch, frame.time
            self.add("boundary", through=frame.time)
            self.given.append((frame.time // BUCKET * BUCKET, emitted, not frame.tentative))
        elif isinstance(frame, (Undo, Start)) and any(r["type"] == "tentative" for r in replay_dumb(self.records)):
            self.epoch, self.through[True], self.correcting = frame.epoch, -math.inf, True
            self.add("undo", after_seq=self.stable_seq)
        elif isinstance(frame, RecDone) and self.correcting:
            self.epoch, self.correcting = frame.epoch, False
            self.add("rec_done")


def replay_dumb(records: list[dict]) -> list[dict]:
    held: list[dict] = []
    for record in records:
        if record["type"] == "undo":
            held = [row for row in held if row["seq"] <= record["after_seq"]]
        elif record["type"] in ("stable", "tentative"):
            held.append(record)
    return held


@st.composite
def lawful_frames(draw: st.DrawFn) -> list[Frame]:
    """Any sequence that an egress may write."""
    frames: list[Frame] = []
    stable, held, epoch = 0, 0, 0
    steps = st.sampled_from(["stable", "tentative", "undo", "start", "rec_done", "boundary", "tentative boundary"])
    for step in draw(st.lists(steps, max_size=20)):
        if step in ("undo", "start") or (step == "stable" and held):
            epoch += 1
            frames.append(Start(ORIGIN, epoch) if step == "start" else Undo(ORIGIN, epoch, stable - 1))
            held = 0
        if step in ("stable", "tentative"):
            times = sorted(draw(st.lists(st.integers(0, 600), min_size=1, max_size=5)))
            runs = draw(st.lists(st.integers(1, 600), min_size=1, max_size=3, unique=True))
            ingest = tuple((through, at) for at, through in enumerate(sorted(runs)))
            frames.append(data(stable + held, times, step == "tentative", epoch, ingest))
            stable, held = (stable + len(times), 0) if step == "stable" else (stable, held + len(times))
        elif step.endswith("boundary"):
            frames.append(boundary(draw(st.integers(0, 900)), step.startswith("t"), epoch))
        elif step == "rec_done":
            frames.append(RecDone(ORIGIN, epoch))
    return frames


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lawful_frames())
def test_the_records_are_those_of_a_row_by_row_client(frames: list[Frame]) -> None:
    client, dumb, counting = Client(), DumbClient(), ClientLog("q", PLAIN, (), BUCKET, X)
    for number, frame in enumerate(frames):
        client.log.take(frame, number * 300)
        counting.take(frame, number * 300)
        dumb.take(frame, number * 300)
    assert len(client.records) == len(dumb.records)
    for got, expected in zip(client.records, dumb.records, strict=True):
        flat = {**got, **got.get("data", {})}
        for field in ("through", "t_max"):
            if field in flat:
                flat[field] = round(datetime.fromisoformat(str(flat[field])).timestamp() * 1_000_000)
        assert {name: flat[name] for name in expected} == expected
    assert [row["data"] for row in replay(client.records) if row["type"] == "stable"] == client.lines
    undone = len([r for r in dumb.records if r["type"] == "tentative"]) - len(
        [r for r in replay_dumb(dumb.records) if r["type"] == "tentative"]
    )
    assert client.log.counts() == counting.counts()
    assert client.log.counts()["n_undone"] == undone
    delays = np.array(dumb.delays)
    assert client.log.delay_new() == counting.delay_new()
    assert client.log.delay_new()["violations"] == (delays > X).sum()
    if len(delays):
        assert client.log.delay_new()["delay_new_ms_p99"] == round(float(np.percentile(delays, 99)) / 1000, 3)


def test_a_heartbeat_before_the_first_boundary_is_not_written() -> None:
    """A stream that has promised nothing yet says so by a boundary at the beginning of time: a sign of life, no record."""
    client = Client().take(Boundary(ORIGIN, 0, -(1 << 62), False, 0, sent=0), data(0, [10]))
    assert [record["type"] for record in client.records] == ["stable"]
