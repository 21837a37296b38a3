"""What-if is a bound: whatever X a failure was recorded under, it says of another X at least what that X shows, and
nothing only where that X shows nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from deployment.failures import Failure
from deployment.what_if import Overhead, staircase
from tests.thoroughness import every
from tests.unit.embedded.live.test_engine import Drive, rows
from tests.unit.embedded.live.test_journal import failures

THRESHOLDS = ("1s", "3s", "6s", "9s")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Failure, Overhead, int]]:
    """For each X: the failure as it was recorded, what X cannot use to wait, and the tentative rows that clients saw."""
    found = {}
    for threshold in THRESHOLDS:
        data: Path = tmp_path_factory.mktemp(threshold)
        drive = Drive(data)
        with closing(drive.engine):
            query = drive.demo()
            drive.engine.change("departures", {"delay_threshold": threshold}, drive.now)
            drive.run(8)
            status = query.status(drive.now)
            overhead = Overhead.measured(status["x_ms"], status["alpha_x_ms"], query.plan.completion_us / 1_000)
            drive.cut(query, "cut jfk for 6s")
            drive.run(12)
            [failure] = failures(data)
            found[threshold] = failure, overhead, len(rows(query, "tentative"))
    return found


@pytest.mark.parametrize("recorded", every(4, THRESHOLDS))
def test_it_is_never_less_than_what_is_shown(runs: dict[str, tuple[Failure, Overhead, int]], recorded: str) -> None:
    failure, overhead, _ = runs[recorded]
    steps = staircase([failure], overhead)
    for other in THRESHOLDS:
        shown = runs[other][2]
        said = [step for step in steps if step.x_ms <= float(other.removesuffix("s")) * 1_000][-1]
        assert said.rows >= shown, f"recorded under {recorded}: {steps} says {said.rows} of {other}, which shows {shown}"
    assert runs["1s"][2] > 0 and runs["9s"][2] == 0
    assert (steps[-1].rows, steps[-1].failures) == (0, 0) and 6_000 < steps[-1].x_ms < 9_000
