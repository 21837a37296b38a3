"""What an `EgressSwitch` gives of a version: all before the time of the takeover, nothing after it; all if there is none."""

from __future__ import annotations

import pyarrow as pa

from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin
from logs.egress_switch import MISSED, PROMISED, ClientFrame, EgressSwitch, NextVersion
from tests.harness import plan_of, query_of

LOG = LogId("q", "r0", 0)
ME = Origin("r0", 1)
PLAN = plan_of(query_of(streams=("a",)))


def rows(first_id: int, *times: int) -> Data:
    batch = pa.RecordBatch.from_pydict({"time": pa.array(times, pa.int64())})
    return Data(ME, 0, first_id, batch, False, ((INFINITY, 7),), times[-1] + 1)


def boundary(time: int) -> Boundary:
    return Boundary(ME, 0, time, False, 7, 7)


def following(at: int, agreed: bool) -> NextVersion:
    return NextVersion(2, at, agreed, PLAN, {"a/0": 3})


def given(switch: EgressSwitch, *frames: Frame) -> list[int]:
    """The times of the rows that are given."""
    return times_of([part for frame in frames for part in switch.take(LOG, frame)])


def times_of(parts: list[ClientFrame]) -> list[int]:
    assert not any(part.is_last for part in parts)
    return [time for part in parts if isinstance(part.frame, Data) for time in part.frame.batch["time"].to_pylist()]


def test_what_reaches_the_time_is_held_back_until_all_have_promised() -> None:
    switch = EgressSwitch(next_id=5, reached=0)
    assert switch.prepare(following(100, agreed=False)) == []
    assert given(switch, rows(5, 80, 90, 100, 110), boundary(105), rows(9, 120)) == [80, 90]
    assert (switch.held, switch.has_ended, switch.status()) == (3, False, {"to": 2, "at_us": 100, "state": PROMISED})
    [last] = switch.prepare(following(100, agreed=True))
    assert last.is_last and isinstance(last.frame, Boundary) and last.frame.time == 100
    assert last.frame.anchor is not None
    assert last.frame.anchor.next_ids == ((f"{PLAN.output.name}/0", 7),), "clients have the rows 5 and 6 of this version"
    assert switch.has_ended and given(switch, rows(10, 130)) == []


def test_what_was_held_back_is_given_when_another_time_is_named() -> None:
    switch = EgressSwitch(next_id=0, reached=0)
    switch.prepare(following(100, agreed=False))
    assert given(switch, rows(0, 90, 100, 110)) == [90]
    assert times_of(switch.prepare(following(200, agreed=False))) == [100, 110]
    assert switch.held == 0 and given(switch, rows(3, 199, 200)) == [199]
    assert times_of(switch.prepare(None)) == [200]


def test_a_time_that_rows_have_reached_is_missed() -> None:
    switch = EgressSwitch(next_id=0, reached=0)
    assert given(switch, rows(0, 90, 100)) == [90, 100]
    switch.prepare(following(100, agreed=False))
    assert switch.status() == {"to": 2, "at_us": 100, "state": MISSED}
    assert given(switch, rows(2, 110)) == [110]
