"""The checkers see each anomaly in a history that has it, and nothing in one that has not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from boreal.model.frames import Boundary, Data, Frame, LogId, Origin, RecDone, Start, Undo
from simulation.invariants import ANOMALIES, LogHistory, readable

LOG = LogId("s", "r0", 0)
LIFE, NEXT_LIFE = Origin("r0", 1), Origin("r0", 2)


def _rows(first_id: int, times: list[int], tentative: bool = False, epoch: int = 0, cause: str = "m.r0-1") -> Data:
    batch = pa.RecordBatch.from_arrays([pa.array(times, pa.int64())], names=["time"])
    return Data(LIFE, epoch, first_id, batch, tentative, ((1 << 62, 0),), 0, ("a",), cause)


def _boundary(time: int, tentative: bool = False, epoch: int = 0, origin: Origin = LIFE) -> Boundary:
    return Boundary(origin, epoch, time, tentative, 0, 0, cause="m.r0-1" if tentative else "")


def _anomalies(*frames: Frame) -> list[str]:
    history = LogHistory.of(LOG, list(enumerate((Start(LIFE, 0), *frames))))
    return [violation.name for violation in history.violations]


def test_a_failure_and_its_correction_are_no_anomaly() -> None:
    undone: list[Frame] = [_rows(2, [30, 40], True), _boundary(50, True), Undo(LIFE, 1, 1)]
    corrected: list[Frame] = [_rows(2, [30, 35, 40], epoch=1), _boundary(50, epoch=1), RecDone(LIFE, 1)]
    assert _anomalies(_rows(0, [10, 20]), _boundary(30), *undone, *corrected, _rows(5, [60], True, 1)) == []


def test_what_a_dead_life_writes_is_as_if_it_were_not_there() -> None:
    assert _anomalies(_rows(0, [10]), Start(NEXT_LIFE, 1), Undo(LIFE, 1, -1), _boundary(5, epoch=1, origin=NEXT_LIFE)) == []


def test_no_reader_is_given_what_a_dead_life_writes_late() -> None:
    """R25: so it counts neither as given to a client nor as given twice."""
    late: list[Frame] = [_rows(0, [10], True), Start(LIFE, 0)]
    frames: list[Frame] = [Start(LIFE, 0), _rows(0, [10], True), Start(NEXT_LIFE, 1), *late, _boundary(20, origin=NEXT_LIFE)]
    assert [when for when, _ in readable(list(enumerate(frames)))] == [0, 1, 2, 5]


@pytest.mark.parametrize(
    "name, frames",
    [
        ("stable-repeated", [_rows(0, [10, 20]), _rows(1, [20])]),
        ("stable-lost", [_rows(0, [10, 20]), _rows(3, [20])]),
        ("stable-undone", [_rows(0, [10, 20]), Undo(LIFE, 1, 0)]),
        ("stable-early", [_rows(0, [10], True), _rows(0, [10])]),
        ("out-of-order", [_rows(0, [20, 10])]),
        ("out-of-order", [_rows(0, [20]), _rows(1, [10])]),
        ("out-of-order", [_boundary(30), _rows(0, [20])]),
        ("boundary-fell", [_boundary(30), _boundary(20)]),
        ("boundary-fell", [_rows(0, [10], True), _boundary(20)]),
        ("epoch-fell", [_rows(0, [10], True), Undo(LIFE, 0, -1)]),
        ("tentative-repeated", [_rows(0, [10], True), _boundary(20, True), _rows(1, [15], True)]),
        ("ids-broken", [_rows(0, [10], True), _rows(0, [20], True)]),
        ("no-cause", [_rows(0, [10], True, cause="")]),
        ("no-cause", [_rows(0, [10], True), _rows(1, [20], True, cause="m.r0-2")]),
        ("rec-done-missing", [_rows(0, [10], True), Undo(LIFE, 1, -1), _rows(0, [10], True, 1)]),
    ],
)
def test_an_anomaly_is_named(name: str, frames: list[Frame]) -> None:
    assert name in _anomalies(*frames)
    assert name in ANOMALIES
